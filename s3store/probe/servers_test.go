package probe_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/localstack/faultproxy"
	"github.com/s3fence/s3fence/localstack/servers"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
	"github.com/s3fence/s3fence/s3store"
	"github.com/s3fence/s3fence/s3store/probe"
)

func TestMain(m *testing.M) { os.Exit(serverstest.Main(m)) }

// bucket makes a bucket, with versions or without.
func bucket(t *testing.T, c *s3.Client, versions ...types.BucketVersioningStatus) string {
	t.Helper()
	name := serverstest.Name(t)
	if _, err := c.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &name}); err != nil {
		t.Fatal(err)
	}
	for _, v := range versions {
		if _, err := c.PutBucketVersioning(t.Context(), &s3.PutBucketVersioningInput{
			Bucket: &name, VersioningConfiguration: &types.VersioningConfiguration{Status: v},
		}); err != nil {
			t.Fatal(err)
		}
	}
	return name
}

func run(t *testing.T, c *s3.Client, bucket string, opts *probe.Options) probe.Report {
	t.Helper()
	r, err := probe.Run(t.Context(), probe.Target{Store: s3store.New(c, bucket, nil), S3: c, Bucket: bucket}, opts)
	show(t, r)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// mustBeEmpty fails if anything is left in the bucket: objects, versions,
// delete markers, uploads.
func mustBeEmpty(t *testing.T, c *s3.Client, bucket string) {
	t.Helper()
	out, err := c.ListObjectVersions(t.Context(), &s3.ListObjectVersionsInput{Bucket: &bucket})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(out.Versions) + len(out.DeleteMarkers); n > 0 {
		t.Errorf("%d versions are left, the first: %v", n, out.Versions)
	}
	ups, err := c.ListMultipartUploads(t.Context(), &s3.ListMultipartUploadsInput{Bucket: &bucket})
	if err != nil {
		t.Fatal(err)
	}
	if len(ups.Uploads) > 0 {
		t.Errorf("%d uploads are left", len(ups.Uploads))
	}
}

func got(r probe.Report, property string) probe.Check {
	for _, c := range r.Checks {
		if c.Property == property {
			return c
		}
	}
	return probe.Check{}
}

func TestMinIO(t *testing.T) {
	for _, tt := range []struct {
		name   string
		server func(testing.TB) *servers.Server
		unique bool
		kinds  map[string]guard.ETagKind
	}{
		{"kms", serverstest.SharedMinIO, false,
			map[string]guard.ETagKind{"none": guard.ETagRepeatable, "AES256": guard.ETagRepeatable, "aws:kms": guard.ETagUnique}},
		{"no kms", serverstest.SharedMinIONoKMS, false, map[string]guard.ETagKind{"none": guard.ETagRepeatable}},
		{"no compat", serverstest.SharedMinIONoCompat, true,
			map[string]guard.ETagKind{"none": guard.ETagUnique, "AES256": guard.ETagUnique, "aws:kms": guard.ETagUnique}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := tt.server(t)
			c := serverstest.S3Client(s)
			b := bucket(t, c)
			r := run(t, c, b, &probe.Options{Quick: !full})
			if r.Verdict != probe.Pass || len(r.Limits) > 0 || r.UniqueETags != tt.unique {
				t.Error("not so")
			}
			for k := range map[string]bool{"none": true, "AES256": true, "aws:kms": true} {
				if r.ETagKinds[k] != tt.kinds[k] {
					t.Errorf("ETags of %s are %q", k, r.ETagKinds[k])
				}
			}
			if g := got(r, "conditional-delete").Got; !strings.HasPrefix(g, "ignored") {
				t.Errorf("conditional delete: %s", g)
			}
			if g := got(r, "conditional-copy").Got; !strings.Contains(g, "If-Match ignored") {
				t.Errorf("conditional copy: %s", g)
			}
			mustBeEmpty(t, c, b)
		})
	}
}

// Buckets that keep versions, or kept them once.
func TestMinIOVersions(t *testing.T) {
	s := serverstest.SharedMinIO(t)
	c := serverstest.S3Client(s)
	for name, status := range map[string][]types.BucketVersioningStatus{
		"delete-marker":        {types.BucketVersioningStatusEnabled},
		"suspended-versioning": {types.BucketVersioningStatusEnabled, types.BucketVersioningStatusSuspended},
	} {
		t.Run(name, func(t *testing.T) {
			b := bucket(t, c, status...)
			r := run(t, c, b, &probe.Options{Quick: !full, Prefix: "root"})
			if r.Verdict != probe.Pass || len(r.Limits) > 0 || got(r, name).Verdict != probe.Pass {
				t.Errorf("%s: %+v", r.Verdict, got(r, name))
			}
			mustBeEmpty(t, c, b)
		})
	}
}

// The bucket's settings are judged, and never changed.
func TestMinIOLifecycle(t *testing.T) {
	s := serverstest.SharedMinIO(t)
	c := serverstest.S3Client(s)
	for _, tt := range []struct {
		prefix, guarded string
		warned          bool
	}{{"tmp/", "", true}, {"", "data/", true}, {"tmp/", "data/", false}, {"data/old/", "data/", true}, {".s3fence/", "data/", true}} {
		b := bucket(t, c)
		if _, err := c.PutBucketLifecycleConfiguration(t.Context(), &s3.PutBucketLifecycleConfigurationInput{
			Bucket: &b, LifecycleConfiguration: &types.BucketLifecycleConfiguration{Rules: []types.LifecycleRule{{
				ID: aws.String("old"), Status: types.ExpirationStatusEnabled, Filter: &types.LifecycleRuleFilter{Prefix: &tt.prefix},
				Expiration: &types.LifecycleExpiration{Days: aws.Int32(30)},
			}}},
		}); err != nil {
			t.Fatal(err)
		}
		r, err := probe.Run(t.Context(), probe.Target{Store: s3store.New(c, b, nil), S3: c, Bucket: b, Guarded: tt.guarded}, &probe.Options{Quick: true})
		if err != nil {
			t.Fatal(err)
		}
		check := got(r, "bucket-lifecycle")
		if (check.Verdict == probe.Warn) != tt.warned || r.Verdict != probe.Pass {
			t.Errorf("%+v: %+v", tt, check)
		}
	}
}

// locked makes a bucket with Object Lock.
func locked(t *testing.T, c *s3.Client) string {
	t.Helper()
	b := serverstest.Name(t)
	if _, err := c.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &b, ObjectLockEnabledForBucket: aws.Bool(true)}); err != nil {
		t.Fatal(err)
	}
	return b
}

// retain gives it a default retention.
func retain(t *testing.T, c *s3.Client, bucket string) {
	t.Helper()
	if _, err := c.PutObjectLockConfiguration(t.Context(), &s3.PutObjectLockConfigurationInput{
		Bucket: &bucket, ObjectLockConfiguration: &types.ObjectLockConfiguration{
			ObjectLockEnabled: types.ObjectLockEnabledEnabled,
			Rule:              &types.ObjectLockRule{DefaultRetention: &types.DefaultRetention{Mode: types.ObjectLockRetentionModeGovernance, Days: aws.Int32(1)}},
		},
	}); err != nil {
		t.Fatal(err)
	}
}

// Under default retention the probe's objects could not be removed.
func TestMinIORetention(t *testing.T) {
	s := serverstest.SharedMinIO(t)
	c := serverstest.S3Client(s)
	b := locked(t, c)
	r := run(t, c, b, &probe.Options{Quick: true})
	if r.Verdict != probe.Pass || !strings.Contains(got(r, "bucket-object-lock").Got, "no default retention") {
		t.Error("not so")
	}
	retain(t, c, b)
	_, err := probe.Run(t.Context(), probe.Target{Store: s3store.New(c, b, nil), S3: c, Bucket: b}, nil)
	if err == nil || !strings.Contains(err.Error(), "retention") {
		t.Errorf("%v", err)
	}
	mustBeEmpty(t, c, b)
}

// moto passes, but for multipart uploads under If-Match.
func TestMoto(t *testing.T) {
	s := serverstest.SharedMoto(t)
	c := serverstest.S3Client(s)
	b := bucket(t, c)
	r := run(t, c, b, &probe.Options{Quick: !full})
	if r.Verdict != probe.Pass || !slices.Contains(r.Limits, probe.LimitMultipartIfMatch) {
		t.Errorf("%s with limits %v", r.Verdict, r.Limits)
	}
	mustBeEmpty(t, c, b)
}

// The same server, when something on the way takes the conditions off: moto
// does not check signatures, so nothing else gives it away.
func TestStrippedConditions(t *testing.T) {
	s := serverstest.SharedMoto(t)
	px, err := faultproxy.New(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer px.Close()
	f, err := faultproxy.ParseFault("strip-headers=if-match,if-none-match")
	if err != nil {
		t.Fatal(err)
	}
	px.Add(faultproxy.Rule{Method: "PUT", Times: faultproxy.Forever, Fault: f})
	c := serverstest.S3Client(serverstest.At(s, px.URL()))
	b := bucket(t, c)
	r := run(t, c, b, &probe.Options{Quick: true})
	fails := failing(r, probe.Fail)
	for _, want := range []string{"create-race", "replace-race", "create-existing-refused", "wrong-etag-refused", "if-match-missing-refused"} {
		if !slices.Contains(fails, want) {
			t.Errorf("%s did not fail", want)
		}
	}
}
