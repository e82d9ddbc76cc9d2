package issuertest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/issuer"
)

// A LeaseIssuer keeps leases beside its counters.
type LeaseIssuer interface {
	Issuer
	issuer.LeaseStore
}

// RunLeases runs the suite for leases. The harness opens LeaseIssuers.
func RunLeases(t *testing.T, h Harness) {
	t.Run("swap", h.leaseSwap)
	t.Run("claimed", h.leaseClaimed)
	t.Run("fields", h.leaseFields)
	t.Run("one winner", h.leaseOneWinner)
	t.Run("no counter", h.leaseNoCounter)
	t.Run("bad calls", h.leaseBadCalls)
	t.Run("acquire", h.leaseAcquire)
	t.Run("wait", h.leaseWait)
	t.Run("take over", h.leaseTakeOver)
	t.Run("lost", h.leaseLost)
}

func (h Harness) leases(t *testing.T) LeaseIssuer {
	t.Helper()
	l, ok := h.Open(t).(LeaseIssuer)
	if !ok {
		t.Fatal("the issuer keeps no leases")
	}
	return l
}

// lease is one as an owner would write it. Times lose what is below a
// nanosecond and all of the monotonic clock on their way.
func lease(version byte, tok guard.Token) issuer.LeaseRecord {
	return issuer.LeaseRecord{
		Owner: "host:812", Token: tok, Version: guard.WriteID{version}, TTL: 1500 * time.Millisecond,
		Since: time.Date(2026, 12, 2, 16, 0, 0, 123_456_789, time.UTC), Beat: time.Date(2026, 12, 2, 16, 0, 10, 0, time.UTC),
	}
}

func swap(t *testing.T, l LeaseIssuer, scope string, over byte, next issuer.LeaseRecord) issuer.LeaseRecord {
	t.Helper()
	got, err := l.SwapLease(t.Context(), scope, guard.WriteID{over}, next, guard.Record{})
	if err != nil {
		t.Fatalf("swap: %v", err)
	}
	return got
}

// standing checks what every client reads.
func (h Harness) standing(t *testing.T, scope string, want issuer.LeaseRecord) {
	t.Helper()
	if got, err := h.leases(t).Lease(t.Context(), scope); err != nil || got != want {
		t.Fatalf("the lease is %+v, %v; want %+v", got, err, want)
	}
}

// leaseSwap replaces only what it was told to, and takes numbers only then.
func (h Harness) leaseSwap(t *testing.T) {
	a, b := h.leases(t), h.leases(t)
	scope := h.scope(t, a)
	h.standing(t, scope, issuer.LeaseRecord{})
	before := issue(t, a, scope)

	held := swap(t, a, scope, 0, lease(1, guard.Token{}))
	want := lease(1, held.Token)
	if held != want || held.Token.Number() != before.Number()+1 || held.Token.Issuer() != before.Issuer() || held.Token.Scope() != scope {
		t.Fatalf("taken after %s: %+v", before, held)
	}
	h.standing(t, scope, want)
	// What does not stand is not replaced, and no number is taken.
	for _, over := range []byte{0, 2, 9} {
		if got := swap(t, b, scope, over, lease(2, guard.Token{})); got != want {
			t.Errorf("over version %d: %+v", over, got)
		}
		if got := swap(t, b, scope, over, lease(2, before)); got != want {
			t.Errorf("with a token, over version %d: %+v", over, got)
		}
	}
	// The same again, as a client does that got no answer.
	if got := swap(t, a, scope, 0, lease(1, guard.Token{})); got != want {
		t.Errorf("the same again: %+v", got)
	}

	// Others may take numbers meanwhile; the lease keeps its own.
	if tok := issue(t, b, scope); tok.Number() != held.Token.Number()+1 {
		t.Errorf("%s after the lease's %s", tok, held.Token)
	}
	for range 2 {
		want = lease(3, held.Token)
		if got := swap(t, a, scope, 1, want); got != want {
			t.Errorf("renewed: %+v", got)
		}
	}
	h.standing(t, scope, want)
	if got := swap(t, a, scope, 1, lease(4, held.Token)); got != want {
		t.Errorf("renewed late: %+v", got)
	}

	// Case 21: acquired, released, acquired: the number rises.
	want = lease(5, held.Token)
	want.Released = true
	if got := swap(t, a, scope, 3, want); got != want || !got.Free() {
		t.Errorf("released: %+v", got)
	}
	h.standing(t, scope, want)
	got := swap(t, b, scope, 5, lease(6, guard.Token{}))
	if got != lease(6, got.Token) || got.Token.Number() != held.Token.Number()+2 {
		t.Errorf("taken again: %+v", got)
	}
	if tok := issue(t, a, scope); tok.Number() != got.Token.Number()+1 {
		t.Errorf("%s after the lease's %s", tok, got.Token)
	}
}

// leaseClaimed holds the counter against claims where a number is taken: one
// above it is that of a counter which went back, and takes no number from it.
func (h Harness) leaseClaimed(t *testing.T) {
	a, b := h.leases(t), h.leases(t)
	scope := h.scope(t, a)
	first := issue(t, a, scope)
	claim := guard.Record{Issuer: first.Issuer(), Scope: scope, Number: first.Number() + 1, Sequence: 1}
	over, last, stands := byte(0), first.Number(), issuer.LeaseRecord{}
	take := func(l LeaseIssuer) (issuer.LeaseRecord, error) {
		return l.SwapLease(t.Context(), scope, guard.WriteID{over}, lease(over+1, guard.Token{}), claim)
	}
	refused := func() {
		t.Helper()
		for _, l := range []LeaseIssuer{a, b, a, h.leases(t)} {
			if got, err := take(l); !errors.Is(err, guard.ErrIssuerRefuses) || got != (issuer.LeaseRecord{}) {
				t.Errorf("at %d, below the claim of %d: %+v, %v", last, claim.Number, got, err)
			}
			got, err := issuer.Acquire(t.Context(), l, scope, issuer.LeaseOptions{
				Owner: "a", Wait: heldTTL, Claimed: func(context.Context, string) (*guard.Record, error) { return &claim, nil },
			})
			if !errors.Is(err, guard.ErrIssuerRefuses) || got != nil {
				t.Errorf("acquired at %d, below the claim of %d: %v", last, claim.Number, err)
			}
		}
		h.standing(t, scope, stands)
	}
	taken := func(what string, l LeaseIssuer) {
		t.Helper()
		got, err := take(l)
		if err != nil || got != lease(over+1, got.Token) || got.Token.Number() != last+1 {
			t.Fatalf("%s, after %d: %+v, %v", what, last, got, err)
		}
		h.standing(t, scope, got)
		over, last, stands = over+1, got.Token.Number(), got
	}
	refused()
	claim.Number = last
	taken("at the claim", a)
	last = issue(t, b, scope).Number() // which a has not seen
	claim.Number = last
	taken("at the claim of another process's number", a)
	taken("above the claim", b)

	// A heartbeat takes no number, and a release neither.
	claim.Number = last + 10
	stands.Released, stands.Version = true, guard.WriteID{over + 1}
	if got, err := a.SwapLease(t.Context(), scope, guard.WriteID{over}, stands, claim); err != nil || got != stands {
		t.Errorf("released, below the claim: %+v, %v", got, err)
	}
	over++
	refused()
	claim.Issuer = guard.IssuerID{1, 2, 3}
	taken("of another counter, which is for the caller to find", b)
	if tok := issue(t, a, scope); tok.Number() != last+1 {
		t.Errorf("%s after all that was refused", tok)
	}
}

// leaseFields are kept as they are.
func (h Harness) leaseFields(t *testing.T) {
	l := h.leases(t)
	scope := h.scope(t, l)
	over := byte(0)
	tok := issue(t, l, scope)
	for _, change := range []func(*issuer.LeaseRecord){
		func(r *issuer.LeaseRecord) { r.Owner = `ü "quoted" <&> 漢字` },
		func(r *issuer.LeaseRecord) { r.TTL = issuer.MinLeaseTTL },
		func(r *issuer.LeaseRecord) { r.TTL = issuer.MaxLeaseTTL },
		func(r *issuer.LeaseRecord) { r.Released = true },
	} {
		want := lease(over+1, tok)
		change(&want)
		if got := swap(t, l, scope, over, want); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		h.standing(t, scope, want)
		over++
	}
}

// leaseOneWinner lets many take one lease at once.
func (h Harness) leaseOneWinner(t *testing.T) {
	first := h.leases(t)
	scope := h.scope(t, first)
	const rounds, callers = 5, 8
	over, last := guard.WriteID{}, int64(0)
	for round := range byte(rounds) {
		got := make([]issuer.LeaseRecord, callers)
		var wg sync.WaitGroup
		for i := range got {
			l := first
			if i%2 == 0 {
				l = h.leases(t)
			}
			wg.Go(func() {
				next := lease(round+1, guard.Token{})
				next.Version[1] = byte(i)
				var err error
				if got[i], err = l.SwapLease(t.Context(), scope, over, next, guard.Record{}); err != nil {
					t.Errorf("caller %d: %v", i, err)
				}
			})
		}
		wg.Wait()
		winner := got[0]
		for i, r := range got {
			if r != winner {
				t.Fatalf("round %d: caller 0 was told %+v, and caller %d %+v", round, winner, i, r)
			}
		}
		if n := winner.Token.Number(); n != last+1 {
			t.Errorf("round %d: number %d after %d", round, n, last)
		}
		h.standing(t, scope, winner)
		over, last = winner.Version, winner.Token.Number()
	}
}

func (h Harness) leaseNoCounter(t *testing.T) {
	l := h.leases(t)
	const scope = "suite/never-leased"
	got, err := l.Lease(t.Context(), scope)
	if h.MadeOnUse {
		if err != nil || got != (issuer.LeaseRecord{}) {
			t.Errorf("got %+v, %v", got, err)
		}
		if got := swap(t, l, scope, 0, lease(1, guard.Token{})); got.Token.Number() != 1 {
			t.Errorf("got %+v", got)
		}
		return
	}
	if !errors.Is(err, guard.ErrIssuerRefuses) {
		t.Errorf("read: %v", err)
	}
	if got, err := l.SwapLease(t.Context(), scope, guard.WriteID{}, lease(1, guard.Token{}), guard.Record{}); !errors.Is(err, guard.ErrIssuerRefuses) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func (h Harness) leaseBadCalls(t *testing.T) {
	l := h.leases(t)
	scope := h.scope(t, l)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct {
		ctx   context.Context
		scope string
		want  error
	}{
		{t.Context(), "a b", guard.ErrInvalid},
		{t.Context(), "", guard.ErrInvalid},
		{canceled, scope, context.Canceled},
	} {
		if _, err := l.Lease(tt.ctx, tt.scope); !errors.Is(err, tt.want) {
			t.Errorf("read %q: %v, want %v", tt.scope, err, tt.want)
		}
		if _, err := l.SwapLease(tt.ctx, tt.scope, guard.WriteID{}, lease(1, guard.Token{}), guard.Record{}); !errors.Is(err, tt.want) {
			t.Errorf("swap %q: %v, want %v", tt.scope, err, tt.want)
		}
		if _, err := issuer.Acquire(tt.ctx, l, tt.scope, issuer.LeaseOptions{Owner: "a"}); !errors.Is(err, tt.want) {
			t.Errorf("acquire %q: %v, want %v", tt.scope, err, tt.want)
		}
	}
	h.standing(t, scope, issuer.LeaseRecord{})
	if tok := issue(t, l, scope); tok.Number() != 1 {
		t.Errorf("%s after calls that failed", tok)
	}
}

// heldTTL leaves slow servers the time for a heartbeat.
const heldTTL = 4 * time.Second

func acquire(t *testing.T, l LeaseIssuer, scope, owner string, wait time.Duration) *issuer.Lease {
	t.Helper()
	got, err := issuer.Acquire(t.Context(), l, scope, issuer.LeaseOptions{Owner: owner, TTL: heldTTL, Wait: wait})
	if err != nil {
		t.Fatalf("%s: %v", owner, err)
	}
	t.Cleanup(func() { release(t, got) })
	return got
}

func release(t *testing.T, l *issuer.Lease) {
	t.Helper()
	if err := l.Release(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
}

func (h Harness) leaseAcquire(t *testing.T) {
	a, b := h.leases(t), h.leases(t)
	scope := h.scope(t, a)
	one := acquire(t, a, scope, "one", 0)
	_, err := issuer.Acquire(t.Context(), b, scope, issuer.LeaseOptions{Owner: "two", Wait: -1})
	var e *issuer.LeaseError
	if !errors.As(err, &e) || !errors.Is(err, issuer.ErrLeaseHeld) || e.Holder.Owner != "one" || e.Holder.Token != one.Token() {
		t.Errorf("while it is held: %v", err)
	}
	// The heartbeats go on by themselves.
	seen := make(map[guard.WriteID]bool)
	for len(seen) < 3 {
		r, err := b.Lease(t.Context(), scope)
		if err != nil || r.Owner != "one" || r.Token != one.Token() {
			t.Fatalf("%+v, %v", r, err)
		}
		seen[r.Version] = true
		if err := one.Context().Err(); err != nil {
			t.Fatal(context.Cause(one.Context()))
		}
		time.Sleep(10 * time.Millisecond)
	}
	release(t, one)
	release(t, one)
	two := acquire(t, b, scope, "two", 0)
	if two.Token().Number() != one.Token().Number()+1 || two.Token().Issuer() != one.Token().Issuer() {
		t.Errorf("%s after %s", two.Token(), one.Token())
	}
}

// leaseWait: who waits gets it when it is released.
func (h Harness) leaseWait(t *testing.T) {
	a := h.leases(t)
	scope := h.scope(t, a)
	one := acquire(t, a, scope, "one", 0)
	got := make(chan *issuer.Lease)
	for range 3 {
		b := h.leases(t)
		go func() {
			l, err := issuer.Acquire(t.Context(), b, scope, issuer.LeaseOptions{Owner: "waiter", TTL: heldTTL, Wait: time.Minute})
			if err != nil {
				t.Error(err)
			}
			got <- l
		}()
	}
	last := one
	for range 3 {
		release(t, last)
		next := <-got
		if next == nil {
			return
		}
		if next.Token().Number() != last.Token().Number()+1 {
			t.Errorf("%s after %s", next.Token(), last.Token())
		}
		last = next
	}
	release(t, last)
}

// leaseTakeOver: an owner that is gone is found out, also by who would not wait.
func (h Harness) leaseTakeOver(t *testing.T) {
	for _, wait := range []time.Duration{0, time.Minute} {
		t.Run(wait.String(), func(t *testing.T) {
			l := h.leases(t)
			scope := h.scope(t, l)
			gone := swap(t, l, scope, 0, lease(1, guard.Token{}))
			if two := acquire(t, h.leases(t), scope, "two", wait); two.Token().Number() != gone.Token.Number()+1 {
				t.Errorf("%s after %s", two.Token(), gone.Token)
			}
		})
	}
}

// leaseLost: a holder whose lease another took is told.
func (h Harness) leaseLost(t *testing.T) {
	a, b := h.leases(t), h.leases(t)
	scope := h.scope(t, a)
	one := acquire(t, a, scope, "one", 0)
	var taken issuer.LeaseRecord
	for version := byte(1); taken.Version != (guard.WriteID{version}); {
		r, err := b.Lease(t.Context(), scope)
		if err != nil {
			t.Fatal(err)
		}
		if taken, err = b.SwapLease(t.Context(), scope, r.Version, lease(version, guard.Token{}), guard.Record{}); err != nil {
			t.Fatal(err)
		}
	}
	<-one.Context().Done()
	var e *issuer.LeaseError
	if err := context.Cause(one.Context()); !errors.Is(err, issuer.ErrLeaseLost) || !errors.As(err, &e) || e.Token != one.Token() || e.Holder != taken {
		t.Errorf("lost to %+v: %v", taken, err)
	}
	release(t, one)
	h.standing(t, scope, taken)
}
