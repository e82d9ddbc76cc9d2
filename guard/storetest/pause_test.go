package storetest

import (
	"context"
	"errors"
	"testing"

	"github.com/s3fence/s3fence/guard"
)

// puts counts the Puts that reach it.
type puts struct {
	guard.Store
	n chan struct{}
}

func (p puts) Put(context.Context, string, guard.PutRequest) (guard.PutResult, error) {
	p.n <- struct{}{}
	return guard.PutResult{ETag: "e"}, nil
}

func TestPause(t *testing.T) {
	inner := puts{n: make(chan struct{}, 9)}
	s := Pause(inner)
	select {
	case <-s.Reached():
		t.Fatal("reached before any Put")
	default:
	}
	done := make(chan error)
	go func() {
		_, err := s.Put(t.Context(), "k", guard.PutRequest{})
		done <- err
	}()
	<-s.Reached()
	if _, err := s.Put(t.Context(), "k", guard.PutRequest{}); err != nil || len(inner.n) != 1 {
		t.Errorf("the second Put: %v; %d Puts came through", err, len(inner.n))
	}
	s.Release()
	s.Release()
	if err := <-done; err != nil || len(inner.n) != 2 {
		t.Errorf("the first Put: %v; %d Puts came through", err, len(inner.n))
	}
}

func TestPauseCancelled(t *testing.T) {
	inner := puts{n: make(chan struct{}, 9)}
	s := Pause(inner)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-s.Reached()
		cancel()
	}()
	_, err := s.Put(ctx, "k", guard.PutRequest{})
	if !errors.Is(err, guard.ErrNotSent) || !errors.Is(err, context.Canceled) || len(inner.n) != 0 {
		t.Errorf("%v; %d Puts came through", err, len(inner.n))
	}
}
