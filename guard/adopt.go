package guard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
)

// AdoptOptions refine an Adopt. The zero value of each field means its default.
type AdoptOptions struct {
	// From takes over an object of this counter, whatever its number: of
	// another scope, or of an issuer that is no longer used. Nobody may write
	// with its tokens any more; that is the caller's to know.
	From IssuerID
	// Recover takes what was deleted, or set back to an older version, around
	// the guard, in a bucket that keeps versions: the token must be higher than
	// the highest number in the versions. What was deleted is brought back from
	// its newest version.
	Recover bool
	// Sequence and WriteID are those of [PutOptions].
	Sequence int64
	WriteID  WriteID
	// SSE and SSEKMSKeyID encrypt the object anew. Default: as it is.
	SSE, SSEKMSKeyID string
	// AcceptRepeatableETag gives up the ETag rule, which holds for an object
	// that another counter had written; see [PutOptions].
	AcceptRepeatableETag bool
	// DryRun observes and decides, and does not write.
	DryRun bool
}

// Adopt brings an object that was written around the guard under it: bytes,
// content headers, user metadata, tags and storage class stay as they are, the
// fence record is added. The store copies the bytes itself; those of a small
// object whose ETag could not change that way go through this process (less
// than 6 MiB). An object that is fenced by the token's own counter is left alone:
// [AlreadyFenced].
//
// It is one write like any other: under a condition on the ETag that was
// observed, which also holds for the copying. The ETag changes, so that no
// writer that saw the object before can take it for the same. Tags are not
// covered by the condition: those set while it runs are lost. ACLs, legal holds
// and retention are those of a new object.
//
// Errors are those of [Guard.Put], and ErrNotFound.
func (g *Guard) Adopt(ctx context.Context, tok Token, key string, opts *AdoptOptions) (Result, error) {
	var o AdoptOptions
	if opts != nil {
		o = *opts
	}
	return g.write(ctx, tok, key, "adopt", &write{
		kind: adopting, from: o.From, recover: o.Recover, sender: &adoption{},
		opts: PutOptions{
			Sequence: o.Sequence, WriteID: o.WriteID, SSE: o.SSE, SSEKMSKeyID: o.SSEKMSKeyID,
			AcceptRepeatableETag: o.AcceptRepeatableETag, DryRun: o.DryRun,
		},
	})
}

// An adoption makes the object of its own bytes.
type adoption struct {
	source Object // what it was prepared from
	multipart
	// rewritten is what goes through this process instead, headers and all.
	rewritten *PutRequest
}

// salts: those that are copied, if they are large enough.
func (a *adoption) salts(_ *write, seen sighting) bool { return seen.object.Size >= minSalted }

func (a *adoption) rehearse(ctx context.Context, w *write, _ verdict, seen sighting) error {
	_, _, err := a.plan(ctx, w, seen.object)
	return err
}

// plan is what the object shall be made of, and whether its bytes go through
// this process.
func (a *adoption) plan(ctx context.Context, w *write, src Object) (req UploadRequest, rewrite bool, err error) {
	w.res.Bytes = src.Size
	if src.ETag == "" || src.Size < 0 {
		return req, false, fmt.Errorf("%w: the store does not say what there is to adopt", ErrRejected)
	}
	if req, err = a.keep(ctx, w, src); err != nil {
		return req, false, err
	}
	if src.Size < minSalted && !uniqueSSE(req.SSE) && isMultipart(src.ETag) {
		// In one part again it would get the very same ETag.
		return req, true, nil
	}
	return req, false, w.multipartSafe()
}

func (a *adoption) prepare(ctx context.Context, w *write, _ verdict, seen sighting) (took bool, err error) {
	src := seen.object
	if a.source.ETag == src.ETag && a.source.VersionID == src.VersionID && (a.up != nil || a.rewritten != nil) {
		return false, nil
	}
	a.close(ctx, w)
	a.source, a.rewritten = src, nil
	req, rewrite, err := a.plan(ctx, w, src)
	if err != nil {
		return false, err
	}
	if rewrite {
		a.rewritten, err = a.read(ctx, w, src, req)
		return false, err
	}
	if err := a.copy(ctx, w, src, req); err != nil {
		a.close(ctx, w)
		return false, unsent(err)
	}
	return len(a.parts) > 1, nil
}

func (a *adoption) send(ctx context.Context, w *write, v verdict, _ sighting) (PutResult, error) {
	if r := a.rewritten; r != nil {
		return w.putOnce(ctx, v.condition(), r.Body, r.Headers, r.Tags, r.SSE, r.SSEKMSKeyID)
	}
	return a.complete(ctx, w, v.condition())
}

// keep is what the object shall have again.
func (a *adoption) keep(ctx context.Context, w *write, src Object) (UploadRequest, error) {
	req := UploadRequest{Headers: src.Headers, SSE: w.opts.SSE, SSEKMSKeyID: w.opts.SSEKMSKeyID}
	if req.SSE == "" {
		req.SSE, req.SSEKMSKeyID = src.SSE, src.SSEKMSKeyID
	}
	req.Headers.Metadata = maps.Clone(src.Metadata)
	delete(req.Headers.Metadata, RecordKey)
	if r, err := ParseRecord(src.Metadata[RecordKey]); err == nil {
		w.res.Record.State = r.State // a tombstone stays one
	}
	if size, left := metadataSize(req.Headers.Metadata, w.res.Record); size > MaxMetadata {
		return req, invalid("the object's metadata takes %d bytes and the fence record leaves %d of %d: write it anew with less", size-(MaxMetadata-left), left, MaxMetadata)
	}
	for _, f := range fields(req.Headers) {
		if why := f.lost(); why != "" {
			return req, invalid("the object's %s can't be kept: %s; copy the object onto itself with another, then adopt it", f.name, why)
		}
	}
	req.Headers = fencedHeaders(req.Headers, w.res.Record)
	for {
		w.requests++
		tags, err := w.g.store.Tags(ctx, w.key, src.VersionID)
		switch {
		case err == nil:
			req.Tags = tags
			return req, nil
		case errors.Is(err, ErrUnsupported):
			return req, nil
		case classify(err) == moved:
			return req, err
		}
		if err := w.pause(ctx, err); err != nil {
			return req, notYet("read the tags", err)
		}
	}
}

// read takes the bytes through this process, for an ETag of a single part.
func (a *adoption) read(ctx context.Context, w *write, src Object, req UploadRequest) (*PutRequest, error) {
	w.requests++
	got, r, err := w.g.store.Get(ctx, w.key, ReadOptions{VersionID: src.VersionID, ETag: src.ETag})
	if err != nil {
		return nil, notYet("read the object", err)
	}
	defer r.Close()
	if got.ETag != src.ETag {
		return nil, fmt.Errorf("%w: the object changed while it was adopted", ErrPreconditionFailed)
	}
	b, err := io.ReadAll(io.LimitReader(r, minSalted))
	if err == nil && int64(len(b)) != src.Size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, notYet("read the object", err)
	}
	return &PutRequest{Body: Bytes(b), Headers: req.Headers, Tags: req.Tags, SSE: req.SSE, SSEKMSKeyID: req.SSEKMSKeyID}, nil
}

// copyPart is the size of a copied part, in bytes: far from S3's 5 GiB, so that
// several are on their way at once and each is soon done.
const copyPart = 128 << 20

const copiesAtOnce = 8

// copy has the store copy the object into the parts of an upload.
func (a *adoption) copy(ctx context.Context, w *write, src Object, req UploadRequest) error {
	if err := a.begin(ctx, w, req); err != nil {
		return err
	}
	if src.Size == 0 {
		// Nothing to copy, and not every store copies nothing.
		return a.part(ctx, w, 1, "send", func(up Upload) (Part, error) { return w.g.store.UploadPart(ctx, up, 1, Bytes(nil)) })
	}
	cuts, err := w.cuts(src.Size, copyPart)
	if err != nil {
		return err
	}
	a.unique = len(cuts) > 1
	var offset int64
	next := 0
	return inParallel(ctx, copiesAtOnce, func(context.Context) (func(context.Context) error, error) {
		if next == len(cuts) {
			return nil, io.EOF
		}
		from := CopySource{Key: w.key, VersionID: src.VersionID, ETag: src.ETag, Offset: offset, Size: cuts[next]}
		if len(cuts) == 1 {
			from.Offset, from.Size = 0, 0
		}
		offset += cuts[next]
		next++
		n := next
		return func(ctx context.Context) error {
			return a.part(ctx, w, n, "copy", func(up Upload) (Part, error) { return w.g.store.CopyPart(ctx, up, n, from) })
		}, nil
	})
}
