package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

const (
	// DefaultFenceMaxAge is how old a reading of the scope fence may be.
	DefaultFenceMaxAge = time.Second
	// EveryWrite is an Options.FenceMaxAge that reads the scope fence before each write.
	EveryWrite time.Duration = -1
)

// ScopeFenceKey returns the key of a scope's fence under a root:
// <root>/.s3fence/scopes/<scope>.json, as [ScopeKey] writes it.
func ScopeFenceKey(root, scope string) string { return ScopeKey(root, "scopes", scope) }

// ScopeKey returns the key of what s3fence keeps of a scope in one of its
// folders under a root: <root>/.s3fence/<folder>/<scope>.json. A part between
// slashes that is empty, "." or ".." is written with % in it, since not every
// store keeps such keys.
func ScopeKey(root, folder, scope string) string {
	parts := strings.Split(scope, "/")
	for i, p := range parts[:len(parts)-1] { // the last one gets .json behind it
		switch p {
		case "", ".", "..":
			parts[i] = "%" + strings.Repeat("2E", len(p))
		}
	}
	return RootKey(root, folder+"/"+strings.Join(parts, "/")+".json")
}

// ClaimOptions refine a Claim.
type ClaimOptions struct {
	// WriteID makes the claim recognisable when it is run again, as that of
	// PutOptions does. Default: random.
	WriteID WriteID
	// DryRun decides and does not write.
	DryRun bool
}

// Claim raises the scope fence to tok's number: from then on a guarded write
// with a lower number of the scope is refused as [ErrStale], also at keys that
// the new owner never touched. A claim that is not higher than the last one is
// refused, with the errors of [Guard.Put]; so is one at a store whose profile
// does not pass, where the writes under it would be refused as well.
//
// Its limit: a write reads the scope fence and then makes its request, and S3
// has nothing that makes the two one. A reading may be as old as
// Options.FenceMaxAge, and a writer that is held up after it reads can, when it
// wakes, still write a key that the new owner has not touched. Keys that the
// new owner has written are never written over.
//
// Workers that share a scope in parallel must not claim it: the newest would
// shut all the others out. There the objects alone decide.
func (g *Guard) Claim(ctx context.Context, tok Token, opts *ClaimOptions) (Result, error) {
	var o ClaimOptions
	if opts != nil {
		o = *opts
	}
	f := g.scopes
	begun := time.Now()
	res, err := f.guard.write(ctx, tok, ScopeFenceKey(f.root, tok.scope), "claim scope "+tok.scope+" at", &write{
		opts:  PutOptions{Headers: Headers{ContentType: "application/json"}, WriteID: o.WriteID, DryRun: o.DryRun},
		bytes: func(r Record) []byte { return ownBytes("s3fence_scope", r) },
		own:   true, internal: true, claimant: g, op: OpClaim,
	})
	if err != nil {
		return res, err
	}
	if !o.DryRun {
		f.of(tok.scope).note(begun, &res.Record)
	}
	return res, nil
}

// Claimed returns the record of the scope's fence, nil where the scope was
// never claimed. It is read now, whatever the last reading's age.
func (g *Guard) Claimed(ctx context.Context, scope string) (*Record, error) {
	if err := CheckScope(scope); err != nil {
		return nil, err
	}
	return g.scopes.latest(ctx, scope)
}

// ownJSON is what all of the guard's own objects hold. The write id makes their
// bytes those of one write, so that their ETag can't come back on any store.
type ownJSON struct {
	Scope    string `json:"scope"`
	Issuer   string `json:"issuer"`
	Token    int64  `json:"token"`
	Sequence int64  `json:"sequence"`
	WriteID  string `json:"write_id"`
}

func newOwnJSON(r Record) ownJSON {
	return ownJSON{r.Scope, r.Issuer.String(), r.Number, r.Sequence, r.WriteID.String()}
}

// ownBytes are the bytes of one of the guard's own objects.
func ownBytes(kind string, r Record) []byte {
	b, err := json.Marshal(newOwnJSON(r))
	if err != nil {
		panic(err) // strings and numbers
	}
	return append([]byte(`{"`+kind+`":1,`), append(b[1:], '\n')...)
}

// scopeFences reads the scope fences that a Guard's writes are under, at most
// once in a while for each scope.
type scopeFences struct {
	guard  *Guard // over the bucket of the root
	root   string
	maxAge time.Duration

	mu sync.Mutex
	m  map[string]*scopeReading
}

// maxScopes bounds the readings that are kept; a worker may meet many scopes.
const maxScopes = 1 << 12

// A scopeReading is what was last read of one scope's fence.
type scopeReading struct {
	reading chan struct{} // a lock that a context can stop waiting for
	mu      sync.Mutex
	at      time.Time // when that reading began
	claim   *Record
}

func newScopeFences(g *Guard, o Options) *scopeFences {
	f := &scopeFences{guard: g, root: o.Root, maxAge: o.FenceMaxAge, m: make(map[string]*scopeReading)}
	if f.maxAge == 0 {
		f.maxAge = DefaultFenceMaxAge
	}
	if o.RootStore != nil {
		f.guard = New(o.RootStore, &Options{
			Logger: g.log, Observer: g.observer, MaxAttempts: g.maxAttempts, Backoff: g.backoff, Rand: g.rand,
		})
	}
	return f
}

func (f *scopeFences) of(scope string) *scopeReading {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.m[scope]
	if r == nil {
		if len(f.m) >= maxScopes {
			for k := range f.m { // any one: it is read again
				delete(f.m, k)
				break
			}
		}
		r = &scopeReading{reading: make(chan struct{}, 1)}
		f.m[scope] = r
	}
	return r
}

// fresh returns the last reading, if a write may rely on it.
func (r *scopeReading) fresh(maxAge time.Duration) (*Record, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.claim, !r.at.IsZero() && time.Since(r.at) <= maxAge
}

// note takes in what was read, or claimed, since begun.
func (r *scopeReading) note(begun time.Time, claim *Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if begun.After(r.at) {
		r.at, r.claim = begun, claim
	}
}

// latest returns the scope's fence as it is now, whatever the last reading's age.
func (f *scopeFences) latest(ctx context.Context, scope string) (*Record, error) {
	begun := time.Now()
	claim, err := f.read(ctx, &call{g: f.guard}, scope)
	if err == nil {
		f.of(scope).note(begun, claim)
	}
	return claim, err
}

// claim returns the scope's fence, read now if the last reading is too old.
func (f *scopeFences) claim(ctx context.Context, c *call, scope string) (*Record, error) {
	if f.maxAge < 0 {
		return f.read(ctx, c, scope)
	}
	r := f.of(scope)
	for {
		if claim, ok := r.fresh(f.maxAge); ok {
			return claim, nil
		}
		select {
		case r.reading <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if _, ok := r.fresh(f.maxAge); ok {
			<-r.reading
			continue
		}
		begun := time.Now()
		claim, err := f.read(ctx, c, scope)
		if err == nil {
			r.note(begun, claim)
		}
		<-r.reading
		return claim, err
	}
}

// ahead begins a reading that claim will wait for. The returned function ends
// it, and returns when it has ended.
func (f *scopeFences) ahead(ctx context.Context, scope string) (stop func()) {
	if f.maxAge < 0 {
		return func() {} // it has to be read just before the write
	}
	if _, ok := f.of(scope).fresh(f.maxAge); ok {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = f.claim(ctx, &call{g: f.guard}, scope) // an error is met again, by the write itself
	}()
	return func() {
		cancel()
		<-done
	}
}

// read asks the store for the scope's fence. c bounds its attempts.
func (f *scopeFences) read(ctx context.Context, c *call, scope string) (*Record, error) {
	key := ScopeFenceKey(f.root, scope)
	url := f.guard.store.URL(key)
	refuse := func(reason Reason, err error, detail string) error {
		return &Refusal{Reason: reason, Key: key, URL: url, Err: err, Detail: detail, Cures: ownCures}
	}
	reader := call{g: f.guard, failures: c.failures}
	obj, err := reader.head(ctx, key, HeadOptions{})
	c.failures = reader.failures
	switch {
	case errors.Is(err, ErrNotFound) && obj.DeleteMarker:
		return nil, refuse(ErrFenceLost, nil, "the fence of scope "+scope+" was deleted around the guard")
	case errors.Is(err, ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the fence of scope %s: %w", scope, err)
	}
	text := obj.Metadata[RecordKey]
	if text == "" {
		return nil, refuse(ErrUnfenced, nil, "the fence of scope "+scope+" was overwritten around the guard")
	}
	r, err := ParseRecord(text)
	switch {
	case err != nil:
		return nil, refuse(ErrCorruptRecord, err, "the fence of scope "+scope+" was edited around the guard")
	case r.Scope != scope:
		return nil, refuse(ErrCorruptRecord, nil, "it should be the fence of scope "+scope+" and is that of "+r.Scope)
	}
	return &r, nil
}
