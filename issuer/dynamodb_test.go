package issuer

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/s3fence/s3fence/guard"
)

// fakeTable answers as a table with one counter item would, which is all that
// these tests need; the real servers are in realservers.
type fakeTable struct {
	DynamoDBAPI
	table types.TableDescription
	item  map[string]types.AttributeValue
	// silent leaves the old item out of a failed condition, as some servers do.
	silent  bool
	updates []*dynamodb.UpdateItemInput
}

func newFakeTable() *fakeTable {
	created := time.UnixMilli(1_700_000_000_123)
	return &fakeTable{
		table: types.TableDescription{
			TableId: aws.String("table-1"), CreationDateTime: &created,
			KeySchema: []types.KeySchemaElement{
				{AttributeName: aws.String("scope"), KeyType: types.KeyTypeHash},
				{AttributeName: aws.String("item"), KeyType: types.KeyTypeRange},
			},
		},
		item: map[string]types.AttributeValue{
			"issuer": str("8c1d0f2ab64e97d3"), "number": num("47"),
			"table_id": str("table-1"), "table_created": num("1700000000123"),
		},
	}
}

func (f *fakeTable) DescribeTable(context.Context, *dynamodb.DescribeTableInput, ...func(*dynamodb.Options)) (*dynamodb.DescribeTableOutput, error) {
	return &dynamodb.DescribeTableOutput{Table: &f.table}, nil
}

func (f *fakeTable) GetItem(_ context.Context, in *dynamodb.GetItemInput, _ ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error) {
	if !aws.ToBool(in.ConsistentRead) {
		return nil, errors.New("an eventually consistent read")
	}
	return &dynamodb.GetItemOutput{Item: f.item}, nil
}

func (f *fakeTable) UpdateItem(_ context.Context, in *dynamodb.UpdateItemInput, _ ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error) {
	f.updates = append(f.updates, in)
	v := in.ExpressionAttributeValues
	below := func(name string) bool { // that is a condition, and does not hold
		least, _ := strconv.ParseInt(text(v[name]), 10, 64)
		n, err := strconv.ParseInt(text(f.item["number"]), 10, 64)
		return v[name] != nil && err == nil && n < least
	}
	ok := f.item != nil && !below(":last") && (!below(":claim") || text(v[":claimed"]) != text(f.item["issuer"])) && text(v[":tid"]) == text(f.item["table_id"]) && text(v[":created"]) == text(f.item["table_created"]) &&
		(v[":issuer"] == nil || text(v[":issuer"]) == text(f.item["issuer"]))
	if !ok {
		err := &types.ConditionalCheckFailedException{Message: aws.String("The conditional request failed")}
		if !f.silent {
			err.Item = f.item
		}
		return nil, err
	}
	f.item["number"] = num(plusOne(text(f.item["number"])))
	return &dynamodb.UpdateItemOutput{Attributes: f.item}, nil
}

// plusOne adds one to a number of any length, as DynamoDB would.
func plusOne(s string) string {
	digits := []byte(s)
	for i := len(digits) - 1; i >= 0; i-- {
		if digits[i]++; digits[i] <= '9' {
			return string(digits)
		}
		digits[i] = '0'
	}
	return "1" + string(digits)
}

func open(t *testing.T, f *fakeTable) *DynamoDB {
	t.Helper()
	d, err := OpenDynamoDB(t.Context(), f, "fences")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func wantRefused(t *testing.T, err error, says string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || !errors.Is(err, guard.ErrIssuerRefuses) || !strings.Contains(err.Error(), says) || e.Source != "dynamodb://fences" {
		t.Errorf("got %v, want a refusal that says %q", err, says)
	}
}

// An object store at DynamoDB's endpoint answers in XML, a proxy in words.
func TestOtherServer(t *testing.T) {
	for _, answer := range []struct {
		code       int
		text       string
		cut, other bool
	}{
		{400, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>BadRequest</Code></Error>`, false, true},
		{200, "<html>hello</html>", false, true},
		{404, "404 page not found", false, true},
		{400, `{"__type":"com.amazon.coral.service#AccessDeniedException","message":"no"}`, false, false},
		{200, `{"Table":`, true, false},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if answer.cut {
				w.Header().Set("Content-Length", strconv.Itoa(len(answer.text)+1))
			}
			w.WriteHeader(answer.code)
			_, _ = io.WriteString(w, answer.text)
		}))
		client := dynamodb.New(dynamodb.Options{
			Region: "us-east-1", BaseEndpoint: &srv.URL, Retryer: aws.NopRetryer{},
			Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
				return aws.Credentials{AccessKeyID: "a", SecretAccessKey: "b"}, nil
			}),
		})
		_, openErr := OpenDynamoDB(t.Context(), client, "fences")
		_, _, initErr := InitDynamoDB(t.Context(), client, "fences")
		srv.Close()
		for what, err := range map[string]error{"open": openErr, "init": initErr} {
			switch {
			case err == nil:
				t.Errorf("%s: %d %s was taken for DynamoDB", what, answer.code, answer.text)
			case answer.other:
				wantRefused(t, err, "what answers at its endpoint is not DynamoDB: ")
			case errors.Is(err, guard.ErrIssuerRefuses):
				t.Errorf("%s: %d %s: %v", what, answer.code, answer.text, err)
			}
		}
	}
}

func TestOneRequestPerToken(t *testing.T) {
	f := newFakeTable()
	d := open(t, f)
	for want := int64(48); want < 51; want++ {
		tok, err := d.Issue(t.Context(), "nightly")
		if err != nil || tok.Number() != want || tok.Issuer().String() != "8c1d0f2ab64e97d3" || tok.Scope() != "nightly" {
			t.Fatalf("%v, %v", tok, err)
		}
	}
	if len(f.updates) != 3 {
		t.Errorf("%d updates for 3 tokens", len(f.updates))
	}
	if c := *f.updates[0].ConditionExpression; strings.Contains(c, "#issuer AND") {
		t.Errorf("first condition: %s", c)
	}
	if c := *f.updates[1].ConditionExpression; !strings.HasSuffix(c, "AND #issuer = :issuer AND #number >= :last") {
		t.Errorf("once a number is known the condition names it: %s", c)
	}
}

func TestRefusals(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*fakeTable)
		says   string
	}{
		"no counter":        {func(f *fakeTable) { f.item = nil }, "has no counter"},
		"restored table":    {func(f *fakeTable) { f.item["table_id"] = str("table-0") }, "restored or copied"},
		"made anew table":   {func(f *fakeTable) { f.item["table_created"] = num("1600000000000") }, "restored or copied"},
		"old counter":       {func(f *fakeTable) { delete(f.item, "table_id") }, "restored or copied"},
		"damaged issuer id": {func(f *fakeTable) { f.item["issuer"] = str("8C1D0F2AB64E97D3") }, "issuer id is damaged"},
		"past 2^63-1":       {func(f *fakeTable) { f.item["number"] = num("9223372036854775807") }, "not a number from 1 to 2^63-1"},
	} {
		for _, silent := range []bool{false, true} {
			f := newFakeTable()
			f.silent = silent
			tt.change(f)
			_, err := open(t, f).Issue(t.Context(), "nightly")
			t.Run(name, func(t *testing.T) { wantRefused(t, err, tt.says) })
		}
	}
}

// Peek tells of a counter that Issue can't count on, but not of a damaged one.
func TestPeek(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*fakeTable)
		want   int64
		says   string
	}{
		"a counter":         {change: func(*fakeTable) {}, want: 47},
		"restored table":    {change: func(f *fakeTable) { f.item["table_id"] = str("table-0") }, want: 47},
		"no counter":        {change: func(f *fakeTable) { f.item = nil }, says: "has no counter"},
		"damaged issuer id": {change: func(f *fakeTable) { delete(f.item, "issuer") }, says: "issuer id is damaged"},
		"below 0":           {change: func(f *fakeTable) { f.item["number"] = num("-1") }, says: "not a number from 0 to 2^63-1"},
		"not a number":      {change: func(f *fakeTable) { f.item["number"] = str("many") }, says: "not a number from 0 to 2^63-1"},
	} {
		f := newFakeTable()
		tt.change(f)
		id, n, err := open(t, f).Peek(t.Context(), "nightly")
		t.Run(name, func(t *testing.T) {
			if tt.says != "" {
				wantRefused(t, err, tt.says)
				return
			}
			if err != nil || n != tt.want || id.String() != "8c1d0f2ab64e97d3" || len(f.updates) != 0 {
				t.Errorf("issuer %s, %d, %v", id, n, err)
			}
		})
	}
}

// A counter that changes under a process that knew it.
func TestCounterChangesUnderUs(t *testing.T) {
	f := newFakeTable()
	d := open(t, f)
	if _, err := d.Issue(t.Context(), "nightly"); err != nil {
		t.Fatal(err)
	}
	f.item["number"] = num("3")
	_, err := d.Issue(t.Context(), "nightly")
	wantRefused(t, err, "went back: it stands at 3, and had given 48")
	f.item["number"] = num("48")
	claim := guard.Record{Issuer: guard.IssuerID{0x8c, 0x1d, 0x0f, 0x2a, 0xb6, 0x4e, 0x97, 0xd3}, Scope: "nightly", Number: 50, Sequence: 1}
	for range 3 { // however often it is asked
		_, err = open(t, f).IssueAfter(t.Context(), claim)
		wantRefused(t, err, "went back: it stands at 48, and 50 was given and claimed before")
	}
	claim.Number = 48
	if tok, err := d.IssueAfter(t.Context(), claim); err != nil || tok.Number() != 49 {
		t.Errorf("at the claim: %s, %v", tok, err)
	}

	f.item["issuer"] = str("0000000000000001")
	_, err = d.Issue(t.Context(), "nightly")
	wantRefused(t, err, "made anew: its issuer id was 8c1d0f2ab64e97d3 and is 0000000000000001")
}

func TestTablesThatCannotCount(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*types.TableDescription)
		says   string
	}{
		"global, eventual": {func(d *types.TableDescription) {
			d.Replicas = []types.ReplicaDescription{{RegionName: aws.String("eu-west-1")}}
		}, "global table with eventual consistency"},
		"global, said to be eventual": {func(d *types.TableDescription) {
			d.Replicas = []types.ReplicaDescription{{RegionName: aws.String("eu-west-1")}}
			d.MultiRegionConsistency = types.MultiRegionConsistencyEventual
		}, "global table with eventual consistency"},
		"another program's": {func(d *types.TableDescription) { d.KeySchema[0].AttributeName = aws.String("pk") }, "another program's table"},
		"no range key":      {func(d *types.TableDescription) { d.KeySchema = d.KeySchema[:1] }, "another program's table"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeTable()
			tt.change(&f.table)
			_, err := OpenDynamoDB(t.Context(), f, "fences")
			wantRefused(t, err, tt.says)
		})
	}
	f := newFakeTable()
	f.table.Replicas = []types.ReplicaDescription{{RegionName: aws.String("eu-west-1")}}
	f.table.MultiRegionConsistency = types.MultiRegionConsistencyStrong
	if _, err := OpenDynamoDB(t.Context(), f, "fences"); err != nil {
		t.Errorf("strong consistency: %v", err)
	}
}
