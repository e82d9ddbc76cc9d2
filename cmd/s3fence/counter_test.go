package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/localstack/servers"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
)

// counter set SCOPE NAME VALUE changes what a scope's counter holds, around the
// issuer: number, issuer, or table_id, or url. counter rm SCOPE takes it away.
func counter(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 4 && (len(args) != 2 || args[0] != "rm") {
		ts.Fatalf("usage: counter set SCOPE NAME VALUE, or counter rm SCOPE")
	}
	set := counterIn(ts)
	name, value := "", ""
	if args[0] == "set" {
		name, value = args[2], args[3]
	}
	ts.Check(set(context.Background(), args[1], name, value))
}

// counterIn returns what sets one field of a counter, or without a name takes
// the counter away.
func counterIn(ts *testscript.TestScript) func(ctx context.Context, scope, name, value string) error {
	if dir := ts.Getenv("S3FENCE_LOCAL"); dir != "" {
		return func(ctx context.Context, scope, name, value string) error {
			db, err := sql.Open("sqlite", filepath.Join(ts.MkAbs(dir), "s3fence.db"))
			if err != nil {
				return err
			}
			defer db.Close()
			if name == "" {
				_, err = db.ExecContext(ctx, "DELETE FROM scopes WHERE scope = ?", scope)
			} else {
				_, err = db.ExecContext(ctx, "UPDATE scopes SET "+name+" = ? WHERE scope = ?", value, scope)
			}
			return err
		}
	}
	at := func(url string) *servers.Server {
		return &servers.Server{
			URL: ts.Getenv(url), Region: ts.Getenv("AWS_REGION"),
			AccessKey: ts.Getenv("AWS_ACCESS_KEY_ID"), SecretKey: ts.Getenv("AWS_SECRET_ACCESS_KEY"),
		}
	}
	url := ts.Getenv("S3FENCE_ISSUER")
	if bucket, prefix, err := parseURL(url); err == nil {
		c := serverstest.S3Client(at("AWS_ENDPOINT_URL_S3"))
		return func(ctx context.Context, scope, name, value string) error {
			key := guard.ScopeKey(prefix, "counters", scope)
			if name == "" {
				_, err := c.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &bucket, Key: &key})
				return err
			}
			out, err := c.GetObject(ctx, &s3.GetObjectInput{Bucket: &bucket, Key: &key})
			if err != nil {
				return err
			}
			defer out.Body.Close()
			var state map[string]any
			d := json.NewDecoder(out.Body)
			d.UseNumber()
			if err := d.Decode(&state); err != nil {
				return err
			}
			state[name] = value
			if n, err := strconv.ParseInt(value, 10, 64); err == nil && name == "number" {
				state[name] = n
			}
			b, err := json.Marshal(state)
			if err != nil {
				return err
			}
			_, err = c.PutObject(ctx, &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: strings.NewReader(string(b))})
			return err
		}
	}
	table := strings.TrimPrefix(url, "dynamodb://")
	c := serverstest.DynamoDBClient(at("AWS_ENDPOINT_URL_DYNAMODB"))
	return func(ctx context.Context, scope, name, value string) error {
		key := map[string]types.AttributeValue{
			"scope": &types.AttributeValueMemberS{Value: scope}, "item": &types.AttributeValueMemberS{Value: "counter"},
		}
		if name == "" {
			_, err := c.DeleteItem(ctx, &dynamodb.DeleteItemInput{TableName: &table, Key: key})
			return err
		}
		var v types.AttributeValue = &types.AttributeValueMemberS{Value: value}
		if name == "number" {
			v = &types.AttributeValueMemberN{Value: value}
		}
		_, err := c.UpdateItem(ctx, &dynamodb.UpdateItemInput{
			TableName: &table, Key: key, UpdateExpression: aws.String("SET #n = :v"),
			ConditionExpression:      aws.String("attribute_exists(#n)"),
			ExpressionAttributeNames: map[string]string{"#n": name}, ExpressionAttributeValues: map[string]types.AttributeValue{":v": v},
		})
		return err
	}
}
