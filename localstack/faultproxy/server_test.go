package faultproxy_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	dynamodbtypes "github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	s3types "github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
	"github.com/s3fence/s3fence/localstack/faultproxy"
	"github.com/s3fence/s3fence/localstack/servers"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
)

func TestMain(m *testing.M) { os.Exit(serverstest.Main(m)) }

// through returns a client that talks to MinIO through a proxy, one that
// doesn't, and a bucket of this test's own.
func through(t *testing.T) (p *faultproxy.Proxy, proxied, direct *s3.Client, bucket *string) {
	t.Helper()
	s := serverstest.SharedMinIO(t)
	p = proxyOf(t, s)
	client := func(url string) *s3.Client {
		return s3.New(s3.Options{
			BaseEndpoint: &url, Region: s.Region, UsePathStyle: true, RetryMaxAttempts: 1,
			Credentials: credentials.NewStaticCredentialsProvider(s.AccessKey, s.SecretKey, ""),
		})
	}
	direct = client(s.URL)
	bucket = aws.String(serverstest.Name(t))
	if _, err := direct.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: bucket}); err != nil {
		t.Fatal(err)
	}
	return p, client(p.URL()), direct, bucket
}

func proxyOf(t *testing.T, s *servers.Server) *faultproxy.Proxy {
	t.Helper()
	p, err := faultproxy.New(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func put(ctx context.Context, c *s3.Client, bucket *string, key string, body []byte) error {
	_, err := c.PutObject(ctx, &s3.PutObjectInput{
		Bucket: bucket, Key: &key, Body: bytes.NewReader(body), IfNoneMatch: aws.String("*"),
		Metadata: map[string]string{"fence-token": "r1:x"},
	})
	return err
}

func code(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}

func mustHold(t *testing.T, c *s3.Client, bucket *string, key string, body []byte) {
	t.Helper()
	out, err := c.GetObject(t.Context(), &s3.GetObjectInput{Bucket: bucket, Key: &key})
	if err != nil {
		t.Errorf("%q: %v", key, err)
		return
	}
	defer out.Body.Close()
	got, err := io.ReadAll(out.Body)
	if err != nil || !bytes.Equal(got, body) || out.Metadata["fence-token"] != "r1:x" {
		t.Errorf("%q: %d bytes, metadata %v, %v", key, len(got), out.Metadata, err)
	}
}

func TestSignaturesStayValid(t *testing.T) {
	p, proxied, direct, bucket := through(t)
	large := bytes.Repeat([]byte("0123456789abcdef"), 3<<16) // the SDK asks for a 100 first
	for _, key := range []string{
		"plain", "a b/+%?&#ü/x", "~!$'()*,;:@=[]{}|^`\"<>", "a%2Fb", "日本/語", "..a/b..",
	} {
		bodies := [][]byte{nil, []byte("body"), large}
		if key != "a b/+%?&#ü/x" {
			bodies = bodies[:2]
		}
		for _, body := range bodies {
			k := key + "-" + strconv.Itoa(len(body))
			if err := put(t.Context(), proxied, bucket, k, body); err != nil {
				t.Errorf("%q: %v", k, err)
				continue
			}
			mustHold(t, direct, bucket, k, body)
			mustHold(t, proxied, bucket, k, body)
		}
	}
	n := 0
	for _, q := range p.Requests() {
		if q.Status != q.Upstream || q.Err != nil {
			t.Errorf("%+v", q)
		}
		if q.Method == http.MethodPut && q.Header.Get("If-None-Match") == "*" && strings.HasPrefix(q.Key, "a b/+%?&#ü/x-") {
			n++
		}
	}
	if n != 3 {
		t.Errorf("%d PUTs in the log under their key", n)
	}
}

// MinIO refuses some keys, with or without a proxy. What matters is that both
// ways give the same.
func TestOddKeysAreTheSameBothWays(t *testing.T) {
	_, proxied, direct, bucket := through(t)
	remove := func(key string) {
		// Where the key was refused there is nothing to remove, and an error to pass over.
		direct.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: bucket, Key: &key})
	}
	for _, key := range []string{"a b/+%?&#ü//x", "//lead", "/lead", "a/../b", "a/./b", "dir/", "a\\b", strings.Repeat("k", 1024)} {
		err1 := put(t.Context(), direct, bucket, key, []byte("body"))
		remove(key)
		err2 := put(t.Context(), proxied, bucket, key, []byte("body"))
		t.Logf("%.20q: %q", key, code(err2))
		if (err1 == nil) != (err2 == nil) || code(err1) != code(err2) {
			t.Errorf("%q: direct %v, proxied %v", key, err1, err2)
		}
		if err2 == nil {
			mustHold(t, direct, bucket, key, []byte("body"))
		}
		remove(key) // MinIO takes "/lead" and "//lead" for one key
	}
}

func TestDroppedAnswerIsApplied(t *testing.T) {
	p, proxied, direct, bucket := through(t)
	lost := p.Add(faultproxy.Rule{Method: "PUT", Key: "key", Fault: faultproxy.Fault{Kind: faultproxy.DropAnswer}})
	if err := put(t.Context(), proxied, bucket, "key", []byte("body")); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client got %v", err)
	}
	<-lost.Reached()
	mustHold(t, direct, bucket, "key", []byte("body"))
	if err := put(t.Context(), proxied, bucket, "key", []byte("body")); code(err) != "PreconditionFailed" {
		t.Errorf("again: %v", err)
	}
	if lost.Fired() != 1 || len(p.Unused()) != 0 {
		t.Errorf("fired %d times", lost.Fired())
	}
}

func TestErrorsLookLikeTheStores(t *testing.T) {
	p, proxied, direct, bucket := through(t)
	for status, want := range map[string]string{
		"500": "InternalError", "503": "SlowDown", "409": "ConditionalRequestConflict", "412": "PreconditionFailed", "403": "AccessDenied",
	} {
		in, err := p.AddText("PUT status=" + status)
		if err != nil {
			t.Fatal(err)
		}
		if err := put(t.Context(), proxied, bucket, "key", []byte("body")); code(err) != want {
			t.Errorf("%s: %v", status, err)
		}
		in[0].Remove()
	}
	if _, err := direct.HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: bucket, Key: aws.String("key")}); code(err) != "NotFound" {
		t.Errorf("something was written: %v", err)
	}
}

func TestMultipartThroughFaults(t *testing.T) {
	p, proxied, direct, bucket := through(t)
	all, err := p.AddText(`POST query=uploadId error-in-200
		POST query=uploadId truncate-answer`)
	if err != nil {
		t.Fatal(err)
	}
	key := aws.String("a b/+%?&#ü/multipart")
	up, err := proxied.CreateMultipartUpload(t.Context(), &s3.CreateMultipartUploadInput{
		Bucket: bucket, Key: key, Metadata: map[string]string{"fence-token": "r1:x"},
	})
	if err != nil {
		t.Fatal(err)
	}
	part, err := proxied.UploadPart(t.Context(), &s3.UploadPartInput{
		Bucket: bucket, Key: key, UploadId: up.UploadId, PartNumber: aws.Int32(1), Body: strings.NewReader("part"),
	})
	if err != nil {
		t.Fatal(err)
	}
	complete := func() error {
		_, err := proxied.CompleteMultipartUpload(t.Context(), &s3.CompleteMultipartUploadInput{
			Bucket: bucket, Key: key, UploadId: up.UploadId, IfNoneMatch: aws.String("*"),
			MultipartUpload: &s3types.CompletedMultipartUpload{Parts: []s3types.CompletedPart{{
				PartNumber: aws.Int32(1), ETag: part.ETag, ChecksumCRC32: part.ChecksumCRC32,
			}}},
		})
		return err
	}
	if err := complete(); code(err) != "InternalError" {
		t.Errorf("error in a 200: %v", err)
	}
	if _, err := direct.HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: bucket, Key: key}); code(err) != "NotFound" {
		t.Errorf("it was completed: %v", err)
	}
	if err := complete(); err == nil {
		t.Error("the SDK takes a truncated answer")
	}
	mustHold(t, direct, bucket, *key, []byte("part"))
	if all[0].Fired() != 1 || all[1].Fired() != 1 {
		t.Errorf("unused: %s", p.Unused())
	}
}

func TestDuplicateComesLater(t *testing.T) {
	p, proxied, direct, bucket := through(t)
	if _, err := p.AddText("PUT key=key duplicate-later"); err != nil {
		t.Fatal(err)
	}
	if err := put(t.Context(), proxied, bucket, "key", []byte("body")); err != nil {
		t.Fatal(err)
	}
	if got, err := p.SendDuplicates(t.Context()); err != nil || len(got) != 1 || got[0] != http.StatusPreconditionFailed {
		t.Errorf("the duplicate: %v %v", got, err)
	}
	mustHold(t, direct, bucket, "key", []byte("body"))
}

func TestStrippedSignedHeaderIsRefused(t *testing.T) {
	p, proxied, _, bucket := through(t)
	if _, err := p.AddText("PUT strip-headers=x-amz-meta-*"); err != nil {
		t.Fatal(err)
	}
	if err := put(t.Context(), proxied, bucket, "key", []byte("body")); code(err) != "AccessDenied" && code(err) != "SignatureDoesNotMatch" {
		t.Errorf("MinIO says %v", err)
	}
}

func TestLostNumber(t *testing.T) {
	s := serverstest.SharedDynalite(t)
	p := proxyOf(t, s)
	c := dynamodb.New(dynamodb.Options{
		BaseEndpoint: aws.String(p.URL()), Region: s.Region, RetryMaxAttempts: 1,
		Credentials: credentials.NewStaticCredentialsProvider(s.AccessKey, s.SecretKey, ""),
	})
	table := aws.String(serverstest.Name(t))
	if _, err := c.CreateTable(t.Context(), &dynamodb.CreateTableInput{
		TableName:            table,
		BillingMode:          dynamodbtypes.BillingModePayPerRequest,
		AttributeDefinitions: []dynamodbtypes.AttributeDefinition{{AttributeName: aws.String("k"), AttributeType: "S"}},
		KeySchema:            []dynamodbtypes.KeySchemaElement{{AttributeName: aws.String("k"), KeyType: "HASH"}},
	}); err != nil {
		t.Fatal(err)
	}
	for {
		out, err := c.DescribeTable(t.Context(), &dynamodb.DescribeTableInput{TableName: table})
		if err != nil {
			t.Fatal(err)
		}
		if out.Table.TableStatus == dynamodbtypes.TableStatusActive {
			break
		}
	}
	if _, err := p.AddText("POST op=UpdateItem nth=2 drop-answer\nPOST op=UpdateItem nth=2 status=500"); err != nil {
		t.Fatal(err)
	}
	var got []string
	for range 4 {
		out, err := c.UpdateItem(t.Context(), &dynamodb.UpdateItemInput{
			TableName:                 table,
			Key:                       map[string]dynamodbtypes.AttributeValue{"k": &dynamodbtypes.AttributeValueMemberS{Value: "counter"}},
			UpdateExpression:          aws.String("ADD n :one"),
			ExpressionAttributeValues: map[string]dynamodbtypes.AttributeValue{":one": &dynamodbtypes.AttributeValueMemberN{Value: "1"}},
			ReturnValues:              dynamodbtypes.ReturnValueUpdatedNew,
		})
		var internal *dynamodbtypes.InternalServerError
		switch {
		case errors.As(err, &internal):
			got = append(got, "500")
		case errors.Is(err, syscall.ECONNRESET):
			got = append(got, "reset")
		case err != nil:
			t.Fatal(err)
		default:
			got = append(got, out.Attributes["n"].(*dynamodbtypes.AttributeValueMemberN).Value)
		}
	}
	if want := "1 reset 500 3"; strings.Join(got, " ") != want {
		t.Errorf("%v, not %s", got, want)
	}
}
