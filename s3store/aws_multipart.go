package s3store

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/s3fence/s3fence/guard"
)

var errNoUploadID = errors.New("the store answered without an upload id")

// CreateUpload begins a multipart upload, as [guard.Store] says. What it
// refuses unsent is what Put does. With a Checksum, the object gets one of that
// algorithm, of its whole, unless the client's RequestChecksumCalculation is
// when required; with none, requests carry no checksum, whatever the client is
// configured to add, since an upload takes it in all its requests or in none.
func (s *Store) CreateUpload(ctx context.Context, key string, req guard.UploadRequest) (guard.Upload, error) {
	if err := s.checkUpload(ctx, key, req); err != nil {
		return guard.Upload{}, err
	}
	h := req.Headers
	in := &s3.CreateMultipartUploadInput{
		Bucket:                  &s.name,
		Key:                     &key,
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
		ChecksumAlgorithm:       types.ChecksumAlgorithm(req.Checksum),
		RequestPayer:            s.payer(),
	}
	if req.Checksum != "" {
		in.ChecksumType = types.ChecksumTypeFullObject
	}
	f := new(awsFlight)
	out, err := s.client.CreateMultipartUpload(ctx, in, f.options, expires(h.Expires), func(o *s3.Options) {
		if o.RequestChecksumCalculation == aws.RequestChecksumCalculationWhenRequired {
			req.Checksum, in.ChecksumAlgorithm, in.ChecksumType = "", "", ""
		}
	})
	if err == nil && aws.ToString(out.UploadId) == "" {
		err = errNoUploadID
	}
	if err != nil {
		_, err = s.fail(opCreate, key, err, f, uploadFeatures(req))
		return guard.Upload{}, err
	}
	return guard.Upload{
		Key: key, ID: *out.UploadId, Checksum: req.Checksum,
		// Stores that do not know the type take the algorithm all the same.
		Composite: req.Checksum != "" && out.ChecksumType != types.ChecksumTypeFullObject,
	}, nil
}

// noDefaultChecksum keeps the SDK from adding a checksum that the upload did not begin with.
func noDefaultChecksum(o *s3.Options) {
	o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
}

// UploadPart sends one part, as [guard.Store] says.
func (s *Store) UploadPart(ctx context.Context, up guard.Upload, number int, body guard.Body) (guard.Part, error) {
	if err := s.checkPart(ctx, opPart, up, number); err != nil {
		return guard.Part{}, err
	}
	f := new(awsFlight)
	out, err := s.client.UploadPart(ctx, &s3.UploadPartInput{
		Bucket: &s.name, Key: &up.Key, UploadId: &up.ID, PartNumber: aws.Int32(int32(number)),
		Body: bodyReader{body.Reader()}, ContentLength: aws.Int64(body.Size()),
		ChecksumAlgorithm: types.ChecksumAlgorithm(up.Checksum), RequestPayer: s.payer(),
	}, f.options, noDefaultChecksum)
	if err == nil && aws.ToString(out.ETag) == "" {
		err = errNoETag
	}
	if err != nil {
		_, err = s.fail(opPart, up.Key, err, f, "multipart upload")
		return guard.Part{}, err
	}
	// Of what was sent, whatever the store says that it got.
	sums, _ := s3.GetComputedInputChecksumsMetadata(out.ResultMetadata)
	return guard.Part{Number: number, ETag: *out.ETag, Size: body.Size(), Checksum: partChecksum(up, sums.ComputedChecksums[up.Checksum])}, nil
}

func partChecksum(up guard.Upload, value string) guard.Checksum {
	if up.Checksum == "" || value == "" {
		return guard.Checksum{}
	}
	return guard.Checksum{Algorithm: up.Checksum, Value: value}
}

// CopyPart makes a part of an object's bytes, as [guard.Store] says. A source
// that is gone is [guard.ErrNotFound]. The part's Size is that of the source's
// range, 0 where the whole of it was copied: no answer says it. MinIO copies
// nothing into an upload that has a Checksum.
func (s *Store) CopyPart(ctx context.Context, up guard.Upload, number int, src guard.CopySource) (guard.Part, error) {
	if err := s.checkCopy(ctx, up, number, src); err != nil {
		return guard.Part{}, err
	}
	in := &s3.UploadPartCopyInput{
		Bucket: &s.name, Key: &up.Key, UploadId: &up.ID, PartNumber: aws.Int32(int32(number)),
		CopySource: aws.String(copySource(s.name, src)), CopySourceIfMatch: &src.ETag, RequestPayer: s.payer(),
	}
	if src.Size > 0 {
		in.CopySourceRange = aws.String(fmt.Sprintf("bytes=%d-%d", src.Offset, src.Offset+src.Size-1))
	}
	f := new(awsFlight)
	out, err := s.client.UploadPartCopy(ctx, in, f.options)
	if err == nil && (out.CopyPartResult == nil || aws.ToString(out.CopyPartResult.ETag) == "") {
		err = errNoETag
	}
	if err != nil {
		_, err = s.fail(opCopy, up.Key, err, f, "UploadPartCopy with x-amz-copy-source-if-match")
		return guard.Part{}, err
	}
	res := out.CopyPartResult
	value := aws.ToString(map[string]*string{
		"CRC32": res.ChecksumCRC32, "CRC32C": res.ChecksumCRC32C, "CRC64NVME": res.ChecksumCRC64NVME,
	}[up.Checksum])
	return guard.Part{Number: number, ETag: *res.ETag, Size: src.Size, Checksum: partChecksum(up, value)}, nil
}

// copySource is the x-amz-copy-source header. Every byte of the key that a
// store could take for something else is escaped, + among them.
func copySource(bucket string, src guard.CopySource) string {
	segments := strings.Split(src.Key, "/")
	for i, s := range segments {
		segments[i] = strings.ReplaceAll(url.QueryEscape(s), "+", "%20")
	}
	header := bucket + "/" + strings.Join(segments, "/")
	if src.VersionID != "" {
		header += "?versionId=" + url.QueryEscape(src.VersionID)
	}
	return header
}

// CompleteUpload makes the upload the object, as [guard.Store] says. A store
// may answer 200 before it knows and put an error into the body; such an
// answer, and one that ends early, leaves the outcome unknown.
func (s *Store) CompleteUpload(ctx context.Context, up guard.Upload, req guard.CompleteRequest) (guard.PutResult, error) {
	if err := s.checkComplete(ctx, up, req); err != nil {
		return guard.PutResult{}, err
	}
	req.Checksum = wholeChecksum(up, req)
	parts := make([]types.CompletedPart, len(req.Parts))
	for i, p := range req.Parts {
		parts[i] = types.CompletedPart{PartNumber: aws.Int32(int32(p.Number)), ETag: &req.Parts[i].ETag}
		switch p.Checksum.Algorithm {
		case "CRC32":
			parts[i].ChecksumCRC32 = &req.Parts[i].Checksum.Value
		case "CRC32C":
			parts[i].ChecksumCRC32C = &req.Parts[i].Checksum.Value
		case "CRC64NVME":
			parts[i].ChecksumCRC64NVME = &req.Parts[i].Checksum.Value
		case "SHA1":
			parts[i].ChecksumSHA1 = &req.Parts[i].Checksum.Value
		case "SHA256":
			parts[i].ChecksumSHA256 = &req.Parts[i].Checksum.Value
		}
	}
	in := &s3.CompleteMultipartUploadInput{
		Bucket: &s.name, Key: &up.Key, UploadId: &up.ID, RequestPayer: s.payer(),
		MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
	}
	if req.Checksum.Value != "" {
		in.ChecksumType = types.ChecksumTypeFullObject
		switch req.Checksum.Algorithm {
		case "CRC32":
			in.ChecksumCRC32 = &req.Checksum.Value
		case "CRC32C":
			in.ChecksumCRC32C = &req.Checksum.Value
		case "CRC64NVME":
			in.ChecksumCRC64NVME = &req.Checksum.Value
		}
	}
	if req.Condition.Absent() {
		in.IfNoneMatch = aws.String("*")
	} else {
		in.IfMatch = aws.String(req.Condition.ETag())
	}
	f := new(awsFlight)
	out, err := s.client.CompleteMultipartUpload(ctx, in, f.options)
	if err == nil && aws.ToString(out.ETag) == "" {
		err = errNoETag
	}
	if err != nil {
		_, err = s.fail(opComplete, up.Key, err, f, completeFeatures(req))
		return guard.PutResult{}, err
	}
	return guard.PutResult{ETag: *out.ETag, VersionID: aws.ToString(out.VersionId), SSE: string(out.ServerSideEncryption)}, nil
}

// AbortUpload throws an upload away, as [guard.Store] says.
func (s *Store) AbortUpload(ctx context.Context, up guard.Upload) error {
	if err := s.checkPart(ctx, opAbort, up, 1); err != nil {
		return err
	}
	f := new(awsFlight)
	_, err := s.client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{
		Bucket: &s.name, Key: &up.Key, UploadId: &up.ID, RequestPayer: s.payer(),
	}, f.options)
	if err != nil {
		_, err = s.fail(opAbort, up.Key, err, f, "multipart upload")
	}
	return err
}

// Uploads yields what the store lists, as [guard.Store] says, in no order. Of
// those that are not at the very key, MinIO has the ones that were begun since
// its server started.
func (s *Store) Uploads(ctx context.Context, prefix string) iter.Seq2[guard.Upload, error] {
	return func(yield func(guard.Upload, error) bool) {
		if err := s.checkPrefix(ctx, opUploads, prefix); err != nil {
			yield(guard.Upload{}, err)
			return
		}
		uploadsUnder(prefix, func(prefix string) iter.Seq2[guard.Upload, error] { return s.uploads(ctx, prefix) })(yield)
	}
}

// uploads yields what the store lists under one prefix.
func (s *Store) uploads(ctx context.Context, prefix string) iter.Seq2[guard.Upload, error] {
	return func(yield func(guard.Upload, error) bool) {
		in := &s3.ListMultipartUploadsInput{
			Bucket: &s.name, Prefix: optional(prefix), EncodingType: types.EncodingTypeUrl, RequestPayer: s.payer(),
		}
		for {
			f := new(awsFlight)
			out, err := s.client.ListMultipartUploads(ctx, in, f.options)
			if err == nil && aws.ToString(out.Bucket) == "" {
				err = errNoListing
			}
			var next, id string
			if err == nil && aws.ToBool(out.IsTruncated) {
				next, id = decodeKey(out.EncodingType, out.NextKeyMarker), aws.ToString(out.NextUploadIdMarker)
				if next == aws.ToString(in.KeyMarker) && id == aws.ToString(in.UploadIdMarker) {
					err = errNoMarker
				}
			}
			if err != nil {
				_, err = s.fail(opUploads, prefix, err, f, "")
				yield(guard.Upload{}, err)
				return
			}
			for _, u := range out.Uploads {
				up := guard.Upload{
					Key: decodeKey(out.EncodingType, u.Key), ID: aws.ToString(u.UploadId), Initiated: aws.ToTime(u.Initiated),
				}
				err := s.checkContext(ctx, opUploads, prefix)
				if err != nil {
					up = guard.Upload{}
				}
				if !yield(up, err) || err != nil {
					return
				}
			}
			if !aws.ToBool(out.IsTruncated) {
				return
			}
			in.KeyMarker, in.UploadIdMarker = &next, &id
		}
	}
}
