package guard_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/internal/mems3"
)

// counter is an issuer in memory, which is what an issuer must never be.
type counter struct {
	mu   sync.Mutex
	id   guard.IssuerID
	last int64
	err  error
}

func (c *counter) Issue(_ context.Context, scope string) (guard.Token, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return guard.Token{}, c.err
	}
	c.last++
	return guard.NewToken(c.id, scope, c.last)
}

func TestSession(t *testing.T) {
	m := mems3.New()
	m.Bucket.UniqueETags = true
	iss := &counter{id: testIssuer, last: 4}
	s, err := claiming(m, 0).OpenSession(t.Context(), iss, testScope, nil)
	if err != nil {
		t.Fatal(err)
	}
	if s.Token().Number() != 5 || s.LastSequence() != 0 {
		t.Errorf("%+v, %d", s.Token(), s.LastSequence())
	}
	if r, err := claiming(m, 0).Claimed(t.Context(), testScope); err != nil || r.Number != 5 {
		t.Errorf("claimed %+v, %v", r, err)
	}
	// Many writes of one key by one owner, in order and at once.
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := s.Put(t.Context(), "status", guard.Bytes([]byte("x")), nil); err != nil {
				t.Error(err)
			}
			if _, err := s.Put(t.Context(), "other", guard.Bytes([]byte("y")), nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if s.LastSequence() != 40 {
		t.Errorf("sequence %d", s.LastSequence())
	}
	if _, err := s.Delete(t.Context(), "status", nil); err != nil {
		t.Error(err)
	}
	res, err := s.Put(t.Context(), "status", guard.Bytes([]byte("again")), nil)
	if err != nil || res.Record.Fence() != (guard.Fence{Number: 5, Sequence: 42}) {
		t.Errorf("%+v, %v", res, err)
	}
	if _, err := s.Put(t.Context(), "k", guard.Bytes(nil), &guard.PutOptions{Sequence: 3}); !errors.Is(err, guard.ErrInvalid) {
		t.Errorf("a sequence of one's own: %v", err)
	}

	// The next owner ends it, everywhere.
	if _, err := claiming(m, 0).OpenSession(t.Context(), iss, testScope, nil); err != nil {
		t.Fatal(err)
	}
	old, err := claiming(m, 0).ResumeSession(t.Context(), s.Token(), &guard.SessionOptions{NoClaim: true, LastSequence: s.LastSequence()})
	if err != nil {
		t.Fatal(err)
	}
	_, err = old.Put(t.Context(), "untouched", guard.Bytes(nil), nil)
	wantRefusal(t, err, guard.ErrStale)
	_, err = claiming(m, 0).ResumeSession(t.Context(), s.Token(), nil)
	wantRefusal(t, err, guard.ErrStale)
}

// A counter that was restored from a backup, or made anew, is found out by the
// scope fence.
func TestSessionWitnessesTheCounter(t *testing.T) {
	m := mems3.New()
	mustClaim(t, claiming(m, 0), 50)
	iss := &counter{id: testIssuer, last: 48}
	for range 2 {
		_, err := claiming(m, 0).OpenSession(t.Context(), iss, testScope, nil)
		if r := wantRefusal(t, err, guard.ErrIssuerRefuses); r.Claim.Number != 50 {
			t.Errorf("%+v", r)
		}
	}
	if s, err := claiming(m, 0).OpenSession(t.Context(), iss, testScope, nil); err != nil || s.Token().Number() != 51 {
		t.Errorf("%v", err)
	}
	_, err := claiming(m, 0).OpenSession(t.Context(), &counter{id: guard.IssuerID{3}, last: 90}, testScope, nil)
	wantRefusal(t, err, guard.ErrIssuerMismatch)
	_, err = claiming(m, 0).OpenSession(t.Context(), &counter{err: guard.ErrIssuerRefuses}, testScope, nil)
	if !errors.Is(err, guard.ErrIssuerRefuses) {
		t.Errorf("%v", err)
	}
}

// Two open at once: the later token wins the scope, and nobody calls the
// counter rolled back.
func TestSessionOvertaken(t *testing.T) {
	m := mems3.New()
	iss := &counter{id: testIssuer}
	m.Before = func(op, key string) error {
		if op == "put" {
			m.Before = nil
			if _, err := claiming(m, 0).OpenSession(t.Context(), iss, testScope, nil); err != nil {
				t.Error(err)
			}
		}
		return nil
	}
	_, err := claiming(m, 0).OpenSession(t.Context(), iss, testScope, nil)
	wantRefusal(t, err, guard.ErrStale)
}

func TestSessionWithoutAToken(t *testing.T) {
	g := claiming(mems3.New(), 0)
	if _, err := g.ResumeSession(t.Context(), guard.Token{}, nil); !errors.Is(err, guard.ErrMissingToken) {
		t.Errorf("%v", err)
	}
	if _, err := g.OpenSession(t.Context(), &counter{}, "no scope", nil); !errors.Is(err, guard.ErrInvalid) {
		t.Errorf("%v", err)
	}
	if _, err := g.ResumeSession(t.Context(), token(t, 1), &guard.SessionOptions{LastSequence: -1}); !errors.Is(err, guard.ErrInvalid) {
		t.Errorf("%v", err)
	}
}

func TestSessionLockEndsWithItsContext(t *testing.T) {
	m := mems3.New()
	s, err := claiming(m, 0).ResumeSession(t.Context(), token(t, 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	m.Before = func(op, key string) error {
		if op != "put" {
			return nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.Put(ctx, "k", guard.Bytes(nil), nil); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		return nil
	}
	if _, err := s.Put(t.Context(), "k", guard.Bytes(nil), nil); err != nil {
		t.Error(err)
	}
}
