package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/s3fence/s3fence/localstack/faultproxy"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
)

// Only S3's own hosts are known: under amazonaws.com anyone may rent one.
func TestEndpointHost(t *testing.T) {
	for endpoint, own := range map[string]bool{
		"https://s3.amazonaws.com":                                                           true,
		"https://bucket.s3.amazonaws.com":                                                    true,
		"https://S3.EU-central-1.amazonaws.com:443":                                          true,
		"https://my.bucket.s3.us-gov-west-1.amazonaws.com":                                   true,
		"https://s3-eu-west-1.amazonaws.com":                                                 true,
		"https://s3-external-1.amazonaws.com":                                                true,
		"https://s3-fips.us-east-1.amazonaws.com":                                            true,
		"https://s3-fips-us-gov-west-1.amazonaws.com":                                        true,
		"https://s3.dualstack.ap-southeast-2.amazonaws.com":                                  true,
		"https://s3-fips.dualstack.us-east-2.amazonaws.com":                                  true,
		"https://s3-accelerate.amazonaws.com":                                                true,
		"https://bucket.s3-accelerate.dualstack.amazonaws.com":                               true,
		"https://reports-111122223333.s3-accesspoint.us-east-1.amazonaws.com":                true,
		"https://reports-111122223333.s3-accesspoint-fips.dualstack.us-east-1.amazonaws.com": true,
		"https://vpce-1a2b3c4d-5e6f.s3.us-east-1.vpce.amazonaws.com":                         true,
		"https://bucket.vpce-1a2b3c4d-5e6f.s3.us-east-1.vpce.amazonaws.com":                  true,
		"https://accesspoint.vpce-1a2b3c4d-5e6f-us-east-1a.s3.us-east-1.vpce.amazonaws.com":  true,
		"https://s3.cn-north-1.amazonaws.com.cn":                                             true,
		"https://bucket.s3.cn-northwest-1.amazonaws.com.cn":                                  true,

		"http://ec2-54-1-2-3.compute-1.amazonaws.com:9000":                     false,
		"http://ec2-54-1-2-3.eu-west-1.compute.amazonaws.com:9000":             false,
		"http://my-minio-123.us-east-1.elb.amazonaws.com":                      false,
		"http://s3-minio-123.us-east-1.elb.amazonaws.com":                      false,
		"http://s3-us-east-1.us-east-1.elb.amazonaws.com":                      false,
		"http://s3-123.elb.us-east-1.amazonaws.com":                            false,
		"http://minio-123.cn-north-1.elb.amazonaws.com.cn":                     false,
		"https://abc.execute-api.us-east-1.amazonaws.com":                      false,
		"http://bucket.s3-website-us-east-1.amazonaws.com":                     false,
		"https://s3express-use1-az4.us-east-1.amazonaws.com":                   false,
		"https://b--use1-az4--x-s3.s3express-use1-az4.us-east-1.amazonaws.com": false,
		"https://vpce-1a2b.vpce-svc-3c4d.us-east-1.vpce.amazonaws.com":         false,
		"https://s3.us-east-1.amazonaws.com.example.org":                       false,
		"https://s3.us-east-1xamazonaws.com":                                   false,
		"https://mys3.us-east-1.amazonaws.com":                                 false,
		"http://127.0.0.1:9000":                                                false,
	} {
		got, err := endpointHost(endpoint)
		if err != nil || (got == awsEndpoint) != own {
			t.Errorf("%s: %q, %v", endpoint, got, err)
		}
	}
}

// A store that fails, and holds the very counter that its profile's number
// would come from: it says once that it fails, and why that is not saved.
func TestFailingStoreWithCounter(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		switch r.Method {
		case http.MethodPut:
			w.Header().Set("Etag", `"1"`)
		case http.MethodDelete:
			w.WriteHeader(http.StatusNoContent)
		default:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, "<Error><Code>NoSuchKey</Code></Error>")
		}
	}))
	defer s.Close()
	for k, v := range map[string]string{
		"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "us-east-1",
		"AWS_CONFIG_FILE": "nofile", "AWS_SHARED_CREDENTIALS_FILE": "nofile", "AWS_EC2_METADATA_DISABLED": "true",
	} {
		t.Setenv(k, v)
	}
	env := map[string]string{"S3FENCE_ISSUER": "s3://bucket/counters"}
	for _, args := range [][]string{{"doctor", "-q", "--quick", "--save", "s3://bucket"}, {"init", "--scope", "s", "s3://bucket"}} {
		var stderr strings.Builder
		a := &app{stdout: io.Discard, stderr: &stderr, getenv: func(k string) string { return env[k] }}
		code := a.main(t.Context(), append(args, "--endpoint-url", s.URL))
		said := stderr.String()
		if code != 15 || strings.Count(said, "refused: ") != 1 || strings.Count(said, "store not safe") != 1 ||
			!strings.Contains(said, "it fails create-race, ") || !strings.Contains(said, "not saved, since the issuer counts in this very bucket") {
			t.Errorf("%v: exit code %d, said %s", args, code, said)
		}
	}
}

// Ctrl-C in the middle of a doctor: it says where it is removing what it wrote,
// and nothing is left there.
func TestInterruptDoctor(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	makeBuckets(t, m, "interrupt-doctor")
	exit, stdout, stderr := interrupted(t, m,
		faultproxy.Rule{Method: http.MethodPost, Query: "uploads", Fault: faultproxy.Fault{Kind: faultproxy.HoldAnswer}},
		"", "doctor", "--quick", "s3://interrupt-doctor")
	if exit != 130 {
		t.Errorf("exit code %d", exit)
	}
	for _, want := range []string{
		"s3fence: interrupted: removing what was written under s3://interrupt-doctor/.s3fence/probe-",
		"s3fence: interrupted, nothing was proven: ",
	} {
		if strings.Count(stderr, want) != 1 {
			t.Errorf("said %q, want %q", stderr, want)
		}
	}
	if !strings.Contains(stdout, `"property":"create-race"`) || !strings.Contains(stdout, `"op":"doctor","url":"s3://interrupt-doctor","outcome":"failed"`) {
		t.Errorf("printed %s", stdout)
	}
	bucket := "interrupt-doctor"
	c := serverstest.S3Client(m)
	objects, err := c.ListObjectsV2(t.Context(), &s3.ListObjectsV2Input{Bucket: &bucket})
	if err != nil || len(objects.Contents) != 1 { // makeBuckets' own
		t.Errorf("%d objects, %v", len(objects.Contents), err)
	}
	uploads, err := c.ListMultipartUploads(t.Context(), &s3.ListMultipartUploadsInput{Bucket: &bucket})
	if err != nil || len(uploads.Uploads) > 0 {
		t.Errorf("%d uploads, %v", len(uploads.Uploads), err)
	}
}
