package guard_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/internal/mems3"
)

const testScope = "nightly/report"

// claiming returns a Guard whose scope fences are in m too.
func claiming(m guard.Store, age time.Duration) *guard.Guard {
	return guard.New(m, &guard.Options{Backoff: func(int) time.Duration { return 0 }, FenceMaxAge: age})
}

func mustClaim(t *testing.T, g *guard.Guard, n int64) guard.Result {
	t.Helper()
	res, err := g.Claim(t.Context(), token(t, n), nil)
	if err != nil {
		t.Fatalf("claim %d: %v", n, err)
	}
	return res
}

func TestScopeFenceKey(t *testing.T) {
	for _, tt := range []struct{ root, scope, want string }{
		{"", "nightly", ".s3fence/scopes/nightly.json"},
		{"team/a", "nightly/report", "team/a/.s3fence/scopes/nightly/report.json"},
		{"team/a/", "x", "team/a/.s3fence/scopes/x.json"},
		{"", "a//b", ".s3fence/scopes/a/%/b.json"},
		{"", "/a", ".s3fence/scopes/%/a.json"},
		{"", "a/../b", ".s3fence/scopes/a/%2E2E/b.json"},
		{"", "./a", ".s3fence/scopes/%2E/a.json"},
		{"", "a/..", ".s3fence/scopes/a/...json"},
		{"", "a/", ".s3fence/scopes/a/.json"},
	} {
		if got := guard.ScopeFenceKey(tt.root, tt.scope); got != tt.want {
			t.Errorf("%q %q: %q, want %q", tt.root, tt.scope, got, tt.want)
		}
	}
}

// The scope fence stops an old owner at a key that the new one never touched.
func TestClaimStopsAnOldOwnerEverywhere(t *testing.T) {
	m := mems3.New()
	g := claiming(m, 0)
	res := mustClaim(t, g, 49)
	if res.Outcome != guard.Claimed || res.Key != guard.ScopeFenceKey("", testScope) || res.ETagKind != guard.ETagUnique {
		t.Errorf("%+v", res)
	}
	_, err := claiming(m, 0).Put(t.Context(), token(t, 47), "untouched", guard.Bytes(nil), nil)
	r := wantRefusal(t, err, guard.ErrStale)
	want := "stale token 47 for s3://mem/untouched: scope nightly/report is claimed with 49"
	if r.Claim == nil || r.Claim.Number != 49 || r.Held != nil || err.Error() != want {
		t.Errorf("%v", err)
	}
	_, err = claiming(m, 0).Delete(t.Context(), token(t, 47), "untouched", &guard.DeleteOptions{Absent: true})
	wantRefusal(t, err, guard.ErrStale)
	if m.Body("untouched") != "(absent)" {
		t.Error("it was written")
	}
	// The owner itself, and a newer one without a claim.
	mustPut(t, claiming(m, 0), 49, "k", "49", nil)
	mustPut(t, claiming(m, 0), 50, "k", "50", kms)
	// Another scope is another matter.
	other, err := guard.NewToken(testIssuer, "other", 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Put(t.Context(), other, "o", guard.Bytes(nil), nil); err != nil {
		t.Error(err)
	}
}

func TestClaimOnlyRises(t *testing.T) {
	m := mems3.New()
	g := claiming(m, 0)
	mustClaim(t, g, 5)
	for n, reason := range map[int64]guard.Reason{4: guard.ErrStale, 5: guard.ErrReplayed} {
		_, err := g.Claim(t.Context(), token(t, n), nil)
		wantRefusal(t, err, reason)
	}
	mustClaim(t, g, 6)
	mustClaim(t, claiming(m, 0), 8)
	if r, err := g.Claimed(t.Context(), testScope); err != nil || r.Number != 8 {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err := g.Claimed(t.Context(), "never"); err != nil || r != nil {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := g.Claim(t.Context(), guard.Token{}, nil); guard.ReasonOf(err) != guard.ErrMissingToken {
		t.Errorf("%v", err)
	}
}

// Case 1 for the scope fence.
func TestClaimLostAnswer(t *testing.T) {
	m := mems3.New()
	m.After = once("put", 1, errLost)
	if res := mustClaim(t, claiming(m, 0), 5); res.Outcome != guard.AlreadyApplied || m.Puts != 1 {
		t.Errorf("%+v after %d puts", res, m.Puts)
	}
}

// A token of a counter that was made anew is told from the old one's.
func TestClaimOfAnotherCounter(t *testing.T) {
	m := mems3.New()
	mustClaim(t, claiming(m, 0), 5)
	tok, err := guard.NewToken(guard.IssuerID{7}, testScope, 9)
	if err != nil {
		t.Fatal(err)
	}
	_, err = claiming(m, 0).Put(t.Context(), tok, "k", guard.Bytes(nil), nil)
	if r := wantRefusal(t, err, guard.ErrIssuerMismatch); r.Claim == nil || !strings.Contains(err.Error(), "scope nightly/report is claimed with 5") {
		t.Errorf("%v", err)
	}
	_, err = claiming(m, 0).Claim(t.Context(), tok, nil)
	wantRefusal(t, err, guard.ErrIssuerMismatch)
}

// What can't be read is not taken for unclaimed.
func TestScopeFenceUnreadable(t *testing.T) {
	key := guard.ScopeFenceKey("", testScope)
	other := guard.Record{Issuer: testIssuer, Scope: "other", Number: 1, Sequence: 1, State: guard.Live}
	for name, tt := range map[string]struct {
		break_ func(*mems3.Store)
		reason guard.Reason
		err    error
	}{
		"unfenced": {func(m *mems3.Store) { m.Overwrite(key, "{}", nil) }, guard.ErrUnfenced, nil},
		"corrupt": {func(m *mems3.Store) {
			m.Overwrite(key, "{}", map[string]string{guard.RecordKey: "48"})
		}, guard.ErrCorruptRecord, nil},
		"of another scope": {func(m *mems3.Store) {
			m.Overwrite(key, "{}", map[string]string{guard.RecordKey: other.String()})
		}, guard.ErrCorruptRecord, nil},
		"deleted": {func(m *mems3.Store) {
			m.Bucket.Versioning = guard.VersioningOn
			m.Overwrite(key, "{}", nil)
			m.Remove(key)
		}, guard.ErrFenceLost, nil},
		"denied": {func(m *mems3.Store) {
			m.Before = func(op, k string) error {
				if op == "head" && k == key {
					return guard.ErrDenied
				}
				return nil
			}
		}, "", guard.ErrDenied},
		"no answer": {func(m *mems3.Store) {
			m.Before = func(op, k string) error {
				if op == "head" && k == key {
					return errLost
				}
				return nil
			}
		}, "", errLost},
	} {
		for _, age := range []time.Duration{0, guard.EveryWrite} {
			m := mems3.New()
			tt.break_(m)
			_, err := claiming(m, age).Put(t.Context(), token(t, 5), "k", guard.Bytes(nil), nil)
			if tt.err != nil {
				if !errors.Is(err, tt.err) || guard.ReasonOf(err) != "" {
					t.Errorf("%s: %v", name, err)
				}
			} else if r := wantRefusal(t, err, tt.reason); !strings.Contains(err.Error(), key) || r.Key != key {
				t.Errorf("%s: %v", name, err)
			}
			if m.Puts != 0 {
				t.Errorf("%s: it was written", name)
			}
		}
	}
}

// A claim after an answer was lost says nothing about where that write is.
func TestClaimAfterALostAnswerIsUnknown(t *testing.T) {
	m := mems3.New()
	g := claiming(m, guard.EveryWrite)
	m.Before = func(op, key string) error {
		if op == "put" && key == "k" { // lost on its way there
			m.Before = nil
			mustClaim(t, claiming(m, 0), 9)
			return errLost
		}
		return nil
	}
	_, err := g.Put(t.Context(), token(t, 5), "k", guard.Bytes(nil), nil)
	wantRefusal(t, err, guard.ErrOutcomeUnknown)
}

// An applied write stays applied, whoever has claimed the scope since.
func TestClaimLeavesWhatWasApplied(t *testing.T) {
	m := mems3.New()
	o := &guard.PutOptions{WriteID: guard.WriteID{1}}
	mustPut(t, claiming(m, 0), 5, "k", "x", o)
	mustClaim(t, claiming(m, 0), 9)
	if res := mustPut(t, claiming(m, 0), 5, "k", "x", o); res.Outcome != guard.AlreadyApplied {
		t.Errorf("%+v", res)
	}
}

// The scope fence is read at most once within its age, by however many writers.
func TestScopeFenceReadings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := mems3.New()
		m.Bucket.UniqueETags = true
		var mu sync.Mutex
		readings := 0
		m.Before = func(op, key string) error {
			if op == "head" && strings.HasPrefix(key, guard.OwnPrefix) {
				mu.Lock()
				readings++
				mu.Unlock()
				time.Sleep(10 * time.Millisecond)
			}
			return nil
		}
		g := claiming(m, 0)
		burst := func() {
			var wg sync.WaitGroup
			for i := range 50 {
				wg.Go(func() {
					if _, err := g.Put(t.Context(), token(t, 5), fmt.Sprint(time.Now().UnixNano(), i), guard.Bytes(nil), nil); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
		}
		burst()
		burst()
		if readings != 1 {
			t.Errorf("%d readings for 100 writes within a second", readings)
		}
		time.Sleep(guard.DefaultFenceMaxAge)
		burst()
		if readings != 2 {
			t.Errorf("%d readings after it was too old", readings)
		}
		// Paused for longer than the age, it reads again, and is stopped.
		m.Before = func(op, key string) error {
			if op == "head" && key == "late" {
				mustClaim(t, claiming(m, 0), 9)
				time.Sleep(2 * guard.DefaultFenceMaxAge)
			}
			return nil
		}
		_, err := g.Put(t.Context(), token(t, 5), "late", guard.Bytes(nil), nil)
		wantRefusal(t, err, guard.ErrStale)
	})
}

func TestScopeFenceWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := mems3.New()
		m.Before = func(op, key string) error {
			if op == "head" && strings.HasPrefix(key, guard.OwnPrefix) {
				time.Sleep(time.Hour)
			}
			return nil
		}
		g := claiming(m, 0)
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() { _, _ = g.Put(t.Context(), token(t, 5), "a", guard.Bytes(nil), nil) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		_, err := g.Put(ctx, token(t, 5), "b", guard.Bytes(nil), nil)
		if !errors.Is(err, context.DeadlineExceeded) || guard.ReasonOf(err) != "" || time.Since(begun) > time.Second {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
	})
}

// A replay says that the scope is another owner's by now, where that is known
// without asking.
func TestReplayedAfterAClaim(t *testing.T) {
	m := mems3.New()
	g := claiming(m, time.Hour)
	mustPut(t, g, 5, "k", "five", nil)
	mustClaim(t, claiming(m, 0), 6)
	replay := func() string {
		m.Heads = 0
		_, err := g.Put(t.Context(), token(t, 5), "k", guard.Bytes(nil), kms)
		r := wantRefusal(t, err, guard.ErrReplayed)
		if m.Heads != 1 {
			t.Errorf("%d heads", m.Heads)
		}
		return strings.Join(r.Cures, "\n")
	}
	if cures := replay(); !strings.Contains(cures, "sequence") || strings.Contains(cures, "claimed") {
		t.Errorf("before it is known: %s", cures)
	}
	if _, err := g.Claimed(t.Context(), testScope); err != nil {
		t.Fatal(err)
	}
	if cures := replay(); cures != "a newer owner has claimed the scope with 6: stop, or start over with a fresh token" {
		t.Errorf("%s", cures)
	}
	// The owner of the claim may well write again.
	mustPut(t, g, 6, "mine", "six", nil)
	_, err := g.Put(t.Context(), token(t, 6), "mine", guard.Bytes(nil), kms)
	if cures := strings.Join(wantRefusal(t, err, guard.ErrReplayed).Cures, "\n"); !strings.Contains(cures, "sequence") {
		t.Errorf("its owner: %s", cures)
	}
}

// What lies under .s3fence/ is written by the guard alone.
func TestOwnKeys(t *testing.T) {
	m := mems3.New()
	m.Overwrite(".s3fence/x", "theirs", nil)
	m.Before = func(op, key string) error {
		t.Errorf("%s %s", op, key)
		return nil
	}
	g := claiming(m, 0)
	for _, key := range []string{".s3fence/x", ".s3fence/", "team/.s3fence/scopes/" + testScope + ".json"} {
		for name, write := range map[string]func() (guard.Result, error){
			"put": func() (guard.Result, error) { return g.Put(t.Context(), token(t, 5), key, guard.Bytes(nil), nil) },
			"dry run": func() (guard.Result, error) {
				return g.Put(t.Context(), token(t, 5), key, guard.Bytes(nil), &guard.PutOptions{DryRun: true})
			},
			"stream": func() (guard.Result, error) {
				return g.PutStream(t.Context(), token(t, 5), key, strings.NewReader("x"), nil)
			},
			"delete": func() (guard.Result, error) {
				return g.Delete(t.Context(), token(t, 5), key, &guard.DeleteOptions{Absent: true})
			},
			"adopt": func() (guard.Result, error) { return g.Adopt(t.Context(), token(t, 5), key, nil) },
		} {
			if _, err := write(); !errors.Is(err, guard.ErrInvalid) || !strings.Contains(err.Error(), "s3fence's own") {
				t.Errorf("%s %s: %v", name, key, err)
			}
		}
	}
	m.Before = nil
	mustPut(t, g, 5, "x.s3fence/x", "five", nil)
	mustClaim(t, g, 6)
}
