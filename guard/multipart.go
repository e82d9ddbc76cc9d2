package guard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// Sizes of multipart uploads, which S3 sets.
const (
	// MinPart is the smallest part but the last, in bytes.
	MinPart = 5 << 20
	// MaxParts is how many parts an upload may have.
	MaxParts = 10_000
	// MaxObject is the largest object, in bytes.
	MaxObject = 5 << 40
	// minSalted is the smallest body whose parts can be cut in enough ways (2^20)
	// for the ETag to be one of its own.
	minSalted = MinPart + 1<<20
)

// A multipart is a multipart upload on its way to become the object.
type multipart struct {
	up    *Upload
	mu    sync.Mutex
	parts []Part
	// unique: its boundaries are salted.
	unique bool
}

func (m *multipart) salted() bool { return m.unique }

// begin begins the upload, without a checksum if the store takes it only so.
// One whose answer is lost is left to the bucket's lifecycle rules, and to the
// audit.
func (m *multipart) begin(ctx context.Context, w *write, req UploadRequest) error {
	refused := error(nil) // with a checksum
	if w.g.noUploadChecksum.Load() {
		req.Checksum = ""
	}
	for {
		w.requests++
		up, err := w.g.store.CreateUpload(ctx, w.key, req)
		w.g.log.DebugContext(ctx, "create upload", "url", w.res.URL, "fence", w.res.Record.Fence(), "error", err)
		if err == nil {
			m.up, m.parts = &up, nil
			if refused != nil {
				w.g.noUploadChecksum.Store(true)
				w.g.log.WarnContext(ctx, "the store takes no checksum of a multipart upload", "url", w.res.URL, "error", refused)
			}
			return nil
		}
		if req.Checksum != "" && (errors.Is(err, ErrUnsupported) || errors.Is(err, ErrRejected)) {
			refused, req.Checksum = err, ""
			continue
		}
		if err := w.pause(ctx, err); err != nil {
			return notYet("begin a multipart upload", err)
		}
	}
}

// part makes the n-th part, again where that may help: a part that is made
// twice does no harm. It is safe for concurrent use.
func (m *multipart) part(ctx context.Context, w *write, n int, how string, do func(Upload) (Part, error)) error {
	c := call{g: w.g}
	for {
		w.aside.Add(1)
		p, err := do(*m.up)
		w.g.log.DebugContext(ctx, how+" part", "url", w.res.URL, "part", n, "error", err)
		switch {
		case err == nil:
			m.mu.Lock()
			defer m.mu.Unlock()
			for len(m.parts) < n {
				m.parts = append(m.parts, Part{})
			}
			m.parts[n-1] = p
			return nil
		case classify(err) == moved:
			return err
		}
		if err := c.pause(ctx, err); err != nil {
			return notYet(fmt.Sprintf("%s part %d", how, n), err)
		}
	}
}

// inParallel runs what next returns until that is io.EOF, so many at once, and
// ends with the first error. next is called by one goroutine, and only when there
// is room for one more.
func inParallel(ctx context.Context, atOnce int, next func(context.Context) (func(context.Context) error, error)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	room := make(chan struct{}, atOnce)
	jobs := make(chan func(context.Context) error, atOnce)
	workers := 0 // no more than there is to do; each keeps the stack that the first needed
	var wg sync.WaitGroup
	for ctx.Err() == nil {
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
			continue
		}
		do, err := next(ctx)
		if err == io.EOF {
			break
		}
		if err != nil {
			cancel(err)
			break
		}
		if workers < atOnce {
			workers++
			wg.Go(func() {
				for do := range jobs {
					if err := do(ctx); err != nil {
						cancel(err)
					}
					<-room
				}
			})
		}
		jobs <- do
	}
	close(jobs)
	wg.Wait()
	return context.Cause(ctx)
}

// complete makes the upload the object.
func (m *multipart) complete(ctx context.Context, w *write, cond Condition) (PutResult, error) {
	w.requests++
	res, err := w.g.store.CompleteUpload(ctx, *m.up, CompleteRequest{Condition: cond, Parts: m.parts})
	w.g.log.DebugContext(ctx, "complete upload", "url", w.res.URL, "fence", w.res.Record.Fence(), "parts", len(m.parts),
		"if_absent", cond.Absent(), "if_match", cond.ETag(), "error", err)
	if err == nil || errors.Is(err, ErrNoUpload) {
		m.up = nil // become the object, or to be made anew if it still is to be
	}
	return res, err
}

// abortTimeout bounds the cleaning up after a write whose context is over.
const abortTimeout = 10 * time.Second

// close throws the upload away, also when the context is done.
func (m *multipart) close(ctx context.Context, w *write) {
	if m.up == nil {
		return
	}
	up := *m.up
	m.up, m.parts = nil, nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
	defer cancel()
	c := call{g: w.g}
	for {
		w.aside.Add(1)
		err := w.g.store.AbortUpload(ctx, up)
		w.g.log.DebugContext(ctx, "abort upload", "url", w.res.URL, "error", err)
		if err == nil || errors.Is(err, ErrNoUpload) {
			return
		}
		if err := c.pause(ctx, err); err != nil {
			w.g.log.WarnContext(ctx, "a multipart upload was left behind; s3fence audit --abort-uploads URL throws it away", "url", w.res.URL, "upload", up.ID, "error", err)
			return
		}
	}
}

// cuts returns the sizes of the parts of a body, of about partSize each. A body
// that is large enough has a first part of random size, and so an ETag of its
// own: the ETag of an upload is a hash of its parts' hashes.
func (w *write) cuts(size, partSize int64) ([]int64, error) {
	if size < minSalted {
		return []int64{size}, nil
	}
	partSize = max(partSize, (size+MaxParts-2)/(MaxParts-1))
	// All but the last are at least MinPart, and the last has a byte or more.
	room := min(partSize, size-1) - MinPart
	var salt [8]byte
	if _, err := io.ReadFull(w.g.rand, salt[:]); err != nil {
		return nil, err
	}
	first := MinPart + int64(binary.BigEndian.Uint64(salt[:])%uint64(room+1))
	cuts := []int64{first}
	for left := size - first; left > 0; left -= cuts[len(cuts)-1] {
		cuts = append(cuts, min(left, partSize))
	}
	return cuts, nil
}

// isMultipart tells by its form that an ETag is that of a multipart upload.
func isMultipart(etag string) bool { return strings.Contains(etag, "-") }

// multipartSafe refuses multipart uploads to a store whose profile says that it
// does not honour their conditions.
func (w *write) multipartSafe() error {
	if l := w.g.multipartLimit(); l != "" {
		r := w.refusal(ErrStoreUnsafe, nil, nil)
		r.Detail = "its profile has the limit " + l + ", so nothing is written in parts"
		r.Cures = []string{"send it in one part: a file of less than 5 GiB, not a stream"}
		return r
	}
	return nil
}

// multipartLimit returns the first of the profile's limits that speaks against
// multipart uploads.
func (g *Guard) multipartLimit() string {
	if p := g.profile.known.Load(); p != nil {
		for _, l := range p.Limits {
			if strings.HasPrefix(l, "multipart-") {
				return l
			}
		}
	}
	return ""
}
