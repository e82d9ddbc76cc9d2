package issuer_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/issuer"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
	"github.com/s3fence/s3fence/s3store"
)

// countingDB counts the requests that take a number.
type countingDB struct {
	*dynamodb.Client
	n *atomic.Int64
}

func (c countingDB) UpdateItem(ctx context.Context, in *dynamodb.UpdateItemInput, o ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error) {
	c.n.Add(1)
	return c.Client.UpdateItem(ctx, in, o...)
}

func (c countingDB) GetItem(ctx context.Context, in *dynamodb.GetItemInput, o ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error) {
	c.n.Add(1)
	return c.Client.GetItem(ctx, in, o...)
}

// A countingStore counts the requests that a counter in S3 takes.
type countingStore struct {
	guard.Store
	n *atomic.Int64
}

func (c countingStore) Put(ctx context.Context, key string, req guard.PutRequest) (guard.PutResult, error) {
	c.n.Add(1)
	return c.Store.Put(ctx, key, req)
}

func (c countingStore) Get(ctx context.Context, key string, o guard.ReadOptions) (guard.Object, io.ReadCloser, error) {
	c.n.Add(1)
	return c.Store.Get(ctx, key, o)
}

// BenchmarkIssue takes tokens of one scope, by callers of one process. Those
// of dynalite and MinIO run where S3FENCE_SERVERS names them.
func BenchmarkIssue(b *testing.B) {
	ctx := context.Background()
	for _, bb := range []struct {
		name string
		open func(b *testing.B, requests *atomic.Int64) guard.Issuer
	}{
		{"dynalite", func(b *testing.B, requests *atomic.Int64) guard.Issuer {
			s := serverstest.Dynalite(b, nil)
			d, _, err := issuer.InitDynamoDB(ctx, countingDB{serverstest.DynamoDBClient(s), requests}, serverstest.Name(b))
			if err != nil {
				b.Fatal(err)
			}
			return d
		}},
		{"S3 on MinIO", func(b *testing.B, requests *atomic.Int64) guard.Issuer {
			s := serverstest.MinIO(b, nil)
			c, bucket := serverstest.S3Client(s), serverstest.Name(b)
			if _, err := c.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: &bucket}); err != nil {
				b.Fatal(err)
			}
			return issuer.NewS3(countingStore{s3store.New(c, bucket, nil), requests}, "")
		}},
		{"S3 embedded", func(b *testing.B, requests *atomic.Int64) guard.Issuer {
			return issuer.NewS3(countingStore{openLocal(b, nil).Store("bucket"), requests}, "")
		}},
		{"embedded", func(b *testing.B, _ *atomic.Int64) guard.Issuer { return openLocal(b, nil) }},
	} {
		b.Run(bb.name, func(b *testing.B) {
			var requests atomic.Int64
			iss := bb.open(b, &requests)
			for _, callers := range []int{1, 16, 64} {
				b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
					scope := serverstest.Name(b)
					if _, _, err := iss.(interface {
						CreateScope(context.Context, string) (guard.IssuerID, bool, error)
					}).CreateScope(ctx, scope); err != nil {
						b.Fatal(err)
					}
					issueAll(b, func() guard.Issuer { return iss }, scope, callers, &requests)
				})
			}
		})
	}
}

// issueAll takes b.N tokens, each caller through an issuer that open gives it,
// and reports how long each took.
func issueAll(b *testing.B, open func() guard.Issuer, scope string, callers int, requests *atomic.Int64) {
	took := make([]time.Duration, b.N)
	var next atomic.Int64
	var wg sync.WaitGroup
	requests.Store(0)
	b.ResetTimer()
	for range callers {
		iss := open()
		wg.Go(func() {
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				begun := time.Now()
				if _, err := iss.Issue(b.Context(), scope); err != nil {
					b.Error(err)
					return
				}
				took[i-1] = time.Since(begun)
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
	if n := requests.Load(); n > 0 { // the embedded issuer makes none
		b.ReportMetric(float64(n)/float64(b.N), "requests/token")
	}
}

// BenchmarkS3Contention takes tokens of one scope by several processes' worth
// of issuers at once, on MinIO.
func BenchmarkS3Contention(b *testing.B) {
	s := serverstest.MinIO(b, nil)
	c, bucket := serverstest.S3Client(s), serverstest.Name(b)
	if _, err := c.CreateBucket(context.Background(), &s3.CreateBucketInput{Bucket: &bucket}); err != nil {
		b.Fatal(err)
	}
	for _, processes := range []int{1, 2, 8} {
		b.Run(fmt.Sprintf("processes=%d", processes), func(b *testing.B) {
			var requests atomic.Int64
			scope := serverstest.Name(b)
			store := countingStore{s3store.New(c, bucket, nil), &requests}
			if _, _, err := issuer.NewS3(store, "").CreateScope(b.Context(), scope); err != nil {
				b.Fatal(err)
			}
			issueAll(b, func() guard.Issuer { return issuer.NewS3(store, "") }, scope, processes, &requests)
		})
	}
}
