package guard

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"sync/atomic"
	"time"
)

// Options of a Guard. The zero value of each field means its default.
type Options struct {
	// Logger gets each attempt and each operation at debug level, those that were
	// refused at info level, and warnings when a store does not do what it was
	// believed to do. Never bodies, never credentials. Default: none.
	Logger *slog.Logger
	// Observer is told of each operation. Default: none.
	Observer Observer
	// MaxAttempts bounds how often one call meets an error that may pass
	// (no answer, 5xx, conflict) before it gives up. Default: 10.
	MaxAttempts int
	// Backoff returns how long to wait after the n-th such error, n from 1.
	// Default: a random time up to 50 ms doubled each time, at most 5 s.
	Backoff func(n int) time.Duration
	// Rand is where write ids come from. Default: crypto/rand.
	Rand io.Reader
	// Profile says what was proven of the store. It is asked before the first
	// write, not by New, and what it said is kept; a store that it does not
	// vouch for is not written to ([ErrStoreUnsafe]). Its requests are not
	// counted in a Result. Default: none; the caller vouches for the store.
	Profile ProfileSource
	// Root is the prefix of s3fence's own objects: <root>/.s3fence/. Everyone
	// who writes under one scope must use the same. Default: none, the top of
	// the bucket.
	Root string
	// RootStore is the bucket that Root is in. Default: the guarded one.
	RootStore Store
	// FenceMaxAge is how old a reading of the scope fence may be when a write
	// relies on it, on the monotonic clock. Default: [DefaultFenceMaxAge].
	// [EveryWrite] reads it before each write.
	FenceMaxAge time.Duration
	// Memory keeps what was written last, from run to run where it outlives the
	// process. It must be that of the guarded bucket. Default: in this process,
	// of some 65,000 keys.
	Memory Memory
}

// A Guard makes fenced writes to one Store. It is safe for concurrent use and
// makes no request until it is asked to do something.
type Guard struct {
	store       Store
	log         *slog.Logger
	observer    Observer
	maxAttempts int
	backoff     func(int) time.Duration
	rand        io.Reader
	memory      Memory

	scopes *scopeFences

	// noUploadChecksum: the store begins multipart uploads only without one.
	noUploadChecksum atomic.Bool

	settings fact[Settings]
	source   ProfileSource
	profile  fact[Profile]
}

// New returns a Guard over store. opts may be nil.
func New(store Store, opts *Options) *Guard {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.MaxAttempts <= 0 {
		o.MaxAttempts = 10
	}
	if o.Backoff == nil {
		o.Backoff = jitter
	}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	if o.Memory == nil {
		o.Memory = &processMemory{}
	}
	g := &Guard{
		store:       store,
		log:         o.Logger,
		observer:    o.Observer,
		maxAttempts: o.MaxAttempts,
		backoff:     o.Backoff,
		rand:        o.Rand,
		memory:      o.Memory,
		source:      o.Profile,
		settings:    newFact[Settings](),
		profile:     newFact[Profile](),
	}
	g.scopes = newScopeFences(g, o)
	return g
}

// jitter spreads the whole delay at random: without that, contenders for one
// object meet again and again.
func jitter(n int) time.Duration {
	return mathrand.N(min(50*time.Millisecond<<min(n-1, 10), 5*time.Second))
}

// A fact about the store is asked for once, when a decision first hangs on it.
// Reading a known one takes no lock, so that no write waits for another's
// question, and none at all where nobody has asked.
type fact[T any] struct {
	known  atomic.Pointer[T]
	asking chan struct{} // a lock that a context can stop waiting for
}

func newFact[T any]() fact[T] { return fact[T]{asking: make(chan struct{}, 1)} }

// get returns the fact, and asks for it while errors may pass.
func (f *fact[T]) get(ctx context.Context, c *call, ask func(context.Context) (T, error)) (*T, error) {
	if v := f.known.Load(); v != nil {
		return v, nil
	}
	select {
	case f.asking <- struct{}{}:
		defer func() { <-f.asking }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for {
		if v := f.known.Load(); v != nil {
			return v, nil
		}
		v, err := ask(ctx)
		if err == nil {
			f.known.Store(&v)
			return &v, nil
		}
		if err := c.pause(ctx, err); err != nil {
			return nil, err
		}
	}
}

// bucketSettings asks the store once and remembers the answer.
func (g *Guard) bucketSettings(ctx context.Context, c *call) (Settings, error) {
	s, err := g.settings.get(ctx, c, func(ctx context.Context) (Settings, error) {
		s, err := g.store.Settings(ctx)
		c.requests += s.Requests
		if err != nil {
			return s, fmt.Errorf("read the bucket's settings: %w", err)
		}
		p := g.profile.known.Load()
		s.UniqueETags = s.UniqueETags || p != nil && p.UniqueETags
		return s, nil
	})
	if err != nil {
		return Settings{}, err
	}
	return *s, nil
}

// knownUnique reports whether it is known already that every ETag is unique.
func (g *Guard) knownUnique() bool {
	s, p := g.settings.known.Load(), g.profile.known.Load()
	return s != nil && s.UniqueETags || p != nil && p.UniqueETags
}

// outcome classes of a store's error: the one retry policy.
type class int

const (
	// final: nothing changed, and asking again changes nothing either.
	final class = iota
	// moved: nothing changed, but the object did: look and decide again.
	moved
	// again: nothing changed; ask again after a while.
	again
	// unknown: the store may or may not have done it.
	unknown
)

func classify(err error) class {
	var refusal *Refusal
	var over *gaveUp
	switch {
	case errors.As(err, &refusal), errors.As(err, &over):
		return final
	case errors.Is(err, ErrNoBucket), errors.Is(err, ErrDenied),
		errors.Is(err, ErrUnsupported), errors.Is(err, ErrRejected), errors.Is(err, ErrInvalid):
		return final
	case errors.Is(err, ErrPreconditionFailed), errors.Is(err, ErrNotFound), errors.Is(err, ErrNoUpload):
		return moved
	case errors.Is(err, ErrConflict), errors.Is(err, ErrNotSent):
		return again
	}
	return unknown
}

// settled reports whether err is the store's last word, and not only the end
// of our patience.
func settled(err error) bool {
	var over *gaveUp
	return err != nil && classify(err) == final && !errors.As(err, &over)
}

// A call is the state that one call of the Guard carries through its requests.
type call struct {
	g        *Guard
	requests int
	failures int
}

// pause waits before another attempt after cause. It returns an error when
// there shall be none: cause itself when it can't pass or has come too often,
// or the context's error.
func (c *call) pause(ctx context.Context, cause error) error {
	if err := ctx.Err(); err != nil {
		return canceled(err, cause)
	}
	if classify(cause) == final {
		return cause
	}
	c.failures++
	c.g.log.DebugContext(ctx, "request failed", "failures", c.failures, "error", cause)
	if c.failures >= c.g.maxAttempts {
		return &gaveUp{c.failures, cause}
	}
	t := time.NewTimer(c.g.backoff(c.failures))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return canceled(ctx.Err(), cause)
	}
}

// gaveUp ends the attempts of one request, and of all that it is a part of.
type gaveUp struct {
	attempts int
	err      error
}

func (g *gaveUp) Error() string {
	if g.attempts == 1 {
		return g.err.Error()
	}
	return fmt.Sprintf("gave up after %d failed attempts: %v", g.attempts, g.err)
}

func (g *gaveUp) Unwrap() error { return g.err }

// canceled keeps what the store said before the context ended, unless that
// was only the context's end again.
func canceled(err, cause error) error {
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w (before that: %w)", err, cause)
}

// head observes an object, asking again after errors that may pass. Absent is
// ErrNotFound.
func (c *call) head(ctx context.Context, key string, opts HeadOptions) (Object, error) {
	for {
		if err := ctx.Err(); err != nil {
			return Object{}, err
		}
		c.requests++
		obj, err := c.g.store.Head(ctx, key, opts)
		c.g.log.DebugContext(ctx, "head", "url", c.g.store.URL(key), "version", opts.VersionID, "etag", obj.ETag, "error", err)
		if err == nil || errors.Is(err, ErrNotFound) {
			return obj, err
		}
		if err := c.pause(ctx, err); err != nil {
			return Object{}, err
		}
	}
}
