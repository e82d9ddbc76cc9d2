// Package issuertest is the conformance suite for issuers: what every
// guard.Issuer must hold, whatever it counts in. Anyone can run it on an
// issuer of their own.
package issuertest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/s3fence/s3fence/guard"
)

// An Issuer can make a scope's counter besides counting.
type Issuer interface {
	guard.Issuer
	CreateScope(ctx context.Context, scope string) (id guard.IssuerID, created bool, err error)
}

// A Peeker can tell how far a counter is. Issuers need not be one.
type Peeker interface {
	// Peek returns the scope's issuer id and the last number that it gave, 0 for
	// none. It takes no number, and makes no counter.
	Peek(ctx context.Context, scope string) (guard.IssuerID, int64, error)
}

// A Harness says how to reach the issuer under test.
type Harness struct {
	// Open returns one more client of the same counters, as another process
	// would have.
	Open func(t *testing.T) Issuer
	// MadeOnUse says that a scope's counter is made when it is first asked.
	MadeOnUse bool
	// Crash stops what holds the counters as a power cut would, and starts it
	// again. Clients opened before must work after. nil leaves that test out.
	Crash func(t *testing.T)
	// Callers and Each say how many callers take how many tokens at once.
	// Default: 64 and 200.
	Callers, Each int
}

// Run runs the suite.
func Run(t *testing.T, h Harness) {
	if h.Callers == 0 {
		h.Callers, h.Each = 64, 200
	}
	t.Run("rises", h.rises)
	t.Run("created once", h.createdOnce)
	t.Run("scopes are apart", h.scopesApart)
	t.Run("no counter", h.noCounter)
	t.Run("invalid scope", h.invalidScope)
	t.Run("canceled", h.canceled)
	t.Run("peek", h.peek)
	t.Run("all distinct", h.allDistinct)
	t.Run("crash", h.crash)
}

// scope makes the counter of a scope named after the test.
func (h Harness) scope(t *testing.T, iss Issuer) string {
	t.Helper()
	s := "suite/" + strings.NewReplacer(" ", "-", "#", "-").Replace(t.Name())
	if len(s) > guard.MaxScope {
		s = s[len(s)-guard.MaxScope:]
	}
	if _, _, err := iss.CreateScope(t.Context(), s); err != nil {
		t.Fatalf("create scope: %v", err)
	}
	return s
}

func issue(t *testing.T, iss Issuer, scope string) guard.Token {
	t.Helper()
	tok, err := iss.Issue(t.Context(), scope)
	if err != nil {
		t.Fatalf("issue: %v", err)
	}
	if tok.Scope() != scope {
		t.Fatalf("asked for %s, got %s", scope, tok)
	}
	return tok
}

func (h Harness) rises(t *testing.T) {
	a, b := h.Open(t), h.Open(t)
	scope := h.scope(t, a)
	last := issue(t, a, scope)
	if last.Number() != 1 {
		t.Errorf("a new counter begins with %d", last.Number())
	}
	for i := range 20 {
		iss := a
		if i%3 == 0 {
			iss = b
		}
		tok := issue(t, iss, scope)
		if tok.Number() <= last.Number() || tok.Issuer() != last.Issuer() {
			t.Fatalf("%s after %s", tok, last)
		}
		last = tok
	}
}

func (h Harness) createdOnce(t *testing.T) {
	a := h.Open(t)
	scope := h.scope(t, a)
	tok := issue(t, a, scope)
	id, created, err := h.Open(t).CreateScope(t.Context(), scope)
	if err != nil || created || id != tok.Issuer() {
		t.Errorf("create again: id %s, created %v, %v; the counter's id is %s", id, created, err, tok.Issuer())
	}
	if next := issue(t, a, scope); next.Number() <= tok.Number() {
		t.Errorf("%s after %s", next, tok)
	}
	fresh := scope + "/fresh"
	ids := make(chan guard.IssuerID, 8)
	var wg sync.WaitGroup
	var mu sync.Mutex
	made := 0
	for range cap(ids) {
		iss := h.Open(t)
		wg.Go(func() {
			id, created, err := iss.CreateScope(t.Context(), fresh)
			if err != nil {
				t.Errorf("create at once: %v", err)
			}
			ids <- id
			mu.Lock()
			defer mu.Unlock()
			if created {
				made++
			}
		})
	}
	wg.Wait()
	want := issue(t, a, fresh).Issuer()
	for range cap(ids) {
		if id := <-ids; id != want {
			t.Errorf("told id %s, the counter has %s", id, want)
		}
	}
	if made != 1 {
		t.Errorf("%d callers made one counter", made)
	}
}

func (h Harness) scopesApart(t *testing.T) {
	iss := h.Open(t)
	one := h.scope(t, iss)
	two := one + "/two"
	if _, _, err := iss.CreateScope(t.Context(), two); err != nil {
		t.Fatal(err)
	}
	issue(t, iss, one)
	issue(t, iss, one)
	tok := issue(t, iss, two)
	if tok.Number() != 1 || tok.Issuer() == issue(t, iss, one).Issuer() {
		t.Errorf("the second scope began with %s", tok)
	}
}

func (h Harness) noCounter(t *testing.T) {
	tok, err := h.Open(t).Issue(t.Context(), "suite/never-made")
	if h.MadeOnUse {
		if err != nil || tok.Number() != 1 {
			t.Errorf("got %s, %v", tok, err)
		}
		return
	}
	if !errors.Is(err, guard.ErrIssuerRefuses) || !tok.IsZero() {
		t.Errorf("got %s, %v", tok, err)
	}
}

func (h Harness) invalidScope(t *testing.T) {
	iss := h.Open(t)
	for _, scope := range []string{"", "a b", "a:b", "ü", strings.Repeat("x", guard.MaxScope+1)} {
		if tok, err := iss.Issue(t.Context(), scope); !errors.Is(err, guard.ErrInvalid) || !tok.IsZero() {
			t.Errorf("issue %q: %s, %v", scope, tok, err)
		}
		if _, _, err := iss.CreateScope(t.Context(), scope); !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("create %q: %v", scope, err)
		}
	}
}

func (h Harness) canceled(t *testing.T) {
	iss := h.Open(t)
	scope := h.scope(t, iss)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if tok, err := iss.Issue(ctx, scope); !errors.Is(err, context.Canceled) || !tok.IsZero() {
		t.Errorf("got %s, %v", tok, err)
	}
	issue(t, iss, scope)
}

// peek changes nothing, and sees what any client took.
func (h Harness) peek(t *testing.T) {
	iss, other := h.Open(t), h.Open(t)
	p, ok := other.(Peeker)
	if !ok {
		t.Skip("left out: the issuer is no Peeker")
	}
	scope := h.scope(t, iss)
	var id guard.IssuerID
	for want := range int64(4) {
		for range 2 {
			got, n, err := p.Peek(t.Context(), scope)
			if err != nil || n != want || got == (guard.IssuerID{}) || want > 0 && got != id {
				t.Fatalf("peek: issuer %s, %d, %v; want %s, %d", got, n, err, id, want)
			}
			id = got
		}
		if tok := issue(t, iss, scope); tok.Number() != want+1 || tok.Issuer() != id {
			t.Fatalf("after a peek at %d: %s", want, tok)
		}
	}
	for range 2 {
		if _, n, err := p.Peek(t.Context(), "suite/never-peeked"); !errors.Is(err, guard.ErrIssuerRefuses) || n != 0 {
			t.Errorf("no counter: %d, %v", n, err)
		}
	}
	if _, _, err := p.Peek(t.Context(), "a b"); !errors.Is(err, guard.ErrInvalid) {
		t.Errorf("invalid scope: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, n, err := p.Peek(ctx, scope); !errors.Is(err, context.Canceled) || n != 0 {
		t.Errorf("canceled: %d, %v", n, err)
	}
}

func (h Harness) allDistinct(t *testing.T) {
	first := h.Open(t)
	scope := h.scope(t, first)
	seen := make([][]int64, h.Callers)
	var wg sync.WaitGroup
	for i := range h.Callers {
		iss := first
		if i%8 == 0 {
			iss = h.Open(t)
		}
		wg.Go(func() {
			for range h.Each {
				tok, err := iss.Issue(t.Context(), scope)
				if err != nil {
					t.Errorf("caller %d: %v", i, err)
					return
				}
				seen[i] = append(seen[i], tok.Number())
			}
		})
	}
	wg.Wait()
	owner := make(map[int64]int)
	for i, ns := range seen {
		last := int64(0)
		for _, n := range ns {
			if by, twice := owner[n]; twice {
				t.Fatalf("callers %d and %d both got %d", by, i, n)
			}
			owner[n] = i
			if n <= last {
				t.Fatalf("caller %d got %d after %d", i, n, last)
			}
			last = n
		}
	}
	if want := h.Callers * h.Each; len(owner) != want {
		t.Errorf("%d tokens, want %d", len(owner), want)
	}
}

// crash takes numbers while what holds them is killed: whatever was told to
// anybody before, the next number is higher.
func (h Harness) crash(t *testing.T) {
	if h.Crash == nil {
		t.Skip("left out: the harness can't crash this issuer")
	}
	iss := h.Open(t)
	scope := h.scope(t, iss)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := make(map[int64]bool)
	var highest int64
	enough := make(chan struct{})
	for range 8 {
		wg.Go(func() {
			for ctx.Err() == nil {
				tok, err := iss.Issue(ctx, scope)
				if err != nil {
					continue // killed meanwhile; no token was given
				}
				mu.Lock()
				if seen[tok.Number()] {
					t.Errorf("%d was given twice", tok.Number())
				}
				seen[tok.Number()] = true
				highest = max(highest, tok.Number())
				if len(seen) == 100 {
					close(enough)
				}
				mu.Unlock()
			}
		})
	}
	<-enough
	h.Crash(t)
	cancel()
	wg.Wait()
	if tok := issue(t, h.Open(t), scope); tok.Number() <= highest {
		t.Errorf("%d after a crash, %d was given before it", tok.Number(), highest)
	}
}
