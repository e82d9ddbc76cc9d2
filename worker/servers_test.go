package worker_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/issuer"
	"github.com/s3fence/s3fence/localstack/faultproxy"
	"github.com/s3fence/s3fence/localstack/servers"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
	"github.com/s3fence/s3fence/s3store"
	"github.com/s3fence/s3fence/worker"
)

// counted returns s as it is reached through a proxy that counts.
func counted(t *testing.T, s *servers.Server) (*servers.Server, *faultproxy.Proxy) {
	t.Helper()
	p, err := faultproxy.New(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return serverstest.At(s, p.URL()), p
}

// Case 23 on MinIO and dynalite, and what a worker asks of them: nothing until
// the first event but what the issuer looks at once, and then what each event
// costs.
func TestServers(t *testing.T) {
	serverstest.Require(t, "minio", "dynalite")
	objects, objectsProxy := counted(t, serverstest.SharedMinIO(t))
	counters, countersProxy := counted(t, serverstest.SharedDynalite(t))
	bucket := serverstest.Name(t)
	if _, err := serverstest.S3Client(objects).CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &bucket}); err != nil {
		t.Fatal(err)
	}
	table := serverstest.Name(t)
	made, _, err := issuer.InitDynamoDB(t.Context(), serverstest.DynamoDBClient(counters), table)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := made.CreateScope(t.Context(), "scope"); err != nil {
		t.Fatal(err)
	}
	requests := func(p *faultproxy.Proxy) (ops []string) {
		for _, r := range p.Requests() {
			op := r.Op
			if op == "" {
				op = r.Method
			}
			if strings.Contains(r.Key, ".s3fence/") {
				op += " of the scope fence"
			}
			ops = append(ops, op)
		}
		return ops
	}
	seen := [2]int{len(requests(objectsProxy)), len(requests(countersProxy))}
	// fresh are the requests since it was last asked.
	fresh := func() (ofObjects, ofCounters []string) {
		o, c := requests(objectsProxy), requests(countersProxy)
		ofObjects, ofCounters = o[seen[0]:], c[seen[1]:]
		seen = [2]int{len(o), len(c)}
		return ofObjects, ofCounters
	}

	var g *guard.Guard
	start := func() (func(context.Context, events.SQSEvent) (events.SQSEventResponse, error), func() []guard.Outcome) {
		iss, err := issuer.OpenDynamoDB(t.Context(), serverstest.DynamoDBClient(counters), table)
		if err != nil {
			t.Fatal(err)
		}
		g = guard.New(s3store.New(serverstest.S3Client(objects), bucket, nil), nil)
		var mu sync.Mutex
		var outcomes []guard.Outcome
		h := worker.New(g, iss, "scope", quiet).SQS(func(ctx context.Context, j *worker.Job, m events.SQSMessage) error {
			res, err := j.Put(ctx, "key", guard.Bytes([]byte(m.Body)), &guard.PutOptions{SSE: "aws:kms"})
			mu.Lock()
			defer mu.Unlock()
			outcomes = append(outcomes, res.Outcome)
			return err
		})
		return h, func() []guard.Outcome {
			mu.Lock()
			defer mu.Unlock()
			o := outcomes
			outcomes = nil
			slices.Sort(o)
			return o
		}
	}
	deliver := func(h func(context.Context, events.SQSEvent) (events.SQSEventResponse, error), id, output string) {
		t.Helper()
		resp, err := h(t.Context(), events.SQSEvent{Records: []events.SQSMessage{{MessageId: id, Body: output}}})
		if err != nil || len(resp.BatchItemFailures) > 0 {
			t.Errorf("message %s: reported %v, %v", id, resp.BatchItemFailures, err)
		}
	}

	h, outcomes := start()
	if o, c := fresh(); len(o) > 0 || !slices.Equal(c, []string{"DescribeTable"}) {
		t.Errorf("before the first event: %q and %q", o, c)
	}
	deliver(h, "first", "first")
	if o, c := fresh(); !slices.Equal(c, []string{"UpdateItem", "UpdateItem"}) || len(o) != 3 || !slices.Contains(o, "PUT") || !slices.Contains(o, "HEAD") {
		t.Errorf("the first event: %q and %q", o, c)
	}
	outcomes()

	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() { deliver(h, "A", "of A") })
	}
	wg.Wait()
	if got := outcomes(); !slices.Equal(got, []guard.Outcome{guard.AlreadyApplied, guard.AlreadyApplied, guard.Replaced}) {
		t.Errorf("A at once: %q", got)
	}
	for _, step := range []struct {
		id, output string
		outcome    guard.Outcome
		want       string
	}{
		{"A", "", worker.Kept, "of A"},
		{"A", "xx A", worker.Kept, "of A"}, // of the same size
		{"B", "of B", guard.Replaced, "of B"},
		{"A", "of A", worker.Superseded, "of B"},
	} {
		// A process that has seen none of it, as after a cold start.
		h, outcomes := start()
		deliver(h, step.id, step.output)
		if got := outcomes(); !slices.Equal(got, []guard.Outcome{step.outcome}) {
			t.Errorf("message %s with %q: %q, want %q", step.id, step.output, got, step.outcome)
		}
		if got := read(t, g, "key"); got != step.want {
			t.Errorf("after message %s with %q the object holds %q, want %q", step.id, step.output, got, step.want)
		}
	}
}
