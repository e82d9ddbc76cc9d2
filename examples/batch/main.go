// Batch is a nightly job that must not run twice at once, and writes many
// objects. It is run here on the embedded store and issuer, with no AWS account
// and no server:
//
//	go run ./examples/batch
//
// It runs on two nights. In the second one, the machine that makes the report is
// cut off from the issuer in the middle, and another takes over: the context of
// the first one's work ends, and what it writes all the same is refused. The
// story is told on standard output, the log is on standard error. With -dir the
// store is kept, and the next run goes on with it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/issuer"
	"github.com/s3fence/s3fence/localstack"
)

const (
	scope   = "nightly/report"
	status  = "status.json"
	results = "results/"
	// ttl is short, so that nobody waits long for the example. A job that runs
	// for hours does well with the default.
	ttl = 3 * time.Second
)

func main() {
	dir := flag.String("dir", "", "keep store and issuer in `DIR` (default: a temporary folder)")
	flag.Parse()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := run(context.Background(), *dir, log); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string, log *slog.Logger) (err error) {
	if dir == "" {
		if dir, err = os.MkdirTemp("", "s3fence-batch-*"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	local, err := localstack.Open(dir, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, local.Close()) }()
	// On AWS these are s3store.New and issuer.OpenDynamoDB.
	store := local.Store("reports")
	on := func(machine string, leases issuer.LeaseStore) job {
		return job{machine: machine, store: store, leases: leases, log: log.With("machine", machine), pause: func() {}}
	}

	fmt.Println("Monday: web1 makes the report.")
	if err := on("web1", local).run(ctx, "monday"); err != nil {
		return err
	}

	fmt.Println("\nTuesday: web1 is cut off from the issuer in the middle, and web2 takes over.")
	uplink := &line{LeaseStore: local}
	cut, mended, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	web1 := on("web1", uplink)
	web1.pause = func() {
		uplink.cut.Store(true)
		close(cut)
		<-mended
	}
	go func() { ended <- web1.run(ctx, "tuesday") }()
	select {
	case <-cut:
	case err := <-ended:
		return err
	}
	fmt.Println("  (web1 is cut off; web2 waits until its lease has stood still for its TTL)")
	if err := on("web2", local).run(ctx, "tuesday"); err != nil {
		return err
	}
	fmt.Println("  (web1 goes on)")
	uplink.cut.Store(false)
	close(mended)
	if err := <-ended; !errors.Is(err, issuer.ErrLeaseLost) || !errors.Is(err, guard.ErrStale) {
		return fmt.Errorf("web1 was not stopped: %w", err)
	}
	return show(ctx, guard.New(store, nil))
}

// A job makes the report of one night on one machine.
type job struct {
	machine string
	store   guard.Store
	leases  issuer.LeaseStore
	log     *slog.Logger
	pause   func() // after the first part
}

// run is what cron starts on every machine: the one that gets the lease works,
// the others wait.
func (j job) run(ctx context.Context, night string) (err error) {
	g := guard.New(j.store, &guard.Options{Logger: j.log})
	lease, err := issuer.Acquire(ctx, j.leases, scope, issuer.LeaseOptions{
		Owner: j.machine, TTL: ttl, Wait: time.Minute, Claimed: g.Claimed, Logger: j.log,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lease.Release(context.WithoutCancel(ctx))) }()
	j.say("holds the lease, with token %d", lease.Token().Number())

	// The lease chooses an owner. What stops a former one is its token, which
	// each write of the session carries.
	session, err := g.ResumeSession(lease.Context(), lease.Token(), nil)
	if err != nil {
		return err
	}
	end := "done"
	if err = j.work(lease.Context(), g, session, night); err != nil {
		j.say("stops: %v", err)
		end = "stopped"
	}
	// Whatever happened, the status says so: with a context that lasts longer than
	// the lease. Where another owner has taken over this is refused, and so does
	// no harm.
	return errors.Join(err, j.report(ctx, session, night+", "+end))
}

// work writes the parts of the report, and takes away those of other nights. It
// ends when ctx does: when the lease is lost.
func (j job) work(ctx context.Context, g *guard.Guard, s *guard.Session, night string) error {
	parts := []string{"north", "south"}
	for i, part := range parts {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := j.report(ctx, s, fmt.Sprintf("%s, %d of %d parts", night, i, len(parts))); err != nil {
			return err
		}
		if err := j.put(ctx, s, results+night+"-"+part+".csv", []byte("the totals of the "+part+"\n"), "text/csv", ""); err != nil {
			return err
		}
		if i == 0 {
			j.pause()
		}
	}
	for info, err := range g.Walk(ctx, results, nil) {
		if err != nil {
			return err
		}
		if strings.HasPrefix(info.Key, results+night+"-") {
			continue
		}
		res, err := s.Delete(ctx, info.Key, nil)
		if err != nil {
			return err
		}
		j.say("%s %s, token %s", info.Key, res.Outcome, res.Record.Fence())
	}
	return nil
}

// report writes how far the job is.
func (j job) report(ctx context.Context, s *guard.Session, says string) error {
	b, err := json.Marshal(map[string]string{"by": j.machine, "says": says})
	if err != nil {
		return err
	}
	return j.put(ctx, s, status, b, "application/json", ": "+says)
}

// put writes one object. On AWS its options have SSE: "aws:kms" too, since an
// object is replaced only under an ETag that can't come back: docs/protocol.md.
func (j job) put(ctx context.Context, s *guard.Session, key string, b []byte, contentType, says string) error {
	res, err := s.Put(ctx, key, guard.Bytes(b), &guard.PutOptions{Headers: guard.Headers{ContentType: contentType}})
	if err != nil {
		if errors.Is(err, guard.ErrStale) {
			j.say("refused: %v", err)
		}
		return err
	}
	j.say("%s %s, token %s%s", key, res.Outcome, res.Record.Fence(), says)
	return nil
}

func (j job) say(format string, args ...any) {
	fmt.Printf("  %s: %s\n", j.machine, fmt.Sprintf(format, args...))
}

// A line to the issuer, which can be cut.
type line struct {
	issuer.LeaseStore
	cut atomic.Bool
}

// SwapLease implements [issuer.LeaseStore].
func (l *line) SwapLease(ctx context.Context, scope string, over guard.WriteID, next issuer.LeaseRecord, claim guard.Record) (issuer.LeaseRecord, error) {
	if l.cut.Load() {
		return issuer.LeaseRecord{}, fmt.Errorf("%w: the line is cut", guard.ErrNotSent)
	}
	return l.LeaseStore.SwapLease(ctx, scope, over, next, claim)
}

// show tells what a reader finds.
func show(ctx context.Context, g *guard.Guard) error {
	_, r, err := g.Get(ctx, status, nil)
	if err != nil {
		return err
	}
	defer r.Close()
	holds, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	fmt.Printf("\n%s holds %s\n", status, holds)
	for info, err := range g.Walk(ctx, results, nil) {
		if err != nil {
			return err
		}
		fmt.Printf("%s has token %s\n", info.Key, info.Record.Fence())
	}
	return nil
}
