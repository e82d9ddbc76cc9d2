package guard

import (
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Info is the fence state of one object.
type Info struct {
	Key, URL string
	// Record is nil when the object is not fenced.
	Record   *Record
	ETagKind ETagKind
	Object
	// Requests made to the store.
	Requests int
}

// Stat returns the fence state of key. A tombstone is returned as what it is,
// with State Deleted in its record; an object without a record has a nil one.
//
// Errors: ErrNotFound; ErrCorruptRecord, next to an Info with all the rest;
// ErrDenied; the context's.
func (g *Guard) Stat(ctx context.Context, key string) (Info, error) {
	c := &call{g: g}
	info := Info{Key: key, URL: g.store.URL(key)}
	err := CheckKey(key)
	if err == nil {
		info.Object, err = c.head(ctx, key, HeadOptions{})
	}
	if err == nil {
		err = info.fill()
	}
	info.Requests = c.requests
	if err != nil {
		return info, naming("stat", info.URL, err)
	}
	return info, nil
}

// Get reads key. Bytes, ETag and record are of one write. A tombstone is
// ErrNotFound. An object that is not fenced is returned with a nil Record: it
// is the caller's to decide whether to trust it. The caller closes the reader,
// and has every byte only when a Read ended with io.EOF.
//
// Other errors: ErrCorruptRecord (it can't be told whether the object is a
// tombstone); ErrNoBucket; ErrDenied; the context's.
func (g *Guard) Get(ctx context.Context, key string) (Info, io.ReadCloser, error) {
	c := &call{g: g}
	info := Info{Key: key, URL: g.store.URL(key)}
	body, err := c.get(ctx, key, &info)
	info.Requests = c.requests
	if err != nil {
		return info, nil, naming("get", info.URL, err)
	}
	return info, body, nil
}

// naming makes sure that an error names the object, which a store's own does.
func naming(verb, url string, err error) error {
	if strings.Contains(err.Error(), url) {
		return err
	}
	return fmt.Errorf("%s %s: %w", verb, url, err)
}

func (c *call) get(ctx context.Context, key string, info *Info) (io.ReadCloser, error) {
	if err := CheckKey(key); err != nil {
		return nil, err
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		c.requests++
		obj, body, err := c.g.store.Get(ctx, key)
		c.g.log.DebugContext(ctx, "get", "url", info.URL, "etag", obj.ETag, "error", err)
		if err == nil {
			info.Object = obj
			if err = info.fill(); err == nil && info.Record != nil && info.Record.State == Deleted {
				err = fmt.Errorf("%w: deleted with token %s (scope %s)", ErrNotFound, info.Record.Fence(), info.Record.Scope)
			}
			if err != nil {
				return nil, errors.Join(err, body.Close())
			}
			return body, nil
		}
		if errors.Is(err, ErrNotFound) {
			return nil, err
		}
		if err := c.pause(ctx, err); err != nil {
			return nil, err
		}
	}
}

// fill reads the record and the ETag's kind off what the store said.
func (i *Info) fill() error {
	i.ETagKind = etagKind(strings.Trim(i.ETag, `"`), uniqueSSE(i.SSE))
	text := i.Metadata[RecordKey]
	if text == "" {
		return nil
	}
	r, err := ParseRecord(text)
	if err == nil {
		i.Record = &r
	}
	return err
}

// etagKind tells an ETag's kind by its form, which is good enough to show and
// never decides anything.
func etagKind(etag string, believedUnique bool) ETagKind {
	switch {
	case believedUnique:
		return ETagUnique
	case strings.Contains(etag, "-"):
		return "" // of several parts, whose boundaries can't be seen from here
	case len(etag) == 2*md5.Size:
		return ETagRepeatable
	}
	return ETagUnique
}
