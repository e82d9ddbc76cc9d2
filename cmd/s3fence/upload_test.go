package main

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/localstack/faultproxy"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
	"github.com/s3fence/s3fence/s3store"
)

// TestUploadScripts runs the scripts for which nothing but AWS_ENDPOINT_URL and
// the credentials is set: no region, no other endpoint. $T1, $T2 and $T3 are
// tokens of one scope.
func TestUploadScripts(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	makeBuckets(t, m, "endpoint", "keys")
	id, err := guard.ParseIssuerID("8c1d0f2ab64e97d3")
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{
		"AWS_ENDPOINT_URL":  strings.Replace(m.URL, "127.0.0.1", "localhost", 1),
		"AWS_ACCESS_KEY_ID": m.AccessKey, "AWS_SECRET_ACCESS_KEY": m.SecretKey,
	}
	for n := range int64(3) {
		tok, err := guard.NewToken(id, "uploads", n+1)
		if err != nil {
			t.Fatal(err)
		}
		env[fmt.Sprint("T", n+1)] = tok.String()
	}
	runScripts(t, "testdata/uploads", env)
}

// Case 29: files and a pipe over plain http, small and in parts, each with the
// checksums that AWS_REQUEST_CHECKSUM_CALCULATION asks for.
func TestRequestChecksums(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	const bucket = "request-checksums"
	makeBuckets(t, m, bucket)
	store := s3store.New(serverstest.S3Client(m), bucket, nil)
	for _, calculation := range []string{"", "when_supported", "when_required"} {
		for _, size := range []int{0, 5, 17 << 20} {
			for _, src := range []string{"file", "-"} {
				t.Run(fmt.Sprintf("%s/%d/%s", calculation, size, src), func(t *testing.T) {
					body := bytes.Repeat([]byte("0123456789abcdefg"), size/17+1)[:size]
					p, err := faultproxy.New(m.URL)
					if err != nil {
						t.Fatal(err)
					}
					defer p.Close()
					key, name := fmt.Sprint(calculation, size, src), src
					if src == "file" {
						name = filepath.Join(t.TempDir(), "file")
						if err := os.WriteFile(name, body, 0o600); err != nil {
							t.Fatal(err)
						}
					}
					cmd := program(t, serverstest.At(m, p.URL()), "put", "--token", "f1:8c1d0f2ab64e97d3:nightly/report:00000000000000000048:422d5fde",
						name, "s3://"+bucket+"/"+key)
					cmd.Env = append(cmd.Env, "AWS_REQUEST_CHECKSUM_CALCULATION="+calculation)
					cmd.Stdin = bytes.NewReader(body) // through a pipe
					if out, err := cmd.CombinedOutput(); err != nil {
						t.Fatalf("%v: %s", err, out)
					}
					g := guard.New(store, nil)
					_, r, err := g.Get(t.Context(), key, nil)
					if err != nil {
						t.Fatal(err)
					}
					var got bytes.Buffer
					if _, err := got.ReadFrom(r); err != nil || !bytes.Equal(got.Bytes(), body) {
						t.Errorf("it holds %d bytes, %v", got.Len(), err)
					}
					sent := 0
					for _, q := range p.Requests() {
						if q.Method != http.MethodPut && q.Method != http.MethodPost {
							continue
						}
						sent++
						sums := checksumHeaders(q.Header)
						if calculation == "when_required" && len(sums) > 0 {
							t.Errorf("%s ?%s has %v", q.Method, q.Query, sums)
						}
						if calculation != "when_required" && q.Query == "" && len(sums) == 0 {
							t.Errorf("%s has no checksum: %v", q.Method, q.Header)
						}
					}
					if want := size >= 17<<20; sent == 0 || (sent > 1) != want {
						t.Errorf("%d requests", sent)
					}
				})
			}
		}
	}
}

// checksumHeaders names the headers of a request that are about a checksum of
// its body, the signature's own left out.
func checksumHeaders(h http.Header) (names []string) {
	for k, v := range h {
		k = strings.ToLower(k)
		if strings.HasPrefix(k, "x-amz-checksum-") || k == "x-amz-sdk-checksum-algorithm" || k == "content-md5" ||
			k == "x-amz-trailer" && strings.HasPrefix(v[0], "x-amz-checksum-") {
			names = append(names, k)
		}
	}
	slices.Sort(names)
	return names
}
