package issuer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/s3fence/s3fence/guard"
)

// fakeStore keeps one object, which is all that these tests need; the real
// stores are in realservers.
type fakeStore struct {
	guard.Store
	mu     sync.Mutex
	body   []byte // nil: there is none
	etag   int
	marker bool
	puts   int
	// before runs before a PUT is looked at, after when it was decided, and
	// its error is the answer. Both may change the object.
	before func()
	after  func(error) error
	noETag bool // answers to PUTs carry none
}

var errAnswer = errors.New("the answer is lost")

func (f *fakeStore) URL(key string) string { return "s3://fake/" + key }

func (f *fakeStore) Head(context.Context, string, guard.HeadOptions) (guard.Object, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.body == nil {
		return guard.Object{DeleteMarker: f.marker}, guard.ErrNotFound
	}
	return guard.Object{ETag: fmt.Sprint(f.etag)}, nil
}

func (f *fakeStore) Get(ctx context.Context, key string, _ guard.ReadOptions) (guard.Object, io.ReadCloser, error) {
	obj, err := f.Head(ctx, key, guard.HeadOptions{})
	if err != nil {
		return guard.Object{}, nil, err // a store that tells of no delete marker here
	}
	return obj, io.NopCloser(bytes.NewReader(f.body)), nil
}

func (f *fakeStore) Put(ctx context.Context, _ string, req guard.PutRequest) (guard.PutResult, error) {
	if err := ctx.Err(); err != nil {
		return guard.PutResult{}, err
	}
	if f.before != nil {
		f.before()
	}
	f.mu.Lock()
	f.puts++
	err := f.apply(req)
	etag := fmt.Sprint(f.etag)
	f.mu.Unlock()
	if f.after != nil {
		err = f.after(err)
	}
	if f.noETag {
		etag = ""
	}
	return guard.PutResult{ETag: etag}, err
}

func (f *fakeStore) apply(req guard.PutRequest) error {
	c := req.Condition
	if err := c.Check(); err != nil {
		return err
	}
	if c.Absent() && f.body != nil || !c.Absent() && (f.body == nil || c.ETag() != fmt.Sprint(f.etag)) {
		return guard.ErrPreconditionFailed
	}
	body, err := io.ReadAll(req.Body.Reader())
	f.body, f.etag = body, f.etag+1
	return err
}

func newFakeStore(t *testing.T) *fakeStore {
	t.Helper()
	f := &fakeStore{}
	if _, _, err := NewS3(f, "team").CreateScope(t.Context(), "nightly"); err != nil {
		t.Fatal(err)
	}
	f.puts = 0
	return f
}

func mustIssue(t *testing.T, s *S3, want int64) {
	t.Helper()
	if tok, err := s.Issue(t.Context(), "nightly"); err != nil || tok.Number() != want {
		t.Fatalf("got %s, %v; want %d", tok, err, want)
	}
}

// Answers that are lost, before and after others went on.
func TestS3LostAnswers(t *testing.T) {
	for name, tt := range map[string]struct {
		// once runs after the first PUT, which gave number 1.
		once    func(t *testing.T, f *fakeStore, err error) error
		applied bool // whether the first PUT reaches the object
		want    int64
		puts    int
	}{
		"the answer": {func(*testing.T, *fakeStore, error) error { return errAnswer }, true, 1, 1},
		"the answer, then another issuer goes on": {func(t *testing.T, f *fakeStore, _ error) error {
			mustIssue(t, NewS3(f, "team"), 2)
			return errAnswer
		}, true, 3, 3},
		"a 412 of a request that was sent twice": {func(*testing.T, *fakeStore, error) error { return guard.ErrPreconditionFailed }, true, 1, 1},
		"the request":                            {func(*testing.T, *fakeStore, error) error { return errAnswer }, false, 1, 2},
		"the request, with a conflict told":      {func(*testing.T, *fakeStore, error) error { return guard.ErrConflict }, false, 1, 2},
		"the request, then another issuer": {func(t *testing.T, f *fakeStore, _ error) error {
			mustIssue(t, NewS3(f, "team"), 1)
			return errAnswer
		}, false, 2, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeStore(t)
				s := NewS3(f, "team")
				body, etag := f.body, f.etag
				f.after = func(err error) error {
					f.after = nil
					if !tt.applied {
						f.body, f.etag = body, etag
					}
					return tt.once(t, f, err)
				}
				mustIssue(t, s, tt.want)
				if f.puts != tt.puts {
					t.Errorf("%d PUTs, want %d", f.puts, tt.puts)
				}
				mustIssue(t, s, tt.want+1)
			})
		})
	}
}

// A request that lands late, when it was sent again, lands once.
func TestS3LateRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore(t)
		s := NewS3(f, "team")
		var bodies [][]byte
		before, etag := f.body, f.etag
		f.after = func(err error) error {
			bodies = append(bodies, f.body)
			if len(bodies) == 1 {
				f.body, f.etag = before, etag // it is still under way
				return errAnswer
			}
			return err
		}
		mustIssue(t, s, 1)
		if len(bodies) != 2 || !bytes.Equal(bodies[0], bodies[1]) {
			t.Errorf("sent again with other bytes:\n%s", bytes.Join(bodies, nil))
		}
	})
}

// What the store keeps is looked at again after a 412, and never believed after
// an answer without an ETag.
func TestS3LooksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore(t)
		a, b := NewS3(f, "team"), NewS3(f, "team")
		for want := int64(1); want < 10; want += 2 {
			mustIssue(t, a, want)
			mustIssue(t, b, want+1)
		}
		f.noETag = true
		mustIssue(t, a, 11)
		mustIssue(t, a, 12)
	})
}

// Counters that can't be counted on.
func TestS3Refusals(t *testing.T) {
	edit := func(old, with string) func(*fakeStore) {
		return func(f *fakeStore) {
			text := strings.Replace(string(f.body), old, with, 1)
			if text == string(f.body) {
				panic("nothing to edit: " + text)
			}
			f.body, f.etag = []byte(text), f.etag+1
		}
	}
	for name, tt := range map[string]struct {
		change func(*fakeStore)
		says   string
		fresh  bool // also to a process that never saw it
	}{
		"gone":                {func(f *fakeStore) { f.body = nil }, "its counter is gone: it had given 7", false},
		"deleted":             {func(f *fakeStore) { f.body, f.marker = nil, true }, "", true},
		"went back":           {edit(`"number":7`, `"number":3`), "went back: it stands at 3, and had given 7", false},
		"made anew":           {edit(`"issuer":"`, `"issuer":"00000000deadbeef","was":"`), "made anew", false},
		"copied":              {edit(`s3://fake/team`, `s3://other/team`), "it was restored or copied", true},
		"another scope's":     {edit(`"scope":"nightly"`, `"scope":"daily"`), "it is the counter of scope daily", true},
		"cut":                 {func(f *fakeStore) { f.body = f.body[:20]; f.etag++ }, "the counter is damaged", true},
		"no number":           {edit(`"number":7,`, ``), `it has no "number"`, true},
		"a number of words":   {edit(`"number":7`, `"number":"7"`), "the counter is damaged", true},
		"a fraction":          {edit(`"number":7`, `"number":7.5`), "the counter is damaged", true},
		"past 2^63-1":         {edit(`"number":7`, `"number":9223372036854775808`), "the counter is damaged", true},
		"below 0":             {edit(`"number":7`, `"number":-7`), "no number from 0 to 2^63-1", true},
		"at 2^63-1":           {edit(`"number":7`, `"number":9223372036854775807`), "the last number is 9223372036854775807", true},
		"a damaged issuer id": {edit(`"issuer":"`, `"issuer":"x`), "issuer id is damaged", true},
		"a newer format":      {edit(`"s3fence_counter":1`, `"s3fence_counter":2`), "has format 2", true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeStore(t)
			s := NewS3(f, "team")
			for n := range int64(7) {
				mustIssue(t, s, n+1)
			}
			tt.change(f)
			clients := []*S3{s}
			if tt.fresh {
				clients = append(clients, NewS3(f, "team"))
			}
			f.puts = 0
			for _, s := range clients {
				_, err := s.Issue(t.Context(), "nightly")
				var e *Error
				if !errors.As(err, &e) || !errors.Is(err, guard.ErrIssuerRefuses) || !strings.Contains(err.Error(), tt.says) || e.Source != "s3://fake/team" || len(e.Cures) == 0 {
					t.Errorf("got %v, want a refusal that says %q", err, tt.says)
				}
			}
			if f.puts > 1 { // the first relied on what it wrote, and was refused by the store
				t.Errorf("%d PUTs", f.puts)
			}
		})
	}
}

// A damaged counter that was deleted, as its refusal says, is made again. Where
// nothing tells its id, a fresh one takes its place.
func TestS3DamagedDeleted(t *testing.T) {
	f := newFakeStore(t)
	s := NewS3(f, "team")
	mustIssue(t, s, 1)
	id, _, err := s.Peek(t.Context(), "nightly")
	if err != nil {
		t.Fatal(err)
	}
	f.body, f.etag = f.body[:20], f.etag+1
	s = NewS3(f, "team")
	_, err = s.Reconcile(t.Context(), "nightly", ReconcileOptions{Issuer: id, AtLeast: 1})
	if e := new(Error); !errors.As(err, &e) || !strings.Contains(strings.Join(e.Cures, "\n"), "or delete it, and make it again") {
		t.Fatalf("damaged: %v", err)
	}
	f.body, f.marker = nil, true
	_, err = s.Reconcile(t.Context(), "nightly", ReconcileOptions{})
	if e := new(Error); !errors.As(err, &e) || !strings.Contains(strings.Join(e.Cures, "\n"), "remove its delete marker and all versions of it, then make a fresh one: s3fence init") {
		t.Errorf("of an unknown id: %v", err)
	}
	if _, err := s.Reconcile(t.Context(), "nightly", ReconcileOptions{Issuer: id, AtLeast: 1}); err != nil {
		t.Fatal(err)
	}
	mustIssue(t, s, 2)
	f.body, f.marker = nil, false
	s = NewS3(f, "team")
	if _, created, err := s.CreateScope(t.Context(), "nightly"); err != nil || !created {
		t.Fatalf("created %t, %v", created, err)
	}
	mustIssue(t, s, 1)
}

// What a claim tells of a counter stops it however often it is asked.
func TestS3IssueAfter(t *testing.T) {
	f := newFakeStore(t)
	s := NewS3(f, "team")
	mustIssue(t, s, 1)
	id, n, err := s.Peek(t.Context(), "nightly")
	if err != nil || n != 1 {
		t.Fatalf("%d, %v", n, err)
	}
	claim := guard.Record{Issuer: id, Scope: "nightly", Number: 3, Sequence: 1}
	for range 4 {
		if tok, err := s.IssueAfter(t.Context(), claim); !errors.Is(err, guard.ErrIssuerRefuses) || !strings.Contains(err.Error(), "stands at 1, and 3 was given and claimed") {
			t.Errorf("below the claim: %s, %v", tok, err)
		}
	}
	claim.Number = 1
	if tok, err := s.IssueAfter(t.Context(), claim); err != nil || tok.Number() != 2 {
		t.Errorf("at the claim: %s, %v", tok, err)
	}
	claim = guard.Record{Issuer: guard.IssuerID{1}, Scope: "nightly", Number: math.MaxInt64, Sequence: 1}
	if tok, err := s.IssueAfter(t.Context(), claim); err != nil || tok.Number() != 3 {
		t.Errorf("of another counter, which is for the caller to find: %s, %v", tok, err)
	}
}

// Callers that wait get their numbers from one request, and the end of one's
// patience is not that of the others.
func TestS3Group(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStore(t)
		s := NewS3(f, "team")
		mustIssue(t, s, 1)
		f.puts = 0
		hold := make(chan struct{})
		f.before = func() { <-hold }
		var wg sync.WaitGroup
		wg.Go(func() { mustIssue(t, s, 2) })
		synctest.Wait() // its PUT is held
		impatient, cancel := context.WithCancel(t.Context())
		var failed error
		wg.Go(func() { _, failed = s.Issue(impatient, "nightly") })
		synctest.Wait() // it is the next
		got := make([]int64, 8)
		for i := range got {
			wg.Go(func() {
				tok, err := s.Issue(t.Context(), "nightly")
				if err != nil {
					t.Error(err)
				}
				got[i] = tok.Number()
			})
		}
		gone, leave := context.WithCancel(t.Context())
		wg.Go(func() { _, _ = s.Issue(gone, "nightly") })
		synctest.Wait()
		leave()
		synctest.Wait()
		hold <- struct{}{}
		synctest.Wait() // the impatient one's PUT is held, for all of them
		f.after = func(error) error { f.after = nil; cancel(); return errAnswer }
		close(hold)
		wg.Wait()
		if !errors.Is(failed, context.Canceled) {
			t.Errorf("the first: %v", failed)
		}
		seen := make(map[int64]bool)
		for _, n := range got {
			if n < 12 || n > 19 || seen[n] { // 3 to 11 went with the one who gave up
				t.Errorf("numbers %d", got)
			}
			seen[n] = true
		}
		if f.puts != 3 {
			t.Errorf("%d PUTs, want one for each group", f.puts)
		}
	})
}

// Fields that this version does not know survive, and are not taken for others.
func TestS3UnknownFields(t *testing.T) {
	f := newFakeStore(t)
	f.body = []byte(strings.Replace(string(f.body), "{", `{"colour":{"of":["the",1.50]},`, 1))
	s := NewS3(f, "team")
	mustIssue(t, s, 1)
	if _, err := s.Reconcile(t.Context(), "nightly", ReconcileOptions{AtLeast: 41}); err != nil {
		t.Fatal(err)
	}
	first := string(f.body)
	mustIssue(t, s, 42)
	for _, body := range []string{first, string(f.body)} {
		if !strings.Contains(body, `"colour":{"of":["the",1.50]}`) {
			t.Errorf("lost: %s", body)
		}
	}
}
