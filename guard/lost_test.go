package guard_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/internal/mems3"
)

func TestLost(t *testing.T) {
	keys := func(m *mems3.Store, ctx context.Context, prefix string) (keys []string, last error) {
		for key, err := range newGuard(m).Lost(ctx, prefix) {
			if err != nil {
				last = err
				continue
			}
			keys = append(keys, key)
		}
		return keys, last
	}
	for _, versioning := range []guard.Versioning{guard.VersioningOff, guard.VersioningOn, guard.VersioningUnknown} {
		m := mems3.New()
		m.Bucket.Versioning = guard.VersioningOn
		g := newGuard(m)
		for _, key := range []string{"a", "dir/1", "dir/2", "dir/3", "dirty"} {
			mustPut(t, g, 5, key, "x", nil)
			mustPut(t, g, 6, key, "y", &guard.PutOptions{SSE: "aws:kms"})
		}
		m.Overwrite(".s3fence/x", "y", nil)
		mustDelete(t, g, 7, "dir/2", nil) // a tombstone is not lost
		for _, key := range []string{"dir/1", "dir/3", "dirty", ".s3fence/x"} {
			m.Remove(key)
		}
		mustAdopt(t, g, 8, "dir/3", &guard.AdoptOptions{Recover: true})
		m.Bucket.Versioning = versioning
		want := []string{"dir/1", "dirty"}
		if versioning == guard.VersioningOff {
			want = nil
		}
		if got, err := keys(m, t.Context(), ""); !slices.Equal(got, want) || err != nil {
			t.Errorf("versioning %v: %v, %v, want %v", versioning, got, err, want)
		}
		if versioning == guard.VersioningOff {
			continue
		}
		if got, err := keys(m, t.Context(), "dir/"); !slices.Equal(got, []string{"dir/1"}) || err != nil {
			t.Errorf("under dir/: %v, %v", got, err)
		}
		for range newGuard(m).Lost(t.Context(), "") {
			break
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if got, err := keys(m, ctx, ""); got != nil || !errors.Is(err, context.Canceled) {
			t.Errorf("a done context: %v, %v", got, err)
		}
		// An error that passes is asked again after, one that stays ends it.
		failures := 1
		m.Before = func(op, _ string) error {
			if op == "list" && failures > 0 {
				failures--
				return errors.New("no answer")
			}
			return nil
		}
		if got, err := keys(m, t.Context(), ""); !slices.Equal(got, want) || err != nil {
			t.Errorf("after an error: %v, %v", got, err)
		}
		failures = 1000
		if got, err := keys(m, t.Context(), ""); got != nil || err == nil {
			t.Errorf("errors for ever: %v, %v", got, err)
		}
	}
}
