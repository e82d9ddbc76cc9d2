package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/logging"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/issuer"
	"github.com/s3fence/s3fence/localstack"
)

// scopeMaker is an issuer that can make a scope's counter.
type scopeMaker interface {
	guard.Issuer
	peeker
	CreateScope(ctx context.Context, scope string) (id guard.IssuerID, created bool, err error)
}

// localDir returns the folder of the embedded default, "" when it is not used.
func (a *app) localDir() (string, error) {
	dir, fromFlag := a.setting("local")
	if dir == "" {
		return "", nil
	}
	for _, f := range []string{"endpoint-url", "dynamodb-endpoint-url", "issuer"} {
		if !a.flags.Lookup(f).Changed {
			continue
		}
		if fromFlag {
			return "", usagef("--local and --%s exclude each other", f)
		}
		return "", nil // a flag beats the environment
	}
	return dir, nil
}

// openLocal opens the embedded default; nil when it is not used.
func (a *app) openLocal() (*localstack.Local, error) {
	dir, err := a.localDir()
	if dir == "" || err != nil || a.local != nil {
		return a.local, err
	}
	l, err := localstack.Open(dir, nil)
	if err != nil {
		return nil, err
	}
	a.local = l
	a.closers = append(a.closers, l.Close)
	return l, nil
}

// openGuard returns a guard over bucket. One that is not AWS's own, nor the
// embedded one, must have been proven before it is written to.
func (a *app) openGuard(ctx context.Context, bucket string) (*guard.Guard, error) {
	if a.fenceMaxAge < 0 {
		return nil, usagef("--fence-max-age %s is negative; 0 reads the scope fence at every write", a.fenceMaxAge)
	}
	s, err := a.openStore(ctx, bucket)
	if err != nil {
		return nil, err
	}
	source, err := a.profileSource(ctx, bucket, s)
	if err != nil {
		return nil, err
	}
	o := guard.Options{Logger: a.log, Profile: source, FenceMaxAge: a.fenceMaxAge}
	if o.FenceMaxAge == 0 {
		o.FenceMaxAge = guard.EveryWrite
	}
	if o.Memory, err = a.memoryOf(s.endpoint, bucket); err != nil {
		return nil, err
	}
	rootBucket, root, err := a.root(bucket)
	if err != nil {
		return nil, err
	}
	o.Root = root
	if rootBucket != bucket {
		r, err := a.openStore(ctx, rootBucket)
		if err != nil {
			return nil, err
		}
		o.RootStore = r.store
	}
	return guard.New(s.store, &o), nil
}

func (a *app) s3Client(ctx context.Context) (*s3.Client, error) {
	cfg, err := a.awsConfig(ctx)
	if err != nil {
		return nil, err
	}
	addressing, _ := a.setting("addressing")
	endpoint, _ := a.setting("endpoint-url")
	return s3.NewFromConfig(cfg, func(o *s3.Options) {
		if endpoint != "" {
			o.BaseEndpoint = &endpoint
		}
		o.UsePathStyle = addressing == "path" || addressing != "virtual" && o.BaseEndpoint != nil
		// Not a line of the SDK's for each object that was stored without a checksum.
		o.DisableLogOutputChecksumValidationSkipped = true
		o.Region = regionOr(o.Region, o.BaseEndpoint)
		if a.payer() { // also in what doctor asks around our own store
			o.APIOptions = append(o.APIOptions, smithyhttp.SetHeaderValue("X-Amz-Request-Payer", "requester"))
		}
	}), nil
}

// payer reports whether the requester agrees to be charged.
func (a *app) payer() bool {
	payer, _ := a.setting("request-payer")
	return payer != ""
}

// regionOr gives endpoints that are not AWS the region that they expect when
// nobody named one.
func regionOr(region string, endpoint *string) string {
	if region == "" && endpoint != nil {
		return "us-east-1"
	}
	return region
}

// answerTimeout is how long a server may think about a request that it has
// got whole: longer than S3 takes to store 5 GiB.
const answerTimeout = 2 * time.Minute

// idleConns are kept for the next requests: more than any concurrency in use,
// since each one that is closed costs the next request a handshake.
const idleConns = 256

// tune sets a transport up for many requests at once.
func tune(t *http.Transport) {
	t.ResponseHeaderTimeout = answerTimeout
	t.MaxIdleConns, t.MaxIdleConnsPerHost = idleConns, idleConns
	// HTTP/2 would put all of them on one connection, and its window.
	t.ForceAttemptHTTP2 = false
}

// awsConfig reads the SDK's configuration, once: each has credentials of its
// own to fetch.
func (a *app) awsConfig(ctx context.Context) (aws.Config, error) {
	if a.aws != nil {
		return *a.aws, nil
	}
	switch s, _ := a.setting("addressing"); s {
	case "", "auto", "path", "virtual":
	default:
		return aws.Config{}, usagef("--addressing %q is none of auto, path, virtual", s)
	}
	region, _ := a.setting("region")
	profile, _ := a.setting("profile")
	cfg, err := config.LoadDefaultConfig(ctx, config.WithRegion(region), config.WithSharedConfigProfile(profile),
		// The SDK's own lines go where ours go, and only with -v.
		config.WithLogger(logging.LoggerFunc(func(class logging.Classification, format string, v ...any) {
			a.log.DebugContext(ctx, fmt.Sprintf(format, v...), "sdk", string(class))
		})),
		// A server that takes a request and never answers must not hold a
		// command for ever; what it then did is for the guard to find out.
		config.WithHTTPClient(awshttp.NewBuildableClient().WithTransportOptions(tune)))
	if err != nil {
		return cfg, fmt.Errorf("read the AWS configuration: %w", err)
	}
	a.aws = &cfg
	return cfg, nil
}

// tableName returns the DynamoDB table of --issuer.
func (a *app) tableName() (string, error) {
	url, _ := a.setting("issuer")
	if url == "" {
		return "s3fence", nil
	}
	table, ok := strings.CutPrefix(url, "dynamodb://")
	if !ok || table == "" || strings.Contains(table, "/") {
		return "", usagef("issuer %q is neither dynamodb://TABLE nor s3://BUCKET/PREFIX", url)
	}
	return table, nil
}

// issuerBucket returns the bucket and the prefix of an --issuer that counts in
// S3, "" for any other.
func (a *app) issuerBucket() (bucket, prefix string, err error) {
	url, _ := a.setting("issuer")
	if !strings.HasPrefix(url, "s3://") {
		return "", "", nil
	}
	bucket, prefix, err = parseURL(url)
	return bucket, strings.TrimRight(prefix, "/"), err
}

// issuerURL names the issuer for people.
func (a *app) issuerURL() (string, error) {
	if dir, err := a.localDir(); dir != "" || err != nil {
		return "local:" + dir, err
	}
	bucket, prefix, err := a.issuerBucket()
	if bucket != "" || err != nil {
		return strings.TrimRight("s3://"+bucket+"/"+prefix, "/"), err
	}
	table, err := a.tableName()
	return "dynamodb://" + table, err
}

// openS3Issuer opens a counter in S3. Its bucket must be proven, as every
// bucket that is written to.
func (a *app) openS3Issuer(ctx context.Context, bucket, prefix string) (*issuer.S3, error) {
	s, err := a.openStore(ctx, bucket)
	if err != nil {
		return nil, err
	}
	source, err := a.profileSource(ctx, bucket, s)
	if err != nil {
		return nil, err
	}
	if source != nil {
		if _, err := source(ctx); err != nil {
			return nil, fmt.Errorf("issuer s3://%s: %w", bucket, err)
		}
	}
	return issuer.NewS3(s.store, prefix), nil
}

func (a *app) dynamoDB(ctx context.Context) (*dynamodb.Client, string, error) {
	table, err := a.tableName()
	if err != nil {
		return nil, "", err
	}
	cfg, err := a.awsConfig(ctx)
	if err != nil {
		return nil, "", err
	}
	endpoint, _ := a.setting("dynamodb-endpoint-url")
	return dynamodb.NewFromConfig(cfg, func(o *dynamodb.Options) {
		if endpoint != "" {
			o.BaseEndpoint = &endpoint
		}
		o.Region = regionOr(o.Region, o.BaseEndpoint)
	}), table, nil
}

// openIssuer opens the issuer, which must be there.
func (a *app) openIssuer(ctx context.Context) (scopeMaker, error) {
	l, err := a.openLocal()
	if l != nil || err != nil {
		return l, err
	}
	bucket, prefix, err := a.issuerBucket()
	if err != nil {
		return nil, err
	}
	if bucket != "" {
		return a.openS3Issuer(ctx, bucket, prefix)
	}
	client, table, err := a.dynamoDB(ctx)
	if err != nil {
		return nil, err
	}
	return issuer.OpenDynamoDB(ctx, client, table)
}

// token returns the token to write with through g: the one given, or a fresh
// one of the scope given, which is held against the scope fence. A flag beats
// the environment; there, a token beats a scope. A dry run decides with the
// number that would be next, which is not taken, so that token is nobody's.
func (a *app) token(ctx context.Context, g *guard.Guard, dryRun bool) (tok guard.Token, fresh bool, err error) {
	text, textFlag := a.setting("token")
	scope, scopeFlag := a.setting("scope")
	switch {
	case textFlag && scopeFlag:
		return tok, false, usagef("--token and --scope exclude each other: a token is of one scope already")
	case text != "" && !scopeFlag, textFlag:
		tok, err = readToken(text)
		return tok, false, err
	case scope != "":
		if err := guard.CheckScope(scope); err != nil {
			return tok, false, err
		}
		counter, err := a.openIssuer(ctx)
		if err != nil {
			return tok, false, err
		}
		var iss guard.Issuer = counter
		if dryRun {
			if iss, err = a.foresee(ctx, counter, scope); err != nil {
				return tok, false, err
			}
		}
		tok, err = g.Issue(ctx, iss, scope)
		return tok, err == nil && !dryRun, err
	}
	return tok, false, &guard.Refusal{Reason: guard.ErrMissingToken, URL: "this write", Cures: []string{
		"give the token you hold: --token TOKEN, --token @FILE or S3FENCE_TOKEN",
		"or take a fresh one for this command: --scope SCOPE",
	}}
}

// A foreseer gives the token that the counter would give next, and takes none.
type foreseer struct{ peeker }

// Issue implements guard.Issuer.
func (f foreseer) Issue(ctx context.Context, scope string) (guard.Token, error) {
	id, last, err := f.Peek(ctx, scope)
	if err != nil {
		return guard.Token{}, err
	}
	return guard.NewToken(id, scope, last+1)
}

// foresee returns an issuer for a dry run.
func (a *app) foresee(ctx context.Context, iss scopeMaker, scope string) (guard.Issuer, error) {
	if a.local != nil { // which makes a counter when its scope is first used
		if _, _, err := iss.CreateScope(ctx, scope); err != nil {
			return nil, err
		}
	}
	return foreseer{iss}, nil
}

// readToken parses a token's text, or that of the file behind an @.
func readToken(text string) (guard.Token, error) {
	name, isFile := strings.CutPrefix(text, "@")
	if isFile {
		f, err := openFile(name, "read the token")
		if err != nil {
			return guard.Token{}, err
		}
		defer f.Close()
		const more = 4096 // than any token; a wrong file is not read whole
		b, err := io.ReadAll(io.LimitReader(f, more))
		if err != nil {
			return guard.Token{}, fmt.Errorf("read the token: %w", err)
		}
		text = strings.TrimRight(string(b), "\r\n")
	}
	return guard.ParseToken(text)
}

// parseURL splits s3://bucket/key. Both are taken as they stand: nothing is
// decoded or cleaned.
func parseURL(s string) (bucket, key string, err error) {
	rest, ok := strings.CutPrefix(s, "s3://")
	if !ok {
		return "", "", usagef("%q is not s3://BUCKET/KEY", s)
	}
	bucket, key, _ = strings.Cut(rest, "/")
	if bucket == "" {
		return "", "", usagef("%q names no bucket", s)
	}
	return bucket, key, nil
}

// openObject parses a URL that must name an object, and opens its bucket.
func (a *app) openObject(ctx context.Context, url string) (*guard.Guard, string, error) {
	bucket, key, err := parseURL(url)
	if err != nil {
		return nil, "", err
	}
	if err := guard.CheckKey(key); err != nil {
		return nil, "", fmt.Errorf("%s: %w", url, err)
	}
	g, err := a.openGuard(ctx, bucket)
	return g, key, err
}

// isDir reports whether name is a folder that exists.
func isDir(name string) bool {
	fi, err := os.Stat(name)
	return err == nil && fi.IsDir()
}
