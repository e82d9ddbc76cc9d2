// Package issuer holds the sources of fencing numbers.
//
// An issuer must never give a number twice and never go back, whatever crashes
// or is restored from a backup. [DynamoDB] keeps one counter item per scope
// and takes a number with a single atomic update; [S3] keeps one object per
// scope, for those who have only an object store. A counter that did go back
// is refused, and put right by a [Reconciler].
package issuer

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"

	"github.com/s3fence/s3fence/guard"
)

// DynamoDBAPI is what a [DynamoDB] issuer calls of *dynamodb.Client.
type DynamoDBAPI interface {
	DescribeTable(context.Context, *dynamodb.DescribeTableInput, ...func(*dynamodb.Options)) (*dynamodb.DescribeTableOutput, error)
	CreateTable(context.Context, *dynamodb.CreateTableInput, ...func(*dynamodb.Options)) (*dynamodb.CreateTableOutput, error)
	GetItem(context.Context, *dynamodb.GetItemInput, ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error)
	PutItem(context.Context, *dynamodb.PutItemInput, ...func(*dynamodb.Options)) (*dynamodb.PutItemOutput, error)
	UpdateItem(context.Context, *dynamodb.UpdateItemInput, ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error)
}

// The item's attributes. The partition key is the scope alone, so that a
// policy can limit a job to its own scope with dynamodb:LeadingKeys; the sort
// key leaves room for more items of a scope beside its counter.
const (
	attrScope        = "scope"
	attrItem         = "item"
	attrIssuer       = "issuer"        // issuer id, 16 hex digits
	attrNumber       = "number"        // the last number given
	attrTableID      = "table_id"      // the table's TableId when the counter was made
	attrTableCreated = "table_created" // and its creation time, in milliseconds
	itemCounter      = "counter"
)

// An Error says why an issuer gave no number and what to do about it. It
// wraps [guard.ErrIssuerRefuses].
type Error struct {
	// Source names the issuer: dynamodb://TABLE, s3://BUCKET/PREFIX.
	Source string
	Scope  string
	Detail string
	Cures  []string
	Err    error
}

// Error names the issuer, the scope and what is wrong.
func (e *Error) Error() string {
	s := guard.ErrIssuerRefuses.Error() + ": " + e.Source
	if e.Scope != "" {
		s += ": scope " + e.Scope
	}
	s += ": " + e.Detail
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns guard.ErrIssuerRefuses and the error behind it.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{guard.ErrIssuerRefuses}
	}
	return []error{guard.ErrIssuerRefuses, e.Err}
}

// DynamoDB issues tokens from a DynamoDB table: a [guard.Issuer]. One token
// takes one request. It is safe for concurrent use.
//
// The client's own retries are welcome here: a lost answer leaves a gap in the
// numbers and never a repeat.
type DynamoDB struct {
	client  DynamoDBAPI
	table   string
	id      string // TableId
	created string // creation time in milliseconds
	rand    io.Reader

	mu    sync.Mutex
	known map[string]counter
}

// counter is what this process has seen of a scope.
type counter struct {
	issuer guard.IssuerID
	last   int64
}

// OpenDynamoDB describes the table and checks that it can count: it must
// exist, and must not be replicated to other regions with eventual
// consistency, which would give the same number in two of them.
//
// The error is an [*Error] when the table can't be used, and when it is not
// DynamoDB that answers.
func OpenDynamoDB(ctx context.Context, client DynamoDBAPI, table string) (*DynamoDB, error) {
	d := &DynamoDB{client: counted{client}, table: table, rand: rand.Reader, known: make(map[string]counter)}
	out, err := client.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: &table})
	if err != nil {
		var missing *types.ResourceNotFoundException
		if errors.As(err, &missing) {
			return nil, d.refuse("", err, "the table does not exist", "make it: s3fence init")
		}
		return nil, otherServer(table, fmt.Errorf("describe table %s: %w", table, err))
	}
	if err := d.check(out.Table); err != nil {
		return nil, err
	}
	return d, nil
}

// InitDynamoDB makes the table if it is absent, waits until it is active, and
// opens it. created says whether it was made now. An existing table is left as
// it is.
func InitDynamoDB(ctx context.Context, client DynamoDBAPI, table string) (d *DynamoDB, created bool, err error) {
	_, err = client.CreateTable(ctx, &dynamodb.CreateTableInput{
		TableName: &table,
		AttributeDefinitions: []types.AttributeDefinition{
			{AttributeName: aws.String(attrScope), AttributeType: types.ScalarAttributeTypeS},
			{AttributeName: aws.String(attrItem), AttributeType: types.ScalarAttributeTypeS},
		},
		KeySchema: []types.KeySchemaElement{
			{AttributeName: aws.String(attrScope), KeyType: types.KeyTypeHash},
			{AttributeName: aws.String(attrItem), KeyType: types.KeyTypeRange},
		},
		BillingMode: types.BillingModePayPerRequest,
		// Dropping the table would lose every high-water mark of the issuer.
		DeletionProtectionEnabled: aws.Bool(true),
	})
	var exists *types.ResourceInUseException
	if err != nil && !errors.As(err, &exists) {
		return nil, false, otherServer(table, fmt.Errorf("create table %s: %w", table, err))
	}
	created = err == nil
	const longest = 5 * time.Minute
	waiter := dynamodb.NewTableExistsWaiter(client, func(o *dynamodb.TableExistsWaiterOptions) {
		o.MinDelay, o.MaxDelay = 200*time.Millisecond, 5*time.Second
	})
	if err := waiter.Wait(ctx, &dynamodb.DescribeTableInput{TableName: &table}, longest); err != nil {
		return nil, created, fmt.Errorf("wait until table %s is active: %w", table, err)
	}
	if created {
		if err := enableTTL(ctx, client, table); err != nil {
			return nil, created, err
		}
	}
	d, err = OpenDynamoDB(ctx, client, table)
	return d, created, err
}

// otherServer is err, or the refusal of an answer that is not DynamoDB's.
func otherServer(table string, err error) error {
	if !errors.As(err, new(*smithy.DeserializationError)) || errors.Is(err, io.ErrUnexpectedEOF) { // cut off
		return err
	}
	return &Error{Source: "dynamodb://" + table, Detail: "what answers at its endpoint is not DynamoDB", Err: err, Cures: []string{
		"name DynamoDB's endpoint: --dynamodb-endpoint-url URL or AWS_ENDPOINT_URL_DYNAMODB; AWS_ENDPOINT_URL is taken for that of every service",
		"or count in the object store: --issuer s3://BUCKET/PREFIX",
	}}
}

// counted counts the requests that [DynamoDB] makes for somebody's operation.
type counted struct{ DynamoDBAPI }

// GetItem implements DynamoDBAPI.
func (c counted) GetItem(ctx context.Context, in *dynamodb.GetItemInput, opts ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error) {
	guard.CountRequest(ctx)
	return c.DynamoDBAPI.GetItem(ctx, in, opts...)
}

// UpdateItem implements DynamoDBAPI.
func (c counted) UpdateItem(ctx context.Context, in *dynamodb.UpdateItemInput, opts ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error) {
	guard.CountRequest(ctx)
	return c.DynamoDBAPI.UpdateItem(ctx, in, opts...)
}

// check takes in what the table is, and refuses one that can't count.
func (d *DynamoDB) check(t *types.TableDescription) error {
	if t == nil || t.CreationDateTime == nil {
		return d.refuse("", nil, "DescribeTable says nothing about the table")
	}
	if len(t.Replicas) > 0 && t.MultiRegionConsistency != types.MultiRegionConsistencyStrong {
		return d.refuse("", nil, "it is a global table with eventual consistency: two regions would give the same number",
			"use a table of one region, or a global table with multi-Region strong consistency")
	}
	key := make(map[string]types.KeyType)
	for _, k := range t.KeySchema {
		key[aws.ToString(k.AttributeName)] = k.KeyType
	}
	if !maps.Equal(key, map[string]types.KeyType{attrScope: types.KeyTypeHash, attrItem: types.KeyTypeRange}) {
		return d.refuse("", nil, fmt.Sprintf("its key is not %s and %s: this is another program's table", attrScope, attrItem),
			"name another table: --issuer dynamodb://TABLE")
	}
	d.id = aws.ToString(t.TableId)
	d.created = strconv.FormatInt(t.CreationDateTime.UnixMilli(), 10)
	return nil
}

// CreateScope makes the scope's counter with a fresh issuer id, bound to this
// table. An existing counter is never reset: its id is returned, and created
// is false.
func (d *DynamoDB) CreateScope(ctx context.Context, scope string) (id guard.IssuerID, created bool, err error) {
	if err := guard.CheckScope(scope); err != nil {
		return id, false, err
	}
	if id, err = guard.NewIssuerID(d.rand); err != nil {
		return id, false, err
	}
	item := d.key(scope)
	item[attrIssuer] = str(id.String())
	item[attrNumber] = num("0")
	item[attrTableID] = str(d.id)
	item[attrTableCreated] = num(d.created)
	_, err = d.client.PutItem(ctx, &dynamodb.PutItemInput{
		TableName:                &d.table,
		Item:                     item,
		ConditionExpression:      aws.String("attribute_not_exists(#scope)"),
		ExpressionAttributeNames: map[string]string{"#scope": attrScope},
	})
	if err == nil {
		return id, true, nil
	}
	var failed *types.ConditionalCheckFailedException
	if !errors.As(err, &failed) {
		return id, false, fmt.Errorf("create the counter of scope %s in table %s: %w", scope, d.table, err)
	}
	old, err := d.read(ctx, scope)
	if err != nil {
		return id, false, err
	}
	if err := d.judge(scope, old, counter{}); err != nil {
		return id, false, err
	}
	have, err := guard.ParseIssuerID(text(old[attrIssuer]))
	if err != nil {
		return id, false, d.refuse(scope, err, "the counter's issuer id is damaged", mend(scope))
	}
	// The same id is ours: the answer to our own write was lost and the client
	// sent it again.
	return have, have == id, nil
}

// Issue takes the next number of scope with one UpdateItem. It implements
// [guard.Issuer].
//
// It refuses, with an [*Error], when the scope has no counter, when the
// counter was made in another table (the table was restored or made anew),
// when the counter was replaced while this process held the old one, and when
// it went back.
func (d *DynamoDB) Issue(ctx context.Context, scope string) (guard.Token, error) {
	return d.issue(ctx, scope, guard.Record{})
}

// IssueAfter implements [guard.ClaimedIssuer], with the same one request.
func (d *DynamoDB) IssueAfter(ctx context.Context, claim guard.Record) (guard.Token, error) {
	return d.issue(ctx, claim.Scope, claim)
}

func (d *DynamoDB) issue(ctx context.Context, scope string, claim guard.Record) (guard.Token, error) {
	if err := guard.CheckScope(scope); err != nil {
		return guard.Token{}, err
	}
	// Taken before the request: numbers that other callers get meanwhile may
	// be recorded before ours comes back.
	before := d.knows(scope)
	names := make(map[string]string)
	values := map[string]types.AttributeValue{":one": num("1")}
	cond := "attribute_exists(#issuer)" + d.counting(before, claim, names, values)
	out, err := d.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName:                           &d.table,
		Key:                                 d.key(scope),
		UpdateExpression:                    aws.String("ADD #number :one"),
		ConditionExpression:                 &cond,
		ExpressionAttributeNames:            names,
		ExpressionAttributeValues:           values,
		ReturnValues:                        types.ReturnValueAllNew,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	})
	if err != nil {
		return guard.Token{}, d.explain(ctx, scope, before, claim, err)
	}
	id, err := guard.ParseIssuerID(text(out.Attributes[attrIssuer]))
	if err != nil {
		return guard.Token{}, d.refuse(scope, err, "the counter's issuer id is damaged", mend(scope))
	}
	n, err := strconv.ParseInt(text(out.Attributes[attrNumber]), 10, 64)
	if err != nil {
		return guard.Token{}, d.refuse(scope, err, "the counter is not a number from 1 to 2^63-1")
	}
	tok, err := guard.NewToken(id, scope, n)
	if err != nil {
		return guard.Token{}, d.refuse(scope, err, "the counter holds no usable number")
	}
	if err := d.took(before, tok); err != nil {
		return guard.Token{}, err
	}
	return tok, nil
}

// knows returns what this process has seen of a scope, the zero counter for
// nothing.
func (d *DynamoDB) knows(scope string) counter {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.known[scope]
}

// counting returns what a condition must say besides for a number to be taken:
// the counter is of this table, the one that is known, and stands below neither
// what is known of it nor claim.
func (d *DynamoDB) counting(before counter, claim guard.Record, names map[string]string, values map[string]types.AttributeValue) string {
	names["#number"], names["#issuer"], names["#tid"], names["#created"] = attrNumber, attrIssuer, attrTableID, attrTableCreated
	values[":tid"], values[":created"] = str(d.id), num(d.created)
	cond := " AND #tid = :tid AND #created = :created"
	if before != (counter{}) {
		cond += " AND #issuer = :issuer AND #number >= :last"
		values[":issuer"], values[":last"] = str(before.issuer.String()), num(strconv.FormatInt(before.last, 10))
	}
	if claim.Number > 0 {
		cond += " AND (#issuer <> :claimed OR #number >= :claim)"
		values[":claimed"], values[":claim"] = str(claim.Issuer.String()), num(strconv.FormatInt(claim.Number, 10))
	}
	return cond
}

// took takes in a number that was taken after before was known. It refuses one
// that a server gave although the condition did not hold.
func (d *DynamoDB) took(before counter, tok guard.Token) error {
	n := tok.Number()
	if n <= before.last {
		return d.refuse(tok.Scope(), nil, fmt.Sprintf("the counter went back: it gave %d after %d", n, before.last), raise(tok.Scope()))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if n > d.known[tok.Scope()].last {
		d.known[tok.Scope()] = counter{tok.Issuer(), n}
	}
	return nil
}

// Reconcile implements [Reconciler] with one UpdateItem, which also binds the
// counter to this table.
//
// It refuses, with an [*Error], a counter whose number is damaged, and one
// that is gone, or whose issuer id is damaged, where o names no id.
func (d *DynamoDB) Reconcile(ctx context.Context, scope string, o ReconcileOptions) (Reconciled, error) {
	if err := o.Check(scope); err != nil {
		return Reconciled{}, err
	}
	var first *Reconciled // of the updates that were refused
	for range maxFailures {
		item, err := d.read(ctx, scope)
		if err != nil {
			return Reconciled{}, err
		}
		r, err := d.plan(scope, item, o)
		if err != nil || o.DryRun {
			return r, err
		}
		if r.Changed {
			var failed *types.ConditionalCheckFailedException
			if err = d.raise(ctx, scope, item, r); errors.As(err, &failed) {
				if first == nil {
					first = &r
				}
				continue // it changed meanwhile, or an answer to this very update was lost
			}
			if err != nil {
				return Reconciled{}, err
			}
		} else if first != nil {
			r.Before, r.Moved, r.Changed = first.Before, first.Moved, true
		}
		d.mu.Lock()
		if c := d.known[scope]; c.issuer != r.After.Issuer || c.last < r.After.Number {
			d.known[scope] = counter{r.After.Issuer, r.After.Number}
		}
		d.mu.Unlock()
		return r, nil
	}
	return Reconciled{}, fmt.Errorf("reconcile the counter of scope %s in table %s: it changed each time it was looked at: try again", scope, d.table)
}

// maxFailures bounds how often one call meets what may pass.
const maxFailures = 10

// plan says what shall become of a counter item.
func (d *DynamoDB) plan(scope string, item map[string]types.AttributeValue, o ReconcileOptions) (Reconciled, error) {
	var before *Counter
	if len(item) > 0 {
		n, err := strconv.ParseInt(text(item[attrNumber]), 10, 64)
		if err != nil || n < 0 {
			return Reconciled{}, d.refuse(scope, err, "the counter is not a number from 0 to 2^63-1", "use another scope, for new keys")
		}
		before = &Counter{Number: n}
		if id, err := guard.ParseIssuerID(text(item[attrIssuer])); err == nil {
			before.Issuer = id
		}
	}
	moved := before != nil && (text(item[attrTableID]) != d.id || text(item[attrTableCreated]) != d.created)
	r, err := o.plan(before, moved, d.knows(scope))
	if err != nil {
		return r, d.refuse(scope, nil, err.Error(), unknownCounter(scope, d.away(scope, before))...)
	}
	return r, nil
}

// away says how to take a counter item away.
func (d *DynamoDB) away(scope string, before *Counter) string {
	if before == nil {
		return ""
	}
	return fmt.Sprintf(`take away its item: aws dynamodb delete-item --table-name %s --key '{"%s":{"S":"%s"},"%s":{"S":"%s"}}'`,
		d.table, attrScope, scope, attrItem, itemCounter)
}

// raise makes the counter what r says, if it is still r.Before, or has gone on
// from there and not as far.
func (d *DynamoDB) raise(ctx context.Context, scope string, item map[string]types.AttributeValue, r Reconciled) error {
	cond := "attribute_not_exists(#issuer)"
	values := map[string]types.AttributeValue{
		":number": num(strconv.FormatInt(r.After.Number, 10)), ":id": str(r.After.Issuer.String()),
		":tid": str(d.id), ":created": num(d.created),
	}
	if was, ok := item[attrIssuer]; ok {
		cond = "#issuer = :was"
		values[":was"] = was
	}
	if r.Before == nil {
		cond = "attribute_not_exists(#number)"
	} else {
		cond += " AND #number <= :number"
	}
	_, err := d.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName:           &d.table,
		Key:                 d.key(scope),
		UpdateExpression:    aws.String("SET #number = :number, #issuer = :id, #tid = :tid, #created = :created"),
		ConditionExpression: &cond,
		ExpressionAttributeNames: map[string]string{
			"#number": attrNumber, "#issuer": attrIssuer, "#tid": attrTableID, "#created": attrTableCreated,
		},
		ExpressionAttributeValues: values,
	})
	if err != nil {
		return fmt.Errorf("reconcile the counter of scope %s in table %s: %w", scope, d.table, err)
	}
	return nil
}

// Peek returns the issuer id of the scope's counter and the last number that it
// gave, 0 for none, as of one consistent read. It takes no number.
//
// It tells what stands in the table, also of a counter that [DynamoDB.Issue]
// refuses because it may have gone back. It refuses, with an [*Error], when the
// scope has no counter, or a damaged one.
func (d *DynamoDB) Peek(ctx context.Context, scope string) (guard.IssuerID, int64, error) {
	if err := guard.CheckScope(scope); err != nil {
		return guard.IssuerID{}, 0, err
	}
	item, err := d.read(ctx, scope)
	if err != nil {
		return guard.IssuerID{}, 0, err
	}
	if len(item) == 0 {
		return guard.IssuerID{}, 0, d.judge(scope, item, counter{})
	}
	id, err := guard.ParseIssuerID(text(item[attrIssuer]))
	if err != nil {
		return guard.IssuerID{}, 0, d.refuse(scope, err, "the counter's issuer id is damaged", mend(scope))
	}
	n, err := strconv.ParseInt(text(item[attrNumber]), 10, 64)
	if err != nil || n < 0 {
		return guard.IssuerID{}, 0, d.refuse(scope, err, "the counter is not a number from 0 to 2^63-1")
	}
	return id, n, nil
}

// explain finds out why the update was refused.
func (d *DynamoDB) explain(ctx context.Context, scope string, before counter, claim guard.Record, err error) error {
	var failed *types.ConditionalCheckFailedException
	var missing *types.ResourceNotFoundException
	switch {
	case errors.As(err, &missing):
		return d.refuse(scope, err, "the table is gone",
			"make it: s3fence init", makeAgain(scope))
	case !errors.As(err, &failed):
		return fmt.Errorf("take a number of scope %s from table %s: %w", scope, d.table, err)
	}
	old, err2 := d.failedOn(ctx, scope, failed)
	if err2 != nil {
		return errors.Join(err2, err)
	}
	if err := d.against(scope, old, before, claim); err != nil {
		return err
	}
	return fmt.Errorf("take a number of scope %s from table %s: the counter changed while it was looked at: %w", scope, d.table, err)
}

// failedOn returns the item that a condition did not hold of.
func (d *DynamoDB) failedOn(ctx context.Context, scope string, failed *types.ConditionalCheckFailedException) (map[string]types.AttributeValue, error) {
	if failed.Item != nil {
		return failed.Item, nil
	}
	return d.read(ctx, scope) // not every server returns it
}

// against says what [DynamoDB.counting] has against a counter item, nil for
// nothing.
func (d *DynamoDB) against(scope string, item map[string]types.AttributeValue, before counter, claim guard.Record) error {
	if err := d.judge(scope, item, before); err != nil {
		return err
	}
	switch n, err := strconv.ParseInt(text(item[attrNumber]), 10, 64); {
	case err != nil:
		return d.refuse(scope, err, "the counter is not a number from 0 to 2^63-1", "use another scope, for new keys")
	case n < before.last:
		return d.refuse(scope, nil, wentBack(n, before.last), raise(scope))
	case text(item[attrIssuer]) == claim.Issuer.String() && n < claim.Number:
		return Behind(d.source(), n, claim)
	}
	return nil
}

// judge refuses a counter item that can't be counted on.
func (d *DynamoDB) judge(scope string, item map[string]types.AttributeValue, before counter) error {
	id, created, is := text(item[attrTableID]), text(item[attrTableCreated]), text(item[attrIssuer])
	switch {
	case len(item) == 0:
		return d.refuse(scope, nil, "it has no counter", "make it: s3fence init --scope "+scope, makeAgain(scope))
	case id != d.id || created != d.created:
		return d.refuse(scope, nil, fmt.Sprintf(
			"the counter was made in table %s (created %s), and this one is %s (created %s): the table was restored or copied, so the counter may have gone back",
			orNone(id), orNone(created), orNone(d.id), d.created), raise(scope))
	case before != (counter{}) && is != before.issuer.String():
		return d.refuse(scope, nil, fmt.Sprintf("the counter was made anew: its issuer id was %s and is %s", before.issuer, orNone(is)),
			giveBack(scope))
	case is == "":
		return d.refuse(scope, nil, "the counter has no issuer id", mend(scope))
	}
	return nil
}

func (d *DynamoDB) read(ctx context.Context, scope string) (map[string]types.AttributeValue, error) {
	out, err := d.client.GetItem(ctx, &dynamodb.GetItemInput{
		TableName: &d.table, Key: d.key(scope), ConsistentRead: aws.Bool(true),
	})
	if err != nil {
		return nil, fmt.Errorf("read the counter of scope %s in table %s: %w", scope, d.table, err)
	}
	return out.Item, nil
}

func (d *DynamoDB) key(scope string) map[string]types.AttributeValue {
	return map[string]types.AttributeValue{attrScope: str(scope), attrItem: str(itemCounter)}
}

func (d *DynamoDB) refuse(scope string, err error, detail string, cures ...string) error {
	return &Error{Source: d.source(), Scope: scope, Detail: detail, Cures: cures, Err: err}
}

func (d *DynamoDB) source() string { return "dynamodb://" + d.table }

func str(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }
func num(s string) types.AttributeValue { return &types.AttributeValueMemberN{Value: s} }

// text returns the text of a string or number attribute, "" for any other.
func text(v types.AttributeValue) string {
	switch v := v.(type) {
	case *types.AttributeValueMemberS:
		return v.Value
	case *types.AttributeValueMemberN:
		return v.Value
	}
	return ""
}

func orNone(s string) string {
	if s == "" {
		return "(none)"
	}
	return s
}
