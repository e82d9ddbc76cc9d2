package guard

import (
	"context"
	"crypto/md5"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
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
	if o.Resume {
		body = g.resuming(ctx, info, body)
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
	// Resume makes the reader go on with another request where an answer was cut
	// short, by the ETag. The context must last until it is closed. Of an object
	// that was replaced meanwhile, the Read ends with [ErrPreconditionFailed].
	Resume bool
}

// A resumingBody reads an object in as many answers as it takes.
type resumingBody struct {
	call
	ctx  context.Context
	info Info
	body io.ReadCloser // of the last answer
	sum  hash.Hash     // of what was read; nil where there is nothing to compare it with
	n    int64         // bytes read
	cut  bool          // there was more than one answer
	err  error         // of the last answer, which came with bytes
	end  error         // of it all
}

func (g *Guard) resuming(ctx context.Context, info Info, body io.ReadCloser) *resumingBody {
	b := &resumingBody{call: call{g: g}, ctx: ctx, info: info, body: body}
	if info.Checksum.Value != "" {
		b.sum = info.Checksum.NewHash()
	}
	return b
}

// Read implements io.Reader.
func (b *resumingBody) Read(p []byte) (n int, err error) {
	for b.end == nil {
		if err, b.err = b.err, nil; err == nil {
			n, err = b.body.Read(p)
		}
		if n > 0 {
			b.n += int64(n)
			b.failures = 0
			if b.sum != nil {
				b.sum.Write(p[:n])
			}
			b.err = err
			return n, nil
		}
		if err != nil {
			b.end = b.goOn(err)
		}
	}
	return 0, b.end
}

// goOn asks for what is missing after err. It returns io.EOF when nothing is.
func (b *resumingBody) goOn(err error) error {
	left := b.info.Size - b.n
	switch {
	case err == io.EOF && left == 0 && !b.cut, b.info.Size < 0, classify(err) == final:
		return err
	case left == 0 && b.sum == nil:
		if b.cut {
			return io.EOF // the rest is not what the store has a checksum of
		}
		return err
	case left == 0:
		if got := base64.StdEncoding.EncodeToString(b.sum.Sum(nil)); got != b.info.Checksum.Value {
			return fmt.Errorf("the bytes are not what was stored: their %s is %s, not %s", b.info.Checksum.Algorithm, got, b.info.Checksum.Value)
		}
		return io.EOF
	case err == io.EOF:
		err = fmt.Errorf("%w: %d of %d bytes", io.ErrUnexpectedEOF, b.n, b.info.Size)
	}
	b.cut = true
	for {
		if err := b.pause(b.ctx, err); err != nil {
			return err
		}
		var body io.ReadCloser
		_, body, err = b.g.store.Get(b.ctx, b.info.Key, ReadOptions{ETag: b.info.ETag, Offset: b.n, Size: left})
		b.g.log.DebugContext(b.ctx, "get the rest", "url", b.info.URL, "offset", b.n, "error", err)
		if err == nil {
			_ = b.body.Close()
			b.body = body
			return nil
		}
		if classify(err) == moved {
			return fmt.Errorf("it was replaced after %d of %d bytes: %w", b.n, b.info.Size, err)
		}
	}
}

// Close implements io.Closer.
func (b *resumingBody) Close() error { return b.body.Close() }

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
