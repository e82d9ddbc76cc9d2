package localstack

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/s3fence/s3fence/guard"
)

func mustAtoi(t testing.TB, s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Error(err)
	}
	return n
}

func mustIssue(t testing.TB, l *Local, scope string) guard.Token {
	t.Helper()
	token, err := l.Issue(t.Context(), scope)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestIssue(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, nil)
	first := mustIssue(t, l, "nightly/report")
	if first.Number() != 1 || first.Scope() != "nightly/report" || first.Issuer() == (guard.IssuerID{}) {
		t.Errorf("first token is %s", first)
	}
	other := mustIssue(t, l, "other")
	if other.Number() != 1 || other.Issuer() == first.Issuer() {
		t.Errorf("token of another scope is %s, the first one's %s", other, first)
	}
	mustClose(t, l)
	second := mustIssue(t, open(t, dir, nil), "nightly/report")
	if second.Number() != 2 || second.Issuer() != first.Issuer() {
		t.Errorf("after reopening: %s, before: %s", second, first)
	}
}

func TestCreateScope(t *testing.T) {
	l := open(t, t.TempDir(), nil)
	id, created, err := l.CreateScope(t.Context(), "scope")
	if err != nil || !created {
		t.Fatal(id, created, err)
	}
	for want := range int64(3) {
		if token := mustIssue(t, l, "scope"); token.Number() != want+1 || token.Issuer() != id {
			t.Errorf("got %s, want number %d of issuer %s", token, want+1, id)
		}
		again, created, err := l.CreateScope(t.Context(), "scope")
		if again != id || created || err != nil {
			t.Errorf("created again: %v %v %v", again, created, err)
		}
	}
}

func TestIssuerRefuses(t *testing.T) {
	l := open(t, t.TempDir(), nil)
	for _, scope := range []string{"", "a b", strings.Repeat("s", guard.MaxScope+1)} {
		if _, err := l.Issue(t.Context(), scope); !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("issue for %q: got %v, want invalid", scope, err)
		}
		if _, _, err := l.CreateScope(t.Context(), scope); !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("create %q: got %v, want invalid", scope, err)
		}
	}

	mustIssue(t, l, "last")
	exec(t, l, "UPDATE scopes SET number = ? WHERE scope = 'last'", int64(math.MaxInt64-1))
	if token := mustIssue(t, l, "last"); token.Number() != math.MaxInt64 {
		t.Errorf("got %s, want the last number", token)
	}
	mustIssue(t, l, "negative")
	exec(t, l, "UPDATE scopes SET number = -9 WHERE scope = 'negative'")
	mustIssue(t, l, "id")
	exec(t, l, "UPDATE scopes SET issuer = 'someone' WHERE scope = 'id'")
	for _, scope := range []string{"last", "negative", "id"} {
		for range 2 {
			if token, err := l.Issue(t.Context(), scope); !errors.Is(err, guard.ErrIssuerRefuses) || !token.IsZero() {
				t.Errorf("%s: got %v, %v, want a refusal", scope, token, err)
			}
		}
	}
}

func TestTokensOfTwoLocals(t *testing.T) {
	const takers, each = 16, 50
	dir := t.TempDir()
	locals := []*Local{open(t, dir, nil), open(t, dir, nil)}
	taken := make([][]guard.Token, takers)
	var all sync.WaitGroup
	for i := range takers {
		all.Go(func() {
			for range each {
				token, err := locals[i%2].Issue(t.Context(), "scope")
				if err != nil {
					t.Error(err)
					return
				}
				taken[i] = append(taken[i], token)
			}
		})
	}
	all.Wait()
	seen := map[int64]bool{}
	for _, tokens := range taken {
		last := int64(0)
		for _, token := range tokens {
			if token.Issuer() != taken[0][0].Issuer() {
				t.Errorf("token %s is of another issuer", token)
			}
			if seen[token.Number()] || token.Number() <= last {
				t.Errorf("number %d came twice or after %d", token.Number(), last)
			}
			last = token.Number()
			seen[last] = true
		}
	}
	if len(seen) != takers*each {
		t.Errorf("got %d numbers, want %d", len(seen), takers*each)
	}
}
