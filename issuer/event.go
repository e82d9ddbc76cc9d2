package issuer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/s3fence/s3fence/guard"
)

// EventRetention is how long the token of an event is kept after its last
// delivery: the longest that SQS keeps a message.
const EventRetention = 14 * 24 * time.Hour

// The attributes of an event's item. The sort key is a hash, since an event's
// id may be longer than a sort key can be.
const (
	itemEvent   = "event#" // then the SHA-256 of the event's id, in hex
	attrToken   = "token"
	attrExpires = "expires" // in seconds since 1970: the table's TTL attribute
)

var _ guard.EventIssuer = (*DynamoDB)(nil)

// IssueFor returns the token of an event, with two UpdateItems, whether the
// event is new or not: one takes a number, the other records it for the event
// unless one is recorded already, in which case the number taken is a gap. It
// implements [guard.EventIssuer].
//
// A record is kept for [EventRetention] after the event's last delivery, by
// this machine's clock, and is good for as long as it is there. An event that
// comes again later than that is a new one, and gets a fresh number.
//
// It refuses, with an [*Error], what [DynamoDB.Issue] refuses, and an event
// whose token came from a counter that was made anew since, or is damaged. An
// empty event is [guard.ErrInvalid].
func (d *DynamoDB) IssueFor(ctx context.Context, scope, event string) (guard.Token, error) {
	return d.issueFor(ctx, scope, event, EventRetention)
}

// KeepEvents returns d as an issuer that keeps the token of an event for keep
// instead of [EventRetention]: no less than the event's source may take to
// deliver it again.
func (d *DynamoDB) KeepEvents(keep time.Duration) guard.EventIssuer { return eventKeeper{d, keep} }

type eventKeeper struct {
	*DynamoDB
	keep time.Duration
}

// IssueFor implements [guard.EventIssuer].
func (k eventKeeper) IssueFor(ctx context.Context, scope, event string) (guard.Token, error) {
	return k.issueFor(ctx, scope, event, k.keep)
}

func (d *DynamoDB) issueFor(ctx context.Context, scope, event string, keep time.Duration) (guard.Token, error) {
	if err := CheckEvent(scope, event); err != nil {
		return guard.Token{}, err
	}
	// The number comes first: an item without one would have to be waited for.
	fresh, err := d.Issue(ctx, scope)
	if err != nil {
		return guard.Token{}, err
	}
	sum := sha256.Sum256([]byte(event))
	// if_not_exists instead of a condition: it can be sent again and again, and
	// its answer is the token that stands, on every server.
	out, err := d.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName: &d.table,
		Key: map[string]types.AttributeValue{
			attrScope: str(scope), attrItem: str(itemEvent + hex.EncodeToString(sum[:])),
		},
		UpdateExpression:         aws.String("SET #token = if_not_exists(#token, :token), #expires = :expires"),
		ExpressionAttributeNames: map[string]string{"#token": attrToken, "#expires": attrExpires},
		ExpressionAttributeValues: map[string]types.AttributeValue{
			":token": str(fresh.String()), ":expires": num(strconv.FormatInt(time.Now().Add(keep).Unix(), 10)),
		},
		ReturnValues: types.ReturnValueAllNew,
	})
	if err != nil {
		return guard.Token{}, fmt.Errorf("record the token of event %q of scope %s in table %s: %w", event, scope, d.table, err)
	}
	tok, err := guard.ParseToken(text(out.Attributes[attrToken]))
	if err == nil {
		err = CheckEventToken(tok, scope, fresh.Issuer())
	}
	if err != nil {
		return guard.Token{}, d.refuse(scope, err, fmt.Sprintf("the recorded token of event %q can't be used", event), giveBack(scope))
	}
	return tok, nil
}

// CheckEvent refuses what no event can be. It is for implementations of
// [guard.EventIssuer].
func CheckEvent(scope, event string) error {
	if err := guard.CheckScope(scope); err != nil {
		return err
	}
	if event == "" {
		return fmt.Errorf("%w: an event of scope %s has no id", guard.ErrInvalid, scope)
	}
	return nil
}

// CheckEventToken says why the token that is recorded for an event is not one of
// the scope's counter, whose issuer id is now. It is for implementations of
// [guard.EventIssuer].
func CheckEventToken(tok guard.Token, scope string, now guard.IssuerID) error {
	switch {
	case tok.Scope() != scope:
		return fmt.Errorf("it is of scope %s", tok.Scope())
	case tok.Issuer() != now:
		return fmt.Errorf("the counter was made anew: its issuer id was %s and is %s", tok.Issuer(), now)
	}
	return nil
}

// timeToLive is what a DynamoDBAPI needs for [enableTTL]; *dynamodb.Client has it.
type timeToLive interface {
	DescribeTimeToLive(context.Context, *dynamodb.DescribeTimeToLiveInput, ...func(*dynamodb.Options)) (*dynamodb.DescribeTimeToLiveOutput, error)
	UpdateTimeToLive(context.Context, *dynamodb.UpdateTimeToLiveInput, ...func(*dynamodb.Options)) (*dynamodb.UpdateTimeToLiveOutput, error)
}

// enableTTL has the table remove the records of events that have expired. A
// client or a server that can't is fine: then they stay, and stay good.
func enableTTL(ctx context.Context, client DynamoDBAPI, table string) error {
	c, ok := client.(timeToLive)
	if !ok {
		return nil
	}
	out, err := c.DescribeTimeToLive(ctx, &dynamodb.DescribeTimeToLiveInput{TableName: &table})
	// Enabling what is enabled is an error.
	if err == nil && !ttlIs(out.TimeToLiveDescription, attrExpires) {
		_, err = c.UpdateTimeToLive(ctx, &dynamodb.UpdateTimeToLiveInput{
			TableName:               &table,
			TimeToLiveSpecification: &types.TimeToLiveSpecification{AttributeName: aws.String(attrExpires), Enabled: aws.Bool(true)},
		})
	}
	var unknown interface{ ErrorCode() string }
	if errors.As(err, &unknown) && unknown.ErrorCode() == "UnknownOperationException" {
		return nil
	}
	if err != nil {
		return fmt.Errorf("enable the time to live of table %s: %w", table, err)
	}
	return nil
}

func ttlIs(d *types.TimeToLiveDescription, attr string) bool {
	return d != nil && aws.ToString(d.AttributeName) == attr &&
		(d.TimeToLiveStatus == types.TimeToLiveStatusEnabled || d.TimeToLiveStatus == types.TimeToLiveStatusEnabling)
}
