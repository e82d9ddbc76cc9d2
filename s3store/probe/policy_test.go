package probe_test

import (
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/s3fence/s3fence/localstack/servers/serverstest"
	"github.com/s3fence/s3fence/s3store/policy"
	"github.com/s3fence/s3fence/s3store/policy/policytest"
	"github.com/s3fence/s3fence/s3store/probe"
)

// In a bucket whose policy demands conditions, and allows no deletes and no
// copies, everything that guarded writes need is proven all the same.
func TestPolicyInForce(t *testing.T) {
	for name, versions := range map[string][]types.BucketVersioningStatus{
		"no versions": nil, "versions": {types.BucketVersioningStatusEnabled},
	} {
		t.Run(name, func(t *testing.T) {
			m := serverstest.SharedMinIO(t)
			b := bucket(t, serverstest.S3Client(m), versions...)
			docs, _, err := policy.Documents(policy.Config{Bucket: b, Admins: []string{"arn:aws:iam::111122223333:role/admin"}}, policy.Bucket)
			if err != nil {
				t.Fatal(err)
			}
			p := policytest.NewProxy(t, m.URL, nil, docs[0].JSON())
			r := run(t, serverstest.S3Client(serverstest.At(m, p.URL)), b, &probe.Options{Quick: true})
			if r.Verdict != probe.Pass || len(r.Limits) > 0 {
				t.Errorf("%s, %v", r.Verdict, r.Limits)
			}
			skipped := map[string]string{"conditional-delete": "not allowed to delete", "conditional-copy": "not allowed to copy"}
			if versions != nil {
				skipped["delete-marker"] = "not allowed to delete"
			}
			for property, want := range skipped {
				if c := got(r, property); c.Verdict != probe.Skipped || !strings.Contains(c.Got, want) {
					t.Errorf("%s: %s, %s", property, c.Verdict, c.Got)
				}
			}
			if c := got(r, "cleanup"); c.Verdict != probe.Warn || !strings.Contains(c.Got, "whoever may can remove what is left under") {
				t.Errorf("cleanup: %s, %s", c.Verdict, c.Got)
			}
			for _, d := range p.Denied() {
				if !strings.HasSuffix(d, " DenyDeletes") && !strings.HasSuffix(d, " DenyCopies") {
					t.Errorf("denied: %s", d)
				}
			}
		})
	}
}
