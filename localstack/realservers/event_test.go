package realservers

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/s3fence/s3fence/issuer"
	"github.com/s3fence/s3fence/issuer/issuertest"
	"github.com/s3fence/s3fence/localstack/faultproxy"
	"github.com/s3fence/s3fence/localstack/servers"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
)

func TestEventsDynalite(t *testing.T) {
	s := serverstest.Dynalite(t, nil) // one of its own: it is killed
	h := harness(t, s)
	h.Crash = func(t *testing.T) {
		if err := errors.Join(s.Kill(), s.Restart(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	issuertest.RunEvents(t, h)
}

func TestEventsMoto(t *testing.T) {
	issuertest.RunEvents(t, harness(t, serverstest.SharedMoto(t)))
}

// updates counts the UpdateItems that the server was sent.
func updates(p *faultproxy.Proxy) (n int) {
	for _, r := range p.Requests() {
		if r.Op == "UpdateItem" {
			n++
		}
	}
	return n
}

// An event takes two requests, a new one and one that comes again.
func TestEventRequests(t *testing.T) {
	for name, start := range dynamoServers {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			table := newTable(t, s)
			if _, _, err := openIssuer(t, s, table).CreateScope(t.Context(), "s"); err != nil {
				t.Fatal(err)
			}
			through, p := behind(t, s, "")
			d := openIssuer(t, through, table)
			opened := len(p.Requests())
			for i := range 10 {
				for range 2 {
					if _, err := d.IssueFor(t.Context(), "s", fmt.Sprint("event ", i)); err != nil {
						t.Fatal(err)
					}
				}
			}
			if n := len(p.Requests()) - opened; n != 2*20 || updates(p) != n {
				t.Errorf("%d requests, of them %d UpdateItems, for 20 deliveries", n, updates(p))
			}
		})
	}
}

// Answers that are lost, requests that are lost and 500s: the client sends
// again, and 64 callers at once still get one token for one event.
func TestEventFaults(t *testing.T) {
	for name, start := range dynamoServers {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			table := newTable(t, s)
			through, _ := behind(t, s, `
POST op=UpdateItem nth=1 times=20 drop-answer
POST op=UpdateItem nth=30 times=10 status=500
POST op=UpdateItem nth=50 times=10 reset
POST op=UpdateItem nth=70 times=20 drop-answer`)
			open := func(s *servers.Server) issuertest.EventIssuer {
				client := dynamodb.New(serverstest.DynamoDBClient(s).Options(), func(o *dynamodb.Options) {
					o.Retryer = retry.NewStandard(func(o *retry.StandardOptions) {
						o.MaxAttempts, o.MaxBackoff, o.RateLimiter = 20, 50*time.Millisecond, ratelimit.None
					})
				})
				d, err := issuer.OpenDynamoDB(t.Context(), client, table)
				if err != nil {
					t.Fatal(err)
				}
				return d
			}
			issuertest.DeliverAtOnce(t, open(through), func() issuertest.EventIssuer { return open(through) }, 64)
		})
	}
}

// Each of the two requests loses its answer, and the client does not send it
// again by itself: the event is delivered again, and its token is the one that
// was recorded.
func TestEventLostAnswer(t *testing.T) {
	for name, start := range dynamoServers {
		for nth, recorded := range map[int]bool{1: false, 2: true} {
			t.Run(fmt.Sprintf("%s, request %d", name, nth), func(t *testing.T) {
				s := start(t)
				table := newTable(t, s)
				direct := openIssuer(t, s, table)
				if _, _, err := direct.CreateScope(t.Context(), "s"); err != nil {
					t.Fatal(err)
				}
				through, _ := behind(t, s, fmt.Sprintf("POST op=UpdateItem nth=%d drop-answer", nth))
				client := dynamodb.New(serverstest.DynamoDBClient(through).Options(), func(o *dynamodb.Options) { o.Retryer = aws.NopRetryer{} })
				d, err := issuer.OpenDynamoDB(t.Context(), client, table)
				if err != nil {
					t.Fatal(err)
				}
				if tok, err := d.IssueFor(t.Context(), "s", "A"); err == nil || !tok.IsZero() {
					t.Fatalf("got %s, %v, though the answer was lost", tok, err)
				}
				want := int64(1) // what the lost answer was about
				if !recorded {
					want = 2 // that number is a gap
				}
				for _, iss := range []*issuer.DynamoDB{d, direct} {
					if tok, err := iss.IssueFor(t.Context(), "s", "A"); err != nil || tok.Number() != want {
						t.Errorf("delivered again: %s, %v, want %d", tok, err, want)
					}
				}
			})
		}
	}
}
