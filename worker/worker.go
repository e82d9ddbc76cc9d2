// Package worker is for handlers of events that are delivered at least once, as
// AWS Lambda's are: whatever is delivered again, at the same time or days later,
// each event's output is written once, and never over that of a newer event.
//
// Every event gets one token, from a [guard.EventIssuer], and every write an id
// made from the event and the key. So a write that is made again is recognised
// as already applied; the late output of an event is refused by a key that a
// newer one has written; and a second delivery that came to another result, an
// empty one for instance, does not replace the first one's. Each of these is an
// [guard.Outcome] and not an error, so that the event is done with.
//
// Numbers follow the order in which events are first delivered. Where that is
// not the order in which they happened, a handler should read what it works on
// as it is now, and not from the event.
//
// Nobody may claim the scope (see [guard.Guard.Claim]): events of one scope are
// worked on in parallel, and the newest would fence all the others out.
package worker

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/s3fence/s3fence/guard"
)

// What a write of a [Job] can come to besides the guard's own outcomes. In each
// the key is left as it is.
const (
	// Superseded: the key was written by a newer event, or by a later write of
	// this one.
	Superseded guard.Outcome = "superseded"
	// Kept: another delivery of the event wrote the key, with other bytes.
	Kept guard.Outcome = "kept"
)

// Options of a Worker. The zero value of each field means its default.
type Options struct {
	// Logger gets the error of each event that failed, which Lambda is not told
	// where it takes the names of the failed ones only, and at info level each
	// write that was superseded or whose first output was kept. Default:
	// slog.Default().
	Logger *slog.Logger
}

// A Worker makes the handlers of one scope. It is safe for concurrent use, and
// is best made once per process, with its guard and clients: making it takes no
// request.
type Worker struct {
	g     *guard.Guard
	iss   guard.EventIssuer
	scope string
	log   *slog.Logger
}

// New returns a Worker that writes through g with tokens of scope from iss. iss
// may be nil where each token is given ([Worker.BeginWith]). opts may be nil.
func New(g *guard.Guard, iss guard.EventIssuer, scope string, opts *Options) *Worker {
	w := &Worker{g: g, iss: iss, scope: scope}
	if opts != nil {
		w.log = opts.Logger
	}
	if w.log == nil {
		w.log = slog.Default()
	}
	return w
}

// Begin begins the work on an event, and takes its token. event is its id: the
// same at each delivery, and no other event's in the scope. Errors are the
// issuer's.
//
// The handlers of this package call it; it is there for sources of events that
// they don't know.
func (w *Worker) Begin(ctx context.Context, event string) (*Job, error) {
	tok, err := w.g.IssueFor(ctx, w.iss, w.scope, event)
	if err != nil {
		return nil, err
	}
	return w.BeginWith(tok, event), nil
}

// BeginWith is Begin for an event whose token is known already, from its place
// in a log for one (issuer.Position). It must be the same at each delivery.
func (w *Worker) BeginWith(tok guard.Token, event string) *Job {
	return &Job{w: w, tok: tok, event: event, written: make(map[string]int64)}
}

// run works on one event.
func (w *Worker) run(ctx context.Context, event string, begin func() (*Job, error), handle func(*Job) error) error {
	job, err := begin()
	if err == nil {
		err = handle(job)
	}
	if err != nil {
		w.log.ErrorContext(ctx, "event failed", "event", event, "error", err)
	}
	return err
}

// A Job is the work on one event in one delivery. It is safe for concurrent use,
// but for two writes of one key at once.
type Job struct {
	w     *Worker
	tok   guard.Token
	event string

	mu      sync.Mutex
	written map[string]int64 // by key, the highest sequence
}

// Token returns the event's token.
func (j *Job) Token() guard.Token { return j.tok }

// Event returns the event's id.
func (j *Job) Event() string { return j.event }

// Put is [guard.Guard.Put] with the event's token and a write id made from event
// and key; opts must not give one. [Superseded] and [Kept] are outcomes and not
// errors, so that a handler goes on with its other keys.
//
// An event writes a key once. One that writes it several times, a status for
// one, numbers its writes with the Sequence, the same way at each delivery; a
// write that is not above the last one of the job is [guard.ErrInvalid]. After
// an error the write can be made again.
//
// A write that the scope fence refuses is an error: somebody has claimed the
// scope, and the output is nowhere.
func (j *Job) Put(ctx context.Context, key string, body guard.Body, opts *guard.PutOptions) (guard.Result, error) {
	var o guard.PutOptions
	if opts != nil {
		o = *opts
	}
	return j.write(ctx, key, &o.Sequence, &o.WriteID, o.DryRun, func() (guard.Result, error) {
		return j.w.g.Put(ctx, j.tok, key, body, &o)
	})
}

// Delete is [guard.Guard.Delete] as Put is [guard.Guard.Put].
func (j *Job) Delete(ctx context.Context, key string, opts *guard.DeleteOptions) (guard.Result, error) {
	var o guard.DeleteOptions
	if opts != nil {
		o = *opts
	}
	return j.write(ctx, key, &o.Sequence, &o.WriteID, o.DryRun, func() (guard.Result, error) {
		return j.w.g.Delete(ctx, j.tok, key, &o)
	})
}

func (j *Job) write(ctx context.Context, key string, sequence *int64, id *guard.WriteID, dryRun bool, do func() (guard.Result, error)) (guard.Result, error) {
	if *sequence == 0 {
		*sequence = 1
	}
	j.mu.Lock()
	last := j.written[key]
	j.mu.Unlock()
	switch {
	case !id.IsZero():
		return guard.Result{Key: key}, fmt.Errorf("%w: the write id of %q is made from the event: give none", guard.ErrInvalid, key)
	case *sequence <= last:
		// The same in another delivery would be taken for this write.
		return guard.Result{Key: key}, fmt.Errorf("%w: the event has written %q already, with sequence %d: give each write of a key a higher sequence",
			guard.ErrInvalid, key, last)
	}
	*id = writeID(j.event, key)
	res, err := do()
	if res.Outcome, err = judge(res.Outcome, err); err != nil {
		return res, err
	}
	if res.Outcome == Superseded || res.Outcome == Kept {
		j.w.log.InfoContext(ctx, "the key is left as it is", "outcome", res.Outcome, "url", res.URL, "event", j.event, "token", j.tok.Number())
	}
	if !dryRun {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.written[key] = max(j.written[key], *sequence)
	}
	return res, nil
}

// judge says which refusals are outcomes: those that the object gave, and that
// every later delivery of the event would meet again.
func judge(o guard.Outcome, err error) (guard.Outcome, error) {
	var r *guard.Refusal
	if !errors.As(err, &r) || r.Held == nil || r.Claim != nil {
		return o, err
	}
	switch {
	case r.Reason == guard.ErrStale:
		return Superseded, nil
	case r.Reason == guard.ErrReplayed && r.Held.WriteID == r.Offered.WriteID:
		return Kept, nil
	}
	return o, err
}

// writeID is never the zero one, which would stand for a random one.
func writeID(event, key string) guard.WriteID {
	var id guard.WriteID
	// The length makes plain where the event's id ends.
	sum := sha256.Sum256(fmt.Appendf(nil, "s3fence worker %d:%s %s", len(event), event, key))
	copy(id[:], sum[:])
	id[0] |= 0x80
	return id
}
