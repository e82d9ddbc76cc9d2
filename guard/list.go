package guard

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
)

// WalkOptions say what a Guard lists. The zero value of each field means its
// default.
type WalkOptions struct {
	// StartAfter leaves out this key and all before it.
	StartAfter string
	// Delimiter rolls keys up, as that of [ListOptions]. Default: it does not.
	Delimiter string
	// Tombstones are listed too. Default: they are left out, as they are not
	// found by Get.
	Tombstones bool
	// Own lists s3fence's own objects under .s3fence/ too. Default: they are
	// left out.
	Own bool
	// Concurrency is how many objects are observed at once, where the store does
	// not say in the listing what fence records they have. Default: 16.
	Concurrency int
}

const defaultWalkers = 16

// OwnPrefix is the part of a key that s3fence's own objects lie under.
const OwnPrefix = ".s3fence/"

// IsOwn reports whether key is one of s3fence's own objects: its profile, its
// scope fences, whatever lies under .s3fence/.
func IsOwn(key string) bool {
	return strings.HasPrefix(key, OwnPrefix) || strings.Contains(key, "/"+OwnPrefix)
}

// Walk yields the objects whose keys begin with prefix, in the order of their
// keys' bytes, each with its fence state as [Guard.Stat] gives it. An Info
// whose Prefix is set stands for all the keys that begin with its Key.
//
// An object whose record is corrupt comes with [ErrCorruptRecord], and the walk
// goes on if the caller does; one that was deleted since it was listed is left
// out. Any other error ends it: the store's, or the context's. No more objects
// are held at a time than Concurrency says.
func (g *Guard) Walk(ctx context.Context, prefix string, opts *WalkOptions) iter.Seq2[Info, error] {
	var o WalkOptions
	if opts != nil {
		o = *opts
	}
	if o.Concurrency <= 0 {
		o.Concurrency = defaultWalkers
	}
	return func(yield func(Info, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		// What is on its way, in order. Its room bounds the concurrency.
		queue := make(chan chan walked, o.Concurrency)
		wg.Go(func() { g.walk(ctx, prefix, o, queue, &wg) })
		for next := range queue {
			w := <-next
			switch {
			case errors.Is(w.err, ErrNotFound) && w.info.Key != "":
				continue // deleted since it was listed
			case w.err == nil && w.info.Record != nil && w.info.Record.State == Deleted && !o.Tombstones:
				continue
			}
			if !yield(w.info, w.err) || w.err != nil && ReasonOf(w.err) != ErrCorruptRecord {
				return
			}
		}
		if err := ctx.Err(); err != nil {
			yield(Info{}, fmt.Errorf("list %s: %w", g.store.URL(prefix), err))
		}
	}
}

type walked struct {
	info Info
	err  error
}

// walk lists, and has each object observed whose record the listing leaves out.
func (g *Guard) walk(ctx context.Context, prefix string, o WalkOptions, queue chan<- chan walked, wg *sync.WaitGroup) {
	defer close(queue)
	send := func(next chan walked) bool {
		select {
		case queue <- next:
			return true
		case <-ctx.Done():
			return false
		}
	}
	known := func(w walked) bool {
		next := make(chan walked, 1)
		next <- w
		return send(next)
	}
	c := &call{g: g}
	from := o.StartAfter
	for {
		err := func() error {
			for l, err := range g.store.List(ctx, ListOptions{Prefix: prefix, StartAfter: from, Delimiter: o.Delimiter, Metadata: true}) {
				if err != nil {
					return err
				}
				from = l.Key
				if l.Prefix {
					// What lies behind a prefix sorts before this: U+10FFFF is the last character.
					from += "\U0010FFFF"
				}
				if !o.Own && IsOwn(l.Key) {
					continue
				}
				info := Info{Key: l.Key, URL: g.store.URL(l.Key), Prefix: l.Prefix}
				switch {
				case l.Prefix:
					if !known(walked{info: info}) {
						return nil
					}
				case l.Metadata != nil:
					info.Object = Object{
						ETag: l.ETag, Size: l.Size, LastModified: l.LastModified,
						Headers: Headers{StorageClass: l.StorageClass, Metadata: l.Metadata},
					}
					err := info.fill()
					if err != nil {
						err = naming("list", info.URL, err)
					}
					if !known(walked{info, err}) {
						return nil
					}
				default:
					next := make(chan walked, 1)
					if !send(next) {
						return nil
					}
					wg.Go(func() {
						info, err := g.Stat(ctx, l.Key)
						next <- walked{info, err}
					})
				}
			}
			return nil
		}()
		if err == nil {
			return
		}
		if err := c.pause(ctx, err); err != nil {
			known(walked{err: naming("list", g.store.URL(prefix), err)})
			return
		}
	}
}
