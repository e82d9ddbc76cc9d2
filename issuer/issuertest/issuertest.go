// Package issuertest is the conformance suite for issuers: what every
// guard.Issuer must hold, whatever it counts in. Anyone can run it on an
// issuer of their own.
package issuertest

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/issuer"
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
	t.Run("claimed", h.claimed)
	t.Run("reconcile", h.reconcile)
	t.Run("reconcile under issuers", h.reconcileUnderIssuers)
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

// claimed holds the counter against claims: one above it is that of a counter
// which went back, and takes no number from it.
func (h Harness) claimed(t *testing.T) {
	iss, ok := h.Open(t).(guard.ClaimedIssuer)
	if !ok {
		t.Skip("left out: the issuer is no ClaimedIssuer")
	}
	other := h.Open(t)
	scope := h.scope(t, other)
	first := issue(t, other, scope)
	claim := guard.Record{Issuer: first.Issuer(), Scope: scope, Number: first.Number() + 1, Sequence: 1}
	for range 3 {
		if tok, err := iss.IssueAfter(t.Context(), claim); !errors.Is(err, guard.ErrIssuerRefuses) || !tok.IsZero() {
			t.Errorf("below the claim: %s, %v", tok, err)
		}
	}
	claim.Number--
	if tok, err := iss.IssueAfter(t.Context(), claim); err != nil || tok.Number() != first.Number()+1 {
		t.Errorf("at the claim: %s, %v", tok, err)
	}
	claim.Number = issue(t, other, scope).Number() // which iss has not seen
	if tok, err := iss.IssueAfter(t.Context(), claim); err != nil || tok.Number() != claim.Number+1 {
		t.Errorf("at the claim of another process's number: %s, %v", tok, err)
	}
	claim.Issuer, claim.Number = guard.IssuerID{1, 2, 3}, 1000
	if tok, err := iss.IssueAfter(t.Context(), claim); err != nil || tok.Number() != first.Number()+4 {
		t.Errorf("of another counter, which is for the caller to find: %s, %v", tok, err)
	}
}

// reconciler is one more client, if it can reconcile. Issuers need not.
func (h Harness) reconciler(t *testing.T) issuer.Reconciler {
	t.Helper()
	r, ok := h.Open(t).(issuer.Reconciler)
	if !ok {
		t.Skip("left out: the issuer is no Reconciler")
	}
	return r
}

func reconcile(t *testing.T, r issuer.Reconciler, scope string, o issuer.ReconcileOptions) issuer.Reconciled {
	t.Helper()
	got, err := r.Reconcile(t.Context(), scope, o)
	if err != nil {
		t.Fatalf("reconcile %+v: %v", o, err)
	}
	return got
}

// reconcile raises a counter, and never lowers it.
func (h Harness) reconcile(t *testing.T) {
	r, iss := h.reconciler(t), h.Open(t)
	scope := h.scope(t, iss)
	id := issue(t, iss, scope).Issuer()

	for _, dry := range []bool{true, false} {
		got := reconcile(t, r, scope, issuer.ReconcileOptions{AtLeast: 100, DryRun: dry})
		if !got.Changed || got.Moved || got.Before == nil || *got.Before != (issuer.Counter{Issuer: id, Number: 1}) || got.After != (issuer.Counter{Issuer: id, Number: 100}) {
			t.Errorf("dry run %v, from 1 to 100: before %v, %+v", dry, got.Before, got)
		}
	}
	if tok := issue(t, iss, scope); tok.Number() != 101 || tok.Issuer() != id {
		t.Errorf("after it was raised to 100: %s", tok)
	}
	for _, least := range []int64{0, 5, 101} {
		if got := reconcile(t, r, scope, issuer.ReconcileOptions{AtLeast: least, Issuer: id}); got.Changed || got.After.Number != 101 {
			t.Errorf("at 101, to at least %d: %+v", least, got)
		}
	}

	// Another id, for new clients; a number is never lowered with it.
	other := guard.IssuerID{1, 2, 3}
	got := reconcile(t, r, scope, issuer.ReconcileOptions{AtLeast: 50, Issuer: other})
	if !got.Changed || got.Before.Issuer != id || got.After != (issuer.Counter{Issuer: other, Number: 101}) {
		t.Errorf("to another issuer id: %+v", got)
	}
	if tok := issue(t, h.Open(t), scope); tok.Number() != 102 || tok.Issuer() != other {
		t.Errorf("with another issuer id: %s", tok)
	}
	if tok, err := r.(guard.Issuer).Issue(t.Context(), scope); err != nil || tok.Number() != 103 {
		t.Errorf("by the client that reconciled: %s, %v", tok, err)
	}

	// A counter that is gone is made again, if it is known with which id.
	gone := scope + "/gone"
	if _, err := r.Reconcile(t.Context(), gone, issuer.ReconcileOptions{AtLeast: 7}); !errors.Is(err, guard.ErrIssuerRefuses) {
		t.Errorf("no counter, no id: %v", err)
	}
	for _, dry := range []bool{true, false} {
		got := reconcile(t, r, gone, issuer.ReconcileOptions{AtLeast: 7, Issuer: other, DryRun: dry})
		if !got.Changed || got.Before != nil || got.After != (issuer.Counter{Issuer: other, Number: 7}) {
			t.Errorf("dry run %v, no counter: %+v", dry, got)
		}
	}
	if tok := issue(t, h.Open(t), gone); tok.Number() != 8 || tok.Issuer() != other {
		t.Errorf("made again: %s", tok)
	}

	for _, o := range []issuer.ReconcileOptions{{AtLeast: -1}, {AtLeast: math.MaxInt64}} {
		if _, err := r.Reconcile(t.Context(), scope, o); !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := r.Reconcile(t.Context(), "a b", issuer.ReconcileOptions{}); !errors.Is(err, guard.ErrInvalid) {
		t.Errorf("invalid scope: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Reconcile(ctx, scope, issuer.ReconcileOptions{AtLeast: 1000}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	if tok := issue(t, h.Open(t), scope); tok.Number() != 104 {
		t.Errorf("after all that was refused: %s", tok)
	}
}

// reconcileUnderIssuers raises a counter that others take numbers from.
func (h Harness) reconcileUnderIssuers(t *testing.T) {
	r, first := h.reconciler(t), h.Open(t)
	scope := h.scope(t, first)
	stop := make(chan struct{})
	taken := make([][]int64, 4)
	var wg sync.WaitGroup
	for i := range taken {
		iss := first
		if i%2 == 0 {
			iss = h.Open(t)
		}
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				tok, err := iss.Issue(t.Context(), scope)
				if err != nil {
					t.Errorf("caller %d: %v", i, err)
					return
				}
				taken[i] = append(taken[i], tok.Number())
			}
		})
	}
	for least := int64(1000); least <= 10_000; least += 1000 {
		if got, err := r.Reconcile(t.Context(), scope, issuer.ReconcileOptions{AtLeast: least}); err != nil || got.After.Number < least {
			t.Errorf("raise to %d: %+v, %v", least, got, err)
		}
		if tok := issue(t, h.Open(t), scope); tok.Number() <= least {
			t.Errorf("%s after the counter was raised to %d", tok, least)
		}
	}
	close(stop)
	wg.Wait()
	distinct(t, taken)
}

// distinct checks that no number was given twice, and that each caller's rise.
// It returns how many there are.
func distinct(t *testing.T, taken [][]int64) int {
	t.Helper()
	owner := make(map[int64]int)
	for i, ns := range taken {
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
	return len(owner)
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
	n := distinct(t, seen)
	if want := h.Callers * h.Each; n != want {
		t.Errorf("%d tokens, want %d", n, want)
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
