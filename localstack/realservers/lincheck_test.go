package realservers

import (
	"context"
	"flag"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/lincheck"
	"github.com/s3fence/s3fence/localstack/faultproxy"
	"github.com/s3fence/s3fence/localstack/servers"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
)

var (
	seedsFlag = flag.Int("lincheck.seeds", 10, "how many seeds TestLinearizable runs, from 1 up")
	seedFlag  = flag.Uint64("lincheck.seed", 0, "the one seed that TestLinearizable runs")
)

// linFaults are what happens to every request of a writer. An empty answer is
// not among them: to a HEAD it is a false Content-Length.
var linFaults = []faultproxy.Weight{
	{Weight: 64},
	{Weight: 8, Fault: faultproxy.Fault{Kind: faultproxy.DropAnswer}},
	{Weight: 6, Fault: faultproxy.Fault{Kind: faultproxy.Reset}},
	{Weight: 8, Fault: faultproxy.Fault{Kind: faultproxy.Delay, Delay: 60 * time.Millisecond}},
	{Weight: 6, Fault: faultproxy.Fault{Kind: faultproxy.DuplicateLater}},
	{Weight: 2, Fault: faultproxy.Fault{Kind: faultproxy.TruncateAnswer}},
	{Weight: 2, Fault: faultproxy.Fault{Kind: faultproxy.Status, Status: 409}},
	{Weight: 2, Fault: faultproxy.Fault{Kind: faultproxy.Status, Status: 500}},
	{Weight: 2, Fault: faultproxy.Fault{Kind: faultproxy.Status, Status: 503}},
}

// Writers on both SDKs, with tokens from dynalite, write one key on MinIO while
// their requests get lost, come late and come twice. What they were told is
// held against a fenced register. A seed gives each client the same things to
// do, and each request the same fault, but not the same times.
func TestLinearizable(t *testing.T) {
	m, d := serverstest.SharedMinIO(t), serverstest.SharedDynalite(t)
	iss := openIssuer(t, d, newTable(t, d))
	seeds := make([]uint64, *seedsFlag)
	for i := range seeds {
		seeds[i] = uint64(i + 1)
	}
	if *seedFlag != 0 {
		seeds = []uint64{*seedFlag}
	}
	var outcomes, calls int
	for _, seed := range seeds {
		scope := fmt.Sprintf("seed/%d", seed)
		if _, _, err := iss.CreateScope(t.Context(), scope); err != nil {
			t.Fatal(err)
		}
		h, written, log := linRun(t, m, seed, func(ctx context.Context) (guard.Token, error) { return iss.Issue(ctx, scope) })
		if v := h.Check(written); v != nil {
			t.Log(log)
			v.Report(t, seed, fmt.Sprintf("S3FENCE_SERVERS=minio,dynalite go test ./localstack/realservers -run '^TestLinearizable$' -lincheck.seed %d", seed))
		}
		for _, o := range h.Ops() {
			calls++
			if o.Kind == "put" && o.Err == nil {
				outcomes++
			}
		}
		if *seedFlag != 0 {
			t.Log(log)
		}
	}
	t.Logf("%d seeds: %d calls, %d of them writes that were made", len(seeds), calls, outcomes)
	if outcomes == 0 {
		t.Error("nothing was written")
	}
}

// linRun runs one seed on a bucket of its own: with versions when the seed is
// even, whose versions then tell what was written.
func linRun(t *testing.T, m *servers.Server, seed uint64, issue func(context.Context) (guard.Token, error)) (h *lincheck.History, written []lincheck.Written, log string) {
	t.Helper()
	const key = "lin/key"
	bucket := newBucket(t, m)
	client := serverstest.S3Client(m)
	versions := seed%2 == 0
	if versions {
		if _, err := client.PutBucketVersioning(t.Context(), &s3.PutBucketVersioningInput{
			Bucket: &bucket, VersioningConfiguration: &types.VersioningConfiguration{Status: types.BucketVersioningStatusEnabled},
		}); err != nil {
			t.Fatal(err)
		}
	}
	through, proxy := behind(t, m, "")
	faults, err := faultproxy.Random(seed, linFaults...)
	if err != nil {
		t.Fatal(err)
	}
	proxy.Randomly(faults)
	w := &lincheck.Workload{
		Key: key, Readers: 2, Ops: 2, Issue: issue,
		Reader: guard.New(sdks["aws"](t, m, bucket), nil),
		// There is no fake clock here; a pause of a second is 50 ms.
		Sleep: func(d time.Duration) { time.Sleep(d / 20) },
	}
	for i := range 4 {
		sdk := "aws"
		if i%2 == 1 {
			sdk = "minio-go"
		}
		w.Writers = append(w.Writers, guard.New(sdks[sdk](t, through, bucket), impatient))
	}

	h = &lincheck.History{}
	for round := range uint64(3) {
		w.Seed = seed + round<<32
		if err := w.Run(t.Context(), h); err != nil {
			t.Fatal(err)
		}
		// The copies come after the requests that they are copies of: one
		// that overtakes is another story, which TestHiddenRetry tells.
		if _, err := proxy.SendDuplicates(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	w.Read(t.Context(), h, len(w.Writers)+w.Readers, 0, false)
	log = "faults: " + faults.String() + "\nrequests through the proxy:\n"
	for _, r := range proxy.Requests() {
		log += fmt.Sprintf("  %-4s server %d, client %d, duplicate %v, faults %v, if %s%s, %s\n", r.Method, r.Upstream, r.Status, r.Duplicate,
			r.Faults, r.Header.Get("If-Match"), r.Header.Get("If-None-Match"), r.Header.Get("X-Amz-Meta-Fence-Token"))
	}
	if !versions {
		return h, nil, log
	}

	written = []lincheck.Written{}
	for v, err := range guard.Versions(t.Context(), sdks["aws"](t, m, bucket), key) {
		if err != nil {
			t.Fatal(err)
		}
		out, err := client.GetObject(t.Context(), &s3.GetObjectInput{Bucket: &bucket, Key: &w.Key, VersionId: &v.ID})
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(out.Body)
		if err != nil {
			t.Fatal(err)
		}
		out.Body.Close()
		got := lincheck.Written{Content: string(body)}
		if rec, err := guard.ParseRecord(out.Metadata[guard.RecordKey]); err == nil {
			got.Record = &rec
		}
		written = append(written, got)
	}
	slices.Reverse(written)
	return h, written, log
}
