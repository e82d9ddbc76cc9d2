package probe_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/s3fence/s3fence/localstack/faultproxy"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
	"github.com/s3fence/s3fence/s3store"
	"github.com/s3fence/s3fence/s3store/policy/policytest"
	"github.com/s3fence/s3fence/s3store/probe"
)

const (
	readLock       = "s3:GetBucketObjectLockConfiguration"
	readVersioning = "s3:GetBucketVersioning"
	listVersions   = "s3:ListBucketVersions"
)

// without is a client that is denied actions.
func without(t *testing.T, bucket string, actions ...string) *s3.Client {
	t.Helper()
	m := serverstest.SharedMinIO(t)
	p := policytest.NewProxy(t, m.URL, nil, fmt.Appendf(nil,
		`{"Version":"2012-10-17","Statement":[{"Sid":"Deny","Effect":"Deny","Principal":"*","Action":["%s"],"Resource":["arn:aws:s3:::%s"]}]}`,
		strings.Join(actions, `","`), bucket))
	return serverstest.S3Client(serverstest.At(m, p.URL))
}

// What a bucket is set to, and may not be asked, is seen from answers.
func TestSettingsUnreadable(t *testing.T) {
	for _, tt := range []struct {
		name         string
		versions     []types.BucketVersioningStatus
		denied       []string
		versioning   string
		deleteMarker probe.Verdict
		marker       string
		cleanup      probe.Verdict
	}{
		{"versions", []types.BucketVersioningStatus{types.BucketVersioningStatusEnabled}, []string{readLock, readVersioning},
			"enabled, by the version", probe.Pass, "the marker is seen", probe.Pass},
		{"versions, not listed", []types.BucketVersioningStatus{types.BucketVersioningStatusEnabled}, []string{readLock, readVersioning, listVersions},
			"enabled, by the version", probe.Limit, "versions can't be listed", probe.Warn},
		{"no versions", nil, []string{readLock, readVersioning, listVersions},
			"not known", probe.Skipped, "not known whether the bucket keeps versions", probe.Pass},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := serverstest.S3Client(serverstest.SharedMinIO(t))
			b := bucket(t, c, tt.versions...)
			r := run(t, without(t, b, tt.denied...), b, &probe.Options{Quick: true})
			if r.Verdict != probe.Pass {
				t.Errorf("it is a %s", r.Verdict)
			}
			if g := got(r, "bucket-versioning").Got; !strings.HasPrefix(g, tt.versioning) {
				t.Errorf("versioning: %s", g)
			}
			if g := got(r, "delete-marker"); g.Verdict != tt.deleteMarker || !strings.Contains(g.Got, tt.marker) {
				t.Errorf("delete marker: %s, %s", g.Verdict, g.Got)
			}
			if g := got(r, "cleanup"); g.Verdict != tt.cleanup {
				t.Errorf("cleanup: %s, %s", g.Verdict, g.Got)
			}
			mustBeEmpty(t, c, b)
		})
	}
}

// Under default retention that may not be read, one version is left, and not
// all of a run's.
func TestRetentionUnreadable(t *testing.T) {
	c := serverstest.S3Client(serverstest.SharedMinIO(t))
	b := locked(t, c)
	retain(t, c, b)
	denied := without(t, b, readLock, readVersioning)
	_, err := probe.Run(t.Context(), probe.Target{Store: s3store.New(denied, b, nil), S3: denied, Bucket: b}, nil)
	if err == nil || !strings.Contains(err.Error(), "retention") || !strings.Contains(err.Error(), "s3://"+b+"/.s3fence/probe-") {
		t.Errorf("%v", err)
	}
	out, err := c.ListObjectVersions(t.Context(), &s3.ListObjectVersionsInput{Bucket: &b})
	if err != nil || len(out.Versions) != 1 {
		t.Errorf("%d versions are left, %v", len(out.Versions), err)
	}
}

// An upload that was begun, whose answer the interruption cut off, is aborted.
func TestInterruptedUpload(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	b := bucket(t, serverstest.S3Client(m))
	px, err := faultproxy.New(m.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer px.Close()
	held := px.Hold(faultproxy.Rule{Method: http.MethodPost, Query: "uploads", Fault: faultproxy.Fault{Kind: faultproxy.HoldAnswer}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		<-held.Reached()
		cancel()
	}()
	c := serverstest.S3Client(serverstest.At(m, px.URL()))
	where := ""
	r, err := probe.Run(ctx, probe.Target{Store: s3store.New(c, b, nil), S3: c, Bucket: b}, &probe.Options{
		Quick: true, Interrupted: func(w string) { where = w },
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if !strings.HasPrefix(where, "s3://"+b+"/.s3fence/probe-") {
		t.Errorf("told to look under %q", where)
	}
	if g := got(r, "cleanup"); g.Verdict != probe.Pass {
		t.Errorf("cleanup: %s, %s", g.Verdict, g.Got)
	}
	mustBeEmpty(t, serverstest.S3Client(m), b)
}

// A name that no bucket can have is an error, and no table of failures.
func TestBucketName(t *testing.T) {
	c := serverstest.S3Client(serverstest.SharedMinIO(t))
	for _, b := range []string{"A_b", "buck4?x"} {
		r, err := probe.Run(t.Context(), probe.Target{Store: s3store.New(c, b, nil), S3: c, Bucket: b}, &probe.Options{Quick: true})
		if err == nil || !strings.Contains(err.Error(), "s3://"+b) || r.Verdict != "" || len(failing(r, probe.Fail)) > 0 {
			t.Errorf("%s: %s, %v", b, r.Verdict, err)
		}
		t.Log(err)
	}
}

// A rule that expires objects is named with all that it looks at.
func TestLifecycleFilter(t *testing.T) {
	c := serverstest.S3Client(serverstest.SharedMinIO(t))
	tag := func(k string) types.Tag { return types.Tag{Key: aws.String(k), Value: aws.String("yes")} }
	one := tag("tmp")
	for want, f := range map[string]*types.LifecycleRuleFilter{
		`under "" with the tag tmp=yes:`:                        {Tag: &one},
		`under "a/" with the tag tmp=yes with the tag old=yes:`: {And: &types.LifecycleRuleAndOperator{Prefix: aws.String("a/"), Tags: []types.Tag{tag("tmp"), tag("old")}}},
	} {
		b := bucket(t, c)
		if _, err := c.PutBucketLifecycleConfiguration(t.Context(), &s3.PutBucketLifecycleConfigurationInput{
			Bucket: &b, LifecycleConfiguration: &types.BucketLifecycleConfiguration{Rules: []types.LifecycleRule{{
				ID: aws.String("old"), Status: types.ExpirationStatusEnabled, Filter: f, Expiration: &types.LifecycleExpiration{Days: aws.Int32(30)},
			}}},
		}); err != nil {
			t.Fatal(err)
		}
		if g := got(run(t, c, b, &probe.Options{Quick: true}), "bucket-lifecycle").Got; !strings.Contains(g, want) {
			t.Errorf("%s, not %s", g, want)
		}
	}
}
