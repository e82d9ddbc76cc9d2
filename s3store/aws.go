package s3store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/s3fence/s3fence/guard"
)

// S3API is what a [Store] calls of an *s3.Client.
type S3API interface {
	HeadObject(context.Context, *s3.HeadObjectInput, ...func(*s3.Options)) (*s3.HeadObjectOutput, error)
	GetObject(context.Context, *s3.GetObjectInput, ...func(*s3.Options)) (*s3.GetObjectOutput, error)
	PutObject(context.Context, *s3.PutObjectInput, ...func(*s3.Options)) (*s3.PutObjectOutput, error)
	GetObjectTagging(context.Context, *s3.GetObjectTaggingInput, ...func(*s3.Options)) (*s3.GetObjectTaggingOutput, error)
	ListObjectsV2(context.Context, *s3.ListObjectsV2Input, ...func(*s3.Options)) (*s3.ListObjectsV2Output, error)
	ListObjectVersions(context.Context, *s3.ListObjectVersionsInput, ...func(*s3.Options)) (*s3.ListObjectVersionsOutput, error)
	CreateMultipartUpload(context.Context, *s3.CreateMultipartUploadInput, ...func(*s3.Options)) (*s3.CreateMultipartUploadOutput, error)
	UploadPart(context.Context, *s3.UploadPartInput, ...func(*s3.Options)) (*s3.UploadPartOutput, error)
	UploadPartCopy(context.Context, *s3.UploadPartCopyInput, ...func(*s3.Options)) (*s3.UploadPartCopyOutput, error)
	CompleteMultipartUpload(context.Context, *s3.CompleteMultipartUploadInput, ...func(*s3.Options)) (*s3.CompleteMultipartUploadOutput, error)
	AbortMultipartUpload(context.Context, *s3.AbortMultipartUploadInput, ...func(*s3.Options)) (*s3.AbortMultipartUploadOutput, error)
	ListMultipartUploads(context.Context, *s3.ListMultipartUploadsInput, ...func(*s3.Options)) (*s3.ListMultipartUploadsOutput, error)
	DeleteObject(context.Context, *s3.DeleteObjectInput, ...func(*s3.Options)) (*s3.DeleteObjectOutput, error)
	GetBucketVersioning(context.Context, *s3.GetBucketVersioningInput, ...func(*s3.Options)) (*s3.GetBucketVersioningOutput, error)
	GetBucketEncryption(context.Context, *s3.GetBucketEncryptionInput, ...func(*s3.Options)) (*s3.GetBucketEncryptionOutput, error)
}

var _ S3API = (*s3.Client)(nil)

// A Store is a bucket behind a client of aws-sdk-go-v2. It implements
// [guard.Store] and is safe for concurrent use.
type Store struct {
	bucket
	client S3API
}

var _ guard.Store = (*Store)(nil)

// New returns the store that bucket is, through a client of the caller's. It
// sends nothing. opts may be nil.
//
// The client's retries are left out: each call tells the SDK not to retry.
func New(client S3API, bucket string, opts *Options) *Store {
	return &Store{newBucket(bucket, opts), client}
}

// An awsFlight is a flight through the SDK's middleware.
type awsFlight struct {
	flight
	entered, handed bool
}

// notSent holds only of a client that let the flight in: one that wraps the
// SDK's and drops the options leaves it with nothing to go by.
func (f *awsFlight) notSent(err error) bool {
	return f.entered && !f.handed || f.flight.notSent(err)
}

// options makes one call one attempt, and sees the request leave the SDK:
// credentials, endpoint and signature are settled by then.
func (f *awsFlight) options(o *s3.Options) {
	o.Retryer = aws.NopRetryer{}
	o.APIOptions = append(slices.Clip(o.APIOptions), func(stack *middleware.Stack) error {
		f.entered = true
		return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("s3fenceSending",
			func(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler) (
				middleware.DeserializeOutput, middleware.Metadata, error,
			) {
				f.handed = true
				return next.HandleDeserialize(f.watch(ctx), in)
			}), middleware.After)
	})
}

// fail gives err its meaning and returns the answer's headers, if one came.
func (s *Store) fail(o op, key string, err error, f *awsFlight, features string) (http.Header, error) {
	var (
		answer  *smithyhttp.ResponseError
		api     smithy.APIError
		invalid smithy.InvalidParamsError
		header  http.Header
		status  int
		code    string
	)
	if errors.As(err, &invalid) {
		return nil, s.reject(o, key, err)
	}
	if errors.As(err, &answer) && answer.Response != nil {
		status, header = answer.HTTPStatusCode(), answer.Response.Header
	}
	if errors.As(err, &api) {
		code = api.ErrorCode()
	}
	// The answer to HEAD has no body to hold a code; MinIO repeats it here.
	if c := header.Get("x-minio-error-code"); c != "" {
		code = c
	}
	// Nor words, so this is all that is said of a wrong region or a key that
	// the store doesn't take.
	if region := header.Get("x-amz-bucket-region"); region != "" && status == http.StatusMovedPermanently {
		err = fmt.Errorf("the bucket is in region %s: %w", region, err)
	}
	if desc := header.Get("x-minio-error-desc"); desc != "" {
		err = fmt.Errorf("%s: %w", strings.Trim(desc, `"`), err)
	}
	if f.entered && !f.handed && !isContext(err) {
		// Credentials, endpoint or signature: waiting won't mend them.
		err = fmt.Errorf("%w: %w", errUnsigned, err)
	}
	return header, s.bucket.fail(o, key, err, f.notSent(err), status, code, features)
}

// errUnsigned is a request that could not be made ready to send.
var errUnsigned = fmt.Errorf("%w: the request could not be signed; check the credentials and the endpoint", guard.ErrDenied)

func isContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

func (s *Store) payer() types.RequestPayer {
	if s.opts.RequestPayer {
		return types.RequestPayerRequester
	}
	return ""
}

// failRead is fail for Head and Get, with what the error says of the object.
func (s *Store) failRead(o op, key string, err error, f *awsFlight) (guard.Object, error) {
	header, err := s.fail(o, key, err, f, "")
	return deleteMarker(header, err)
}

// deleteMarker reads a delete marker off the failed answer to a read. One
// asked for by its version id is answered with 405, which is as absent.
func deleteMarker(h http.Header, err error) (guard.Object, error) {
	if h.Get("x-amz-delete-marker") != "true" {
		return guard.Object{}, err
	}
	if errors.Is(err, guard.ErrUnsupported) {
		err = fmt.Errorf("%w: a delete marker", guard.ErrNotFound)
	}
	return guard.Object{DeleteMarker: true, VersionID: h.Get("x-amz-version-id")}, err
}

// Head observes an object, as [guard.Store] says. Its errors are the
// sentinels of package guard, [guard.ErrNoBucket] only where the store names
// it in a header, since the answer to HEAD has no body.
func (s *Store) Head(ctx context.Context, key string, opts guard.HeadOptions) (guard.Object, error) {
	if err := s.checkKey(ctx, opHead, key); err != nil {
		return guard.Object{}, err
	}
	in := &s3.HeadObjectInput{Bucket: &s.name, Key: &key, RequestPayer: s.payer()}
	if opts.VersionID != "" {
		in.VersionId = &opts.VersionID
	}
	if opts.Checksum {
		in.ChecksumMode = types.ChecksumModeEnabled
	}
	f := new(awsFlight)
	out, err := s.client.HeadObject(ctx, in, f.options)
	if err != nil {
		return s.failRead(opHead, key, err, f)
	}
	if aws.ToString(out.ETag) == "" {
		return s.failRead(opHead, key, errNoETag, f)
	}
	obj := guard.Object{
		ETag:         *out.ETag,
		Size:         size(out.ContentLength),
		VersionID:    aws.ToString(out.VersionId),
		LastModified: aws.ToTime(out.LastModified),
		SSE:          string(out.ServerSideEncryption),
		SSEKMSKeyID:  aws.ToString(out.SSEKMSKeyId),
		Headers: headers(out.ContentType, out.ContentEncoding, out.ContentDisposition, out.ContentLanguage,
			out.CacheControl, out.ExpiresString, out.WebsiteRedirectLocation, out.StorageClass, out.Metadata),
	}
	if opts.Checksum {
		obj.Checksum = checksum(out.ChecksumType, out.ChecksumCRC32, out.ChecksumCRC32C, out.ChecksumCRC64NVME, out.ChecksumSHA1, out.ChecksumSHA256)
	}
	return obj, nil
}

// checksum gathers what HeadObject and GetObject return in types of their own.
func checksum(kind types.ChecksumType, crc32, crc32c, crc64nvme, sha1, sha256 *string) guard.Checksum {
	return fullChecksum(string(kind), func(name string) string {
		return aws.ToString(map[string]*string{
			"CRC32": crc32, "CRC32C": crc32c, "CRC64NVME": crc64nvme, "SHA1": sha1, "SHA256": sha256,
		}[name])
	})
}

// headers gathers what HeadObject and GetObject return in types of their own.
func headers(
	contentType, encoding, disposition, language, cache, expires, redirect *string, class types.StorageClass, metadata map[string]string,
) guard.Headers {
	return guard.Headers{
		ContentType:        aws.ToString(contentType),
		ContentEncoding:    aws.ToString(encoding),
		ContentDisposition: aws.ToString(disposition),
		ContentLanguage:    aws.ToString(language),
		CacheControl:       aws.ToString(cache),
		Expires:            aws.ToString(expires),
		WebsiteRedirect:    aws.ToString(redirect),
		StorageClass:       string(class),
		Metadata:           metadata,
	}
}

func size(n *int64) int64 {
	if n == nil {
		return -1 // not said; never to be taken for an empty object
	}
	return *n
}

// Get reads an object, as [guard.Store] says. The SDK compares the bytes with
// the checksum that the store keeps of the whole object, unless the client's
// ResponseChecksumValidation is when required.
func (s *Store) Get(ctx context.Context, key string, opts guard.ReadOptions) (guard.Object, io.ReadCloser, error) {
	if err := s.checkKey(ctx, opGet, key); err != nil {
		return guard.Object{}, nil, err
	}
	in := &s3.GetObjectInput{
		Bucket: &s.name, Key: &key, RequestPayer: s.payer(), VersionId: optional(opts.VersionID), IfMatch: optional(opts.ETag),
	}
	if opts.Whole() {
		in.ChecksumMode = types.ChecksumModeEnabled
	} else {
		in.Range = aws.String(rangeHeader(opts))
	}
	f := new(awsFlight)
	out, err := s.client.GetObject(ctx, in, f.options, func(o *s3.Options) {
		if o.ResponseChecksumValidation == aws.ResponseChecksumValidationWhenRequired {
			in.ChecksumMode = ""
		}
	})
	if err != nil {
		obj, err := s.failRead(opGet, key, err, f)
		return obj, nil, err
	}
	if aws.ToString(out.ETag) == "" {
		_ = out.Body.Close()
		obj, err := s.failRead(opGet, key, errNoETag, f)
		return obj, nil, err
	}
	obj := guard.Object{
		ETag:         *out.ETag,
		Size:         size(out.ContentLength),
		VersionID:    aws.ToString(out.VersionId),
		LastModified: aws.ToTime(out.LastModified),
		SSE:          string(out.ServerSideEncryption),
		SSEKMSKeyID:  aws.ToString(out.SSEKMSKeyId),
		Headers: headers(out.ContentType, out.ContentEncoding, out.ContentDisposition, out.ContentLanguage,
			out.CacheControl, out.ExpiresString, out.WebsiteRedirectLocation, out.StorageClass, out.Metadata),
	}
	length := obj.Size
	if opts.Whole() {
		obj.Checksum = checksum(out.ChecksumType, out.ChecksumCRC32, out.ChecksumCRC32C, out.ChecksumCRC64NVME, out.ChecksumSHA1, out.ChecksumSHA256)
	} else {
		obj.Size = wholeSize(aws.ToString(out.ContentRange))
	}
	return obj, verify(out.Body, length, guard.Checksum{}), nil
}

// Put writes an object, as [guard.Store] says, in one PUT with a CRC-32C that
// the store checks and keeps, unless the client's RequestChecksumCalculation is
// when required. Metadata must be printable ASCII under lower-case keys;
// anything that a header could not carry there and back unchanged is
// [guard.ErrRejected] and not sent.
func (s *Store) Put(ctx context.Context, key string, req guard.PutRequest) (guard.PutResult, error) {
	if err := s.checkPut(ctx, key, req); err != nil {
		return guard.PutResult{}, err
	}
	h := req.Headers
	in := &s3.PutObjectInput{
		Bucket:                  &s.name,
		Key:                     &key,
		Body:                    bodyReader{req.Body.Reader()},
		ContentLength:           aws.Int64(req.Body.Size()),
		ContentType:             optional(h.ContentType),
		ContentEncoding:         optional(h.ContentEncoding),
		ContentDisposition:      optional(h.ContentDisposition),
		ContentLanguage:         optional(h.ContentLanguage),
		CacheControl:            optional(h.CacheControl),
		WebsiteRedirectLocation: optional(h.WebsiteRedirect),
		StorageClass:            types.StorageClass(h.StorageClass),
		Metadata:                h.Metadata,
		ServerSideEncryption:    types.ServerSideEncryption(req.SSE),
		SSEKMSKeyId:             optional(req.SSEKMSKeyID),
		Tagging:                 optional(tagging(req.Tags)),
		ChecksumAlgorithm:       types.ChecksumAlgorithmCrc32c,
		RequestPayer:            s.payer(),
	}
	if req.Condition.Absent() {
		in.IfNoneMatch = aws.String("*")
	} else {
		in.IfMatch = aws.String(req.Condition.ETag())
	}
	f := new(awsFlight)
	out, err := s.client.PutObject(ctx, in, f.options, expires(h.Expires), func(o *s3.Options) {
		if o.RequestChecksumCalculation == aws.RequestChecksumCalculationWhenRequired {
			in.ChecksumAlgorithm = ""
		}
	})
	if err == nil && aws.ToString(out.ETag) == "" {
		err = errNoETag
	}
	if err != nil {
		_, err = s.fail(opPut, key, err, f, features(req))
		return guard.PutResult{}, err
	}
	return guard.PutResult{ETag: *out.ETag, VersionID: aws.ToString(out.VersionId), SSE: string(out.ServerSideEncryption)}, nil
}

// expires sets the Expires header in its own text, for which the SDK has only
// a time. An empty one is none.
func expires(v string) func(*s3.Options) {
	return func(o *s3.Options) {
		if v != "" {
			o.APIOptions = append(slices.Clip(o.APIOptions), smithyhttp.SetHeaderValue("Expires", v))
		}
	}
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// tagging is the x-amz-tagging header: a query string.
func tagging(tags map[string]string) string {
	q := make(url.Values, len(tags))
	for k, v := range tags {
		q.Set(k, v)
	}
	return q.Encode()
}

// Tags reads an object's tags, as [guard.Store] says. A delete marker is
// [guard.ErrNotFound].
func (s *Store) Tags(ctx context.Context, key, versionID string) (map[string]string, error) {
	if err := s.checkKey(ctx, opTags, key); err != nil {
		return nil, err
	}
	f := new(awsFlight)
	out, err := s.client.GetObjectTagging(ctx, &s3.GetObjectTaggingInput{
		Bucket: &s.name, Key: &key, VersionId: optional(versionID), RequestPayer: s.payer(),
	}, f.options)
	if err != nil {
		_, err = s.failRead(opTags, key, err, f)
		return nil, err
	}
	tags := make(map[string]string, len(out.TagSet))
	for _, t := range out.TagSet {
		tags[aws.ToString(t.Key)] = aws.ToString(t.Value)
	}
	return tags, nil
}

// Delete removes an object, as [guard.Store] says.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := s.checkKey(ctx, opDelete, key); err != nil {
		return err
	}
	f := new(awsFlight)
	_, err := s.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &s.name, Key: &key, RequestPayer: s.payer()}, f.options)
	if err != nil {
		_, err = s.fail(opDelete, key, err, f, "")
	}
	return unlessGone(err)
}

// Settings asks for the bucket's versioning and, unless ETags are unique
// anyway, for its default encryption. What it may not see, or what the store
// does not know of, stays unknown. An error is one that may pass: no answer, a
// done context, 5xx; or [guard.ErrNoBucket].
func (s *Store) Settings(ctx context.Context) (guard.Settings, error) {
	set := guard.Settings{UniqueETags: s.opts.UniqueETags}
	if err := s.checkContext(ctx, opVersioning, ""); err != nil {
		return set, err
	}
	set.Requests++
	f := new(awsFlight)
	v, err := s.client.GetBucketVersioning(ctx, &s3.GetBucketVersioningInput{Bucket: &s.name}, f.options)
	if err != nil {
		if _, err = s.fail(opVersioning, "", err, f, ""); !unknowable(err) {
			return set, err
		}
	} else {
		set.Versioning = versioning(string(v.Status))
	}
	if set.UniqueETags {
		return set, nil
	}
	set.Requests++
	f = new(awsFlight)
	e, err := s.client.GetBucketEncryption(ctx, &s3.GetBucketEncryptionInput{Bucket: &s.name}, f.options)
	if err != nil {
		if _, err = s.fail(opEncryption, "", err, f, ""); !unknowable(err) {
			return set, err
		}
		return set, nil
	}
	if c := e.ServerSideEncryptionConfiguration; c != nil {
		for _, r := range c.Rules {
			if d := r.ApplyServerSideEncryptionByDefault; d != nil {
				set.DefaultSSE = strings.TrimSpace(string(d.SSEAlgorithm))
				break
			}
		}
	}
	return set, nil
}
