package s3store_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	"github.com/minio/minio-go/v7"
	miniocreds "github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/s3store"
)

const secret = "SECRETSECRETSECRET"

// A client is how to reach a server that the test wrote.
type client struct {
	url       string
	transport http.RoundTripper
	// retries that the client is configured with, for nothing.
	retries int
	noCreds bool
	// checksums is when the SDK of AWS adds some. Default when supported, as
	// config.LoadDefaultConfig sets it.
	checksums aws.RequestChecksumCalculation
	// validation is when it compares some. Default left alone.
	validation aws.ResponseChecksumValidation
	opts       *s3store.Options
}

var errNoCreds = errors.New("the metadata service is out")

type failingCreds struct{ miniocreds.Expiry }

func (failingCreds) Retrieve() (miniocreds.Value, error) { return miniocreds.Value{}, errNoCreds }
func (failingCreds) RetrieveWithCredContext(*miniocreds.CredContext) (miniocreds.Value, error) {
	return miniocreds.Value{}, errNoCreds
}
func (failingCreds) IsExpired() bool { return true }

func (c client) aws(t *testing.T) guard.Store {
	t.Helper()
	o := s3.Options{
		Region: "us-east-1", BaseEndpoint: &c.url, UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider("AKIATEST", secret, ""),
		Retryer: retry.NewStandard(func(o *retry.StandardOptions) {
			o.MaxAttempts, o.MaxBackoff = max(1, c.retries), time.Millisecond
		}),
		HTTPClient:                 &http.Client{Transport: c.transport},
		RequestChecksumCalculation: cmp.Or(c.checksums, aws.RequestChecksumCalculationWhenSupported),
		ResponseChecksumValidation: c.validation,
	}
	if c.noCreds {
		o.Credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{}, errNoCreds
		})
	}
	return s3store.New(s3.New(o), "bucket", c.opts)
}

func (c client) minio(t *testing.T) guard.Store {
	t.Helper()
	u, err := url.Parse(c.url)
	if err != nil {
		t.Fatal(err)
	}
	creds := miniocreds.NewStaticV4("AKIATEST", secret, "")
	if c.noCreds {
		creds = miniocreds.New(failingCreds{})
	}
	m, err := minio.New(u.Host, &minio.Options{
		Creds: creds, Secure: u.Scheme == "https", Region: "us-east-1", Transport: c.transport, MaxRetries: max(1, c.retries),
	})
	if err != nil {
		t.Fatal(err)
	}
	return s3store.NewMinIO(m, "bucket", c.opts)
}

var sdks = []struct {
	name string
	open func(client, *testing.T) guard.Store
}{{"aws", client.aws}, {"minio-go", client.minio}}

// A recorder keeps the requests that it answers.
type recorder struct {
	*httptest.Server
	mu     sync.Mutex
	reqs   []*http.Request
	bodies []string
}

func serve(t *testing.T, answer http.HandlerFunc) *recorder {
	t.Helper()
	r := &recorder{}
	r.Server = httptest.NewServer(r.record(answer))
	t.Cleanup(r.Close)
	return r
}

func (r *recorder) record(answer http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		r.mu.Lock()
		r.reqs, r.bodies = append(r.reqs, req), append(r.bodies, string(body))
		r.mu.Unlock()
		answer(w, req)
	})
}

func (r *recorder) requests() []*http.Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.reqs)
}

func (r *recorder) one(t *testing.T) *http.Request {
	t.Helper()
	reqs := r.requests()
	if len(reqs) != 1 {
		t.Fatalf("%d requests, want one", len(reqs))
	}
	return reqs[0]
}

func create(ctx context.Context, s guard.Store) error {
	_, err := s.Put(ctx, "k", guard.PutRequest{Condition: guard.IfAbsent(), Body: guard.Bytes([]byte("body"))})
	return err
}

var sentinels = []error{
	guard.ErrNotFound, guard.ErrNoBucket, guard.ErrPreconditionFailed, guard.ErrNoUpload, guard.ErrConflict,
	guard.ErrNotSent, guard.ErrDenied, guard.ErrUnsupported, guard.ErrRejected,
}

// only checks that err is want and no other sentinel; nil is unknown.
func only(t *testing.T, what string, err, want error) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error, want %v", what, want)
		return
	}
	for _, s := range sentinels {
		if got := errors.Is(err, s); got != (s == want) {
			t.Errorf("%s: is %q: %t, want only %v; the error: %v", what, s, got, want, err)
		}
	}
	if strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "AKIATEST") {
		t.Errorf("%s: credentials in the error: %v", what, err)
	}
}

func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		status int
		code   string
		want   error
	}{
		{412, "PreconditionFailed", guard.ErrPreconditionFailed},
		{304, "", guard.ErrPreconditionFailed},
		{409, "ConditionalRequestConflict", guard.ErrConflict},
		{409, "OperationAborted", guard.ErrConflict},
		{404, "NoSuchBucket", guard.ErrNoBucket},
		{404, "NoSuchKey", guard.ErrNotFound},
		{404, "", guard.ErrNotFound},
		{401, "", guard.ErrDenied},
		{403, "AccessDenied", guard.ErrDenied},
		{403, "SignatureDoesNotMatch", guard.ErrDenied},
		{403, "", guard.ErrDenied},
		{400, "ExpiredToken", guard.ErrNotSent},
		{403, "ExpiredToken", guard.ErrNotSent},
		{400, "InvalidToken", guard.ErrDenied},
		{403, "RequestTimeTooSkewed", guard.ErrNotSent},
		{501, "NotImplemented", guard.ErrUnsupported},
		{405, "MethodNotAllowed", guard.ErrUnsupported},
		{400, "InvalidArgument", guard.ErrRejected},
		{400, "BadDigest", guard.ErrRejected},
		{400, "MetadataTooLarge", guard.ErrRejected},
		{411, "MissingContentLength", guard.ErrRejected},
		{416, "InvalidRange", guard.ErrRejected},
		{400, "RequestTimeout", nil},
		{408, "", nil},
		{429, "TooManyRequests", nil},
		{503, "SlowDown", nil},
		{400, "SlowDown", nil},
		{500, "InternalError", nil},
		{500, "", nil},
		{502, "", nil},
		{503, "ServiceUnavailable", nil},
		{504, "", nil},
		{301, "PermanentRedirect", guard.ErrRejected},
		{307, "TemporaryRedirect", nil},
		{200, "", nil}, // no ETag
	} {
		for _, sdk := range sdks {
			t.Run(fmt.Sprintf("%s/%d-%s", sdk.name, c.status, c.code), func(t *testing.T) {
				r := serve(t, func(w http.ResponseWriter, req *http.Request) {
					if c.code != "" {
						// What MinIO does for HEAD, which has no body.
						w.Header().Set("x-minio-error-code", c.code)
					}
					w.Header().Set("Last-Modified", time.Unix(1, 0).UTC().Format(http.TimeFormat))
					w.WriteHeader(c.status)
					if c.code != "" && c.status != http.StatusNotModified {
						fmt.Fprintf(w, "<Error><Code>%s</Code><Message>words</Message></Error>", c.code)
					}
				})
				// Writes are one attempt whatever the client says; minio-go's
				// reads are as often as it says.
				writer := sdk.open(client{url: r.URL, retries: 5}, t)
				reader := writer
				if sdk.name == "minio-go" {
					reader = sdk.open(client{url: r.URL}, t)
				}
				only(t, "put", create(t.Context(), writer), c.want)
				r.one(t)
				_, err := reader.Head(t.Context(), "k", guard.HeadOptions{})
				only(t, "head", err, c.want)
				_, _, err = reader.Get(t.Context(), "k", guard.ReadOptions{})
				only(t, "get", err, c.want)
				if n := len(r.requests()); n != 3 {
					t.Errorf("%d requests for a put, a head and a get", n)
				}
				if c.code == "" {
					return
				}
				for v, err := range guard.Versions(t.Context(), reader, "k") {
					only(t, fmt.Sprint("versions: ", v), err, c.want)
				}
				var api smithy.APIError
				var resp minio.ErrorResponse
				if !errors.As(err, &api) && !errors.As(err, &resp) {
					t.Errorf("the SDK's error is out of reach of errors.As: %v", err)
				}
			})
		}
	}
}

func TestMessages(t *testing.T) {
	status := 403
	r := serve(t, func(w http.ResponseWriter, req *http.Request) { w.WriteHeader(status) })
	for _, sdk := range sdks {
		t.Run(sdk.name, func(t *testing.T) {
			s := sdk.open(client{url: r.URL}, t)
			status = 403
			_, err := s.Head(t.Context(), "a/b", guard.HeadOptions{})
			contains(t, err, "head s3://bucket/a/b", "access denied", "s3:GetObject", "s3:ListBucket")
			contains(t, create(t.Context(), s), "s3:PutObject")
			status = 501
			contains(t, create(t.Context(), s), "put s3://bucket/k", "not supported by the store", "If-None-Match")
			_, err = s.Put(t.Context(), "k", guard.PutRequest{
				Condition: guard.IfMatch(`"e"`), SSE: "aws:kms", Tags: map[string]string{"a": "b"},
				Headers: guard.Headers{StorageClass: "STANDARD_IA"},
			})
			contains(t, err, "If-Match", "encryption aws:kms", "storage class STANDARD_IA", "tags")
		})
	}
}

func contains(t *testing.T, err error, want ...string) {
	t.Helper()
	for _, w := range want {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("%v: says nothing of %q", err, w)
		}
	}
}

func TestPutOnTheWire(t *testing.T) {
	meta := map[string]string{
		guard.RecordKey: "r1:0123456789abcdef:s:1", "content-type": "not a header", "x-amz-meta-a": "nested",
	}
	for _, sdk := range sdks {
		for _, secure := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/tls=%t", sdk.name, secure), func(t *testing.T) {
				r := &recorder{}
				r.Server = httptest.NewUnstartedServer(r.record(func(w http.ResponseWriter, req *http.Request) {
					w.Header().Set("ETag", `"e2"`)
					w.Header().Set("x-amz-version-id", "v2")
					w.Header().Set("x-amz-server-side-encryption", "aws:kms")
				}))
				if r.Start(); secure {
					r.Close()
					r.Server = httptest.NewTLSServer(r.Config.Handler)
				}
				defer r.Close()
				c := client{url: r.URL, transport: r.Client().Transport, opts: &s3store.Options{RequestPayer: true}}
				s := sdk.open(c, t)
				res, err := s.Put(t.Context(), "a b+c/é", guard.PutRequest{
					Condition: guard.IfMatch(`"e1"`), Body: guard.Bytes([]byte("body")),
					Headers: guard.Headers{
						ContentType: "text/plain", ContentEncoding: "gzip", ContentDisposition: "inline",
						ContentLanguage: "en", CacheControl: "no-store", Expires: "Wed, 02 Dec 2026 10:00:00 GMT",
						WebsiteRedirect: "/there", StorageClass: "STANDARD_IA", Metadata: meta,
					},
					SSE: "aws:kms", SSEKMSKeyID: "key-1", Tags: map[string]string{"k 1": "v&1", "l": ""},
				})
				if err != nil {
					t.Fatal(err)
				}
				if res.ETag != `"e2"` || res.VersionID != "v2" || sdk.name == "aws" && res.SSE != "aws:kms" {
					t.Errorf("result %+v", res)
				}
				req := r.one(t)
				if req.Method != http.MethodPut || req.URL.EscapedPath() != "/bucket/a%20b%2Bc/%C3%A9" {
					t.Errorf("%s %s", req.Method, req.URL.EscapedPath())
				}
				want := map[string]string{
					"If-Match": `"e1"`, "If-None-Match": "", "Content-Type": "text/plain",
					"Content-Disposition": "inline", "Content-Language": "en", "Cache-Control": "no-store",
					"Expires": "Wed, 02 Dec 2026 10:00:00 GMT", "X-Amz-Website-Redirect-Location": "/there",
					"X-Amz-Storage-Class": "STANDARD_IA", "X-Amz-Server-Side-Encryption": "aws:kms",
					"X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id": "key-1",
					"X-Amz-Tagging": "k+1=v%261&l=", "X-Amz-Request-Payer": "requester",
					"X-Amz-Meta-Fence-Token": meta[guard.RecordKey], "X-Amz-Meta-Content-Type": "not a header",
					"X-Amz-Meta-X-Amz-Meta-A": "nested",
				}
				for k, v := range want {
					if got := strings.Join(req.Header.Values(k), "|"); got != v {
						t.Errorf("%s: %q, want %q", k, got, v)
					}
				}
				if enc := req.Header.Get("Content-Encoding"); strings.Trim(strings.ReplaceAll(enc, "aws-chunked", ""), ",") != "gzip" {
					t.Errorf("Content-Encoding %q", enc)
				}
				if !strings.Contains(r.bodies[0], "body") {
					t.Errorf("body %q", r.bodies[0])
				}
				if !slices.ContainsFunc(slices.Collect(maps.Keys(req.Header)), func(k string) bool {
					return strings.HasPrefix(k, "X-Amz-Checksum-Crc32") || k == "X-Amz-Trailer"
				}) {
					t.Errorf("no checksum: %v", slices.Sorted(maps.Keys(req.Header)))
				}
			})
		}
		t.Run(sdk.name+"/create", func(t *testing.T) {
			r := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("ETag", `"e"`) })
			s := sdk.open(client{url: r.URL}, t)
			_, err := s.Put(t.Context(), "k", guard.PutRequest{Condition: guard.IfAbsent()})
			if err != nil {
				t.Fatal(err)
			}
			h := r.one(t).Header
			if h.Get("If-None-Match") != "*" || h.Get("If-Match") != "" {
				t.Errorf("If-None-Match %q, If-Match %q", h.Get("If-None-Match"), h.Get("If-Match"))
			}
			for _, k := range []string{"Expires", "X-Amz-Website-Redirect-Location", "X-Amz-Request-Payer", "X-Amz-Tagging", "X-Amz-Server-Side-Encryption", "X-Amz-Storage-Class"} {
				if h.Get(k) != "" {
					t.Errorf("%s: %q, nobody asked", k, h.Get(k))
				}
			}
		})
	}
}

func TestRefusedLocally(t *testing.T) {
	r := serve(t, func(http.ResponseWriter, *http.Request) {})
	ok := guard.PutRequest{Condition: guard.IfAbsent()}
	for name, change := range map[string]func(*guard.PutRequest){
		"no condition":     func(r *guard.PutRequest) { r.Condition = guard.Condition{} },
		"any object":       func(r *guard.PutRequest) { r.Condition = guard.IfMatch("*") },
		"header injection": func(r *guard.PutRequest) { r.Headers.ContentType = "a\r\nx-amz-acl: public-read" },
		"expires":          func(r *guard.PutRequest) { r.Headers.Expires = "soon\n" },
		"website redirect": func(r *guard.PutRequest) { r.Headers.WebsiteRedirect = "/é" },
		"metadata value":   func(r *guard.PutRequest) { r.Headers.Metadata = map[string]string{"a": "é"} },
		"metadata key":     func(r *guard.PutRequest) { r.Headers.Metadata = map[string]string{"A": "e"} },
		"key without sse":  func(r *guard.PutRequest) { r.SSEKMSKeyID = "key" },
	} {
		for _, sdk := range sdks {
			t.Run(sdk.name+"/"+name, func(t *testing.T) {
				req := ok
				change(&req)
				_, err := sdk.open(client{url: r.URL}, t).Put(t.Context(), "k", req)
				only(t, "put", err, guard.ErrRejected)
				contains(t, err, "put s3://bucket/k: refused before it was sent: ")
			})
		}
	}
	for _, sdk := range sdks {
		s := sdk.open(client{url: r.URL}, t)
		for _, key := range []string{"", "a\xff", strings.Repeat("k", 1025)} {
			_, err := s.Put(t.Context(), key, ok)
			only(t, "put", err, guard.ErrRejected)
			_, err = s.Head(t.Context(), key, guard.HeadOptions{})
			only(t, "head", err, guard.ErrRejected)
			_, _, err = s.Get(t.Context(), key, guard.ReadOptions{})
			only(t, "get", err, guard.ErrRejected)
			_, err = s.Tags(t.Context(), key, "")
			only(t, "tags", err, guard.ErrRejected)
			_, err = s.CreateUpload(t.Context(), key, guard.UploadRequest{})
			only(t, "create", err, guard.ErrRejected)
			only(t, "abort", s.AbortUpload(t.Context(), guard.Upload{Key: key, ID: "id"}), guard.ErrRejected)
			if key == "" {
				continue // that is every key
			}
			for _, err := range guard.Versions(t.Context(), s, key) {
				only(t, "versions", err, guard.ErrRejected)
			}
		}
	}
	if n := len(r.requests()); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

func TestNotSent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refusing := "http://" + l.Addr().String()
	_ = l.Close()
	fine := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("ETag", `"e"`) })
	stranger := httptest.NewTLSServer(fine.Config.Handler)
	defer stranger.Close()
	stranger.Config.ErrorLog = log.New(io.Discard, "", 0) // it complains of what we are here for
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	dead := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	for _, c := range []struct {
		name   string
		client client
		ctx    func() (context.Context, context.CancelFunc)
		cause  error
	}{
		{name: "refused", client: client{url: refusing, retries: 5}},
		{name: "refused, silent transport", client: client{url: refusing, transport: silent{http.DefaultTransport}}},
		{name: "no such host", client: client{url: "http://s3fence.invalid:9000"}},
		{name: "unknown certificate", client: client{url: stranger.URL, transport: &http.Transport{}}},
		{name: "no credentials", client: client{url: fine.URL, noCreds: true, retries: 5}, cause: errNoCreds},
		{name: "cancelled before", client: client{url: fine.URL}, cause: context.Canceled,
			ctx: func() (context.Context, context.CancelFunc) { return cancelled, func() {} }},
		{name: "timed out while connecting", client: client{url: fine.URL, transport: dead}, cause: context.DeadlineExceeded,
			ctx: func() (context.Context, context.CancelFunc) {
				return context.WithTimeout(t.Context(), 50*time.Millisecond)
			}},
	} {
		for _, sdk := range sdks {
			t.Run(sdk.name+"/"+c.name, func(t *testing.T) {
				s := sdk.open(c.client, t)
				ctx := t.Context()
				if c.ctx != nil {
					var cancel context.CancelFunc
					ctx, cancel = c.ctx()
					defer cancel()
				}
				err := create(ctx, s)
				if c.client.noCreds { // nothing was sent, and trying again won't help
					if !errors.Is(err, guard.ErrNotSent) || !errors.Is(err, guard.ErrDenied) {
						t.Errorf("put: %v", err)
					}
				} else {
					only(t, "put", err, guard.ErrNotSent)
				}
				if c.cause != nil && !errors.Is(err, c.cause) {
					t.Errorf("the cause %v is out of reach: %v", c.cause, err)
				}
			})
		}
	}
	if n := len(fine.requests()); n != 0 {
		t.Errorf("%d requests arrived", n)
	}
}

// silent is a transport that tells no httptrace anything.
type silent struct{ http.RoundTripper }

func (s silent) RoundTrip(r *http.Request) (*http.Response, error) {
	return s.RoundTripper.RoundTrip(r.WithContext(context.WithoutCancel(context.Background())))
}

// broken answers nothing useful, after the request has left.
type broken struct{ err error }

func (b broken) RoundTrip(*http.Request) (*http.Response, error) { return nil, b.err }

func TestUnknown(t *testing.T) {
	cut := func(before string) *recorder {
		return serve(t, func(w http.ResponseWriter, _ *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.WriteString(c, before)
			_ = c.Close()
		})
	}
	release := make(chan struct{})
	hanging := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-release:
		}
	})
	defer close(release)
	for _, c := range []struct {
		name   string
		client client
		wait   time.Duration
		cause  error
	}{
		{name: "no answer", client: client{url: cut("").URL, retries: 5}},
		{name: "half a status line", client: client{url: cut("HTTP/1.1 20").URL, retries: 5}},
		{name: "half an error body", client: client{url: cut("HTTP/1.1 500 x\r\nContent-Length: 100\r\n\r\n<Err").URL, retries: 5}},
		{name: "no ETag", client: client{url: cut("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").URL}},
		{name: "no answer in time", client: client{url: hanging.URL, retries: 5}, wait: 200 * time.Millisecond, cause: context.DeadlineExceeded},
		{name: "silent transport", client: client{url: "http://localhost", transport: broken{io.ErrUnexpectedEOF}}},
		{name: "silent transport, reset", client: client{url: "http://localhost", transport: broken{
			&net.OpError{Op: "read", Err: errors.New("connection reset by peer")},
		}}},
	} {
		for _, sdk := range sdks {
			t.Run(sdk.name+"/"+c.name, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				if c.wait != 0 {
					ctx, cancel = context.WithTimeout(ctx, c.wait)
				}
				defer cancel()
				err := create(ctx, sdk.open(c.client, t))
				only(t, "put", err, nil)
				if c.cause != nil && !errors.Is(err, c.cause) {
					t.Errorf("the cause %v is out of reach: %v", c.cause, err)
				}
			})
		}
	}
	if n := len(hanging.requests()); n != 2 {
		t.Errorf("%d requests to a server that never answers, want one from each SDK", n)
	}
}

// dropper is a client around the SDK's that forgets the options of a call.
type dropper struct{ *s3.Client }

func (d dropper) PutObject(context.Context, *s3.PutObjectInput, ...func(*s3.Options)) (*s3.PutObjectOutput, error) {
	return nil, errors.New("who knows")
}

func TestClientThatDropsOptions(t *testing.T) {
	only(t, "put", create(t.Context(), s3store.New(dropper{}, "bucket", nil)), nil)
}

func objectAnswer(body string, h map[string]string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("ETag", `"e"`)
		w.Header().Set("Last-Modified", "Wed, 02 Dec 2026 10:00:00 GMT")
		w.Header().Set("Content-Length", fmt.Sprint(len(body)))
		for k, v := range h {
			w.Header().Set(k, v)
		}
		_, _ = io.WriteString(w, body)
	}
}

func TestHeadAndGetOnTheWire(t *testing.T) {
	for _, sdk := range sdks {
		t.Run(sdk.name, func(t *testing.T) {
			// Bytes that say they are gzip and are not: unpacking would fail.
			r := serve(t, objectAnswer("123456789", map[string]string{
				"Content-Type": "text/plain", "Content-Encoding": "gzip", "Content-Disposition": "inline",
				"Content-Language": "en", "Cache-Control": "no-store", "x-amz-storage-class": "GLACIER_IR",
				"Expires": "Wed, 02 Dec 2026 11:00:00 GMT", "x-amz-website-redirect-location": "/there",
				"x-amz-server-side-encryption-aws-kms-key-id": "key-1",
				"x-amz-meta-fence-token":                      "r1", "x-amz-meta-empty": "", "x-amz-version-id": "v1",
				"x-amz-server-side-encryption": "aws:kms", "x-amz-checksum-crc32c": "4waSgw==", "x-amz-checksum-type": "FULL_OBJECT",
			}))
			want := guard.Object{
				ETag: `"e"`, Size: 9, VersionID: "v1", LastModified: time.Date(2026, 12, 2, 10, 0, 0, 0, time.UTC), SSE: "aws:kms", SSEKMSKeyID: "key-1",
				Headers: guard.Headers{
					ContentType: "text/plain", ContentEncoding: "gzip", ContentDisposition: "inline", ContentLanguage: "en",
					CacheControl: "no-store", Expires: "Wed, 02 Dec 2026 11:00:00 GMT", WebsiteRedirect: "/there",
					StorageClass: "GLACIER_IR", Metadata: map[string]string{"fence-token": "r1", "empty": ""},
				},
			}
			s := sdk.open(client{url: r.URL, opts: &s3store.Options{RequestPayer: true}, transport: &http.Transport{}}, t)
			obj, err := s.Head(t.Context(), "k", guard.HeadOptions{})
			if err != nil || fmt.Sprint(obj) != fmt.Sprint(want) {
				t.Errorf("head: %v\n got %+v\nwant %+v", err, obj, want)
			}
			want.Checksum = guard.Checksum{Algorithm: "CRC32C", Value: "4waSgw=="}
			obj, body, err := s.Get(t.Context(), "k", guard.ReadOptions{})
			if err != nil || fmt.Sprint(obj) != fmt.Sprint(want) {
				t.Fatalf("get: %v\n got %+v\nwant %+v", err, obj, want)
			}
			if b, err := io.ReadAll(body); string(b) != "123456789" || err != nil {
				t.Errorf("body %q %v", b, err)
			}
			_ = body.Close()
			obj, err = s.Head(t.Context(), "k", guard.HeadOptions{Checksum: true, VersionID: "v1"})
			if err != nil || fmt.Sprint(obj) != fmt.Sprint(want) {
				t.Errorf("head with checksum: %v\n got %+v\nwant %+v", err, obj, want)
			}
			for i, w := range []struct{ method, mode, version string }{{"HEAD", "", ""}, {"GET", "ENABLED", ""}, {"HEAD", "ENABLED", "v1"}} {
				req := r.requests()[i]
				got := []string{req.Method, req.Header.Get("x-amz-checksum-mode"), req.URL.Query().Get("versionId"), req.Header.Get("x-amz-request-payer")}
				if !slices.Equal(got, []string{w.method, w.mode, w.version, "requester"}) {
					t.Errorf("request %d: %q", i, got)
				}
				if enc := req.Header.Get("Accept-Encoding"); w.method == "GET" && enc != "identity" {
					t.Errorf("Accept-Encoding %q", enc)
				}
			}
		})
	}
}

func TestGetVerifies(t *testing.T) {
	sums := map[string]string{ // of 123456789
		"crc32": "y/Q5Jg==", "crc32c": "4waSgw==", "crc64nvme": "rosUhgp5mIg=",
		"sha1": "98O8HYCOBHMq32eZZczDTKeuNEE=", "sha256": "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU=",
	}
	for _, sdk := range sdks {
		for alg, sum := range sums {
			for _, kind := range []string{"FULL_OBJECT", ""} {
				for body, good := range map[string]bool{"123456789": true, "123456780": false} {
					t.Run(fmt.Sprintf("%s/%s/%s/%s", sdk.name, alg, kind, body), func(t *testing.T) {
						h := map[string]string{"x-amz-checksum-" + alg: sum}
						if kind != "" {
							h["x-amz-checksum-type"] = kind
						}
						read(t, sdk.open(client{url: serve(t, objectAnswer(body, h)).URL}, t), good)
					})
				}
			}
		}
		t.Run(sdk.name+"/composite", func(t *testing.T) {
			for _, h := range []map[string]string{
				{"x-amz-checksum-crc32c": "AAAAAA==-2"},
				{"x-amz-checksum-crc32c": "AAAAAA==-2", "x-amz-checksum-type": "COMPOSITE"},
			} {
				s := sdk.open(client{url: serve(t, objectAnswer("123456789", h)).URL}, t)
				read(t, s, true)
				obj, err := s.Head(t.Context(), "k", guard.HeadOptions{Checksum: true})
				if err != nil || obj.Checksum != (guard.Checksum{}) {
					t.Errorf("head: %+v %v", obj.Checksum, err)
				}
			}
		})
		t.Run(sdk.name+"/short", func(t *testing.T) {
			r := serve(t, func(w http.ResponseWriter, req *http.Request) {
				c, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nETag: \"e\"\r\nLast-Modified: Wed, 02 Dec 2026 10:00:00 GMT\r\nContent-Length: 9\r\n\r\n12345")
				_ = c.Close()
			})
			read(t, sdk.open(client{url: r.URL}, t), false)
		})
	}
}

func read(t *testing.T, s guard.Store, good bool) {
	t.Helper()
	_, body, err := s.Get(t.Context(), "k", guard.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = body.Close() }()
	// One byte at a time, past the end: an error stays one.
	b := make([]byte, 1)
	for err == nil {
		_, err = body.Read(b)
	}
	if _, again := body.Read(b); (again == io.EOF) != good || (err == io.EOF) != good {
		t.Errorf("read ends with %v, then %v; the body is good: %t", err, again, good)
	}
}

func TestDeleteMarker(t *testing.T) {
	status := 404
	r := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("x-amz-delete-marker", "true")
		w.Header().Set("x-amz-version-id", "d1")
		w.WriteHeader(status)
	})
	for _, sdk := range sdks {
		t.Run(sdk.name, func(t *testing.T) {
			s := sdk.open(client{url: r.URL}, t)
			status = 404
			obj, err := s.Head(t.Context(), "k", guard.HeadOptions{})
			only(t, "head", err, guard.ErrNotFound)
			if !obj.DeleteMarker || obj.VersionID != "d1" {
				t.Errorf("head: %+v", obj)
			}
			obj, _, err = s.Get(t.Context(), "k", guard.ReadOptions{})
			only(t, "get", err, guard.ErrNotFound)
			if sdk.name == "aws" && !obj.DeleteMarker {
				t.Errorf("get: %+v", obj)
			}
			status = 405
			obj, err = s.Head(t.Context(), "k", guard.HeadOptions{VersionID: "d1"})
			only(t, "head by version", err, guard.ErrNotFound)
			if !obj.DeleteMarker {
				t.Errorf("head by version: %+v", obj)
			}
		})
	}
}

func TestVersionsPages(t *testing.T) {
	entry := func(kind, key, id, latest, at string) string {
		return fmt.Sprintf("<%s><Key>%s</Key><VersionId>%s</VersionId><IsLatest>%s</IsLatest><LastModified>2026-12-02T10:00:%sZ</LastModified><ETag>&quot;%s&quot;</ETag></%s>",
			kind, key, id, latest, at, id, kind)
	}
	pages := map[string]string{
		"": "<IsTruncated>true</IsTruncated><NextKeyMarker>a%2Bb+c</NextKeyMarker><NextVersionIdMarker>4</NextVersionIdMarker>" +
			entry("DeleteMarker", "a%2Bb+c", "6", "true", "06.000") + entry("Version", "a%2Bb+c", "5", "false", "05.000") +
			entry("DeleteMarker", "a%2Bb+c", "4", "false", "04.000"),
		"4": "<IsTruncated>true</IsTruncated><NextKeyMarker>a%2Bb+c%2F</NextKeyMarker><NextVersionIdMarker>x</NextVersionIdMarker>" +
			entry("Version", "a%2Bb+c", "3", "false", "03.000") + entry("Version", "a%2Bb+c", "2", "false", "02.000") +
			entry("Version", "a%2Bb+c%2F", "x", "true", "01.000"),
	}
	r := serve(t, func(w http.ResponseWriter, req *http.Request) {
		q := req.URL.Query()
		page, ok := pages[q.Get("version-id-marker")]
		if !ok || q.Get("prefix") != "a+b c" || q.Get("encoding-type") != "url" || ok && q.Get("version-id-marker") != "" && q.Get("key-marker") != "a+b c" {
			t.Errorf("query %v", q)
		}
		fmt.Fprintf(w, "<ListVersionsResult><Name>bucket</Name><EncodingType>url</EncodingType>%s</ListVersionsResult>", page)
	})
	for _, sdk := range sdks {
		t.Run(sdk.name, func(t *testing.T) {
			s := sdk.open(client{url: r.URL}, t)
			before := len(r.requests())
			var got []string
			for v, err := range guard.Versions(t.Context(), s, "a+b c") {
				if err != nil {
					t.Fatal(err)
				}
				if v.DeleteMarker != (v.ID == "6" || v.ID == "4") || v.Latest != (v.ID == "6") {
					t.Errorf("%+v", v)
				}
				if len(got) == 1 && len(r.requests()) != before+1 {
					t.Error("the second page was fetched before it was asked for")
				}
				got = append(got, v.ID)
			}
			if want := []string{"6", "5", "4", "3", "2"}; !slices.Equal(got, want) {
				t.Errorf("versions %v, want %v", got, want)
			}
			if n := len(r.requests()) - before; n != 2 {
				t.Errorf("%d requests, want two: the third page is past the key", n)
			}
		})
	}
}

func TestVersionsEndless(t *testing.T) {
	r := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<ListVersionsResult><Name>bucket</Name><IsTruncated>true</IsTruncated></ListVersionsResult>")
	})
	n := 0
	for _, err := range guard.Versions(t.Context(), (client{url: r.URL}).aws(t), "k") {
		if err == nil {
			t.Error("a version out of nowhere")
		}
		n++
	}
	if n != 1 {
		t.Errorf("yielded %d times, want one error", n)
	}
}

func TestSettings(t *testing.T) {
	type answer struct {
		status int
		body   string
	}
	failed := func(status int, code string) answer {
		return answer{status, "<Error><Code>" + code + "</Code></Error>"}
	}
	vers := func(status string) answer {
		return answer{200, "<VersioningConfiguration>" + status + "</VersioningConfiguration>"}
	}
	kms := answer{200, "<ServerSideEncryptionConfiguration><Rule><ApplyServerSideEncryptionByDefault><SSEAlgorithm>aws:kms</SSEAlgorithm></ApplyServerSideEncryptionByDefault></Rule></ServerSideEncryptionConfiguration>"}
	none := failed(404, "ServerSideEncryptionConfigurationNotFoundError")
	for _, c := range []struct {
		name       string
		unique     bool
		versioning answer
		encryption answer
		want       guard.Settings
		err        error
		fails      bool
	}{
		{name: "never set", versioning: vers(""), encryption: none, want: guard.Settings{Versioning: guard.VersioningOff, Requests: 2}},
		{name: "enabled", versioning: vers("<Status>Enabled</Status>"), encryption: kms,
			want: guard.Settings{Versioning: guard.VersioningOn, DefaultSSE: "aws:kms", Requests: 2}},
		{name: "suspended", versioning: vers("<Status>Suspended</Status>"), encryption: none,
			want: guard.Settings{Versioning: guard.VersioningOn, Requests: 2}},
		{name: "denied", versioning: failed(403, "AccessDenied"), encryption: failed(403, "AccessDenied"), want: guard.Settings{Requests: 2}},
		{name: "unsupported", versioning: failed(501, "NotImplemented"), encryption: failed(405, "MethodNotAllowed"), want: guard.Settings{Requests: 2}},
		{name: "unique", unique: true, versioning: vers(""), encryption: failed(500, "InternalError"),
			want: guard.Settings{Versioning: guard.VersioningOff, UniqueETags: true, Requests: 1}},
		{name: "no bucket", versioning: failed(404, "NoSuchBucket"), want: guard.Settings{Requests: 1}, err: guard.ErrNoBucket, fails: true},
		{name: "out of order", versioning: failed(500, "InternalError"), want: guard.Settings{Requests: 1}, fails: true},
		{name: "out of order later", versioning: vers(""), encryption: failed(503, "SlowDown"),
			want: guard.Settings{Versioning: guard.VersioningOff, Requests: 2}, fails: true},
	} {
		for _, sdk := range sdks {
			t.Run(sdk.name+"/"+c.name, func(t *testing.T) {
				r := serve(t, func(w http.ResponseWriter, req *http.Request) {
					a := c.versioning
					if req.URL.Query().Has("encryption") {
						a = c.encryption
					}
					w.WriteHeader(a.status)
					_, _ = io.WriteString(w, a.body)
				})
				got, err := sdk.open(client{url: r.URL, opts: &s3store.Options{UniqueETags: c.unique}}, t).Settings(t.Context())
				if got != c.want || (err != nil) != c.fails || c.err != nil && !errors.Is(err, c.err) {
					t.Errorf("got %+v %v, want %+v %v", got, err, c.want, c.err)
				}
				if n := len(r.requests()); n != c.want.Requests {
					t.Errorf("%d requests, %d counted", n, c.want.Requests)
				}
			})
		}
	}
}

func TestURL(t *testing.T) {
	for _, sdk := range sdks {
		if u := sdk.open(client{url: "http://localhost"}, t).URL("a/b"); u != "s3://bucket/a/b" {
			t.Error(u)
		}
	}
}
