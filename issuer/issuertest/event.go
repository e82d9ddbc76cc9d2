package issuertest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/issuer"
)

// An EventIssuer knows events again.
type EventIssuer interface {
	Issuer
	guard.EventIssuer
}

// RunEvents runs the suite for events. The harness opens EventIssuers.
func RunEvents(t *testing.T, h Harness) {
	t.Run("same token", h.eventSameToken)
	t.Run("ids are apart", h.eventIDsApart)
	t.Run("no counter", h.eventNoCounter)
	t.Run("bad calls", h.eventBadCalls)
	t.Run("at once", h.eventsAtOnce)
	t.Run("counter made anew", h.eventCounterAnew)
	t.Run("crash", h.eventCrash)
}

func (h Harness) events(t *testing.T) EventIssuer {
	t.Helper()
	e, ok := h.Open(t).(EventIssuer)
	if !ok {
		t.Fatal("the issuer knows no events")
	}
	return e
}

func issueFor(t *testing.T, iss EventIssuer, scope, event string) guard.Token {
	t.Helper()
	tok, err := iss.IssueFor(t.Context(), scope, event)
	if err != nil {
		t.Fatalf("issue for %q: %v", event, err)
	}
	if tok.Scope() != scope {
		t.Fatalf("asked for %s, got %s", scope, tok)
	}
	return tok
}

// eventSameToken: an event keeps its place, whatever was given in between.
func (h Harness) eventSameToken(t *testing.T) {
	a, b := h.events(t), h.events(t)
	scope := h.scope(t, a)
	before := issue(t, a, scope)
	first := issueFor(t, a, scope, "A")
	if first.Number() <= before.Number() || first.Issuer() != before.Issuer() {
		t.Errorf("A has %s after %s", first, before)
	}
	second := issueFor(t, b, scope, "B")
	if second.Number() <= first.Number() {
		t.Errorf("B has %s after A's %s", second, first)
	}
	for range 3 {
		for _, iss := range []EventIssuer{a, b, h.events(t)} {
			if tok := issueFor(t, iss, scope, "A"); tok != first {
				t.Errorf("A again has %s, and had %s", tok, first)
			}
			if tok := issueFor(t, iss, scope, "B"); tok != second {
				t.Errorf("B again has %s, and had %s", tok, second)
			}
		}
	}
	if tok := issue(t, b, scope); tok.Number() <= second.Number() {
		t.Errorf("%s was given after B's %s", tok, second)
	}
}

// eventIDsApart: ids are told apart byte by byte, and by scope.
func (h Harness) eventIDsApart(t *testing.T) {
	iss := h.events(t)
	scope := h.scope(t, iss)
	other := scope + "/2"
	if _, _, err := iss.CreateScope(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("bucket/key/", 400)
	ids := []string{"A", "a", "A ", " A", "A\n", "A\x00", "A\x00B", "ü", "u\u0308", "\xff\xfe", "counter", long, long + "1"}
	seen := map[guard.Token]string{}
	for _, id := range ids {
		for _, scope := range []string{scope, other} {
			tok := issueFor(t, iss, scope, id)
			if with, twice := seen[tok]; twice {
				t.Errorf("%q and %q both have %s", id, with, tok)
			}
			seen[tok] = id
			if again := issueFor(t, iss, scope, id); again != tok {
				t.Errorf("%q again has %s, and had %s", id, again, tok)
			}
		}
	}
}

func (h Harness) eventNoCounter(t *testing.T) {
	iss := h.events(t)
	tok, err := iss.IssueFor(t.Context(), "suite/no-events", "A")
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

func (h Harness) eventBadCalls(t *testing.T) {
	iss := h.events(t)
	scope := h.scope(t, iss)
	for _, bad := range [][2]string{{scope, ""}, {"", "A"}, {"a b", "A"}, {strings.Repeat("x", guard.MaxScope+1), "A"}} {
		if tok, err := iss.IssueFor(t.Context(), bad[0], bad[1]); !errors.Is(err, guard.ErrInvalid) || !tok.IsZero() {
			t.Errorf("scope %q, event %q: %s, %v", bad[0], bad[1], tok, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if tok, err := iss.IssueFor(ctx, scope, "A"); !errors.Is(err, context.Canceled) || !tok.IsZero() {
		t.Errorf("canceled: %s, %v", tok, err)
	}
	issueFor(t, iss, scope, "A")
}

// eventsAtOnce: an event that is delivered to many at once has one token, and
// no other event has the same.
func (h Harness) eventsAtOnce(t *testing.T) {
	DeliverAtOnce(t, h.events(t), func() EventIssuer { return h.events(t) }, 64)
}

// DeliverAtOnce delivers four events at once to callers, some of which have a
// client of their own, and checks that each event has one token.
func DeliverAtOnce(t *testing.T, first EventIssuer, another func() EventIssuer, callers int) {
	t.Helper()
	scope := Harness{}.scope(t, first)
	events := []string{"A", "B", "C", "D"}
	got := make([]map[string]guard.Token, callers)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range callers {
		iss := first
		if i%8 == 0 {
			iss = another()
		}
		got[i] = map[string]guard.Token{}
		wg.Go(func() {
			<-start
			for j := range events {
				event := events[(i+j)%len(events)]
				tok, err := iss.IssueFor(t.Context(), scope, event)
				if err != nil {
					t.Errorf("caller %d: %v", i, err)
					return
				}
				got[i][event] = tok
			}
		})
	}
	close(start)
	wg.Wait()
	seen := map[guard.Token]string{}
	for _, event := range events {
		tok := issueFor(t, first, scope, event)
		for i, g := range got {
			if g[event] != tok {
				t.Errorf("caller %d got %s for event %s, which has %s", i, g[event], event, tok)
			}
		}
		if with, twice := seen[tok]; twice {
			t.Errorf("events %s and %s both have %s", event, with, tok)
		}
		seen[tok] = event
	}
}

// eventCounterAnew: the token of another counter is given to nobody.
func (h Harness) eventCounterAnew(t *testing.T) {
	r, iss := h.reconciler(t), h.events(t)
	scope := h.scope(t, iss)
	first := issueFor(t, iss, scope, "A")
	other := guard.IssuerID{1, 2, 3}
	for _, id := range []guard.IssuerID{other, first.Issuer()} {
		reconcile(t, r, scope, issuer.ReconcileOptions{Issuer: id})
		// Clients that knew the counter's old id refuse it in any case.
		tok, err := h.events(t).IssueFor(t.Context(), scope, "A")
		switch {
		case id == other && (!errors.Is(err, guard.ErrIssuerRefuses) || !tok.IsZero()):
			t.Errorf("with another issuer id: %s, %v", tok, err)
		case id == first.Issuer() && (err != nil || tok != first):
			t.Errorf("with its own issuer id again: %s, %v, and it had %s", tok, err, first)
		}
	}
}

// eventCrash: what was told to anybody stands after a crash.
func (h Harness) eventCrash(t *testing.T) {
	if h.Crash == nil {
		t.Skip("left out: the harness can't crash this issuer")
	}
	iss := h.events(t)
	scope := h.scope(t, iss)
	tokens := map[string]guard.Token{}
	for _, event := range []string{"A", "B", "C"} {
		tokens[event] = issueFor(t, iss, scope, event)
	}
	h.Crash(t)
	for event, tok := range tokens {
		if again := issueFor(t, h.events(t), scope, event); again != tok {
			t.Errorf("%s has %s after a crash, and had %s", event, again, tok)
		}
	}
	if tok := issueFor(t, iss, scope, "D"); tok.Number() <= tokens["C"].Number() {
		t.Errorf("D has %s after a crash, C had %s", tok, tokens["C"])
	}
}
