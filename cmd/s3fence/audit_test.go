package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/audit"
	"github.com/s3fence/s3fence/issuer"
	"github.com/s3fence/s3fence/localstack/servers"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
	"github.com/s3fence/s3fence/s3store"
)

const (
	auditScope   = "audited"
	auditNumbers = 50 // that its counter has given
)

// auditObjects is how many objects are audited; S3FENCE_AUDIT_OBJECTS asks for
// more than a test can take its time for.
func auditObjects(t *testing.T) int {
	t.Helper()
	text := os.Getenv("S3FENCE_AUDIT_OBJECTS")
	if text == "" {
		return 1500
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 100 {
		t.Fatalf("S3FENCE_AUDIT_OBJECTS=%s: a number from 100 up", text)
	}
	return n
}

// An audited is a bucket that keeps versions, with one regression and three
// uploads that nobody completed.
type audited struct {
	bucket, key string // the regression's
	objects     int
	store       guard.Store
}

// fillForAudit makes n objects as the guard leaves them, in one request each,
// and one that it wrote itself and that was then written around it.
func fillForAudit(t *testing.T, m *servers.Server, tokens []guard.Token, n int) audited {
	t.Helper()
	ctx := t.Context()
	client := serverstest.S3Client(m)
	a := audited{bucket: serverstest.Name(t), objects: n, key: fmt.Sprintf("data/%07d", n/2)}
	if _, err := client.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: &a.bucket}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.PutBucketVersioning(ctx, &s3.PutBucketVersioningInput{
		Bucket: &a.bucket, VersioningConfiguration: &types.VersioningConfiguration{Status: types.BucketVersioningStatusEnabled},
	}); err != nil {
		t.Fatal(err)
	}
	a.store = s3store.New(client, a.bucket, nil)
	keys := make(chan int)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := range keys {
				tok := tokens[i%(len(tokens)-5)]
				r := guard.Record{Issuer: tok.Issuer(), Scope: auditScope, Number: tok.Number(), Sequence: int64(i + 1), WriteID: guard.WriteID{byte(i), byte(i >> 8), byte(i >> 16), 1}, State: guard.Live}
				if _, err := a.store.Put(ctx, fmt.Sprintf("data/%07d", i), guard.PutRequest{
					Condition: guard.IfAbsent(), Body: guard.Bytes([]byte("bytes")),
					Headers: guard.Headers{Metadata: map[string]string{guard.RecordKey: r.String()}},
				}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for i := range n {
		if i != n/2 {
			keys <- i
		}
	}
	close(keys)
	wg.Wait()
	g := guard.New(a.store, nil)
	last := tokens[len(tokens)-3:]
	for _, tok := range []guard.Token{last[0], last[2]} {
		if _, err := g.Put(ctx, tok, a.key, guard.Bytes([]byte("owner "+tok.String())), &guard.PutOptions{SSE: "aws:kms"}); err != nil {
			t.Fatal(err)
		}
	}
	late := guard.Record{Issuer: last[1].Issuer(), Scope: auditScope, Number: last[1].Number(), Sequence: 1, WriteID: guard.WriteID{9}, State: guard.Live}
	if _, err := client.PutObject(ctx, &s3.PutObjectInput{
		Bucket: &a.bucket, Key: &a.key, Body: strings.NewReader("late"), Metadata: map[string]string{guard.RecordKey: late.String()},
	}); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"data/big", "data/big", "left/behind"} {
		if _, err := client.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: &a.bucket, Key: &key}); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

// withoutMetadata is a server whose listings say of metadata what S3's do:
// nothing.
func withoutMetadata(t *testing.T, m *servers.Server) *servers.Server {
	t.Helper()
	to, err := url.Parse(m.URL)
	if err != nil {
		t.Fatal(err)
	}
	extension := regexp.MustCompile(`(?s)<UserMetadata>.*?</UserMetadata>|<UserMetadata/>|<Internal>.*?</Internal>`)
	s := httptest.NewServer(&httputil.ReverseProxy{
		Transport: &http.Transport{MaxIdleConnsPerHost: 64},
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Host = r.In.Host // which is signed
		},
		ModifyResponse: func(r *http.Response) error {
			if r.Request.URL.Query().Get("metadata") == "" {
				return nil
			}
			page, err := io.ReadAll(r.Body)
			r.Body.Close()
			page = extension.ReplaceAll(page, nil)
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(page)), int64(len(page))
			r.Header.Set("Content-Length", strconv.Itoa(len(page)))
			return err
		},
	})
	t.Cleanup(s.Close)
	return serverstest.At(m, s.URL)
}

// auditResult is what a run of the command came to.
type auditResult struct {
	auditJSON
	findings []findingJSON
	exit     int
	rss      int64 // the most memory it had, in KiB; 0 where that is not known
}

// runAudit runs the command as a process of its own.
func runAudit(t *testing.T, env map[string]string, args ...string) auditResult {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The test binary is s3fence when it is called so.
	cmd := exec.CommandContext(t.Context(), exe, append([]string{"audit", "--json"}, args...)...)
	cmd.Args[0] = "s3fence"
	cmd.Env = append(os.Environ(), "S3FENCE_TEST_MAIN=1", "S3FENCE_LOCAL=")
	for k, v := range env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	peak := make(chan int64)
	go func() { peak <- peakRSS(cmd.Process.Pid, done) }()
	err = cmd.Wait()
	close(done)
	rss := <-peak
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	r := auditResult{exit: cmd.ProcessState.ExitCode(), rss: rss}
	for line := range strings.Lines(stdout.String()) {
		into := any(&r.auditJSON)
		if strings.HasPrefix(line, `{"op":"audit-finding"`) {
			r.findings = append(r.findings, findingJSON{})
			into = &r.findings[len(r.findings)-1]
		}
		if err := json.Unmarshal([]byte(line), into); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
	}
	if r.Op != "audit" {
		t.Fatalf("exit %d: %s%s", r.exit, &stdout, &stderr)
	}
	return r
}

// peakRSS is the most memory that a process has had until it is done, in KiB; 0
// where the system does not tell. What wait4 tells is at least its parent's.
func peakRSS(pid int, done <-chan struct{}) int64 {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var peak int64
	for {
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)); err == nil {
			if _, rest, ok := strings.Cut(string(b), "VmHWM:"); ok {
				kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
				if err == nil {
					peak = max(peak, kib)
				}
			}
		}
		select {
		case <-tick.C:
		case <-done:
			return peak
		}
	}
}

// A regression is found among many objects on MinIO, where the listing has
// metadata and where it has not, in memory that does not grow with them; and no
// upload is left behind.
func TestAuditMinIO(t *testing.T) {
	m, d := serverstest.SharedMinIO(t), serverstest.SharedDynalite(t)
	table := serverstest.Name(t)
	iss, _, err := issuer.InitDynamoDB(t.Context(), serverstest.DynamoDBClient(d), table)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := iss.CreateScope(t.Context(), auditScope); err != nil {
		t.Fatal(err)
	}
	var tokens []guard.Token
	for range auditNumbers {
		tok, err := iss.Issue(t.Context(), auditScope)
		if err != nil {
			t.Fatal(err)
		}
		tokens = append(tokens, tok)
	}
	large := auditObjects(t)
	rss := map[bool][]int64{}
	for _, n := range []int{large / 10, large} {
		begun := time.Now()
		a := fillForAudit(t, m, tokens, n)
		t.Logf("%d objects made in %s", n, time.Since(begun).Round(time.Millisecond))
		for _, heads := range []bool{false, true} {
			server, how := m, "metadata in the listing"
			if heads {
				server, how = withoutMetadata(t, m), "a HEAD for each, through a proxy"
			}
			env := serverEnv(server, d)
			env["S3FENCE_ISSUER"] = "dynamodb://" + table
			page := filepath.Join(t.TempDir(), "audit.html")
			args := []string{"s3://" + a.bucket, "--html", page}
			if heads { // the last run takes the uploads away
				args = append(args, "--abort-uploads", "--older-than", "0")
			}
			r := runAudit(t, env, args...)
			t.Logf("%d objects, %s: %.0f objects a second (%.1f s), at most %.1f MiB", n, how, r.Rate, r.Seconds, float64(r.rss)/1024)
			if r.exit != 1 || r.Outcome != "violations" || !r.Complete || !r.All || r.Objects != int64(n) || r.Versions != int64(n+2) || (r.Heads > 0) != heads {
				t.Errorf("exit %d: %+v", r.exit, r.auditJSON)
			}
			want := map[audit.Kind]int64{audit.WentDown: 1}
			if heads {
				want[audit.Upload] = 3
			}
			if fmt.Sprint(r.Findings) != fmt.Sprint(want) || r.findings[0].URL != "s3://"+a.bucket+"/"+a.key ||
				r.findings[0].Token != tokens[len(tokens)-2].Number() || r.findings[0].Other.Token != tokens[len(tokens)-1].Number() {
				t.Errorf("found %+v", r.findings)
			}
			if heads && r.Aborted != 3 {
				t.Errorf("%d uploads aborted", r.Aborted)
			}
			html, err := os.ReadFile(page)
			if err != nil || !bytes.Contains(html, []byte("▼ went down")) {
				t.Errorf("the page of %d bytes does not show it: %v", len(html), err)
			}
			rss[heads] = append(rss[heads], r.rss)
		}
		for up, err := range a.store.Uploads(t.Context(), "") {
			t.Errorf("left behind: %v, %v", up, err)
		}
		if n == large {
			auditHeads(t, a, iss)
		}
	}
	const room = 48 << 10 // KiB that chance has: 90,000 objects more would take many times that
	for heads, r := range rss {
		if r[1] > r[0]+room {
			t.Errorf("heads %t: %d KiB for %d objects, %d KiB for %d", heads, r[0], large/10, r[1], large)
		}
	}
}

// auditHeads tells the rate with a HEAD for each object and no proxy between.
func auditHeads(t *testing.T, a audited, iss *issuer.DynamoDB) {
	t.Helper()
	sum, err := audit.Run(t.Context(), plainStore{a.store}, &audit.Options{Counter: iss.Peek}, func(audit.Finding) error { return nil })
	if err != nil || sum.Violations != 1 || sum.Heads != sum.Versions {
		t.Errorf("%v, %+v", err, sum)
	}
	t.Logf("%d objects, a HEAD for each, in this process: %.0f objects a second (%.1f s)", sum.Objects, sum.Rate(), sum.Elapsed.Seconds())
}

// A plainStore is one whose listings leave out metadata.
type plainStore struct{ guard.Store }

// List implements guard.Store.
func (s plainStore) List(ctx context.Context, o guard.ListOptions) iter.Seq2[guard.Listed, error] {
	o.Metadata = false
	return s.Store.List(ctx, o)
}
