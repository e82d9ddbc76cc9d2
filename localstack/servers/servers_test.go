package servers_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	dynamodbtypes "github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	s3types "github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/s3fence/s3fence/localstack/servers"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
)

func TestMain(m *testing.M) {
	switch os.Getenv(servers.Helper) {
	case "serve":
		fmt.Println("password hunter2\nhelper is listening")
		http.ListenAndServe(os.Getenv("HELPER_ADDRESS"), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	case "port-in-use":
		fmt.Println("listen: address already in use")
		os.Exit(1)
	case "fail":
		fmt.Println("helper: no luck with hunter2")
		os.Exit(1)
	case "parent":
		parent()
	default:
		os.Exit(serverstest.Main(m))
	}
}

func s3Client(s *servers.Server) *s3.Client {
	return s3.New(s3.Options{
		BaseEndpoint: &s.URL, Region: s.Region, UsePathStyle: true, RetryMaxAttempts: 1,
		Credentials: credentials.NewStaticCredentialsProvider(s.AccessKey, s.SecretKey, ""),
	})
}

func dynamoClient(s *servers.Server) *dynamodb.Client {
	return dynamodb.New(dynamodb.Options{
		BaseEndpoint: &s.URL, Region: s.Region, RetryMaxAttempts: 1,
		Credentials: credentials.NewStaticCredentialsProvider(s.AccessKey, s.SecretKey, ""),
	})
}

// put writes and returns the ETag.
func put(t *testing.T, c *s3.Client, key, body string, sse s3types.ServerSideEncryption) (string, error) {
	t.Helper()
	out, err := c.PutObject(t.Context(), &s3.PutObjectInput{
		Bucket: aws.String("bucket"), Key: &key, Body: strings.NewReader(body), ServerSideEncryption: sse,
	})
	if err != nil {
		return "", err
	}
	return aws.ToString(out.ETag), nil
}

func get(t *testing.T, c *s3.Client, key string) string {
	t.Helper()
	out, err := c.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String("bucket"), Key: &key})
	if err != nil {
		t.Fatal(err)
	}
	defer out.Body.Close()
	body, err := io.ReadAll(out.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func createBucket(t *testing.T, c *s3.Client) {
	t.Helper()
	if _, err := c.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String("bucket")}); err != nil {
		t.Fatal(err)
	}
}

// mustBeDown fails if anything still accepts connections at the server's URL.
func mustBeDown(t *testing.T, s *servers.Server) {
	t.Helper()
	if resp, err := http.Get(s.URL); err == nil {
		resp.Body.Close()
		t.Errorf("%s answers after it ended", s)
	}
}

func TestMinIO(t *testing.T) {
	t.Parallel()
	serverstest.Require(t, "minio")
	dir := t.TempDir()
	s := serverstest.MinIO(t, &servers.MinIOOptions{Dir: dir})
	c := s3Client(s)
	createBucket(t, c)
	for _, sse := range []s3types.ServerSideEncryption{"", s3types.ServerSideEncryptionAwsKms} {
		first, err := put(t, c, "key-"+string(sse), "body", sse)
		if err != nil {
			t.Fatal(err)
		}
		second, err := put(t, c, "key-"+string(sse), "body", sse)
		if err != nil {
			t.Fatal(err)
		}
		if (first == second) != (sse == "") {
			t.Errorf("ETags of the same bytes with encryption %q: %s, %s", sse, first, second)
		}
	}
	check := func(c *s3.Client) {
		t.Helper()
		for _, key := range []string{"key-", "key-aws:kms"} {
			if got := get(t, c, key); got != "body" {
				t.Errorf("%s: %q", key, got)
			}
		}
	}
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	mustBeDown(t, s)
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	check(c) // the same client: port and credentials are as before
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	mustBeDown(t, s)
	check(s3Client(serverstest.MinIO(t, &servers.MinIOOptions{Dir: dir})))
}

func TestMinIONoCompat(t *testing.T) {
	t.Parallel()
	serverstest.Require(t, "minio")
	c := s3Client(serverstest.MinIO(t, &servers.MinIOOptions{NoKMS: true, NoCompat: true}))
	createBucket(t, c)
	first, err1 := put(t, c, "key", "body", "")
	second, err2 := put(t, c, "key", "body", "")
	if err1 != nil || err2 != nil || first == second {
		t.Errorf("ETags of the same bytes: %s, %s (%v, %v)", first, second, err1, err2)
	}
	if _, err := put(t, c, "key", "body", s3types.ServerSideEncryptionAwsKms); err == nil {
		t.Error("aws:kms works without a KMS")
	}
}

func createTable(t *testing.T, c *dynamodb.Client) {
	t.Helper()
	if _, err := c.CreateTable(t.Context(), &dynamodb.CreateTableInput{
		TableName:            aws.String("table"),
		BillingMode:          dynamodbtypes.BillingModePayPerRequest,
		AttributeDefinitions: []dynamodbtypes.AttributeDefinition{{AttributeName: aws.String("k"), AttributeType: "S"}},
		KeySchema:            []dynamodbtypes.KeySchemaElement{{AttributeName: aws.String("k"), KeyType: "HASH"}},
	}); err != nil {
		t.Fatal(err)
	}
	if err := dynamodb.NewTableExistsWaiter(c, func(o *dynamodb.TableExistsWaiterOptions) {
		o.MinDelay, o.MaxDelay = 10*time.Millisecond, 100*time.Millisecond
	}).Wait(t.Context(), &dynamodb.DescribeTableInput{TableName: aws.String("table")}, 10*time.Second); err != nil {
		t.Fatal(err)
	}
}

// count raises the counter by one.
func count(ctx context.Context, c *dynamodb.Client) (int, error) {
	out, err := c.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName:                 aws.String("table"),
		Key:                       map[string]dynamodbtypes.AttributeValue{"k": &dynamodbtypes.AttributeValueMemberS{Value: "counter"}},
		UpdateExpression:          aws.String("ADD n :one"),
		ExpressionAttributeValues: map[string]dynamodbtypes.AttributeValue{":one": &dynamodbtypes.AttributeValueMemberN{Value: "1"}},
		ReturnValues:              dynamodbtypes.ReturnValueUpdatedNew,
	})
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(out.Attributes["n"].(*dynamodbtypes.AttributeValueMemberN).Value)
}

// mustCount has several callers count at once: each number comes once.
func mustCount(t *testing.T, c *dynamodb.Client) {
	t.Helper()
	const callers, each = 8, 10
	var mu sync.Mutex
	seen := map[int]bool{}
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range each {
				n, err := count(t.Context(), c)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if seen[n] {
					t.Errorf("%d twice", n)
				}
				seen[n] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(seen) != callers*each {
		t.Errorf("%d numbers", len(seen))
	}
}

func TestDynalite(t *testing.T) {
	t.Parallel()
	serverstest.Require(t, "dynalite")
	dir := t.TempDir()
	s := serverstest.Dynalite(t, &servers.DynaliteOptions{Dir: dir})
	c := dynamoClient(s)
	createTable(t, c)
	mustCount(t, c)
	want := 81
	next := func(c *dynamodb.Client) {
		t.Helper()
		if n, err := count(t.Context(), c); err != nil || n != want {
			t.Errorf("counted to %d (%v), not %d", n, err, want)
		}
		want++
	}
	next(c)
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	mustBeDown(t, s)
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	next(c)
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	mustBeDown(t, s)
	next(dynamoClient(serverstest.Dynalite(t, &servers.DynaliteOptions{Dir: dir})))
}

func TestMoto(t *testing.T) {
	t.Parallel()
	s := serverstest.Moto(t, nil)
	c := dynamoClient(s)
	createTable(t, c)
	mustCount(t, c)
	createBucket(t, s3Client(s))
	if _, err := put(t, s3Client(s), "key", "body", ""); err != nil {
		t.Error(err)
	}
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	mustBeDown(t, s)
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	createTable(t, c) // it starts empty
}

func TestSharedIsOne(t *testing.T) {
	t.Parallel()
	first := serverstest.SharedDynalite(t)
	if second := serverstest.SharedDynalite(t); first != second {
		t.Error("two")
	}
}

func TestInstallFindsWhatStartsUse(t *testing.T) {
	t.Parallel()
	serverstest.Require(t, servers.Names()...)
	var progress strings.Builder
	if err := servers.Install(t.Context(), &progress); err != nil {
		t.Fatal(err)
	}
	for _, name := range servers.Names() {
		if !strings.Contains(progress.String(), name+": ") {
			t.Errorf("nothing about %s in:\n%s", name, progress.String())
		}
	}
}

// parent is a process that starts a server and is then killed.
func parent() {
	pid, err := servers.StartHelper(os.Getenv("HELPER_DIR"))
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(pid)
	select {}
}

func TestServerDiesWithItsKilledParent(t *testing.T) {
	if !servers.DiesWithParent {
		t.Skip("no such thing on this system")
	}
	t.Parallel()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), servers.Helper+"=parent", "S3FENCE_CACHE="+t.TempDir(), "HELPER_DIR="+t.TempDir())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	cmd.Process.Kill()
	cmd.Wait()
	pid, convErr := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || convErr != nil {
		t.Fatalf("the parent says %q (%v)", line, err)
	}
	child, err := os.FindProcess(pid)
	if err != nil {
		return // gone already
	}
	deadline := time.Now().Add(10 * time.Second)
	for tick := time.Tick(10 * time.Millisecond); child.Signal(syscall.Signal(0)) == nil; <-tick {
		if time.Now().After(deadline) {
			child.Kill()
			t.Fatal("the server outlives its killed parent")
		}
	}
}
