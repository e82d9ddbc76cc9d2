package guard

import "context"

// An Issuer is the one durable source of numbers for its scopes: never a
// clock, never memory. The package issuertest holds the suite that every
// implementation must pass.
type Issuer interface {
	// Issue takes the next number of scope: higher than every number that the
	// scope ever gave, to anyone, whatever crashed in between. A lost answer
	// or a retry leaves a gap and never a repeat.
	//
	// A scope that has no counter, or whose counter can't be trusted (rolled
	// back, made anew, counted in two regions), is ErrIssuerRefuses. Any other
	// error is a failure to reach the counter; no token was taken that
	// anybody will use.
	Issue(ctx context.Context, scope string) (Token, error)
}

// An EventIssuer is an Issuer for workers that get events at least once.
type EventIssuer interface {
	Issuer
	// IssueFor returns the token of an event: a fresh one when the event is seen
	// first, and the same one again whenever it is delivered again, to anyone.
	// A fresh number for an old event would let its old output pass over what
	// newer events have written.
	IssueFor(ctx context.Context, scope, event string) (Token, error)
}
