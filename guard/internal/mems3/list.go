package mems3

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/s3fence/s3fence/guard"
)

// List implements [guard.Store]. It lists what there was when it began.
func (s *Store) List(ctx context.Context, opts guard.ListOptions) iter.Seq2[guard.Listed, error] {
	return func(yield func(guard.Listed, error) bool) {
		err := ctx.Err()
		if err == nil {
			err = s.before("list", opts.Prefix)
		}
		if err == nil && opts.Versions && opts.Delimiter != "" {
			err = errors.Join(guard.ErrRejected, errors.New("a listing of versions has no delimiter"))
		}
		if err != nil {
			yield(guard.Listed{}, err)
			return
		}
		for _, l := range s.listed(opts) {
			if err := ctx.Err(); err != nil {
				yield(guard.Listed{}, err)
				return
			}
			if !yield(l, nil) {
				return
			}
		}
	}
}

func (s *Store) listed(opts guard.ListOptions) []guard.Listed {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ls []guard.Listed
	for _, key := range slices.Sorted(maps.Keys(s.objects)) {
		rest, ok := strings.CutPrefix(key, opts.Prefix)
		if !ok || key <= opts.StartAfter {
			continue
		}
		vs := s.objects[key]
		if opts.Versions {
			for i, v := range slices.Backward(vs) {
				l := s.entry(key, v, opts)
				l.ID, l.Latest = v.id, i == len(vs)-1
				ls = append(ls, l)
			}
			continue
		}
		v := vs[len(vs)-1]
		if v.marker {
			continue
		}
		if head, _, ok := strings.Cut(rest, opts.Delimiter); ok && opts.Delimiter != "" {
			shared := opts.Prefix + head + opts.Delimiter
			if len(ls) == 0 || ls[len(ls)-1].Key != shared || !ls[len(ls)-1].Prefix {
				ls = append(ls, guard.Listed{Key: shared, Prefix: true})
			}
			continue
		}
		ls = append(ls, s.entry(key, v, opts))
	}
	return ls
}

// entry is what a listing says of one version.
func (s *Store) entry(key string, v version, opts guard.ListOptions) guard.Listed {
	l := guard.Listed{
		Key:          key,
		Version:      guard.Version{ETag: v.ETag, DeleteMarker: v.marker, Size: v.Size, LastModified: v.LastModified},
		StorageClass: v.StorageClass,
	}
	if opts.Metadata && s.ListsMetadata && !v.marker {
		l.Metadata = map[string]string{}
		maps.Copy(l.Metadata, v.Metadata)
	}
	return l
}
