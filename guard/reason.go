package guard

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// A Reason says why the guard did not write, or could not say whether it did.
// Each is a sentinel: test for one with errors.Is. Its text is the word that
// the command line prints as "reason" in JSON, so it never changes.
type Reason string

// The reasons. Those up to [ErrRepeatableETag] mean that this call changed
// nothing in the store, unless the [Refusal] that carries the reason says
// MayHaveApplied.
const (
	// ErrMissingToken: no token was given. It is never read as zero.
	ErrMissingToken Reason = "missing-token"
	// ErrMalformedToken: the text is not a token: truncated, edited, or something else.
	ErrMalformedToken Reason = "malformed-token"
	// ErrStale: the object was already written with a higher fencing number.
	ErrStale Reason = "stale"
	// ErrReplayed: the object was already written with this very fencing
	// number, by another write.
	ErrReplayed Reason = "replayed"
	// ErrExists: the write was to create the object only, and it is there.
	ErrExists Reason = "exists"
	// ErrUnfenced: the object is there but carries no fence record.
	ErrUnfenced Reason = "unfenced"
	// ErrCorruptRecord: the object's fence record does not parse.
	ErrCorruptRecord Reason = "corrupt-record"
	// ErrFenceLost: the object was deleted around the guard, and its
	// high-water mark with it.
	ErrFenceLost Reason = "fence-lost"
	// ErrIssuerMismatch: the object's number came from another counter.
	ErrIssuerMismatch Reason = "issuer-mismatch"
	// ErrScopeMismatch: the object's number belongs to another scope.
	ErrScopeMismatch Reason = "scope-mismatch"
	// ErrStoreUnsafe: the store lacks something that the guard stands on.
	ErrStoreUnsafe Reason = "store-unsafe"
	// ErrRepeatableETag: replacing the object would give it an ETag that can
	// come back with the same bytes, so that a paused older writer could
	// still pass its If-Match (the ETag rule).
	ErrRepeatableETag Reason = "repeatable-etag"
	// ErrOutcomeUnknown: the write was sent and it could not be settled
	// whether the store applied it.
	ErrOutcomeUnknown Reason = "outcome-unknown"
	// ErrIssuerRefuses: the issuer would not give a number: its counter went
	// back, its table is not the one it was made in, or two regions count at once.
	ErrIssuerRefuses Reason = "issuer-refuses"
	// ErrLeaseHeld: another owner holds the lease.
	ErrLeaseHeld Reason = "lease-held"
	// ErrLeaseLost: the lease was held and is so no longer.
	ErrLeaseLost Reason = "lease-lost"
	// ErrInvalid: an argument can't be used: key, metadata, size, sequence.
	ErrInvalid Reason = "invalid"
)

var reasonText = map[Reason]string{
	ErrMissingToken:   "no fencing token",
	ErrMalformedToken: "malformed fencing token",
	ErrStale:          "stale token",
	ErrReplayed:       "replayed token",
	ErrExists:         "object exists",
	ErrUnfenced:       "object is not fenced",
	ErrCorruptRecord:  "corrupt fence record",
	ErrFenceLost:      "fence lost",
	ErrIssuerMismatch: "issuer mismatch",
	ErrScopeMismatch:  "scope mismatch",
	ErrStoreUnsafe:    "store not safe",
	ErrRepeatableETag: "repeatable ETag",
	ErrOutcomeUnknown: "outcome unknown",
	ErrIssuerRefuses:  "issuer refuses",
	ErrLeaseHeld:      "lease held by another",
	ErrLeaseLost:      "lease lost",
	ErrInvalid:        "invalid argument",
}

// explanations is the one table of what an error is called. The first that
// matches counts. Scripts and dashboards depend on it: entries are added, never
// changed.
var explanations = []struct {
	err     error
	word    string // that of a Reason is its text
	refused bool
}{
	{ErrOutcomeUnknown, "", false},
	{ErrStale, "", true},
	{ErrReplayed, "", true},
	{ErrMissingToken, "", true},
	{ErrMalformedToken, "", true},
	{ErrFenceLost, "", true},
	{ErrUnfenced, "", true},
	{ErrCorruptRecord, "", true},
	{ErrIssuerMismatch, "", true},
	{ErrScopeMismatch, "", true},
	{ErrStoreUnsafe, "", true},
	{ErrRepeatableETag, "", true},
	{ErrLeaseHeld, "", true},
	{ErrLeaseLost, "", false},
	{ErrIssuerRefuses, "", true},
	{ErrExists, "", true},
	{ErrInvalid, "", false},
	{context.Canceled, "interrupted", false},
	{context.DeadlineExceeded, "timeout", false},
	{ErrNoBucket, "no-bucket", false},
	{ErrNotFound, "not-found", false},
	{ErrDenied, "access-denied", false},
	{ErrConflict, "conflict", false},
	{ErrUnsupported, "unsupported", false},
	{ErrRejected, "rejected", false},
	{ErrNotSent, "not-sent", false},
}

// Unexplained is the word for an error that no other is known for.
const Unexplained = "failed"

// Explain returns the word for an error of this module that the command line
// prints as "reason" in JSON, and whether it means that the guard, an issuer or
// a lease refused. It is [Unexplained] for any other error.
func Explain(err error) (word string, refused bool) {
	for _, e := range explanations {
		if !errors.Is(err, e.err) {
			continue
		}
		if e.word == "" {
			return string(ReasonOf(e.err)), e.refused
		}
		return e.word, e.refused
	}
	return Unexplained, false
}

// Error implements error.
func (r Reason) Error() string {
	if t, ok := reasonText[r]; ok {
		return t
	}
	return string(r)
}

// ReasonOf returns the reason that err carries, or "" when it carries none.
func ReasonOf(err error) Reason {
	var r Reason
	if errors.As(err, &r) {
		return r
	}
	return ""
}

// A Refusal is the error of a write that the guard did not make, or whose
// outcome it could not settle. errors.Is finds its Reason and, where there is
// one, the store's own error behind it.
type Refusal struct {
	Reason Reason
	// Key as given to the call; URL is the same with the store's name before it.
	Key, URL string
	// Offered is the fence record that the write would have carried.
	Offered Record
	// Held is the object's fence record, when one was seen.
	Held *Record
	// Claim is the scope fence's record, when that is what refused the write.
	Claim *Record
	// Below says, of a read, that the object holds a lower number than Offered,
	// which the reader has seen.
	Below bool
	// MayHaveApplied says that one of this call's requests may have reached
	// the object before it was superseded: its answer was lost.
	MayHaveApplied bool
	// Detail says more about this very refusal, in words.
	Detail string
	// Cures is what the caller can do about it, one per entry.
	Cures []string
	// Err is the error behind the refusal, if any.
	Err error
}

// Error names the reason, the key, and both fencing numbers.
func (r *Refusal) Error() string {
	var b strings.Builder
	held := func() string {
		if r.Held == nil {
			return ""
		}
		return fmt.Sprintf("already written with %s (scope %s)", r.Held.Fence(), r.Held.Scope)
	}
	switch {
	case r.Below && r.Held != nil:
		fmt.Fprintf(&b, "stale object %s: it holds %s (scope %s), and the reader has seen %s", r.URL, r.Held.Fence(), r.Held.Scope, r.Offered.Fence())
	case r.Claim != nil && r.Reason == ErrStale:
		fmt.Fprintf(&b, "%s %s for %s: scope %s is claimed with %s", r.Reason.Error(), r.Offered.Fence(), r.URL, r.Claim.Scope, r.Claim.Fence())
	case r.Claim != nil && r.Reason == ErrIssuerMismatch:
		fmt.Fprintf(&b, "%s for %s: token %s comes from issuer %s, scope %s is claimed with %s from issuer %s; numbers of two counters can't be compared",
			r.Reason.Error(), r.URL, r.Offered.Fence(), r.Offered.Issuer, r.Claim.Scope, r.Claim.Fence(), r.Claim.Issuer)
	case r.Reason == ErrStale || r.Reason == ErrReplayed:
		fmt.Fprintf(&b, "%s %s for %s: %s", r.Reason.Error(), r.Offered.Fence(), r.URL, held())
	case r.Reason == ErrIssuerMismatch && r.Held != nil:
		fmt.Fprintf(&b, "%s for %s: token %s comes from issuer %s, the object holds %s from issuer %s; numbers of two counters can't be compared",
			r.Reason.Error(), r.URL, r.Offered.Fence(), r.Offered.Issuer, r.Held.Fence(), r.Held.Issuer)
	case r.Reason == ErrScopeMismatch && r.Held != nil:
		fmt.Fprintf(&b, "%s for %s: token %s is of scope %s, the object holds %s of scope %s; numbers of two scopes can't be compared",
			r.Reason.Error(), r.URL, r.Offered.Fence(), r.Offered.Scope, r.Held.Fence(), r.Held.Scope)
	default:
		fmt.Fprintf(&b, "%s for %s", r.Reason.Error(), r.URL)
		if h := held(); h != "" {
			fmt.Fprintf(&b, ": %s", h)
		}
	}
	if r.Detail != "" {
		fmt.Fprintf(&b, ": %s", r.Detail)
	}
	if r.MayHaveApplied {
		b.WriteString("; this write may have been applied before it was superseded")
	}
	if r.Err != nil {
		fmt.Fprintf(&b, ": %v", r.Err)
	}
	return b.String()
}

// Unwrap gives errors.Is and errors.As the reason and the error behind it.
func (r *Refusal) Unwrap() []error {
	if r.Err == nil {
		return []error{r.Reason}
	}
	return []error{r.Reason, r.Err}
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrInvalid, fmt.Errorf(format, args...))
}
