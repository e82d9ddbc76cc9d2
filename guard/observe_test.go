package guard_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/internal/mems3"
)

type traced struct{}

// observer notes what it is told, as text.
type observer struct {
	mu   sync.Mutex
	told []string
	open int
}

func (o *observer) Begin(ctx context.Context, op guard.Operation) (context.Context, func(guard.Completion)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.open++
	return context.WithValue(ctx, traced{}, op.Op), func(c guard.Completion) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.open--
		s := fmt.Sprintf("%s %s %s: %s", op.Op, op.Scope, op.URL, c.Outcome)
		if c.Reason != "" {
			s += " " + c.Reason
		}
		s += fmt.Sprintf(", token %d, %d requests", c.Token.Number(), c.Requests)
		if c.Held != nil {
			s += ", held " + c.Held.Fence().String()
		}
		if (c.Err != nil) != (c.Outcome == guard.Refused || c.Outcome == guard.Failed) {
			s += fmt.Sprintf(" BUT %v", c.Err)
		}
		o.told = append(o.told, s)
	}
}

func (o *observer) want(t *testing.T, want ...string) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if !slices.Equal(o.told, want) {
		t.Errorf("told\n%s\nwant\n%s", strings.Join(o.told, "\n"), strings.Join(want, "\n"))
	}
	if o.open != 0 {
		t.Errorf("%d operations did not end", o.open)
	}
	o.told = nil
}

// numbers is an issuer that counts its requests.
type numbers struct {
	last int64
	ctx  context.Context // of the last request
	err  error
}

func (n *numbers) Issue(ctx context.Context, scope string) (guard.Token, error) {
	guard.CountRequest(ctx)
	guard.CountRequest(ctx)
	n.last++
	n.ctx = ctx
	if n.err != nil {
		return guard.Token{}, n.err
	}
	return guard.NewToken(testIssuer, scope, n.last)
}

func (n *numbers) IssueFor(ctx context.Context, scope, _ string) (guard.Token, error) {
	return n.Issue(ctx, scope)
}

func observing(s guard.Store, o *observer) *guard.Guard {
	return guard.New(s, &guard.Options{
		Observer: o, RootStore: mems3.New(), Backoff: func(int) time.Duration { return 0 }, MaxAttempts: 2,
	})
}

func TestObserver(t *testing.T) {
	m, o, iss := mems3.New(), &observer{}, &numbers{last: 6}
	g := observing(m, o)
	s, err := g.OpenSession(t.Context(), iss, testScope, nil)
	if err != nil {
		t.Fatal(err)
	}
	if iss.ctx.Value(traced{}) != guard.OpIssue {
		t.Error("the issuer did not get the observer's context")
	}
	o.want(t,
		"issue nightly/report : issued, token 7, 2 requests",
		"claim nightly/report s3://mem/.s3fence/scopes/nightly/report.json: claimed, token 7, 2 requests")

	if _, err := s.Put(t.Context(), "k", guard.Bytes([]byte("x")), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(t.Context(), "k", guard.Bytes([]byte("y")), &guard.PutOptions{SSE: "aws:kms"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Delete(t.Context(), "k", nil); err != nil {
		t.Fatal(err)
	}
	o.want(t,
		"put nightly/report s3://mem/k: created, token 7, 2 requests",
		"put nightly/report s3://mem/k: replaced, token 7, 2 requests",
		"delete nightly/report s3://mem/k: deleted, token 7, 1 requests")

	// A late writer is an outcome; what can't be done is a failure.
	_, err = observing(m, o).Put(t.Context(), token(t, 5), "k", guard.Bytes(nil), kms)
	wantRefusal(t, err, guard.ErrStale)
	m.Before = func(string, string) error { return fmt.Errorf("%w: so it says", guard.ErrDenied) }
	if _, err := g.Put(t.Context(), token(t, 9), "other", guard.Bytes(nil), nil); !errors.Is(err, guard.ErrDenied) {
		t.Fatal(err)
	}
	m.Before = nil
	_, err = g.Put(t.Context(), guard.Token{}, "other", guard.Bytes(nil), nil)
	wantRefusal(t, err, guard.ErrMissingToken)
	o.want(t,
		"put nightly/report s3://mem/k: refused stale, token 5, 1 requests, held 7.3",
		"put nightly/report s3://mem/other: failed access-denied, token 9, 1 requests",
		"put  s3://mem/other: refused missing-token, token 0, 0 requests")

	// Not of what is only tried out.
	if _, err := g.Put(t.Context(), token(t, 9), "other", guard.Bytes(nil), &guard.PutOptions{DryRun: true}); err != nil {
		t.Fatal(err)
	}
	o.want(t)

	// A counter that went back is refused by the scope fence it stands below.
	iss.last = 2
	_, err = g.Issue(t.Context(), iss, testScope)
	wantRefusal(t, err, guard.ErrIssuerRefuses)
	iss.err = errLost
	if _, err := g.IssueFor(t.Context(), iss, testScope, "event"); !errors.Is(err, errLost) {
		t.Fatal(err)
	}
	o.want(t,
		"issue nightly/report : refused issuer-refuses, token 0, 2 requests, held 7",
		"issue nightly/report : failed failed, token 0, 2 requests")
}

func TestOperationsAreLogged(t *testing.T) {
	var log strings.Builder
	m := mems3.New()
	g := guard.New(m, &guard.Options{RootStore: mems3.New(), Logger: slog.New(slog.NewTextHandler(&log, nil))})
	mustPut(t, g, 7, "k", "x", nil)
	if log.Len() != 0 {
		t.Errorf("at info level: %s", &log)
	}
	_, err := g.Put(t.Context(), token(t, 5), "k", guard.Bytes(nil), kms)
	wantRefusal(t, err, guard.ErrStale)
	for _, want := range []string{"level=INFO", "msg=put", "outcome=refused", "reason=stale", "token=5", "url=s3://mem/k", "requests=1"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %s in %s", want, &log)
		}
	}
}

// Each reason has a word, which is its text.
func TestExplain(t *testing.T) {
	for _, tt := range []struct {
		err     error
		word    string
		refused bool
	}{
		{&guard.Refusal{Reason: guard.ErrStale, Err: guard.ErrPreconditionFailed}, "stale", true},
		{&guard.Refusal{Reason: guard.ErrOutcomeUnknown, Err: guard.ErrDenied}, "outcome-unknown", false},
		{fmt.Errorf("put: %w", guard.ErrDenied), "access-denied", false},
		{fmt.Errorf("%w (before that: %w)", context.Canceled, guard.ErrConflict), "interrupted", false},
		{errLost, guard.Unexplained, false},
	} {
		if word, refused := guard.Explain(tt.err); word != tt.word || refused != tt.refused {
			t.Errorf("%v: %s %v, want %s %v", tt.err, word, refused, tt.word, tt.refused)
		}
	}
}
