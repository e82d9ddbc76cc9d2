package guard_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/s3fence/s3fence/guard"
)

var (
	testIssuer  = guard.IssuerID{0x8c, 0x1d, 0x0f, 0x2a, 0xb6, 0x4e, 0x97, 0xd3}
	testWriteID = guard.WriteID{15: 7}
)

func token(t testing.TB, n int64) guard.Token {
	t.Helper()
	tok, err := guard.NewToken(testIssuer, "nightly/report", n)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// The vectors of docs/protocol.md. Other languages are written against them.
func TestTextVectors(t *testing.T) {
	const (
		wantToken  = "f1:8c1d0f2ab64e97d3:nightly/report:00000000000000000048:422d5fde"
		wantRecord = "r1:8c1d0f2ab64e97d3:nightly/report:00000000000000000048:0000000001:00000000000000000000000000000007:l:9721fc3d"
	)
	if got := token(t, 48).String(); got != wantToken {
		t.Errorf("token\n got %s\nwant %s", got, wantToken)
	}
	r := guard.Record{Issuer: testIssuer, Scope: "nightly/report", Number: 48, Sequence: 1, WriteID: testWriteID, State: guard.Live}
	if got := r.String(); got != wantRecord {
		t.Errorf("record\n got %s\nwant %s", got, wantRecord)
	}
}

func genToken(t *rapid.T) guard.Token {
	var id guard.IssuerID
	copy(id[:], rapid.SliceOfN(rapid.Byte(), 8, 8).Draw(t, "issuer"))
	scope := rapid.StringMatching(`[A-Za-z0-9._/-]{1,128}`).Draw(t, "scope")
	tok, err := guard.NewToken(id, scope, rapid.Int64Range(1, math.MaxInt64).Draw(t, "number"))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func genRecord(t *rapid.T) guard.Record {
	tok := genToken(t)
	r := guard.Record{
		Issuer: tok.Issuer(), Scope: tok.Scope(), Number: tok.Number(),
		Sequence: rapid.Int64Range(1, guard.MaxSequence).Draw(t, "sequence"),
		State:    rapid.SampledFrom([]guard.State{guard.Live, guard.Deleted}).Draw(t, "state"),
	}
	copy(r.WriteID[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "write id"))
	return r
}

func TestTokenRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := genToken(t)
		got, err := guard.ParseToken(want.String())
		if err != nil || got != want {
			t.Fatalf("%s: got %v, %v", want, got, err)
		}
	})
}

func TestRecordRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := genRecord(t)
		got, err := guard.ParseRecord(want.String())
		if err != nil || got != want {
			t.Fatalf("%s: got %v, %v", want, got, err)
		}
	})
}

// mutations yields every truncation at either end, and every text that is one
// edit away: a character changed, taken out, put in, or swapped with the next.
func mutations(s string, yield func(string)) {
	for i := range len(s) {
		yield(s[:i])
		yield(s[i+1:])
		yield(s[:i] + s[i+1:])
	}
	for i := range len(s) + 1 {
		for c := range 256 {
			yield(s[:i] + string([]byte{byte(c)}) + s[i:])
			if i < len(s) && s[i] != byte(c) {
				yield(s[:i] + string([]byte{byte(c)}) + s[i+1:])
			}
		}
		if i+1 < len(s) && s[i] != s[i+1] {
			yield(s[:i] + s[i+1:i+2] + s[i:i+1] + s[i+2:])
		}
	}
}

func TestEveryEditOfATokenIsRefused(t *testing.T) {
	for _, n := range []int64{1, 48, 1 << 53, math.MaxInt64} {
		mutations(token(t, n).String(), func(s string) {
			tok, err := guard.ParseToken(s)
			want := guard.ErrMalformedToken
			if s == "" {
				want = guard.ErrMissingToken
			}
			if !errors.Is(err, want) || guard.ReasonOf(err) != want || !tok.IsZero() {
				t.Fatalf("%q: got %v, %v, want %v", s, tok, err, want)
			}
		})
	}
}

func TestEveryEditOfARecordIsRefused(t *testing.T) {
	r := guard.Record{Issuer: testIssuer, Scope: "a", Number: 48, Sequence: 3, WriteID: testWriteID, State: guard.Live}
	mutations(r.String(), func(s string) {
		got, err := guard.ParseRecord(s)
		if guard.ReasonOf(err) != guard.ErrCorruptRecord || got != (guard.Record{}) {
			t.Fatalf("%q: got %v, %v", s, got, err)
		}
	})
}

func TestTextsSortByFence(t *testing.T) {
	var texts []string
	for _, n := range []int64{1, 2, 9, 10, 99, 1 << 40, math.MaxInt64} {
		for _, seq := range []int64{1, 2, 10, guard.MaxSequence} {
			texts = append(texts, guard.Record{Issuer: testIssuer, Scope: "s", Number: n, Sequence: seq, State: guard.Live}.String())
		}
	}
	if !slices.IsSorted(texts) {
		t.Errorf("not sorted: %q", texts)
	}
}

func TestNewTokenRefuses(t *testing.T) {
	for _, tt := range []struct {
		scope  string
		number int64
	}{
		{"", 1}, {strings.Repeat("a", 129), 1}, {"a b", 1}, {"a:b", 1}, {"é", 1}, {"a\x00", 1}, {"a", 0}, {"a", -1}, {"a", math.MinInt64},
	} {
		if tok, err := guard.NewToken(testIssuer, tt.scope, tt.number); !errors.Is(err, guard.ErrInvalid) || !tok.IsZero() {
			t.Errorf("%q %d: got %v, %v", tt.scope, tt.number, tok, err)
		}
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add("f1:8c1d0f2ab64e97d3:nightly/report:00000000000000000048:422d5fde")
	f.Add("")
	f.Add("48")
	f.Fuzz(func(t *testing.T, s string) {
		if tok, err := guard.ParseToken(s); err == nil && tok.String() != s {
			t.Fatalf("%q read as %q", s, tok)
		}
	})
}

func FuzzParseRecord(f *testing.F) {
	f.Add(guard.Record{Issuer: testIssuer, Scope: "s", Number: 1, Sequence: 1, State: guard.Live}.String())
	f.Add("r1:::::::")
	f.Fuzz(func(t *testing.T, s string) {
		if r, err := guard.ParseRecord(s); err == nil && r.String() != s {
			t.Fatalf("%q read as %q", s, r)
		}
	})
}
