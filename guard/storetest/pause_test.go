package storetest

import (
	"context"
	"errors"
	"testing"

	"github.com/s3fence/s3fence/guard"
)

// puts counts the Puts, and the completions, that reach it.
type puts struct {
	guard.Store
	n chan struct{}
}

func (p puts) Put(context.Context, string, guard.PutRequest) (guard.PutResult, error) {
	p.n <- struct{}{}
	return guard.PutResult{ETag: "e"}, nil
}

func (p puts) CompleteUpload(context.Context, guard.Upload, guard.CompleteRequest) (guard.PutResult, error) {
	p.n <- struct{}{}
	return guard.PutResult{ETag: "e"}, nil
}

// writes are the two ways to write.
var writes = map[string]func(ctx context.Context, s guard.Store) error{
	"put": func(ctx context.Context, s guard.Store) error {
		_, err := s.Put(ctx, "k", guard.PutRequest{})
		return err
	},
	"complete": func(ctx context.Context, s guard.Store) error {
		_, err := s.CompleteUpload(ctx, guard.Upload{Key: "k"}, guard.CompleteRequest{})
		return err
	},
}

func TestPause(t *testing.T) {
	for first, write := range writes {
		inner := puts{n: make(chan struct{}, 9)}
		s := Pause(inner)
		select {
		case <-s.Reached():
			t.Fatalf("%s: reached before any write", first)
		default:
		}
		done := make(chan error)
		go func() { done <- write(t.Context(), s) }()
		<-s.Reached()
		for second, write := range writes {
			if err := write(t.Context(), s); err != nil {
				t.Errorf("%s after %s: %v", second, first, err)
			}
		}
		if len(inner.n) != 2 {
			t.Errorf("%s: %d writes came through", first, len(inner.n))
		}
		s.Release()
		s.Release()
		if err := <-done; err != nil || len(inner.n) != 3 {
			t.Errorf("%s: %v; %d writes came through", first, err, len(inner.n))
		}
	}
}

func TestPauseCancelled(t *testing.T) {
	for name, write := range writes {
		inner := puts{n: make(chan struct{}, 9)}
		s := Pause(inner)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-s.Reached()
			cancel()
		}()
		err := write(ctx, s)
		if !errors.Is(err, guard.ErrNotSent) || !errors.Is(err, context.Canceled) || len(inner.n) != 0 {
			t.Errorf("%s: %v; %d writes came through", name, err, len(inner.n))
		}
	}
}
