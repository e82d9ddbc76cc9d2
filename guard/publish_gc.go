package guard

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"
)

// DefaultKeep is how long files stay that a manifest does not refer to any more.
const DefaultKeep = 12 * time.Hour

// GarbageOptions refine a Garbage.
type GarbageOptions struct {
	// Keep is how long files stay for readers who have resolved an older manifest,
	// by this machine's clock and the store's. Default: [DefaultKeep]. Negative: they
	// don't.
	Keep time.Duration
}

// Garbage is a file that no manifest refers to, nor ever will.
type Garbage struct {
	Key, URL string
	// Number of the publish that sent it.
	Number       int64
	Size         int64
	LastModified time.Time
	// Kept is how much longer it stays for readers; 0 if it may go.
	Kept time.Duration
}

// Garbage yields the files that were sent for a dataset and are of no use: those
// that its manifest doesn't refer to and whose number is below the manifest's.
// Who sent them published something else since, or can't any more. At the number of
// the manifest and above, a publish may be under way, or have been committed with
// its answer lost, so nothing there is garbage, whoever asks. That holds while it
// runs, too: the manifest's number only rises.
//
// A file may go when both it and the manifest are older than Keep: whoever resolved
// the manifest before this one had that long to read. So Keep must be shorter than
// the time from one publish to the next, or nothing ever may. Where a dataset was
// deleted, the tombstone stands for the manifest; where there is neither, that is
// ErrNotFound. An error ends it: that of [Guard.Resolve], or of the listing.
//
// Only a counter that takes the dataset over (AdoptOptions.From) can begin lower.
// Nothing may look for garbage while it does.
func (g *Guard) Garbage(ctx context.Context, dataset string, opts *GarbageOptions) iter.Seq2[Garbage, error] {
	keep := DefaultKeep
	if opts != nil && opts.Keep != 0 {
		keep = max(opts.Keep, 0)
	}
	return func(yield func(Garbage, error) bool) {
		if err := g.garbage(ctx, dataset, keep, yield); err != nil {
			yield(Garbage{}, naming("look for garbage of", g.store.URL(dataset), err))
		}
	}
}

func (g *Guard) garbage(ctx context.Context, dataset string, keep time.Duration, yield func(Garbage, error) bool) error {
	m, err := g.resolve(ctx, dataset, Floor{})
	if err != nil && (m.Record == nil || m.Record.State != Deleted) {
		return err
	}
	used := make(map[string]bool, len(m.Files))
	for _, f := range m.Files {
		used[f.Key(dataset)] = true
	}
	c, from := &call{g: g}, ""
	for {
		var failed error
		for l, err := range g.store.List(ctx, ListOptions{Prefix: dataPrefix(dataset), StartAfter: from}) {
			if err != nil {
				failed = err
				break
			}
			from = l.Key
			number, _, ok := DataKey(l.Key[len(dataset):])
			if !ok || number >= m.Record.Number || used[l.Key] {
				continue
			}
			age := min(time.Since(l.LastModified), time.Since(m.LastModified))
			if !yield(Garbage{l.Key, g.store.URL(l.Key), number, l.Size, l.LastModified, max(keep-age, 0)}, nil) {
				return nil
			}
		}
		if failed == nil {
			return nil
		}
		if err := c.pause(ctx, failed); err != nil {
			return err
		}
	}
}

// Discard removes garbage that [Guard.Garbage] has yielded, also such as it says is
// kept, and returns how many requests it took.
//
// It is a plain delete, the only one that the guard makes, and needs no token. A
// tombstone would keep the number at the key, and there is none to keep: a key has
// the number and the write id of its only publish in it, so nobody writes it a
// second time. What a late owner sends there has a number that no manifest takes any
// more; it is garbage again. In return no object stays for each file that ever was.
// Where the bucket keeps versions, the bytes stay under a delete marker until a
// lifecycle rule removes them. Errors are the store's, and the context's.
func (g *Guard) Discard(ctx context.Context, f Garbage) (requests int, err error) {
	if number, _, ok := DataKey(f.Key); !ok || number != f.Number {
		return 0, invalid("%q is no garbage", f.Key)
	}
	c := &call{g: g}
	for {
		c.requests++
		err := g.store.Delete(ctx, f.Key)
		g.log.DebugContext(ctx, "delete", "url", f.URL, "error", err)
		if err == nil {
			return c.requests, nil
		}
		if errors.Is(err, ErrDenied) {
			err = fmt.Errorf("%w; the policies that s3fence policy writes leave deletes to the administrator", err)
		}
		if err := c.pause(ctx, err); err != nil {
			return c.requests, naming("delete", f.URL, err)
		}
	}
}
