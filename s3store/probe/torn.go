package probe

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/s3fence/s3fence/guard"
)

func base64Sum(h hash.Hash) string { return base64.StdEncoding.EncodeToString(h.Sum(nil)) }

// readAfterWrite reads every write back at once.
func (p *probe) readAfterWrite(ctx context.Context) (finding, error) {
	key, w, err := p.create(ctx, "read")
	if err != nil {
		return finding{}, err
	}
	n := size(p, 50, 10)
	for i := range n {
		next := p.content("read-%03d", i)
		switch err := p.put(ctx, key, guard.IfMatch(w.etag), &next); judge(err) {
		case took:
			w = next
		case none, failed:
			return finding{}, err
		default:
			return found(Fail, "the ETag of the newest write is answered %s", words(err)), nil
		}
		diff, err := p.compare(ctx, key, w)
		if err != nil {
			return finding{}, err
		}
		if diff != "" {
			return found(Fail, "after write %d of %d: %s", i+1, n, diff), nil
		}
	}
	return found(Pass, "the newest, in each of %d writes", n), nil
}

// A sight is what one read showed: which write each part of it is of.
type sight struct {
	etag       string
	meta, size int
	body       int // -1 when it was not read
}

const (
	gone  = -2 // the object was not there
	mixed = -3 // a body of two writes, or of none
)

// huntSize makes the size tell the write, and the body long enough to be
// caught in the middle.
func huntSize(n int) int { return 8<<10 + n%1000 }

func (p *probe) huntBody(n int) written {
	w := p.content("hunt")
	w.meta[tagKey] = strconv.Itoa(n) + "-" + p.run
	line := fmt.Sprintf("%08d\n", n)
	w.body = []byte(strings.Repeat(line, huntSize(n)/len(line)+1)[:huntSize(n)])
	return w
}

func huntMeta(obj guard.Object) int {
	text, _, _ := strings.Cut(obj.Metadata[tagKey], "-")
	n, err := strconv.Atoi(text)
	if err != nil {
		return mixed
	}
	return n
}

func (p *probe) headNotTorn(ctx context.Context) (finding, error) {
	return p.hunt(ctx, func(ctx context.Context, key string) (sight, error) {
		obj, err := p.Store.Head(ctx, key, guard.HeadOptions{})
		return sight{bare(obj.ETag), huntMeta(obj), int(obj.Size), -1}, err
	})
}

func (p *probe) getNotTorn(ctx context.Context) (finding, error) {
	return p.hunt(ctx, func(ctx context.Context, key string) (sight, error) {
		obj, body, err := p.read(ctx, key)
		s := sight{bare(obj.ETag), huntMeta(obj), int(obj.Size), mixed}
		if len(body) >= 8 {
			if n, perr := strconv.Atoi(string(body[:8])); perr == nil && bytes.Equal(body, p.huntBody(n).body) {
				s.body = n
			}
		}
		return s, err
	})
}

// hunt overwrites one key as fast as it goes, while others read it, and looks
// for a read whose parts are of two writes. Each write has a size, metadata
// and ETag of its own; what was seen is kept once, and judged when all ETags
// are known.
func (p *probe) hunt(ctx context.Context, read func(context.Context, string) (sight, error)) (finding, error) {
	key := p.key("hunt")
	w := p.huntBody(0)
	if err := p.put(ctx, key, guard.IfAbsent(), &w); err != nil {
		return finding{}, step("create an object", err)
	}
	etags := map[string]int{bare(w.etag): 0}

	hctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A slow store needs longer for the same number of chances.
	until, least := time.Now().Add(size(p, 4*time.Second, 300*time.Millisecond)), size(p, 50, 5)
	var (
		mu      sync.Mutex
		seen    = map[sight]int{}
		readErr error
		reads   atomic.Int64
		wg      sync.WaitGroup
	)
	for range 4 {
		wg.Go(func() {
			for hctx.Err() == nil {
				s, err := read(ctx, key)
				if errors.Is(err, guard.ErrNotFound) {
					s, err = sight{meta: gone}, nil
				}
				mu.Lock()
				if err != nil {
					readErr = err
					mu.Unlock()
					cancel()
					return
				}
				seen[s]++
				mu.Unlock()
				reads.Add(1)
			}
		})
	}
	var bad finding
	var writeErr error
	writes := 0
	for hctx.Err() == nil && bad.verdict == "" && writeErr == nil && (writes < least || time.Now().Before(until)) {
		next := p.huntBody(writes + 1)
		switch err := p.put(ctx, key, guard.IfMatch(w.etag), &next); judge(err) {
		case took:
			writes++
			w = next
			etags[bare(w.etag)] = writes
		case none, failed:
			writeErr = err
		default:
			bad = found(Fail, "the ETag of the newest write is answered %s", words(err))
		}
	}
	cancel()
	wg.Wait()
	if err := errors.Join(writeErr, readErr); err != nil {
		return finding{}, err
	}
	if bad.verdict != "" {
		return bad, nil
	}
	torn, example := 0, ""
	for s, n := range seen {
		if why := s.torn(etags); why != "" {
			torn += n
			example = why
		}
	}
	if torn > 0 {
		return found(Fail, "%d torn of %d under %d overwrites: %s", torn, reads.Load(), writes, example), nil
	}
	return found(Pass, "none torn of %d under %d overwrites", reads.Load(), writes), nil
}

// torn says of which two writes a sight is; "" when of one.
func (s sight) torn(etags map[string]int) string {
	n, known := etags[s.etag]
	switch {
	case s.meta == gone:
		return "it was not there at all"
	case !known:
		return fmt.Sprintf("an ETag that no write was given: %s", s.etag)
	case s.meta != n:
		return fmt.Sprintf("the ETag of write %d with the metadata of write %d", n, s.meta)
	case s.size != huntSize(n):
		return fmt.Sprintf("the ETag of write %d with the size of another", n)
	case s.body == mixed:
		return "bytes of two writes"
	case s.body >= 0 && s.body != n:
		return fmt.Sprintf("the ETag of write %d with the bytes of write %d", n, s.body)
	}
	return ""
}
