package guard

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
)

// An Op is a kind of operation that an [Observer] is told of.
type Op string

// The operations. Those of leases are made by package issuer.
const (
	OpIssue  Op = "issue"
	OpClaim  Op = "claim"
	OpPut    Op = "put"
	OpDelete Op = "delete"
	OpAdopt  Op = "adopt"
	// OpPublish writes a manifest. The files of its set are each an OpPut before it.
	OpPublish Op = "publish"
	// OpLeaseAcquire takes a lease, and the number that comes with it.
	OpLeaseAcquire Op = "lease.acquire"
	OpLeaseRenew   Op = "lease.renew"
	OpLeaseRelease Op = "lease.release"
	// OpLeaseLost is over when it begins, and tells of a lease that was lost,
	// however that showed.
	OpLeaseLost Op = "lease.lost"
)

// The outcomes of operations that are no writes, and of those that did not
// come to what they were for.
const (
	Issued   Outcome = "issued"
	Acquired Outcome = "acquired"
	Renewed  Outcome = "renewed"
	Released Outcome = "released"
	// Refused is an outcome and no error: a late writer that was kept from
	// writing is what a fence is for.
	Refused Outcome = "refused"
	// Failed: it is not done, or not known to be.
	Failed Outcome = "failed"
)

// An Observer is told of each operation, to measure and to trace it. Its methods
// are called by many goroutines at once, and hold the operation up.
//
// It is not told of dry runs, and not of reads.
type Observer interface {
	// Begin is called before an operation's first request. Those requests get the
	// context that it returns. ended is called once, when the operation is over.
	Begin(ctx context.Context, op Operation) (_ context.Context, ended func(Completion))
}

// An Operation is one that begins.
type Operation struct {
	Op    Op
	Scope string
	// URL of the object; empty where there is none, as of a token.
	URL string
	// Token that it is made with, the zero one where it takes one.
	Token Token
}

// A Completion is what an operation came to.
type Completion struct {
	Outcome Outcome
	// Reason is the word for what went wrong (see [Explain]), empty if nothing did.
	Reason string
	// Token that it was made with, or that it took.
	Token Token
	// Result of a write; of others it is the zero one.
	Result Result
	// Held is the fence record that refused a write: the object's, or the scope
	// fence's.
	Held *Record
	// Requests made, failed ones included. Those that many writes share, for the
	// scope fence and the store's profile, are not counted. Of a client that
	// tries again by itself they are its calls.
	Requests int
	// Err is the error that the caller gets.
	Err error
}

type requestsKey struct{}

// CountRequest counts a request of the operation that ctx is of. It is for
// implementations of [Issuer] and of leases, which make their requests
// themselves; it does nothing where nobody observes.
func CountRequest(ctx context.Context) {
	if n, ok := ctx.Value(requestsKey{}).(*atomic.Int64); ok {
		n.Add(1)
	}
}

// Observe tells o, unless it is nil, that op begins. The operation goes on with
// the context that it returns, and calls ended when it is over: what ended gets
// needs no Reason, no Outcome if Err is set, and no Requests if they were counted
// with [CountRequest]. log gets how it ended: at info level what was refused, at
// debug level all else. It is for packages that have operations of their own.
func Observe(ctx context.Context, o Observer, log *slog.Logger, op Operation) (_ context.Context, ended func(Completion)) {
	quiet := !log.Enabled(ctx, slog.LevelInfo)
	if o == nil && quiet {
		return ctx, func(Completion) {}
	}
	var requests atomic.Int64
	tell := func(Completion) {}
	if o != nil {
		ctx, tell = o.Begin(ctx, op)
	}
	ctx = context.WithValue(ctx, requestsKey{}, &requests)
	return ctx, func(c Completion) {
		if c.Requests == 0 {
			c.Requests = int(requests.Load())
		}
		level := slog.LevelDebug
		if c.Err != nil {
			c.Outcome = Failed
			var refused bool
			if c.Reason, refused = Explain(c.Err); refused {
				c.Outcome, level = Refused, slog.LevelInfo
			}
		}
		if c.Token.IsZero() {
			c.Token = op.Token
		}
		if !quiet {
			log.LogAttrs(ctx, level, string(op.Op),
				slog.String("outcome", string(c.Outcome)), slog.String("reason", c.Reason),
				slog.String("scope", op.Scope), slog.Int64("token", c.Token.Number()), slog.String("url", op.URL),
				slog.Int("requests", c.Requests), slog.Any("error", c.Err))
		}
		tell(c)
	}
}

// refusedBy returns the fence record that err is about.
func refusedBy(err error) *Record {
	var r *Refusal
	switch {
	case !errors.As(err, &r):
		return nil
	case r.Held != nil:
		return r.Held
	}
	return r.Claim
}
