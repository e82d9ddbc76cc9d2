package lincheck_test

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"time"

	"github.com/s3fence/s3fence/guard"
)

// naive is a writer as one writes it after reading docs/protocol.md, good
// enough to pass every seed. Each field is a mistake to make in it.
type naive struct {
	store   guard.Store
	backoff func(int) time.Duration

	failOn412     bool // a 412 means that somebody else won
	failOnUnknown bool // no answer means that it failed
	orEqual       bool // >= where > is right
	lostIsZero    bool // no record is number 0
}

// Put implements [lincheck.Writer].
func (n naive) Put(ctx context.Context, tok guard.Token, key string, body guard.Body, opts *guard.PutOptions) (guard.Result, error) {
	id := opts.WriteID
	if id.IsZero() {
		id, _ = guard.NewWriteID(rand.Reader)
	}
	mine := guard.Record{Issuer: tok.Issuer(), Scope: tok.Scope(), Number: tok.Number(), Sequence: opts.Sequence, WriteID: id, State: guard.Live}
	res := guard.Result{Record: mine}
	content, _ := io.ReadAll(body.Reader())
	req := guard.PutRequest{Body: body, SSE: opts.SSE, Headers: guard.Headers{Metadata: map[string]string{guard.RecordKey: mine.String()}}}
	var lost bool // an answer was
	for try := range 5 {
		if try > 0 {
			time.Sleep(n.backoff(try))
		}
		obj, r, err := n.store.Get(ctx, key, guard.ReadOptions{})
		var held guard.Record
		switch {
		case errors.Is(err, guard.ErrNotFound):
			req.Condition, res.Outcome = guard.IfAbsent(), guard.Created
		case err != nil:
			continue
		default:
			there, _ := io.ReadAll(r)
			req.Condition, res.Outcome = guard.IfMatch(obj.ETag), guard.Replaced
			no := func(why guard.Reason) (guard.Result, error) {
				return res, &guard.Refusal{Reason: why, Held: &held, MayHaveApplied: lost && why == guard.ErrStale}
			}
			held, err = guard.ParseRecord(obj.Metadata[guard.RecordKey])
			order := mine.Fence().Compare(held.Fence())
			switch {
			case err != nil && !n.lostIsZero && lost:
				return res, &guard.Refusal{Reason: guard.ErrOutcomeUnknown}
			case err != nil && !n.lostIsZero:
				return res, &guard.Refusal{Reason: guard.ErrUnfenced}
			case held == mine && string(there) == string(content):
				res.Outcome = guard.AlreadyApplied
				return res, nil
			case order < 0:
				return no(guard.ErrStale)
			case order == 0 && !n.orEqual:
				return no(guard.ErrReplayed)
			}
		}
		// What the store gives no answer to is sent again as it was, once: if
		// the first did arrive, the second's condition fails.
		for range 2 {
			_, err = n.store.Put(ctx, key, req)
			if err == nil {
				return res, nil
			}
			if errors.Is(err, guard.ErrPreconditionFailed) && n.failOn412 {
				return res, errors.New("somebody else was faster")
			}
			if errors.Is(err, guard.ErrPreconditionFailed) || errors.Is(err, guard.ErrNotFound) ||
				errors.Is(err, guard.ErrConflict) || errors.Is(err, guard.ErrNotSent) {
				break // nothing changed: look again
			}
			if n.failOnUnknown {
				return res, err
			}
			lost = true
		}
	}
	if lost {
		return res, &guard.Refusal{Reason: guard.ErrOutcomeUnknown}
	}
	return res, errors.New("gave up, with nothing sent")
}
