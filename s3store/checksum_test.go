package s3store_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/minio/minio-go/v7"
	miniocreds "github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/localstack"
	"github.com/s3fence/s3fence/localstack/servers"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
	"github.com/s3fence/s3fence/s3store"
)

// What protects a body of one PUT: over TLS the CRC alone, which then comes
// behind the body, so that it is read once.
func TestPutChecksumOnTheWire(t *testing.T) {
	const sum, signed, trailer = "4waSgw==", "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
	const supported, required = aws.RequestChecksumCalculationWhenSupported, aws.RequestChecksumCalculationWhenRequired
	for _, tt := range []struct {
		name                       string
		open                       func(client, *testing.T) guard.Store
		checksums                  aws.RequestChecksumCalculation
		tls                        bool
		header, trailer, sha, body string
	}{
		{"aws supported", client.aws, supported, false, sum, "", signed, "123456789"},
		{"aws supported TLS", client.aws, supported, true, "", "x-amz-checksum-crc32c", trailer, "9\r\n123456789\r\n0\r\nx-amz-checksum-crc32c:" + sum + "\r\n\r\n"},
		{"aws required", client.aws, required, false, "", "", signed, "123456789"},
		{"aws required TLS", client.aws, required, true, "", "", "UNSIGNED-PAYLOAD", "123456789"},
		{"minio-go", client.minio, 0, false, sum, "", signed, "123456789"},
		{"minio-go TLS", client.minio, 0, true, sum, "", "UNSIGNED-PAYLOAD", "123456789"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &recorder{}
			h := r.record(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("ETag", `"e"`) })
			if tt.tls {
				r.Server = httptest.NewTLSServer(h)
			} else {
				r.Server = httptest.NewServer(h)
			}
			t.Cleanup(r.Close)
			s := tt.open(client{url: r.URL, transport: r.Client().Transport, checksums: tt.checksums}, t)
			if _, err := s.Put(t.Context(), "k", guard.PutRequest{Condition: guard.IfAbsent(), Body: guard.Bytes([]byte("123456789"))}); err != nil {
				t.Fatal(err)
			}
			got := r.one(t).Header
			for name, want := range map[string]string{
				"X-Amz-Checksum-Crc32c": tt.header, "X-Amz-Trailer": tt.trailer, "X-Amz-Content-Sha256": tt.sha, "X-Amz-Checksum-Crc32": "",
			} {
				if got.Get(name) != want {
					t.Errorf("%s: %q, want %q", name, got.Get(name), want)
				}
			}
			if r.bodies[0] != tt.body {
				t.Errorf("body %q, want %q", r.bodies[0], tt.body)
			}
		})
	}
}

// The client's setting leaves the comparison out, and only that one.
func TestGetWhenRequired(t *testing.T) {
	for validation, mode := range map[aws.ResponseChecksumValidation]string{
		aws.ResponseChecksumValidationUnset:         "ENABLED",
		aws.ResponseChecksumValidationWhenSupported: "ENABLED",
		aws.ResponseChecksumValidationWhenRequired:  "",
	} {
		r := serve(t, objectAnswer("123456780", map[string]string{"x-amz-checksum-crc32c": "4waSgw=="}))
		_, body, err := client{url: r.URL, validation: validation}.aws(t).Get(t.Context(), "k", guard.ReadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.ReadAll(body)
		_ = body.Close()
		if got := r.one(t).Header.Get("x-amz-checksum-mode"); got != mode || (err != nil) != (mode != "") {
			t.Errorf("%d: mode %q, %v", validation, got, err)
		}
	}
}

// The whole object's checksum is made of the parts' at completion.
func TestCompleteWithWholeChecksum(t *testing.T) {
	part := func(n int, algorithm, value string, size int64) guard.Part {
		return guard.Part{Number: n, ETag: `"p"`, Size: size, Checksum: guard.Checksum{Algorithm: algorithm, Value: value}}
	}
	// Of 1234 and 56789.
	crc32c := []guard.Part{part(1, "CRC32C", "9jr07g==", 4), part(2, "CRC32C", "g7Vl2A==", 5)}
	for _, tt := range []struct {
		name  string
		up    guard.Upload
		asked guard.Checksum
		parts []guard.Part
		want  string
	}{
		{"CRC32", guard.Upload{Checksum: "CRC32"}, guard.Checksum{}, []guard.Part{part(1, "CRC32", "m+Pgow==", 4), part(2, "CRC32", "Ex2gcA==", 5)}, "y/Q5Jg=="},
		{"CRC32C", guard.Upload{Checksum: "CRC32C"}, guard.Checksum{}, crc32c, "4waSgw=="},
		{"one part", guard.Upload{Checksum: "CRC64NVME"}, guard.Checksum{}, []guard.Part{part(1, "CRC64NVME", "rosUhgp5mIg=", 9)}, "rosUhgp5mIg="},
		{"asked for", guard.Upload{Checksum: "CRC32C"}, guard.Checksum{Algorithm: "CRC32C", Value: "AAAAAA=="}, crc32c, "AAAAAA=="},
		{"none", guard.Upload{}, guard.Checksum{}, crc32c, ""},
		{"composite", guard.Upload{Checksum: "CRC32C", Composite: true}, guard.Checksum{}, crc32c, ""},
		{"a part without", guard.Upload{Checksum: "CRC32C"}, guard.Checksum{}, []guard.Part{crc32c[0], part(2, "", "", 5)}, ""},
		{"a part of unknown size", guard.Upload{Checksum: "CRC32C"}, guard.Checksum{}, []guard.Part{crc32c[0], part(2, "CRC32C", "g7Vl2A==", 0)}, ""},
	} {
		for _, sdk := range sdks {
			r := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, "<R><Bucket>bucket</Bucket><ETag>\"e\"</ETag></R>")
			})
			tt.up.Key, tt.up.ID = "k", "id"
			_, err := sdk.open(client{url: r.URL}, t).CompleteUpload(t.Context(), tt.up, guard.CompleteRequest{
				Condition: guard.IfAbsent(), Parts: tt.parts, Checksum: tt.asked,
			})
			if err != nil {
				t.Fatal(err)
			}
			h := r.one(t).Header
			kind := ""
			if tt.want != "" {
				kind = "FULL_OBJECT"
			}
			if got := h.Get("X-Amz-Checksum-Type"); got != kind {
				t.Errorf("%s %s: type %q, want %q", sdk.name, tt.name, got, kind)
			}
			for _, name := range []string{"CRC32", "CRC32C", "CRC64NVME"} {
				want := ""
				if tt.parts[0].Checksum.Algorithm == name {
					want = tt.want
				}
				if got := h.Get("X-Amz-Checksum-" + name); got != want {
					t.Errorf("%s %s: %s %q, want %q", sdk.name, tt.name, name, got, want)
				}
			}
		}
	}
}

// A store that does not know of full-object checksums takes the algorithm for
// the other kind, and says no type.
func TestCreateUploadComposite(t *testing.T) {
	for kind, want := range map[string]bool{"FULL_OBJECT": false, "COMPOSITE": true, "": true} {
		r := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("x-amz-checksum-type", kind)
			_, _ = io.WriteString(w, "<R><UploadId>u</UploadId></R>")
		})
		up, err := client{url: r.URL}.aws(t).CreateUpload(t.Context(), "k", guard.UploadRequest{Checksum: "CRC32C"})
		if err != nil || up.Checksum != "CRC32C" || up.Composite != want {
			t.Errorf("%q: %+v, %v", kind, up, err)
		}
	}
}

// A flipper stands before a server and speaks TLS, so that no signature covers
// the bodies: the checksums alone protect them. It flips a bit in the middle of
// those that damage says.
type flipper struct {
	*httptest.Server
	damage atomic.Pointer[func(*http.Request) bool]
}

func (f *flipper) flip(damage func(*http.Request) bool) { f.damage.Store(&damage) }

func newFlipper(t *testing.T, to *servers.Server) *flipper {
	t.Helper()
	u, err := url.Parse(to.URL)
	if err != nil {
		t.Fatal(err)
	}
	f := &flipper{}
	f.flip(func(*http.Request) bool { return false })
	damaged := func(body io.ReadCloser) (io.ReadCloser, error) {
		b, err := io.ReadAll(body)
		if len(b) > 0 {
			b[len(b)/2] ^= 1
		}
		return io.NopCloser(bytes.NewReader(b)), errors.Join(err, body.Close())
	}
	f.Server = httptest.NewTLSServer(&httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(u)
			p.Out.Host = p.In.Host // which is signed
			if p.In.Method == http.MethodPut && (*f.damage.Load())(p.In) {
				p.Out.Body, err = damaged(p.Out.Body)
				if err != nil {
					t.Error(err)
				}
			}
		},
		ModifyResponse: func(res *http.Response) (err error) {
			if res.Request.Method == http.MethodGet && (*f.damage.Load())(res.Request) {
				res.Body, err = damaged(res.Body)
			}
			return err
		},
	})
	t.Cleanup(f.Close)
	return f
}

// open returns a bucket of s behind the flipper, through both SDKs.
func (f *flipper) open(t *testing.T, s *servers.Server, bucket string) map[string]guard.Store {
	t.Helper()
	u, err := url.Parse(f.URL)
	if err != nil {
		t.Fatal(err)
	}
	m, err := minio.New(u.Host, &minio.Options{
		Creds: miniocreds.NewStaticV4(s.AccessKey, s.SecretKey, ""), Secure: true, Region: s.Region,
		Transport: f.Client().Transport, MaxRetries: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	return map[string]guard.Store{
		"aws": s3store.New(s3.New(serverstest.S3Client(s).Options(), func(o *s3.Options) {
			o.BaseEndpoint, o.HTTPClient = &f.URL, f.Client()
		}), bucket, nil),
		"minio-go": s3store.NewMinIO(m, bucket, nil),
	}
}

// newToken returns a token of a counter of its own.
func newToken(t *testing.T) guard.Token {
	t.Helper()
	l, err := localstack.Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if _, _, err := l.CreateScope(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	tok, err := l.Issue(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(b)
	return b
}

// crc32cOf is computed apart from what is tested.
func crc32cOf(b []byte) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))))
}

// What is in one part and what is in several.
var bodies = map[string][]byte{"small": randomBytes(20 << 10), "parts": randomBytes(17<<20 + 5)}

// The store has the checksum of the whole object, whatever the way it came, and
// what is read is compared with it.
func TestChecksumKept(t *testing.T) {
	s := serverstest.SharedMinIO(t)
	admin := serverstest.S3Client(s)
	f := newFlipper(t, s)
	bucket := newBucket(t, admin, false)
	tok := newToken(t)
	for sdk, store := range f.open(t, s, bucket) {
		for name, body := range bodies {
			t.Run(sdk+"/"+name, func(t *testing.T) {
				f.flip(func(*http.Request) bool { return false })
				g, key := guard.New(store, &guard.Options{MaxAttempts: 2}), sdk+name
				if _, err := g.Put(t.Context(), tok, key, guard.Bytes(body), nil); err != nil {
					t.Fatal(err)
				}
				head, err := admin.HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: &bucket, Key: &key, ChecksumMode: types.ChecksumModeEnabled})
				if err != nil || head.ChecksumType != types.ChecksumTypeFullObject || aws.ToString(head.ChecksumCRC32C) != crc32cOf(body) {
					t.Errorf("the store has %s %s, %v, want %s", head.ChecksumType, aws.ToString(head.ChecksumCRC32C), err, crc32cOf(body))
				}
				if multipart := strings.Contains(aws.ToString(head.ETag), "-"); multipart != (name == "parts") {
					t.Errorf("ETag %s", aws.ToString(head.ETag))
				}
				download := func() error {
					to, err := os.Create(filepath.Join(t.TempDir(), "f"))
					if err != nil {
						t.Fatal(err)
					}
					defer to.Close()
					_, err = g.Download(t.Context(), key, to, &guard.DownloadOptions{PartSize: 5 << 20})
					if b, rerr := os.ReadFile(to.Name()); err == nil && (rerr != nil || !bytes.Equal(b, body)) {
						t.Errorf("%d bytes, %v", len(b), rerr)
					}
					return err
				}
				if err := download(); err != nil {
					t.Error(err)
				}
				var n atomic.Int64
				f.flip(func(r *http.Request) bool { return r.Method == http.MethodGet && n.Add(1) > 1 })
				if name == "small" { // comes in one answer
					n.Store(1)
				}
				if err := download(); err == nil || n.Load() < 2 {
					t.Errorf("damaged on the way, after %d answers: %v", n.Load(), err)
				}
			})
		}
	}
}

// What changed on its way to the store never becomes an object.
func TestDamagedOnTheWay(t *testing.T) {
	s := serverstest.SharedMinIO(t)
	admin := serverstest.S3Client(s)
	f := newFlipper(t, s)
	bucket := newBucket(t, admin, false)
	tok := newToken(t)
	for sdk, store := range f.open(t, s, bucket) {
		for name, body := range bodies {
			t.Run(sdk+"/"+name, func(t *testing.T) {
				g, key := guard.New(store, nil), sdk+name
				f.flip(func(r *http.Request) bool {
					return r.Method == http.MethodPut && (name == "small" || r.URL.Query().Get("partNumber") == "2")
				})
				_, err := g.Put(t.Context(), tok, key, guard.Bytes(body), nil)
				if !errors.Is(err, guard.ErrRejected) || errors.Is(err, guard.ErrOutcomeUnknown) {
					t.Errorf("%v", err)
				}
				t.Log(err)
				if _, err := store.Head(t.Context(), key, guard.HeadOptions{}); !errors.Is(err, guard.ErrNotFound) {
					t.Errorf("it is there: %v", err)
				}
				for up, err := range store.Uploads(t.Context(), key) {
					t.Errorf("left behind: %+v, %v", up, err)
				}
				f.flip(func(*http.Request) bool { return false })
				if _, err := g.Put(t.Context(), tok, key, guard.Bytes(body), nil); err != nil {
					t.Errorf("whole: %v", err)
				}
			})
		}
	}
}
