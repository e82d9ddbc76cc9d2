package guard

import (
	"context"
	"errors"
	"fmt"
	"io"
)

const (
	// DefaultPartSize is about how many bytes a part has.
	DefaultPartSize = 8 << 20
	// DefaultConcurrency is how many parts are sent at once.
	DefaultConcurrency = 8
	// glanceEvery is after how many parts the object is looked at again, so that
	// an upload that is too late ends soon.
	glanceEvery = 32
	// growEvery is after how many parts those of a stream get twice as large, so
	// that MaxObject fits into MaxParts, whatever size they began with.
	growEvery = 900
)

// PutStream is [Guard.Put] of what r holds up to its end, of unknown length. It
// is read once, and not before the object has been looked at. At most
// PartSize times Concurrency plus two parts of it are held in memory. After each
// 900 parts (7 GiB of 8 MiB each) their size doubles, and half as many are sent
// at once, down to one beside the one that is read: from 56 GiB on, memory grows
// with the stream, up to 5 GiB for one of 5 TiB. A larger PartSize begins there.
//
// A read that fails with anything but io.EOF ends it, and nothing is written. A
// write that has to be sent again from the start, since the store dropped the
// parts, can't be: that is ErrRejected. When the context ends, a read that is
// under way is left behind; whoever gave r ends it.
func (g *Guard) PutStream(ctx context.Context, tok Token, key string, r io.Reader, opts *PutOptions) (Result, error) {
	var o PutOptions
	if opts != nil {
		o = *opts
	}
	return g.write(ctx, tok, key, "put", &write{opts: o, sender: &upload{stream: &stream{r: r}}})
}

// An upload sends the body: in one PUT if it is small, in parts if it is not.
type upload struct {
	multipart
	// stream is where the bytes come from; nil when they are the write's body.
	stream *stream
}

func (o PutOptions) partSize() int64 {
	if o.PartSize == 0 {
		return DefaultPartSize
	}
	return o.PartSize
}

func (o PutOptions) concurrency() int {
	if o.Concurrency == 0 {
		return DefaultConcurrency
	}
	return o.Concurrency
}

// salts: what is large enough to be cut, unless the store can't be trusted
// with parts. Of a stream that is not known before it is read.
func (u *upload) salts(w *write, _ sighting) bool {
	return (u.stream != nil || w.body.Size() >= minSalted) && w.g.multipartLimit() == ""
}

// inParts reports whether the body is to be sent in parts.
func (u *upload) inParts(ctx context.Context, w *write, v verdict) (bool, error) {
	size := w.body.Size()
	switch {
	case size < minSalted:
		return false, nil
	case size > MaxSinglePart, size >= 2*w.opts.partSize() && w.g.multipartLimit() == "":
		return true, w.multipartSafe()
	case v.action != replace || w.opts.AcceptRepeatableETag || w.g.multipartLimit() != "":
		return false, nil
	}
	unique, err := w.uniqueETag(ctx)
	return !unique, err
}

// rehearse leaves a stream unread.
func (u *upload) rehearse(ctx context.Context, w *write, v verdict, _ sighting) error {
	if u.stream != nil {
		return nil
	}
	_, err := u.inParts(ctx, w, v)
	return err
}

func (u *upload) prepare(ctx context.Context, w *write, v verdict, seen sighting) (took bool, err error) {
	if u.up != nil {
		return false, nil
	}
	if u.stream != nil {
		return u.prepareStream(ctx, w, v, seen)
	}
	inParts, err := u.inParts(ctx, w, v)
	if !inParts || err != nil {
		return false, err
	}
	cuts, err := w.cuts(w.body.Size(), w.opts.partSize())
	if err != nil {
		return false, err
	}
	next, offset := 0, int64(0)
	return u.parted(ctx, w, w.opts.concurrency(), func(context.Context) (Body, func(), error) {
		if next == len(cuts) {
			return Body{}, nil, io.EOF
		}
		part := ReaderAt(io.NewSectionReader(w.body.r, offset, cuts[next]), cuts[next])
		offset += cuts[next]
		next++
		return part, func() {}, nil
	})
}

// parted sends the parts that next returns, up to io.EOF. They are many enough
// to take a while.
func (u *upload) parted(ctx context.Context, w *write, atOnce int, next func(context.Context) (part Body, done func(), err error)) (took bool, err error) {
	if err := u.begin(ctx, w, UploadRequest{
		Headers: fencedHeaders(w.opts.Headers, w.res.Record), SSE: w.opts.SSE, SSEKMSKeyID: w.opts.SSEKMSKeyID, Tags: w.opts.Tags,
		Checksum: uploadChecksum,
	}); err != nil {
		return false, err
	}
	u.unique = true
	n := 0
	err = inParallel(ctx, atOnce, func(ctx context.Context) (func(context.Context) error, error) {
		if n > 0 && n%glanceEvery == 0 {
			if err := w.glance(ctx); err != nil {
				return nil, err
			}
		}
		body, done, err := next(ctx)
		if err != nil {
			return nil, err
		}
		n++
		n := n
		return func(ctx context.Context) error {
			defer done()
			return u.part(ctx, w, n, "send", func(up Upload) (Part, error) { return w.sendPart(ctx, up, n, body) })
		}, nil
	})
	if err == nil {
		return true, nil
	}
	u.close(ctx, w)
	var r *Refusal
	if errors.As(err, &r) {
		return false, r // of a glance
	}
	return false, unsent(err)
}

// sendPart sends one part. A body that can't be read is not sent again.
func (w *write) sendPart(ctx context.Context, up Upload, n int, body Body) (Part, error) {
	source := &watchedBody{r: body.Reader(), size: body.Size()}
	p, err := w.g.store.UploadPart(ctx, up, n, ReaderAt(source, body.Size()))
	if _, bad := source.seal(); err != nil && bad != nil {
		err = bodyError{bad}
	}
	return p, err
}

func (u *upload) send(ctx context.Context, w *write, v verdict, _ sighting) (PutResult, error) {
	if u.up == nil {
		return w.putOnce(ctx, v.condition(), w.body, w.opts.Headers, w.opts.Tags, w.opts.SSE, w.opts.SSEKMSKeyID)
	}
	return u.complete(ctx, w, v.condition())
}

// A stream is read once.
type stream struct {
	r     io.Reader
	spent bool
	read  int64
}

var errSpent = errors.New("the store dropped the parts, and the stream can't be read again: run it again from the start")

func (u *upload) prepareStream(ctx context.Context, w *write, v verdict, seen sighting) (took bool, err error) {
	s, size := u.stream, w.opts.partSize()
	if s.spent {
		return false, fmt.Errorf("%w: %w", ErrRejected, errSpent)
	}
	s.spent = true
	first := make([]byte, max(size, minSalted))
	n, err := s.fill(ctx, first)
	if err != nil && err != io.EOF {
		return false, err
	}
	if err == io.EOF {
		// It fits into one part: a body like any other.
		w.body, u.stream = Bytes(first[:n]), nil
		w.res.Bytes = s.read
		// Whether it may replace the object depends on its size.
		if v, err = w.decide(ctx, seen); err != nil || v.action == refuse {
			if err == nil {
				err = w.refused(v)
			}
			return false, err
		}
		return u.prepare(ctx, w, v, seen)
	}
	if err := w.multipartSafe(); err != nil {
		return false, err
	}
	cuts, err := w.cuts(int64(len(first))+1, int64(len(first))) // of which the first is salted
	if err != nil {
		return false, err
	}
	buffers := make(chan []byte, w.opts.concurrency()+1)
	for range cap(buffers) {
		buffers <- nil
	}
	var rest []byte // read and not sent
	parts, ended := 0, false
	took, err = u.parted(ctx, w, w.opts.concurrency(), func(ctx context.Context) (Body, func(), error) {
		if ended {
			return Body{}, nil, io.EOF
		}
		if parts == MaxParts {
			return Body{}, nil, fmt.Errorf("%w: the stream does not end within %d parts, of %d bytes in all", ErrRejected, MaxParts, s.read)
		}
		if parts == 0 {
			rest = first[cuts[0]:]
			parts++
			return Bytes(first[:cuts[0]]), func() {}, nil
		}
		if parts > 0 && parts%growEvery == 0 && size < MaxSinglePart/2 {
			size *= 2
			if cap(buffers) > 2 { // what is in memory stays about the same
				buffers = shrink(ctx, buffers, max(2, cap(buffers)/2))
			}
		}
		var b []byte
		select {
		case b = <-buffers:
		case <-ctx.Done():
			return Body{}, nil, context.Cause(ctx)
		}
		back := buffers
		if int64(cap(b)) < size {
			b = make([]byte, size)
		}
		b = b[:size]
		n := copy(b, rest)
		rest = rest[n:]
		m, err := s.fill(ctx, b[n:])
		if err != nil && err != io.EOF {
			return Body{}, nil, err
		}
		if ended = err == io.EOF; n+m == 0 {
			return Body{}, nil, io.EOF
		}
		if s.read > MaxObject {
			return Body{}, nil, fmt.Errorf("%w: the stream is longer than the %d bytes that an object takes", ErrRejected, int64(MaxObject))
		}
		parts++
		return Bytes(b[:n+m]), func() { back <- b }, nil
	})
	w.res.Bytes = s.read
	return took, err
}

// shrink waits until all buffers are back, and returns fewer, to be made anew.
func shrink(ctx context.Context, buffers chan []byte, n int) chan []byte {
	for range cap(buffers) {
		select {
		case <-buffers:
		case <-ctx.Done():
			return buffers
		}
	}
	fewer := make(chan []byte, n)
	for range n {
		fewer <- nil
	}
	return fewer
}

// fill reads until b is full or the stream ends, with io.EOF then. It leaves a
// read that is under way behind when the context ends.
func (s *stream) fill(ctx context.Context, b []byte) (n int, err error) {
	if len(b) == 0 {
		return 0, nil
	}
	type end struct {
		n   int
		err error
	}
	done := make(chan end, 1)
	go func() {
		var e end
		for e.n < len(b) && e.err == nil {
			var n int
			n, e.err = s.r.Read(b[e.n:])
			e.n += n
		}
		done <- e
	}()
	select {
	case e := <-done:
		s.read += int64(e.n)
		if e.err == nil || e.err == io.EOF {
			return e.n, e.err
		}
		return e.n, bodyError{e.err}
	case <-ctx.Done():
		return 0, notYet("read the body", context.Cause(ctx))
	}
}
