package s3store

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"iter"
	"net/http/httptrace"
	"strings"
	"sync/atomic"

	"github.com/minio/minio-go/v7"

	"github.com/s3fence/s3fence/guard"
)

// List yields what the store lists, as [guard.Store] says. A bucket that never
// kept versions lists each object as its one version, with the id "null". A
// store that does not list its keys in their order gets an error, S3 directory
// buckets for one.
//
// minio-go knows no other delimiter than /: with another one, every key is
// listed on the wire. With /, it is asked for up to one page more than was
// yielded, since it lists a page's common prefixes after its objects.
//
// Metadata is MinIO's extension, of objects and of versions. Other stores
// leave it nil, and so does MinIO for what the caller may not read. From the
// first page on that came out unreadable for it, the listing goes on without.
func (s *MinIOStore) List(ctx context.Context, opts guard.ListOptions) iter.Seq2[guard.Listed, error] {
	return func(yield func(guard.Listed, error) bool) {
		o := listing(opts)
		err := s.checkList(ctx, opts)
		if err == nil {
			err = s.ready(ctx, o, "")
		}
		if err != nil {
			yield(guard.Listed{}, err)
			return
		}
		// MinIO takes no place outside the prefix to start from.
		if !strings.HasPrefix(opts.StartAfter, opts.Prefix) {
			if opts.StartAfter > opts.Prefix {
				return
			}
			opts.StartAfter = ""
		}
		// The last key, those of its versions that were yielded, and the key before.
		last, seen, before := "", map[string]bool{}, opts.StartAfter
		list := func(opts guard.ListOptions, resumed bool) error {
			for l, err := range s.entries(ctx, o, opts) {
				known := l.Key == last && seen[l.ID]
				if err == nil && resumed && (l.Key < last || known) {
					continue
				}
				if err == nil {
					err = s.checkContext(ctx, o, opts.Prefix)
				}
				if err == nil && (l.Key < last || known) {
					err = fmt.Errorf("%s %s: the store lists keys out of order, %q after %q", o.verb, s.URL(opts.Prefix), l.Key, last)
				}
				if err != nil {
					return err
				}
				if l.Key != last {
					clear(seen)
					before, last = max(last, before), l.Key
				}
				seen[l.ID] = true
				if !yield(l, nil) {
					return nil
				}
			}
			return nil
		}
		err = list(opts, false)
		if opts.Metadata && unlistable(err) {
			opts.Metadata, opts.StartAfter = false, before
			err = list(opts, true)
		}
		if err != nil {
			yield(guard.Listed{}, err)
		}
	}
}

// unlistable reports whether err may be due to metadata that was asked for.
// MinIO makes XML names of the names of metadata, whatever is in them.
func unlistable(err error) bool {
	var syntax *xml.SyntaxError
	return errors.As(err, &syntax) || errors.Is(err, guard.ErrRejected) || errors.Is(err, guard.ErrUnsupported)
}

const (
	// listPage is how many entries a page has at most.
	listPage = 1000
	// maxEmptyPages is how many requests may bring no entry before the store
	// is taken to answer the same for ever.
	maxEmptyPages = 100
)

// entries yields what minio-go lists, in order if the store is. Its errors
// have their meaning.
func (s *MinIOStore) entries(ctx context.Context, o op, opts guard.ListOptions) iter.Seq2[guard.Listed, error] {
	return func(yield func(guard.Listed, error) bool) {
		var pages atomic.Int32
		f := new(flight)
		listCtx, cancel := context.WithCancel(f.watch(ctx))
		defer cancel()
		listCtx = httptrace.WithClientTrace(listCtx, &httptrace.ClientTrace{GetConn: func(string) {
			if pages.Add(1) > maxEmptyPages {
				cancel()
			}
		}})
		lo := minio.ListObjectsOptions{
			Prefix: opts.Prefix, StartAfter: opts.StartAfter, Recursive: opts.Delimiter != "/",
			WithVersions: opts.Versions, WithMetadata: opts.Metadata, FetchOwner: new(false),
		}
		if s.opts.RequestPayer {
			lo.Set(requestPayer, "requester")
		}
		var all iter.Seq2[guard.Listed, error] = func(yield func(guard.Listed, error) bool) {
			for v := range s.client.ListObjectsIter(listCtx, s.name, lo) {
				pages.Store(0)
				if v.Err != nil {
					yield(guard.Listed{}, v.Err)
					return
				}
				l := listed(v, opts)
				if !l.Prefix && opts.StartAfter != "" && l.Key <= opts.StartAfter {
					continue
				}
				if !yield(l, nil) {
					return
				}
			}
			// minio-go ends a listing without a word when its context is done.
			if err := listCtx.Err(); err != nil {
				yield(guard.Listed{}, err)
			}
		}
		switch opts.Delimiter {
		case "":
		case "/":
			all = inOrder(all)
		default:
			all = rolledUp(all, opts)
		}
		for l, err := range all {
			if err != nil {
				if listCtx.Err() != nil && ctx.Err() == nil {
					err = errNoMarker
				}
				yield(guard.Listed{}, s.fail(o, opts.Prefix, err, f, ""))
				return
			}
			if !yield(l, nil) {
				return
			}
		}
	}
}

func listed(v minio.ObjectInfo, opts guard.ListOptions) guard.Listed {
	if opts.Delimiter == "/" && v.ETag == "" && v.LastModified.IsZero() {
		return guard.Listed{Key: v.Key, Prefix: true}
	}
	l := guard.Listed{
		Key:     v.Key,
		Version: guard.Version{ETag: quoted(v.ETag), Size: v.Size, LastModified: v.LastModified},
	}
	if opts.Versions {
		l.ID, l.Latest, l.DeleteMarker = v.VersionID, v.IsLatest, v.IsDeleteMarker
	}
	if l.DeleteMarker {
		return l
	}
	l.StorageClass = v.StorageClass
	// MinIO leaves metadata out for an object that has none, but not what it
	// sends along with it for its own use.
	if opts.Metadata && (v.UserMetadata != nil || v.Internal != nil) {
		l.Metadata = make(map[string]string, len(v.UserMetadata))
		for k, value := range v.UserMetadata {
			// Content-Type and the like are among them.
			if name, ok := strings.CutPrefix(strings.ToLower(k), "x-amz-meta-"); ok {
				l.Metadata[name] = value
			}
		}
	}
	return l
}

// inOrder puts the common prefixes of a page, which come after its objects,
// among them. Where a page ends is not said, but it has no more than listPage
// entries.
func inOrder(all iter.Seq2[guard.Listed, error]) iter.Seq2[guard.Listed, error] {
	return func(yield func(guard.Listed, error) bool) {
		var objects []guard.Listed
		after := false // a prefix came after the objects
		flush := func(until string, left int) bool {
			for len(objects) > left && (until == "" || objects[0].Key < until) {
				if !yield(objects[0], nil) {
					return false
				}
				objects = objects[1:]
			}
			return true
		}
		for l, err := range all {
			switch {
			case err != nil:
				if flush("", 0) {
					yield(guard.Listed{}, err)
				}
				return
			case l.Prefix:
				after = true
				if !flush(l.Key, 0) || !yield(l, nil) {
					return
				}
			default:
				left := listPage - 1
				if after { // this is the next page
					after, left = false, 0
				}
				if !flush("", left) {
					return
				}
				objects = append(objects, l)
			}
		}
		flush("", 0)
	}
}

// rolledUp makes one entry of the keys that have the delimiter after the prefix.
func rolledUp(all iter.Seq2[guard.Listed, error], opts guard.ListOptions) iter.Seq2[guard.Listed, error] {
	return func(yield func(guard.Listed, error) bool) {
		prefix := ""
		for l, err := range all {
			if at := strings.Index(strings.TrimPrefix(l.Key, opts.Prefix), opts.Delimiter); err == nil && at >= 0 {
				l = guard.Listed{Key: l.Key[:len(opts.Prefix)+at+len(opts.Delimiter)], Prefix: true}
				if l.Key == prefix {
					continue
				}
				prefix = l.Key
			}
			if !yield(l, err) || err != nil {
				return
			}
		}
	}
}

// Uploads yields what the store lists, as [guard.Store] says, in no order. Of
// those that are not at the very key, MinIO has the ones that were begun since
// its server started.
func (s *MinIOStore) Uploads(ctx context.Context, prefix string) iter.Seq2[guard.Upload, error] {
	return func(yield func(guard.Upload, error) bool) {
		err := s.checkPrefix(ctx, opUploads, prefix)
		if err == nil {
			err = s.ready(ctx, opUploads, "")
		}
		if err != nil {
			yield(guard.Upload{}, err)
			return
		}
		uploadsUnder(prefix, func(prefix string) iter.Seq2[guard.Upload, error] { return s.uploads(ctx, prefix) })(yield)
	}
}

// uploads yields what the store lists under one prefix.
func (s *MinIOStore) uploads(ctx context.Context, prefix string) iter.Seq2[guard.Upload, error] {
	return func(yield func(guard.Upload, error) bool) {
		key, id := "", ""
		for {
			f := new(flight)
			out, err := s.core.ListMultipartUploads(f.watch(ctx), s.name, prefix, key, id, "", 0)
			if err == nil && out.IsTruncated && out.NextKeyMarker == key && out.NextUploadIDMarker == id {
				err = errNoMarker
			}
			if err != nil {
				yield(guard.Upload{}, s.failUnpaid(opUploads, prefix, err, f, ""))
				return
			}
			for _, u := range out.Uploads {
				up := guard.Upload{Key: u.Key, ID: u.UploadID, Initiated: u.Initiated}
				err := s.checkContext(ctx, opUploads, prefix)
				if err != nil {
					up = guard.Upload{}
				}
				if !yield(up, err) || err != nil {
					return
				}
			}
			if !out.IsTruncated {
				return
			}
			key, id = out.NextKeyMarker, out.NextUploadIDMarker
		}
	}
}
