package probe_test

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/s3fence/s3fence/guard"
)

// A liar is an honest bucket in memory but for what its lies say.
type liar struct {
	guard.Store // nil: what the probe does not call
	lies

	mu      sync.Mutex
	objects map[string]stored
	writes  int
}

// lies are what real stores were seen to do.
type lies struct {
	// gap is between checking the condition and writing.
	gap time.Duration
	// ignore takes conditions and does not look at them.
	ignore bool
	// unsupported answers 501 to a write with a condition.
	unsupported bool
	// ifMatchCreates lets If-Match pass where there is nothing.
	ifMatchCreates bool
	// give is the form of ETags that it gives, take those that it takes.
	give, take form
	// tornHead and tornGet answer the ETag of the newest write with the
	// metadata, or the bytes, of the one before.
	tornHead, tornGet bool
	merge, drop       bool
	// stale answers reads with the write before the newest, for a while.
	stale time.Duration
	// half writes the body, and then refuses.
	half bool
	// short cuts metadata values.
	short int
	// refuseLong refuses metadata over so many bytes.
	refuseLong int
	// fails answers with this instead, to every write after the n-th.
	fails error
	after int
}

type form int

const (
	any_ form = iota
	quotedOnly
	unquotedOnly
)

type stored struct {
	obj  guard.Object
	body string
	prev *stored
	at   time.Time
}

func newLiar(l lies) *liar { return &liar{lies: l, objects: map[string]stored{}} }

func (l *liar) URL(key string) string { return "s3://liar/" + key }

func (l *liar) Settings(context.Context) (guard.Settings, error) {
	return guard.Settings{Versioning: guard.VersioningOff}, nil
}

func (l *liar) List(context.Context, guard.ListOptions) iter.Seq2[guard.Listed, error] {
	return func(func(guard.Listed, error) bool) {}
}

func (l *liar) find(key string) (stored, error) {
	o, ok := l.objects[key]
	if ok && l.stale > 0 && o.prev != nil && time.Since(o.at) < l.stale {
		o = *o.prev
	}
	if !ok {
		return o, fmt.Errorf("%s: %w", key, guard.ErrNotFound)
	}
	o.obj.Metadata = maps.Clone(o.obj.Metadata)
	return o, nil
}

func (l *liar) Head(ctx context.Context, key string, _ guard.HeadOptions) (guard.Object, error) {
	if err := ctx.Err(); err != nil {
		return guard.Object{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	o, err := l.find(key)
	if l.tornHead && o.prev != nil && l.writes%7 == 0 {
		o.obj.Metadata = o.prev.obj.Metadata
	}
	return o.obj, err
}

func (l *liar) Get(ctx context.Context, key string, _ guard.ReadOptions) (guard.Object, io.ReadCloser, error) {
	if err := ctx.Err(); err != nil {
		return guard.Object{}, nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	o, err := l.find(key)
	if err != nil {
		return guard.Object{}, nil, err
	}
	if l.tornGet && o.prev != nil && l.writes%7 == 0 {
		o.body = o.prev.body
	}
	return o.obj, io.NopCloser(strings.NewReader(o.body)), nil
}

func (l *liar) holds(key string, c guard.Condition) error {
	o, ok := l.objects[key]
	quoted := strings.HasPrefix(c.ETag(), `"`)
	switch {
	case l.ignore:
	case l.unsupported:
		return guard.ErrUnsupported
	case c.Absent() && ok:
		return guard.ErrPreconditionFailed
	case c.Absent():
	case !ok && l.ifMatchCreates:
	case !ok:
		return guard.ErrNotFound
	case l.take == quotedOnly && !quoted, l.take == unquotedOnly && quoted,
		strings.Trim(c.ETag(), `"`) != strings.Trim(o.obj.ETag, `"`):
		return guard.ErrPreconditionFailed
	}
	return nil
}

func (l *liar) Put(ctx context.Context, key string, req guard.PutRequest) (guard.PutResult, error) {
	if err := errors.Join(req.Condition.Check(), ctx.Err()); err != nil {
		return guard.PutResult{}, err
	}
	body, err := io.ReadAll(req.Body.Reader())
	if err != nil {
		return guard.PutResult{}, err
	}
	if req.SSE != "" {
		return guard.PutResult{}, guard.ErrUnsupported
	}
	long := 0
	for k, v := range req.Headers.Metadata {
		long += len("x-amz-meta-"+k) + len(v)
	}
	if l.refuseLong > 0 && long > l.refuseLong {
		return guard.PutResult{}, guard.ErrRejected
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.writes++; l.fails != nil && l.writes > l.after {
		return guard.PutResult{}, l.fails
	}
	if err := l.holds(key, req.Condition); err != nil {
		if o, ok := l.objects[key]; ok && l.half {
			o.body = string(body)
			l.objects[key] = o
		}
		return guard.PutResult{}, fmt.Errorf("%s: %w", key, err)
	}
	if l.gap > 0 {
		l.mu.Unlock()
		time.Sleep(l.gap)
		l.mu.Lock()
	}
	old, had := l.objects[key]
	old.prev = nil
	sum := md5.Sum(body)
	etag := hex.EncodeToString(sum[:])
	if l.give != unquotedOnly {
		etag = `"` + etag + `"`
	}
	o := stored{obj: guard.Object{ETag: etag, Size: int64(len(body)), Headers: req.Headers}, body: string(body), at: time.Now()}
	o.obj.Metadata = map[string]string{}
	if l.merge {
		maps.Copy(o.obj.Metadata, old.obj.Metadata)
	}
	for k, v := range req.Headers.Metadata {
		if l.short > 0 {
			v = v[:min(len(v), l.short)]
		}
		if !l.drop {
			o.obj.Metadata[k] = v
		}
	}
	if had {
		o.prev = &old
	}
	l.objects[key] = o
	return guard.PutResult{ETag: etag}, nil
}

func (l *liar) remove(_ context.Context, key string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.objects, key)
	return nil
}
