package issuer

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"

	"github.com/s3fence/s3fence/guard"
)

// fakeEvents is a fakeTable that records events.
type fakeEvents struct {
	*fakeTable
	events map[string]map[string]types.AttributeValue // by sort key
}

func newFakeEvents() *fakeEvents {
	return &fakeEvents{newFakeTable(), map[string]map[string]types.AttributeValue{}}
}

func (f *fakeEvents) UpdateItem(ctx context.Context, in *dynamodb.UpdateItemInput, opts ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error) {
	item := text(in.Key[attrItem])
	if item == itemCounter {
		return f.fakeTable.UpdateItem(ctx, in, opts...)
	}
	f.updates = append(f.updates, in)
	if *in.UpdateExpression != "SET #token = if_not_exists(#token, :token), #expires = :expires" || in.ConditionExpression != nil {
		return nil, errors.New("the fake knows no such update")
	}
	have := maps.Clone(f.events[item])
	if have == nil {
		have = map[string]types.AttributeValue{in.ExpressionAttributeNames["#token"]: in.ExpressionAttributeValues[":token"]}
	}
	have[in.ExpressionAttributeNames["#expires"]] = in.ExpressionAttributeValues[":expires"]
	f.events[item] = have
	return &dynamodb.UpdateItemOutput{Attributes: have}, nil
}

func openEvents(t *testing.T, f *fakeEvents) *DynamoDB {
	t.Helper()
	d, err := OpenDynamoDB(t.Context(), f, "fences")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// SHA-256 of "A".
const itemOfA = "event#559aead08264d5795d3909718cdd05abd49572e84fe55590eef31a88a08fdffd"

// A new event and one that comes again take two requests each, both under the
// scope's own partition key, which is all that a writer's policy allows.
func TestEventRequests(t *testing.T) {
	f := newFakeEvents()
	d := openEvents(t, f)
	for range 3 {
		before := len(f.updates)
		tok, err := d.IssueFor(t.Context(), "nightly", "A")
		if err != nil || tok.Number() != 48 || tok.Issuer().String() != "8c1d0f2ab64e97d3" {
			t.Fatalf("%v, %v", tok, err)
		}
		if n := len(f.updates) - before; n != 2 {
			t.Errorf("%d requests", n)
		}
	}
	for _, u := range f.updates {
		if text(u.Key[attrScope]) != "nightly" || *u.TableName != "fences" {
			t.Errorf("a request for %s of %s", text(u.Key[attrScope]), *u.TableName)
		}
	}
	if f.events[itemOfA] == nil {
		t.Errorf("recorded: %v", f.events)
	}
}

// The record's time to live begins anew at each delivery.
func TestEventRetention(t *testing.T) {
	f := newFakeEvents()
	d := openEvents(t, f)
	for keep, iss := range map[time.Duration]guard.EventIssuer{EventRetention: d, time.Hour: d.KeepEvents(time.Hour)} {
		f.events[itemOfA] = nil
		for range 2 {
			from := time.Now().Add(keep).Unix()
			if _, err := iss.IssueFor(t.Context(), "nightly", "A"); err != nil {
				t.Fatal(err)
			}
			to := time.Now().Add(keep).Unix()
			got, err := strconv.ParseInt(text(f.events[itemOfA]["expires"]), 10, 64)
			if err != nil || got < from || got > to {
				t.Errorf("kept for %v: expires at %d, %v; want %d to %d", keep, got, err, from, to)
			}
			f.events[itemOfA]["expires"] = num("1")
		}
	}
}

func TestEventRecordRefused(t *testing.T) {
	other, err := guard.NewToken(guard.IssuerID{1}, "nightly", 7)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere, err := guard.NewToken(guard.IssuerID{0x8c, 0x1d, 0x0f, 0x2a, 0xb6, 0x4e, 0x97, 0xd3}, "daily", 7)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ token, says string }{
		"another counter's": {other.String(), "made anew: its issuer id was 0100000000000000 and is 8c1d0f2ab64e97d3"},
		"another scope's":   {elsewhere.String(), "it is of scope daily"},
		"cut":               {other.String()[:30], "malformed"},
		"empty":             {"", "no fencing token"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeEvents()
			f.events[itemOfA] = map[string]types.AttributeValue{"token": str(tt.token)}
			tok, err := openEvents(t, f).IssueFor(t.Context(), "nightly", "A")
			wantRefused(t, err, tt.says)
			if !tok.IsZero() {
				t.Errorf("got %s", tok)
			}
		})
	}
}

// fakeTTL is a client that can set a table's time to live.
type fakeTTL struct {
	DynamoDBAPI
	now         types.TimeToLiveDescription
	describeErr error
	updateErr   error
	updates     []*dynamodb.UpdateTimeToLiveInput
}

func (f *fakeTTL) DescribeTimeToLive(context.Context, *dynamodb.DescribeTimeToLiveInput, ...func(*dynamodb.Options)) (*dynamodb.DescribeTimeToLiveOutput, error) {
	return &dynamodb.DescribeTimeToLiveOutput{TimeToLiveDescription: &f.now}, f.describeErr
}

func (f *fakeTTL) UpdateTimeToLive(_ context.Context, in *dynamodb.UpdateTimeToLiveInput, _ ...func(*dynamodb.Options)) (*dynamodb.UpdateTimeToLiveOutput, error) {
	f.updates = append(f.updates, in)
	return &dynamodb.UpdateTimeToLiveOutput{}, f.updateErr
}

func TestEnableTTL(t *testing.T) {
	unknown := &smithy.GenericAPIError{Code: "UnknownOperationException"}
	denied := &smithy.GenericAPIError{Code: "AccessDeniedException", Message: "not you"}
	for name, tt := range map[string]struct {
		fake    fakeTTL
		updates int
		says    string // "" when there is no error
	}{
		"disabled":             {fakeTTL{now: types.TimeToLiveDescription{TimeToLiveStatus: types.TimeToLiveStatusDisabled}}, 1, ""},
		"enabled":              {fakeTTL{now: types.TimeToLiveDescription{TimeToLiveStatus: types.TimeToLiveStatusEnabled, AttributeName: aws.String("expires")}}, 0, ""},
		"being enabled":        {fakeTTL{now: types.TimeToLiveDescription{TimeToLiveStatus: types.TimeToLiveStatusEnabling, AttributeName: aws.String("expires")}}, 0, ""},
		"by another attribute": {fakeTTL{now: types.TimeToLiveDescription{TimeToLiveStatus: types.TimeToLiveStatusEnabled, AttributeName: aws.String("ttl")}, updateErr: denied}, 1, "not you"},
		"unknown":              {fakeTTL{describeErr: unknown}, 0, ""},
		"update unknown":       {fakeTTL{updateErr: unknown}, 1, ""},
		"denied":               {fakeTTL{describeErr: denied}, 0, "not you"},
	} {
		t.Run(name, func(t *testing.T) {
			err := enableTTL(t.Context(), &tt.fake, "fences")
			if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), "table fences: ") {
				t.Errorf("got %v", err)
			}
			if len(tt.fake.updates) != tt.updates {
				t.Fatalf("%d updates, want %d", len(tt.fake.updates), tt.updates)
			}
			for _, u := range tt.fake.updates {
				if s := u.TimeToLiveSpecification; *u.TableName != "fences" || *s.AttributeName != "expires" || !*s.Enabled {
					t.Errorf("asked for %+v of %s", s, *u.TableName)
				}
			}
		})
	}
	if err := enableTTL(t.Context(), newFakeTable(), "fences"); err != nil {
		t.Errorf("a client that can't: %v", err)
	}
}
