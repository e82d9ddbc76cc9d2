package localstack

import (
	"errors"
	"testing"
	"time"

	"github.com/s3fence/s3fence/guard"
)

func mustIssueFor(t testing.TB, l *Local, event string) guard.Token {
	t.Helper()
	tok, err := l.IssueFor(t.Context(), "scope", event)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// A record is good for as long as it is there, and one that has expired goes
// when another event comes.
func TestEventExpires(t *testing.T) {
	l := open(t, t.TempDir(), nil)
	a, b := mustIssueFor(t, l, "A"), mustIssueFor(t, l, "B")
	past := time.Now().Add(-time.Hour).Unix()
	exec(t, l, "UPDATE events SET expires = ?", past)
	if again := mustIssueFor(t, l, "A"); again != a {
		t.Errorf("A again, expired and there: %s, and it had %s", again, a)
	}
	if left := texts(t, l, "SELECT event FROM events"); len(left) != 1 || !left["A"] {
		t.Errorf("left after A came again: %v", left)
	}
	if again := mustIssueFor(t, l, "B"); again.Number() <= b.Number() {
		t.Errorf("B again, when its record had gone: %s, and it had %s", again, b)
	}
	exec(t, l, "UPDATE events SET expires = ? WHERE event = ?", past, []byte("B"))
	mustIssueFor(t, l, "A")
	if left := texts(t, l, "SELECT event FROM events"); len(left) != 1 || !left["A"] {
		t.Errorf("left after A came once more: %v", left)
	}
}

// An event that comes again takes no number.
func TestEventTakesOneNumber(t *testing.T) {
	l := open(t, t.TempDir(), nil)
	for range 5 {
		mustIssueFor(t, l, "A")
	}
	if tok := mustIssue(t, l, "scope"); tok.Number() != 2 {
		t.Errorf("after one event: %s", tok)
	}
}

func TestEventTampered(t *testing.T) {
	foreign, err := guard.NewToken(guard.IssuerID{1, 2, 3}, "scope", 1)
	if err != nil {
		t.Fatal(err)
	}
	for name, query := range map[string]string{
		"token cut":         "UPDATE events SET token = substr(token, 1, 40)",
		"another's token":   "UPDATE events SET token = '" + foreign.String() + "'",
		"counter gone":      "DELETE FROM scopes",
		"counter anew":      "UPDATE scopes SET issuer = '0102030405060708'",
		"counter went back": "UPDATE scopes SET number = 1",
		"counter at zero":   "UPDATE scopes SET number = 0",
		"issuer id damaged": "UPDATE scopes SET issuer = 'someone'",
	} {
		t.Run(name, func(t *testing.T) {
			l := open(t, t.TempDir(), nil)
			mustIssue(t, l, "scope")
			mustIssueFor(t, l, "A")
			exec(t, l, query)
			for range 2 {
				if tok, err := l.IssueFor(t.Context(), "scope", "A"); !errors.Is(err, guard.ErrIssuerRefuses) || !tok.IsZero() {
					t.Errorf("got %s, %v", tok, err)
				}
			}
		})
	}
}

// A folder of the format before events gets its table at Open.
func TestEventsInOlderFolder(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, nil)
	before := mustIssue(t, l, "scope")
	exec(t, l, "DROP TABLE events")
	exec(t, l, "PRAGMA user_version = 3")
	mustClose(t, l)
	if tok := mustIssueFor(t, open(t, dir, nil), "A"); tok.Number() != before.Number()+1 || tok.Issuer() != before.Issuer() {
		t.Errorf("got %s after %s", tok, before)
	}
}
