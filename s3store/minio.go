package s3store

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/encrypt"
	"github.com/minio/minio-go/v7/pkg/s3utils"
	"github.com/minio/minio-go/v7/pkg/tags"

	"github.com/s3fence/s3fence/guard"
)

// A MinIOStore is a bucket behind a client of minio-go. It implements
// [guard.Store] and is safe for concurrent use.
type MinIOStore struct {
	bucket
	client *minio.Client
	core   minio.Core
}

var _ guard.Store = (*MinIOStore)(nil)

// NewMinIO returns the store that bucket is, through a client of the caller's.
// It sends nothing. opts may be nil.
//
// Make the client with minio.Options{MaxRetries: 1}: minio-go offers no way to
// turn its retries of reads off for one call (10 attempts by default). Writes
// are always one attempt; but in a multipart upload, an answer that minio-go
// wants to retry is lost unless MaxRetries is 1. Set Region too, or minio-go
// asks for the bucket's region before the first request. Creds must be set:
// static ones with empty keys for anonymous access.
func NewMinIO(client *minio.Client, bucket string, opts *Options) *MinIOStore {
	return &MinIOStore{newBucket(bucket, opts), client, minio.Core{Client: client}}
}

// ready makes sure of what minio-go would fail for before it sends anything,
// with an error that can't be told from a failure of the request itself: names
// that it refuses, and credentials.
func (s *MinIOStore) ready(ctx context.Context, o op, key string) error {
	if err := s3utils.CheckValidBucketName(s.name); err != nil {
		return s.reject(o, key, err)
	}
	if key != "" {
		if err := s3utils.CheckValidObjectName(key); err != nil {
			return s.reject(o, key, err)
		}
	}
	if s.client.IsOffline() {
		return s.bucket.fail(o, key, errors.New("the client's health check found the store offline"), true, 0, "", "")
	}
	// GetCreds takes no context, and a provider may hang.
	done := make(chan error, 1)
	go func() {
		_, err := s.client.GetCreds()
		done <- err
	}()
	var err error
	select {
	case err = <-done:
		if err != nil {
			err = fmt.Errorf("%w: %w", errUnsigned, err)
		}
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return s.bucket.fail(o, key, err, true, 0, "", "")
	}
	return nil
}

func (s *MinIOStore) fail(o op, key string, err error, f *flight, features string) error {
	var answer minio.ErrorResponse
	errors.As(err, &answer)
	if answer.StatusCode != 0 {
		// Its text alone may be as little as "Access Denied."
		err = &answered{answer}
	}
	return s.bucket.fail(o, key, err, f.notSent(err), answer.StatusCode, answer.Code, features)
}

// failUnpaid is fail for a request that minio-go lets no header into.
func (s *MinIOStore) failUnpaid(o op, key string, err error, f *flight, features string) error {
	err = s.fail(o, key, err, f, features)
	if s.opts.RequestPayer && errors.Is(err, guard.ErrDenied) {
		err = fmt.Errorf("%w (minio-go can't agree to pay for this request; use aws-sdk-go-v2 on a requester-pays bucket)", err)
	}
	return err
}

// answered is a minio.ErrorResponse that says its status, code and request id.
type answered struct{ minio.ErrorResponse }

func (a *answered) Error() string {
	msg := fmt.Sprintf("%s: %s (status %d", a.Code, a.ErrorResponse.Error(), a.StatusCode)
	if a.RequestID != "" {
		msg += ", request id " + a.RequestID
	}
	return msg + ")"
}

func (a *answered) Unwrap() error { return a.ErrorResponse }

const requestPayer = "x-amz-request-payer"

func (s *MinIOStore) getOptions() minio.GetObjectOptions {
	var o minio.GetObjectOptions
	if s.opts.RequestPayer {
		o.Set(requestPayer, "requester")
	}
	return o
}

// object reads an object off the headers that came with it. The quotes that
// minio-go takes off ETags are put back: an ETag is the same through both SDKs.
func object(info minio.ObjectInfo, h http.Header) guard.Object {
	obj := guard.Object{
		ETag:         quoted(info.ETag),
		Size:         info.Size,
		VersionID:    info.VersionID,
		LastModified: info.LastModified,
		SSE:          h.Get("x-amz-server-side-encryption"),
		SSEKMSKeyID:  h.Get("x-amz-server-side-encryption-aws-kms-key-id"),
		Headers: guard.Headers{
			ContentType:        h.Get("Content-Type"),
			ContentEncoding:    h.Get("Content-Encoding"),
			ContentDisposition: h.Get("Content-Disposition"),
			ContentLanguage:    h.Get("Content-Language"),
			CacheControl:       h.Get("Cache-Control"),
			Expires:            h.Get("Expires"),
			WebsiteRedirect:    h.Get("x-amz-website-redirect-location"),
			StorageClass:       h.Get("x-amz-storage-class"),
			Metadata:           make(map[string]string, len(info.UserMetadata)),
		},
	}
	for k, v := range info.UserMetadata {
		obj.Metadata[strings.ToLower(k)] = v
	}
	return obj
}

func headerChecksum(h http.Header) guard.Checksum {
	return fullChecksum(h.Get("x-amz-checksum-type"), func(name string) string {
		return h.Get("x-amz-checksum-" + name)
	})
}

func quoted(etag string) string {
	if etag == "" {
		return ""
	}
	return `"` + etag + `"`
}

// Head observes an object, as [guard.Store] says. Its errors are the
// sentinels of package guard, [guard.ErrNoBucket] only where the store names
// it in a header, since the answer to HEAD has no body.
func (s *MinIOStore) Head(ctx context.Context, key string, opts guard.HeadOptions) (guard.Object, error) {
	if err := s.checkKey(ctx, opHead, key); err != nil {
		return guard.Object{}, err
	}
	if err := s.ready(ctx, opHead, key); err != nil {
		return guard.Object{}, err
	}
	o := s.getOptions()
	o.VersionID = opts.VersionID
	o.Checksum = opts.Checksum
	f := new(flight)
	info, err := s.client.StatObject(f.watch(ctx), s.name, key, o)
	if err == nil && info.ETag == "" {
		err = errNoETag
	}
	if err != nil {
		h := http.Header{}
		if info.IsDeleteMarker {
			h.Set("x-amz-delete-marker", "true")
			h.Set("x-amz-version-id", info.VersionID)
		}
		return deleteMarker(h, s.fail(opHead, key, err, f, ""))
	}
	obj := object(info, info.Headers)
	if opts.Checksum {
		obj.Checksum = headerChecksum(info.Headers)
	}
	return obj, nil
}

// Get reads an object, as [guard.Store] says. The bytes are compared with the
// checksum that the store keeps of the whole object. minio-go shows no headers
// of a failed GET, so a delete marker is plainly absent here; Head tells.
func (s *MinIOStore) Get(ctx context.Context, key string, opts guard.ReadOptions) (guard.Object, io.ReadCloser, error) {
	if err := s.checkKey(ctx, opGet, key); err != nil {
		return guard.Object{}, nil, err
	}
	if err := s.ready(ctx, opGet, key); err != nil {
		return guard.Object{}, nil, err
	}
	o := s.getOptions()
	o.VersionID = opts.VersionID
	if opts.ETag != "" {
		o.Set("If-Match", opts.ETag)
	}
	if opts.Whole() {
		// Set as a header, not as an option: minio-go's own check skips an answer
		// that does not name the checksum's type, ours takes every full one.
		o.Set("x-amz-checksum-mode", "ENABLED")
	} else {
		o.Set("Range", rangeHeader(opts))
	}
	// The client's transport may be one that unpacks gzip unasked.
	o.Set("Accept-Encoding", "identity")
	f := new(flight)
	body, info, h, err := s.core.GetObject(f.watch(ctx), s.name, key, o)
	if err == nil && info.ETag == "" {
		err = errors.Join(errNoETag, body.Close())
	}
	if err != nil {
		return guard.Object{}, nil, s.fail(opGet, key, err, f, "")
	}
	obj := object(info, h)
	length := obj.Size
	if opts.Whole() {
		obj.Checksum = headerChecksum(h)
	} else {
		obj.Size = wholeSize(h.Get("Content-Range"))
	}
	return obj, verify(body, length, obj.Checksum), nil
}

// setHeaders sets headers that minio-go has no option for. An encryption is
// the one thing that it asks to write its own.
type setHeaders map[string]string

// Type implements encrypt.ServerSide.
func (s setHeaders) Type() encrypt.Type { return encrypt.S3 }

// Marshal implements encrypt.ServerSide.
func (s setHeaders) Marshal(h http.Header) {
	for k, v := range s {
		h.Set(k, v)
	}
}

// contextReader ends when its context does: summing a large body takes a while.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// headerOptions are the options of a write that carry what the object has but
// its bytes. The second of them takes more headers.
func (s *MinIOStore) headerOptions(h guard.Headers, sse, sseKey string, tagged map[string]string) (minio.PutObjectOptions, setHeaders) {
	extra := setHeaders{}
	opts := minio.PutObjectOptions{
		ContentType:             h.ContentType,
		ContentEncoding:         h.ContentEncoding,
		ContentDisposition:      h.ContentDisposition,
		ContentLanguage:         h.ContentLanguage,
		CacheControl:            h.CacheControl,
		WebsiteRedirectLocation: h.WebsiteRedirect,
		StorageClass:            h.StorageClass,
		UserMetadata:            make(map[string]string, len(h.Metadata)),
		ServerSideEncryption:    extra,
	}
	for k, v := range h.Metadata {
		// With the prefix on, since minio-go takes a key such as content-type
		// for the header of that name.
		opts.UserMetadata["x-amz-meta-"+k] = v
	}
	for k, v := range map[string]string{
		"Expires":                      h.Expires, // for which minio-go has only a time
		"x-amz-server-side-encryption": sse,
		"x-amz-server-side-encryption-aws-kms-key-id": sseKey,
		// Not UserTags, which minio-go drops silently when it finds one invalid.
		"x-amz-tagging": tagging(tagged),
	} {
		if v != "" {
			extra[k] = v
		}
	}
	if s.opts.RequestPayer {
		extra[requestPayer] = "requester"
	}
	return opts, extra
}

func setCondition(opts *minio.PutObjectOptions, c guard.Condition) {
	if c.Absent() {
		opts.SetMatchETagExcept("*")
	} else {
		opts.SetMatchETag(unquoted(c.ETag())) // it quotes
	}
}

func unquoted(etag string) string { return strings.Trim(etag, `"`) }

// checkExpires refuses what minio-go would not read again: for an Expires that
// is no time, it fails the HEAD and the GET of the whole object.
func (s *MinIOStore) checkExpires(o op, key string, h guard.Headers) error {
	if h.Expires == "" {
		return nil
	}
	if _, err := time.Parse(http.TimeFormat, h.Expires); err != nil {
		return s.reject(o, key, fmt.Errorf("expires %q: minio-go reads no object of which it is not written as %s", h.Expires, http.TimeFormat))
	}
	return nil
}

// sums computes the sums of a body that go into headers, with one of payload
// where the request is to be signed with it.
//
// They are computed first, rather than by minio-go's own signing of each
// chunk: its reader for that has a data race in Close, and not every store
// decodes aws-chunked.
func sums(ctx context.Context, body guard.Body, algorithm string, signed bool) (sum guard.Checksum, payload string, err error) {
	crc, sha := guard.Checksum{Algorithm: algorithm}.NewHash(), sha256.New()
	var ws []io.Writer
	if crc != nil {
		ws = append(ws, crc)
	}
	if signed {
		ws = append(ws, sha)
	}
	if _, err := copyTo(io.MultiWriter(ws...), contextReader{ctx, body.Reader()}); err != nil {
		return guard.Checksum{}, "", err
	}
	if crc != nil {
		sum = guard.Checksum{Algorithm: algorithm, Value: base64.StdEncoding.EncodeToString(crc.Sum(nil))}
	}
	if signed {
		payload = hex.EncodeToString(sha.Sum(nil))
	}
	return sum, payload, nil
}

// plain says that nothing but a signature protects what is sent.
func (s *MinIOStore) plain() bool { return s.client.EndpointURL().Scheme != "https" }

// unseekable is a body that minio-go sends once, whatever the client's
// MaxRetries: it can't go back to the beginning.
func unseekable(body guard.Body) io.Reader { return struct{ io.Reader }{body.Reader()} }

func checksumHeader(algorithm string) string { return "x-amz-checksum-" + strings.ToLower(algorithm) }

// Put writes an object, as [guard.Store] says, in one PUT with a CRC-32C that
// the store checks and keeps. Metadata must be printable ASCII under
// lower-case keys; anything that a header could not carry there and back
// unchanged is [guard.ErrRejected] and not sent. The result's SSE stays empty:
// minio-go does not show it.
func (s *MinIOStore) Put(ctx context.Context, key string, req guard.PutRequest) (guard.PutResult, error) {
	if err := s.checkPut(ctx, key, req); err != nil {
		return guard.PutResult{}, err
	}
	if err := s.checkExpires(opPut, key, req.Headers); err != nil {
		return guard.PutResult{}, err
	}
	if err := s.ready(ctx, opPut, key); err != nil {
		return guard.PutResult{}, err
	}
	// Over TLS the CRC is enough.
	crc, payload, err := sums(ctx, req.Body, "CRC32C", s.plain())
	if err != nil {
		return guard.PutResult{}, s.bucket.fail(opPut, key, err, true, 0, "", "")
	}
	opts, _ := s.headerOptions(req.Headers, req.SSE, req.SSEKMSKeyID, req.Tags)
	opts.DisableContentSha256 = true // of chunks
	// minio-go looks here for a checksum before it adds one of its own.
	opts.UserMetadata[checksumHeader(crc.Algorithm)] = crc.Value
	setCondition(&opts, req.Condition)
	f := new(flight)
	info, err := s.core.PutObject(f.watch(ctx), s.name, key, unseekable(req.Body), req.Body.Size(), "", payload, opts)
	if err == nil && info.ETag == "" {
		err = errNoETag
	}
	if err != nil {
		return guard.PutResult{}, s.fail(opPut, key, err, f, features(req))
	}
	return guard.PutResult{ETag: quoted(info.ETag), VersionID: info.VersionID}, nil
}

// Delete removes an object, as [guard.Store] says.
func (s *MinIOStore) Delete(ctx context.Context, key string) error {
	if err := s.checkKey(ctx, opDelete, key); err != nil {
		return err
	}
	if err := s.ready(ctx, opDelete, key); err != nil {
		return err
	}
	f := new(flight)
	err := s.once(ctx, f, func(ctx context.Context) error {
		return s.client.RemoveObject(ctx, s.name, key, minio.RemoveObjectOptions{})
	})
	if err != nil {
		err = s.failUnpaid(opDelete, key, err, f, "")
	}
	return unlessGone(err)
}

// Tags reads an object's tags, as [guard.Store] says. Tags with other characters
// than MinIO takes, such as ones beyond ASCII, minio-go does not read.
func (s *MinIOStore) Tags(ctx context.Context, key, versionID string) (map[string]string, error) {
	if err := s.checkKey(ctx, opTags, key); err != nil {
		return nil, err
	}
	if err := s.ready(ctx, opTags, key); err != nil {
		return nil, err
	}
	f := new(flight)
	t, err := s.client.GetObjectTagging(f.watch(ctx), s.name, key, minio.GetObjectTaggingOptions{VersionID: versionID})
	if err != nil {
		if invalid := tags.Error(nil); errors.As(err, &invalid) {
			err = fmt.Errorf("minio-go does not read these tags, aws-sdk-go-v2 does: %w", err)
		}
		return nil, s.failUnpaid(opTags, key, err, f, "")
	}
	return t.ToMap(), nil
}

// Settings asks for the bucket's versioning and, unless ETags are unique
// anyway, for its default encryption. What it may not see, or what the store
// does not know of, stays unknown. An error is one that may pass: no answer, a
// done context, 5xx; or [guard.ErrNoBucket].
func (s *MinIOStore) Settings(ctx context.Context) (guard.Settings, error) {
	set := guard.Settings{UniqueETags: s.opts.UniqueETags}
	err := s.checkContext(ctx, opVersioning, "")
	if err == nil {
		err = s.ready(ctx, opVersioning, "")
	}
	if err != nil {
		return set, err
	}
	set.Requests++
	f := new(flight)
	v, err := s.client.GetBucketVersioning(f.watch(ctx), s.name)
	if err != nil {
		if err = s.fail(opVersioning, "", err, f, ""); !unknowable(err) {
			return set, err
		}
	} else {
		set.Versioning = versioning(v.Status)
	}
	if set.UniqueETags {
		return set, nil
	}
	set.Requests++
	f = new(flight)
	e, err := s.client.GetBucketEncryption(f.watch(ctx), s.name)
	if err != nil {
		if err = s.fail(opEncryption, "", err, f, ""); !unknowable(err) {
			return set, err
		}
		return set, nil
	}
	if len(e.Rules) > 0 {
		set.DefaultSSE = e.Rules[0].Apply.SSEAlgorithm
	}
	return set, nil
}
