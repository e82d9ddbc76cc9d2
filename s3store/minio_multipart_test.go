package s3store_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/minio/minio-go/v7"
	miniocreds "github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/s3store"
)

var upload = guard.Upload{Key: "k", ID: "id"}

// The requests that minio-go repeats by itself, to which answers are given.
var repeated = []struct {
	name, answer string
	call         func(context.Context, guard.Store) error
}{
	{"create", "<R><UploadId>id</UploadId></R>", func(ctx context.Context, s guard.Store) error {
		_, err := s.CreateUpload(ctx, "k", guard.UploadRequest{})
		return err
	}},
	{"copy", `<R><ETag>"p"</ETag></R>`, func(ctx context.Context, s guard.Store) error {
		_, err := s.CopyPart(ctx, upload, 1, guard.CopySource{Key: "src", ETag: `"e"`})
		return err
	}},
	{"complete", `<R><Bucket>bucket</Bucket><ETag>"e"</ETag></R>`, complete},
	{"abort", "", func(ctx context.Context, s guard.Store) error { return s.AbortUpload(ctx, upload) }},
}

func complete(ctx context.Context, s guard.Store) error {
	_, err := s.CompleteUpload(ctx, upload, guard.CompleteRequest{
		Condition: guard.IfMatch(`"e1"`), Parts: []guard.Part{{Number: 1, ETag: `"p"`}},
	})
	return err
}

func TestMinIOSendsOnce(t *testing.T) {
	for _, a := range []struct {
		status int
		code   string
		want   error
	}{
		{503, "SlowDown", nil},
		{500, "InternalError", nil},
		{400, "ExpiredToken", nil}, // minio-go would have sent it again
		{0, "", nil},               // no answer
		{404, "NoSuchUpload", guard.ErrNoUpload},
		{404, "NoSuchKey", guard.ErrNotFound},
		{404, "NoSuchBucket", guard.ErrNoBucket},
		{412, "PreconditionFailed", guard.ErrPreconditionFailed},
		{409, "ConditionalRequestConflict", guard.ErrConflict},
		{403, "AccessDenied", guard.ErrDenied},
		{501, "NotImplemented", guard.ErrUnsupported},
		{400, "InvalidPart", guard.ErrRejected},
	} {
		for _, c := range repeated {
			for _, h2 := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%d-%s/h2=%t", c.name, a.status, a.code, h2), func(t *testing.T) {
					r := &recorder{}
					r.Server = httptest.NewUnstartedServer(r.record(func(w http.ResponseWriter, req *http.Request) {
						if h2 != (req.ProtoMajor == 2) {
							t.Errorf("request by %s", req.Proto)
						}
						if a.status == 0 {
							panic(http.ErrAbortHandler)
						}
						w.WriteHeader(a.status)
						fmt.Fprintf(w, "<Error><Code>%s</Code></Error>", a.code)
					}))
					if r.EnableHTTP2 = h2; h2 {
						r.StartTLS()
					} else {
						r.Start()
					}
					defer r.Close()
					s := client{url: r.URL, transport: r.Client().Transport, retries: 5}.minio(t)
					err := c.call(t.Context(), s)
					only(t, c.name, err, a.want)
					if !h2 && a.want == nil {
						contains(t, err, "MaxRetries")
					}
					r.one(t)
				})
			}
		}
	}
}

// What never left may be tried again, and then the answer counts.
func TestMinIOSendsWhatWasNotSent(t *testing.T) {
	for _, c := range repeated {
		t.Run(c.name, func(t *testing.T) {
			r := serve(t, func(w http.ResponseWriter, req *http.Request) {
				if c.answer == "" {
					w.WriteHeader(http.StatusNoContent)
				}
				_, _ = io.WriteString(w, c.answer)
			})
			refusing := "http://127.0.0.1:1"
			only(t, c.name, c.call(t.Context(), client{url: refusing, retries: 2}.minio(t)), guard.ErrNotSent)
			if err := c.call(t.Context(), client{url: r.URL, retries: 5}.minio(t)); err != nil {
				t.Error(err)
			}
			r.one(t)
		})
	}
}

// Without a region, minio-go asks for it before the first request.
func TestMinIOWithoutRegion(t *testing.T) {
	for _, c := range repeated {
		t.Run(c.name, func(t *testing.T) {
			r := serve(t, func(w http.ResponseWriter, req *http.Request) {
				switch {
				case req.URL.Query().Has("location"):
					_, _ = io.WriteString(w, "<LocationConstraint>eu-west-1</LocationConstraint>")
				case c.answer == "":
					w.WriteHeader(http.StatusNoContent)
				default:
					_, _ = io.WriteString(w, c.answer)
				}
			})
			u, err := url.Parse(r.URL)
			if err != nil {
				t.Fatal(err)
			}
			m, err := minio.New(u.Host, &minio.Options{Creds: miniocreds.NewStaticV4("AKIATEST", secret, ""), MaxRetries: 5})
			if err != nil {
				t.Fatal(err)
			}
			if err := c.call(t.Context(), s3store.NewMinIO(m, "bucket", nil)); err != nil {
				t.Error(err)
			}
			if n := len(r.requests()); n != 2 {
				t.Errorf("%d requests, want one for the region and one", n)
			}
		})
	}
}

func TestMinIOCompleteAnswers(t *testing.T) {
	whole := `<CompleteMultipartUploadResult><Bucket>bucket</Bucket><Key>k</Key><ETag>"e"</ETag></CompleteMultipartUploadResult>`
	for name, body := range map[string]string{
		"empty":           "",
		"blank":           "  \n ",
		"error":           "<Error><Code>InternalError</Code><Message>try again</Message></Error>",
		"refusal":         "<Error><Code>PreconditionFailed</Code></Error>",
		"gone":            "<Error><Code>NoSuchUpload</Code></Error>",
		"late error":      "<?xml version=\"1.0\"?>\n    <Error><Code>SlowDown</Code></Error>",
		"cut short":       whole[:len(whole)-20],
		"cut after ETag":  whole[:strings.Index(whole, "</Comp")],
		"no ETag":         "<CompleteMultipartUploadResult><Bucket>bucket</Bucket></CompleteMultipartUploadResult>",
		"something else":  "<html><body>fine</body></html>",
		"not XML":         "OK",
		"another success": "<CopyObjectResult><ETag>e</ETag></CopyObjectResult>",
	} {
		for _, retries := range []int{1, 5} {
			t.Run(fmt.Sprintf("%s/retries=%d", name, retries), func(t *testing.T) {
				r := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) })
				only(t, "complete", complete(t.Context(), client{url: r.URL, retries: retries}.minio(t)), nil)
				r.one(t)
			})
		}
	}
	t.Run("connection cut", func(t *testing.T) {
		r := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(whole)))
			_, _ = io.WriteString(w, whole[:len(whole)-1])
		})
		only(t, "complete", complete(t.Context(), client{url: r.URL, retries: 5}.minio(t)), nil)
		r.one(t)
	})
	t.Run("whole", func(t *testing.T) {
		r := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("x-amz-version-id", "v2")
			_, _ = io.WriteString(w, "<?xml version=\"1.0\"?>\n   "+whole)
		})
		res, err := client{url: r.URL}.minio(t).CompleteUpload(t.Context(), upload, guard.CompleteRequest{
			Condition: guard.IfAbsent(), Parts: []guard.Part{{Number: 1, ETag: `"p"`}},
		})
		if err != nil || res != (guard.PutResult{ETag: `"e"`, VersionID: "v2"}) {
			t.Errorf("%+v %v", res, err)
		}
	})
}

func TestMinIOMultipartOnTheWire(t *testing.T) {
	for _, sum := range []string{"", "CRC32C"} {
		t.Run("checksum="+sum, func(t *testing.T) {
			r := serve(t, func(w http.ResponseWriter, req *http.Request) {
				switch req.Method {
				case http.MethodDelete:
					w.WriteHeader(http.StatusNoContent)
				case http.MethodPut:
					w.Header().Set("ETag", `"p1"`)
					_, _ = io.WriteString(w, "<CopyPartResult><ETag>p2</ETag><ChecksumCRC32C>AAAAAA==</ChecksumCRC32C></CopyPartResult>")
				default:
					_, _ = io.WriteString(w, "<R><Bucket>bucket</Bucket><UploadId>u/1</UploadId><ETag>\"e2\"</ETag></R>")
				}
			})
			s := client{url: r.URL, opts: &s3store.Options{RequestPayer: true}}.minio(t)
			up, err := s.CreateUpload(t.Context(), "a b", guard.UploadRequest{
				Headers: guard.Headers{
					ContentType: "text/plain", Expires: "Tue, 01 Dec 2026 10:00:00 GMT", WebsiteRedirect: "/there",
					StorageClass: "STANDARD_IA", Metadata: map[string]string{"content-type": "not the header"},
				},
				SSE: "aws:kms", SSEKMSKeyID: "key-1", Tags: map[string]string{"k": "v w"}, Checksum: sum,
			})
			if err != nil {
				t.Fatal(err)
			}
			one, err := s.UploadPart(t.Context(), up, 1, guard.Bytes([]byte("123456789")))
			if err != nil {
				t.Fatal(err)
			}
			two, err := s.CopyPart(t.Context(), up, 2, guard.CopySource{Key: "s+/é?", VersionID: "v 1", ETag: `"e1"`, Offset: 10, Size: 5})
			if err != nil {
				t.Fatal(err)
			}
			if _, err = s.CopyPart(t.Context(), up, 3, guard.CopySource{Key: "s", ETag: `"e1"`}); err != nil {
				t.Fatal(err)
			}
			wantOne := guard.Part{Number: 1, ETag: `"p1"`, Size: 9}
			wantTwo := guard.Part{Number: 2, ETag: `"p2"`, Size: 5}
			whole := guard.Checksum{}
			if sum != "" {
				wantOne.Checksum = guard.Checksum{Algorithm: sum, Value: "4waSgw=="}
				wantTwo.Checksum = guard.Checksum{Algorithm: sum, Value: "AAAAAA=="}
				whole = guard.Checksum{Algorithm: sum, Value: "BBBBBB=="}
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

			full := map[string]string{"": "", "CRC32C": "FULL_OBJECT"}[sum]
			for i, w := range []struct {
				method, query string
				h             map[string]string
			}{
				{"POST", "uploads=", map[string]string{
					"Content-Type": "text/plain", "Expires": "Tue, 01 Dec 2026 10:00:00 GMT", "X-Amz-Website-Redirect-Location": "/there",
					"X-Amz-Storage-Class": "STANDARD_IA", "X-Amz-Meta-Content-Type": "not the header", "X-Amz-Tagging": "k=v+w",
					"X-Amz-Server-Side-Encryption": "aws:kms", "X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id": "key-1",
					"X-Amz-Checksum-Algorithm": sum, "X-Amz-Checksum-Type": full, "X-Amz-Checksum-Crc32c": "",
				}},
				{"PUT", "partNumber=1&uploadId=u%2F1", map[string]string{
					"X-Amz-Checksum-Crc32c": one.Checksum.Value,
					// Over plain http, the signature covers the body.
					"X-Amz-Content-Sha256": "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225",
				}},
				{"PUT", "partNumber=2&uploadId=u%2F1", map[string]string{
					"X-Amz-Copy-Source": "bucket/s%2B/%C3%A9%3F?versionId=v+1", "X-Amz-Copy-Source-If-Match": `"e1"`,
					"X-Amz-Copy-Source-Range": "bytes=10-14",
				}},
				{"PUT", "partNumber=3&uploadId=u%2F1", map[string]string{
					"X-Amz-Copy-Source": "bucket/s", "X-Amz-Copy-Source-If-Match": `"e1"`, "X-Amz-Copy-Source-Range": "",
				}},
				{"POST", "uploadId=u%2F1", map[string]string{
					"If-Match": `"e1"`, "If-None-Match": "", "X-Amz-Checksum-Crc32c": whole.Value, "X-Amz-Checksum-Type": full,
				}},
				{"DELETE", "uploadId=u%2F1", nil},
			} {
				req := r.requests()[i]
				if req.Method != w.method || req.URL.EscapedPath() != "/bucket/a%20b" || req.URL.Query().Encode() != w.query {
					t.Errorf("request %d: %s %s", i, req.Method, req.URL)
				}
				if w.h != nil { // minio-go sends no header of ours with a DELETE
					w.h["X-Amz-Request-Payer"] = "requester"
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
			body := r.bodies[4]
			if !strings.Contains(body, "<PartNumber>1</PartNumber><ETag>p1</ETag>") || strings.Contains(body, "4waSgw==") != (sum != "") {
				t.Errorf("completion %s", body)
			}
		})
	}
}

func TestMinIOUnreadableExpires(t *testing.T) {
	r := serve(t, func(http.ResponseWriter, *http.Request) {})
	s := client{url: r.URL}.minio(t)
	h := guard.Headers{Expires: "0"}
	_, err := s.Put(t.Context(), "k", guard.PutRequest{Condition: guard.IfAbsent(), Headers: h})
	only(t, "put", err, guard.ErrRejected)
	_, err = s.CreateUpload(t.Context(), "k", guard.UploadRequest{Headers: h})
	only(t, "create", err, guard.ErrRejected)
	if n := len(r.requests()); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

func TestMinIOTags(t *testing.T) {
	body := "<Tagging><TagSet><Tag><Key>a</Key><Value>b c</Value></Tag><Tag><Key>empty</Key><Value></Value></Tag></TagSet></Tagging>"
	r := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) })
	s := client{url: r.URL}.minio(t)
	got, err := s.Tags(t.Context(), "k", "v 1")
	if err != nil || !maps.Equal(got, map[string]string{"a": "b c", "empty": ""}) {
		t.Errorf("%v %v", got, err)
	}
	if q := r.one(t).URL.Query(); !q.Has("tagging") || q.Get("versionId") != "v 1" {
		t.Errorf("query %v", q)
	}
	body = "<Tagging><TagSet></TagSet></Tagging>"
	if got, err = s.Tags(t.Context(), "k", ""); err != nil || len(got) != 0 {
		t.Errorf("%v %v", got, err)
	}
	body = "<Tagging><TagSet><Tag><Key>caf\u00e9</Key><Value>x</Value></Tag></TagSet></Tagging>"
	_, err = s.Tags(t.Context(), "k", "")
	only(t, "tags", err, nil)
	contains(t, err, "read the tags of s3://bucket/k", "aws-sdk-go-v2")
}

// minio-go lets no header into these.
func TestMinIOCannotPay(t *testing.T) {
	r := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	s := client{url: r.URL, opts: &s3store.Options{RequestPayer: true}}.minio(t)
	_, tags := s.Tags(t.Context(), "k", "")
	for what, err := range map[string]error{"tags": tags, "abort": s.AbortUpload(t.Context(), upload), "uploads": drain(s.Uploads(t.Context(), ""))} {
		only(t, what, err, guard.ErrDenied)
		contains(t, err, "requester-pays", "aws-sdk-go-v2")
	}
}

func drain[T any](seq func(func(T, error) bool)) error {
	for _, err := range seq {
		if err != nil {
			return err
		}
	}
	return nil
}

// names gives a listing's keys, its versions after @, common prefixes in brackets.
func names(t *testing.T, s guard.Store, opts guard.ListOptions) (got []string, err error) {
	t.Helper()
	for l, err := range s.List(t.Context(), opts) {
		switch {
		case err != nil:
			return got, err
		case l.Prefix:
			got = append(got, "["+l.Key+"]")
		case opts.Versions:
			got = append(got, l.Key+"@"+l.ID)
		default:
			got = append(got, l.Key)
		}
	}
	return got, nil
}

const entryTime = "<LastModified>2026-12-02T10:00:00Z</LastModified>"

func contents(inside string, keys ...string) string {
	var b strings.Builder
	for _, k := range keys {
		fmt.Fprintf(&b, `<Contents><Key>%s</Key>%s<ETag>"e"</ETag>%s</Contents>`, url.QueryEscape(k), entryTime, inside)
	}
	return b.String()
}

func objectPage(next, entries string) string {
	more := ""
	if next != "" {
		more = "<IsTruncated>true</IsTruncated><NextContinuationToken>" + next + "</NextContinuationToken>"
	}
	return "<ListBucketResult><Name>bucket</Name><EncodingType>url</EncodingType>" + more + entries + "</ListBucketResult>"
}

func TestMinIOListOrder(t *testing.T) {
	var many, want []string
	for i := range 1000 {
		many = append(many, fmt.Sprintf("f%04d", i))
	}
	prefix := func(p string) string {
		return "<CommonPrefixes><Prefix>" + url.QueryEscape(p) + "</Prefix></CommonPrefixes>"
	}
	pages := map[string]string{
		"":  objectPage("1", contents("", "b", "d")+prefix("a/")+prefix("c/")+prefix("e/")),
		"1": objectPage("2", prefix("e0/")+prefix("e1/")),
		"2": objectPage("3", contents("", many...)),
		"3": objectPage("4", contents("", "g", "i")+prefix("h/")),
		"4": objectPage("", contents("", "k")+prefix("j/")),
	}
	want = slices.Concat([]string{"[a/]", "b", "[c/]", "d", "[e/]", "[e0/]", "[e1/]"}, many, []string{"g", "[h/]", "i", "[j/]", "k"})
	r := serve(t, func(w http.ResponseWriter, req *http.Request) {
		q := req.URL.Query()
		if q.Get("delimiter") != "/" || q.Get("prefix") != "" || req.Header.Get("x-amz-request-payer") != "requester" {
			t.Errorf("query %v, headers %v", q, req.Header)
		}
		_, _ = io.WriteString(w, pages[q.Get("continuation-token")])
	})
	s := client{url: r.URL, opts: &s3store.Options{RequestPayer: true}}.minio(t)
	got, err := names(t, s, guard.ListOptions{Delimiter: "/"})
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %d entries, want %d: %.200q", err, len(got), len(want), got)
	}
}

// minio-go knows no delimiter but /.
func TestMinIOListOtherDelimiter(t *testing.T) {
	r := serve(t, func(w http.ResponseWriter, req *http.Request) {
		if q := req.URL.Query(); q.Get("delimiter") != "" || q.Get("prefix") != "a-" {
			t.Errorf("query %v", q)
		}
		_, _ = io.WriteString(w, objectPage("", contents("", "a-", "a-b", "a-c-d", "a-c-e", "a-f", "a-f-")))
	})
	got, err := names(t, client{url: r.URL}.minio(t), guard.ListOptions{Prefix: "a-", Delimiter: "-"})
	if want := []string{"a-", "a-b", "[a-c-]", "a-f", "[a-f-]"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q %v, want %q", got, err, want)
	}
}

func TestMinIOListMetadata(t *testing.T) {
	page := objectPage("", contents(
		"<UserMetadata><X-Amz-Meta-Fence-Token>r1 &amp; &lt;</X-Amz-Meta-Fence-Token><content-type>text/plain</content-type></UserMetadata>", "full")+
		contents("<Internal><K>1</K><M>0</M></Internal>", "none")+contents("", "unsaid"))
	r := serve(t, func(w http.ResponseWriter, req *http.Request) { _, _ = io.WriteString(w, page) })
	s := client{url: r.URL}.minio(t)
	for _, asked := range []bool{false, true} {
		want := map[string]map[string]string{"full": nil, "none": nil, "unsaid": nil}
		if asked {
			want["full"], want["none"] = map[string]string{"fence-token": "r1 & <"}, map[string]string{}
		}
		got := map[string]map[string]string{}
		for l, err := range s.List(t.Context(), guard.ListOptions{Metadata: asked}) {
			if err != nil {
				t.Fatal(err)
			}
			got[l.Key] = l.Metadata
		}
		if fmt.Sprintf("%#v", got) != fmt.Sprintf("%#v", want) {
			t.Errorf("asked %t: %#v, want %#v", asked, got, want)
		}
	}
}

// A name of metadata that is no XML name must not break the listing.
func TestMinIOListUnreadableMetadata(t *testing.T) {
	unreadable := "<UserMetadata><X-Amz-Meta-A!b>x</X-Amz-Meta-A!b></UserMetadata>"
	readable := "<UserMetadata><X-Amz-Meta-N>1</X-Amz-Meta-N></UserMetadata>"
	version := func(key, id, inside string) string {
		return fmt.Sprintf(`<Version><Key>%s</Key><VersionId>%s</VersionId><IsLatest>false</IsLatest>%s<ETag>"e"</ETag>%s</Version>`, key, id, entryTime, inside)
	}
	truncated := func(key, id string) string {
		return "<IsTruncated>true</IsTruncated><NextKeyMarker>" + key + "</NextKeyMarker><NextVersionIdMarker>" + id + "</NextVersionIdMarker>"
	}
	for _, refusal := range []int{200, 400, 501} {
		t.Run(fmt.Sprint(refusal), func(t *testing.T) {
			refuse := func(w http.ResponseWriter, body string) {
				if w.WriteHeader(refusal); refusal != 200 {
					body = "<Error><Code>X</Code></Error>"
				}
				_, _ = io.WriteString(w, body)
			}
			r := serve(t, func(w http.ResponseWriter, req *http.Request) {
				q := req.URL.Query()
				switch asked := q.Get("metadata") == "true"; {
				case q.Has("versions") && asked && q.Get("version-id-marker") == "":
					_, _ = io.WriteString(w, "<R>"+truncated("b", "2")+version("a", "1", readable)+version("b", "3", readable)+version("b", "2", readable)+"</R>")
				case q.Has("versions") && asked:
					refuse(w, "<R>"+version("b", "1", unreadable)+version("c", "1", "")+"</R>")
				case q.Has("versions"):
					if q.Get("key-marker") != "a" {
						t.Errorf("query %v", q)
					}
					_, _ = io.WriteString(w, "<R>"+version("b", "3", "")+version("b", "2", "")+version("b", "1", "")+version("c", "1", "")+"</R>")
				case asked && q.Get("continuation-token") == "":
					_, _ = io.WriteString(w, objectPage("1", contents(readable, "a", "b")))
				case asked:
					refuse(w, objectPage("", contents(unreadable, "c", "d")))
				default:
					_, _ = io.WriteString(w, objectPage("", contents("", "b", "c", "d")))
				}
			})
			s := client{url: r.URL}.minio(t)
			got, err := names(t, s, guard.ListOptions{Metadata: true})
			if want := []string{"a", "b", "c", "d"}; err != nil || !slices.Equal(got, want) {
				t.Errorf("%q %v, want %q", got, err, want)
			}
			got, err = names(t, s, guard.ListOptions{Metadata: true, Versions: true})
			if want := []string{"a@1", "b@3", "b@2", "b@1", "c@1"}; err != nil || !slices.Equal(got, want) {
				t.Errorf("versions %q %v, want %q", got, err, want)
			}
			if n := len(r.requests()); n != 6 {
				t.Errorf("%d requests, want three of each listing", n)
			}
		})
	}
}

// A listing that goes round in circles ends.
func TestMinIOListEndless(t *testing.T) {
	for name, page := range map[string]string{
		"empty":   "<R><IsTruncated>true</IsTruncated></R>",
		"same":    objectPage("1", contents("", "a")),
		"circle":  objectPage("1", contents("", "a", "b")),
		"nothing": objectPage("1", ""),
	} {
		t.Run(name, func(t *testing.T) {
			r := serve(t, func(w http.ResponseWriter, req *http.Request) { _, _ = io.WriteString(w, page) })
			s := client{url: r.URL}.minio(t)
			for _, opts := range []guard.ListOptions{{}, {Delimiter: "/"}, {Delimiter: "-"}} {
				opts.Versions = name == "empty" && opts.Delimiter == ""
				got, err := names(t, s, opts)
				only(t, fmt.Sprintf("list %+v", opts), err, nil)
				if len(got) > 2 {
					t.Errorf("list %+v: %q", opts, got)
				}
			}
		})
	}
	r := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<R><IsTruncated>true</IsTruncated><Upload><Key>k</Key><UploadId>1</UploadId></Upload></R>")
	})
	only(t, "uploads", drain(client{url: r.URL}.minio(t).Uploads(t.Context(), "")), nil)
	r.one(t)
}

// A place to start from that is outside the prefix is not the store's business.
func TestMinIOListStartsOutsidePrefix(t *testing.T) {
	r := serve(t, func(w http.ResponseWriter, req *http.Request) {
		if q := req.URL.Query(); q.Has("start-after") || q.Has("key-marker") {
			t.Errorf("query %v", q)
		}
		_, _ = io.WriteString(w, objectPage("", contents("", "b/1", "b/2")))
	})
	s := client{url: r.URL}.minio(t)
	for after, want := range map[string][]string{"a": {"b/1", "b/2"}, "b": {"b/1", "b/2"}, "b0": nil, "c": nil} {
		got, err := names(t, s, guard.ListOptions{Prefix: "b/", StartAfter: after})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("after %q: %q %v, want %q", after, got, err, want)
		}
	}
}

func TestMinIOUploadsPages(t *testing.T) {
	entry := func(key, id string) string {
		return "<Upload><Key>" + url.QueryEscape(key) + "</Key><UploadId>" + id + "</UploadId><Initiated>2026-12-02T10:00:00Z</Initiated></Upload>"
	}
	pages := map[string]string{
		" ":     "<IsTruncated>true</IsTruncated><NextKeyMarker>a+b</NextKeyMarker><NextUploadIdMarker>1</NextUploadIdMarker>" + entry("a b", "1"),
		" 1":    entry("a b", "2") + entry("a b/c", "3") + entry("x", "4"),
		"a b ":  entry("a b", "2") + entry("a b", "5"), // as MinIO: of this one key
		"a b/ ": entry("a b/c", "3"),
		"none ": "",
	}
	r := serve(t, func(w http.ResponseWriter, req *http.Request) {
		q := req.URL.Query()
		page, ok := pages[q.Get("prefix")+" "+q.Get("upload-id-marker")]
		if !ok || (q.Get("upload-id-marker") != "") != (q.Get("key-marker") == "a b") {
			t.Errorf("query %v", q)
		}
		_, _ = io.WriteString(w, "<R><EncodingType>url</EncodingType>"+page+"</R>")
	})
	s := client{url: r.URL}.minio(t)
	for prefix, want := range map[string][]string{"": {"1", "2", "3", "4"}, "a b": {"1", "2", "3", "5"}, "a b/": {"3"}, "none": nil} {
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
}

func TestMinIOListCancelledBetweenPages(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, objectPage("1", contents("", "a")))
	})
	n := 0
	for l, err := range (client{url: r.URL}).minio(t).List(ctx, guard.ListOptions{}) {
		if n++; n == 1 {
			cancel()
			continue
		}
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%+v %v", l, err)
		}
	}
	cancel()
	if n != 2 {
		t.Errorf("yielded %d times, want an entry and the error", n)
	}
	r.one(t)
}
