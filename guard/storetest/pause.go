package storetest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/s3fence/s3fence/guard"
)

// A Paused is a Store whose first Put waits: a writer that observed the object,
// decided, and was then held up, as by a long pause of its process.
type Paused struct {
	guard.Store
	first   atomic.Bool
	reached chan struct{}
	release chan struct{}
	once    sync.Once
}

// Pause returns s with its first Put paused until Release. Later Puts, and
// every other method, pass straight through.
func Pause(s guard.Store) *Paused {
	return &Paused{Store: s, reached: make(chan struct{}), release: make(chan struct{})}
}

// Reached is closed when the first Put has begun to wait.
func (p *Paused) Reached() <-chan struct{} { return p.reached }

// Release lets the first Put go on, or pass if it has not come yet. It may be
// called more than once.
func (p *Paused) Release() { p.once.Do(func() { close(p.release) }) }

// Put implements [guard.Store]. One whose context ends while it waits is
// [guard.ErrNotSent].
func (p *Paused) Put(ctx context.Context, key string, req guard.PutRequest) (guard.PutResult, error) {
	if p.first.CompareAndSwap(false, true) {
		close(p.reached)
		select {
		case <-p.release:
		case <-ctx.Done():
			return guard.PutResult{}, errors.Join(guard.ErrNotSent, ctx.Err())
		}
	}
	return p.Store.Put(ctx, key, req)
}
