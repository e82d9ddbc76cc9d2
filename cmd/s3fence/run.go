package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"github.com/spf13/cobra"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/issuer"
)

// runJSON is what run prints at the end.
type runJSON struct {
	Op string `json:"op"` // run
	failure
	Scope string `json:"scope"`
	Token int64  `json:"token,omitempty"`
	Exit  *int   `json:"exit,omitempty"` // CMD's
}

// releaseTimeout bounds the giving back: the lease ends by itself otherwise.
const releaseTimeout = 5 * time.Second

type runFlags struct{ ttl, wait, grace time.Duration }

func (a *app) runCommand() *cobra.Command {
	var r runFlags
	c := &cobra.Command{
		Use:   "run --scope S -- CMD ARG...",
		Short: "Run a command as the one owner of a scope",
		Long: `Run takes the lease of --scope and a token with it, claims the scope with the
token, and runs CMD. As long as CMD runs, heartbeats renew the lease; it is given
back at the end. Nobody else's run of the scope begins meanwhile.

CMD finds the token in S3FENCE_TOKEN, so that s3fence put, rm and adopt in it
write under the token, each with the run's next sequence (S3FENCE_SEQUENCE): a key
may be written many times. What is written at the same time to one key has no
order: the one that counted first may be refused as stale.

Where another holds the lease, run exits with 17 when --wait is over and a heartbeat
has shown that the owner lives, which takes a third of the owner's --ttl. An owner
who shows none for all of it is gone, and run takes over, however short --wait is.

When the lease is lost, since it could not be renewed in time, CMD and all that it
started get TERM, and KILL after --grace; then run exits with 17. Without
--root there is nothing to claim: then an older owner is refused only at keys that
this one has written.

CMD has a process group of its own and gets the signals that run gets. Its exit
code is passed on, 128 + N for signal N. 127: there is no CMD, 126: it can't be
run. As the first process of a container, run also reaps what others leave behind.`,
		Example: `  # 1. one at a time, wherever cron starts it
  s3fence run --scope nightly/report --root s3://bucket -- ./report.sh

  # 2. a standby that takes over when the first one is gone
  s3fence run --scope worker --root s3://bucket --wait 10000h -- ./worker

  # 3. with nothing to start and no account; the key is written twice, in order
  s3fence run --local ./demo --scope nightly --root s3://demo -- sh -c '
    echo begun | s3fence put - s3://demo/status
    echo done | s3fence put - s3://demo/status'`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("which command? s3fence run --scope SCOPE -- CMD ARG...")
			}
			return nil
		},
	}
	f := c.Flags()
	f.SetInterspersed(false) // what follows CMD is CMD's
	f.DurationVar(&r.ttl, "ttl", issuer.DefaultLeaseTTL, "how long the lease outlives its last heartbeat")
	f.DurationVar(&r.wait, "wait", 0, "how long to wait for a lease that another holds; a negative one looks once, and does not wait for an owner who is gone either")
	f.DurationVar(&r.grace, "grace", 10*time.Second, "time between TERM and KILL when the lease is lost")
	c.RunE = func(c *cobra.Command, args []string) error {
		if os.Getpid() == 1 {
			return reap(os.Args[1:])
		}
		return a.run(c.Context(), args, r)
	}
	return c
}

func (a *app) run(ctx context.Context, args []string, f runFlags) error {
	scope, err := a.needScope()
	if err != nil {
		return err
	}
	if _, given := a.setting("token"); given {
		return usagef("run takes a token of its own: --token is not for it")
	}
	switch {
	case f.grace < 0:
		return usagef("--grace %v is negative", f.grace)
	case f.ttl == 0: // to the library, its default
		return usagef("--ttl 0 is not from %v to %v", issuer.MinLeaseTTL, issuer.MaxLeaseTTL)
	}
	// Before the lease: a wrong name costs no number.
	path, err := exec.LookPath(args[0])
	if err != nil {
		return notRun(err)
	}
	sequence, remove, err := newSequence()
	if err != nil {
		return err
	}
	defer remove()
	lease, err := a.lease(ctx, scope, f)
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("interrupted, %s was not begun: %w", args[0], err)
	}
	if err != nil {
		return err
	}
	j := runJSON{Op: "run", Scope: scope, Token: lease.Token().Number()}
	code, err := a.runHolding(ctx, lease, sequence, path, args, f)
	// Ctrl-C has ended ctx by now.
	rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if rerr := lease.Release(rctx); rerr != nil {
		a.log.WarnContext(ctx, "the lease was not given back, and ends by itself", "after", f.ttl, "error", rerr)
	}
	j.Outcome = "done"
	if err != nil {
		j.failure = newFailure(err)
	} else {
		j.Exit = &code
		if code != 0 {
			err = reportedError{&exitError{fmt.Errorf("%s: exit code %d", args[0], code), code}}
		}
	}
	if a.json {
		err = errors.Join(a.answer(j, ""), err)
	}
	return err
}

// notRun is the error of a command that can't be run, with the shells' codes.
func notRun(err error) error {
	code := 126
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrDot) {
		code = 127
	}
	return &exitError{fmt.Errorf("run: %w", err), code}
}

// issueFunc is a guard.Issuer.
type issueFunc func(ctx context.Context, scope string) (guard.Token, error)

func (f issueFunc) Issue(ctx context.Context, scope string) (guard.Token, error) {
	return f(ctx, scope)
}

// lease acquires the lease and claims the scope with its token.
func (a *app) lease(ctx context.Context, scope string, f runFlags) (*issuer.Lease, error) {
	leases, err := a.openLeases(ctx)
	if err != nil {
		return nil, err
	}
	// A signal ends the waiting, but does not take the lease from CMD while it
	// winds down.
	lctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	var lease *issuer.Lease
	opts := issuer.LeaseOptions{Owner: owner(), TTL: f.ttl, Wait: f.wait, Logger: a.log}
	acquire := issueFunc(func(ctx context.Context, scope string) (guard.Token, error) {
		lease, err = issuer.Acquire(ctx, leases, scope, opts)
		if err != nil {
			return guard.Token{}, err
		}
		return lease.Token(), nil
	})
	bucket, _, err := a.root("")
	switch {
	case err != nil:
	case bucket == "":
		if _, err = acquire(lctx, scope); err == nil {
			a.log.WarnContext(ctx, "the scope is not claimed: an older owner can still write keys that this one does not; give --root", "scope", scope)
		}
	default:
		var g *guard.Guard
		if g, err = a.openGuard(ctx, bucket); err == nil {
			opts.Claimed = g.Claimed
			_, err = g.OpenSession(lctx, acquire, scope, nil)
		}
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err == nil {
		return lease, nil
	}
	cancel()
	if lease != nil {
		rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer cancel()
		err = errors.Join(err, lease.Release(rctx))
	}
	return nil, err
}

// owner says who holds the lease, for people.
func owner() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	who := host + ":" + strconv.Itoa(os.Getpid())
	if u, err := user.Current(); err == nil {
		who = u.Username + "@" + who
	}
	return who[max(0, len(who)-issuer.MaxLeaseOwner):]
}

// runHolding runs the command while the lease is held. It returns the command's
// exit code, or the loss.
func (a *app) runHolding(ctx context.Context, lease *issuer.Lease, sequence, path string, args []string, f runFlags) (int, error) {
	env, err := a.childEnv(lease.Token(), sequence)
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(path, args[1:]...)
	cmd.Args[0] = args[0]
	cmd.Env = env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr

	signals := make(chan os.Signal, 64)
	signal.Notify(signals, forwarded...)
	defer signal.Stop(signals)
	p, err := start(cmd)
	if err != nil {
		return 0, notRun(err)
	}
	defer p.close()
	lost, ended := lease.Context().Done(), p.ended
	var loss error
	var grace, look <-chan time.Time
	code := 0
	for {
		select {
		case s := <-signals:
			p.signal(s)
		case <-lost:
			lost = nil
			loss = context.Cause(lease.Context())
			a.log.WarnContext(ctx, "lease lost: the command is terminated", "grace", f.grace, "error", loss)
			p.terminate()
			grace = time.After(f.grace)
		case <-grace:
			p.kill()
			grace = nil
		case code = <-ended:
			ended = nil
		case <-look:
		}
		// What CMD started may outlive it, and must not outlive the lease.
		if ended == nil && (loss == nil || grace == nil || !p.alive()) {
			return code, loss
		}
		if ended == nil {
			look = time.After(20 * time.Millisecond)
		}
	}
}

// childEnv is the environment of the command: our own, and all flags that have
// a twin in it.
func (a *app) childEnv(tok guard.Token, sequence string) ([]string, error) {
	set := map[string]string{
		"S3FENCE_TOKEN": tok.String(), "S3FENCE_SCOPE": tok.Scope(), "S3FENCE_SEQUENCE": sequence,
	}
	for flag, env := range map[string]string{
		"issuer": "S3FENCE_ISSUER", "root": "S3FENCE_ROOT",
		"endpoint-url": "AWS_ENDPOINT_URL_S3", "dynamodb-endpoint-url": "AWS_ENDPOINT_URL_DYNAMODB",
		"region": "AWS_REGION", "profile": "AWS_PROFILE",
	} {
		if v, fromFlag := a.setting(flag); fromFlag {
			set[env] = v
		}
	}
	if a.skipProfile {
		set["S3FENCE_NO_PROFILE"] = "1"
	}
	// Empty where a flag of ours beats the one in our own environment; whole,
	// since the command may change its folder.
	dir, err := a.localDir()
	if err == nil && dir != "" {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return nil, err
	}
	set["S3FENCE_LOCAL"] = dir
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		_, ours := set[name]
		return ours
	})
	for k, v := range set {
		env = append(env, k+"="+v)
	}
	return env, nil
}

// fromRun sets a sequence that no flag names to the next one of the run that
// this process is part of.
func (a *app) fromRun(c *cobra.Command, sequence *int64) (err error) {
	if !c.Flags().Changed("sequence") {
		*sequence, err = a.sequence(c.Context())
	}
	return err
}

// sequence takes the next sequence of the run that this process is part of, for
// a write under the run's token. It is 0, the default of every write, outside
// of a run, and with a token that a flag names.
func (a *app) sequence(ctx context.Context) (int64, error) {
	name := a.getenv("S3FENCE_SEQUENCE")
	tok, tokFlag := a.setting("token")
	_, scopeFlag := a.setting("scope")
	if name == "" || tok == "" || tokFlag || scopeFlag {
		return 0, nil
	}
	n, err := nextSequence(ctx, name)
	switch {
	case err == nil:
		return n, nil
	case ctx.Err() != nil:
		return 0, fmt.Errorf("interrupted, nothing was written: %w", ctx.Err())
	case errors.Is(err, guard.ErrInvalid):
		return 0, fmt.Errorf("take the run's next sequence: %w", err)
	case errors.Is(err, fs.ErrNotExist):
		err = fmt.Errorf("%w: its run has ended, or the file was removed", err)
	}
	return 0, fmt.Errorf("take the run's next sequence from %s: %w: begin a new run, or give --sequence", name, err)
}

// newSequence makes a sequence's file, in a private folder that remove removes.
func newSequence() (name string, remove func(), err error) {
	dir, err := os.MkdirTemp("", "s3fence-run-") // 0700
	if err != nil {
		return "", nil, fmt.Errorf("make the run's private folder, see TMPDIR: %w", err)
	}
	remove = func() { _ = os.RemoveAll(dir) }
	// Whole, since the command may change its folder.
	if dir, err = filepath.Abs(dir); err == nil {
		name = filepath.Join(dir, "sequence")
		err = os.WriteFile(name, sequenceText(0), 0o600)
	}
	if err != nil {
		remove()
	}
	return name, remove, err
}

func nextSequence(ctx context.Context, name string) (n int64, err error) {
	lock := flock.New(name+".lock", flock.SetPermissions(0o600))
	if _, err := lock.TryLockContext(ctx, 2*time.Millisecond); err != nil {
		return 0, err
	}
	defer lock.Close()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	b, err := io.ReadAll(io.LimitReader(f, 64))
	if err != nil {
		return 0, err
	}
	n, err = strconv.ParseInt(strings.TrimSuffix(string(b), "\n"), 10, 64)
	switch {
	case err != nil || n < 0 || string(sequenceText(n)) != string(b):
		return 0, errors.New("the file is damaged")
	case n >= guard.MaxSequence:
		return 0, fmt.Errorf("%w: the token's last sequence is used up: begin a new run", guard.ErrInvalid)
	}
	n++
	_, err = f.WriteAt(sequenceText(n), 0)
	return n, err
}

// sequenceText is of one width, so that writing it over another leaves nothing
// of that.
func sequenceText(n int64) []byte { return fmt.Appendf(nil, "%010d\n", n) }
