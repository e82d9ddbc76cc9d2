package guard

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
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
	// PartSize is about how many bytes the parts of a large body have. Default:
	// [DefaultPartSize]. Either grows where [MaxParts] of that size would not do.
	PartSize int64
	// Concurrency is how many parts are sent at once. Default: [DefaultConcurrency].
	Concurrency int
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
	// Removed: a tombstone is there now.
	Removed Outcome = "deleted"
	// Adopted: the object is under the guard now.
	Adopted Outcome = "adopted"
	// AlreadyFenced: the object to adopt was under the guard already.
	AlreadyFenced Outcome = "already-fenced"
	// Claimed: the scope is the token's now.
	Claimed Outcome = "claimed"
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
	// Requests made to the store, failed ones included; not those that read the
	// scope fence or the store's profile, which many writes share.
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
// What can't be written at all is [ErrInvalid], a key under .s3fence/ among it:
// what lies there is the guard's own ([IsOwn]).
//
// A body of [DefaultPartSize] twice or more is sent as a multipart upload, and
// so is one of 6 MiB or more that replaces an object where the ETag of a single
// part could come back: the boundaries of the parts make it unique. The object
// is looked at while the parts are sent, and once more before they become the
// object, so that an upload that is too late ends early. No part is left behind
// when Put returns, but after the end of this process. Bodies are at most
// [MaxObject] bytes. The rules are in docs/protocol.md.
func (g *Guard) Put(ctx context.Context, tok Token, key string, body Body, opts *PutOptions) (Result, error) {
	var o PutOptions
	if opts != nil {
		o = *opts
	}
	return g.write(ctx, tok, key, "put", &write{opts: o, body: body})
}

// write runs w with tok and names what it was in the error.
func (g *Guard) write(ctx context.Context, tok Token, key, verb string, w *write) (Result, error) {
	url := g.store.URL(key)
	if w.opts.DryRun {
		return g.writeOnce(ctx, tok, key, url, verb, w)
	}
	ctx, ended := Observe(ctx, g.observer, g.log, Operation{Op: w.operation(), Scope: tok.scope, URL: url, Token: tok})
	res, err := g.writeOnce(ctx, tok, key, url, verb, w)
	ended(Completion{Outcome: res.Outcome, Result: res, Held: refusedBy(err), Requests: res.Requests, Err: err})
	return res, err
}

func (g *Guard) writeOnce(ctx context.Context, tok Token, key, url, verb string, w *write) (Result, error) {
	w.call, w.key = call{g: g}, key
	if w.opts.Sequence == 0 {
		w.opts.Sequence = 1
	}
	res := Result{Key: key, URL: url, Bytes: w.body.Size()}
	w.res = &res
	fail := func(err error) (Result, error) { return res, naming(verb, res.URL, err) }
	if tok.IsZero() {
		return res, &Refusal{Reason: ErrMissingToken, Key: key, URL: res.URL,
			Cures: []string{"take a token from an issuer, or give the one you hold"}}
	}
	// The caller's write id may be another process's too, for other bytes.
	// Where the bytes carry it, they can't be other ones.
	// Those of a stream are not known yet.
	w.compareBytes = !w.opts.WriteID.IsZero() && w.kind == putting && !w.own && w.sender == nil
	if w.opts.WriteID.IsZero() {
		id, err := NewWriteID(g.rand)
		if err != nil {
			return fail(err)
		}
		w.opts.WriteID = id
	}
	res.Record = Record{
		Issuer: tok.issuer, Scope: tok.scope, Number: tok.number,
		Sequence: w.opts.Sequence, WriteID: w.opts.WriteID, State: Live,
	}
	if w.kind == deleting {
		res.Record.State = Deleted
	}
	if w.bytes != nil {
		w.body = Bytes(w.bytes(res.Record))
		res.Bytes = w.body.Size()
	}
	if w.sender == nil {
		w.sender = &upload{}
	}
	if err := w.check(); err != nil {
		return fail(err)
	}
	err := w.run(ctx)
	var refusal *Refusal
	if err != nil && !errors.As(err, &refusal) {
		return fail(err)
	}
	if w.op == OpClaim && err == nil && res.Outcome != AlreadyApplied {
		res.Outcome = Claimed
	}
	return res, err
}

// A write is one logical write on its way through the engine.
type write struct {
	call
	key  string
	body Body
	opts PutOptions
	kind kind
	// op is what observers are told it is. Default: what kind says.
	op Op
	// sender makes the requests. Default: an upload of body.
	sender sender
	// bytes, if set, makes the body of the guard's own bytes.
	bytes func(Record) []byte
	// evenAbsent, from and recover are those of an offer.
	evenAbsent bool
	from       IssuerID
	recover    bool
	// compareBytes: the write id is the caller's, so that another process may
	// have used it for other bytes.
	compareBytes bool
	// own: the bytes carry the write id, so no other write has their ETag.
	own bool
	// internal: one of the guard's own objects, which is under no scope fence, and
	// needs no profile of the store but for that of claimant.
	internal bool
	claimant *Guard
	// lost is the error of a request whose outcome is unknown. It stays set:
	// such a request may still land later.
	lost error
	res  *Result
	// aside counts the requests that are made beside the engine's own.
	aside atomic.Int64
}

func (w *write) operation() Op {
	switch {
	case w.op != "":
		return w.op
	case w.kind == deleting:
		return OpDelete
	case w.kind == adopting:
		return OpAdopt
	}
	return OpPut
}

func (w *write) check() error {
	if err := CheckKey(w.key); err != nil {
		return err
	}
	if !w.internal && IsOwn(w.key) {
		return invalid("the key %q lies under %s, which is s3fence's own: choose another", w.key, OwnPrefix)
	}
	if s := w.opts.Sequence; s < 1 || s > MaxSequence {
		return invalid("sequence %d is not from 1 to %d", s, int64(MaxSequence))
	}
	if n := w.body.Size(); n < 0 || n > MaxObject {
		return invalid("the body is %d bytes; an object takes at most %d", n, int64(MaxObject))
	}
	if n := w.opts.PartSize; n != 0 && (n < MinPart || n > MaxSinglePart) {
		return invalid("a part size of %d bytes is not from %d to %d", n, int64(MinPart), int64(MaxSinglePart))
	}
	if w.opts.Concurrency < 0 {
		return invalid("%d parts can't be sent at once", w.opts.Concurrency)
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
	defer func() { w.res.Requests += w.requests + int(w.aside.Load()) }()
	if err := w.proven(ctx); err != nil {
		return err
	}
	defer w.sender.close(ctx, w)
	defer w.readClaimAhead(ctx)()
	seen, err := w.firstSight(ctx)
	for {
		if err != nil {
			return w.settle(err)
		}
		v, err := w.decide(ctx, seen)
		if err == nil && (v.action == create || v.action == replace) {
			v, err = w.decideClaim(ctx, &seen)
		}
		if err != nil {
			return w.settle(err)
		}
		switch v.action {
		case refuse:
			return w.settle(w.refused(v))
		case missing:
			return w.settle(w.missing(v))
		case applied, fenced:
			w.res.Outcome, w.res.ETag = AlreadyApplied, strings.Trim(seen.etag, `"`)
			if v.action == fenced {
				w.res.Outcome, w.res.Previous = AlreadyFenced, v.held
			} else {
				w.rememberApplied(ctx, seen)
			}
			return nil
		}
		if err := ctx.Err(); err != nil {
			return w.settle(err)
		}
		var took bool
		if w.opts.DryRun {
			if err = w.sender.rehearse(ctx, w, v, seen); err == nil {
				w.res.Outcome, w.res.Previous = v.outcome(w.kind), v.held
				return nil
			}
		} else {
			took, err = w.sender.prepare(ctx, w, v, seen)
		}
		if err == nil && took {
			seen, err = w.observe(ctx)
			if err != nil {
				return w.settle(err)
			}
			continue // that took a while: decide by what is there now
		}
		var answer PutResult
		if err == nil {
			answer, err = w.sender.send(ctx, w, v, seen)
		}
		if err == nil {
			w.done(ctx, v, seen, answer)
			return nil
		}
		if seen, err = w.lookAgain(ctx, seen, err); err != nil {
			return w.settle(err)
		}
	}
}

// glance looks whether the write is still one to go on with. It returns the
// refusal if not, and the error if it can't be told.
func (w *write) glance(ctx context.Context) error {
	seen, err := w.observe(ctx)
	if err != nil {
		return err
	}
	v, err := w.decideClaim(ctx, &seen)
	if err == nil && v.action == refuse {
		err = w.refused(v)
	}
	return err
}

// proven refuses to write to a store that the profile source does not vouch for.
func (w *write) proven(ctx context.Context) error {
	g := w.g
	if w.internal {
		g = w.claimant
	}
	if g == nil {
		return nil
	}
	err := g.proven(ctx, &w.call)
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
	o := offer{
		record: w.res.Record, kind: w.kind, createOnly: w.opts.CreateOnly,
		evenAbsent: w.evenAbsent, from: w.from, recover: w.recover,
	}
	v := decide(o, seen)
	if v.action != replace || w.own || w.opts.AcceptRepeatableETag || w.sender.salts(w, seen) || w.g.provenUnique(w.opts.SSE) {
		return v, nil
	}
	unique, err := w.uniqueETag(ctx)
	o.repeatableETag = !unique
	return decide(o, seen), err
}

// uniqueETag reports whether the bucket gives this write an ETag of its own.
func (w *write) uniqueETag(ctx context.Context) (bool, error) {
	if w.g.provenUnique(w.opts.SSE) {
		return true, nil
	}
	s, err := w.g.bucketSettings(ctx, &w.call)
	return s.UniqueETags || w.opts.SSE == "" && w.g.provenUnique(s.DefaultSSE), err
}

// decideClaim decides again with a fresh reading of the scope fence: its
// limits are those of [Guard.Claim].
func (w *write) decideClaim(ctx context.Context, seen *sighting) (v verdict, err error) {
	if !w.internal {
		if seen.claim, err = w.g.scopes.claim(ctx, &w.call, w.res.Record.Scope); err != nil {
			return v, err
		}
	}
	return w.decide(ctx, *seen)
}

// readClaimAhead reads the scope fence while the object is observed, if a
// reading is due, and returns what ends that.
func (w *write) readClaimAhead(ctx context.Context) (stop func()) {
	if w.internal {
		return func() {}
	}
	return w.g.scopes.ahead(ctx, w.res.Record.Scope)
}

// uniqueSSE reports whether objects encrypted so get an ETag that is not a
// hash of their bytes.
func uniqueSSE(sse string) bool { return sse == "aws:kms" || sse == "aws:kms:dsse" }

// lookAgain is what follows a request that was not answered with success:
// wait where that helps, and observe. The error is final.
func (w *write) lookAgain(ctx context.Context, before sighting, cause error) (sighting, error) {
	w.forgetETag(ctx)
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
		switch {
		case r.Claim != nil:
			// It says nothing of the object, where our write may yet land.
		case r.Reason == ErrStale:
			r.MayHaveApplied = true
			return r
		case r.Reason == ErrReplayed || r.Reason == ErrExists || r.Reason == ErrRepeatableETag:
			// Over our write, these others could not have come to be there.
			return r
		}
	}
	if !errors.Is(err, w.lost) {
		err = fmt.Errorf("%w (after a lost answer: %w)", err, w.lost)
	}
	return w.refusal(ErrOutcomeUnknown, nil, err)
}

// refused is the error of a verdict that refuses.
func (w *write) refused(v verdict) *Refusal {
	r := w.refusal(v.reason, v.held, nil)
	r.Claim = v.claim
	switch {
	case v.claim != nil && v.reason == ErrIssuerMismatch:
		r.Cures = otherCounter(*v.claim)
	case v.reason == ErrReplayed:
		if c := w.knownClaim(); c != nil && decide(offer{record: w.res.Record}, sighting{claim: c}).reason == ErrStale {
			r.Cures = []string{"a newer owner has claimed the scope with " + c.Fence().String() + ": stop, or start over with a fresh token"}
		}
	}
	return r
}

// knownClaim is the scope fence, as far as it was read lately.
func (w *write) knownClaim() *Record {
	if w.internal {
		return nil
	}
	f := w.g.scopes
	c, _ := f.of(w.res.Record.Scope).fresh(f.maxAge)
	return c
}

// missing is the error where there is nothing to do it to.
func (w *write) missing(v verdict) error {
	if v.held != nil {
		return fmt.Errorf("%w: deleted already, with token %s (scope %s)", ErrNotFound, v.held.Fence(), v.held.Scope)
	}
	return ErrNotFound
}

// refusal is the error for reason, with its cures.
func (w *write) refusal(reason Reason, held *Record, err error) *Refusal {
	r := &Refusal{Reason: reason, Key: w.key, URL: w.res.URL, Offered: w.res.Record, Held: held, Err: err}
	switch reason {
	case ErrStale:
		r.Cures = []string{"a newer owner has written: stop, or start over with a fresh token"}
		if held != nil && held.Number == r.Offered.Number && held.Scope == r.Offered.Scope && held.Issuer == r.Offered.Issuer {
			r.Cures = []string{"a later write under this token is there already; what it writes at the same time to one key has no order"}
		}
	case ErrReplayed:
		r.Cures = []string{
			"to write again under one token, number the writes with the sequence",
			"to run one write again, give it the same write id each time",
		}
	case ErrUnfenced:
		r.Detail = "it was written around the guard, or before there was one"
		r.Cures = []string{"bring it under the guard, bytes and headers unchanged: s3fence adopt " + w.res.URL}
	case ErrCorruptRecord:
		r.Detail = "metadata " + RecordKey + " was edited or cut"
		r.Cures = []string{
			"find out what it was, and who changed it: s3fence audit " + w.res.URL,
			"then copy the object onto itself without that metadata (where versions are kept, remove those that have it), and bring it under the guard: s3fence adopt " + w.res.URL,
		}
	case ErrScopeMismatch:
		r.Cures = []string{
			"write it under its own scope: --scope " + held.Scope,
			"or take it over, if nobody writes under that one any more: " + w.takeOver(*held),
		}
	case ErrIssuerMismatch:
		if held != nil { // else it is the scope fence that refuses
			r.Cures = []string{
				"point --issuer at the counter that gave " + held.Fence().String(),
				"or take it over, if nobody writes with that one's tokens any more: " + w.takeOver(*held),
			}
		}
	case ErrFenceLost:
		r.Detail = "it was deleted, or set back to an older version, around the guard"
		r.Cures = []string{"bring it back under a fresh token: s3fence adopt --recover " + w.res.URL}
	case ErrRepeatableETag:
		r.Detail = "the same bytes would get the same ETag again, and a paused older writer could pass its If-Match"
		kms := "encrypt with SSE-KMS (--sse aws:kms), or make that the bucket's default"
		switch p := w.g.profile.known.Load(); {
		case p == nil, p.ETagKinds["aws:kms"] == ETagUnique:
		case p.ETagKinds["aws:kms"] == ETagRepeatable:
			r.Detail = "by its profile the store does so under SSE-KMS, too; " + r.Detail
			kms = "use a store, or a version of it, whose ETags are unique, and prove it: s3fence doctor --save"
		default:
			kms = "give the store a KMS, which it did not have when it was proven, and encrypt with SSE-KMS (--sse aws:kms)"
		}
		r.Cures = []string{
			kms,
			"write to a key that is not there yet",
			"accept it for this write (--accept-repeatable-etag)",
		}
	case ErrStoreUnsafe:
		r.Detail = "it lacks something that this write needs, and nothing was written without it"
	case ErrOutcomeUnknown:
		r.Cures = []string{"run it again with the same token, sequence and write id " + w.res.Record.WriteID.String() +
			": it is recognised if it was applied"}
	}
	if !w.internal {
		return r
	}
	switch reason { // What can't be adopted.
	case ErrUnfenced, ErrCorruptRecord, ErrFenceLost, ErrScopeMismatch:
		r.Cures = ownCures
	case ErrIssuerMismatch:
		r.Cures = otherCounter(*held)
	}
	return r
}

// takeOver is the command that adopts an object of another counter.
func (w *write) takeOver(held Record) string {
	return "s3fence adopt --from-issuer " + held.Issuer.String() + " --scope " + w.res.Record.Scope + " " + w.res.URL
}

// ownCures is what can be done about one of s3fence's own objects that was
// changed around the guard. One that is gone is made anew, with a higher number.
var ownCures = []string{
	"undo it: where versions are kept, remove that version or the delete marker; else remove the object, which is made anew",
}

// done fills the result of a write that the store took.
func (w *write) done(ctx context.Context, v verdict, seen sighting, answer PutResult) {
	res := w.res
	res.Outcome, res.Previous = v.outcome(w.kind), v.held
	res.ETag, res.VersionID = strings.Trim(answer.ETag, `"`), answer.VersionID
	// Look at what came back, not at what was asked: a store that ignores the
	// encryption header answers with the MD5 of the bytes.
	salted := w.sender.salted()
	believed := uniqueSSE(answer.SSE) || uniqueSSE(w.opts.SSE) || w.g.knownUnique() ||
		v.action == replace && !w.opts.AcceptRepeatableETag && w.kind != adopting && !salted
	res.ETagKind = etagKind(res.ETag, believed)
	switch {
	case w.own:
		believed, res.ETagKind = false, ETagUnique // of these bytes, which nobody else writes
	case salted && !believed:
		res.ETagKind = ETagSalted
	}
	if believed && isMD5(ctx, res.ETag, w.body) {
		res.ETagKind = ETagRepeatable
	}
	if w.kind == adopting && v.action == replace && answer.ETag == seen.etag {
		w.g.log.WarnContext(ctx, "the object was adopted under the ETag that it had", "url", res.URL, "etag", res.ETag)
	}
	switch {
	case believed && res.ETagKind == ETagRepeatable:
		w.g.log.WarnContext(ctx, "the store was believed to give unique ETags, but this one is the MD5 of the bytes",
			"url", res.URL, "etag", res.ETag, "sse_asked", w.opts.SSE, "sse_answered", answer.SSE)
	case w.opts.AcceptRepeatableETag && v.action == replace && res.ETagKind == ETagRepeatable:
		w.g.log.WarnContext(ctx, "replaced under a repeatable ETag, as accepted", "url", res.URL, "etag", res.ETag)
	}
	now := Remembered{Record: res.Record}
	if believed && res.ETagKind == ETagUnique || salted {
		// One that can come back may be another write's by the time it is used.
		now.ETag = answer.ETag
	}
	w.remember(ctx, now)
}

// rememberApplied remembers of a write that was found to be there what [write.done]
// would have.
func (w *write) rememberApplied(ctx context.Context, seen sighting) {
	if w.own || w.opts.DryRun {
		return
	}
	now := Remembered{Record: w.res.Record}
	read := w.body.Size() == seen.object.Size // a stream that was not has no bytes to compare
	if read && (w.g.knownUnique() || w.g.provenUnique(seen.object.SSE)) && !isMD5(ctx, strings.Trim(seen.etag, `"`), w.body) {
		now.ETag = seen.etag
	}
	w.remember(ctx, now)
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

// firstSight is what the write starts from: what is remembered of the last one,
// the caller's hint, or an observation.
func (w *write) firstSight(ctx context.Context) (sighting, error) {
	if w.kind != adopting && !w.opts.DryRun {
		// Good for a request that the store can refuse, and for nothing else: it
		// may be long out of date.
		if last := w.recall(ctx); last.ETag != "" {
			if v, err := w.decide(ctx, last.sighting()); err == nil && v.action == replace {
				return last.sighting(), nil
			}
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
	before := w.recall(ctx) // before the look: what is newer than it proves nothing
	obj, err := w.head(ctx, w.key, HeadOptions{})
	if errors.Is(err, ErrNotFound) {
		seen := sighting{}
		switch {
		case obj.DeleteMarker:
			seen.lost, seen.object, err = w.underMarker(ctx)
		case before.known() && w.res.Record.sameCounter(before.Record) && w.res.Record.Fence().Compare(before.Record.Fence()) <= 0:
			// The bucket forgot this number; we did not.
			seen.lost, err = &before.Record, nil
		default:
			err = nil
		}
		return seen, err
	}
	if err != nil {
		return sighting{}, fmt.Errorf("observe the object: %w", err)
	}
	seen := sighting{exists: true, etag: obj.ETag, record: obj.Metadata[RecordKey], object: obj}
	if seen.etag == "" {
		return seen, w.refusal(ErrStoreUnsafe, nil, errors.New("HEAD answered without an ETag"))
	}
	switch {
	case w.kind == adopting && !w.recover && seen.record == "" && obj.VersionID != "":
		if seen.lost, _, err = w.highestVersion(ctx); err != nil {
			return seen, err
		}
	case before.known() || w.recover:
		if seen.lost, err = w.setBack(ctx, seen, before.Record); err != nil {
			return seen, err
		}
	}
	if w.compareBytes && seen.record == w.res.Record.String() {
		var moved bool
		if seen.differs, moved, err = w.differs(ctx, obj); moved {
			return w.observe(ctx)
		}
	}
	return seen, err
}

// setBack returns the highest record that the key is known to have had, if
// that is higher than the one it has: an older version was brought back around
// the guard. known is what is remembered. The versions are looked
// through only for a recovery.
func (w *write) setBack(ctx context.Context, seen sighting, known Record) (*Record, error) {
	var highest *Record
	if known.Number > 0 && known.sameCounter(w.res.Record) {
		highest = &known
	}
	held, err := ParseRecord(seen.record)
	if err != nil && !w.recover {
		return nil, nil // overwritten around the guard: that is a refusal of its own
	}
	if w.recover {
		found, _, err := w.highestVersion(ctx)
		if err != nil {
			return nil, err
		}
		if found != nil && (highest == nil || found.sameCounter(*highest) && found.Fence().Compare(highest.Fence()) > 0) {
			highest = found
		}
	}
	if highest == nil || held.Number > 0 && (!held.sameCounter(*highest) || held.Fence().Compare(highest.Fence()) >= 0) {
		return nil, nil
	}
	if w.recover || w.res.Record.Fence().Compare(highest.Fence()) <= 0 {
		return highest, nil
	}
	// With a number above all that was lost, the write mends what happened. Only
	// where versions are kept is there something to look into first.
	if s, err := w.g.bucketSettings(ctx, &w.call); err != nil || s.Versioning == VersioningOn {
		return highest, err
	}
	w.g.log.WarnContext(ctx, "the object was set back around the guard", "url", w.res.URL, "was", highest.Fence(), "is", held.Fence())
	return nil, nil
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
	case settled(err):
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

// underMarker returns the highest fence record under a delete marker, nil if
// no version has one, and the newest version that is an object.
func (w *write) underMarker(ctx context.Context) (*Record, Object, error) {
	for {
		lost, newest, err := w.highestVersion(ctx)
		if err == nil {
			return lost, newest, nil
		}
		if settled(err) {
			return nil, newest, w.refusal(ErrFenceLost, nil, fmt.Errorf("what stands under it can't be read: %w", err))
		}
		if err := w.pause(ctx, err); err != nil {
			return nil, newest, fmt.Errorf("read what stands under a delete marker: %w", err)
		}
	}
}

// highestVersion looks through the versions of the key: to the first fenced one
// where that is enough to refuse, through all of them for an adoption.
func (w *write) highestVersion(ctx context.Context) (highest *Record, newest Object, err error) {
	w.requests++
	listed := false
	for v, err := range Versions(ctx, w.g.store, w.key) {
		if err != nil {
			return nil, newest, err
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
			return nil, newest, err
		}
		if newest.ETag == "" {
			newest = obj
			if newest.VersionID == "" {
				newest.VersionID = v.ID
			}
		}
		text := obj.Metadata[RecordKey]
		if text == "" {
			continue
		}
		r, err := ParseRecord(text)
		if err != nil {
			return nil, newest, w.refusal(ErrFenceLost, nil, fmt.Errorf("version %s: %w", v.ID, err))
		}
		switch {
		case highest == nil:
			highest = &r
		case highest.sameCounter(r) && r.Fence().Compare(highest.Fence()) > 0:
			highest = &r
		case !highest.sameCounter(r) && r.sameCounter(w.res.Record):
			highest = &r // of the numbers that the offered one can be compared with
		}
		if !w.recover && w.kind != adopting {
			break
		}
	}
	if !listed {
		// Not even the marker: MinIO lists nothing for a key with a leading
		// slash. Not seeing a fenced version is no proof that there is none.
		return nil, newest, w.refusal(ErrFenceLost, nil, errors.New("the store lists no versions of it"))
	}
	return highest, newest, nil
}
