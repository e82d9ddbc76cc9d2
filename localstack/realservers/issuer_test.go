package realservers

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go/middleware"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/issuer"
	"github.com/s3fence/s3fence/issuer/issuertest"
	"github.com/s3fence/s3fence/localstack/servers"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
)

// newTable makes a table through the issuer itself.
func newTable(t *testing.T, s *servers.Server) string {
	t.Helper()
	name := fmt.Sprintf("fences-%d", names.Add(1))
	_, created, err := issuer.InitDynamoDB(t.Context(), serverstest.DynamoDBClient(s), name)
	if err != nil || !created {
		t.Fatalf("created %v, %v", created, err)
	}
	return name
}

func openIssuer(t *testing.T, s *servers.Server, table string) *issuer.DynamoDB {
	t.Helper()
	d, err := issuer.OpenDynamoDB(t.Context(), serverstest.DynamoDBClient(s), table)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func harness(t *testing.T, s *servers.Server) issuertest.Harness {
	table := newTable(t, s)
	return issuertest.Harness{Open: func(t *testing.T) issuertest.Issuer { return openIssuer(t, s, table) }}
}

func TestIssuerDynalite(t *testing.T) {
	s := serverstest.Dynalite(t, nil) // one of its own: it is killed
	h := harness(t, s)
	h.Crash = func(t *testing.T) {
		if err := errors.Join(s.Kill(), s.Restart(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	issuertest.Run(t, h)
}

func TestIssuerMoto(t *testing.T) {
	h := harness(t, serverstest.SharedMoto(t))
	h.Callers, h.Each = 8, 25 // it answers one request at a time
	issuertest.Run(t, h)
}

// dynamoServers are the servers that the tests below run on.
var dynamoServers = map[string]func(testing.TB) *servers.Server{
	"dynalite": serverstest.SharedDynalite,
	"moto":     serverstest.SharedMoto,
}

// A token takes exactly one request when nothing goes wrong.
func TestIssuerRequests(t *testing.T) {
	for name, start := range dynamoServers {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			table := newTable(t, s)
			var requests atomic.Int64
			client := dynamodb.New(serverstest.DynamoDBClient(s).Options(), func(o *dynamodb.Options) {
				o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error {
					return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("count",
						func(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler) (middleware.DeserializeOutput, middleware.Metadata, error) {
							requests.Add(1)
							return next.HandleDeserialize(ctx, in)
						}), middleware.After)
				})
			})
			d, err := issuer.OpenDynamoDB(t.Context(), client, table)
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := d.CreateScope(t.Context(), "s"); err != nil {
				t.Fatal(err)
			}
			requests.Store(0)
			for range 50 {
				if _, err := d.Issue(t.Context(), "s"); err != nil {
					t.Fatal(err)
				}
			}
			if n := requests.Load(); n != 50 {
				t.Errorf("%d requests for 50 tokens", n)
			}
		})
	}
}

// The table is dropped and made anew while processes still hold the old one,
// and when a fresh process comes to a counter of another table.
func TestIssuerTableMadeAnew(t *testing.T) {
	for name, start := range dynamoServers {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			client := serverstest.DynamoDBClient(s)
			table := newTable(t, s)
			old := openIssuer(t, s, table)
			id, _, err := old.CreateScope(t.Context(), "s")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := old.Issue(t.Context(), "s"); err != nil {
				t.Fatal(err)
			}
			item, err := client.Scan(t.Context(), &dynamodb.ScanInput{TableName: &table})
			if err != nil || len(item.Items) != 1 {
				t.Fatalf("%d items, %v", len(item.Items), err)
			}

			if _, err := client.UpdateTable(t.Context(), &dynamodb.UpdateTableInput{
				TableName: &table, DeletionProtectionEnabled: aws.Bool(false),
			}); err != nil {
				t.Logf("%s: deletion protection: %v", name, err)
			}
			if _, err := client.DeleteTable(t.Context(), &dynamodb.DeleteTableInput{TableName: &table}); err != nil {
				t.Fatal(err)
			}
			waiter := dynamodb.NewTableNotExistsWaiter(client)
			if err := waiter.Wait(t.Context(), &dynamodb.DescribeTableInput{TableName: &table}, 30e9); err != nil {
				t.Fatal(err)
			}
			if _, err := old.Issue(t.Context(), "s"); !errors.Is(err, guard.ErrIssuerRefuses) {
				t.Errorf("table gone: %v", err)
			}
			if _, _, err := issuer.InitDynamoDB(t.Context(), client, table); err != nil {
				t.Fatal(err)
			}
			if _, err := old.Issue(t.Context(), "s"); !errors.Is(err, guard.ErrIssuerRefuses) {
				t.Errorf("table made anew, no counter: %v", err)
			}
			// As a restore from a backup leaves it: the old item in a new table.
			if _, err := client.PutItem(t.Context(), &dynamodb.PutItemInput{TableName: &table, Item: item.Items[0]}); err != nil {
				t.Fatal(err)
			}
			fresh := openIssuer(t, s, table)
			if _, err := fresh.Issue(t.Context(), "s"); !errors.Is(err, guard.ErrIssuerRefuses) {
				t.Errorf("restored counter, fresh process: %v", err)
			}
			if _, _, err := fresh.CreateScope(t.Context(), "s"); !errors.Is(err, guard.ErrIssuerRefuses) {
				t.Errorf("init over a restored counter: %v", err)
			}
			r, err := fresh.Reconcile(t.Context(), "s", issuer.ReconcileOptions{AtLeast: 7})
			if err != nil || !r.Moved || !r.Changed || r.Before.Number != 1 || r.After != (issuer.Counter{Issuer: id, Number: 7}) {
				t.Errorf("reconcile: %+v, %v", r, err)
			}
			if tok, err := openIssuer(t, s, table).Issue(t.Context(), "s"); err != nil || tok.Number() != 8 || tok.Issuer() != id {
				t.Errorf("reconciled: %s, %v", tok, err)
			}
			if _, err := old.Issue(t.Context(), "s"); !errors.Is(err, guard.ErrIssuerRefuses) {
				t.Errorf("reconciled, a process that opened the old table: %v", err)
			}
			// A counter made anew has another id, which the old process notices.
			if _, err := client.DeleteItem(t.Context(), &dynamodb.DeleteItemInput{
				TableName: &table, Key: map[string]types.AttributeValue{"scope": item.Items[0]["scope"], "item": item.Items[0]["item"]},
			}); err != nil {
				t.Fatal(err)
			}
			newID, created, err := fresh.CreateScope(t.Context(), "s")
			if err != nil || !created || newID == id {
				t.Errorf("made anew: %s (was %s), %v, %v", newID, id, created, err)
			}
			if _, err := old.Issue(t.Context(), "s"); !errors.Is(err, guard.ErrIssuerRefuses) {
				t.Errorf("counter made anew, old process: %v", err)
			}
		})
	}
}

// The answer to the update of a Reconcile is lost, and the client sends it again.
func TestReconcileLostAnswer(t *testing.T) {
	for name, start := range dynamoServers {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			table := newTable(t, s)
			direct := openIssuer(t, s, table)
			id, _, err := direct.CreateScope(t.Context(), "s")
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range []guard.IssuerID{id, {1}} {
				// The first two requests describe the table and read the item.
				through, _ := behind(t, s, "POST nth=3 drop-answer")
				least := int64(100 * (i + 1))
				r, err := openIssuer(t, through, table).Reconcile(t.Context(), "s", issuer.ReconcileOptions{AtLeast: least, Issuer: want})
				if err != nil || !r.Changed || r.Before.Issuer != id || r.Before.Number >= least || r.After != (issuer.Counter{Issuer: want, Number: least}) {
					t.Errorf("to issuer %s: %+v, %v", want, r, err)
				}
				if tok, err := openIssuer(t, s, table).Issue(t.Context(), "s"); err != nil || tok.Number() != least+1 || tok.Issuer() != want {
					t.Errorf("then %s, %v", tok, err)
				}
			}
		})
	}
}
