package policytest

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
)

// A Proxy is an S3 endpoint that has buckets' policies in force, in front of a
// server that knows no such policies. What the policy denies is answered with
// 403 AccessDenied; all else goes through as it came, signature and all.
//
// It denies and never allows: what may be done at all is the server's affair.
type Proxy struct {
	// URL is the endpoint. The server is at its end.
	URL string

	policies   []*Policy
	principals map[string]string

	mu     sync.Mutex
	denied []string
	asked  []string
}

// NewProxy starts one in front of the server at target, until the test ends,
// with the policies of one or more buckets. principals says which ARN signs
// with which access key; others are nobody.
func NewProxy(t testing.TB, target string, principals map[string]string, policies ...[]byte) *Proxy {
	t.Helper()
	to, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{principals: principals}
	for _, text := range policies {
		policy, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		p.policies = append(p.policies, policy)
	}
	through := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = to.Scheme, to.Host
			r.Out.Host = r.In.Host // it is signed
			if _, ok := r.In.Header["User-Agent"]; !ok {
				r.Out.Header["User-Agent"] = nil
			}
		},
		Transport:     &http.Transport{DisableCompression: true},
		FlushInterval: -1,
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if action, sid := p.denies(r); sid != "" {
			refuse(w, r, action, sid)
			return
		}
		through.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	p.URL = s.URL
	return p
}

// Denied returns what was denied so far: the action, the resource, and the
// statement that did.
func (p *Proxy) Denied() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.denied)
}

// Actions returns the actions that were asked for, once each.
func (p *Proxy) Actions() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.asked)
}

func (p *Proxy) denies(r *http.Request) (action, sid string) {
	for _, q := range Requests(r) {
		q.Principal = p.principals[accessKey(r)]
		d, sid := Decide(q, p.policies...)
		p.mu.Lock()
		if !slices.Contains(p.asked, q.Action) {
			p.asked = append(p.asked, q.Action)
		}
		if d == Denied {
			p.denied = append(p.denied, q.Action+" "+q.Resource+" "+sid)
		}
		p.mu.Unlock()
		if d == Denied {
			return q.Action, sid
		}
	}
	return "", ""
}

// accessKey reads who signed.
func accessKey(r *http.Request) string {
	_, rest, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
	if rest == "" {
		rest = r.URL.Query().Get("X-Amz-Credential")
	}
	key, _, _ := strings.Cut(rest, "/")
	return key
}

// Requests reads what a request in path style asks S3 for: an action on a
// resource, or, for a delete of many, one for each of them. It keeps the body
// readable.
func Requests(r *http.Request) []Request {
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	resource := "arn:aws:s3:::" + bucket
	q := r.URL.Query()
	if key == "" {
		return bucketRequests(r, resource, q)
	}
	resource += "/" + key
	one := Request{Resource: resource, Context: map[string][]string{}}
	for _, header := range []string{"If-Match", "If-None-Match", "x-amz-copy-source"} {
		if v := r.Header.Get(header); v != "" && (r.Method == http.MethodPut || r.Method == http.MethodPost) {
			one.Context["s3:"+strings.ToLower(header)] = []string{v}
		}
	}
	creates := "true"
	switch has := q.Has; {
	case r.Method == http.MethodPut && has("tagging"):
		one.Action = "s3:PutObjectTagging"
	case r.Method == http.MethodPut && has("acl"):
		one.Action = "s3:PutObjectAcl"
	case r.Method == http.MethodPut && has("uploadId"), r.Method == http.MethodPost && has("uploads"):
		one.Action, creates = "s3:PutObject", "false"
	case r.Method == http.MethodPut, r.Method == http.MethodPost && has("uploadId"):
		one.Action = "s3:PutObject"
	case r.Method == http.MethodDelete && has("uploadId"):
		one.Action = "s3:AbortMultipartUpload"
	case r.Method == http.MethodDelete && has("tagging"):
		one.Action = "s3:DeleteObjectTagging"
	case r.Method == http.MethodDelete && has("versionId"):
		one.Action = "s3:DeleteObjectVersion"
	case r.Method == http.MethodDelete:
		one.Action = "s3:DeleteObject"
	case has("uploadId"):
		one.Action = "s3:ListMultipartUploadParts"
	case has("tagging"):
		one.Action = "s3:GetObjectTagging"
	case has("versionId"):
		one.Action = "s3:GetObjectVersion"
	default:
		one.Action = "s3:GetObject"
	}
	if one.Action == "s3:PutObject" {
		one.Context["s3:ObjectCreationOperation"] = []string{creates}
	}
	return []Request{one}
}

// settings are the bucket's by their name in the query, as actions end.
var settings = map[string]string{
	"policy": "BucketPolicy", "lifecycle": "LifecycleConfiguration", "replication": "ReplicationConfiguration",
	"versioning": "BucketVersioning", "encryption": "EncryptionConfiguration", "object-lock": "BucketObjectLockConfiguration",
	"location": "BucketLocation", "tagging": "BucketTagging",
}

func bucketRequests(r *http.Request, resource string, q url.Values) []Request {
	if r.Method == http.MethodPost && q.Has("delete") {
		return deletes(r, resource)
	}
	verb := map[string]string{http.MethodPut: "Put", http.MethodDelete: "Delete"}[r.Method]
	if verb == "" {
		verb = "Get"
	}
	for name, ends := range settings {
		if !q.Has(name) {
			continue
		}
		if verb == "Delete" && ends != "BucketPolicy" {
			verb = "Put" // one permission for both
		}
		return []Request{{Action: "s3:" + verb + ends, Resource: resource}}
	}
	switch {
	case r.Method == http.MethodPost:
		// A form's upload holds its key inside and can carry no condition.
		return []Request{{Action: "s3:PutObject", Resource: resource + "/", Context: map[string][]string{"s3:ObjectCreationOperation": {"true"}}}}
	case verb == "Put":
		return []Request{{Action: "s3:CreateBucket", Resource: resource}}
	case verb == "Delete":
		return []Request{{Action: "s3:DeleteBucket", Resource: resource}}
	case q.Has("versions"):
		return []Request{{Action: "s3:ListBucketVersions", Resource: resource}}
	case q.Has("uploads"):
		return []Request{{Action: "s3:ListBucketMultipartUploads", Resource: resource}}
	}
	return []Request{{Action: "s3:ListBucket", Resource: resource}}
}

// deletes reads the body of a delete of many. S3 answers for each; this is
// all or none.
func deletes(r *http.Request, resource string) []Request {
	body, err := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	var doc struct {
		Object []struct{ Key, VersionId string } //nolint:revive // as S3 spells it
	}
	if err != nil || xml.Unmarshal(body, &doc) != nil {
		return []Request{{Action: "s3:DeleteObject", Resource: resource + "/"}}
	}
	var all []Request
	for _, o := range doc.Object {
		action := "s3:DeleteObject"
		if o.VersionId != "" {
			action = "s3:DeleteObjectVersion"
		}
		all = append(all, Request{Action: action, Resource: resource + "/" + o.Key})
	}
	return all
}

// refuse answers as S3 does to what a policy denies.
func refuse(w http.ResponseWriter, r *http.Request, action, sid string) {
	_, _ = io.Copy(io.Discard, r.Body) // a client that is still sending might miss the answer
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(http.StatusForbidden)
	if r.Method != http.MethodHead {
		fmt.Fprintf(w, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>AccessDenied</Code><Message>User is not authorized to perform: %s with an explicit deny in a resource-based policy (%s)</Message></Error>", action, sid)
	}
}
