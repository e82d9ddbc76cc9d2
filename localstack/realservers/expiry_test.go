package realservers

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/audit"
	"github.com/s3fence/s3fence/localstack/servers"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
	"github.com/s3fence/s3fence/s3store"
)

// shortLived are credentials of MinIO's STS that end when the third part of an
// upload comes in: a proxy then answers all that they signed with ExpiredToken.
// They implement the providers of both SDKs, and know by themselves that they
// have ended.
type shortLived struct {
	first, next credentials.Value
	// lost is why there are no next ones.
	lost error

	mu    sync.Mutex
	parts int
}

func (s *shortLived) ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.parts >= 3
}

func (s *shortLived) now() (credentials.Value, error) {
	if !s.ended() {
		return s.first, nil
	}
	return s.next, s.lost
}

// Retrieve implements aws.CredentialsProvider.
func (s *shortLived) Retrieve(context.Context) (aws.Credentials, error) {
	v, err := s.now()
	return aws.Credentials{AccessKeyID: v.AccessKeyID, SecretAccessKey: v.SecretAccessKey, SessionToken: v.SessionToken}, err
}

// A minioProvider is shortLived for minio-go.
type minioProvider struct {
	*shortLived
	given bool // the next ones
}

func (p *minioProvider) Retrieve() (credentials.Value, error) {
	p.given = p.ended()
	return p.now()
}

func (p *minioProvider) RetrieveWithCredContext(*credentials.CredContext) (credentials.Value, error) {
	return p.Retrieve()
}

func (p *minioProvider) IsExpired() bool { return p.ended() && !p.given }

// before stands in front of m.
func (s *shortLived) before(t *testing.T, m *servers.Server) string {
	t.Helper()
	target, err := url.Parse(m.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host // it is signed
		},
		ErrorLog: log.New(io.Discard, "", 0), // requests that their client gave up
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("partNumber") {
			s.mu.Lock()
			s.parts++
			s.mu.Unlock()
		}
		if !s.ended() || !strings.Contains(r.Header.Get("Authorization"), "Credential="+s.first.AccessKeyID+"/") {
			proxy.ServeHTTP(w, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(http.StatusForbidden)
		if r.Method != http.MethodHead {
			_, _ = io.WriteString(w, "<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>")
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// assume takes credentials from MinIO's STS.
func assume(t *testing.T, m *servers.Server) credentials.Value {
	t.Helper()
	c, err := credentials.NewSTSAssumeRole(m.URL, credentials.STSAssumeRoleOptions{AccessKey: m.AccessKey, SecretKey: m.SecretKey})
	if err != nil {
		t.Fatal(err)
	}
	for {
		v, err := c.GetWithContext(&credentials.CredContext{Client: http.DefaultClient})
		if err == nil {
			return v
		}
		// Right after its start MinIO serves objects and no credentials yet.
		if !strings.Contains(err.Error(), "Server not initialized") || t.Context().Err() != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// Case 27: the credentials end at part 3. Where there are others the upload goes
// on with them. Where there are none, or the provider goes on giving the same,
// it fails with words that say so, nothing is at the key, and the upload, which
// can't be aborted without credentials, is named in the log for an audit to
// find.
func TestCredentialsExpire(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	for sdk, open := range map[string]func(t *testing.T, s *shortLived, bucket string) guard.Store{
		"aws": func(t *testing.T, s *shortLived, bucket string) guard.Store {
			o := serverstest.S3Client(serverstest.At(m, s.before(t, m))).Options()
			o.Credentials = s
			return s3store.New(s3.New(o), bucket, nil)
		},
		"minio-go": func(t *testing.T, s *shortLived, bucket string) guard.Store {
			c, err := minio.New(strings.TrimPrefix(s.before(t, m), "http://"), &minio.Options{
				Creds: credentials.New(&minioProvider{shortLived: s}), Region: m.Region, MaxRetries: 1,
			})
			if err != nil {
				t.Fatal(err)
			}
			return s3store.NewMinIO(c, bucket, nil)
		},
	} {
		for _, form := range []string{"file", "stream"} {
			for _, then := range []string{"others", "none", "the same"} {
				t.Run(sdk+"/"+form+"/"+then, func(t *testing.T) {
					s := &shortLived{first: assume(t, m)}
					says := "ExpiredToken"
					switch then {
					case "others":
						s.next = assume(t, m)
					case "none":
						says = "the metadata service is out"
						s.lost = errors.New(says)
					case "the same":
						s.next = s.first
					}
					bucket := newBucket(t, m)
					var logged bytes.Buffer
					g := guard.New(open(t, s, bucket), &guard.Options{Backoff: impatient.Backoff, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
					tok := take(t, local(t), "expire", 1)[0]
					o := &guard.PutOptions{PartSize: guard.MinPart, Concurrency: 3}
					body := newPattern(27).body(40 << 20)
					var res guard.Result
					var err error
					if form == "file" {
						res, err = g.Put(t.Context(), tok, "k", body, o)
					} else {
						res, err = g.PutStream(t.Context(), tok, "k", body.Reader(), o)
					}
					direct := sdks[sdk](t, m, bucket)
					var left []guard.Upload
					for up, uerr := range direct.Uploads(t.Context(), "") {
						if uerr != nil {
							t.Fatal(uerr)
						}
						left = append(left, up)
					}
					if then == "others" {
						if err != nil || res.Outcome != guard.Created || len(left) > 0 {
							t.Fatalf("%+v, %v, left behind %v", res, err, left)
						}
						_, r, err := direct.Get(t.Context(), "k", guard.ReadOptions{})
						if err != nil {
							t.Fatal(err)
						}
						defer r.Close()
						if sumOf(t, r) != sumOf(t, body.Reader()) {
							t.Error("it holds other bytes")
						}
						return
					}
					// Of those under way, any may be the first to learn of it.
					if err == nil || !strings.Contains(err.Error(), says) && !strings.Contains(err.Error(), "ExpiredToken") || guard.ReasonOf(err) != "" {
						t.Errorf("%v", err)
					}
					if _, err := direct.Head(t.Context(), "k", guard.HeadOptions{}); !errors.Is(err, guard.ErrNotFound) {
						t.Errorf("something is there: %v", err)
					}
					if len(left) != 1 || !strings.Contains(logged.String(), "a multipart upload was left behind") || !strings.Contains(logged.String(), left[0].ID) {
						t.Fatalf("left behind %v, told %s", left, &logged)
					}
					sum, err := audit.Run(t.Context(), direct, &audit.Options{AbortUploads: true, OlderThan: -1}, func(audit.Finding) error { return nil })
					if err != nil || sum.Aborted != 1 {
						t.Errorf("audit: %+v, %v", sum, err)
					}
				})
			}
		}
	}
}
