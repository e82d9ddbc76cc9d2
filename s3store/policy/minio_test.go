package policy_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/s3fence/s3fence/localstack/servers"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
	"github.com/s3fence/s3fence/s3store/policy"
)

// as returns a client whose permissions are policy's: a session of the root
// user's, limited to it, which MinIO judges as it does a user's policy.
func as(t *testing.T, s *servers.Server, text []byte) (*s3.Client, error) {
	t.Helper()
	c, err := credentials.NewSTSAssumeRole(s.URL, credentials.STSAssumeRoleOptions{
		AccessKey: s.AccessKey, SecretKey: s.SecretKey, Policy: string(text), DurationSeconds: int(time.Hour.Seconds()),
	})
	if err != nil {
		t.Fatal(err)
	}
	v, err := c.GetWithContext(&credentials.CredContext{Client: http.DefaultClient})
	if err != nil {
		return nil, err
	}
	client := serverstest.S3Client(s)
	o := client.Options()
	o.Credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{AccessKeyID: v.AccessKeyID, SecretAccessKey: v.SecretAccessKey, SessionToken: v.SessionToken}, nil
	})
	return s3.New(o), nil
}

func code(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	if err != nil {
		return err.Error()
	}
	return "taken"
}

func minioBucket(t *testing.T, s *servers.Server) (*s3.Client, string) {
	t.Helper()
	root, name := serverstest.S3Client(s), serverstest.Name(t)
	if _, err := root.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &name}); err != nil {
		t.Fatal(err)
	}
	if _, err := root.PutBucketVersioning(t.Context(), &s3.PutBucketVersioningInput{
		Bucket: &name, VersioningConfiguration: &types.VersioningConfiguration{Status: types.BucketVersioningStatusEnabled},
	}); err != nil {
		t.Fatal(err)
	}
	return root, name
}

// What holds on MinIO, and what does not.
func TestMinIO(t *testing.T) {
	s := serverstest.SharedMinIO(t)
	_, bucket := minioBucket(t, s)
	c := policy.Config{Bucket: bucket, Prefix: "reports/", Table: "s3fence", Scopes: []string{"nightly"}, Dialect: policy.MinIO}
	docs, notes := documents(t, c)
	if !strings.Contains(strings.Join(notes, "\n"), "nothing stops a writer who leaves the guard out from writing with no condition") {
		t.Errorf("the notes don't say what is not enforced: %q", notes)
	}
	ctx := t.Context()
	clients := map[string]*s3.Client{}
	for _, d := range docs {
		if strings.HasSuffix(d.Name, "-table") {
			continue
		}
		var err error
		if clients[d.Name], err = as(t, s, d.JSON()); err != nil {
			t.Fatalf("MinIO refuses the %s's policy: %v", d.Name, err)
		}
	}
	if len(clients) != 3 {
		t.Fatalf("%d roles", len(clients))
	}
	key, fence := "reports/a", ".s3fence/scopes/nightly.json"
	put := func(who *s3.Client, key string, set func(*s3.PutObjectInput)) (string, error) {
		in := &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: strings.NewReader("x" + key)}
		if set != nil {
			set(in)
		}
		out, err := who.PutObject(ctx, in)
		if err != nil {
			return "", err
		}
		return aws.ToString(out.VersionId), nil
	}
	absent := func(in *s3.PutObjectInput) { in.IfNoneMatch = aws.String("*") }
	version, err := put(clients["writer"], key, absent)
	if err != nil {
		t.Fatalf("a guarded write: %v", err)
	}
	if _, err := put(clients["writer"], fence, absent); err != nil {
		t.Fatalf("a claim: %v", err)
	}
	for _, tt := range []struct {
		name                  string
		try                   func(*s3.Client) error
		writer, reader, admin string
	}{
		{"read", func(c *s3.Client) error {
			_, err := c.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &bucket, Key: &key})
			return err
		}, "taken", "taken", "taken"},
		{"a missing key", func(c *s3.Client) error {
			_, err := c.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &bucket, Key: aws.String("reports/none")})
			return err
		}, "NotFound", "NotFound", "NotFound"},
		{"list versions", func(c *s3.Client) error {
			_, err := c.ListObjectVersions(ctx, &s3.ListObjectVersionsInput{Bucket: &bucket, Prefix: &key})
			return err
		}, "taken", "taken", "taken"},
		{"settings", func(c *s3.Client) error {
			_, err := c.GetBucketVersioning(ctx, &s3.GetBucketVersioningInput{Bucket: &bucket})
			return err
		}, "taken", "taken", "taken"},
		{"an upload begun and aborted", func(c *s3.Client) error {
			up, err := c.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: &bucket, Key: &key})
			if err != nil {
				return err
			}
			_, err = c.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &bucket, Key: &key, UploadId: up.UploadId})
			return err
		}, "taken", "AccessDenied", "taken"},
		{"a key beside the prefix", func(c *s3.Client) error {
			_, err := put(c, "other", absent)
			return err
		}, "AccessDenied", "AccessDenied", "AccessDenied"},
		{"forge the profile", func(c *s3.Client) error {
			_, err := put(c, ".s3fence/profile.json", nil)
			return err
		}, "AccessDenied", "AccessDenied", "taken"},
		{"lifecycle", func(c *s3.Client) error {
			_, err := c.PutBucketLifecycleConfiguration(ctx, &s3.PutBucketLifecycleConfigurationInput{Bucket: &bucket,
				LifecycleConfiguration: &types.BucketLifecycleConfiguration{Rules: []types.LifecycleRule{{
					ID: aws.String("all"), Status: types.ExpirationStatusEnabled, Filter: &types.LifecycleRuleFilter{Prefix: aws.String("")},
					Expiration: &types.LifecycleExpiration{Days: aws.Int32(1)},
				}}}})
			return err
		}, "AccessDenied", "AccessDenied", "AccessDenied"},
		{"versioning", func(c *s3.Client) error {
			_, err := c.PutBucketVersioning(ctx, &s3.PutBucketVersioningInput{
				Bucket: &bucket, VersioningConfiguration: &types.VersioningConfiguration{Status: types.BucketVersioningStatusSuspended},
			})
			return err
		}, "AccessDenied", "AccessDenied", "AccessDenied"},
		{"delete the bucket", func(c *s3.Client) error {
			_, err := c.DeleteBucket(ctx, &s3.DeleteBucketInput{Bucket: &bucket})
			return err
		}, "AccessDenied", "AccessDenied", "AccessDenied"},
		// The one that MinIO can't stop.
		{"a write with no condition", func(c *s3.Client) error {
			_, err := put(c, key, nil)
			return err
		}, "taken", "AccessDenied", "taken"},
		{"delete a version", func(c *s3.Client) error {
			_, err := c.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &bucket, Key: &key, VersionId: &version})
			return err
		}, "AccessDenied", "AccessDenied", "taken"},
		{"delete", func(c *s3.Client) error {
			_, err := c.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &bucket, Key: &key})
			return err
		}, "AccessDenied", "AccessDenied", "taken"},
		{"delete many", func(c *s3.Client) error {
			out, err := c.DeleteObjects(ctx, &s3.DeleteObjectsInput{Bucket: &bucket, Delete: &types.Delete{Objects: []types.ObjectIdentifier{{Key: &key}}}})
			if err == nil && len(out.Errors) > 0 {
				return errors.New(aws.ToString(out.Errors[0].Code))
			}
			return err
		}, "AccessDenied", "AccessDenied", "taken"},
	} {
		for _, who := range []struct{ name, want string }{{"writer", tt.writer}, {"reader", tt.reader}, {"admin", tt.admin}} {
			if got := code(tt.try(clients[who.name])); got != who.want {
				t.Errorf("%s by the %s: %s, want %s", tt.name, who.name, got, who.want)
			}
		}
	}
}

// Why MinIO has a dialect of its own: what it says to AWS's policies, and whom
// its buckets' policies are for. Should it learn these conditions, this fails.
func TestMinIORefusesConditions(t *testing.T) {
	s := serverstest.SharedMinIO(t)
	root, bucket := minioBucket(t, s)
	c := configs()["plain"]
	c.Bucket = bucket
	docs, _ := documents(t, c)
	for _, d := range docs {
		switch d.Name {
		case "bucket":
			_, err := root.PutBucketPolicy(t.Context(), &s3.PutBucketPolicyInput{Bucket: &bucket, Policy: aws.String(string(d.JSON()))})
			t.Logf("the bucket's policy: %v", err)
			if code(err) != "MalformedPolicy" {
				t.Errorf("MinIO answers the bucket's policy with %s", code(err))
			}
		case "writer", "admin":
			_, err := as(t, s, d.JSON())
			t.Logf("the %s's policy: %v", d.Name, err)
			if err == nil {
				t.Errorf("MinIO takes the %s's policy", d.Name)
			}
		}
	}
	for _, key := range []string{"s3:if-match", "s3:if-none-match", "s3:ObjectCreationOperation"} {
		_, err := as(t, s, []byte(`{"Version": "2012-10-17", "Statement": [{"Effect": "Deny", "Action": ["s3:PutObject"], "Resource": ["arn:aws:s3:::*"], "Condition": {"Null": {"`+key+`": "true"}}}]}`))
		if err == nil || !strings.Contains(err.Error(), "invalid condition key '"+key+"'") {
			t.Errorf("a user's policy with a condition on %s: %v", key, err)
		}
	}
	deny := `{"Version": "2012-10-17", "Statement": [{"Effect": "Deny", "Principal": {"AWS": ["*"]}, "Action": ["s3:DeleteObject"], "Resource": ["arn:aws:s3:::` + bucket + `/*"]}]}`
	if _, err := root.PutBucketPolicy(t.Context(), &s3.PutBucketPolicyInput{Bucket: &bucket, Policy: &deny}); err != nil {
		t.Fatal(err)
	}
	all, err := as(t, s, []byte(`{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": ["s3:*"], "Resource": ["arn:aws:s3:::*"]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := all.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: &bucket, Key: aws.String("k")}); err != nil {
		t.Errorf("a bucket's policy that denies deletes holds for whoever has credentials: %v", err)
	}
}
