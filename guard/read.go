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
	// Prefix says, in a walk, that Key is what several keys begin with, and the
	// rest is zero.
	Prefix bool
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
// tombstone); a [*Refusal] where it lies below opts.Floor; ErrNoBucket;
// ErrDenied; the context's. opts may be nil.
func (g *Guard) Get(ctx context.Context, key string, opts *GetOptions) (Info, io.ReadCloser, error) {
	var o GetOptions
	if opts != nil {
		o = *opts
	}
	c := &call{g: g}
	info := Info{Key: key, URL: g.store.URL(key)}
	body, err := c.get(ctx, key, o.Floor, &info)
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

// GetOptions refine a Get.
type GetOptions struct {
	// Floor is the least that the reader wants to see.
	Floor Floor
}

// A Floor is what a reader has seen of a key already. An object below it has
// been set back, or comes from a cache or a replica that lags behind. The zero
// Floor asks for nothing.
type Floor struct {
	// Fence is the least fencing number. Zero: the object need not be fenced.
	Fence Fence
	// Issuer and Scope, if set, are those that the number is of.
	Issuer IssuerID
	Scope  string
}

// Floor returns what who saw r should ask for from now on.
func (r Record) Floor() Floor { return Floor{r.Fence(), r.Issuer, r.Scope} }

// Floor returns what to ask for to see what was written with t, or later.
func (t Token) Floor() Floor { return Floor{Fence{t.number, 1}, t.issuer, t.scope} }

// check refuses what lies below the floor. A tombstone that doesn't is for the
// caller to find.
func (f Floor) check(info Info) error {
	if f.Fence.Number == 0 {
		return nil
	}
	r := &Refusal{
		Key: info.Key, URL: info.URL, Held: info.Record,
		Offered: Record{Issuer: f.Issuer, Scope: f.Scope, Number: f.Fence.Number, Sequence: f.Fence.Sequence},
	}
	switch held := info.Record; {
	case held == nil:
		r.Reason, r.Detail = ErrUnfenced, "the reader has seen it with "+f.Fence.String()
	case f.Scope != "" && f.Scope != held.Scope:
		r.Reason = ErrScopeMismatch
	case f.Issuer != IssuerID{} && f.Issuer != held.Issuer:
		r.Reason = ErrIssuerMismatch
	case held.Fence().Compare(f.Fence) < 0:
		r.Reason, r.Below = ErrStale, true
		r.Cures = []string{"read again later, or find out who set it back: s3fence audit"}
	default:
		return nil
	}
	return r
}

func (c *call) get(ctx context.Context, key string, floor Floor, info *Info) (io.ReadCloser, error) {
	if err := CheckKey(key); err != nil {
		return nil, err
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		c.requests++
		obj, body, err := c.g.store.Get(ctx, key, ReadOptions{})
		c.g.log.DebugContext(ctx, "get", "url", info.URL, "etag", obj.ETag, "error", err)
		if err == nil {
			info.Object = obj
			if err = info.fill(); err == nil {
				err = floor.check(*info)
			}
			if err == nil && info.Record != nil && info.Record.State == Deleted {
				err = fmt.Errorf("%w: deleted with token %s (scope %s)", ErrNotFound, info.Record.Fence(), info.Record.Scope)
			}
			if err != nil {
				return nil, errors.Join(err, body.Close())
			}
			return body, nil
		}
		if errors.Is(err, ErrNotFound) {
			if floor.Fence.Number > 0 {
				// A guarded delete leaves a tombstone.
				err = &Refusal{Reason: ErrFenceLost, Key: key, URL: info.URL, Err: err,
					Detail: "the reader has seen it with " + floor.Fence.String() + ", and it was deleted around the guard"}
			}
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
