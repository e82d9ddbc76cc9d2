package state

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"

	"github.com/s3fence/s3fence/guard"
)

// Whatever was read ahead, and whatever batches are written meanwhile, a key has
// what was remembered of it last.
func TestReadingAhead(t *testing.T) {
	f := open(t, filepath.Join(t.TempDir(), "state"))
	one, other := memoryOf(t, f, "bucket"), memoryOf(t, f, "other")
	const workers, keys = 8, 300
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(w)))
			last := map[string]int64{}
			for i := range int64(3000) {
				// Mostly in order, as an upload goes; the keys of the workers lie between
				// each other's.
				n := int(i) % keys
				if r.IntN(4) == 0 {
					n = r.IntN(keys)
				}
				key := fmt.Sprintf("dir/%03d-%d", n, w)
				got, err := one.Recall(key)
				if err != nil || got.Record.Number != last[key] {
					t.Errorf("%s: %v, %v, want %d", key, got.Record, err, last[key])
					return
				}
				if r.IntN(3) > 0 {
					continue
				}
				last[key] = i + 1
				if err := one.Remember(key, guard.Remembered{Record: record(i+1, 1), ETag: `"e"`}); err != nil {
					t.Error(err)
					return
				}
				if r.IntN(100) == 0 {
					if err := f.Flush(); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	if got, err := other.Recall("dir/000-0"); err != nil || got.Record.Number != 0 {
		t.Errorf("another bucket's: %v, %v", got, err)
	}
}
