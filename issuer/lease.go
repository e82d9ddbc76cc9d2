package issuer

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/s3fence/s3fence/guard"
)

// What a [LeaseError] wraps, for errors.Is.
const (
	// ErrLeaseHeld: another owner holds the lease, and held it for as long as
	// we waited.
	ErrLeaseHeld = guard.ErrLeaseHeld
	// ErrLeaseLost: we held the lease and do so no longer.
	ErrLeaseLost = guard.ErrLeaseLost
)

// A LeaseStore keeps a scope's lease beside its counter: [DynamoDB] is one. The
// suite that every implementation must pass is in issuertest.
type LeaseStore interface {
	// Lease returns the scope's lease as it stands now, the zero LeaseRecord
	// where there never was one. A scope that has no counter is
	// [guard.ErrIssuerRefuses], unless its counter is made on use.
	Lease(ctx context.Context, scope string) (LeaseRecord, error)
	// SwapLease replaces the lease whose version is over, the zero one for none,
	// by next, in one atomic step. Where next has no token the step takes the
	// scope's next number too, and the errors are those of IssueAfter: a counter
	// that has claim's issuer id and stands below claim's number gives none. The
	// zero claim is none.
	//
	// It returns the lease that stands when it is done: with next's version when
	// it was replaced, also by an earlier request of this call whose answer was
	// lost, and another one when over did not stand. After any error the lease
	// may have been replaced, or may be yet.
	SwapLease(ctx context.Context, scope string, over guard.WriteID, next LeaseRecord, claim guard.Record) (LeaseRecord, error)
}

// A LeaseRecord is a lease as it is stored. Nothing compares its times: they are
// of the owner's clock, for people.
type LeaseRecord struct {
	// Owner says who holds it, in words.
	Owner string
	// Token is the number that was taken with the lease.
	Token guard.Token
	// Version is random and a new one at every change, heartbeats included.
	Version guard.WriteID
	// TTL is for how long the version must stand still before others may take
	// the lease, in whole milliseconds.
	TTL   time.Duration
	Since time.Time
	// Beat is when the last heartbeat was made.
	Beat time.Time
	// Released says that its owner gave it back.
	Released bool
}

// leaseJSON is the JSON of a LeaseRecord.
type leaseJSON struct {
	Owner    string      `json:"owner"`
	Token    guard.Token `json:"token"`
	Version  string      `json:"version"` // 32 hex digits
	TTL      int32       `json:"ttl_ms"`
	Since    time.Time   `json:"since"`
	Beat     time.Time   `json:"last_heartbeat"`
	Released bool        `json:"released,omitempty"`
}

// MarshalJSON implements json.Marshaler.
func (r LeaseRecord) MarshalJSON() ([]byte, error) {
	return json.Marshal(leaseJSON{r.Owner, r.Token, r.Version.String(), int32(r.TTL.Milliseconds()), r.Since.UTC(), r.Beat.UTC(), r.Released})
}

// UnmarshalJSON implements json.Unmarshaler. A lease without a token, a version
// or a TTL is an error.
func (r *LeaseRecord) UnmarshalJSON(b []byte) error {
	var j leaseJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	*r = LeaseRecord{Owner: j.Owner, Token: j.Token, TTL: time.Duration(j.TTL) * time.Millisecond, Since: j.Since, Beat: j.Beat, Released: j.Released}
	var err error
	if r.Version, err = guard.ParseWriteID(j.Version); err != nil {
		return fmt.Errorf("version: %w", err)
	}
	return r.check()
}

// check refuses what no owner wrote.
func (r LeaseRecord) check() error {
	switch {
	case r.Token.IsZero():
		return errors.New("it has no token")
	case r.Version.IsZero():
		return errors.New("it has no version")
	case r.TTL < MinLeaseTTL, r.TTL > MaxLeaseTTL:
		return fmt.Errorf("its ttl %v is not from %v to %v", r.TTL, MinLeaseTTL, MaxLeaseTTL)
	}
	return nil
}

// Free reports whether anybody may take the lease at once.
func (r LeaseRecord) Free() bool { return r.Version.IsZero() || r.Released }

// String names the owner, the token and since when.
func (r LeaseRecord) String() string {
	return fmt.Sprintf("%s with token %d since %s", r.Owner, r.Token.Number(), r.Since.UTC().Format(time.RFC3339))
}

// A LeaseError says who holds the lease that was not got, or how one was lost.
type LeaseError struct {
	// Reason is ErrLeaseHeld or ErrLeaseLost.
	Reason error
	Scope  string
	// Token is the one that came with the lost lease.
	Token guard.Token
	// Holder is the lease that stands, as far as it is known.
	Holder LeaseRecord
	Detail string
	Cures  []string
	// Err is the error behind it, if any.
	Err error
}

// Error names the scope, the holder and both tokens.
func (e *LeaseError) Error() string {
	s := e.Reason.Error() + ": scope " + e.Scope
	if !e.Token.IsZero() {
		s += fmt.Sprintf(", token %d", e.Token.Number())
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the reason and the error behind it.
func (e *LeaseError) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Reason}
	}
	return []error{e.Reason, e.Err}
}

const (
	// DefaultLeaseTTL is the TTL of a lease that nobody chose one for.
	DefaultLeaseTTL = 30 * time.Second
	// MinLeaseTTL leaves room for some heartbeats over a network.
	MinLeaseTTL = time.Second
	// MaxLeaseTTL bounds how long others wait for an owner that is gone.
	MaxLeaseTTL = 24 * time.Hour
	// MaxLeaseOwner is the longest owner, in bytes.
	MaxLeaseOwner = 256
)

// LeaseOptions say who acquires a lease and how. The zero value of each field
// but Owner means its default.
type LeaseOptions struct {
	// Owner says who this is, for people: host and process. It must be given;
	// two owners may have the same.
	Owner string
	// TTL is how long the lease outlives its last heartbeat, from MinLeaseTTL to
	// MaxLeaseTTL; a fraction of a millisecond is dropped. A heartbeat is made
	// every third of it. Default: DefaultLeaseTTL.
	TTL time.Duration
	// Wait is how long to wait for a lease that another holds. An owner of whom
	// no heartbeat has been seen may be gone, and is waited out beyond it: until
	// its lease moves, which refuses us, or has stood still for its TTL, which
	// lets us take it over. A live owner shows within a third of its TTL. A
	// negative Wait looks once. Default: 0.
	Wait time.Duration
	// Claimed returns the record of the scope's fence, nil where it was never
	// claimed, as [guard.Guard.Claimed] does. It is asked right before each try to
	// take the lease, and a counter that stands below the record has gone back and
	// gives no number, however often it is asked. Default: none is looked at.
	Claimed func(ctx context.Context, scope string) (*guard.Record, error)
	// Logger gets failed heartbeats as warnings, and waiting. Default: none.
	Logger *slog.Logger
	// Observer is told of the acquisition, each heartbeat and the release.
	// Default: none.
	Observer guard.Observer
	// Rand is where record versions come from. Default: crypto/rand.
	Rand io.Reader
}

func (o *LeaseOptions) check() error {
	if o.TTL == 0 {
		o.TTL = DefaultLeaseTTL
	}
	o.TTL = o.TTL.Truncate(time.Millisecond)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	switch {
	case o.Owner == "" || len(o.Owner) > MaxLeaseOwner:
		return fmt.Errorf("%w: a lease's owner is 1 to %d bytes long, this one %d", guard.ErrInvalid, MaxLeaseOwner, len(o.Owner))
	case o.TTL < MinLeaseTTL, o.TTL > MaxLeaseTTL:
		return fmt.Errorf("%w: a lease's TTL is from %v to %v, not %v", guard.ErrInvalid, MinLeaseTTL, MaxLeaseTTL, o.TTL)
	}
	return nil
}

// A Lease is held: from now on heartbeats renew it, until [Lease.Release], or
// until it is lost. It only chooses an owner. What keeps a former owner from
// writing is the token, which every write must carry.
type Lease struct {
	store LeaseStore
	scope string
	token guard.Token
	opts  LeaseOptions

	ctx    context.Context
	cancel context.CancelCauseFunc
	stop   context.CancelFunc // ends the heartbeats
	ended  chan struct{}      // they have

	mu       sync.Mutex // of Release
	released bool

	// The heartbeats' own, until they have ended.
	rec     LeaseRecord
	next    LeaseRecord // what the next heartbeat writes, or has tried to
	lastErr error
}

// Acquire takes the lease of scope and, in the same step, the scope's next
// number. A lease that is held by another can be taken over when its version
// has stood still for its whole TTL, by our own monotonic clock.
//
// ctx bounds the acquisition and is the parent of [Lease.Context]. The
// heartbeats go on after it is cancelled, since what winds down still owns the
// scope: every lease must be released.
//
// A lease that another holds is [ErrLeaseHeld], in a [*LeaseError], once
// [LeaseOptions].Wait is over and the lease has moved since we first looked: its
// owner lives. An option that can't be used is [guard.ErrInvalid], a counter
// that can't be counted on [guard.ErrIssuerRefuses], and a scope's fence that
// can't be a [*guard.Refusal]. Other errors are those of the store and of
// opts.Claimed, which are borne while there is time to wait, and ctx's. After an
// error no lease is held; one that a lost request may have taken is given back,
// or ends by itself after its TTL.
func Acquire(ctx context.Context, store LeaseStore, scope string, opts LeaseOptions) (*Lease, error) {
	if err := errors.Join(guard.CheckScope(scope), opts.check()); err != nil {
		return nil, err
	}
	a := acquisition{store: store, scope: scope, opts: opts, begun: time.Now(), tried: make(map[guard.WriteID]time.Time)}
	rec, since, err := a.observed(ctx)
	if err != nil {
		return nil, err
	}
	l := &Lease{store: store, scope: scope, token: rec.Token, opts: opts, rec: rec, ended: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancelCause(ctx)
	beats, stop := context.WithCancel(context.WithoutCancel(ctx))
	l.stop = stop
	go l.keep(beats, since)
	return l, nil
}

// An acquisition is one call of Acquire.
type acquisition struct {
	store LeaseStore
	scope string
	opts  LeaseOptions
	begun time.Time

	// tried holds the versions that we have tried to set, and since when. One
	// that is read later is ours: its answer was lost.
	tried    map[guard.WriteID]time.Time
	seen     LeaseRecord // as last read
	still    time.Time   // since when it has this version, as far as we saw
	looked   bool
	moved    bool // it had another version before: somebody lives
	failures int
}

// observed is acquire as an operation, and gives back what it may have taken
// when it fails.
func (a *acquisition) observed(ctx context.Context) (LeaseRecord, time.Time, error) {
	ctx, ended := a.opts.observe(ctx, guard.OpLeaseAcquire, a.scope, guard.Token{})
	rec, since, err := a.acquire(ctx)
	if err != nil {
		a.abandon(ctx)
		if !errors.As(err, new(*LeaseError)) {
			err = fmt.Errorf("acquire the lease of scope %s: %w", a.scope, err)
		}
	}
	ended(guard.Completion{Outcome: guard.Acquired, Token: rec.Token, Err: err})
	return rec, since, err
}

func (o *LeaseOptions) observe(ctx context.Context, op guard.Op, scope string, tok guard.Token) (context.Context, func(guard.Completion)) {
	return guard.Observe(ctx, o.Observer, o.Logger, guard.Operation{Op: op, Scope: scope, Token: tok})
}

// maxLeaseFailures bounds the errors in a row that are borne where there is no
// time to wait: enough to find out what became of a lost request. Where there was
// none the first error ends it: what gave it has tried often enough.
const maxLeaseFailures = 3

// acquire returns the lease, and since when it is valid.
func (a *acquisition) acquire(ctx context.Context) (LeaseRecord, time.Time, error) {
	for {
		rec, since, err := a.try(ctx)
		switch {
		case ctx.Err() != nil && rec.Version.IsZero():
			return rec, since, a.interrupted(ctx.Err())
		case err == nil && !rec.Version.IsZero():
			return rec, since, nil
		case err == nil:
			a.failures = 0
		case !a.looked, errors.Is(err, guard.ErrIssuerRefuses), errors.Is(err, guard.ErrInvalid), errors.As(err, new(*guard.Refusal)):
			return rec, since, err
		default:
			a.failures++
			a.opts.Logger.WarnContext(ctx, "lease not acquired yet", "scope", a.scope, "error", err)
		}
		wait := a.opts.Wait - time.Since(a.begun)
		perhapsGone := a.opts.Wait >= 0 && !a.moved && !a.seen.Free()
		if perhapsGone {
			wait = max(wait, time.Until(a.still.Add(a.seen.TTL)))
		}
		if wait <= 0 && a.failures == 0 && !perhapsGone {
			return rec, since, a.held()
		}
		if wait <= 0 && (a.failures >= maxLeaseFailures || a.failures > 0 && len(a.tried) == 0) {
			return rec, since, err
		}
		if err := a.pause(ctx, wait); err != nil {
			return rec, since, a.interrupted(err)
		}
	}
}

// try looks at the lease, and takes it if it may. It returns the zero record
// when another holds it.
func (a *acquisition) try(ctx context.Context) (LeaseRecord, time.Time, error) {
	standing, err := a.store.Lease(ctx, a.scope)
	if err != nil {
		return LeaseRecord{}, time.Time{}, err
	}
	for {
		a.note(standing)
		tried, ours := a.tried[a.seen.Version]
		switch {
		case ours && !a.seen.Released && time.Since(tried) < a.opts.TTL/3:
			return a.seen, tried, nil
		case ours, a.seen.Free(), time.Since(a.still) >= a.seen.TTL:
		default:
			a.opts.Logger.DebugContext(ctx, "lease is held", "scope", a.scope, "by", a.seen.String())
			return LeaseRecord{}, time.Time{}, nil
		}
		version, err := guard.NewWriteID(a.opts.Rand)
		if err != nil {
			return LeaseRecord{}, time.Time{}, err
		}
		claim, err := a.claim(ctx)
		if err != nil {
			return LeaseRecord{}, time.Time{}, err
		}
		now := time.Now()
		a.tried[version] = now
		standing, err = a.store.SwapLease(ctx, a.scope, a.seen.Version, LeaseRecord{
			Owner: a.opts.Owner, Version: version, TTL: a.opts.TTL, Since: now, Beat: now,
		}, claim)
		if err != nil {
			return LeaseRecord{}, time.Time{}, err
		}
		if standing.Version == version {
			return standing, now, nil
		}
		delete(a.tried, version) // what it was to replace is gone for good
	}
}

// claim returns the scope's fence as it is now, zero for none.
func (a *acquisition) claim(ctx context.Context) (guard.Record, error) {
	if a.opts.Claimed == nil {
		return guard.Record{}, nil
	}
	r, err := a.opts.Claimed(ctx, a.scope)
	if r == nil || err != nil {
		return guard.Record{}, err
	}
	return *r, nil
}

// note takes in what was read. A version's time begins when it was first seen,
// which is after it was written.
func (a *acquisition) note(standing LeaseRecord) {
	if !a.looked || standing.Version != a.seen.Version {
		a.still = time.Now()
		a.moved = a.looked
	}
	a.looked, a.seen = true, standing
}

// pause waits until it is worth looking again. All who wait for one lease would
// otherwise look at once.
func (a *acquisition) pause(ctx context.Context, wait time.Duration) error {
	const shortest, longest = 20 * time.Millisecond, 2 * time.Second
	d := min(max(a.seen.TTL/10, shortest), longest)
	d = d/2 + mathrand.N(d/2)
	if !a.seen.Free() && a.failures == 0 {
		d = min(d, time.Until(a.still.Add(a.seen.TTL)))
	}
	if wait > 0 {
		d = min(d, wait)
	}
	return sleep(ctx, d)
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// WatchLease looks on, for at most the TTL of scope's lease, until its version
// moves, as that of one that somebody holds does. It returns the lease that it
// saw last. One that is free does not move. Errors are the store's, and ctx's.
func WatchLease(ctx context.Context, store LeaseStore, scope string) (r LeaseRecord, moves bool, err error) {
	first, err := store.Lease(ctx, scope)
	still := time.Now()
	for r = first; err == nil; r, err = store.Lease(ctx, scope) {
		left := first.TTL - time.Since(still)
		if r.Free() || r.Version != first.Version || left <= 0 {
			return r, !r.Free() && r.Version != first.Version, nil
		}
		if err := sleep(ctx, min(left, time.Second)); err != nil {
			return r, false, err
		}
	}
	return LeaseRecord{}, false, err
}

// interrupted is the error of a wait that ctx ended.
func (a *acquisition) interrupted(err error) error {
	if a.seen.Free() {
		return err
	}
	return fmt.Errorf("%w while %s held it", err, a.seen)
}

// held is who held the lease when we last looked.
func (a *acquisition) held() error {
	cure := fmt.Sprintf("its owner lives: the lease moved while we looked on; that of an owner who is gone is taken over once it has stood still for %v", a.seen.TTL)
	if !a.moved {
		cure = fmt.Sprintf("an owner who is gone is waited out, for at most %v, unless --wait is negative; does it live? s3fence lease show --scope %s --watch", a.seen.TTL, a.scope)
	}
	return &LeaseError{
		Reason: ErrLeaseHeld, Scope: a.scope, Holder: a.seen, Detail: "by " + a.seen.String(),
		Cures: []string{"wait for it: --wait DURATION", cure},
	}
}

// abandon gives back what a request took whose answer we did not get. One try
// is enough: the lease ends by itself.
func (a *acquisition) abandon(ctx context.Context) {
	if len(a.tried) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	rec, err := a.store.Lease(ctx, a.scope)
	if _, ours := a.tried[rec.Version]; err == nil && ours && !rec.Released {
		over := rec.Version
		rec.Released = true
		if rec.Version, err = guard.NewWriteID(a.opts.Rand); err == nil {
			_, err = a.store.SwapLease(ctx, a.scope, over, rec, guard.Record{})
		}
	}
	if err != nil {
		a.opts.Logger.WarnContext(ctx, "the lease may have been taken, and then ends by itself", "scope", a.scope, "after", a.opts.TTL, "error", err)
	}
}

// Token returns the token that was taken with the lease.
func (l *Lease) Token() guard.Token { return l.token }

// Context is cancelled when the lease is lost, with a [*LeaseError] of
// [ErrLeaseLost] as its cause: another owner's record was found, or no heartbeat
// was accepted for nine tenths of the TTL, counted from the start of the last
// one that was, so that we stop before others may take over. It is cancelled by
// Release too, and with the context that was given to [Acquire].
//
// The clock is the machine's monotonic one, which may stand still while the
// machine sleeps; then the loss shows at the first heartbeat after.
func (l *Lease) Context() context.Context { return l.ctx }

// valid is how long the lease is good for after the start of a heartbeat. The
// rest of the TTL makes up for clocks that run at different speeds.
func (l *Lease) valid() time.Duration { return l.opts.TTL - l.opts.TTL/10 }

// keep renews the lease, which is valid since then.
func (l *Lease) keep(ctx context.Context, since time.Time) {
	defer close(l.ended)
	// A timer of its own: a store that does not come back from a heartbeat
	// must not keep the loss from being noticed.
	var mu sync.Mutex
	failed := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		l.lastErr = err
	}
	expiry := time.AfterFunc(l.valid()-time.Since(since), func() {
		mu.Lock()
		defer mu.Unlock()
		l.lose(LeaseRecord{}, fmt.Sprintf("no heartbeat was accepted for %v", l.valid()), l.lastErr)
	})
	defer expiry.Stop()
	beat := since.Add(l.opts.TTL / 3)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(beat)):
		}
		standing, begun, err := l.beat(ctx)
		switch {
		case ctx.Err() != nil && (err != nil || standing.Version != l.next.Version):
			return
		case err != nil:
			failed(err)
			l.opts.Logger.WarnContext(ctx, "heartbeat failed", "scope", l.scope, "token", l.token.Number(), "error", err)
			beat = time.Now().Add(l.opts.TTL / 12)
		case standing.Version != l.next.Version:
			l.lose(standing, "", nil)
			return
		default:
			failed(nil)
			l.rec, l.next = l.next, LeaseRecord{}
			expiry.Reset(l.valid() - time.Since(begun))
			beat = begun.Add(l.opts.TTL / 3)
		}
	}
}

// beat makes one heartbeat, or the last one again if it isn't known what became
// of it: then the lease is good from the first try on, for that may be the one
// that landed.
func (l *Lease) beat(ctx context.Context) (standing LeaseRecord, begun time.Time, err error) {
	if l.next.Version.IsZero() {
		version, err := guard.NewWriteID(l.opts.Rand)
		if err != nil {
			return standing, begun, err
		}
		l.next = l.rec
		l.next.Version, l.next.Beat = version, time.Now()
	}
	// One that hangs leaves time for another.
	ctx, cancel := context.WithTimeout(ctx, l.opts.TTL/3)
	defer cancel()
	ctx, ended := l.opts.observe(ctx, guard.OpLeaseRenew, l.scope, l.token)
	standing, err = l.store.SwapLease(ctx, l.scope, l.rec.Version, l.next, guard.Record{})
	done := guard.Completion{Outcome: guard.Renewed, Err: err}
	if err == nil && standing.Version != l.next.Version {
		done.Err = l.lost(standing, "", nil)
	}
	ended(done)
	return standing, l.next.Beat, err
}

// lose cancels the holder's context.
func (l *Lease) lose(standing LeaseRecord, detail string, err error) {
	lost := l.lost(standing, detail, err)
	l.cancel(lost)
	l.stop()
	_, ended := l.opts.observe(l.ctx, guard.OpLeaseLost, l.scope, l.token)
	ended(guard.Completion{Err: lost})
}

func (l *Lease) lost(standing LeaseRecord, detail string, err error) error {
	switch {
	case detail != "":
	case standing.Version.IsZero():
		detail = "its record is gone: the counter was made anew"
	case standing.Token == l.token:
		detail = "its record was changed by another program"
	default:
		detail = "taken over by " + standing.String()
	}
	return &LeaseError{
		Reason: ErrLeaseLost, Scope: l.scope, Token: l.token, Holder: standing, Detail: detail, Err: err,
		Cures: []string{"begin again, with a new lease and its token"},
	}
}

var errReleased = errors.New("lease released")

// Release ends the heartbeats and gives the lease back, so that others need not
// wait for its TTL to pass. What held the lease must have stopped before. The
// record stays, and numbers go on from it. A lease that is released or taken
// over already is fine. After an error the lease ends by itself, or another
// call gives it back.
func (l *Lease) Release(ctx context.Context) error {
	l.stop()
	<-l.ended
	l.cancel(errReleased)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.released {
		return nil
	}
	ctx, ended := l.opts.observe(ctx, guard.OpLeaseRelease, l.scope, l.token)
	err := l.release(ctx)
	ended(guard.Completion{Outcome: guard.Released, Err: err})
	l.released = err == nil
	return err
}

func (l *Lease) release(ctx context.Context) error {
	next := l.rec
	next.Released = true
	var err error
	if next.Version, err = guard.NewWriteID(l.opts.Rand); err != nil {
		return err
	}
	standing, err := l.store.SwapLease(ctx, l.scope, l.rec.Version, next, guard.Record{})
	if err == nil && standing.Version == l.next.Version && !standing.Version.IsZero() {
		// The last heartbeat landed, and its answer was lost.
		_, err = l.store.SwapLease(ctx, l.scope, l.next.Version, next, guard.Record{})
	}
	if err != nil {
		return fmt.Errorf("release the lease of scope %s: %w", l.scope, err)
	}
	return nil
}
