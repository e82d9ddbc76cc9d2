package realservers

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/audit"
	"github.com/s3fence/s3fence/localstack/faultproxy"
	"github.com/s3fence/s3fence/localstack/servers"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
)

var (
	uploadsFull = flag.Bool("uploads.full", false, "TestUploadRace has 20 writers of 64 MiB, not 8 of 12 MiB")
	uploadsSeed = flag.Uint64("uploads.seed", 0, "the one seed that TestUploadRace runs")
)

// A pattern is a body of any size that takes a MiB of memory: bytes that come
// again after a number of them that is no multiple of a part's size.
type pattern []byte

func newPattern(seed uint64) pattern {
	p := make(pattern, 1<<20+7)
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	_, _ = rand.NewChaCha8(key).Read(p)
	return p
}

// ReadAt implements io.ReaderAt.
func (p pattern) ReadAt(b []byte, off int64) (int, error) {
	for n := 0; n < len(b); {
		n += copy(b[n:], p[(off+int64(n))%int64(len(p)):])
	}
	return len(b), nil
}

func (p pattern) body(size int64) guard.Body { return guard.ReaderAt(p, size) }

// sumOf is the SHA-256 of what r holds.
func sumOf(t *testing.T, r io.Reader) string {
	t.Helper()
	h := (guard.Checksum{Algorithm: "SHA256"}).NewHash()
	if _, err := io.Copy(h, r); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// uploadFaults are what happens to every request of an upload.
var uploadFaults = []faultproxy.Weight{
	{Weight: 80},
	{Weight: 6, Fault: faultproxy.Fault{Kind: faultproxy.DropAnswer}},
	{Weight: 2, Fault: faultproxy.Fault{Kind: faultproxy.TruncateAnswer}},
	{Weight: 4, Fault: faultproxy.Fault{Kind: faultproxy.Reset}},
	{Weight: 8, Fault: faultproxy.Fault{Kind: faultproxy.Delay, Delay: 60 * time.Millisecond}},
	{Weight: 3, Fault: faultproxy.Fault{Kind: faultproxy.Status, Status: 500}},
	{Weight: 3, Fault: faultproxy.Fault{Kind: faultproxy.Status, Status: 503}},
}

// Writers on both SDKs send large bodies in parts to one key on MinIO, each with
// a token of its own, while requests get lost and come late. What becomes the
// object has rising numbers and whole bodies, nobody is told anything else than
// what happened, and no upload is left behind but those of which no client ever
// learned. A seed gives each request the same fault, but not the same times.
func TestUploadRace(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	writers, size, seeds := 8, int64(12<<20), []uint64{1, 2, 3, 4, 5, 6}
	if *uploadsFull {
		writers, size, seeds = 20, 64<<20, []uint64{1, 2}
	}
	if *uploadsSeed != 0 {
		seeds = []uint64{*uploadsSeed}
	}
	told := map[string]int{}
	for _, seed := range seeds {
		again := fmt.Sprintf("S3FENCE_SERVERS=minio go test ./localstack/realservers -run '^TestUploadRace$' -uploads.full=%v -uploads.seed %d", *uploadsFull, seed)
		if !t.Run(fmt.Sprint("seed-", seed), func(t *testing.T) { uploadRace(t, m, seed, writers, size, told) }) {
			t.Log("again: " + again)
		}
	}
	t.Logf("seeds %v: %v", seeds, told)
	if told["written"] == 0 || told["stale"] == 0 {
		t.Errorf("not both success and refusal: %v", told)
	}
}

// uploadRace runs one seed on a bucket of its own, with versions when the seed
// is even, which then tell all that was written. It counts what writers were told.
func uploadRace(t *testing.T, m *servers.Server, seed uint64, writers int, size int64, told map[string]int) {
	const key = "race/key"
	bucket := newBucket(t, m)
	versions := seed%2 == 0
	if versions {
		if _, err := serverstest.S3Client(m).PutBucketVersioning(t.Context(), &s3.PutBucketVersioningInput{
			Bucket: &bucket, VersioningConfiguration: &types.VersioningConfiguration{Status: types.BucketVersioningStatusEnabled},
		}); err != nil {
			t.Fatal(err)
		}
	}
	through, proxy := behind(t, m, "")
	faults, err := faultproxy.Random(seed, uploadFaults...)
	if err != nil {
		t.Fatal(err)
	}
	proxy.Randomly(faults)
	t.Log("faults: " + faults.String())

	toks := take(t, local(t), "race", writers)
	type end struct {
		res guard.Result
		err error
	}
	ends := make([]end, writers)
	var wg sync.WaitGroup
	rng := rand.New(rand.NewPCG(seed, 0))
	for i, tok := range toks {
		sdk := []string{"aws", "minio-go"}[(i+int(seed))%2]
		// Some come after the end of others, and some of those are older.
		later := time.Duration(rng.IntN(200*writers)) * time.Millisecond / 2
		wg.Go(func() {
			time.Sleep(later)
			g := guard.New(sdks[sdk](t, through, bucket), impatient)
			res, err := g.Put(t.Context(), tok, key, newPattern(seed<<32|uint64(i)).body(size), &guard.PutOptions{PartSize: guard.MinPart, Concurrency: 4})
			ends[i] = end{res, err}
		})
	}
	wg.Wait()

	direct := sdks["aws"](t, m, bucket)
	ids := []string{""}
	if versions {
		ids = nil
		for v, err := range guard.Versions(t.Context(), direct, key) {
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, v.ID)
		}
		slices.Reverse(ids) // the oldest first
	}
	written := map[int64]guard.Record{}
	var last int64
	for _, id := range ids {
		obj, body, err := direct.Get(t.Context(), key, guard.ReadOptions{VersionID: id})
		if err != nil {
			t.Fatal(err)
		}
		sum := sumOf(t, body)
		if err := body.Close(); err != nil {
			t.Fatal(err)
		}
		rec, err := guard.ParseRecord(obj.Metadata[guard.RecordKey])
		if err != nil {
			t.Fatal(err)
		}
		if rec.Number <= last {
			t.Errorf("number %d became the object after %d", rec.Number, last)
		}
		last, written[rec.Number] = rec.Number, rec
		if want := sumOf(t, newPattern(seed<<32|uint64(rec.Number-1)).body(size).Reader()); sum != want {
			t.Errorf("the object of number %d has other bytes than its writer's", rec.Number)
		}
	}

	for i, e := range ends {
		number := toks[i].Number()
		rec, there := written[number]
		if there && rec != e.res.Record {
			t.Errorf("the record of number %d is %v, its writer's %v", number, rec, e.res.Record)
		}
		var r *guard.Refusal
		errors.As(e.err, &r)
		what := "written"
		switch {
		case e.err == nil:
			if number > last || versions && !there {
				t.Errorf("writer %d was told success: %+v", number, e.res)
			}
		case guard.ReasonOf(e.err) == guard.ErrOutcomeUnknown:
			what = "unknown"
		case r != nil && r.Reason == guard.ErrStale:
			what = "stale"
			if r.MayHaveApplied {
				what = "stale, may have been applied"
			} else if there {
				t.Errorf("writer %d was told that nothing was written, and it was: %v", number, e.err)
			}
			if r.Held == nil || r.Held.Number <= number || r.Held.Number > last {
				t.Errorf("writer %d is stale to %v: the last is %d", number, r.Held, last)
			}
		default:
			what = "failed"
			if there {
				t.Errorf("writer %d was told a plain failure, and it was written: %v", number, e.err)
			}
			t.Logf("writer %d: %v", number, e.err)
		}
		told[what]++
	}

	// Uploads that are left: only such as no client learned the id of.
	lost := 0
	named := map[string]bool{}
	for _, q := range proxy.Requests() {
		if query, err := url.ParseQuery(q.Query); err != nil {
			t.Error(err)
		} else if id := query.Get("uploadId"); id != "" {
			named[id] = true
		} else if query.Has("uploads") && q.Upstream == 200 && slices.ContainsFunc(q.Faults, func(f faultproxy.Fault) bool {
			return f.Kind == faultproxy.DropAnswer || f.Kind == faultproxy.TruncateAnswer
		}) {
			lost++
		}
	}
	var left []string
	for up, err := range direct.Uploads(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, up.ID)
		if named[up.ID] {
			t.Errorf("upload %s was left behind by one who knew of it", up.ID)
		}
	}
	if len(left) != lost {
		t.Errorf("%d uploads are left, %d answers to their creation were lost: %s", len(left), lost, strings.Join(left, " "))
	}
	told["uploads left by lost answers"] += lost
	sum, err := audit.Run(t.Context(), direct, &audit.Options{AbortUploads: true, OlderThan: -1}, func(audit.Finding) error { return nil })
	if err != nil || sum.Aborted != int64(lost) || sum.Violations != 0 {
		t.Errorf("audit: %+v, %v", sum, err)
	}
	for up, err := range direct.Uploads(t.Context(), "") {
		t.Errorf("left behind after the audit: %+v, %v", up, err)
	}
}
