package localstack

import (
	"errors"
	"testing"

	"github.com/s3fence/s3fence/guard"
)

// Remove takes the object, its file and its row of garbage along, and a key
// that was removed can be created again.
func TestRemove(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, nil)
	s := l.Store("bucket")
	if err := l.Remove(t.Context(), "bucket", "k"); !errors.Is(err, guard.ErrNotFound) {
		t.Errorf("nothing there: %v", err)
	}
	etag := mustPut(t, s, "k", guard.IfAbsent(), "one")
	mustPut(t, s, "other", guard.IfAbsent(), "other")
	if err := l.Remove(t.Context(), "bucket", "k"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Head(t.Context(), "k", guard.HeadOptions{}); !errors.Is(err, guard.ErrNotFound) {
		t.Errorf("it is there: %v", err)
	}
	if _, err := s.Put(t.Context(), "k", request(guard.IfMatch(etag), "late")); !errors.Is(err, guard.ErrNotFound) {
		t.Errorf("its ETag still matches: %v", err)
	}
	mustPut(t, s, "k", guard.IfAbsent(), "two")
	for key, want := range map[string]string{"k": "two", "other": "other"} {
		if _, body := mustRead(t, s, key); body != want {
			t.Errorf("%s is %q", key, body)
		}
	}
	mustClose(t, l)
	checkTidy(t, dir)
}
