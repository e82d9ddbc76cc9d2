package issuer

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/s3fence/s3fence/guard"
)

// The lease's attributes. They are on the counter's own item, so that one
// update takes both.
const (
	attrLeaseOwner    = "lease_owner"
	attrLeaseNumber   = "lease_number"
	attrLeaseVersion  = "lease_version"
	attrLeaseTTL      = "lease_ttl"   // in milliseconds
	attrLeaseSince    = "lease_since" // RFC 3339, of the owner's clock
	attrLeaseBeat     = "lease_beat"
	attrLeaseReleased = "lease_released" // 1 or 0
)

var _ LeaseStore = (*DynamoDB)(nil)

// Lease implements [LeaseStore] with one consistent read.
func (d *DynamoDB) Lease(ctx context.Context, scope string) (LeaseRecord, error) {
	if err := guard.CheckScope(scope); err != nil {
		return LeaseRecord{}, err
	}
	item, err := d.read(ctx, scope)
	if err != nil {
		return LeaseRecord{}, err
	}
	if len(item) == 0 {
		return LeaseRecord{}, d.judge(scope, item, counter{})
	}
	return d.lease(scope, item)
}

// SwapLease implements [LeaseStore] with one UpdateItem. Where it takes a
// number it refuses what [DynamoDB.IssueAfter] refuses.
func (d *DynamoDB) SwapLease(ctx context.Context, scope string, over guard.WriteID, next LeaseRecord, claim guard.Record) (LeaseRecord, error) {
	if err := guard.CheckScope(scope); err != nil {
		return LeaseRecord{}, err
	}
	before := d.knows(scope)
	names := map[string]string{
		"#issuer": attrIssuer, "#owner": attrLeaseOwner, "#taken": attrLeaseNumber, "#version": attrLeaseVersion, "#ttl": attrLeaseTTL,
		"#since": attrLeaseSince, "#beat": attrLeaseBeat, "#released": attrLeaseReleased,
	}
	values := map[string]types.AttributeValue{
		":owner": str(next.Owner), ":version": str(next.Version.String()),
		":ttl":   num(strconv.FormatInt(next.TTL.Milliseconds(), 10)),
		":since": str(next.Since.UTC().Format(time.RFC3339Nano)), ":beat": str(next.Beat.UTC().Format(time.RFC3339Nano)),
		":released": num("0"),
	}
	if next.Released {
		values[":released"] = num("1")
	}
	cond := "attribute_exists(#issuer) AND attribute_not_exists(#version)"
	if !over.IsZero() {
		cond = "attribute_exists(#issuer) AND #version = :over"
		values[":over"] = str(over.String())
	}
	set := "SET #owner = :owner, #version = :version, #ttl = :ttl, #since = :since, #beat = :beat, #released = :released, #taken = "
	take := next.Token.IsZero()
	if take {
		// In an update all values are those before it.
		set += "#number + :one, #number = #number + :one"
		values[":one"] = num("1")
		cond += d.counting(before, claim, names, values)
	} else {
		set += ":taken"
		values[":taken"] = num(strconv.FormatInt(next.Token.Number(), 10))
	}
	out, err := d.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName:                           &d.table,
		Key:                                 d.key(scope),
		UpdateExpression:                    &set,
		ConditionExpression:                 &cond,
		ExpressionAttributeNames:            names,
		ExpressionAttributeValues:           values,
		ReturnValues:                        types.ReturnValueAllNew,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	})
	var item map[string]types.AttributeValue
	var failed *types.ConditionalCheckFailedException
	switch {
	case err == nil:
		item = out.Attributes
	case !errors.As(err, &failed):
		return LeaseRecord{}, fmt.Errorf("write the lease of scope %s in table %s: %w", scope, d.table, err)
	default:
		if item, err = d.failedOn(ctx, scope, failed); err == nil && take {
			err = d.against(scope, item, before, claim)
		}
		if err != nil {
			return LeaseRecord{}, err
		}
	}
	standing, err := d.lease(scope, item)
	if err == nil && take && failed == nil {
		err = d.took(before, standing.Token)
	}
	if err != nil {
		return LeaseRecord{}, err
	}
	return standing, nil
}

// lease reads the lease of a counter's item.
func (d *DynamoDB) lease(scope string, item map[string]types.AttributeValue) (LeaseRecord, error) {
	if item[attrLeaseVersion] == nil {
		return LeaseRecord{}, nil
	}
	r := LeaseRecord{Owner: text(item[attrLeaseOwner]), Released: text(item[attrLeaseReleased]) == "1"}
	id, err := guard.ParseIssuerID(text(item[attrIssuer]))
	if err != nil {
		return LeaseRecord{}, d.refuse(scope, err, "the counter's issuer id is damaged")
	}
	n, numberErr := strconv.ParseInt(text(item[attrLeaseNumber]), 10, 64)
	r.Token, err = guard.NewToken(id, scope, n)
	var versionErr, sinceErr, beatErr error
	r.Version, versionErr = guard.ParseWriteID(text(item[attrLeaseVersion]))
	ttl, ttlErr := strconv.ParseInt(text(item[attrLeaseTTL]), 10, 32)
	r.TTL = time.Duration(ttl) * time.Millisecond
	r.Since, sinceErr = time.Parse(time.RFC3339Nano, text(item[attrLeaseSince]))
	r.Beat, beatErr = time.Parse(time.RFC3339Nano, text(item[attrLeaseBeat]))
	if err = errors.Join(numberErr, err, versionErr, ttlErr, sinceErr, beatErr, r.check()); err != nil {
		return LeaseRecord{}, d.refuse(scope, err, "its lease is damaged", dropLease)
	}
	return r, nil
}

// dropLease is the cure of a damaged lease.
const dropLease = "when nobody holds it, remove what begins with lease from its counter"
