package main

import (
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/s3fence/s3fence/localstack/servers"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
	"github.com/s3fence/s3fence/s3store/policy"
	"github.com/s3fence/s3fence/s3store/policy/policytest"
)

// TestEnforcedScripts runs the commands in buckets whose policies are those
// that the policy command writes: as the administrator, and as a writer with
// no more permissions than that role's.
func TestEnforcedScripts(t *testing.T) {
	m, d := serverstest.SharedMinIO(t), serverstest.SharedDynalite(t)
	const admin = "arn:aws:iam::111122223333:role/admin"
	buckets := []string{"enforced", "enforced-versions"}
	const counters = "enforced-counters"
	makeBuckets(t, m, append(buckets, counters)...)
	if _, err := serverstest.S3Client(m).PutBucketVersioning(t.Context(), &s3.PutBucketVersioningInput{
		Bucket: &buckets[1], VersioningConfiguration: &types.VersioningConfiguration{Status: types.BucketVersioningStatusEnabled},
	}); err != nil {
		t.Fatal(err)
	}
	var own [][]byte
	env := map[string]string{}
	for _, b := range buckets {
		c := policy.Config{Bucket: b, Table: "enforced", Scopes: []string{"nightly"}, Admins: []string{admin}}
		if b == "enforced" {
			c.RootBucket, c.IssuerBucket, c.IssuerPrefix = b, counters, "team"
		}
		docs, _, err := policy.Documents(c, policy.Bucket)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range docs {
			own = append(own, d.JSON())
		}
		c.Dialect = policy.MinIO
		if docs, _, err = policy.Documents(c, policy.Writer); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(docs[0]) // MinIO takes 2,048 characters
		if err != nil {
			t.Fatal(err)
		}
		v := session(t, m, text)
		prefix := strings.ToUpper(strings.ReplaceAll(b, "-", "_"))
		env[prefix+"_KEY"], env[prefix+"_SECRET"], env[prefix+"_SESSION"] = v.AccessKeyID, v.SecretAccessKey, v.SessionToken
	}
	p := policytest.NewProxy(t, m.URL, map[string]string{m.AccessKey: admin}, own...)
	maps.Copy(env, serverEnv(serverstest.At(m, p.URL), d))
	// In a group of their own, since scripts run in parallel with what follows.
	t.Run("scripts", func(t *testing.T) { runScripts(t, "testdata/enforced", env) })

	// Only the doctor tries what is denied, in its own corner, to see what a
	// store does; and the script, once, to save a profile as a writer.
	for _, d := range p.Denied() {
		if !strings.Contains(d, "/.s3fence/probe-") && !strings.HasSuffix(d, "/.s3fence/profile.json DenyProfile") {
			t.Errorf("a command was denied %s", d)
		}
		if strings.Contains(d, "Unconditional") || strings.Contains(d, "DenyIf") {
			t.Errorf("the doctor was denied %s", d)
		}
	}
	for _, a := range []string{"s3:PutObject", "s3:GetObject", "s3:AbortMultipartUpload", "s3:DeleteObject", "s3:DeleteObjectVersion"} {
		if !strings.Contains(strings.Join(p.Actions(), " ")+" ", a+" ") {
			t.Errorf("nothing asked for %s: %v", a, p.Actions())
		}
	}
}

// session takes credentials that are limited to a policy.
func session(t *testing.T, m *servers.Server, text []byte) credentials.Value {
	t.Helper()
	c, err := credentials.NewSTSAssumeRole(m.URL, credentials.STSAssumeRoleOptions{
		AccessKey: m.AccessKey, SecretKey: m.SecretKey, Policy: string(text), DurationSeconds: 3600,
	})
	if err != nil {
		t.Fatal(err)
	}
	v, err := c.GetWithContext(&credentials.CredContext{Client: http.DefaultClient})
	if err != nil {
		t.Fatal(err)
	}
	return v
}
