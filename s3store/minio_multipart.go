package s3store

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"

	"github.com/minio/minio-go/v7"

	"github.com/s3fence/s3fence/guard"
)

var errRepeat = errors.New("minio-go got no answer that it takes for the last and wanted to send the request again; " +
	"make the client with minio.Options{MaxRetries: 1} to see the answer")

// once makes one call of minio-go's that is one request. minio-go repeats what
// has no body of ours by the client's MaxRetries, without a word; the second
// request ends here, unsent, with errRepeat. What certainly did not leave may
// be tried again.
func (s *MinIOStore) once(ctx context.Context, f *flight, call func(context.Context) error) error {
	// Not to be counted as the first request. The location is kept.
	if _, err := s.client.GetBucketLocation(f.watch(ctx), s.name); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(f.watch(ctx))
	defer cancel(nil)
	var left, again atomic.Bool
	err := call(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteHeaders: func() { left.Store(true) },
		GetConn: func(string) {
			if left.Load() {
				again.Store(true)
				cancel(errRepeat)
			}
		},
		GotConn: func(c httptrace.GotConnInfo) {
			// Over HTTP/2, nothing is sent under a done context. Over HTTP/1, an
			// idle connection may win against it, and is then this request's alone.
			if again.Load() && !isHTTP2(c.Conn) {
				_ = c.Conn.Close()
			}
		},
	}))
	if again.Load() {
		return errRepeat
	}
	return err
}

func isHTTP2(c net.Conn) bool {
	t, ok := c.(interface{ ConnectionState() tls.ConnectionState })
	return ok && t.ConnectionState().NegotiatedProtocol == "h2"
}

// CreateUpload begins a multipart upload, as [guard.Store] says. What it
// refuses unsent is what Put does. With a Checksum, the object gets one of that
// algorithm, of its whole; with none, the parts carry the SHA-256 of the
// signature.
func (s *MinIOStore) CreateUpload(ctx context.Context, key string, req guard.UploadRequest) (guard.Upload, error) {
	if err := s.checkUpload(ctx, key, req); err != nil {
		return guard.Upload{}, err
	}
	if err := s.checkExpires(opCreate, key, req.Headers); err != nil {
		return guard.Upload{}, err
	}
	if err := s.ready(ctx, opCreate, key); err != nil {
		return guard.Upload{}, err
	}
	opts, extra := s.headerOptions(req.Headers, req.SSE, req.SSEKMSKeyID, req.Tags)
	if req.Checksum != "" {
		extra["x-amz-checksum-algorithm"] = req.Checksum
		extra["x-amz-checksum-type"] = "FULL_OBJECT"
	}
	var id string
	f := new(flight)
	err := s.once(ctx, f, func(ctx context.Context) (err error) {
		id, err = s.core.NewMultipartUpload(ctx, s.name, key, opts)
		return err
	})
	if err == nil && id == "" {
		err = errNoUploadID
	}
	if err != nil {
		return guard.Upload{}, s.fail(opCreate, key, err, f, uploadFeatures(req))
	}
	return guard.Upload{Key: key, ID: id, Checksum: req.Checksum}, nil
}

// UploadPart sends one part, as [guard.Store] says.
func (s *MinIOStore) UploadPart(ctx context.Context, up guard.Upload, number int, body guard.Body) (guard.Part, error) {
	if err := s.checkPart(ctx, opPart, up, number); err != nil {
		return guard.Part{}, err
	}
	if err := s.ready(ctx, opPart, up.Key); err != nil {
		return guard.Part{}, err
	}
	sum, payload, err := sums(ctx, body, up.Checksum, s.plain() || up.Checksum == "")
	if err != nil {
		return guard.Part{}, s.bucket.fail(opPart, up.Key, err, true, 0, "", "")
	}
	h := http.Header{}
	if sum.Value != "" {
		h.Set(checksumHeader(sum.Algorithm), sum.Value)
	}
	if s.opts.RequestPayer {
		h.Set(requestPayer, "requester")
	}
	f := new(flight)
	p, err := s.core.PutObjectPart(f.watch(ctx), s.name, up.Key, up.ID, number, unseekable(body), body.Size(),
		minio.PutObjectPartOptions{Sha256Hex: payload, CustomHeader: h, DisableContentSha256: true})
	if err == nil && p.ETag == "" {
		err = errNoETag
	}
	if err != nil {
		return guard.Part{}, s.fail(opPart, up.Key, err, f, "multipart upload")
	}
	return guard.Part{Number: number, ETag: quoted(p.ETag), Size: body.Size(), Checksum: sum}, nil
}

// CopyPart makes a part of an object's bytes, as [guard.Store] says. A source
// that is gone is [guard.ErrNotFound]. The part's Size is that of the source's
// range, 0 where the whole of it was copied: no answer says it. MinIO copies
// nothing into an upload that has a Checksum.
func (s *MinIOStore) CopyPart(ctx context.Context, up guard.Upload, number int, src guard.CopySource) (guard.Part, error) {
	if err := s.checkCopy(ctx, up, number, src); err != nil {
		return guard.Part{}, err
	}
	if err := s.ready(ctx, opCopy, up.Key); err != nil {
		return guard.Part{}, err
	}
	h := map[string]string{
		"x-amz-copy-source":          copySource(s.name, src), // minio-go's own has no version
		"x-amz-copy-source-if-match": src.ETag,
	}
	if s.opts.RequestPayer {
		h[requestPayer] = "requester"
	}
	size := src.Size
	if size == 0 {
		size = -1 // no range
	}
	var p minio.CompletePart
	f := new(flight)
	err := s.once(ctx, f, func(ctx context.Context) (err error) {
		p, err = s.core.CopyObjectPart(ctx, s.name, src.Key, s.name, up.Key, up.ID, number, src.Offset, size, h)
		return err
	})
	if err == nil && p.ETag == "" { // such as an error in the body of a 200
		err = errNoETag
	}
	if err != nil {
		return guard.Part{}, s.fail(opCopy, up.Key, err, f, "UploadPartCopy with x-amz-copy-source-if-match")
	}
	value := map[string]string{
		"CRC32": p.ChecksumCRC32, "CRC32C": p.ChecksumCRC32C, "CRC64NVME": p.ChecksumCRC64NVME,
	}[up.Checksum]
	return guard.Part{Number: number, ETag: quoted(unquoted(p.ETag)), Size: src.Size, Checksum: partChecksum(up, value)}, nil
}

// CompleteUpload makes the upload the object, as [guard.Store] says. A store
// may answer 200 before it knows and put an error into the body; such an
// answer, and one that ends early, leaves the outcome unknown. The result's SSE
// stays empty: minio-go does not show it.
func (s *MinIOStore) CompleteUpload(ctx context.Context, up guard.Upload, req guard.CompleteRequest) (guard.PutResult, error) {
	if err := s.checkComplete(ctx, up, req); err != nil {
		return guard.PutResult{}, err
	}
	req.Checksum = wholeChecksum(up, req)
	if err := s.ready(ctx, opComplete, up.Key); err != nil {
		return guard.PutResult{}, err
	}
	parts := make([]minio.CompletePart, len(req.Parts))
	for i, p := range req.Parts {
		parts[i] = minio.CompletePart{PartNumber: p.Number, ETag: unquoted(p.ETag)}
		switch p.Checksum.Algorithm {
		case "CRC32":
			parts[i].ChecksumCRC32 = p.Checksum.Value
		case "CRC32C":
			parts[i].ChecksumCRC32C = p.Checksum.Value
		case "CRC64NVME":
			parts[i].ChecksumCRC64NVME = p.Checksum.Value
		case "SHA1":
			parts[i].ChecksumSHA1 = p.Checksum.Value
		case "SHA256":
			parts[i].ChecksumSHA256 = p.Checksum.Value
		}
	}
	h := setHeaders{}
	if req.Checksum.Value != "" {
		h[checksumHeader(req.Checksum.Algorithm)] = req.Checksum.Value
		h["x-amz-checksum-type"] = "FULL_OBJECT"
	}
	if s.opts.RequestPayer {
		h[requestPayer] = "requester"
	}
	opts := minio.PutObjectOptions{ServerSideEncryption: h}
	setCondition(&opts, req.Condition)
	var info minio.UploadInfo
	f := new(flight)
	err := s.once(ctx, f, func(ctx context.Context) (err error) {
		info, err = s.core.CompleteMultipartUpload(ctx, s.name, up.Key, up.ID, parts, opts)
		return err
	})
	if err == nil && info.ETag == "" {
		err = errNoETag
	}
	if err != nil {
		return guard.PutResult{}, s.fail(opComplete, up.Key, err, f, completeFeatures(req))
	}
	return guard.PutResult{ETag: quoted(info.ETag), VersionID: info.VersionID}, nil
}

// AbortUpload throws an upload away, as [guard.Store] says.
func (s *MinIOStore) AbortUpload(ctx context.Context, up guard.Upload) error {
	if err := s.checkPart(ctx, opAbort, up, 1); err != nil {
		return err
	}
	if err := s.ready(ctx, opAbort, up.Key); err != nil {
		return err
	}
	f := new(flight)
	err := s.once(ctx, f, func(ctx context.Context) error {
		return s.core.AbortMultipartUpload(ctx, s.name, up.Key, up.ID)
	})
	if err != nil {
		return s.failUnpaid(opAbort, up.Key, err, f, "multipart upload")
	}
	return nil
}
