//go:build unix

package main

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/s3fence/s3fence/issuer"
	"github.com/s3fence/s3fence/localstack"
	"github.com/s3fence/s3fence/localstack/faultproxy"
	"github.com/s3fence/s3fence/localstack/servers"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
)

// A running is an s3fence that runs, as a process of its own.
type running struct {
	*exec.Cmd
	t   *testing.T
	in  io.WriteCloser
	out *bufio.Reader
	log string // the file with its standard error
}

// environment is one with s3fence on its PATH.
func environment(t *testing.T, env ...string) []string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	if err := os.Symlink(exe, filepath.Join(bin, "s3fence")); err != nil {
		t.Fatal(err)
	}
	all := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "S3FENCE_") || strings.HasPrefix(kv, "AWS_")
	})
	all = append(all, "S3FENCE_TEST_MAIN=1", "PATH="+bin+":"+os.Getenv("PATH"), "TMPDIR="+t.TempDir())
	return append(all, env...)
}

// begin starts s3fence.
func begin(t *testing.T, attr *syscall.SysProcAttr, env []string, args ...string) *running {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := &running{t: t, Cmd: exec.CommandContext(t.Context(), exe, args...)}
	r.Args[0] = "s3fence"
	r.Env = environment(t, env...)
	r.log = filepath.Join(t.TempDir(), "log")
	log, err := os.Create(r.log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	r.Stderr = log
	in, err := r.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := r.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	r.in, r.out = in, bufio.NewReader(out)
	r.SysProcAttr = attr
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *running) stderr() string {
	r.t.Helper()
	b, err := os.ReadFile(r.log)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(b)
}

// line waits for the next line, and returns what comes after the word it begins
// with.
func (r *running) line(word string) string {
	r.t.Helper()
	s, err := r.out.ReadString('\n')
	rest, ok := strings.CutPrefix(strings.TrimSuffix(s, "\n"), word)
	if err != nil || !ok {
		r.t.Fatalf("got %q, %v, want %s; standard error:\n%s", s, err, word, r.stderr())
	}
	return strings.TrimSpace(rest)
}

// end waits until the process has ended, and all that shares its output.
func (r *running) end(want int) (rest string) {
	r.t.Helper()
	b, err := io.ReadAll(r.out)
	if err != nil {
		r.t.Error(err)
	}
	err = r.Wait()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		r.t.Error(err)
	}
	if got := r.ProcessState.ExitCode(); got != want {
		r.t.Errorf("exit code %d, want %d; said %q and\n%s", got, want, b, r.stderr())
	}
	return string(b)
}

func (r *running) send(s os.Signal) {
	r.t.Helper()
	if err := r.Process.Signal(s); err != nil {
		r.t.Fatal(err)
	}
}

func number(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func kill(t *testing.T, pid int, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, s); err != nil {
		t.Fatalf("kill %d %v: %v", pid, s, err)
	}
}

// wantStopped waits until the process is stopped.
func wantStopped(t *testing.T, pid int) {
	t.Helper()
	for range 1000 {
		b, err := exec.CommandContext(t.Context(), "ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
		if err != nil {
			t.Fatalf("ps: %v", err)
		}
		if strings.HasPrefix(string(b), "T") {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("process %d is not stopped", pid)
}

func leaseOf(t *testing.T, dir, scope string) issuer.LeaseRecord {
	t.Helper()
	l, err := localstack.Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r, err := l.Lease(t.Context(), scope)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func wantReleased(t *testing.T, dir string) {
	t.Helper()
	if r := leaseOf(t, dir, "s"); !r.Released {
		t.Errorf("the lease was not given back: %+v", r)
	}
}

// Case 19: the holder is stopped past its lease, with its command; another owner
// takes over and writes. When the first one wakes, its first write is refused,
// at a key that the new owner wrote and at one that it did not, and the command
// is ended. What it started is ended with it.
func TestRunStopped(t *testing.T) {
	dir := t.TempDir()
	env := []string{"S3FENCE_LOCAL=" + dir, "S3FENCE_ROOT=s3://demo"}
	one := begin(t, nil, env, "run", "--scope", "s", "--ttl", "3s", "--grace", "3s", "--", "sh", "-c", `
		trap '' TERM
		echo old | s3fence put - s3://demo/k >/dev/null || exit 1
		echo ready $$
		read go
		echo late | s3fence put --sequence 2 - s3://demo/k; echo put $?
		echo late | s3fence put - s3://demo/other; echo put $?
		sleep 600`)
	group := -number(t, one.line("ready"))
	// Not in the middle of a heartbeat, while it holds the folder's lock.
	for v := leaseOf(t, dir, "s").Version; leaseOf(t, dir, "s").Version == v; {
		time.Sleep(5 * time.Millisecond)
	}
	kill(t, one.Process.Pid, syscall.SIGSTOP)
	kill(t, group, syscall.SIGSTOP)

	two := begin(t, nil, env, "run", "--scope", "s", "--wait", "10m", "--", "sh", "-c",
		`echo new | s3fence put - s3://demo/k; echo put $?`)
	two.line("replaced s3://demo/k: token 2 ")
	two.line("put 0")
	two.end(0)

	kill(t, group, syscall.SIGCONT)
	if _, err := io.WriteString(one.in, "go\n"); err != nil {
		t.Fatal(err)
	}
	one.line("put 10")
	one.line("put 10")
	one.send(syscall.SIGCONT)
	one.end(17)
	if s := one.stderr(); !strings.Contains(s, "stale token 1.2 for s3://demo/k: ") || !strings.Contains(s, "s3fence: lease lost: scope s, token 1: ") {
		t.Errorf("it said:\n%s", s)
	}
	three := begin(t, nil, env, "cat", "s3://demo/k")
	three.line("new")
	three.end(0)
	wantReleased(t, dir)
}

// lockFolder lets nobody else write to the embedded folder.
func lockFolder(t *testing.T, dir string) (unlock func()) {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(dir, "s3fence.db"))
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	if _, err := db.ExecContext(t.Context(), "PRAGMA busy_timeout = 30000; BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	return sync.OnceFunc(func() {
		if _, err := db.ExecContext(context.Background(), "ROLLBACK"); err != nil {
			t.Error(err)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Case 20: renewal fails for longer than the lease. The command gets TERM, and
// what does not end by itself KILL: the command itself, or what it started.
func TestRunLosesLease(t *testing.T) {
	for name, tt := range map[string]struct{ script, last string }{
		"ends":                {`trap 'echo TERM; exit 0' TERM; echo ready; while :; do sleep 0.05; done`, ""},
		"does not end":        {`trap 'echo TERM' TERM; echo ready; while :; do sleep 0.05; done`, ""},
		"its child does not":  {`sh -c 'trap "" TERM; exec sleep 600' & trap 'echo TERM; exit 0' TERM; echo ready; while :; do sleep 0.05; done`, ""},
		"is stopped":          {`trap 'echo TERM; exit 0' TERM; echo ready; kill -STOP $$; while :; do sleep 0.05; done`, ""},
		"goes on for a while": {`trap 'echo TERM; sleep 0.2; echo done; exit 0' TERM; echo ready; while :; do sleep 0.05; done`, "done\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			r := begin(t, nil, []string{"S3FENCE_LOCAL=" + dir}, "run", "--scope", "s", "--ttl", "1s", "--grace", "2s", "--", "sh", "-c", tt.script)
			r.line("ready")
			unlock := lockFolder(t, dir)
			defer unlock()
			r.line("TERM")
			unlock() // or giving it back would wait
			if rest := r.end(17); rest != tt.last {
				t.Errorf("it said %q, want %q", rest, tt.last)
			}
			if s := r.stderr(); !strings.Contains(s, "s3fence: lease lost: scope s, token 1: no heartbeat was accepted for 900ms") {
				t.Errorf("it said:\n%s", s)
			}
			wantReleased(t, dir)
		})
	}
}

// Signals reach the command, each once and as often as they come, and its exit
// code is passed on.
func TestRunSignals(t *testing.T) {
	dir := t.TempDir()
	env := []string{"S3FENCE_LOCAL=" + dir}
	t.Run("caught", func(t *testing.T) {
		script := `for s in INT TERM HUP USR1 USR2 WINCH; do trap "echo $s" $s; done; trap 'exit 42' QUIT; echo ready; while :; do sleep 0.05; done`
		r := begin(t, nil, env, "run", "--scope", "s", "--", "sh", "-c", script)
		r.line("ready")
		for _, s := range []struct {
			signal syscall.Signal
			name   string
		}{
			{syscall.SIGINT, "INT"}, {syscall.SIGINT, "INT"}, {syscall.SIGTERM, "TERM"}, {syscall.SIGTERM, "TERM"}, {syscall.SIGHUP, "HUP"},
			{syscall.SIGUSR1, "USR1"}, {syscall.SIGUSR2, "USR2"}, {syscall.SIGWINCH, "WINCH"}, {syscall.SIGINT, "INT"},
		} {
			r.send(s.signal)
			r.line(s.name)
		}
		if leaseOf(t, dir, "s").Released {
			t.Error("the lease was given back while the command ran")
		}
		r.send(syscall.SIGQUIT)
		if rest := r.end(42); rest != "" {
			t.Errorf("more than was sent: %q", rest)
		}
		wantReleased(t, dir)
	})
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGQUIT} {
		t.Run(s.String(), func(t *testing.T) {
			r := begin(t, nil, env, "run", "--scope", "s", "--", "sh", "-c", "ulimit -c 0; echo ready; exec sleep 600")
			r.line("ready")
			r.send(s)
			r.end(128 + int(s))
			wantReleased(t, dir)
		})
	}
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		t.Run(s.String()+" to one that is stopped", func(t *testing.T) {
			r := begin(t, nil, env, "run", "--scope", "s", "--", "sh", "-c", "ulimit -c 0; echo ready $$; kill -STOP $$; exit 5")
			wantStopped(t, number(t, r.line("ready")))
			r.send(s)
			r.end(128 + int(s))
			wantReleased(t, dir)
		})
	}
	t.Run("in vain", func(t *testing.T) { // while it waits for the lease
		one := begin(t, nil, env, "run", "--scope", "s", "--", "sh", "-c", "echo ready; read go")
		one.line("ready")
		two := begin(t, nil, env, "run", "--scope", "s", "--wait", "10m", "-v", "--", "echo", "not run")
		for !strings.Contains(two.stderr(), "lease is held") {
		}
		two.send(syscall.SIGTERM)
		if out := two.end(130); out != "" {
			t.Errorf("it said %q", out)
		}
		if s := two.stderr(); !strings.Contains(s, "s3fence: interrupted, echo was not begun: ") {
			t.Errorf("it said:\n%s", s)
		}
		if err := one.in.Close(); err != nil {
			t.Error(err)
		}
		one.end(1)
	})
}

// A run that is killed leaves the lease to expire, and no sooner is it taken.
func TestRunKilled(t *testing.T) {
	dir := t.TempDir()
	env := []string{"S3FENCE_LOCAL=" + dir}
	one := begin(t, nil, env, "run", "--scope", "s", "--ttl", "2s", "--", "sh", "-c", "echo ready; read go")
	one.line("ready")
	one.send(syscall.SIGKILL)
	two := begin(t, nil, env, "run", "--scope", "s", "--wait", "-1s", "--", "true")
	two.end(17)
	if s := two.stderr(); !strings.Contains(s, leaseOf(t, dir, "s").Owner) || !strings.Contains(s, "with token 1 since ") {
		t.Errorf("it does not say who holds it:\n%s", s)
	}
	if err := one.in.Close(); err != nil { // ends the orphan
		t.Error(err)
	}
	one.end(-1)
	three := begin(t, nil, env, "run", "--scope", "s", "--", "sh", "-c", "echo $S3FENCE_TOKEN")
	if got := three.line("f1:"); !strings.Contains(got, ":s:00000000000000000002:") {
		t.Errorf("token f1:%s", got)
	}
	three.end(0)
}

// The processes of a run share its sequence.
func TestRunSequence(t *testing.T) {
	name := filepath.Join(t.TempDir(), "sequence")
	if err := os.WriteFile(name, sequenceText(0), 0o600); err != nil {
		t.Fatal(err)
	}
	const token = "f1:8c1d0f2ab64e97d3:nightly/report:00000000000000000048:422d5fde"
	newApp := func(args ...string) *app {
		a := &app{getenv: func(k string) string {
			return map[string]string{"S3FENCE_SEQUENCE": name, "S3FENCE_TOKEN": token, "S3FENCE_SCOPE": "nightly/report"}[k]
		}}
		a.command()
		if err := a.flags.Parse(args); err != nil {
			t.Fatal(err)
		}
		return a
	}
	for _, args := range [][]string{{"--token", token}, {"--scope", "other"}} {
		if n, err := newApp(args...).sequence(t.Context()); n != 0 || err != nil {
			t.Errorf("%v: %d, %v", args, n, err)
		}
	}
	const callers, each = 8, 50
	var mu sync.Mutex
	seen := make(map[int64]bool)
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			a := newApp()
			last := int64(0)
			for range each {
				n, err := a.sequence(t.Context())
				if err != nil || n <= last {
					t.Errorf("%d after %d, %v", n, last, err)
				}
				last = n
				mu.Lock()
				seen[n] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if n, err := newApp().sequence(t.Context()); len(seen) != callers*each || n != callers*each+1 || err != nil {
		t.Errorf("%d sequences, then %d, %v", len(seen), n, err)
	}
	for _, bad := range []string{"", "x\n", "0000000001", "-000000001\n", "9999999999\n", "0000000001\n2"} {
		if err := os.WriteFile(name, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if n, err := newApp().sequence(t.Context()); err == nil || n != 0 {
			t.Errorf("%q: %d", bad, n)
		}
	}
}

// Case 20 with DynamoDB: what answers no longer is behind a proxy.
func TestRunRenewalFails(t *testing.T) {
	d := serverstest.SharedDynalite(t)
	dynamoEnv := func(s *servers.Server) (env []string) {
		for k, v := range serverEnv(s, s) {
			env = append(env, k+"="+v)
		}
		return env
	}
	table := "dynamodb://" + serverstest.Name(t)
	begin(t, nil, dynamoEnv(d), "init", "--issuer", table, "--scope", "s").end(0)
	for name, kind := range map[string]faultproxy.Kind{"resets": faultproxy.Reset, "hangs": faultproxy.Hold} {
		t.Run(name, func(t *testing.T) {
			p, err := faultproxy.New(d.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			r := begin(t, nil, dynamoEnv(serverstest.At(d, p.URL())), "run", "--issuer", table, "--scope", "s", "--ttl", "3s", "--grace", "1s", "--", "sh", "-c",
				`trap 'echo TERM' TERM; echo ready $S3FENCE_ISSUER; while :; do sleep 0.05; done`)
			if got := r.line("ready"); got != table {
				t.Errorf("the command's issuer is %q", got)
			}
			p.Add(faultproxy.Rule{Op: "UpdateItem", Times: faultproxy.Forever, Fault: faultproxy.Fault{Kind: kind}})
			r.line("TERM")
			r.end(17)
			if s := r.stderr(); !strings.Contains(s, "s3fence: lease lost: ") || !strings.Contains(s, "no heartbeat was accepted for 2.7s") {
				t.Errorf("it said:\n%s", s)
			}
			// It could not be given back, and nobody has it before it has expired.
			two := begin(t, nil, dynamoEnv(d), "run", "--issuer", table, "--scope", "s", "--wait", "10m", "--", "true")
			two.end(0)
		})
	}
}
