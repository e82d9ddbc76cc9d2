package guard

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"
)

// PutOptions refine a Put. The zero value of each field means its default.
type PutOptions struct {
	Headers
	Tags map[string]string
	// SSE asks for encryption: AES256, aws:kms or aws:kms:dsse. Default: what
	// the bucket does by itself. SSEKMSKeyID picks a key for the kms ones.
	SSE, SSEKMSKeyID string
	// Sequence numbers the writes under one token: 1, 2, 3, counted by the
	// token's holder. Default: 1.
	Sequence int64
	// WriteID makes the write recognisable when it is run again: the same id,
	// token and sequence are then already applied instead of replayed.
	// Default: random.
	WriteID WriteID
	// CreateOnly refuses with ErrExists when a live object is there.
	CreateOnly bool
	// ExpectAbsent is a hint that costs nothing when wrong: where the bucket
	// keeps no versions, the first request is the write itself, so that a new
	// key takes one request.
	ExpectAbsent bool
	// AcceptRepeatableETag gives up the ETag rule for this write: a writer
	// that was paused before it can then land over it, if the bytes are the
	// same as the ones it saw. It is logged, and the result says repeatable.
	AcceptRepeatableETag bool
	// DryRun observes and decides, and does not write: the result says what
	// the outcome would have been.
	DryRun bool
}

// An Outcome is what a write that did not fail came to.
type Outcome string

// The outcomes.
const (
	Created        Outcome = "created"
	Replaced       Outcome = "replaced"
	AlreadyApplied Outcome = "already-applied"
)

// An ETagKind says whether an object's ETag can come back.
type ETagKind string

// The kinds. An empty one means not known.
const (
	// ETagUnique: every write gets another.
	ETagUnique ETagKind = "unique"
	// ETagSalted: a multipart ETag made unique by its part boundaries.
	ETagSalted ETagKind = "salted"
	// ETagRepeatable: the same bytes get the same ETag.
	ETagRepeatable ETagKind = "repeatable"
)

// A Result says what a write came to. Next to an error it holds what is known
// anyway: the record offered and the requests made.
type Result struct {
	Key, URL string
	Outcome  Outcome
	// Record is the fence record that the write carried.
	Record Record
	// Previous is the record that it replaced.
	Previous  *Record
	ETag      string
	ETagKind  ETagKind
	VersionID string
	Bytes     int64
	// Requests made to the store, failed ones included.
	Requests int
}

// Put writes body to key, if tok's number is higher than the one the object
// holds. Bytes and number change together or not at all.
//
// It returns nil when the object is this write, or was until a newer one
// replaced it. A refusal is a [*Refusal] with one of the reasons as its
// sentinel; unless it says MayHaveApplied, or is [ErrOutcomeUnknown], this
// call changed nothing. Other errors (ErrNoBucket, ErrDenied, ErrConflict
// that would not end, the context's before anything was sent) mean that
// nothing changed either.
//
// That holds as long as nothing on the way repeats requests by itself: behind a
// proxy that does, a write may have landed, and been replaced, that Put says
// was refused. What is in the object keeps the promise all the same.
//
// A context that ends before the write is sent means that nothing changed;
// one that ends later gives ErrOutcomeUnknown, at once. Running the same Put
// again with the same WriteID settles it.
//
// Bodies are at most [MaxSinglePart] bytes. The rules are in
// docs/protocol.md.
func (g *Guard) Put(ctx context.Context, tok Token, key string, body Body, opts *PutOptions) (Result, error) {
	return g.put(ctx, tok, key, body, opts, false)
}

// put is Put. own says that body is the guard's own and carries the write id,
// so that its ETag can't come back; nor does it need a profile of the store.
func (g *Guard) put(ctx context.Context, tok Token, key string, body Body, opts *PutOptions, own bool) (Result, error) {
	var o PutOptions
	if opts != nil {
		o = *opts
	}
	if o.Sequence == 0 {
		o.Sequence = 1
	}
	res := Result{Key: key, URL: g.store.URL(key), Bytes: body.Size()}
	w := write{
		call:         call{g: g},
		key:          key,
		body:         body,
		opts:         o,
		compareBytes: !o.WriteID.IsZero(),
		own:          own,
		res:          &res,
	}
	fail := func(err error) (Result, error) { return res, naming("put", res.URL, err) }
	if tok.IsZero() {
		return res, &Refusal{Reason: ErrMissingToken, Key: key, URL: res.URL,
			Cures: []string{"take a token from an issuer, or give the one you hold"}}
	}
	if w.opts.WriteID.IsZero() {
		id, err := NewWriteID(g.rand)
		if err != nil {
			return fail(err)
		}
		w.opts.WriteID = id
	}
	res.Record = Record{
		Issuer: tok.issuer, Scope: tok.scope, Number: tok.number,
		Sequence: o.Sequence, WriteID: w.opts.WriteID, State: Live,
	}
	if err := w.check(); err != nil {
		return fail(err)
	}
	err := w.run(ctx)
	var refusal *Refusal
	if err != nil && !errors.As(err, &refusal) {
		return fail(err)
	}
	return res, err
}

// A write is one logical write on its way through the engine.
type write struct {
	call
	key  string
	body Body
	opts PutOptions
	// compareBytes: the write id is the caller's, so that another process may
	// have used it for other bytes.
	compareBytes bool
	// own: the bytes carry the write id, so no other write has their ETag.
	own bool
	// lost is the error of a request whose outcome is unknown. It stays set:
	// such a request may still land later.
	lost error
	res  *Result
}

func (w *write) check() error {
	if err := CheckKey(w.key); err != nil {
		return err
	}
	if s := w.opts.Sequence; s < 1 || s > MaxSequence {
		return invalid("sequence %d is not from 1 to %d", s, int64(MaxSequence))
	}
	if n := w.body.Size(); n < 0 || n > MaxSinglePart {
		return invalid("the body is %d bytes; one PUT takes at most %d", n, int64(MaxSinglePart))
	}
	switch w.opts.SSE {
	case "", "AES256", "aws:kms", "aws:kms:dsse":
	default:
		return invalid("encryption %q is none of AES256, aws:kms, aws:kms:dsse", w.opts.SSE)
	}
	if w.opts.SSEKMSKeyID != "" && !uniqueSSE(w.opts.SSE) {
		return invalid("a KMS key goes with encryption aws:kms or aws:kms:dsse, not %q", w.opts.SSE)
	}
	return checkHeaders(w.opts.Headers, w.res.Record)
}

// run is the engine: observe, decide, write under a condition, and when the
// answer leaves anything open, observe again. Every guarded write of every
// kind goes through here.
func (w *write) run(ctx context.Context) error {
	defer func() { w.res.Requests = w.requests }()
	if err := w.proven(ctx); err != nil {
		return err
	}
	seen, err := w.firstSight(ctx)
	for {
		if err != nil {
			return w.settle(err)
		}
		v, err := w.decide(ctx, seen)
		if err != nil {
			return w.settle(err)
		}
		switch v.action {
		case refuse:
			return w.settle(w.refusal(v.reason, v.held, nil))
		case applied:
			w.res.Outcome, w.res.ETag = AlreadyApplied, strings.Trim(seen.etag, `"`)
			return nil
		}
		if err := ctx.Err(); err != nil {
			return w.settle(err)
		}
		if w.opts.DryRun {
			w.res.Outcome, w.res.Previous = v.outcome(), v.held
			return nil
		}
		answer, err := w.send(ctx, v)
		if err == nil {
			w.done(ctx, v, answer)
			return nil
		}
		if seen, err = w.lookAgain(ctx, seen, err); err != nil {
			return w.settle(err)
		}
	}
}

// proven refuses to write to a store that the profile source does not vouch for.
func (w *write) proven(ctx context.Context) error {
	if w.own {
		return nil
	}
	err := w.g.proven(ctx, &w.call)
	var r *Refusal
	if errors.As(err, &r) {
		about := *r
		about.Key, about.URL, about.Offered = w.key, w.res.URL, w.res.Record
		return &about
	}
	return err
}

// decide asks the write rule. Whether the ETag could come back matters only to
// a replacement, and may take a look at the bucket's settings.
func (w *write) decide(ctx context.Context, seen sighting) (verdict, error) {
	o := offer{record: w.res.Record, createOnly: w.opts.CreateOnly}
	v := decide(o, seen)
	if v.action != replace || w.own || w.opts.AcceptRepeatableETag || w.g.provenUnique(w.opts.SSE) {
		return v, nil
	}
	s, err := w.g.bucketSettings(ctx, &w.call)
	o.repeatableETag = !s.UniqueETags && (w.opts.SSE != "" || !w.g.provenUnique(s.DefaultSSE))
	return decide(o, seen), err
}

// uniqueSSE reports whether objects encrypted so get an ETag that is not a
// hash of their bytes.
func uniqueSSE(sse string) bool { return sse == "aws:kms" || sse == "aws:kms:dsse" }

// lookAgain is what follows a request that was not answered with success:
// wait where that helps, and observe. The error is final.
func (w *write) lookAgain(ctx context.Context, before sighting, cause error) (sighting, error) {
	w.g.memory.forget(w.key)
	c := classify(cause)
	switch c {
	case final:
		if errors.Is(cause, ErrUnsupported) {
			cause = w.refusal(ErrStoreUnsafe, nil, cause)
		}
		return before, cause
	case unknown:
		w.lost = cause
	}
	if c != moved {
		if err := w.pause(ctx, cause); err != nil {
			return before, err
		}
	}
	seen, err := w.observe(ctx)
	// A failed precondition over an object that did not change is no
	// contention: the store contradicts itself, and must not do so for ever.
	if err == nil && c == moved && seen.exists == before.exists && seen.etag == before.etag {
		if err := w.pause(ctx, cause); err != nil {
			return seen, w.refusal(ErrStoreUnsafe, nil, fmt.Errorf("it refuses a condition that holds: %w", err))
		}
	}
	return seen, err
}

// settle turns the end of a write into the truth about it. Once an answer was
// lost, only the object can tell: either newer numbers show that our write can
// no longer land (and whether it may have, before), or the outcome is unknown.
func (w *write) settle(err error) error {
	if w.lost == nil {
		return err
	}
	var r *Refusal
	if errors.As(err, &r) {
		switch r.Reason {
		case ErrStale:
			r.MayHaveApplied = true
			return r
		case ErrReplayed, ErrExists, ErrRepeatableETag:
			// Over our write, these others could not have come to be there.
			return r
		}
	}
	if !errors.Is(err, w.lost) {
		err = fmt.Errorf("%w (after a lost answer: %w)", err, w.lost)
	}
	return w.refusal(ErrOutcomeUnknown, nil, err)
}

// refusal is the error for reason, with its cures.
func (w *write) refusal(reason Reason, held *Record, err error) *Refusal {
	r := &Refusal{Reason: reason, Key: w.key, URL: w.res.URL, Offered: w.res.Record, Held: held, Err: err}
	switch reason {
	case ErrStale:
		r.Cures = []string{"a newer owner has written: stop, or start over with a fresh token"}
	case ErrReplayed:
		r.Cures = []string{
			"to write again under one token, number the writes with the sequence",
			"to run one write again, give it the same write id each time",
		}
	case ErrUnfenced:
		r.Detail = "it was written around the guard, or before there was one"
		r.Cures = []string{"write to another key, or remove the object if it is not needed"}
	case ErrCorruptRecord:
		r.Detail = "metadata " + RecordKey + " was edited or cut"
	case ErrFenceLost:
		r.Detail = "a delete marker stands over it: it was deleted around the guard"
		r.Cures = []string{"remove the delete marker, which brings the fenced version back"}
	case ErrRepeatableETag:
		r.Detail = "the same bytes would get the same ETag again, and a paused older writer could pass its If-Match"
		r.Cures = []string{
			"encrypt with SSE-KMS (--sse aws:kms), or make that the bucket's default",
			"write to a key that is not there yet",
			"accept it for this write (--accept-repeatable-etag)",
		}
	case ErrStoreUnsafe:
		r.Detail = "it lacks something that this write needs, and nothing was written without it"
	case ErrOutcomeUnknown:
		r.Cures = []string{"run it again with the same token, sequence and write id " + w.res.Record.WriteID.String() +
			": it is recognised if it was applied"}
	}
	return r
}

// send makes the write's one request under the condition that v names.
func (w *write) send(ctx context.Context, v verdict) (PutResult, error) {
	cond := IfAbsent()
	if v.action == replace {
		cond = IfMatch(v.etag)
	}
	h := w.opts.Headers
	h.Metadata = maps.Clone(h.Metadata)
	if h.Metadata == nil {
		h.Metadata = make(map[string]string, 1)
	}
	h.Metadata[RecordKey] = w.res.Record.String()
	source := &watchedBody{r: w.body.Reader(), size: w.body.Size()}
	w.requests++
	res, err := w.g.store.Put(ctx, w.key, PutRequest{
		Condition: cond,
		Body:      ReaderAt(source, w.body.Size()),
		Headers:   h,
		SSE:       w.opts.SSE, SSEKMSKeyID: w.opts.SSEKMSKeyID,
		Tags: w.opts.Tags,
	})
	w.g.log.DebugContext(ctx, "put", "url", w.res.URL, "fence", w.res.Record.Fence(),
		"if_absent", cond.Absent(), "if_match", cond.ETag(), "error", err)
	unread, bad := source.seal()
	switch {
	case err == nil || classify(err) != unknown:
		return res, err
	case bad != nil:
		return res, fmt.Errorf("%w: read the body: %w", ErrRejected, bad)
	case unread:
		// The store never got the whole body and never will, so it can't take it.
		return res, fmt.Errorf("%w whole: %w", ErrNotSent, err)
	}
	return res, err
}

// done fills the result of a write that the store took.
func (w *write) done(ctx context.Context, v verdict, answer PutResult) {
	res := w.res
	res.Outcome, res.Previous = v.outcome(), v.held
	res.ETag, res.VersionID = strings.Trim(answer.ETag, `"`), answer.VersionID
	// Look at what came back, not at what was asked: a store that ignores the
	// encryption header answers with the MD5 of the bytes.
	believed := uniqueSSE(answer.SSE) || uniqueSSE(w.opts.SSE) || w.g.knownUnique() ||
		v.action == replace && !w.opts.AcceptRepeatableETag
	res.ETagKind = etagKind(res.ETag, believed)
	if w.own {
		believed, res.ETagKind = false, ETagUnique // of these bytes, which nobody else writes
	}
	if believed && isMD5(ctx, res.ETag, w.body) {
		res.ETagKind = ETagRepeatable
	}
	switch {
	case believed && res.ETagKind == ETagRepeatable:
		w.g.log.WarnContext(ctx, "the store was believed to give unique ETags, but this one is the MD5 of the bytes",
			"url", res.URL, "etag", res.ETag, "sse_asked", w.opts.SSE, "sse_answered", answer.SSE)
	case w.opts.AcceptRepeatableETag && v.action == replace && res.ETagKind == ETagRepeatable:
		w.g.log.WarnContext(ctx, "replaced under a repeatable ETag, as accepted", "url", res.URL, "etag", res.ETag)
	}
	if believed && res.ETagKind == ETagUnique {
		// One that can come back may be another write's by the time it is used.
		w.g.memory.put(w.key, sighting{exists: true, etag: answer.ETag, record: res.Record.String()})
	}
}

// isMD5 reports whether etag is the MD5 of body.
func isMD5(ctx context.Context, etag string, body Body) bool {
	sum := md5.New()
	if len(etag) != 2*sum.Size() {
		return false
	}
	err := hashBody(ctx, sum, body)
	return err == nil && hex.EncodeToString(sum.Sum(nil)) == strings.ToLower(etag)
}

// firstSight is what the write starts from: what this Guard wrote last, the
// caller's hint, or an observation.
func (w *write) firstSight(ctx context.Context) (sighting, error) {
	if seen, ok := w.g.memory.get(w.key); ok {
		// Good for going on, never for refusing: it may be long out of date.
		if v, err := w.decide(ctx, seen); err == nil && v.action == replace {
			return seen, nil
		}
	}
	if w.opts.ExpectAbsent {
		// Where versions are kept, a delete marker may stand over a fenced
		// version, and creating would pass over it.
		s, err := w.g.bucketSettings(ctx, &w.call)
		if err != nil {
			return sighting{}, err
		}
		if s.Versioning == VersioningOff {
			return sighting{}, nil
		}
	}
	return w.observe(ctx)
}

// observe looks at the object.
func (w *write) observe(ctx context.Context) (sighting, error) {
	obj, err := w.head(ctx, w.key, HeadOptions{})
	if errors.Is(err, ErrNotFound) {
		if !obj.DeleteMarker {
			return sighting{}, nil
		}
		lost, err := w.underMarker(ctx)
		return sighting{lost: lost}, err
	}
	if err != nil {
		return sighting{}, fmt.Errorf("observe the object: %w", err)
	}
	seen := sighting{exists: true, etag: obj.ETag, record: obj.Metadata[RecordKey]}
	if seen.etag == "" {
		return seen, w.refusal(ErrStoreUnsafe, nil, errors.New("HEAD answered without an ETag"))
	}
	if w.compareBytes && seen.record == w.res.Record.String() {
		var moved bool
		if seen.differs, moved, err = w.differs(ctx, obj); moved {
			return w.observe(ctx)
		}
	}
	return seen, err
}

// differs reports whether obj, which carries our very record, is known to hold
// other bytes. Not being allowed to know is no difference. moved says that the
// object was replaced since it was observed, so that its bytes tell nothing
// about the write that was there.
func (w *write) differs(ctx context.Context, obj Object) (differs, moved bool, err error) {
	if obj.Size >= 0 && obj.Size != w.body.Size() { // a store may not say
		return true, false, nil
	}
	now, err := w.head(ctx, w.key, HeadOptions{Checksum: true})
	switch {
	case errors.Is(err, ErrNotFound):
		return false, true, nil
	case err != nil && classify(err) == final:
		// Denied, most likely: reading the checksum of an encrypted object
		// takes a permission that a writer need not have.
		return false, false, nil
	case err != nil:
		return false, false, fmt.Errorf("compare the bytes: %w", err)
	case now.ETag != obj.ETag || now.Metadata[RecordKey] != obj.Metadata[RecordKey]:
		return false, true, nil
	}
	same, known, err := now.Checksum.matches(ctx, w.body)
	if known || err != nil {
		return !same, false, err
	}
	// No checksum is kept; where the ETag is the MD5 of the bytes, it is one.
	etag := strings.Trim(now.ETag, `"`)
	if uniqueSSE(now.SSE) || etagKind(etag, false) != ETagRepeatable {
		return false, false, nil
	}
	if s, err := w.g.bucketSettings(ctx, &w.call); err != nil || s.UniqueETags {
		return false, false, err
	}
	return !isMD5(ctx, etag, w.body), false, ctx.Err()
}

// underMarker returns the newest fence record under a delete marker, nil if
// no version has one.
func (w *write) underMarker(ctx context.Context) (*Record, error) {
	for {
		lost, err := w.findFenced(ctx)
		if err == nil {
			return lost, nil
		}
		if classify(err) == final {
			return nil, w.refusal(ErrFenceLost, nil, fmt.Errorf("what stands under it can't be read: %w", err))
		}
		if err := w.pause(ctx, err); err != nil {
			return nil, fmt.Errorf("read what stands under a delete marker: %w", err)
		}
	}
}

func (w *write) findFenced(ctx context.Context) (*Record, error) {
	w.requests++
	listed := false
	for v, err := range w.g.store.Versions(ctx, w.key) {
		if err != nil {
			return nil, err
		}
		listed = true
		if v.DeleteMarker {
			continue
		}
		obj, err := w.head(ctx, w.key, HeadOptions{VersionID: v.ID})
		if errors.Is(err, ErrNotFound) {
			continue // removed since it was listed
		}
		if err != nil {
			return nil, err
		}
		if text := obj.Metadata[RecordKey]; text != "" {
			r, err := ParseRecord(text)
			if err != nil {
				return nil, w.refusal(ErrFenceLost, nil, fmt.Errorf("version %s: %w", v.ID, err))
			}
			return &r, nil
		}
	}
	if !listed {
		// Not even the marker: MinIO lists nothing for a key with a leading
		// slash. Not seeing a fenced version is no proof that there is none.
		return nil, w.refusal(ErrFenceLost, nil, errors.New("the store lists no versions of it"))
	}
	return nil, nil
}

// watchedBody knows how far it was read, and that reading it failed. A request
// that could not read its body to the end is no request that a store can take,
// whatever became of its answer; so after a failure the body is sealed, and what
// was not read by then is never sent.
type watchedBody struct {
	r    io.ReaderAt
	size int64

	mu     sync.Mutex
	end    int64 // of the last read; reading again from the start sets it back
	err    error
	sealed bool
}

var errSealed = errors.New("the write is over")

// ReadAt implements io.ReaderAt.
func (b *watchedBody) ReadAt(p []byte, off int64) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sealed {
		return 0, errSealed
	}
	n, err := b.r.ReadAt(p, off)
	b.end = off + int64(n)
	if err == io.EOF && b.end < b.size {
		err = fmt.Errorf("%w: it became shorter while it was read", io.ErrUnexpectedEOF)
	}
	if err != nil && err != io.EOF {
		b.err = err
	}
	return n, err
}

// seal ends all reading. It reports whether bytes are left unread, and the
// error of reading, if there was one.
func (b *watchedBody) seal() (unread bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sealed = true
	return b.end < b.size, b.err
}
