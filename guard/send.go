package guard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"
)

// A sender makes the requests of a write, the last of which makes the object
// what it shall be, if the condition that v names holds.
type sender interface {
	// salts reports whether it would give what replaces seen an ETag that the
	// boundaries of its parts make unique; salted, whether it did.
	salts(w *write, seen sighting) bool
	salted() bool
	// rehearse finds out what prepare would refuse, and changes nothing.
	rehearse(ctx context.Context, w *write, v verdict, seen sighting) error
	// prepare makes the requests before the last one, if there are any and they
	// are not made yet. Its errors are such that nothing changed ([notYet]). took
	// says that it took long enough for the object to be looked at again.
	prepare(ctx context.Context, w *write, v verdict, seen sighting) (took bool, err error)
	// send returns the answer to the last request, or its error.
	send(ctx context.Context, w *write, v verdict, seen sighting) (PutResult, error)
	// close throws away what was prepared and did not become the object.
	close(ctx context.Context, w *write)
}

// condition is what v asks the store to check.
func (v verdict) condition() Condition {
	if v.action == replace {
		return IfMatch(v.etag)
	}
	return IfAbsent()
}

// notYet says of an error that it came before the request that counts, and of
// what, which the store's own words may say already.
func notYet(what string, err error) error {
	if !strings.Contains(err.Error(), what) {
		err = fmt.Errorf("%s: %w", what, err)
	}
	return unsent(err)
}

// unsent says of an error that it came before the request that counts.
func unsent(err error) error {
	if classify(err) == unknown {
		return fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	return err
}

// fencedHeaders are h with the fence record in them.
func fencedHeaders(h Headers, r Record) Headers {
	h.Metadata = maps.Clone(h.Metadata)
	if h.Metadata == nil {
		h.Metadata = make(map[string]string, 1)
	}
	h.Metadata[RecordKey] = r.String()
	return h
}

// putOnce makes one PUT.
func (w *write) putOnce(ctx context.Context, cond Condition, body Body, h Headers, tags map[string]string, sse, key string) (PutResult, error) {
	source := &watchedBody{r: body.Reader(), size: body.Size()}
	w.requests++
	res, err := w.g.store.Put(ctx, w.key, PutRequest{
		Condition: cond,
		Body:      ReaderAt(source, body.Size()),
		Headers:   fencedHeaders(h, w.res.Record),
		SSE:       sse, SSEKMSKeyID: key,
		Tags: tags,
	})
	w.g.log.DebugContext(ctx, "put", "url", w.res.URL, "fence", w.res.Record.Fence(),
		"if_absent", cond.Absent(), "if_match", cond.ETag(), "error", err)
	unread, bad := source.seal()
	switch {
	case err == nil || classify(err) != unknown:
		return res, err
	case bad != nil:
		return res, bodyError{bad}
	case unread:
		// The store never got the whole body and never will, so it can't take it.
		return res, fmt.Errorf("%w whole: %w", ErrNotSent, err)
	}
	return res, err
}

// A bodyError is of a body that can't be read. It is an ErrRejected, since the
// write is as final as one, but not in words: the store rejected nothing.
type bodyError struct{ err error }

func (e bodyError) Error() string { return "read the body: " + e.err.Error() }

func (e bodyError) Unwrap() []error { return []error{ErrRejected, e.err} }

// watchedBody knows how far it was read, and that reading it failed. A request
// that could not read its body to the end is no request that a store can take,
// whatever became of its answer; so after a failure the body is sealed, and what
// was not read by then is never sent.
type watchedBody struct {
	r    io.ReaderAt
	size int64

	mu     sync.Mutex
	end    int64 // of the last read; reading again from the start sets it back
	err    error
	sealed bool
}

var errSealed = errors.New("the write is over")

// ReadAt implements io.ReaderAt.
func (b *watchedBody) ReadAt(p []byte, off int64) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sealed {
		return 0, errSealed
	}
	n, err := b.r.ReadAt(p, off)
	b.end = off + int64(n)
	if err == io.EOF && b.end < b.size {
		err = fmt.Errorf("%w: it became shorter while it was read", io.ErrUnexpectedEOF)
	}
	if err != nil && err != io.EOF {
		b.err = err
	}
	return n, err
}

// seal ends all reading. It reports whether bytes are left unread, and the
// error of reading, if there was one.
func (b *watchedBody) seal() (unread bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sealed = true
	return b.end < b.size, b.err
}
