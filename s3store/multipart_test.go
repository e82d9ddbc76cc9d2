package s3store_test

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/smithy-go"
	"github.com/minio/minio-go/v7"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/s3store"
)

// calls are the requests that are neither Head, Get, Put nor about settings.
var calls = map[string]func(context.Context, guard.Store) error{
	"list": func(ctx context.Context, s guard.Store) error { return drain(s.List(ctx, guard.ListOptions{})) },
	"list versions": func(ctx context.Context, s guard.Store) error {
		return drain(s.List(ctx, guard.ListOptions{Versions: true}))
	},
	"tags": func(ctx context.Context, s guard.Store) error {
		_, err := s.Tags(ctx, "k", "")
		return err
	},
	"create": func(ctx context.Context, s guard.Store) error {
		_, err := s.CreateUpload(ctx, "k", guard.UploadRequest{})
		return err
	},
	"part": func(ctx context.Context, s guard.Store) error {
		_, err := s.UploadPart(ctx, upload, 1, guard.Bytes([]byte("body")))
		return err
	},
	"copy": func(ctx context.Context, s guard.Store) error {
		_, err := s.CopyPart(ctx, upload, 1, guard.CopySource{Key: "src", ETag: `"e"`})
		return err
	},
	"complete": complete,
	"abort":    func(ctx context.Context, s guard.Store) error { return s.AbortUpload(ctx, upload) },
	"uploads":  func(ctx context.Context, s guard.Store) error { return drain(s.Uploads(ctx, "")) },
}

func TestAnswersToListingsAndUploads(t *testing.T) {
	for _, c := range []struct {
		status int
		code   string
		want   error
	}{
		{404, "NoSuchUpload", guard.ErrNoUpload},
		{404, "NoSuchKey", guard.ErrNotFound},
		{404, "NoSuchBucket", guard.ErrNoBucket},
		{412, "PreconditionFailed", guard.ErrPreconditionFailed},
		{409, "ConditionalRequestConflict", guard.ErrConflict},
		{403, "AccessDenied", guard.ErrDenied},
		{501, "NotImplemented", guard.ErrUnsupported},
		{400, "InvalidPart", guard.ErrRejected},
		{400, "EntityTooSmall", guard.ErrRejected},
		{400, "BadDigest", guard.ErrRejected},
		{503, "SlowDown", nil},
		{500, "InternalError", nil},
		{500, "NoSuchUpload", nil},
	} {
		for _, sdk := range sdks {
			for name, call := range calls {
				t.Run(fmt.Sprintf("%s/%d-%s/%s", sdk.name, c.status, c.code, name), func(t *testing.T) {
					r := serve(t, func(w http.ResponseWriter, _ *http.Request) {
						w.WriteHeader(c.status)
						fmt.Fprintf(w, "<Error><Code>%s</Code><Message>words</Message></Error>", c.code)
					})
					retries := 5
					if sdk.name == "minio-go" { // whose repetitions have tests of their own
						retries = 1
					}
					err := call(t.Context(), sdk.open(client{url: r.URL, retries: retries}, t))
					only(t, name, err, c.want)
					r.one(t)
					var api smithy.APIError
					var resp minio.ErrorResponse
					if !errors.As(err, &api) && !errors.As(err, &resp) {
						t.Errorf("the SDK's error is out of reach of errors.As: %v", err)
					}
				})
			}
		}
	}
}

func TestListingsAndUploadsWithoutAnswer(t *testing.T) {
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			r := serve(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
			only(t, name, call(t.Context(), client{url: r.URL, retries: 5}.aws(t)), nil)
			r.one(t)
			only(t, name+" refused", call(t.Context(), client{url: "http://127.0.0.1:1", retries: 5}.aws(t)), guard.ErrNotSent)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			err := call(ctx, client{url: r.URL}.aws(t))
			only(t, name+" cancelled", err, guard.ErrNotSent)
			if !errors.Is(err, context.Canceled) {
				t.Errorf("cancelled: %v", err)
			}
			r.one(t)
		})
	}
}

// What a store that answers 200 before it knows may go on to say.
func TestCompleteAnswers(t *testing.T) {
	whole := `<CompleteMultipartUploadResult><Key>k</Key><ETag>"e"</ETag></CompleteMultipartUploadResult>`
	done := func(t *testing.T, r *recorder) {
		t.Helper()
		s := client{url: r.URL, retries: 5}.aws(t)
		only(t, "complete", complete(t.Context(), s), nil)
		r.one(t)
		_, err := s.CopyPart(t.Context(), upload, 1, guard.CopySource{Key: "src", ETag: `"e"`})
		only(t, "copy", err, nil)
	}
	for name, body := range map[string]string{
		"empty":          "",
		"blank":          "  \n ",
		"error":          "<Error><Code>InternalError</Code><Message>try again</Message></Error>",
		"refusal":        "<Error><Code>PreconditionFailed</Code></Error>",
		"gone":           "<Error><Code>NoSuchUpload</Code></Error>",
		"late error":     "<?xml version=\"1.0\"?>\n    <Error><Code>SlowDown</Code></Error>",
		"cut short":      whole[:len(whole)-20],
		"cut after ETag": whole[:strings.Index(whole, "</Comp")],
		"no ETag":        "<CompleteMultipartUploadResult><Key>k</Key></CompleteMultipartUploadResult>",
		"something else": "<html><body>fine</body></html>",
		"not XML":        "OK",
	} {
		t.Run(name, func(t *testing.T) {
			done(t, serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }))
		})
	}
	t.Run("connection cut", func(t *testing.T) {
		done(t, serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(whole)))
			_, _ = io.WriteString(w, whole[:len(whole)-1])
		}))
	})
	t.Run("whole", func(t *testing.T) {
		r := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("x-amz-version-id", "v2")
			w.Header().Set("x-amz-server-side-encryption", "aws:kms")
			_, _ = io.WriteString(w, "<?xml version=\"1.0\"?>\n   "+whole)
		})
		res, err := client{url: r.URL}.aws(t).CompleteUpload(t.Context(), upload, guard.CompleteRequest{
			Condition: guard.IfAbsent(), Parts: []guard.Part{{Number: 1, ETag: `"p"`}},
		})
		if err != nil || res != (guard.PutResult{ETag: `"e"`, VersionID: "v2", SSE: "aws:kms"}) {
			t.Errorf("%+v %v", res, err)
		}
		if h := r.one(t).Header; h.Get("If-None-Match") != "*" || h.Get("If-Match") != "" {
			t.Errorf("If-None-Match %q, If-Match %q", h.Get("If-None-Match"), h.Get("If-Match"))
		}
	})
}

func TestAnswersWithoutTheirPoint(t *testing.T) {
	r := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<R></R>") })
	s := client{url: r.URL}.aws(t)
	for _, name := range []string{"create", "part", "copy", "complete"} {
		only(t, name, calls[name](t.Context(), s), nil)
	}
}

func TestMultipartOnTheWire(t *testing.T) {
	const sha256 = "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225"
	ofPart := map[string]string{"": "", "CRC32": "y/Q5Jg==", "CRC32C": "4waSgw==", "CRC64NVME": "rosUhgp5mIg="}
	for _, checksums := range []aws.RequestChecksumCalculation{aws.RequestChecksumCalculationWhenSupported, aws.RequestChecksumCalculationWhenRequired} {
		for asked, value := range ofPart {
			t.Run(fmt.Sprintf("client=%d/checksum=%s", checksums, asked), func(t *testing.T) {
				sum := asked
				if checksums == aws.RequestChecksumCalculationWhenRequired {
					sum, value = "", "" // the client adds none
				}
				r := serve(t, func(w http.ResponseWriter, req *http.Request) {
					switch {
					case req.Method == http.MethodDelete:
						w.WriteHeader(http.StatusNoContent)
					case req.Header.Get("x-amz-copy-source") != "":
						_, _ = io.WriteString(w, `<CopyPartResult><ETag>"p2"</ETag><Checksum`+sum+`>AAAAAA==</Checksum`+sum+`></CopyPartResult>`)
					case req.Method == http.MethodPut:
						w.Header().Set("ETag", `"p1"`) // and the checksum is not repeated
					default:
						w.Header().Set("x-amz-checksum-type", req.Header.Get("x-amz-checksum-type"))
						_, _ = io.WriteString(w, "<R><UploadId>u/1</UploadId><ETag>\"e2\"</ETag></R>")
					}
				})
				s := client{url: r.URL, checksums: checksums, opts: &s3store.Options{RequestPayer: true}}.aws(t)
				up, err := s.CreateUpload(t.Context(), "a b", guard.UploadRequest{
					Headers: guard.Headers{
						ContentType: "text/plain", ContentEncoding: "gzip", ContentDisposition: "inline", ContentLanguage: "en",
						CacheControl: "no-store", Expires: "when it is done", WebsiteRedirect: "/there",
						StorageClass: "STANDARD_IA", Metadata: map[string]string{"content-type": "not the header"},
					},
					SSE: "aws:kms", SSEKMSKeyID: "key-1", Tags: map[string]string{"k": "v w"}, Checksum: asked,
				})
				if err != nil {
					t.Fatal(err)
				}
				one, err := s.UploadPart(t.Context(), up, 1, guard.Bytes([]byte("123456789")))
				if err != nil {
					t.Fatal(err)
				}
				two, err := s.CopyPart(t.Context(), up, 2, guard.CopySource{Key: "s", VersionID: "v 1", ETag: `"e1"`, Offset: 10, Size: 5})
				if err != nil {
					t.Fatal(err)
				}
				if _, err = s.CopyPart(t.Context(), up, 10_000, guard.CopySource{Key: "s", ETag: `"e1"`}); err != nil {
					t.Fatal(err)
				}
				wantOne := guard.Part{Number: 1, ETag: `"p1"`, Size: 9}
				wantTwo := guard.Part{Number: 2, ETag: `"p2"`, Size: 5}
				var whole guard.Checksum
				full := ""
				if sum != "" {
					wantOne.Checksum = guard.Checksum{Algorithm: sum, Value: value}
					wantTwo.Checksum = guard.Checksum{Algorithm: sum, Value: "AAAAAA=="}
					whole, full = guard.Checksum{Algorithm: sum, Value: "BBBBBB=="}, "FULL_OBJECT"
				}
				if up != (guard.Upload{Key: "a b", ID: "u/1", Checksum: sum}) || one != wantOne || two != wantTwo {
					t.Errorf("upload %+v, parts %+v %+v", up, one, two)
				}
				res, err := s.CompleteUpload(t.Context(), up, guard.CompleteRequest{
					Condition: guard.IfMatch(`"e1"`), Parts: []guard.Part{one, two}, Checksum: whole,
				})
				if err != nil || res.ETag != `"e2"` {
					t.Fatalf("%+v %v", res, err)
				}
				if err := s.AbortUpload(t.Context(), up); err != nil {
					t.Fatal(err)
				}

				for i, w := range []struct {
					method, query, sum string
					h                  map[string]string
				}{
					{"POST", "uploads=", "", map[string]string{
						"Content-Type": "text/plain", "Content-Encoding": "gzip", "Content-Disposition": "inline", "Content-Language": "en",
						"Cache-Control": "no-store", "Expires": "when it is done", "X-Amz-Website-Redirect-Location": "/there",
						"X-Amz-Storage-Class": "STANDARD_IA", "X-Amz-Meta-Content-Type": "not the header", "X-Amz-Tagging": "k=v+w",
						"X-Amz-Server-Side-Encryption": "aws:kms", "X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id": "key-1",
						"X-Amz-Checksum-Algorithm": sum, "X-Amz-Checksum-Type": full,
					}},
					{"PUT", "partNumber=1&uploadId=u%2F1", value, map[string]string{
						// Over plain http, the signature covers the body.
						"X-Amz-Content-Sha256": sha256, "X-Amz-Trailer": "", "X-Amz-Sdk-Checksum-Algorithm": sum,
					}},
					{"PUT", "partNumber=2&uploadId=u%2F1", "", map[string]string{
						"X-Amz-Copy-Source": "bucket/s?versionId=v+1", "X-Amz-Copy-Source-If-Match": `"e1"`, "X-Amz-Copy-Source-Range": "bytes=10-14",
					}},
					{"PUT", "partNumber=10000&uploadId=u%2F1", "", map[string]string{
						"X-Amz-Copy-Source": "bucket/s", "X-Amz-Copy-Source-If-Match": `"e1"`, "X-Amz-Copy-Source-Range": "",
					}},
					{"POST", "uploadId=u%2F1", whole.Value, map[string]string{
						"If-Match": `"e1"`, "If-None-Match": "", "X-Amz-Checksum-Type": full,
					}},
					{"DELETE", "uploadId=u%2F1", "", map[string]string{}},
				} {
					req := r.requests()[i]
					q := req.URL.Query()
					q.Del("x-id") // the SDK's own
					if req.Method != w.method || req.URL.EscapedPath() != "/bucket/a%20b" || q.Encode() != w.query {
						t.Errorf("request %d: %s %s", i, req.Method, req.URL)
					}
					w.h["X-Amz-Request-Payer"] = "requester"
					for _, name := range []string{"CRC32", "CRC32C", "CRC64NVME"} {
						w.h["X-Amz-Checksum-"+name] = map[bool]string{true: w.sum}[name == sum]
					}
					for k, v := range w.h {
						if got := req.Header.Get(k); got != v {
							t.Errorf("request %d: %s: %q, want %q", i, k, got, v)
						}
					}
				}
				if body := r.bodies[1]; body != "123456789" {
					t.Errorf("part %q", body)
				}
				type part struct {
					PartNumber                                             int
					ETag, ChecksumCRC32, ChecksumCRC32C, ChecksumCRC64NVME string
				}
				var completion struct{ Part []part }
				if err := xml.Unmarshal([]byte(r.bodies[4]), &completion); err != nil {
					t.Fatalf("%v: %s", err, r.bodies[4])
				}
				want := []part{{PartNumber: 1, ETag: `"p1"`}, {PartNumber: 2, ETag: `"p2"`}}
				for i, v := range []string{wantOne.Checksum.Value, wantTwo.Checksum.Value} {
					switch sum {
					case "CRC32":
						want[i].ChecksumCRC32 = v
					case "CRC32C":
						want[i].ChecksumCRC32C = v
					case "CRC64NVME":
						want[i].ChecksumCRC64NVME = v
					}
				}
				if !slices.Equal(completion.Part, want) {
					t.Errorf("completion %s", r.bodies[4])
				}
			})
		}
	}
}

// An upload that was found by its id: its checksum is known by its parts only.
func TestCompleteWithPartChecksums(t *testing.T) {
	r := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<R><Bucket>bucket</Bucket><ETag>\"e\"</ETag></R>")
	})
	for _, sdk := range sdks {
		for _, name := range []string{"CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"} {
			_, err := sdk.open(client{url: r.URL}, t).CompleteUpload(t.Context(), upload, guard.CompleteRequest{
				Condition: guard.IfAbsent(),
				Parts:     []guard.Part{{Number: 1, ETag: `"p"`, Checksum: guard.Checksum{Algorithm: name, Value: "sum"}}},
			})
			if body := r.bodies[len(r.bodies)-1]; err != nil || !strings.Contains(body, "<Checksum"+name+">sum</Checksum"+name+">") {
				t.Errorf("%s: %v, completion %s", sdk.name, err, body)
			}
		}
	}
}

func TestCopySourceOnTheWire(t *testing.T) {
	r := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `<CopyPartResult><ETag>"p"</ETag></CopyPartResult>`)
	})
	for _, sdk := range sdks {
		s := sdk.open(client{url: r.URL}, t)
		for key, want := range map[string]string{
			"a/b.csv": "bucket/a/b.csv", "a b": "bucket/a%20b", "a+b": "bucket/a%2Bb", "100%": "bucket/100%25", "a%20b": "bucket/a%2520b",
			"/lead": "bucket//lead", "//a//b/": "bucket///a//b/", "a?versionId=x#y": "bucket/a%3FversionId%3Dx%23y", "é": "bucket/%C3%A9",
			`a:&<>"'\`: "bucket/a%3A%26%3C%3E%22%27%5C", "\x01": "bucket/%01",
		} {
			if _, err := s.CopyPart(t.Context(), upload, 1, guard.CopySource{Key: key, ETag: `"e"`}); err != nil {
				t.Errorf("%s: %q: %v", sdk.name, key, err)
				continue
			}
			got := r.requests()[len(r.requests())-1].Header.Get("x-amz-copy-source")
			if back, err := url.PathUnescape(got); got != want || err != nil || back != "bucket/"+key {
				t.Errorf("%s: %q: %q, want %q", sdk.name, key, got, want)
			}
		}
	}
}

func TestUploadsRefusedLocally(t *testing.T) {
	r := serve(t, func(http.ResponseWriter, *http.Request) {})
	part := guard.Part{Number: 1, ETag: `"p"`}
	src := guard.CopySource{Key: "src", ETag: `"e"`}
	fine := guard.CompleteRequest{Condition: guard.IfAbsent(), Parts: []guard.Part{part}}
	for name, call := range map[string]func(context.Context, guard.Store) error{
		"create, header": func(ctx context.Context, s guard.Store) error {
			_, err := s.CreateUpload(ctx, "k", guard.UploadRequest{Headers: guard.Headers{CacheControl: "a\nb"}})
			return err
		},
		"create, metadata": func(ctx context.Context, s guard.Store) error {
			_, err := s.CreateUpload(ctx, "k", guard.UploadRequest{Headers: guard.Headers{Metadata: map[string]string{"a": "é"}}})
			return err
		},
		"create, key without sse": func(ctx context.Context, s guard.Store) error {
			_, err := s.CreateUpload(ctx, "k", guard.UploadRequest{SSEKMSKeyID: "key"})
			return err
		},
		"create, checksum": func(ctx context.Context, s guard.Store) error {
			_, err := s.CreateUpload(ctx, "k", guard.UploadRequest{Checksum: "SHA256"})
			return err
		},
		"part 0": func(ctx context.Context, s guard.Store) error {
			return sent(s.UploadPart(ctx, upload, 0, guard.Body{}))
		},
		"part 10,001": func(ctx context.Context, s guard.Store) error {
			return sent(s.UploadPart(ctx, upload, 10_001, guard.Body{}))
		},
		"part of no upload": func(ctx context.Context, s guard.Store) error {
			return sent(s.UploadPart(ctx, guard.Upload{Key: "k"}, 1, guard.Body{}))
		},
		"copy of any ETag": func(ctx context.Context, s guard.Store) error {
			return sent(s.CopyPart(ctx, upload, 1, guard.CopySource{Key: "src"}))
		},
		"copy of *": func(ctx context.Context, s guard.Store) error {
			return sent(s.CopyPart(ctx, upload, 1, guard.CopySource{Key: "src", ETag: "*"}))
		},
		"copy of nothing": func(ctx context.Context, s guard.Store) error {
			return sent(s.CopyPart(ctx, upload, 1, guard.CopySource{ETag: `"e"`}))
		},
		"copy from an offset": func(ctx context.Context, s guard.Store) error {
			src := src
			src.Offset = 1
			return sent(s.CopyPart(ctx, upload, 1, src))
		},
		"complete without a condition": func(ctx context.Context, s guard.Store) error {
			return completed(ctx, s, upload, guard.CompleteRequest{Parts: fine.Parts})
		},
		"complete over any object": func(ctx context.Context, s guard.Store) error {
			return completed(ctx, s, upload, guard.CompleteRequest{Condition: guard.IfMatch("*"), Parts: fine.Parts})
		},
		"complete without parts": func(ctx context.Context, s guard.Store) error {
			return completed(ctx, s, upload, guard.CompleteRequest{Condition: guard.IfAbsent()})
		},
		"complete with a checksum of checksums": func(ctx context.Context, s guard.Store) error {
			req := fine
			req.Checksum = guard.Checksum{Algorithm: "SHA256", Value: "x"}
			return completed(ctx, s, upload, req)
		},
		"complete with half a checksum": func(ctx context.Context, s guard.Store) error {
			req := fine
			req.Checksum = guard.Checksum{Value: "x"}
			return completed(ctx, s, upload, req)
		},
		"complete no upload": func(ctx context.Context, s guard.Store) error { return completed(ctx, s, guard.Upload{Key: "k"}, fine) },
		"abort no upload":    func(ctx context.Context, s guard.Store) error { return s.AbortUpload(ctx, guard.Upload{Key: "k"}) },
	} {
		for _, sdk := range sdks {
			t.Run(sdk.name+"/"+name, func(t *testing.T) {
				only(t, name, call(t.Context(), sdk.open(client{url: r.URL}, t)), guard.ErrRejected)
			})
		}
	}
	if n := len(r.requests()); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

func sent(_ guard.Part, err error) error { return err }

func completed(ctx context.Context, s guard.Store, up guard.Upload, req guard.CompleteRequest) error {
	_, err := s.CompleteUpload(ctx, up, req)
	return err
}

func TestUploadsMessages(t *testing.T) {
	status := 403
	r := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
	for _, sdk := range sdks {
		t.Run(sdk.name, func(t *testing.T) {
			s := sdk.open(client{url: r.URL}, t)
			status = 403
			for name, permission := range map[string]string{
				"list": "s3:ListBucket", "list versions": "s3:ListBucketVersions", "tags": "s3:GetObjectTagging", "create": "s3:PutObject",
				"part": "s3:PutObject", "copy": "s3:GetObject", "complete": "s3:PutObject", "abort": "s3:AbortMultipartUpload",
				"uploads": "s3:ListBucketMultipartUploads",
			} {
				contains(t, calls[name](t.Context(), s), "access denied", permission+" ")
			}
			status = 501
			_, err := s.CreateUpload(t.Context(), "k", guard.UploadRequest{
				Checksum: "CRC32C", SSE: "aws:kms", Tags: map[string]string{"a": "b"}, Headers: guard.Headers{WebsiteRedirect: "/"},
			})
			contains(t, err, "begin a multipart upload of s3://bucket/k", "full-object CRC32C", "encryption aws:kms", "tags", "website redirect")
			contains(t, complete(t.Context(), s), "complete the multipart upload of s3://bucket/k", "If-Match")
		})
	}
}

func TestUploadsPages(t *testing.T) {
	entry := func(key, id string) string {
		return "<Upload><Key>" + url.QueryEscape(key) + "</Key><UploadId>" + id + "</UploadId><Initiated>2026-12-02T10:00:00Z</Initiated></Upload>"
	}
	pages := map[string]string{
		" ":     "<IsTruncated>true</IsTruncated><NextKeyMarker>a+b</NextKeyMarker><NextUploadIdMarker>1</NextUploadIdMarker>" + entry("a b", "1"),
		" 1":    entry("a b", "2") + entry("a b/c", "3") + entry("x", "4"),
		"a b ":  entry("a b", "2") + entry("a b", "5"), // as MinIO: of this one key
		"a b/ ": entry("a b/c", "3"),
		"a ":    entry("a b", "1") + entry("a b", "2") + entry("a b/c", "3"), // as others
		"none ": "",
	}
	r := serve(t, func(w http.ResponseWriter, req *http.Request) {
		q := req.URL.Query()
		page, ok := pages[q.Get("prefix")+" "+q.Get("upload-id-marker")]
		if !ok || !q.Has("uploads") || q.Get("encoding-type") != "url" || (q.Get("upload-id-marker") != "") != (q.Get("key-marker") == "a b") ||
			req.Header.Get("x-amz-request-payer") != "requester" {
			t.Errorf("query %v, payer %q", q, req.Header.Get("x-amz-request-payer"))
		}
		_, _ = io.WriteString(w, "<R><Bucket>bucket</Bucket><EncodingType>url</EncodingType>"+page+"</R>")
	})
	s := client{url: r.URL, opts: &s3store.Options{RequestPayer: true}}.aws(t)
	for prefix, want := range map[string][]string{
		"": {"1", "2", "3", "4"}, "a b": {"1", "2", "3", "5"}, "a b/": {"3"}, "a": {"1", "2", "3"}, "none": nil,
	} {
		got := map[string]bool{}
		for up, err := range s.Uploads(t.Context(), prefix) {
			if err != nil {
				t.Fatal(err)
			}
			if got[up.ID] || up.Initiated.IsZero() || up.Checksum != "" {
				t.Errorf("uploads of %q: %+v", prefix, up)
			}
			got[up.ID] = true
		}
		if ids := slices.Sorted(maps.Keys(got)); !slices.Equal(ids, want) {
			t.Errorf("uploads of %q: %q, want %q", prefix, ids, want)
		}
	}
	if n := len(r.requests()); n != 2+3+1+1+3 {
		t.Errorf("%d requests, want ten: all are listed only where the prefix brings no other key", n)
	}
}

func TestUploadsEndless(t *testing.T) {
	r := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<R><IsTruncated>true</IsTruncated><Upload><Key>k</Key><UploadId>1</UploadId></Upload></R>")
	})
	only(t, "uploads", drain(client{url: r.URL}.aws(t).Uploads(t.Context(), "")), nil)
	r.one(t)
}
