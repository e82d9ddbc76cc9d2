package guard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
)

// DownloadOptions refine a Download. The zero value of each field means its
// default.
type DownloadOptions struct {
	// Floor is that of [GetOptions].
	Floor Floor
	// PartSize is how many bytes are read by one request, at most [MaxObject].
	// Default: [DefaultPartSize] twice.
	PartSize int64
	// Concurrency is how many requests there are at once. Default:
	// [DefaultConcurrency].
	Concurrency int
	// Progress, if set, is told of bytes as they arrive. It is called by many
	// goroutines at once.
	Progress func(n int64)
}

// A ReadWriterAt is where a Download goes, an *os.File for one.
type ReadWriterAt interface {
	io.ReaderAt
	io.WriterAt
}

// Download reads key into to, which is empty, large objects in several parts
// at once. All parts are of one write, by its ETag; an object that is replaced
// meanwhile is read again from the start. The bytes are compared with the
// checksum that the store keeps of the whole object, where it keeps one and the
// client is not set to leave that out. After an error, what is in to is not the
// object.
//
// Errors are those of [Guard.Get]; bytes that do not match their checksum are
// an error that has no reason.
func (g *Guard) Download(ctx context.Context, key string, to ReadWriterAt, opts *DownloadOptions) (Info, error) {
	var o DownloadOptions
	if opts != nil {
		o = *opts
	}
	if o.PartSize <= 0 {
		o.PartSize = 2 * DefaultPartSize
	}
	o.PartSize = min(o.PartSize, MaxObject) // twice that is a number, too
	if o.Concurrency <= 0 {
		o.Concurrency = DefaultConcurrency
	}
	d := download{call: call{g: g}, key: key, to: to, o: o}
	info := Info{Key: key, URL: g.store.URL(key)}
	err := d.run(ctx, &info)
	info.Requests = d.requests + int(d.aside.Load())
	if err != nil {
		return info, naming("get", info.URL, err)
	}
	return info, nil
}

type download struct {
	call
	key   string
	to    ReadWriterAt
	o     DownloadOptions
	aside atomic.Int64 // requests for parts
}

func (d *download) run(ctx context.Context, info *Info) error {
	for {
		// The first answer tells whether there is enough for more requests. If
		// not, it has it all, with the store's checksum compared.
		body, err := d.get(ctx, d.key, d.o.Floor, info)
		if err != nil {
			return err
		}
		if info.Size < 2*d.o.PartSize {
			err = d.whole(ctx, info, body)
		} else {
			err = d.rest(ctx, *info, body)
		}
		if err == nil {
			return nil
		}
		if !errors.Is(err, ErrPreconditionFailed) && !errors.Is(err, ErrNotFound) {
			return err
		}
		if err != errAgain {
			// Replaced meanwhile: these bytes are no one's.
			if err := d.pause(ctx, err); err != nil {
				return err
			}
		}
		*info = Info{Key: info.Key, URL: info.URL}
	}
}

// whole stores a body that comes in one answer.
func (d *download) whole(ctx context.Context, info *Info, body io.ReadCloser) error {
	n, err := d.store(0, info.Size, body)
	switch {
	case err == nil:
		if info.Size < 0 { // the store did not say
			info.Size = n
		}
		return nil
	case ctx.Err() != nil:
		return err
	case classify(err) == final:
		return err
	}
	if err := d.pause(ctx, err); err != nil {
		return err
	}
	return errAgain
}

// errAgain begins a download anew.
var errAgain = fmt.Errorf("%w: read again", ErrPreconditionFailed)

// rest stores the first part and reads the others.
func (d *download) rest(ctx context.Context, info Info, first io.ReadCloser) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	room := make(chan struct{}, d.o.Concurrency)
	part := func(do func() error) {
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
			return
		}
		wg.Go(func() {
			defer func() { <-room }()
			if err := do(); err != nil {
				cancel(err)
			}
		})
	}
	part(func() error {
		if _, err := d.store(0, d.o.PartSize, first); err == nil || classify(err) == final || ctx.Err() != nil {
			return err
		}
		return d.part(ctx, info, 0)
	})
	for at := d.o.PartSize; at < info.Size && ctx.Err() == nil; at += d.o.PartSize {
		part(func() error { return d.part(ctx, info, at) })
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return d.compare(ctx, info)
}

// part reads one part, again where that may help.
func (d *download) part(ctx context.Context, info Info, at int64) error {
	c := call{g: d.g}
	for {
		d.aside.Add(1)
		_, body, err := d.g.store.Get(ctx, d.key, ReadOptions{ETag: info.ETag, Offset: at, Size: d.o.PartSize})
		if err == nil {
			_, err = d.store(at, min(info.Size-at, d.o.PartSize), body)
		}
		if err == nil || classify(err) == moved {
			return err
		}
		if err := c.pause(ctx, err); err != nil {
			return fmt.Errorf("read from byte %d on: %w", at, err)
		}
	}
}

// copyBuffers are lent to parts.
var copyBuffers = sync.Pool{New: func() any { return new([256 << 10]byte) }}

// store stores size bytes of body, or all that it has if size is negative. It
// leaves what follows them.
func (d *download) store(at, size int64, body io.ReadCloser) (done int64, err error) {
	defer body.Close()
	b := copyBuffers.Get().(*[256 << 10]byte)
	defer copyBuffers.Put(b)
	for {
		buf := b[:]
		if left := size - done; size >= 0 && left < int64(len(buf)) {
			buf = buf[:left]
		}
		var n int
		if len(buf) == 0 {
			// At its end, the body has its checksum to say; a part of it has not.
			if n, err = body.Read(b[:1]); n > 0 {
				return done, nil
			}
		} else {
			n, err = body.Read(buf)
		}
		if n > 0 {
			if _, werr := d.to.WriteAt(b[:n], at+done); werr != nil {
				return done, &gaveUp{1, fmt.Errorf("write: %w", werr)}
			}
			done += int64(n)
			if d.o.Progress != nil {
				d.o.Progress(int64(n))
			}
		}
		switch {
		case err == io.EOF && (done == size || size < 0):
			return done, nil
		case err == io.EOF:
			return done, fmt.Errorf("%w: %d of %d bytes", io.ErrUnexpectedEOF, done, size)
		case err != nil:
			return done, err
		}
	}
}

// compare holds what was stored against the checksum that came with the first answer.
func (d *download) compare(ctx context.Context, info Info) error {
	same, known, err := info.Checksum.matches(ctx, ReaderAt(d.to, info.Size))
	if known && !same {
		err = &gaveUp{1, fmt.Errorf("the bytes are not what was stored: their %s is not %s", info.Checksum.Algorithm, info.Checksum.Value)}
	}
	return err
}
