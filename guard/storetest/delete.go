package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/s3fence/s3fence/guard"
)

// remove deletes key through the Store.
func remove(t *testing.T, s guard.Store, key string) {
	t.Helper()
	if err := s.Delete(t.Context(), key); err != nil {
		t.Fatalf("delete %q: %v", key, err)
	}
}

func (h Harness) delete(t *testing.T) {
	s := h.Open(t)
	remove(t, s, "k") // of what is not there, that is no error
	for i := range 2 {
		w := put(t, s, "k", guard.IfAbsent(), fmt.Sprint("body ", i), meta("n", "1"))
		other := put(t, s, "k/other", guard.IfAbsent(), "other", meta("n", "2"))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		refused(t, s.Delete(ctx, "k"), context.Canceled)
		stands(t, s, "k", w)

		remove(t, s, "k")
		absent(t, s, "k")
		stands(t, s, "k/other", other)
		lists(t, s, guard.ListOptions{}, "k/other")
		remove(t, s, "k")
		_, err := s.Put(t.Context(), "k", request(guard.IfMatch(w.res.ETag), []byte("late"), meta()))
		refused(t, err, guard.ErrNotFound, guard.ErrPreconditionFailed)
		absent(t, s, "k")
		remove(t, s, "k/other")
		lists(t, s, guard.ListOptions{})
	}
	if err := s.Delete(t.Context(), ""); !errors.Is(err, guard.ErrRejected) {
		t.Errorf("delete of no key: %v, want %v", err, guard.ErrRejected)
	}

	// Several at once do as one.
	put(t, s, "k", guard.IfAbsent(), "x", meta())
	var wg sync.WaitGroup
	for range racers {
		wg.Go(func() {
			if err := s.Delete(t.Context(), "k"); err != nil {
				t.Errorf("delete at once with others: %v", err)
			}
		})
	}
	wg.Wait()
	absent(t, s, "k")
}

// versionedDelete: what is deleted stays, under a delete marker.
func (h Harness) versionedDelete(t *testing.T) {
	s, _ := h.versioned(t)
	w := put(t, s, "k", guard.IfAbsent(), "one", meta("n", "1"))
	remove(t, s, "k")
	absent(t, s, "k")
	if obj, err := s.Head(t.Context(), "k", guard.HeadOptions{}); !errors.Is(err, guard.ErrNotFound) || !obj.DeleteMarker {
		t.Errorf("head of a deleted key: %+v %v, want a delete marker", obj, err)
	}
	obj, err := s.Head(t.Context(), "k", guard.HeadOptions{VersionID: w.res.VersionID})
	if err != nil {
		t.Fatalf("head of the version: %v", err)
	}
	same(t, "head of the version", obj, w)
}
