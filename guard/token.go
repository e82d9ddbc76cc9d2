package guard

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"strconv"
	"strings"
)

// Widths of the text forms. Fixed, so that texts of one scope sort by number.
const (
	numberDigits   = 20
	sequenceDigits = 10
	// MaxScope is the longest scope, in bytes.
	MaxScope = 128
	// MaxSequence is the highest sequence of one token: what ten digits hold.
	MaxSequence = 9_999_999_999
)

// An IssuerID names one counter: 64 random bits, made once with the counter.
// A counter that is dropped and made anew gets another, so its numbers are
// never compared with the old one's.
type IssuerID [8]byte

// NewIssuerID reads a fresh id from rand (crypto/rand.Reader outside tests).
func NewIssuerID(rand io.Reader) (IssuerID, error) {
	var id IssuerID
	_, err := io.ReadFull(rand, id[:])
	return id, err
}

// ParseIssuerID reads the 16 lower-case hex digits that String writes.
func ParseIssuerID(s string) (IssuerID, error) {
	var id IssuerID
	return id, parseHex(id[:], s)
}

// String returns 16 lower-case hex digits.
func (id IssuerID) String() string { return hex.EncodeToString(id[:]) }

// A WriteID names one logical write: 128 bits, random unless the caller gives
// one to make a write recognisable when it is run again.
type WriteID [16]byte

// NewWriteID reads a fresh id from rand.
func NewWriteID(rand io.Reader) (WriteID, error) {
	var id WriteID
	_, err := io.ReadFull(rand, id[:])
	return id, err
}

// ParseWriteID reads the 32 lower-case hex digits that String writes.
func ParseWriteID(s string) (WriteID, error) {
	var id WriteID
	return id, parseHex(id[:], s)
}

// String returns 32 lower-case hex digits.
func (id WriteID) String() string { return hex.EncodeToString(id[:]) }

// IsZero reports whether id was never set.
func (id WriteID) IsZero() bool { return id == WriteID{} }

func parseHex(dst []byte, s string) error {
	if len(s) != 2*len(dst) || s != strings.ToLower(s) {
		return fmt.Errorf("want %d lower-case hex digits, got %d characters", 2*len(dst), len(s))
	}
	_, err := hex.Decode(dst, []byte(s))
	return err
}

// CheckScope reports why s can't name a scope: it must be 1 to 128 characters
// of A-Z a-z 0-9 . _ / and -. The error carries [ErrInvalid].
func CheckScope(s string) error {
	if s == "" || len(s) > MaxScope {
		return invalid("a scope is 1 to %d characters long, this one %d", MaxScope, len(s))
	}
	for i := range len(s) {
		c := s[i]
		ok := 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || strings.IndexByte("._/-", c) >= 0
		if !ok {
			return invalid("scope %q: character %q at byte %d is not one of A-Z a-z 0-9 . _ / -", s, c, i)
		}
	}
	return nil
}

// A Token is the right to write with one number of one scope, as an issuer
// handed it out. The zero Token is no token: every write with it is refused.
type Token struct {
	issuer IssuerID
	scope  string
	number int64
}

// NewToken is for issuers: it makes the token for a number that they have
// taken from their counter, durably, once. Everyone else gets tokens from an
// issuer or from [ParseToken]. Numbers are 1 to 2^63-1.
func NewToken(issuer IssuerID, scope string, number int64) (Token, error) {
	if err := CheckScope(scope); err != nil {
		return Token{}, err
	}
	if number < 1 {
		return Token{}, invalid("a token's number is 1 to %d, not %d", int64(math.MaxInt64), number)
	}
	return Token{issuer, scope, number}, nil
}

// ParseToken reads a token's text. An empty text is [ErrMissingToken];
// anything that is not, to the last character, what String writes is
// [ErrMalformedToken]. Neither is ever read as some smaller number.
func ParseToken(s string) (Token, error) {
	if s == "" {
		return Token{}, ErrMissingToken
	}
	t, err := parseToken(s)
	if err != nil {
		return Token{}, fmt.Errorf("%w: %w", ErrMalformedToken, err)
	}
	return t, nil
}

func parseToken(s string) (Token, error) {
	f, err := splitChecked(s, "f1", 5)
	if err != nil {
		return Token{}, err
	}
	var t Token
	if t.issuer, err = ParseIssuerID(f[1]); err != nil {
		return Token{}, fmt.Errorf("issuer id: %w", err)
	}
	if err := CheckScope(f[2]); err != nil {
		return Token{}, err
	}
	t.scope = f[2]
	if t.number, err = parseDigits(f[3], numberDigits); err != nil {
		return Token{}, fmt.Errorf("number: %w", err)
	}
	return t, nil
}

// String returns the token's text:
//
//	f1:<issuer id, 16 hex>:<scope>:<number, 20 digits>:<check, 8 hex>
//
// The check is the CRC-32C of everything before it, the last colon included.
func (t Token) String() string {
	if t.IsZero() {
		return ""
	}
	return withCheck(fmt.Sprintf("f1:%s:%s:%0*d:", t.issuer, t.scope, numberDigits, t.number))
}

// IsZero reports whether t is no token at all.
func (t Token) IsZero() bool { return t.number == 0 }

// Issuer returns the id of the counter that the number came from.
func (t Token) Issuer() IssuerID { return t.issuer }

// Scope returns the name of the sequence of numbers.
func (t Token) Scope() string { return t.scope }

// Number returns the number, to show it. Writes take the Token, never a bare number.
func (t Token) Number() int64 { return t.number }

// MarshalText implements encoding.TextMarshaler with String's form.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler with ParseToken's errors.
func (t *Token) UnmarshalText(b []byte) (err error) {
	*t, err = ParseToken(string(b))
	return err
}

// A Fence is the full fencing number: the token's number, then the sequence of
// the write under that token.
type Fence struct {
	Number, Sequence int64
}

// Compare orders fences by number, then by sequence: -1, 0 or +1.
func (f Fence) Compare(g Fence) int {
	return cmp.Or(cmp.Compare(f.Number, g.Number), cmp.Compare(f.Sequence, g.Sequence))
}

// String writes 48, or 48.3 for the third write under token 48.
func (f Fence) String() string {
	if f.Sequence == 1 {
		return strconv.FormatInt(f.Number, 10)
	}
	return fmt.Sprintf("%d.%d", f.Number, f.Sequence)
}

// State says whether an object is live or a tombstone.
type State byte

// The states, as they stand in a fence record.
const (
	Live    State = 'l'
	Deleted State = 'd'
)

// String returns "live" or "deleted".
func (s State) String() string {
	if s == Deleted {
		return "deleted"
	}
	return "live"
}

// A Record is the fence record: what the guard keeps in an object's own
// metadata, so that bytes and high-water mark change in one request.
type Record struct {
	Issuer   IssuerID
	Scope    string
	Number   int64
	Sequence int64
	WriteID  WriteID
	State    State
}

// RecordKey is the user metadata key that holds the fence record; on the wire
// it is the header x-amz-meta-fence-token. One header, not several: a proxy
// that drops one of several would leave a half-fenced object.
const RecordKey = "fence-token"

// ParseRecord reads a fence record's text. Anything that is not, to the last
// character, what String writes is [ErrCorruptRecord].
func ParseRecord(s string) (Record, error) {
	r, err := parseRecord(s)
	if err != nil {
		return Record{}, fmt.Errorf("%w: %w", ErrCorruptRecord, err)
	}
	return r, nil
}

func parseRecord(s string) (Record, error) {
	f, err := splitChecked(s, "r1", 8)
	if err != nil {
		return Record{}, err
	}
	var r Record
	if r.Issuer, err = ParseIssuerID(f[1]); err != nil {
		return Record{}, fmt.Errorf("issuer id: %w", err)
	}
	if err := CheckScope(f[2]); err != nil {
		return Record{}, err
	}
	r.Scope = f[2]
	if r.Number, err = parseDigits(f[3], numberDigits); err != nil {
		return Record{}, fmt.Errorf("number: %w", err)
	}
	if r.Sequence, err = parseDigits(f[4], sequenceDigits); err != nil {
		return Record{}, fmt.Errorf("sequence: %w", err)
	}
	if r.WriteID, err = ParseWriteID(f[5]); err != nil {
		return Record{}, fmt.Errorf("write id: %w", err)
	}
	if f[6] != string(Live) && f[6] != string(Deleted) {
		return Record{}, fmt.Errorf("state %q is neither %q nor %q", f[6], Live, Deleted)
	}
	r.State = State(f[6][0])
	return r, nil
}

// String returns the record's text:
//
//	r1:<issuer id>:<scope>:<number, 20 digits>:<sequence, 10 digits>:<write id, 32 hex>:<state>:<check, 8 hex>
func (r Record) String() string {
	return withCheck(fmt.Sprintf("r1:%s:%s:%0*d:%0*d:%s:%c:",
		r.Issuer, r.Scope, numberDigits, r.Number, sequenceDigits, r.Sequence, r.WriteID, r.State))
}

// Fence returns the record's full fencing number.
func (r Record) Fence() Fence { return Fence{r.Number, r.Sequence} }

// sameCounter reports whether the numbers of r and o can be compared.
func (r Record) sameCounter(o Record) bool { return r.Issuer == o.Issuer && r.Scope == o.Scope }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func withCheck(s string) string {
	return fmt.Sprintf("%s%08x", s, crc32.Checksum([]byte(s), castagnoli))
}

// splitChecked verifies the check before anything is read from the fields: a
// truncated 48 is still a number, but not one with a valid check.
func splitChecked(s, kind string, fields int) ([]string, error) {
	f := strings.Split(s, ":")
	if f[0] != kind {
		return nil, fmt.Errorf("does not begin with %q", kind+":")
	}
	if len(f) != fields {
		return nil, fmt.Errorf("has %d fields, not %d", len(f), fields)
	}
	check := f[fields-1]
	if withCheck(s[:len(s)-len(check)]) != s {
		return nil, fmt.Errorf("check %q does not match: truncated or edited", check)
	}
	return f, nil
}

// parseDigits reads exactly width decimal digits as a number from 1 up.
func parseDigits(s string, width int) (int64, error) {
	if len(s) != width {
		return 0, fmt.Errorf("want %d digits, got %d characters", width, len(s))
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, fmt.Errorf("%q is not a digit", s[i])
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err == nil && n == 0 {
		err = errors.New("zero is not a fencing number")
	}
	return n, err
}
