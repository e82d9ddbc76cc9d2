package policytest_test

import (
	"io"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/s3fence/s3fence/s3store/policy/policytest"
)

// The operators, on keys that the request has and has not.
func TestDecide(t *testing.T) {
	for _, tt := range []struct {
		condition string
		context   map[string][]string
		want      bool
	}{
		{`{"Null": {"k": "true"}}`, nil, true},
		{`{"Null": {"k": "true"}}`, map[string][]string{"K": {"v"}}, false},
		{`{"Null": {"k": "false"}}`, map[string][]string{"k": {"v"}}, true},
		{`{"Null": {"k": "true", "l": "true"}}`, map[string][]string{"k": {"v"}}, false},
		{`{"Bool": {"k": "true"}}`, nil, false},
		{`{"BoolIfExists": {"k": "true"}}`, nil, true},
		{`{"BoolIfExists": {"k": "true"}}`, map[string][]string{"k": {"false"}}, false},
		{`{"StringEquals": {"k": "*"}}`, map[string][]string{"k": {"v"}}, false},
		{`{"StringEquals": {"k": ["a", "v"]}}`, map[string][]string{"k": {"v"}}, true},
		{`{"StringNotEquals": {"k": ["a", "v"]}}`, map[string][]string{"k": {"v"}}, false},
		{`{"StringNotEquals": {"k": "v"}}`, nil, true},
		{`{"StringLike": {"k": "a*c"}}`, map[string][]string{"k": {"abbc"}}, true},
		{`{"StringLike": {"k": "a${*}c"}}`, map[string][]string{"k": {"abc"}}, false},
		{`{"StringLike": {"k": "a${*}?"}}`, map[string][]string{"k": {"a*c"}}, true},
		{`{"StringLikeIfExists": {"k": "a*"}}`, nil, true},
		{`{"ArnNotLike": {"aws:PrincipalArn": "arn:aws:iam::1:role/*"}}`, nil, true},
		{`{"ForAllValues:StringEquals": {"k": ["a", "b"]}}`, nil, true},
		{`{"ForAllValues:StringEquals": {"k": ["a", "b"]}}`, map[string][]string{"k": {"a", "b"}}, true},
		{`{"ForAllValues:StringEquals": {"k": ["a", "b"]}}`, map[string][]string{"k": {"a", "c"}}, false},
		{`{"ForAnyValue:StringNotEquals": {"k": ["a", "b"]}}`, nil, false},
		{`{"ForAnyValue:StringNotEquals": {"k": ["a", "b"]}}`, map[string][]string{"k": {"a", "c"}}, true},
		{`{"ForAnyValue:StringNotLike": {"k": ["a*", "b"]}}`, map[string][]string{"k": {"ab", "b"}}, false},
	} {
		p, err := policytest.Parse([]byte(`{"Version": "2012-10-17", "Statement": [{"Sid": "S", "Effect": "Allow", "Action": ["*"], "Resource": ["*"], "Condition": ` + tt.condition + `}]}`))
		if err != nil {
			t.Fatal(err)
		}
		d, _ := policytest.Decide(policytest.Request{Action: "a:B", Resource: "r", Context: tt.context}, p)
		if got := d == policytest.Allowed; got != tt.want {
			t.Errorf("%s with %v: %v", tt.condition, tt.context, got)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, text := range []string{
		`{`, `{"Version": "2008-10-17", "Statement": [{"Effect": "Allow"}]}`, `{"Version": "2012-10-17", "Statement": []}`,
		`{"Version": "2012-10-17", "Statement": [{"Effect": "Perhaps"}]}`,
		`{"Version": "2012-10-17", "Statement": [{"Effect": "Deny", "NotAction": ["s3:*"]}]}`,
		`{"Version": "2012-10-17", "Statement": [{"Effect": "Deny", "Condition": {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}}]}`,
		`{"Version": "2012-10-17", "Statement": [{"Effect": "Deny", "Condition": {"ForSome:StringLike": {"k": "v"}}}]}`,
	} {
		if _, err := policytest.Parse([]byte(text)); err == nil {
			t.Errorf("taken: %s", text)
		}
	}
}

// What a request on the wire asks for.
func TestRequests(t *testing.T) {
	for _, tt := range []struct{ method, target, headers, body, want string }{
		{"PUT", "/b/k", "", "", "s3:PutObject /k creates"},
		{"PUT", "/b/k", "If-None-Match: *", "", "s3:PutObject /k creates none-match=*"},
		{"PUT", "/b/a%2Fb%20c", `If-Match: "x"`, "", `s3:PutObject /a/b c creates match="x"`},
		{"PUT", "/b/k", "X-Amz-Copy-Source: b/l", "", "s3:PutObject /k creates copy=b/l"},
		{"POST", "/b/k?uploads", "", "", "s3:PutObject /k"},
		{"PUT", "/b/k?partNumber=1&uploadId=u", "", "", "s3:PutObject /k"},
		{"POST", "/b/k?uploadId=u", "", "", "s3:PutObject /k creates"},
		{"DELETE", "/b/k?uploadId=u", "", "", "s3:AbortMultipartUpload /k"},
		{"DELETE", "/b/k", "", "", "s3:DeleteObject /k"},
		{"DELETE", "/b/k?versionId=v", "", "", "s3:DeleteObjectVersion /k"},
		{"DELETE", "/b/k?tagging", "", "", "s3:DeleteObjectTagging /k"},
		{"GET", "/b/k", "If-Match: x", "", "s3:GetObject /k"},
		{"HEAD", "/b/k?versionId=v", "", "", "s3:GetObjectVersion /k"},
		{"PUT", "/b/k?tagging", "", "", "s3:PutObjectTagging /k"},
		{"PUT", "/b?policy", "", "", "s3:PutBucketPolicy"},
		{"DELETE", "/b/?policy", "", "", "s3:DeleteBucketPolicy"},
		{"DELETE", "/b?lifecycle", "", "", "s3:PutLifecycleConfiguration"},
		{"GET", "/b?versioning", "", "", "s3:GetBucketVersioning"},
		{"GET", "/b?versions&prefix=p", "", "", "s3:ListBucketVersions"},
		{"DELETE", "/b", "", "", "s3:DeleteBucket"},
		{"POST", "/b", "", "", "s3:PutObject / creates"},
		{"POST", "/b?delete", "", "<Delete><Object><Key>k</Key></Object><Object><Key>l</Key><VersionId>v</VersionId></Object></Delete>",
			"s3:DeleteObject /k, s3:DeleteObjectVersion /l"},
		{"POST", "/b?delete", "", "nonsense", "s3:DeleteObject /"},
	} {
		r := httptest.NewRequest(tt.method, tt.target, strings.NewReader(tt.body))
		if name, value, ok := strings.Cut(tt.headers, ": "); ok {
			r.Header.Set(name, value)
		}
		var all []string
		for _, q := range policytest.Requests(r) {
			s := q.Action
			if key := strings.TrimPrefix(q.Resource, "arn:aws:s3:::b"); key != "" {
				s += " " + key
			}
			for _, c := range []struct{ key, word string }{
				{"s3:ObjectCreationOperation", ""}, {"s3:if-none-match", "none-match="}, {"s3:if-match", "match="}, {"s3:x-amz-copy-source", "copy="},
			} {
				v := strings.Join(q.Context[c.key], ",")
				switch {
				case c.word == "" && v == "true":
					s += " creates"
				case c.word != "" && v != "":
					s += " " + c.word + v
				}
			}
			all = append(all, s)
		}
		if got := strings.Join(all, ", "); got != tt.want {
			t.Errorf("%s %s asks for %q, want %q", tt.method, tt.target, got, tt.want)
		}
		if left, err := io.ReadAll(r.Body); err != nil || string(left) != tt.body {
			t.Errorf("%s %s: the body is %q, %v", tt.method, tt.target, left, err)
		}
	}
}
