package guard

import (
	"context"
	"iter"
)

// Lost yields the keys that begin with prefix and were deleted around the
// guard, in a bucket that keeps versions: those whose newest version is a
// delete marker. [Guard.Adopt] with Recover brings back the ones that were
// fenced. s3fence's own objects are left out. Where no versions are kept there
// is nothing to find, and nothing is yielded.
//
// An error ends it: the store's, or the context's.
func (g *Guard) Lost(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		c := &call{g: g}
		fail := func(err error) { yield("", naming("list the versions of", g.store.URL(prefix), err)) }
		if s, err := g.bucketSettings(ctx, c); err != nil || s.Versioning == VersioningOff {
			if err != nil {
				fail(err)
			}
			return
		}
		o := ListOptions{Prefix: prefix, Versions: true}
		for {
			var failed error
			for l, err := range g.store.List(ctx, o) {
				if err != nil {
					failed = err
					break
				}
				// The newest comes first, so what is left of a key need not be read again.
				o.StartAfter = l.Key
				if l.Latest && l.DeleteMarker && !IsOwn(l.Key) && !yield(l.Key, nil) {
					return
				}
			}
			if failed == nil {
				return
			}
			if err := c.pause(ctx, failed); err != nil {
				fail(err)
				return
			}
		}
	}
}
