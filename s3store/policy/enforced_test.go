package policy_test

import (
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/s3fence/s3fence/localstack/servers/serverstest"
	"github.com/s3fence/s3fence/s3store/policy"
	"github.com/s3fence/s3fence/s3store/policy/policytest"
)

// The bucket's policy in force on the wire, before a real server: what an SDK
// sends is denied where it goes around the guard, and comes through, with its
// signature, where it does not.
func TestEnforced(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	_, bucket := minioBucket(t, m)
	docs, _ := documents(t, policy.Config{Bucket: bucket, Admins: []string{admin}}, policy.Bucket)
	p := policytest.NewProxy(t, m.URL, map[string]string{m.AccessKey: admin}, docs[0].JSON())
	at := serverstest.At(m, p.URL)
	all, err := as(t, m, []byte(`{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": ["s3:*"], "Resource": ["arn:aws:s3:::*"]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	o := all.Options()
	o.BaseEndpoint = &at.URL
	clients := map[string]*s3.Client{"somebody": s3.New(o), "admin": serverstest.S3Client(at)}

	ctx, key, source := t.Context(), "a/k ey+ü", "a/source"
	for _, k := range []string{key, source} {
		if _, err := clients["somebody"].PutObject(ctx, &s3.PutObjectInput{Bucket: &bucket, Key: &k, Body: strings.NewReader(k), IfNoneMatch: aws.String("*")}); err != nil {
			t.Fatal(err)
		}
	}
	from := aws.String(bucket + "/" + source)
	// MinIO takes no UploadPartCopy in an upload that has a checksum algorithm.
	plain := func(o *s3.Options) { o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired }
	// upload sends all of an upload but its end, and then does end.
	upload := func(c *s3.Client, end func(id *string, parts []types.CompletedPart) error) error {
		up, err := c.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: &bucket, Key: &key}, plain)
		if err != nil {
			return err
		}
		part, err := c.UploadPart(ctx, &s3.UploadPartInput{
			Bucket: &bucket, Key: &key, UploadId: up.UploadId, PartNumber: aws.Int32(1), Body: strings.NewReader("part"),
		}, plain)
		if err != nil {
			return err
		}
		return end(up.UploadId, []types.CompletedPart{{ETag: part.ETag, PartNumber: aws.Int32(1)}})
	}
	head := func(t *testing.T) *string {
		out, err := clients["admin"].HeadObject(ctx, &s3.HeadObjectInput{Bucket: &bucket, Key: &key})
		if err != nil {
			t.Fatal(err)
		}
		return out.ETag
	}
	for _, tt := range []struct {
		name            string
		try             func(*s3.Client) error
		somebody, admin string
	}{
		{"PutObject, unconditional", func(c *s3.Client) error {
			_, err := c.PutObject(ctx, &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: strings.NewReader("x")})
			return err
		}, "AccessDenied", "AccessDenied"},
		{"PutObject, If-Match", func(c *s3.Client) error {
			_, err := c.PutObject(ctx, &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: strings.NewReader("y"), IfMatch: head(t)})
			return err
		}, "taken", "taken"},
		{"PutObject, If-None-Match", func(c *s3.Client) error {
			_, err := c.PutObject(ctx, &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: strings.NewReader("y"), IfNoneMatch: aws.String("*")})
			return err
		}, "PreconditionFailed", "PreconditionFailed"},
		{"PutObject, If-Match: *", func(c *s3.Client) error {
			_, err := c.PutObject(ctx, &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: strings.NewReader("y"), IfMatch: aws.String("*")})
			return err
		}, "AccessDenied", "AccessDenied"},
		{"CopyObject, unconditional", func(c *s3.Client) error {
			_, err := c.CopyObject(ctx, &s3.CopyObjectInput{Bucket: &bucket, Key: &key, CopySource: from})
			return err
		}, "AccessDenied", "AccessDenied"},
		{"CopyObject, If-Match", func(c *s3.Client) error {
			_, err := c.CopyObject(ctx, &s3.CopyObjectInput{Bucket: &bucket, Key: &key, CopySource: from, IfMatch: head(t)})
			return err
		}, "AccessDenied", "taken"},
		{"CompleteMultipartUpload, unconditional", func(c *s3.Client) error {
			return upload(c, func(id *string, parts []types.CompletedPart) error {
				_, err := c.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{
					Bucket: &bucket, Key: &key, UploadId: id, MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
				}, plain)
				return err
			})
		}, "AccessDenied", "AccessDenied"},
		{"CompleteMultipartUpload, If-Match", func(c *s3.Client) error {
			return upload(c, func(id *string, parts []types.CompletedPart) error {
				_, err := c.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{
					Bucket: &bucket, Key: &key, UploadId: id, MultipartUpload: &types.CompletedMultipartUpload{Parts: parts}, IfMatch: head(t),
				}, plain)
				return err
			})
		}, "taken", "taken"},
		{"UploadPartCopy and AbortMultipartUpload", func(c *s3.Client) error {
			return upload(c, func(id *string, _ []types.CompletedPart) error {
				if _, err := c.UploadPartCopy(ctx, &s3.UploadPartCopyInput{
					Bucket: &bucket, Key: &key, UploadId: id, PartNumber: aws.Int32(2), CopySource: from,
				}); err != nil {
					return err
				}
				_, err := c.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &bucket, Key: &key, UploadId: id})
				return err
			})
		}, "taken", "taken"},
		{"PutBucketVersioning", func(c *s3.Client) error {
			_, err := c.PutBucketVersioning(ctx, &s3.PutBucketVersioningInput{
				Bucket: &bucket, VersioningConfiguration: &types.VersioningConfiguration{Status: types.BucketVersioningStatusEnabled},
			})
			return err
		}, "AccessDenied", "taken"},
		{"DeleteObjects", func(c *s3.Client) error {
			_, err := c.DeleteObjects(ctx, &s3.DeleteObjectsInput{Bucket: &bucket, Delete: &types.Delete{Objects: []types.ObjectIdentifier{{Key: &source}}}})
			return err
		}, "AccessDenied", "taken"},
		{"DeleteObject", func(c *s3.Client) error {
			_, err := c.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &bucket, Key: &key})
			return err
		}, "AccessDenied", "taken"},
		{"DeleteObject of a version", func(c *s3.Client) error {
			_, err := c.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &bucket, Key: &key, VersionId: aws.String("null")})
			return err
		}, "AccessDenied", "taken"},
		{"DeleteBucket", func(c *s3.Client) error {
			_, err := c.DeleteBucket(ctx, &s3.DeleteBucketInput{Bucket: &bucket})
			return err
		}, "AccessDenied", "BucketNotEmpty"},
	} {
		for _, who := range []struct{ name, want string }{{"somebody", tt.somebody}, {"admin", tt.admin}} {
			if got := code(tt.try(clients[who.name])); got != who.want {
				t.Errorf("%s by %s: %s, want %s", tt.name, who.name, got, who.want)
			}
		}
	}
	if len(p.Denied()) == 0 {
		t.Error("the proxy counted nothing")
	}
}
