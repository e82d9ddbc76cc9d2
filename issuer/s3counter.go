package issuer

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	mathrand "math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/s3fence/s3fence/guard"
)

// S3 issues tokens from one object per scope, under compare-and-swap: a
// [guard.Issuer] for those who have an object store and no DynamoDB. It is safe
// for concurrent use.
//
// It takes one request for a token, two when another process took one since.
// Callers of one process queue up, and all that wait get their numbers from one
// request. Processes that go for one scope at once get in each other's way:
// where tokens are taken many times a second, use DynamoDB.
//
// The store must honour If-Match and If-None-Match, which nothing here proves:
// package s3store/probe does.
type S3 struct {
	store   guard.Store
	prefix  string
	rand    io.Reader
	backoff func(n int) time.Duration

	mu     sync.Mutex
	scopes map[string]*s3Scope
}

// NewS3 returns an issuer whose counters are the objects
// <prefix>/.s3fence/counters/<scope>.json of store. It makes no request.
func NewS3(store guard.Store, prefix string) *S3 {
	return &S3{store: store, prefix: prefix, rand: rand.Reader, backoff: jitter, scopes: make(map[string]*s3Scope)}
}

// jitter spreads the whole delay at random: without that, contenders meet
// again and again.
func jitter(n int) time.Duration {
	return mathrand.N(min(10*time.Millisecond<<min(n-1, 10), time.Second))
}

// counterState is the JSON of a counter. Fields that it does not know are kept.
type counterState struct {
	Format int    `json:"s3fence_counter"`
	Scope  string `json:"scope"`
	Issuer string `json:"issuer"` // id, 16 hex digits
	Number int64  `json:"number"` // the last one given
	// URL is where the counter was made: a copy of it gives no numbers.
	URL string `json:"url"`
	// Nonce is that of the write. It makes the bytes unique, so that no ETag
	// comes back, and tells whether a write whose answer was lost was made.
	Nonce string `json:"nonce"`

	rest map[string]json.RawMessage
}

// counterFormat rises when a reader of the old one would get it wrong.
const counterFormat = 1

// maxCounterSize bounds what is read of an object that should be a counter.
const maxCounterSize = 64 << 10

// MarshalJSON implements json.Marshaler.
func (c counterState) MarshalJSON() ([]byte, error) {
	type plain counterState
	b, err := json.Marshal(plain(c))
	if err != nil || len(c.rest) == 0 {
		return b, err
	}
	all := maps.Clone(c.rest)
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, err
	}
	return json.Marshal(all)
}

// UnmarshalJSON implements json.Unmarshaler. A field that is missing is an
// error: it is never taken for zero.
func (c *counterState) UnmarshalJSON(b []byte) error {
	type plain counterState
	if err := json.Unmarshal(b, (*plain)(c)); err != nil {
		return err
	}
	if err := json.Unmarshal(b, &c.rest); err != nil {
		return err
	}
	for f := range reflect.TypeFor[counterState]().Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if _, ok := c.rest[name]; !ok && f.IsExported() && options == "" {
			return fmt.Errorf("it has no %q", name)
		}
		delete(c.rest, name)
	}
	return nil
}

// s3Scope is what this process knows of a scope.
type s3Scope struct {
	turn chan struct{} // a lock that a context can stop waiting for

	// Under turn.
	known counter
	last  glance // what this process wrote last

	mu      sync.Mutex
	waiting []*waiter
}

// A glance is what stood at a counter's key.
type glance struct {
	looked bool
	exists bool
	marker bool // the newest version is a delete marker
	etag   string
	state  counterState
	err    error // the state is damaged
}

// A waiter is a caller who wants a number.
type waiter struct {
	ctx   context.Context
	claim guard.Record // zero for none
	done  chan issued
}

type issued struct {
	token guard.Token
	err   error
}

func (s *S3) of(scope string) *s3Scope {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.scopes[scope]
	if c == nil {
		c = &s3Scope{turn: make(chan struct{}, 1)}
		s.scopes[scope] = c
	}
	return c
}

// Issue takes the next number of scope. It implements [guard.Issuer].
//
// It refuses, with an [*Error], when the scope has no counter, when the
// counter was deleted around the guard or copied from elsewhere, when it was
// replaced while this process held the old one, and when it went back.
func (s *S3) Issue(ctx context.Context, scope string) (guard.Token, error) {
	return s.issue(ctx, scope, guard.Record{})
}

// IssueAfter implements [guard.ClaimedIssuer], with the same requests.
func (s *S3) IssueAfter(ctx context.Context, claim guard.Record) (guard.Token, error) {
	return s.issue(ctx, claim.Scope, claim)
}

func (s *S3) issue(ctx context.Context, scope string, claim guard.Record) (guard.Token, error) {
	if err := guard.CheckScope(scope); err != nil {
		return guard.Token{}, err
	}
	if err := ctx.Err(); err != nil {
		return guard.Token{}, err
	}
	c := s.of(scope)
	me := &waiter{ctx, claim, make(chan issued, 1)}
	c.wait(me)
	select {
	case i := <-me.done:
		return i.token, i.err
	case <-ctx.Done():
		return guard.Token{}, ctx.Err()
	case c.turn <- struct{}{}:
	}
	defer func() { <-c.turn }()
	select {
	case i := <-me.done: // by the one whose turn it was before
		return i.token, i.err
	default:
	}

	group := c.take()
	behind := func(st counterState) error {
		for _, w := range group {
			if err := s.behind(st, w.claim); err != nil {
				return err
			}
		}
		return nil
	}
	if behind(c.last.state) != nil {
		c.last = glance{} // what this process wrote last may stand no longer
	}
	state, err := s.swap(ctx, scope, c, s.counting(scope, c, func(st *counterState) error {
		if err := behind(*st); err != nil {
			return err
		}
		if st.Number > math.MaxInt64-int64(len(group)) {
			return s.refuse(scope, nil, fmt.Sprintf("the counter has reached %d, and the last number is %d", st.Number, int64(math.MaxInt64)),
				"use another scope, for new keys")
		}
		st.Number += int64(len(group))
		return nil
	}))
	if err != nil && ctx.Err() != nil {
		// That was the end of one caller's patience, not of the others'.
		c.wait(group...)
		return guard.Token{}, err
	}
	var id guard.IssuerID
	if err == nil {
		id, err = guard.ParseIssuerID(state.Issuer)
	}
	for i, w := range group {
		if err != nil {
			w.done <- issued{err: err}
			continue
		}
		tok, err := guard.NewToken(id, scope, state.Number-int64(len(group)-1-i))
		w.done <- issued{tok, err}
	}
	i := <-me.done
	return i.token, i.err
}

// behind refuses a counter that stands below a claim of its own.
func (s *S3) behind(st counterState, claim guard.Record) error {
	if claim.Issuer.String() == st.Issuer && st.Number < claim.Number {
		return Behind(s.source(), st.Number, claim)
	}
	return nil
}

func (c *s3Scope) wait(w ...*waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, w...)
}

// take takes on all who wait still.
func (c *s3Scope) take() (group []*waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.waiting {
		if w.ctx.Err() == nil {
			group = append(group, w)
		}
	}
	c.waiting = nil
	return group
}

// CreateScope makes the scope's counter with a fresh issuer id. An existing
// counter is never reset: its id is returned, and created is false. One that
// was deleted around the guard is refused, where the bucket keeps versions.
func (s *S3) CreateScope(ctx context.Context, scope string) (id guard.IssuerID, created bool, err error) {
	if err := guard.CheckScope(scope); err != nil {
		return id, false, err
	}
	fresh, err := guard.NewIssuerID(s.rand)
	if err != nil {
		return id, false, err
	}
	c := s.of(scope)
	if err := c.lock(ctx); err != nil {
		return id, false, err
	}
	defer c.unlock()
	c.last = glance{} // to look whether it is there, and not what it was
	state, err := s.swap(ctx, scope, c, func(at glance) (counterState, error) {
		if !at.exists && !at.marker && c.known.issuer == (guard.IssuerID{}) {
			return s.state(scope, fresh, 0), nil
		}
		if err := s.judge(scope, c, at); err != nil {
			return counterState{}, err
		}
		return at.state, errUnchanged
	})
	if err != nil {
		return id, false, err
	}
	id, err = guard.ParseIssuerID(state.Issuer)
	return id, id == fresh, err
}

func (s *S3) state(scope string, id guard.IssuerID, number int64) counterState {
	return counterState{Format: counterFormat, Scope: scope, Issuer: id.String(), Number: number, URL: s.store.URL(s.key(scope))}
}

// Peek returns the issuer id of the scope's counter and the last number that it
// gave, 0 for none. It takes no number.
//
// It tells what stands there, also of a counter that [S3.Issue] refuses because
// it may have gone back. It refuses, with an [*Error], when the scope has no
// counter, or a damaged one.
func (s *S3) Peek(ctx context.Context, scope string) (guard.IssuerID, int64, error) {
	if err := guard.CheckScope(scope); err != nil {
		return guard.IssuerID{}, 0, err
	}
	failures := 0
	at, err := s.look(ctx, scope, &failures)
	if err != nil {
		return guard.IssuerID{}, 0, err
	}
	if err := s.whole(scope, at); err != nil {
		return guard.IssuerID{}, 0, err
	}
	id, err := guard.ParseIssuerID(at.state.Issuer)
	return id, at.state.Number, err
}

// Reconcile implements [Reconciler]. It also binds the counter to where it is.
//
// It refuses, with an [*Error], a damaged counter, and one that is gone where
// o names no issuer id.
func (s *S3) Reconcile(ctx context.Context, scope string, o ReconcileOptions) (Reconciled, error) {
	if err := o.Check(scope); err != nil {
		return Reconciled{}, err
	}
	c := s.of(scope)
	if err := c.lock(ctx); err != nil {
		return Reconciled{}, err
	}
	defer c.unlock()
	c.last = glance{}
	var r Reconciled
	state, err := s.swap(ctx, scope, c, func(at glance) (st counterState, err error) {
		var before *Counter
		moved := false
		if at.exists {
			if err := s.whole(scope, at); err != nil {
				return st, err
			}
			st, moved = at.state, at.state.URL != s.store.URL(s.key(scope))
			before = &Counter{Number: st.Number}
			before.Issuer, _ = guard.ParseIssuerID(st.Issuer) // whole has read it
		}
		if r, err = o.plan(before, moved, c.known); err != nil {
			away := ""
			if at.marker {
				away = "remove its delete marker and all versions of it"
			}
			return st, s.refuse(scope, nil, err.Error(), unknownCounter(scope, away)...)
		}
		if !r.Changed || o.DryRun {
			return st, errUnchanged
		}
		next := s.state(scope, r.After.Issuer, r.After.Number)
		next.rest = st.rest
		return next, nil
	})
	if err != nil {
		return Reconciled{}, err
	}
	if !o.DryRun {
		c.known = counter{r.After.Issuer, max(r.After.Number, state.Number)}
	}
	return r, nil
}

// update changes the counter of scope with one conditional write. fn gets what
// it holds, may be called again, and changes nothing with an error, which is
// returned as it is. What was written is returned.
func (s *S3) update(ctx context.Context, scope string, fn func(*counterState) error) (counterState, error) {
	c := s.of(scope)
	if err := c.lock(ctx); err != nil {
		return counterState{}, err
	}
	defer c.unlock()
	return s.swap(ctx, scope, c, s.counting(scope, c, fn))
}

func (c *s3Scope) lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case c.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *s3Scope) unlock() { <-c.turn }

// counting makes fn a change of a counter that can be counted on.
func (s *S3) counting(scope string, c *s3Scope, fn func(*counterState) error) func(glance) (counterState, error) {
	return func(at glance) (counterState, error) {
		if err := s.judge(scope, c, at); err != nil {
			return counterState{}, err
		}
		st := at.state
		st.rest = maps.Clone(st.rest)
		err := fn(&st) // before st is copied
		return st, err
	}
}

// errUnchanged is the end of a change that writes nothing.
var errUnchanged = errors.New("unchanged")

// swap makes the counter what change makes of it, with one conditional write,
// and finds out what became of that when its answer is lost. The caller has
// c's turn.
func (s *S3) swap(ctx context.Context, scope string, c *s3Scope, change func(glance) (counterState, error)) (counterState, error) {
	at := c.last
	c.last = glance{} // until it is known again
	var from glance
	var sent *counterState // made of from; what became of it is not known
	failures, lost := 0, 0
	for {
		if !at.looked {
			var err error
			if at, err = s.look(ctx, scope, &failures); err != nil {
				return counterState{}, err
			}
			if sent != nil && at.exists && at.state.Nonce == sent.Nonce {
				return s.settle(c, at), nil
			}
		}
		same := sent != nil && at.exists == from.exists && at.etag == from.etag
		if !same {
			next, err := change(at)
			if errors.Is(err, errUnchanged) {
				return next, nil
			}
			if err != nil {
				return counterState{}, err
			}
			nonce, err := guard.NewWriteID(s.rand)
			if err != nil {
				return counterState{}, err
			}
			next.Nonce = nonce.String()
			from, sent = at, &next
		}
		// What may be under way already is sent again with the same bytes, so
		// that it is one write whichever of the two comes first.
		res, err := s.put(ctx, scope, from, *sent)
		if err == nil {
			return s.settle(c, glance{looked: true, exists: true, etag: res.ETag, state: *sent}), nil
		}
		at = glance{}
		if errors.Is(err, guard.ErrPreconditionFailed) && !same {
			lost++ // to somebody who wrote: somebody always gets on
			err = s.sleep(ctx, lost, err)
		} else {
			err = s.pause(ctx, &failures, err)
		}
		if err != nil {
			return counterState{}, fmt.Errorf("write the counter of scope %s: %w", scope, err)
		}
	}
}

// settle takes in that the counter is as a write of ours made it.
func (s *S3) settle(c *s3Scope, at glance) counterState {
	if at.etag != "" {
		c.last = at
	}
	id, _ := guard.ParseIssuerID(at.state.Issuer) // it was read, or made, before
	c.known = counter{id, at.state.Number}
	return at.state
}

func (s *S3) put(ctx context.Context, scope string, from glance, st counterState) (guard.PutResult, error) {
	body, err := json.Marshal(st)
	if err != nil {
		return guard.PutResult{}, err
	}
	cond := guard.IfAbsent()
	if from.exists {
		cond = guard.IfMatch(from.etag)
	}
	guard.CountRequest(ctx)
	return s.store.Put(ctx, s.key(scope), guard.PutRequest{
		Condition: cond, Body: guard.Bytes(append(body, '\n')), Headers: guard.Headers{ContentType: "application/json"},
	})
}

// look reads what stands there now.
func (s *S3) look(ctx context.Context, scope string, failures *int) (glance, error) {
	for {
		if err := ctx.Err(); err != nil {
			return glance{}, err
		}
		guard.CountRequest(ctx)
		obj, body, err := s.store.Get(ctx, s.key(scope), guard.ReadOptions{})
		if errors.Is(err, guard.ErrNotFound) {
			// Not every store tells of a delete marker when it is asked for bytes.
			guard.CountRequest(ctx)
			if obj, err = s.store.Head(ctx, s.key(scope), guard.HeadOptions{}); errors.Is(err, guard.ErrNotFound) {
				return glance{looked: true, marker: obj.DeleteMarker}, nil
			}
			if err == nil {
				err = errors.New("it was made while it was looked at")
			}
		}
		var text []byte
		if err == nil {
			text, err = io.ReadAll(io.LimitReader(body, maxCounterSize))
			err = errors.Join(err, body.Close())
		}
		if err == nil {
			at := glance{looked: true, exists: true, etag: obj.ETag}
			at.err = json.Unmarshal(text, &at.state)
			return at, nil
		}
		if err := s.pause(ctx, failures, err); err != nil {
			return glance{}, fmt.Errorf("read the counter of scope %s: %w", scope, err)
		}
	}
}

// pause waits after a request that failed. It returns the error when there
// shall be no other.
func (s *S3) pause(ctx context.Context, failures *int, err error) error {
	if errors.Is(err, guard.ErrUnsupported) {
		return fmt.Errorf("%w: it has no conditional writes: %w", guard.ErrStoreUnsafe, err)
	}
	for _, final := range []error{guard.ErrNoBucket, guard.ErrDenied, guard.ErrRejected} {
		if errors.Is(err, final) {
			return err
		}
	}
	if *failures++; *failures >= maxFailures {
		return fmt.Errorf("gave up after %d failed attempts: %w", *failures, err)
	}
	return s.sleep(ctx, *failures, err)
}

func (s *S3) sleep(ctx context.Context, n int, cause error) error {
	t := time.NewTimer(s.backoff(n))
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err()
	case <-ctx.Done():
		return fmt.Errorf("%w (before that: %w)", ctx.Err(), cause)
	}
}

// whole refuses what is no counter, or a damaged one.
func (s *S3) whole(scope string, at glance) error {
	st := at.state
	damaged := func(err error, detail string) error {
		return s.refuse(scope, err, detail,
			"bring back its newest version that is whole, then "+raise(scope),
			"or delete it, and make it again above its numbers"+byReconcile(scope))
	}
	switch {
	case at.marker:
		return s.refuse(scope, nil, "its counter was deleted around the guard",
			"remove the delete marker, which brings it back", "or "+makeAgain(scope))
	case !at.exists:
		return s.refuse(scope, nil, "it has no counter", "make it: s3fence init --scope "+scope, makeAgain(scope))
	case at.err != nil:
		return damaged(at.err, "the counter is damaged")
	case st.Format != counterFormat:
		return s.refuse(scope, nil, fmt.Sprintf("the counter has format %d and this s3fence knows %d", st.Format, counterFormat), "use a newer s3fence")
	case st.Scope != scope:
		return damaged(nil, "it is the counter of scope "+st.Scope)
	case st.Number < 0:
		return damaged(nil, fmt.Sprintf("the counter holds %d, which is no number from 0 to 2^63-1", st.Number))
	}
	if _, err := guard.ParseIssuerID(st.Issuer); err != nil {
		return damaged(err, "the counter's issuer id is damaged")
	}
	return nil
}

// judge refuses a counter that can't be counted on, and takes in one that can.
func (s *S3) judge(scope string, c *s3Scope, at glance) error {
	if !at.exists && c.known.issuer != (guard.IssuerID{}) {
		return s.refuse(scope, nil, fmt.Sprintf("its counter is gone: it had given %d", c.known.last), makeAgain(scope))
	}
	if err := s.whole(scope, at); err != nil {
		return err
	}
	st := at.state
	id, err := guard.ParseIssuerID(st.Issuer)
	url := s.store.URL(s.key(scope))
	switch {
	case err != nil:
		return err
	case st.URL != url:
		return s.refuse(scope, nil, fmt.Sprintf("the counter was made at %s, and this is %s: it was restored or copied, so it may have gone back", st.URL, url), raise(scope))
	case c.known.issuer != guard.IssuerID{} && c.known.issuer != id:
		return s.refuse(scope, nil, fmt.Sprintf("the counter was made anew: its issuer id was %s and is %s", c.known.issuer, id), giveBack(scope))
	case st.Number < c.known.last:
		return s.refuse(scope, nil, wentBack(st.Number, c.known.last), raise(scope))
	}
	c.known = counter{id, st.Number}
	return nil
}

func (s *S3) key(scope string) string { return guard.ScopeKey(s.prefix, "counters", scope) }

func (s *S3) refuse(scope string, err error, detail string, cures ...string) error {
	return &Error{Source: s.source(), Scope: scope, Detail: detail, Cures: cures, Err: err}
}

func (s *S3) source() string { return strings.TrimSuffix(s.store.URL(s.prefix), "/") }
