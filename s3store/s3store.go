// Package s3store makes a [guard.Store] of a bucket that speaks S3, through
// the SDK that the program already uses: [New] takes a client of
// aws-sdk-go-v2, [NewMinIO] one of minio-go.
//
// The client is the caller's own, configured by the caller. Nothing here reads
// the environment or a file, and no constructor sends anything.
//
// A conditional write whose answer was lost and that is then repeated unseen
// gets a 412 that says nothing: it may be its own first attempt that stands in
// the way. So every method makes one attempt, whatever retries the client was
// configured with, and its error says what is known of that attempt. The
// errors are those of package guard; the SDK's own error stays reachable with
// errors.As, as smithy.APIError or minio.ErrorResponse.
package s3store

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/s3fence/s3fence/guard"
)

// Options refine a store. The zero value, and nil, are the defaults.
type Options struct {
	// UniqueETags says that the store gives every write an ETag of its own
	// with no encryption asked for, whatever its bytes: S3 directory buckets,
	// MinIO run with --no-compat. Settings passes it on to the guard, which
	// relies on it: it must have been proven. Default false.
	UniqueETags bool
	// RequestPayer agrees, in every request, to be charged for it, as
	// requester-pays buckets demand. Default false.
	RequestPayer bool
}

// A bucket is what both adapters share.
type bucket struct {
	name string
	opts Options
}

func newBucket(name string, opts *Options) bucket {
	b := bucket{name: name}
	if opts != nil {
		b.opts = *opts
	}
	return b
}

// URL names an object for people: s3://bucket/key.
func (b bucket) URL(key string) string { return "s3://" + b.name + "/" + key }

// An op is one kind of request, for error messages.
type op struct {
	verb string
	// denied says what a 403 to it may mean.
	denied string
}

var (
	opHead       = op{"head", "s3:GetObject is not allowed; without s3:ListBucket, S3 says the same of a key that does not exist"}
	opGet        = op{"get", "s3:GetObject is not allowed; without s3:ListBucket, S3 says the same of a key that does not exist"}
	opPut        = op{"put", "s3:PutObject is not allowed, or s3:GetObject, which If-Match needs too"}
	opList       = op{"list", "s3:ListBucket is not allowed"}
	opVersions   = op{"list versions of", "s3:ListBucketVersions is not allowed"}
	opTags       = op{"read the tags of", "s3:GetObjectTagging is not allowed, or s3:GetObjectVersionTagging"}
	opCreate     = op{"begin a multipart upload of", "s3:PutObject is not allowed"}
	opPart       = op{"upload a part of", "s3:PutObject is not allowed"}
	opCopy       = op{"copy a part of", "s3:PutObject is not allowed, or s3:GetObject of the source"}
	opComplete   = op{"complete the multipart upload of", "s3:PutObject is not allowed, or s3:GetObject, which If-Match needs too"}
	opAbort      = op{"abort the multipart upload of", "s3:AbortMultipartUpload is not allowed"}
	opUploads    = op{"list the multipart uploads of", "s3:ListBucketMultipartUploads is not allowed"}
	opDelete     = op{"delete", "s3:DeleteObject is not allowed"}
	opVersioning = op{"read the versioning of", "s3:GetBucketVersioning is not allowed"}
	opEncryption = op{"read the encryption of", "s3:GetEncryptionConfiguration is not allowed"}
)

// fail gives err its meaning: notSent when nothing left this machine, else
// what the status and the store's code say, else none (unknown). features is
// what the request asked of the store, for the message about a missing one.
func (b bucket) fail(o op, key string, err error, notSent bool, status int, code, features string) error {
	sentinel := classify(status, code)
	if notSent {
		sentinel = guard.ErrNotSent
	}
	at := o.verb + " " + b.URL(key)
	switch sentinel {
	case nil:
		return fmt.Errorf("%s: %w", at, err)
	case guard.ErrDenied:
		why := o.denied
		switch code {
		case "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired":
			why = "the credentials are wrong or have expired"
		}
		return fmt.Errorf("%s: %w (%s): %w", at, sentinel, why, err)
	case guard.ErrUnsupported:
		if features != "" {
			return fmt.Errorf("%s: %w (the request used %s): %w", at, sentinel, features, err)
		}
	}
	return fmt.Errorf("%s: %w: %w", at, sentinel, err)
}

// classify is the one table of what a store's answer means. nil is an answer
// that settles nothing. It is asked about failures only, so a status of 2xx
// or 0 is an answer that was broken or never came.
func classify(status int, code string) error {
	switch {
	case status == http.StatusPreconditionFailed, status == http.StatusNotModified:
		return guard.ErrPreconditionFailed
	case status == http.StatusNotImplemented, status == http.StatusMethodNotAllowed:
		return guard.ErrUnsupported
	case status == http.StatusMovedPermanently, status == http.StatusPermanentRedirect:
		return guard.ErrRejected // the bucket is in another region
	case status < 400 || status > 499:
		return nil
	}
	switch code {
	case "NoSuchUpload":
		return guard.ErrNoUpload
	case "RequestTimeTooSkewed", "RequestInTheFuture", "RequestExpired":
		// Refused before it was looked at, for this machine's clock. The SDK
		// learns the offset from the answer, so the next request may pass.
		return guard.ErrNotSent
	case "ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired":
		// Refused before it was looked at, too. The next request is signed with
		// what the provider has by then: parts in flight when credentials are
		// renewed must not end an upload.
		return guard.ErrNotSent
	case "InvalidToken":
		return guard.ErrDenied // S3 sends it with 400
	case "RequestTimeout", "SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded":
		// Not the request's fault, so no rejection: to be sent again.
		return nil
	}
	switch status {
	case http.StatusConflict:
		return guard.ErrConflict
	case http.StatusNotFound:
		switch code {
		case "NoSuchBucket":
			return guard.ErrNoBucket
		case "", "NotFound", "NoSuchKey", "NoSuchVersion":
			return guard.ErrNotFound
		}
		return guard.ErrRejected // something else is missing, a KMS key for one
	case http.StatusUnauthorized, http.StatusForbidden:
		return guard.ErrDenied
	case http.StatusRequestTimeout, http.StatusTooManyRequests, 499:
		// 499 is what a proxy notes when its own client went away.
		return nil
	}
	return guard.ErrRejected
}

// A flight follows one request on its way out. It has to be certain when it
// says that nothing was sent, so each of its reasons is something that it saw.
type flight struct {
	asked, got atomic.Bool
}

// watch returns a context for the request itself.
func (f *flight) watch(ctx context.Context) context.Context {
	f.asked.Store(false)
	f.got.Store(false)
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { f.asked.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { f.got.Store(true) },
	})
}

// notSent reports whether err came before any connection was there to send
// on. A transport that tells the trace nothing has no answer but its error's.
func (f *flight) notSent(err error) bool {
	var dial *net.OpError
	return f.asked.Load() && !f.got.Load() ||
		!f.got.Load() && errors.As(err, &dial) && dial.Op == "dial"
}

// unlessGone is the error of a delete. Most stores don't even say that there was
// nothing to delete.
func unlessGone(err error) error {
	if errors.Is(err, guard.ErrNotFound) {
		return nil
	}
	return err
}

// checkKey refuses what no request may be made of: a done context, with
// ErrNotSent, and a key that S3 does not know, with ErrRejected.
func (b bucket) checkKey(ctx context.Context, o op, key string) error {
	if err := guard.CheckKey(key); err != nil {
		return b.reject(o, key, err)
	}
	return b.checkContext(ctx, o, key)
}

func (b bucket) checkContext(ctx context.Context, o op, key string) error {
	if err := ctx.Err(); err != nil {
		return b.fail(o, key, err, true, 0, "", "")
	}
	return nil
}

func (b bucket) reject(o op, key string, err error) error {
	return fmt.Errorf("%s %s: refused before it was sent: %w", o.verb, b.URL(key), unsendable{err})
}

// An unsendable request is as good as [guard.ErrRejected], but the store has not
// seen it.
type unsendable struct{ error }

// Is says that it is ErrRejected.
func (u unsendable) Is(target error) bool { return target == guard.ErrRejected }

func (u unsendable) Unwrap() error { return u.error }

// checkPut refuses a write that could not come back as it was given.
func (b bucket) checkPut(ctx context.Context, key string, req guard.PutRequest) error {
	if err := b.checkKey(ctx, opPut, key); err != nil {
		return err
	}
	if err := b.checkCondition(opPut, key, req.Condition); err != nil {
		return err
	}
	return b.checkHeaders(opPut, key, req.Headers, req.SSE, req.SSEKMSKeyID)
}

func (b bucket) checkCondition(o op, key string, c guard.Condition) error {
	if err := c.Check(); err != nil {
		return b.reject(o, key, err)
	}
	return b.checkETag(o, key, c.ETag())
}

func (b bucket) checkETag(o op, key, etag string) error {
	if etag == "*" || !printable(etag) {
		return b.reject(o, key, fmt.Errorf("%q is not the ETag of one write", etag))
	}
	return nil
}

func (b bucket) checkHeaders(o op, key string, h guard.Headers, sse, sseKey string) error {
	for _, f := range [...]struct{ name, value string }{
		{"content type", h.ContentType}, {"content encoding", h.ContentEncoding},
		{"content disposition", h.ContentDisposition}, {"content language", h.ContentLanguage},
		{"cache control", h.CacheControl}, {"expires", h.Expires},
		{"website redirect", h.WebsiteRedirect}, {"storage class", h.StorageClass},
		{"encryption", sse}, {"encryption key", sseKey},
	} {
		if !printable(f.value) {
			return b.reject(o, key, fmt.Errorf("%s %q: %s", f.name, f.value, printableRule))
		}
	}
	if sseKey != "" && sse == "" {
		return b.reject(o, key, errors.New("an encryption key without an encryption"))
	}
	for k, v := range h.Metadata {
		switch {
		case k == "" || strings.IndexFunc(k, notMetadataKey) >= 0:
			return b.reject(o, key, fmt.Errorf("metadata key %q: only a-z 0-9 and !#$%%&'*+-.^_`|~ come back as they were", k))
		case !printable(v):
			return b.reject(o, key, fmt.Errorf("metadata %s: %q: %s", k, v, printableRule))
		case strings.HasPrefix(v, "=?"):
			return b.reject(o, key, fmt.Errorf("metadata %s: %q: clients decode what begins with =?, so it would not come back", k, v))
		}
	}
	return nil
}

// checkUpload refuses an upload whose object could not come back as it was given.
func (b bucket) checkUpload(ctx context.Context, key string, req guard.UploadRequest) error {
	if err := b.checkKey(ctx, opCreate, key); err != nil {
		return err
	}
	if err := b.checkFullChecksum(opCreate, key, req.Checksum); err != nil {
		return err
	}
	return b.checkHeaders(opCreate, key, req.Headers, req.SSE, req.SSEKMSKeyID)
}

// checkFullChecksum takes the algorithms that make one checksum of the parts'.
func (b bucket) checkFullChecksum(o op, key, algorithm string) error {
	switch algorithm {
	case "", "CRC32", "CRC32C", "CRC64NVME":
		return nil
	}
	return b.reject(o, key, fmt.Errorf("checksum %q: of a multipart upload as a whole there is only CRC32, CRC32C or CRC64NVME", algorithm))
}

// checkPart refuses a request that is about no upload or no part of one.
// number is 1 where the request is about the upload itself.
func (b bucket) checkPart(ctx context.Context, o op, up guard.Upload, number int) error {
	switch {
	case up.ID == "":
		return b.reject(o, up.Key, errors.New("no upload id"))
	case number < 1 || number > maxParts:
		return b.reject(o, up.Key, fmt.Errorf("part %d: S3 numbers parts from 1 to %d", number, maxParts))
	}
	if err := b.checkFullChecksum(o, up.Key, up.Checksum); err != nil {
		return err
	}
	return b.checkKey(ctx, o, up.Key)
}

const maxParts = 10_000

// checkCopy is checkPart for a part that is copied.
func (b bucket) checkCopy(ctx context.Context, up guard.Upload, number int, src guard.CopySource) error {
	switch {
	case src.ETag == "":
		return b.reject(opCopy, up.Key, errors.New("a source without its ETag"))
	case src.Offset < 0, src.Size < 0, src.Offset > 0 && src.Size == 0:
		return b.reject(opCopy, up.Key, fmt.Errorf("%d bytes at %d are no range of the source", src.Size, src.Offset))
	}
	if err := b.checkETag(opCopy, up.Key, src.ETag); err != nil {
		return err
	}
	if err := guard.CheckKey(src.Key); err != nil {
		return b.reject(opCopy, up.Key, fmt.Errorf("the source: %w", err))
	}
	return b.checkPart(ctx, opCopy, up, number)
}

// checkComplete is checkPart for the completion of an upload.
func (b bucket) checkComplete(ctx context.Context, up guard.Upload, req guard.CompleteRequest) error {
	if err := b.checkCondition(opComplete, up.Key, req.Condition); err != nil {
		return err
	}
	if len(req.Parts) == 0 {
		return b.reject(opComplete, up.Key, errors.New("no parts; an empty object is one empty part"))
	}
	if sum := req.Checksum; sum != (guard.Checksum{}) {
		if sum.Algorithm == "" || sum.Value == "" {
			return b.reject(opComplete, up.Key, fmt.Errorf("checksum %+v is half of one", sum))
		}
		if err := b.checkFullChecksum(opComplete, up.Key, sum.Algorithm); err != nil {
			return err
		}
	}
	return b.checkPart(ctx, opComplete, up, 1)
}

// listing is what a listing asks for, for the messages about it.
func listing(opts guard.ListOptions) op {
	if opts.Versions {
		return opVersions
	}
	return opList
}

// checkList refuses a listing that S3 does not know.
func (b bucket) checkList(ctx context.Context, opts guard.ListOptions) error {
	o := listing(opts)
	if opts.Versions && opts.Delimiter != "" {
		return b.reject(o, opts.Prefix, errors.New("a delimiter together with versions"))
	}
	for _, k := range []string{opts.StartAfter, opts.Delimiter} {
		if k == "" {
			continue
		}
		if err := guard.CheckKey(k); err != nil {
			return b.reject(o, opts.Prefix, err)
		}
	}
	return b.checkPrefix(ctx, o, opts.Prefix)
}

// checkPrefix is checkKey for a key's beginning, which may be empty.
func (b bucket) checkPrefix(ctx context.Context, o op, prefix string) error {
	if prefix == "" {
		return b.checkContext(ctx, o, prefix)
	}
	return b.checkKey(ctx, o, prefix)
}

const printableRule = "only printable ASCII, with no space at either end, travels unchanged in a header"

func printable(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) < 0 && strings.Trim(s, " ") == s
}

// notMetadataKey: header names come back in whatever case the store likes, so
// only lower case survives the way back to it.
func notMetadataKey(r rune) bool {
	return (r < 'a' || r > 'z') && (r < '0' || r > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
}

// features names what a write asks of a store beyond storing the bytes, since
// a 501 does not.
func features(req guard.PutRequest) string {
	return strings.Join(append(conditionFeature(req.Condition), headerFeatures(req.SSE, req.Headers, req.Tags)...), ", ")
}

func conditionFeature(c guard.Condition) []string {
	if c.Absent() {
		return []string{"If-None-Match"}
	}
	return []string{"If-Match"}
}

func headerFeatures(sse string, h guard.Headers, tags map[string]string) []string {
	var f []string
	if sse != "" {
		f = append(f, "encryption "+sse)
	}
	if h.StorageClass != "" {
		f = append(f, "storage class "+h.StorageClass)
	}
	if h.WebsiteRedirect != "" {
		f = append(f, "website redirect")
	}
	if len(tags) > 0 {
		f = append(f, "tags")
	}
	return f
}

// uploadFeatures is features for the beginning of a multipart upload.
func uploadFeatures(req guard.UploadRequest) string {
	f := append([]string{"multipart upload"}, headerFeatures(req.SSE, req.Headers, req.Tags)...)
	if req.Checksum != "" {
		f = append(f, "full-object "+req.Checksum)
	}
	return strings.Join(f, ", ")
}

// completeFeatures is features for the end of a multipart upload.
func completeFeatures(req guard.CompleteRequest) string {
	f := append(conditionFeature(req.Condition), "multipart upload")
	if req.Checksum.Value != "" {
		f = append(f, "full-object "+req.Checksum.Algorithm)
	}
	return strings.Join(f, ", ")
}

// copyBuffers are lent to the reading of bodies.
var copyBuffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// A bodyReader lends io.Copy a buffer, which would make one for each request.
type bodyReader struct{ *io.SectionReader }

// WriteTo implements io.WriterTo.
func (r bodyReader) WriteTo(w io.Writer) (int64, error) { return copyTo(w, r.SectionReader) }

func copyTo(w io.Writer, r io.Reader) (int64, error) {
	b := copyBuffers.Get().(*[32 << 10]byte)
	defer copyBuffers.Put(b)
	return io.CopyBuffer(w, r, b[:])
}

var errNoETag = errors.New("the store answered without an ETag")

// versioning reads the Status of a bucket's versioning configuration.
func versioning(status string) guard.Versioning {
	switch status {
	case "Enabled", "Suspended":
		return guard.VersioningOn
	case "":
		return guard.VersioningOff
	}
	return guard.VersioningUnknown
}

// unknowable reports whether err leaves a setting unknown for good, so that
// Settings goes on without it. Some stores answer with another document.
func unknowable(err error) bool {
	var otherXML xml.UnmarshalError
	if errors.As(err, &otherXML) {
		return true
	}
	return slices.ContainsFunc([]error{guard.ErrDenied, guard.ErrUnsupported, guard.ErrRejected, guard.ErrNotFound},
		func(e error) bool { return errors.Is(err, e) })
}

// uploadsUnder yields the uploads that list finds by their keys' prefix. MinIO
// takes it for a whole key, so where it brings no other key, all uploads of the
// bucket are listed as well.
func uploadsUnder(prefix string, list func(prefix string) iter.Seq2[guard.Upload, error]) iter.Seq2[guard.Upload, error] {
	return func(yield func(guard.Upload, error) bool) {
		seen := map[string]bool{}
		wholeKey := prefix != ""
		for up, err := range list(prefix) {
			if err == nil && !strings.HasPrefix(up.Key, prefix) {
				continue
			}
			if !yield(up, err) || err != nil {
				return
			}
			wholeKey = wholeKey && up.Key == prefix
			if wholeKey {
				seen[up.ID] = true
			}
		}
		if !wholeKey {
			return
		}
		for up, err := range list("") {
			if err == nil && (!strings.HasPrefix(up.Key, prefix) || up.Key == prefix && seen[up.ID]) {
				continue
			}
			if !yield(up, err) || err != nil {
				return
			}
		}
	}
}
