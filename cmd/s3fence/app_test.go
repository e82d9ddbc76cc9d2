package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/s3fence/s3fence/guard"
)

// The exit code of several objects: 16, then 10, then the first.
func TestWorst(t *testing.T) {
	first, second := errors.New("first"), fmt.Errorf("second: %w", guard.ErrUnfenced)
	stale := &guard.Refusal{Reason: guard.ErrStale}
	unknown := &guard.Refusal{Reason: guard.ErrOutcomeUnknown}
	for _, tt := range []struct {
		name string
		errs []error // of the objects 0, 1, ...
		want error
	}{
		{"the first", []error{nil, first, second}, first},
		{"stale", []error{first, stale, second}, stale},
		{"unknown", []error{stale, unknown, first}, unknown},
		{"none", []error{nil, nil}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, backwards := range []bool{false, true} { // objects end in any order
				var got tally
				for i := range tt.errs {
					if backwards {
						i = len(tt.errs) - 1 - i
					}
					if err := tt.errs[i]; err != nil {
						got.note(i, err)
					}
				}
				if got.worst != tt.want {
					t.Errorf("backwards=%v: %v, want %v", backwards, got.worst, tt.want)
				}
			}
		})
	}
}

func TestPrintable(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"plain key/ü 漢字", "plain key/ü 漢字"},
		{`back\slash`, `back\slash`},
		{"a\nb\tc\rd", `a\nb\tc\rd`},
		{"\x1b[2J\a\x7f", `\x1b[2J\a\x7f`},
		{"\u202egnp.exe", `\u202egnp.exe`},
		{"\u009b31m", `\u009b31m`},
		{"not \xff UTF-8", `not \xff UTF-8`},
		{"it's", "it's"},
		{"it's\n", `it's\n`},
	} {
		if got := printable(tt.in); got != tt.want {
			t.Errorf("%q: %s, want %s", tt.in, got, tt.want)
		}
	}
}

// Case 28: requester pays must reach every request, HEAD included.
func TestRequestPayer(t *testing.T) {
	var mu sync.Mutex
	var without, all []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		what := r.Method + " " + r.URL.String()
		all = append(all, what)
		if r.Header.Get("X-Amz-Request-Payer") != "requester" {
			without = append(without, what)
		}
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			t.Error(err)
		}
		for query, answer := range map[string]string{
			"list-type":  "<ListBucketResult/>",
			"versions":   "<ListVersionsResult/>",
			"versioning": "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>",
		} {
			if r.URL.Query().Has(query) {
				fmt.Fprint(w, answer)
				return
			}
		}
		if r.Method == http.MethodPut {
			w.Header().Set("Etag", `"1"`)
			return
		}
		w.WriteHeader(http.StatusNotFound)
	}))
	defer s.Close()
	env := map[string]string{"S3FENCE_NO_PROFILE": "1"}
	for k, v := range map[string]string{
		"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "us-east-1",
		"AWS_CONFIG_FILE": "nofile", "AWS_SHARED_CREDENTIALS_FILE": "nofile", "AWS_EC2_METADATA_DISABLED": "true",
	} {
		t.Setenv(k, v)
	}
	run := func(args ...string) int {
		var stderr strings.Builder
		a := &app{stdin: strings.NewReader("x"), stdout: io.Discard, stderr: &stderr, getenv: func(k string) string { return env[k] }}
		code := a.main(context.Background(), append(args, "--endpoint-url", s.URL, "--request-payer", "requester"))
		t.Logf("%v: %d %s", args, code, &stderr)
		return code
	}
	const tok = "f1:8c1d0f2ab64e97d3:nightly/report:00000000000000000048:422d5fde"
	run("stat", "s3://bucket/k")
	run("cat", "s3://bucket/k")
	run("ls", "s3://bucket/k")
	run("rm", "-r", "--token", tok, "s3://bucket/k")
	run("adopt", "-r", "--recover", "--token", tok, "s3://bucket/k")
	if code := run("put", "--token", tok, "-", "s3://bucket/k"); code != 0 {
		t.Errorf("put: exit code %d", code)
	}
	run("doctor", "--quick", "s3://bucket") // which also asks around our own store
	if len(without) > 0 || len(all) < 10 {
		t.Errorf("of %d requests these lack the header: %v", len(all), without)
	}
	env["S3FENCE_LOCAL"] = t.TempDir()
	a := &app{stdout: io.Discard, stderr: io.Discard, getenv: func(k string) string { return env[k] }}
	if code := a.main(context.Background(), []string{"ls", "s3://bucket", "--request-payer", "owner"}); code != 2 {
		t.Errorf("an unknown payer: exit code %d, want 2", code)
	}
}
