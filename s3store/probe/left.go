package probe

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/s3fence/s3fence/guard"
)

// left is what the run's writes may have left.
type left struct {
	mu sync.Mutex
	// landed says that one was applied, or may have been.
	landed bool
	// versions are those that answers named.
	versions []version
	// uploads were begun, pending are the keys of those whose answer did not come.
	uploads []upload
	pending []string
}

type upload struct{ key, id string }

type version struct {
	key string
	id  *string
}

// wrote notes a write's answer.
func (l *left) wrote(key, id string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.landed = l.landed || !denied(err) && !errors.Is(err, guard.ErrNotSent) && !errors.Is(err, guard.ErrNoBucket)
	if id != "" {
		l.versions = append(l.versions, version{key, &id})
	}
}

// A notedStore notes what its writes leave.
type notedStore struct {
	guard.Store
	left *left
}

// Put implements guard.Store.
func (s notedStore) Put(ctx context.Context, key string, req guard.PutRequest) (guard.PutResult, error) {
	res, err := s.Store.Put(ctx, key, req)
	s.left.wrote(key, res.VersionID, err)
	return res, err
}

// A notedS3 is the same for what goes around the store.
type notedS3 struct {
	S3API
	left *left
}

// PutObject implements S3API.
func (s notedS3) PutObject(ctx context.Context, in *s3.PutObjectInput, opts ...func(*s3.Options)) (*s3.PutObjectOutput, error) {
	out, err := s.S3API.PutObject(ctx, in, opts...)
	var id *string
	if err == nil {
		id = out.VersionId
	}
	s.left.wrote(*in.Key, aws.ToString(id), err)
	return out, err
}

// CopyObject implements S3API.
func (s notedS3) CopyObject(ctx context.Context, in *s3.CopyObjectInput, opts ...func(*s3.Options)) (*s3.CopyObjectOutput, error) {
	out, err := s.S3API.CopyObject(ctx, in, opts...)
	var id *string
	if err == nil {
		id = out.VersionId
	}
	s.left.wrote(*in.Key, aws.ToString(id), err)
	return out, err
}

// DeleteObject implements S3API. A marker that it leaves is a version.
func (s notedS3) DeleteObject(ctx context.Context, in *s3.DeleteObjectInput, opts ...func(*s3.Options)) (*s3.DeleteObjectOutput, error) {
	out, err := s.S3API.DeleteObject(ctx, in, opts...)
	if err == nil && in.VersionId == nil {
		s.left.wrote(*in.Key, aws.ToString(out.VersionId), err)
	}
	return out, err
}

// CreateMultipartUpload implements S3API.
func (s notedS3) CreateMultipartUpload(ctx context.Context, in *s3.CreateMultipartUploadInput, opts ...func(*s3.Options)) (*s3.CreateMultipartUploadOutput, error) {
	s.left.mu.Lock()
	s.left.pending = append(s.left.pending, *in.Key)
	s.left.mu.Unlock()
	out, err := s.S3API.CreateMultipartUpload(ctx, in, opts...)
	s.left.wrote(*in.Key, "", err)
	if a := judge(err); a == none && !denied(err) || a == failed {
		return out, err // it may be there
	}
	s.left.mu.Lock()
	defer s.left.mu.Unlock()
	i := slices.Index(s.left.pending, *in.Key)
	s.left.pending = slices.Delete(s.left.pending, i, i+1)
	if err == nil {
		s.left.uploads = append(s.left.uploads, upload{*in.Key, aws.ToString(out.UploadId)})
	}
	return out, err
}

// CompleteMultipartUpload implements S3API.
func (s notedS3) CompleteMultipartUpload(ctx context.Context, in *s3.CompleteMultipartUploadInput, opts ...func(*s3.Options)) (*s3.CompleteMultipartUploadOutput, error) {
	out, err := s.S3API.CompleteMultipartUpload(ctx, in, opts...)
	var id *string
	if err == nil {
		id = out.VersionId
	}
	s.left.wrote(*in.Key, aws.ToString(id), err)
	return out, err
}
