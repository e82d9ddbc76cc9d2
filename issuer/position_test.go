package issuer_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/issuer"
)

func TestPositionToken(t *testing.T) {
	p := issuer.NewPosition("lkc-1", "orders", "")
	for _, tt := range []struct {
		scope        string
		offset, want int64 // 0 when it is refused
	}{
		{"orders/0", 0, 1},
		{"orders/0", 1, 2},
		{"orders/3", 41, 42},
		{"orders/0", math.MaxInt64 - 1, math.MaxInt64},
		{"orders/0", math.MaxInt64, 0},
		{"orders/0", -1, 0},
		{"orders/0", math.MinInt64, 0},
		{"", 0, 0},
		{"orders 0", 0, 0},
		{strings.Repeat("o", guard.MaxScope+1), 0, 0},
	} {
		tok, err := p.Token(tt.scope, tt.offset)
		if tt.want == 0 {
			if !errors.Is(err, guard.ErrInvalid) || !tok.IsZero() {
				t.Errorf("%q at %d: got %s, %v", tt.scope, tt.offset, tok, err)
			}
			continue
		}
		if err != nil || tok.Number() != tt.want || tok.Scope() != tt.scope || tok.Issuer() != p.Issuer {
			t.Errorf("%q at %d: got %s, %v, want number %d", tt.scope, tt.offset, tok, err, tt.want)
		}
	}
}

// A Position that names no log makes no tokens: all of them would share an id.
func TestPositionZero(t *testing.T) {
	tok, err := issuer.Position{}.Token("orders/0", 0)
	if !errors.Is(err, guard.ErrInvalid) || !tok.IsZero() || !strings.Contains(err.Error(), "NewPosition") {
		t.Errorf("got %s, %v", tok, err)
	}
}

// The id is stored in objects, so it never changes; and no two logs share one.
func TestPositionIssuer(t *testing.T) {
	const want = "1f69964bb69de1f4"
	if got := issuer.NewPosition("cluster", "topic", "creation").Issuer.String(); got != want {
		t.Errorf("the issuer id is %s and was %s", got, want)
	}
	seen := map[guard.IssuerID][3]string{}
	for _, names := range [][3]string{
		{"c", "t", "1"}, {"c", "t", ""}, {"c", "t", "2"}, {"c", "t1", ""}, {"c", "", "t"}, {"ct", "", ""},
		{"", "ct", ""}, {"c 1:t", "", ""}, {"c", "t 1:1", ""}, {"c ", "t", ""}, {"t", "c", ""},
	} {
		id := issuer.NewPosition(names[0], names[1], names[2]).Issuer
		if other, twice := seen[id]; twice {
			t.Errorf("%q and %q have one id", names, other)
		}
		seen[id] = names
	}
}

// What the guard makes of numbers from a log: a record read again, older ones,
// a topic made anew and a partition that is not the key's.
func TestPositionWrites(t *testing.T) {
	g := guard.New(openLocal(t, nil).Store("bucket"), nil)
	old, anew := issuer.NewPosition("c", "orders", "first"), issuer.NewPosition("c", "orders", "second")
	for i, tt := range []struct {
		p      issuer.Position
		scope  string
		offset int64
		id     byte
		want   error
	}{
		{old, "orders/0", 0, 1, nil},
		{old, "orders/0", 7, 2, nil}, // a gap
		{old, "orders/0", 7, 2, nil}, // read again
		{old, "orders/0", 0, 1, guard.ErrStale},
		{old, "orders/0", 7, 3, guard.ErrReplayed}, // another record that got its offset
		{old, "orders/1", 900, 4, guard.ErrScopeMismatch},
		{anew, "orders/0", 900, 5, guard.ErrIssuerMismatch},
	} {
		tok, err := tt.p.Token(tt.scope, tt.offset)
		if err != nil {
			t.Fatal(err)
		}
		_, err = g.Put(t.Context(), tok, "key", guard.Bytes([]byte{tt.id}), &guard.PutOptions{WriteID: guard.WriteID{tt.id}})
		if !errors.Is(err, tt.want) {
			t.Errorf("write %d: %v, want %v", i, err, tt.want)
		}
	}
}
