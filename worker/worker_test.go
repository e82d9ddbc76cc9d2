package worker_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/localstack"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
	"github.com/s3fence/s3fence/worker"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		serve(dir)
	}
	os.Exit(serverstest.Main(m))
}

var quiet = &worker.Options{Logger: slog.New(slog.DiscardHandler)}

// open returns a worker over the embedded store and issuer, and its guard.
func open(t testing.TB) (*worker.Worker, *guard.Guard, *localstack.Local) {
	t.Helper()
	l, err := localstack.Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	g := guard.New(l.Store("bucket"), nil)
	return worker.New(g, l, "scope", quiet), g, l
}

func begin(t testing.TB, w *worker.Worker, event string) *worker.Job {
	t.Helper()
	j, err := w.Begin(t.Context(), event)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// put writes and checks what came of it.
func put(t testing.TB, j *worker.Job, key, body string, opts *guard.PutOptions, want guard.Outcome) {
	t.Helper()
	res, err := j.Put(t.Context(), key, guard.Bytes([]byte(body)), opts)
	if err != nil || res.Outcome != want {
		t.Errorf("event %s writes %q to %s: %q, %v; want %q", j.Event(), body, key, res.Outcome, err, want)
	}
}

func read(t testing.TB, g *guard.Guard, key string) string {
	t.Helper()
	_, r, err := g.Get(t.Context(), key, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Case 23: an event is delivered three times at once; there is one write.
func TestDeliveredAtOnce(t *testing.T) {
	w, g, _ := open(t)
	var mu sync.Mutex
	var outcomes []guard.Outcome
	var tokens []guard.Token
	var wg sync.WaitGroup
	start := make(chan struct{})
	for range 3 {
		wg.Go(func() {
			<-start
			j, err := w.Begin(t.Context(), "A")
			if err != nil {
				t.Error(err)
				return
			}
			res, err := j.Put(t.Context(), "key", guard.Bytes([]byte("good")), nil)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			outcomes, tokens = append(outcomes, res.Outcome), append(tokens, j.Token())
		})
	}
	close(start)
	wg.Wait()
	slices.Sort(outcomes)
	if !slices.Equal(outcomes, []guard.Outcome{guard.AlreadyApplied, guard.AlreadyApplied, guard.Created}) {
		t.Errorf("outcomes %q", outcomes)
	}
	if len(slices.Compact(tokens)) != 1 {
		t.Errorf("tokens %s", tokens)
	}
	if got := read(t, g, "key"); got != "good" {
		t.Errorf("the object holds %q", got)
	}
}

func TestOldEventAgain(t *testing.T) {
	w, g, _ := open(t)
	put(t, begin(t, w, "A"), "key", "of A", nil, guard.Created)
	put(t, begin(t, w, "B"), "key", "of B", nil, guard.Replaced)
	put(t, begin(t, w, "A"), "key", "of A", nil, worker.Superseded)
	put(t, begin(t, w, "A"), "key", "", nil, worker.Superseded)
	put(t, begin(t, w, "B"), "key", "of B", nil, guard.AlreadyApplied)
	if got := read(t, g, "key"); got != "of B" {
		t.Errorf("the object holds %q", got)
	}
}

// A paused delivery: it took its token before the newer event came, and writes
// after it. What only it writes is written all the same.
func TestLateWriteGoesOnWithOtherKeys(t *testing.T) {
	w, g, _ := open(t)
	paused := begin(t, w, "A")
	put(t, begin(t, w, "B"), "one", "of B", nil, guard.Created)
	put(t, paused, "one", "of A", nil, worker.Superseded)
	put(t, paused, "two", "of A", nil, guard.Created)
	if one, two := read(t, g, "one"), read(t, g, "two"); one != "of B" || two != "of A" {
		t.Errorf("the objects hold %q and %q", one, two)
	}
}

// Case 23: a late retry that came to another result, of the same size or empty.
func TestLateRetryWithOtherOutput(t *testing.T) {
	w, g, _ := open(t)
	put(t, begin(t, w, "A"), "key", "good", nil, guard.Created)
	for _, other := range []string{"", "bad!", "longer than the good one"} {
		put(t, begin(t, w, "A"), "key", other, nil, worker.Kept)
		if got := read(t, g, "key"); got != "good" {
			t.Errorf("after %q the object holds %q", other, got)
		}
	}
	if _, err := begin(t, w, "A").Delete(t.Context(), "key", nil); err != nil {
		t.Error(err)
	}
	put(t, begin(t, w, "A"), "key", "good", nil, guard.AlreadyApplied)
}

// A key that an event writes several times, and a delivery that is behind
// another one of the same event.
func TestSequence(t *testing.T) {
	w, g, _ := open(t)
	seq := func(n int64) *guard.PutOptions { return &guard.PutOptions{Sequence: n} }
	first, second := begin(t, w, "A"), begin(t, w, "A")
	put(t, first, "status", "begun", seq(1), guard.Created)
	put(t, second, "status", "begun", seq(1), guard.AlreadyApplied)
	put(t, first, "status", "done", seq(2), guard.Replaced)
	put(t, second, "status", "done", seq(2), guard.AlreadyApplied)
	put(t, begin(t, w, "A"), "status", "begun", seq(1), worker.Superseded)
	for _, opts := range []*guard.PutOptions{nil, seq(1), seq(2)} {
		if res, err := first.Put(t.Context(), "status", guard.Bytes([]byte("again")), opts); !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("%+v: %q, %v", opts, res.Outcome, err)
		}
	}
	if got := read(t, g, "status"); got != "done" {
		t.Errorf("the object holds %q", got)
	}
}

func TestDelete(t *testing.T) {
	w, _, _ := open(t)
	put(t, begin(t, w, "A"), "key", "of A", nil, guard.Created)
	for _, tt := range []struct {
		event string
		want  guard.Outcome
	}{{"B", guard.Removed}, {"B", guard.AlreadyApplied}, {"A", worker.Superseded}} {
		if res, err := begin(t, w, tt.event).Delete(t.Context(), "key", nil); err != nil || res.Outcome != tt.want {
			t.Errorf("event %s deletes: %q, %v; want %q", tt.event, res.Outcome, err, tt.want)
		}
	}
	put(t, begin(t, w, "A"), "key", "of A", nil, worker.Superseded)
	put(t, begin(t, w, "C"), "key", "of C", nil, guard.Replaced)
	if _, err := begin(t, w, "D").Delete(t.Context(), "key", &guard.DeleteOptions{WriteID: guard.WriteID{1}}); !errors.Is(err, guard.ErrInvalid) {
		t.Errorf("a write id was given: %v", err)
	}
}

// What the event itself can't have led to, or what nothing was written for, is
// an error and no outcome.
func TestErrors(t *testing.T) {
	w, g, l := open(t)
	for name, tt := range map[string]struct {
		before func(j *worker.Job) error
		opts   *guard.PutOptions
		want   error
	}{
		"write id given": {nil, &guard.PutOptions{WriteID: guard.WriteID{1}}, guard.ErrInvalid},
		"unfenced": {func(*worker.Job) error {
			_, err := l.Store("bucket").Put(t.Context(), "unfenced", guard.PutRequest{Condition: guard.IfAbsent(), Body: guard.Bytes(nil)})
			return err
		}, nil, guard.ErrUnfenced},
		"another write with the event's token": {func(j *worker.Job) error {
			_, err := g.Put(t.Context(), j.Token(), "another write with the event's token", guard.Bytes(nil), nil)
			return err
		}, nil, guard.ErrReplayed},
		"another scope's": {func(j *worker.Job) error {
			tok, err := l.Issue(t.Context(), "other")
			if err == nil {
				_, err = g.Put(t.Context(), tok, "another scope's", guard.Bytes(nil), nil)
			}
			return err
		}, nil, guard.ErrScopeMismatch},
	} {
		t.Run(name, func(t *testing.T) {
			j := begin(t, w, name)
			if tt.before != nil {
				if err := tt.before(j); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 { // a write that failed can be made again
				if res, err := j.Put(t.Context(), name, guard.Bytes([]byte("x")), tt.opts); !errors.Is(err, tt.want) {
					t.Errorf("%q, %v; want %v", res.Outcome, err, tt.want)
				}
			}
		})
	}
	if _, err := w.Begin(t.Context(), ""); !errors.Is(err, guard.ErrInvalid) {
		t.Errorf("no event: %v", err)
	}
}

// The output of an event that a claim fenced out is nowhere: its message must
// not be taken for done.
func TestClaimedScope(t *testing.T) {
	w, g, l := open(t)
	put(t, begin(t, w, "Z"), "older", "of Z", nil, guard.Created)
	j := begin(t, w, "A")
	put(t, begin(t, w, "B"), "theirs", "of B", nil, guard.Created)
	if _, err := g.OpenSession(t.Context(), l, "scope", nil); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"new", "older"} {
		if res, err := j.Put(t.Context(), key, guard.Bytes([]byte("x")), nil); !errors.Is(err, guard.ErrStale) {
			t.Errorf("%s: %q, %v", key, res.Outcome, err)
		}
	}
	// This one is superseded by what is in the object, claimed or not.
	put(t, j, "theirs", "of A", nil, worker.Superseded)
}

func TestDryRun(t *testing.T) {
	w, g, _ := open(t)
	j := begin(t, w, "A")
	put(t, j, "key", "x", &guard.PutOptions{DryRun: true}, guard.Created)
	if _, err := g.Stat(t.Context(), "key"); !errors.Is(err, guard.ErrNotFound) {
		t.Errorf("a dry run wrote: %v", err)
	}
	put(t, j, "key", "x", nil, guard.Created)
}

// Each event and each key has a write id of its own, the same at each delivery.
func TestWriteIDs(t *testing.T) {
	w, _, _ := open(t)
	seen := map[guard.WriteID][2]string{}
	for _, ek := range [][2]string{{"A", "b c"}, {"A b", "c"}, {"A", "c"}, {"B", "c"}, {"A", "A c"}, {"1:A", "c"}} {
		var ids [2]guard.WriteID
		for i := range ids {
			res, err := begin(t, w, ek[0]).Put(t.Context(), ek[1], guard.Bytes(nil), &guard.PutOptions{DryRun: true})
			if err != nil {
				t.Fatal(err)
			}
			ids[i] = res.Record.WriteID
		}
		if ids[0] != ids[1] || ids[0].IsZero() {
			t.Errorf("%q has the write ids %s", ek, ids)
		}
		if other, twice := seen[ids[0]]; twice {
			t.Errorf("%q has the write id of %q", ek, other)
		}
		seen[ids[0]] = ek
	}
}

// issuerFunc is an issuer of events' tokens by a function.
type issuerFunc func(event string) (guard.Token, error)

func (f issuerFunc) Issue(context.Context, string) (guard.Token, error) { return f("") }
func (f issuerFunc) IssueFor(_ context.Context, _, event string) (guard.Token, error) {
	return f(event)
}
