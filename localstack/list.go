package localstack

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/s3fence/s3fence/guard"
)

// pageRows bounds what a listing holds in memory.
const pageRows = 256

// List implements [guard.Store]. It reads page by page and holds nothing open
// in between, so that what is written meanwhile may or may not be listed.
// Metadata comes always. With a Delimiter, a common prefix counts as one entry,
// for StartAfter too; Delimiter with Versions is [guard.ErrRejected].
func (s *store) List(ctx context.Context, opts guard.ListOptions) iter.Seq2[guard.Listed, error] {
	return func(yield func(guard.Listed, error) bool) {
		pages(ctx, yield, newListing(s, opts).page, func(err error) error {
			return s.fail(ctx, "list", opts.Prefix, err)
		})
	}
}

// pages yields what next reads, until it says that there is no more.
func pages[T any](ctx context.Context, yield func(T, error) bool, next func(context.Context) (page []T, more bool, err error), fail func(error) error) {
	var zero T
	for more := true; more; {
		var page []T
		var err error
		if page, more, err = next(ctx); err != nil {
			yield(zero, fail(err))
			return
		}
		for _, e := range page {
			if err := ctx.Err(); err != nil {
				yield(zero, fail(err))
				return
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}

// A listing is a List under way.
type listing struct {
	s         *store
	opts      guard.ListOptions
	from, end []byte // keys still to be read: from is the first, end is past the last
	rolled    string // the last common prefix that was listed
}

func newListing(s *store, opts guard.ListOptions) *listing {
	l := &listing{s: s, opts: opts, from: []byte(opts.Prefix), end: past(opts.Prefix)}
	if opts.StartAfter >= opts.Prefix {
		l.from = following(opts.StartAfter)
	}
	if shared, ok := l.rollUp(opts.StartAfter); ok {
		l.from = past(shared)
	}
	return l
}

// past is the first string that sorts after all that begin with prefix. For
// those that nothing sorts after, it is past all keys: they are UTF-8.
func past(prefix string) []byte {
	b := []byte(prefix)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i] < 0xff {
			b[i]++
			return b[:i+1]
		}
	}
	return []byte{0xff}
}

// following is the string that sorts next after key.
func following(key string) []byte { return append([]byte(key), 0) }

// rollUp returns the common prefix that stands for key, if one does.
func (l *listing) rollUp(key string) (shared string, ok bool) {
	rest, ok := strings.CutPrefix(key, l.opts.Prefix)
	if !ok || l.opts.Delimiter == "" {
		return "", false
	}
	i := strings.Index(rest, l.opts.Delimiter)
	if i < 0 {
		return "", false
	}
	return key[:len(key)-len(rest)+i+len(l.opts.Delimiter)], true
}

func (l *listing) page(ctx context.Context) (page []guard.Listed, more bool, err error) {
	if err := l.s.enterBucket(ctx); err != nil {
		return nil, false, err
	}
	defer l.s.l.calls.Done()
	if l.opts.Delimiter != "" && l.opts.Versions {
		return nil, false, fmt.Errorf("%w: a delimiter in a list of versions: leave out one of them", guard.ErrRejected)
	}
	rows, err := l.s.l.r.QueryContext(ctx, `SELECT key, etag, size, modified, headers FROM objects
		WHERE bucket = ? AND key >= ? AND key < ? ORDER BY key LIMIT ?`, l.s.bucket, l.from, l.end, pageRows)
	if err != nil {
		return nil, false, err
	}
	defer rows.Close()
	n := 0
	for rows.Next() {
		n++
		var key string
		var w row
		if err := rows.Scan(&key, &w.etag, &w.size, &w.modified, &w.headers); err != nil {
			return nil, false, err
		}
		shared, ok := l.rollUp(key)
		if ok && shared == l.rolled {
			// The second key below it: there may be millions.
			l.from = past(shared)
			return page, true, nil
		}
		l.from = following(key)
		if ok {
			l.rolled = shared
			page = append(page, guard.Listed{Key: shared, Prefix: true})
			continue
		}
		e, err := l.listed(key, w)
		if err != nil {
			return nil, false, err
		}
		page = append(page, e)
	}
	return page, n == pageRows, rows.Err()
}

func (l *listing) listed(key string, w row) (guard.Listed, error) {
	o, err := w.object(false)
	if err != nil {
		return guard.Listed{}, fmt.Errorf("%q: %w", key, err)
	}
	e := guard.Listed{
		Key:          key,
		Version:      guard.Version{ETag: o.ETag, Size: o.Size, LastModified: o.LastModified},
		StorageClass: o.StorageClass,
		Metadata:     o.Metadata,
	}
	if e.Metadata == nil {
		e.Metadata = map[string]string{} // known to be none
	}
	if l.opts.Versions {
		e.ID, e.Latest = nullVersion, true
	}
	return e, nil
}

// Uploads implements [guard.Store], in the order of the keys' bytes and, of one
// key, of their beginning.
func (s *store) Uploads(ctx context.Context, prefix string) iter.Seq2[guard.Upload, error] {
	return func(yield func(guard.Upload, error) bool) {
		last := guard.Upload{Key: prefix}
		next := func(ctx context.Context) ([]guard.Upload, bool, error) {
			page, err := s.uploads(ctx, last, past(prefix))
			if len(page) > 0 {
				last = page[len(page)-1]
			}
			return page, len(page) == pageRows, err
		}
		pages(ctx, yield, next, func(err error) error {
			return s.fail(ctx, "list uploads of", prefix, err)
		})
	}
}

// uploads returns a page of those after one and before a key.
func (s *store) uploads(ctx context.Context, after guard.Upload, end []byte) (page []guard.Upload, err error) {
	if err := s.enterBucket(ctx); err != nil {
		return nil, err
	}
	defer s.l.calls.Done()
	rows, err := s.l.r.QueryContext(ctx, `SELECT key, id, initiated FROM uploads
		WHERE bucket = ? AND (key, id) > (?, ?) AND key < ? ORDER BY key, id LIMIT ?`,
		s.bucket, []byte(after.Key), after.ID, end, pageRows)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var up guard.Upload
		var initiated int64
		if err := rows.Scan(&up.Key, &up.ID, &initiated); err != nil {
			return nil, err
		}
		up.Initiated = time.Unix(0, initiated).UTC()
		page = append(page, up)
	}
	return page, rows.Err()
}
