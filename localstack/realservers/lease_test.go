package realservers

import (
	"net/http"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/issuer"
	"github.com/s3fence/s3fence/issuer/issuertest"
	"github.com/s3fence/s3fence/localstack/faultproxy"
	"github.com/s3fence/s3fence/localstack/servers"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
	"github.com/s3fence/s3fence/s3store"
)

func TestLeasesDynamoDB(t *testing.T) {
	for name, start := range dynamoServers {
		t.Run(name, func(t *testing.T) { issuertest.RunLeases(t, harness(t, start(t))) })
	}
}

func TestLeasesS3(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	bucket := newBucket(t, m)
	issuertest.RunLeases(t, issuertest.Harness{Open: func(*testing.T) issuertest.Issuer {
		return issuer.NewS3(s3store.New(serverstest.S3Client(m), bucket, nil), "team")
	}})
}

// applied counts the writes of leases that the server took, whatever the client
// was told.
func applied(p *faultproxy.Proxy) (n int) {
	for _, r := range p.Requests() {
		if (r.Op == "UpdateItem" || r.Method == http.MethodPut) && r.Upstream == 200 {
			n++
		}
	}
	return n
}

// Case 1 for leases: the answer is lost. What was written is ours, once, and one
// number is taken; whether the client sends it again by itself or not.
func TestLeaseLostAnswers(t *testing.T) {
	type opener func(t *testing.T, s, proxied *servers.Server, scope string) issuer.LeaseStore
	dynamo := func(opts ...func(*dynamodb.Options)) opener {
		return func(t *testing.T, s, proxied *servers.Server, scope string) issuer.LeaseStore {
			table := newTable(t, s)
			if _, _, err := openIssuer(t, s, table).CreateScope(t.Context(), scope); err != nil {
				t.Fatal(err)
			}
			d, err := issuer.OpenDynamoDB(t.Context(), dynamodb.New(serverstest.DynamoDBClient(proxied).Options(), opts...), table)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
	}
	once := func(o *dynamodb.Options) { o.Retryer = aws.NopRetryer{} }
	for name, tt := range map[string]struct {
		start func(testing.TB) *servers.Server
		open  opener
		fault string
	}{
		"dynalite, retried by the client": {serverstest.SharedDynalite, dynamo(), "POST op=UpdateItem drop-answer"},
		"dynalite, one attempt":           {serverstest.SharedDynalite, dynamo(once), "POST op=UpdateItem drop-answer"},
		"moto, retried by the client":     {serverstest.SharedMoto, dynamo(), "POST op=UpdateItem drop-answer"},
		"moto, one attempt":               {serverstest.SharedMoto, dynamo(once), "POST op=UpdateItem drop-answer"},
		"S3": {serverstest.SharedMinIO, func(t *testing.T, s, proxied *servers.Server, scope string) issuer.LeaseStore {
			bucket := newBucket(t, s)
			if _, _, err := issuer.NewS3(s3store.New(serverstest.S3Client(s), bucket, nil), "").CreateScope(t.Context(), scope); err != nil {
				t.Fatal(err)
			}
			return issuer.NewS3(s3store.New(serverstest.S3Client(proxied), bucket, nil), "")
		}, "PUT drop-answer"},
	} {
		t.Run(name, func(t *testing.T) {
			s := tt.start(t)
			// Each of taking, renewing and giving back loses its first answer.
			through, p := behind(t, s, "")
			store := tt.open(t, s, through, "lost")
			lose := func() {
				t.Helper()
				if _, err := p.AddText(tt.fault); err != nil {
					t.Fatal(err)
				}
			}
			lose()
			l, err := issuer.Acquire(t.Context(), store, "lost", issuer.LeaseOptions{Owner: "one", TTL: 4 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			if n := l.Token().Number(); n != 1 || applied(p) != 1 {
				t.Errorf("token %d after %d writes", n, applied(p))
			}
			taken, err := store.Lease(t.Context(), "lost")
			if err != nil || taken.Token != l.Token() {
				t.Fatalf("%+v, %v", taken, err)
			}
			lose()
			for version := taken.Version; version == taken.Version; {
				r, err := store.Lease(t.Context(), "lost")
				if err != nil {
					t.Fatal(err)
				}
				version = r.Version
				time.Sleep(20 * time.Millisecond)
			}
			// The holder knows this heartbeat for its own: another comes after it.
			for before := applied(p); applied(p) == before && l.Context().Err() == nil; {
				time.Sleep(20 * time.Millisecond)
			}
			if l.Context().Err() != nil {
				t.Fatal("the lease was lost with an answer")
			}
			lose()
			if err := l.Release(t.Context()); err != nil {
				// One attempt and no answer. The next one finds that it is done.
				if err := l.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			r, err := store.Lease(t.Context(), "lost")
			if err != nil || !r.Released || r.Token != l.Token() {
				t.Errorf("released: %+v, %v", r, err)
			}
			if r, err = store.SwapLease(t.Context(), "lost", r.Version, issuer.LeaseRecord{
				Owner: "two", Version: guard.WriteID{2}, TTL: time.Second,
			}, guard.Record{}); err != nil || r.Token.Number() != 2 {
				t.Errorf("the next number: %+v, %v", r, err)
			}
		})
	}
}
