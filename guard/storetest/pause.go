package storetest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/s3fence/s3fence/guard"
)

// A Paused is a Store whose first Put, or CompleteUpload if that comes first,
// waits: a writer that observed the object, decided, and was then held up, as by
// a long pause of its process.
type Paused struct {
	guard.Store
	first   atomic.Bool
	reached chan struct{}
	release chan struct{}
	once    sync.Once
}

// Pause returns s with its first Put or CompleteUpload paused until Release.
// Later ones, and every other method, pass straight through.
func Pause(s guard.Store) *Paused {
	return &Paused{Store: s, reached: make(chan struct{}), release: make(chan struct{})}
}

// Reached is closed when the first write has begun to wait.
func (p *Paused) Reached() <-chan struct{} { return p.reached }

// Release lets the first write go on, or pass if it has not come yet. It may be
// called more than once.
func (p *Paused) Release() { p.once.Do(func() { close(p.release) }) }

// Put implements [guard.Store]. One whose context ends while it waits is
// [guard.ErrNotSent].
func (p *Paused) Put(ctx context.Context, key string, req guard.PutRequest) (guard.PutResult, error) {
	if err := p.wait(ctx); err != nil {
		return guard.PutResult{}, err
	}
	return p.Store.Put(ctx, key, req)
}

// CompleteUpload implements [guard.Store]. One whose context ends while it
// waits is [guard.ErrNotSent].
func (p *Paused) CompleteUpload(ctx context.Context, up guard.Upload, req guard.CompleteRequest) (guard.PutResult, error) {
	if err := p.wait(ctx); err != nil {
		return guard.PutResult{}, err
	}
	return p.Store.CompleteUpload(ctx, up, req)
}

// wait is where the first write waits.
func (p *Paused) wait(ctx context.Context) error {
	if !p.first.CompareAndSwap(false, true) {
		return nil
	}
	close(p.reached)
	select {
	case <-p.release:
		return nil
	case <-ctx.Done():
		return errors.Join(guard.ErrNotSent, ctx.Err())
	}
}
