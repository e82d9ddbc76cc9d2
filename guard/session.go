package guard

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// SessionOptions refine a Session. The zero value of each field means its default.
type SessionOptions struct {
	// NoClaim leaves the scope fence alone: for workers that share a scope in
	// parallel. Default: the session claims the scope.
	NoClaim bool
	// LastSequence is that of the last write that was made under the token
	// before. Default: 0, there was none.
	LastSequence int64
}

// A Session is one owner's time with a scope: one token, and a sequence that
// counts its writes, so that it may write a key many times. It is safe for
// concurrent use; writes of one key wait for each other, and the one that
// began later stands in the end. It holds nothing that needs closing.
type Session struct {
	g   *Guard
	tok Token

	mu   sync.Mutex
	last int64
	busy map[string]*keyLock
}

// OpenSession takes a token of scope from iss and claims the scope with it.
//
// The scope fence is read before the token is taken: a counter that then gives
// a number at or below the one it had given before has gone back (it was
// restored from a backup, or made anew), which is [ErrIssuerRefuses]. A claim
// that a newer owner came before is [ErrStale]. Other errors are those of the
// issuer and of [Guard.Claim].
func (g *Guard) OpenSession(ctx context.Context, iss Issuer, scope string, opts *SessionOptions) (*Session, error) {
	tok, err := g.Issue(ctx, iss, scope)
	if err != nil {
		return nil, err
	}
	return g.ResumeSession(ctx, tok, opts)
}

// ResumeSession is OpenSession with a token that the caller holds already.
func (g *Guard) ResumeSession(ctx context.Context, tok Token, opts *SessionOptions) (*Session, error) {
	var o SessionOptions
	if opts != nil {
		o = *opts
	}
	switch {
	case tok.IsZero():
		return nil, fmt.Errorf("open a session: %w", ErrMissingToken)
	case o.LastSequence < 0 || o.LastSequence >= MaxSequence:
		return nil, invalid("the last sequence %d is not from 0 to %d", o.LastSequence, int64(MaxSequence-1))
	}
	if !o.NoClaim {
		if _, err := g.Claim(ctx, tok, nil); err != nil {
			return nil, err
		}
	}
	return &Session{g: g, tok: tok, last: o.LastSequence, busy: make(map[string]*keyLock)}, nil
}

// A ClaimedIssuer is an Issuer that can hold its counter against a claim before
// it takes a number, so that asking a counter that went back, again and again,
// does not lead it past the claim.
type ClaimedIssuer interface {
	Issuer
	// IssueAfter is Issue for claim's scope, whose counter gave claim's number. It
	// takes no number from a counter that has claim's issuer id and stands below
	// that: it has gone back, which is ErrIssuerRefuses.
	IssueAfter(ctx context.Context, claim Record) (Token, error)
}

// Issue takes a token of scope from iss, and holds it against the scope fence,
// which has seen the numbers that the counter gave before: one at or below that
// is [ErrIssuerRefuses], one of another counter [ErrIssuerMismatch]. Other
// errors are the issuer's, and those of reading the scope fence.
func (g *Guard) Issue(ctx context.Context, iss Issuer, scope string) (Token, error) {
	return g.issuing(ctx, scope, func(ctx context.Context) (Token, error) { return g.issue(ctx, iss, scope) })
}

// IssueFor takes the token of an event from iss (see [EventIssuer]), without a
// look at the scope fence: workers don't claim. Errors are the issuer's.
func (g *Guard) IssueFor(ctx context.Context, iss EventIssuer, scope, event string) (Token, error) {
	return g.issuing(ctx, scope, func(ctx context.Context) (Token, error) { return iss.IssueFor(ctx, scope, event) })
}

// issuing runs issue as an operation.
func (g *Guard) issuing(ctx context.Context, scope string, issue func(context.Context) (Token, error)) (Token, error) {
	ctx, ended := Observe(ctx, g.observer, g.log, Operation{Op: OpIssue, Scope: scope})
	tok, err := issue(ctx)
	ended(Completion{Outcome: Issued, Token: tok, Held: refusedBy(err), Err: err})
	return tok, err
}

func (g *Guard) issue(ctx context.Context, iss Issuer, scope string) (Token, error) {
	if err := CheckScope(scope); err != nil {
		return Token{}, err
	}
	f := g.scopes
	// Before the token is taken: what is claimed after that may well be higher.
	claim, err := f.latest(ctx, scope)
	if err != nil {
		return Token{}, err
	}
	if claim == nil {
		return iss.Issue(ctx, scope)
	}
	var tok Token
	if c, ok := iss.(ClaimedIssuer); ok {
		tok, err = c.IssueAfter(ctx, *claim)
	} else {
		tok, err = iss.Issue(ctx, scope)
	}
	if err != nil {
		return Token{}, err
	}
	key := ScopeFenceKey(f.root, scope)
	r := &Refusal{
		Key: key, URL: f.guard.store.URL(key), Claim: claim,
		Offered: Record{Issuer: tok.issuer, Scope: scope, Number: tok.number, Sequence: 1},
	}
	switch {
	case tok.scope != scope:
		return Token{}, invalid("the issuer gave a token of scope %s for scope %s", tok.scope, scope)
	case claim.Issuer != tok.issuer:
		r.Reason, r.Cures = ErrIssuerMismatch, otherCounter(*claim)
	case tok.number <= claim.Number:
		r.Reason = ErrIssuerRefuses
		r.Detail = fmt.Sprintf("it gave %d, and %s was given and claimed before: its counter has gone back", tok.number, claim.Fence())
		r.Cures = []string{"raise the counter above every number that it gave" + reconcile(scope)}
	default:
		return tok, nil
	}
	return Token{}, r
}

// otherCounter is what can be done where a scope is claimed with another
// counter's number.
func otherCounter(claim Record) []string {
	return []string{
		"the scope's counter is another one: point --issuer at the one that gave " + claim.Fence().String(),
		"or it was made anew, and the counter before it is gone for good: give it back its id, above every number that it gave" + reconcile(claim.Scope),
	}
}

// reconcile is the command that mends a scope's counter. It finds the highest
// number only where it looks.
func reconcile(scope string) string {
	return ", with a --scan for each place that the scope writes to: s3fence token reconcile --scope " + scope + " --scan s3://BUCKET/PREFIX"
}

// Token returns the session's token.
func (s *Session) Token() Token { return s.tok }

// LastSequence returns the sequence of the write that began last, 0 before the
// first.
func (s *Session) LastSequence() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// Put is [Guard.Put] with the session's token and its next sequence; opts must
// not name another.
func (s *Session) Put(ctx context.Context, key string, body Body, opts *PutOptions) (Result, error) {
	var o PutOptions
	if opts != nil {
		o = *opts
	}
	var res Result
	err := s.next(ctx, key, &o.Sequence, func() (err error) {
		res, err = s.g.Put(ctx, s.tok, key, body, &o)
		return err
	})
	return res, err
}

// Delete is [Guard.Delete] with the session's token and its next sequence;
// opts must not name another.
func (s *Session) Delete(ctx context.Context, key string, opts *DeleteOptions) (Result, error) {
	var o DeleteOptions
	if opts != nil {
		o = *opts
	}
	var res Result
	err := s.next(ctx, key, &o.Sequence, func() (err error) {
		res, err = s.g.Delete(ctx, s.tok, key, &o)
		return err
	})
	return res, err
}

// Adopt is [Guard.Adopt] with the session's token and its next sequence; opts
// must not name another.
func (s *Session) Adopt(ctx context.Context, key string, opts *AdoptOptions) (Result, error) {
	var o AdoptOptions
	if opts != nil {
		o = *opts
	}
	var res Result
	err := s.next(ctx, key, &o.Sequence, func() (err error) {
		res, err = s.g.Adopt(ctx, s.tok, key, &o)
		return err
	})
	return res, err
}

// next runs one write of key, with no other of the session at the same time: a
// sequence that was counted later must not come first.
func (s *Session) next(ctx context.Context, key string, sequence *int64, do func() error) error {
	if *sequence != 0 {
		return invalid("a session counts the sequence itself: leave it 0, not %d", *sequence)
	}
	unlock, err := s.lock(ctx, key)
	if err != nil {
		return err
	}
	defer unlock()
	s.mu.Lock()
	if s.last >= MaxSequence {
		s.mu.Unlock()
		return fmt.Errorf("%w: take a fresh token", errSequenceSpent)
	}
	s.last++
	*sequence = s.last
	s.mu.Unlock()
	return do()
}

var errSequenceSpent = errors.Join(ErrInvalid, errors.New("the token's last sequence is used up"))

// A keyLock is held by the one write of its key; waiting counts those who want it.
type keyLock struct {
	held    chan struct{}
	waiting int
}

func (s *Session) lock(ctx context.Context, key string) (unlock func(), err error) {
	s.mu.Lock()
	l := s.busy[key]
	if l == nil {
		l = &keyLock{held: make(chan struct{}, 1)}
		s.busy[key] = l
	}
	l.waiting++
	s.mu.Unlock()
	leave := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if l.waiting--; l.waiting == 0 {
			delete(s.busy, key)
		}
	}
	select {
	case l.held <- struct{}{}:
		return func() { <-l.held; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
