package policy_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/s3fence/s3fence/localstack/servers/serverstest"
	"github.com/s3fence/s3fence/s3store/policy"
	"github.com/s3fence/s3fence/s3store/policy/policytest"
)

var update = flag.Bool("update", false, "write the golden documents anew")

func TestMain(m *testing.M) { os.Exit(serverstest.Main(m)) }

const (
	admin    = "arn:aws:iam::111122223333:role/admin"
	writer   = "arn:aws:iam::111122223333:role/job"
	stranger = "arn:aws:iam::444455556666:user/eve"
)

// configs are the golden documents' by name.
func configs() map[string]policy.Config {
	plain := policy.Config{
		Bucket: "bucket", Prefix: "reports/", Region: "eu-central-1", Account: "111122223333",
		Table: "s3fence", Scopes: []string{"nightly", "nightly/report"}, Admins: []string{admin},
	}
	whole := plain
	whole.Prefix, whole.Region, whole.Account, whole.Scopes = "", "", "", []string{"nightly/*"}
	whole.KMSKeys = []string{"arn:aws:kms:eu-central-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"}
	other := plain
	other.RootBucket, other.Root = "roots", "s3fence"
	other.Prefix = "odd $*? \\\"%{x}${y}/"
	other.Writers = []string{"arn:aws:iam::444455556666:role/job"}
	other.Readers = []string{"arn:aws:iam::444455556666:role/reader", "arn:aws:iam::444455556666:user/ann"}
	other.Admins = append(other.Admins, "arn:aws:iam::111122223333:role/aws-reserved/sso.amazonaws.com/*/AWSReservedSSO_Admin_*")
	minio := plain
	minio.Dialect = policy.MinIO
	counters := plain
	counters.Table, counters.IssuerBucket, counters.IssuerPrefix = "", "bucket", "team"
	apart := other
	apart.Table, apart.IssuerBucket, apart.Prefix = "", "counters", "reports/"
	minioCounters := minio
	minioCounters.Table, minioCounters.IssuerBucket = "", "counters"
	return map[string]policy.Config{
		"plain": plain, "whole-bucket": whole, "other-root": other, "minio": minio,
		"counters": counters, "counters-apart": apart, "counters-minio": minioCounters,
	}
}

func documents(t testing.TB, c policy.Config, roles ...policy.Role) ([]policy.Document, []string) {
	t.Helper()
	if len(roles) == 0 {
		roles = policy.Roles()
	}
	docs, notes, err := policy.Documents(c, roles...)
	if err != nil {
		t.Fatal(err)
	}
	return docs, notes
}

func TestGolden(t *testing.T) {
	for name, c := range configs() {
		t.Run(name, func(t *testing.T) {
			docs, notes := documents(t, c)
			var b bytes.Buffer
			for _, n := range notes {
				fmt.Fprintf(&b, "note: %s\n", n)
			}
			for _, d := range docs {
				fmt.Fprintf(&b, "%s on %q\n%s", d.Name, d.On, d.JSON())
			}
			golden(t, name+".txt", b.Bytes())
			golden(t, name+".tf", policy.Terraform(c, docs, notes))
		})
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what it was; go test -update writes it anew. It is now:\n%s", name, got)
	}
}

// The grammar of policies: which elements there are, of what types, which
// actions exist and which condition keys each of them has.
func TestGrammar(t *testing.T) {
	actions := actionKeys(t)
	for name, c := range configs() {
		docs, _ := documents(t, c)
		for _, d := range docs {
			t.Run(name+"/"+d.Name, func(t *testing.T) {
				var doc map[string]json.RawMessage
				decode(t, d.JSON(), &doc)
				if got := slices.Sorted(maps.Keys(doc)); !slices.Equal(got, []string{"Statement", "Version"}) || string(doc["Version"]) != `"2012-10-17"` {
					t.Errorf("elements %v, version %s", got, doc["Version"])
				}
				var statements []map[string]json.RawMessage
				decode(t, doc["Statement"], &statements)
				sids := map[string]bool{}
				for _, s := range statements {
					checkStatement(t, s, d.On != "", c.Dialect, actions)
					if sid := string(s["Sid"]); sids[sid] {
						t.Errorf("two statements are called %s", sid)
					} else {
						sids[sid] = true
					}
				}
				if _, err := policytest.Parse(d.JSON()); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func decode(t *testing.T, b []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
}

var (
	sidForm = regexp.MustCompile(`^[A-Za-z0-9]+$`)
	arnForm = regexp.MustCompile(`^arn:aws:(s3:::[a-z0-9.-]+(/[ -ÿ]+)?|dynamodb:(\*|[a-z0-9-]+):(\*|\d{12}):table/[A-Za-z0-9._-]+|kms:[a-z0-9-]+:\d{12}:key/.+)$`)
)

func checkStatement(t *testing.T, s map[string]json.RawMessage, resourcePolicy bool, dialect policy.Dialect, known map[string][]string) {
	t.Helper()
	var sid, effect string
	var acts, resources []string
	decode(t, s["Sid"], &sid)
	decode(t, s["Effect"], &effect)
	decode(t, s["Action"], &acts)
	decode(t, s["Resource"], &resources)
	for k := range s {
		if !slices.Contains([]string{"Sid", "Effect", "Principal", "Action", "Resource", "Condition"}, k) {
			t.Errorf("%s: no element is called %s", sid, k)
		}
	}
	if _, has := s["Principal"]; has != resourcePolicy {
		t.Errorf("%s: a principal: %v, wanted %v", sid, has, resourcePolicy)
	}
	if !sidForm.MatchString(sid) || effect != "Allow" && effect != "Deny" || len(acts) == 0 || len(resources) == 0 {
		t.Errorf("%s: effect %q, actions %v, resources %v", sid, effect, acts, resources)
	}
	if string(s["Principal"]) == `"*"` && effect == "Allow" {
		t.Errorf("%s: everybody is allowed", sid)
	}
	for _, r := range resources {
		if !arnForm.MatchString(r) {
			t.Errorf("%s: resource %q", sid, r)
		}
	}
	var condition map[string]map[string]json.RawMessage
	if c := s["Condition"]; c != nil {
		decode(t, c, &condition)
	}
	for _, a := range acts {
		keys, ok := known[a]
		if !ok && (dialect != policy.MinIO || a != "s3:ForceDeleteBucket") {
			t.Errorf("%s: no action is called %s", sid, a)
		}
		onObject := !strings.Contains(a, "Bucket") && !strings.Contains(a, "Configuration")
		for _, r := range resources {
			if strings.HasPrefix(a, "s3:") && onObject != strings.Contains(r, "/") {
				t.Errorf("%s: %s is not on resources such as %s", sid, a, r)
			}
			if service, _, _ := strings.Cut(a, ":"); !strings.HasPrefix(r, "arn:aws:"+service+":") {
				t.Errorf("%s: %s on %s", sid, a, r)
			}
		}
		for _, byKey := range condition {
			for key := range byKey {
				// s3:prefix is of ListBucket and ListBucketVersions alike.
				if !strings.HasPrefix(key, "aws:") && !slices.Contains(keys, key) {
					t.Errorf("%s: %s has no key %s", sid, a, key)
				}
			}
		}
	}
}

// actionKeys reads what AWS says of each action: its name and the condition
// keys of its service that it has.
func actionKeys(t *testing.T) map[string][]string {
	text, err := os.ReadFile("testdata/actions.txt")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 0 && f[0] != "#" {
			all[f[0]] = f[1:]
		}
	}
	return all
}

// what the SDKs send, and what goes around the guard.
func put(key string, context ...string) policytest.Request {
	c := map[string][]string{"s3:ObjectCreationOperation": {"true"}}
	for i := 0; i < len(context); i += 2 {
		if context[i+1] == "" {
			delete(c, context[i])
		} else {
			c[context[i]] = []string{context[i+1]}
		}
	}
	return policytest.Request{Action: "s3:PutObject", Resource: "arn:aws:s3:::bucket/" + key, Context: c}
}

func on(action, key string) policytest.Request {
	return policytest.Request{Action: action, Resource: "arn:aws:s3:::bucket/" + key}
}

func bucket(action string, context ...string) policytest.Request {
	r := policytest.Request{Action: action, Resource: "arn:aws:s3:::bucket", Context: map[string][]string{}}
	for i := 0; i < len(context); i += 2 {
		r.Context[context[i]] = []string{context[i+1]}
	}
	return r
}

func item(action string, scopes ...string) policytest.Request {
	return policytest.Request{
		Action: action, Resource: "arn:aws:dynamodb:eu-central-1:111122223333:table/s3fence",
		Context: map[string][]string{"dynamodb:LeadingKeys": scopes},
	}
}

const (
	ifMatch     = "s3:if-match"
	ifNoneMatch = "s3:if-none-match"
	creates     = "s3:ObjectCreationOperation"
	copySource  = "s3:x-amz-copy-source"
	prefix      = "s3:prefix"
	etag        = `"9e107d9d372bb6826bd81d3542a419d6"`
)

// attempts are what each role may, and what nobody may.
var attempts = []struct {
	name                            string
	request                         policytest.Request
	writer, reader, admin, anything policytest.Decision // the last one has every permission, but no statement of ours
}{
	// The guard's own requests.
	{"PutObject on a new key", put("reports/a", ifNoneMatch, "*"), yes, no, yes, yes},
	{"PutObject over an object", put("reports/a", ifMatch, etag), yes, no, yes, yes},
	{"CreateMultipartUpload", put("reports/a", creates, "false"), yes, no, yes, yes},
	{"UploadPartCopy", put("reports/a", creates, "false", copySource, "bucket/reports/b"), yes, no, yes, yes},
	{"CompleteMultipartUpload", put("reports/a", ifMatch, etag), yes, no, yes, yes},
	{"AbortMultipartUpload", on("s3:AbortMultipartUpload", "reports/a"), yes, none, yes, yes},
	{"tags with a PutObject", on("s3:PutObjectTagging", "reports/a"), yes, none, yes, yes},
	{"HEAD", on("s3:GetObject", "reports/a"), yes, yes, yes, yes},
	{"HEAD of a version", on("s3:GetObjectVersion", "reports/a"), yes, yes, yes, yes},
	{"whether a missing key is missing", bucket("s3:ListBucket"), yes, yes, yes, yes},
	{"list", bucket("s3:ListBucket", prefix, "reports/2026/"), yes, yes, yes, yes},
	{"list versions", bucket("s3:ListBucketVersions", prefix, "reports/a"), yes, yes, yes, yes},
	{"versioning", bucket("s3:GetBucketVersioning"), yes, yes, yes, yes},
	{"default encryption", bucket("s3:GetEncryptionConfiguration"), yes, yes, yes, yes},
	{"read the profile", on("s3:GetObject", ".s3fence/profile.json"), yes, yes, yes, yes},
	{"claim a scope of its own", put(".s3fence/scopes/nightly/report.json", ifMatch, etag), yes, no, yes, yes},
	{"take a token", item("dynamodb:UpdateItem", "nightly"), yes, none, yes, yes},
	{"read the counter", item("dynamodb:GetItem", "nightly"), yes, none, yes, yes},
	{"describe the table", item("dynamodb:DescribeTable"), yes, none, yes, yes},

	// Writes with no condition, or one that says nothing.
	{"PutObject, unconditional", put("reports/a"), no, no, no, no},
	{"CopyObject, unconditional", put("reports/a", copySource, "bucket/reports/b"), no, no, no, no},
	{"a request that does not say whether it creates", put("reports/a", creates, ""), no, no, no, no},
	{"If-Match: *", put("reports/a", ifMatch, "*"), no, no, no, no},
	{"If-None-Match of an ETag", put("reports/a", ifNoneMatch, etag), no, no, no, no},
	{"PutObject on the fences, unconditional", put(".s3fence/scopes/nightly.json"), no, no, no, no},
	{"CopyObject with a condition", put("reports/a", ifMatch, etag, copySource, "bucket/reports/b"), no, no, yes, no},

	// Deletes, and what comes to the same.
	{"DeleteObject", on("s3:DeleteObject", "reports/a"), no, no, yes, no},
	{"DeleteObject with If-Match", policytest.Request{Action: "s3:DeleteObject", Resource: "arn:aws:s3:::bucket/reports/a",
		Context: map[string][]string{ifMatch: {etag}}}, no, no, yes, no},
	{"delete a version, and bring an older one back", on("s3:DeleteObjectVersion", "reports/a"), no, no, yes, no},
	{"delete a fence", on("s3:DeleteObject", ".s3fence/scopes/nightly.json"), no, no, yes, no},
	{"replicate into the bucket", on("s3:ReplicateObject", "reports/a"), no, no, none, no},
	{"replicate a delete", on("s3:ReplicateDelete", "reports/a"), no, no, none, no},
	{"forge the profile", put(".s3fence/profile.json", ifNoneMatch, "*"), no, no, yes, no},
	{"raise another scope's fence", put(".s3fence/scopes/other.json", ifMatch, etag), none, no, yes, yes},
	{"expire by lifecycle", bucket("s3:PutLifecycleConfiguration"), no, no, none, no},
	{"versioning off", bucket("s3:PutBucketVersioning"), no, no, none, no},
	{"encryption off", bucket("s3:PutEncryptionConfiguration"), no, no, none, no},
	{"replicate elsewhere", bucket("s3:PutReplicationConfiguration"), no, no, none, no},
	{"another policy", bucket("s3:PutBucketPolicy"), no, no, none, no},
	{"no policy", bucket("s3:DeleteBucketPolicy"), no, no, none, no},
	{"no bucket", bucket("s3:DeleteBucket"), no, no, none, no},

	// The counter.
	{"UpdateItem of another scope", item("dynamodb:UpdateItem", "other"), no, none, yes, yes},
	{"a transaction over two scopes", item("dynamodb:UpdateItem", "nightly", "other"), no, none, yes, yes},
	{"an UpdateItem that names no key", item("dynamodb:UpdateItem"), none, none, yes, yes},
	{"the profile's scope", item("dynamodb:UpdateItem", "s3fence/profile"), no, none, yes, yes},
	{"PutItem", item("dynamodb:PutItem", "nightly"), no, no, yes, no},
	{"DeleteItem", item("dynamodb:DeleteItem", "nightly"), no, no, none, no},
	{"BatchWriteItem", item("dynamodb:BatchWriteItem", "nightly"), no, no, none, no},
	{"PartiQL", item("dynamodb:PartiQLUpdate", "nightly"), no, no, none, no},
	{"DeleteTable", item("dynamodb:DeleteTable"), no, no, none, no},
	{"deletion protection off", item("dynamodb:UpdateTable"), no, no, none, no},
	{"expire items", item("dynamodb:UpdateTimeToLive"), no, no, yes, no},
	{"what expires", item("dynamodb:DescribeTimeToLive"), none, none, yes, yes},
	{"the table's policy", item("dynamodb:DeleteResourcePolicy"), no, no, none, no},
	{"restore", item("dynamodb:RestoreTableToPointInTime"), no, none, none, yes},

	// Not ours: none of these policies' business.
	{"a key beside the prefix", put("other/a"), none, none, none, yes},
	{"list beside the prefix", bucket("s3:ListBucket", prefix, "other/"), none, none, none, yes},
}

const (
	yes  = policytest.Allowed
	no   = policytest.Denied
	none = policytest.Implicit
)

var everything = []byte(`{"Version": "2012-10-17", "Statement": [{"Sid": "All", "Effect": "Allow", "Action": ["*"], "Resource": ["*"]}]}`)

func TestAttempts(t *testing.T) {
	docs, _ := documents(t, configs()["plain"])
	all := map[string]*policytest.Policy{"anything": parse(t, everything)}
	for _, d := range docs {
		all[d.Name] = parse(t, d.JSON())
	}
	for _, tt := range attempts {
		for who, want := range map[string]policytest.Decision{
			"writer": tt.writer, "reader": tt.reader, "admin": tt.admin, "anything": tt.anything,
		} {
			r := tt.request
			r.Principal = map[string]string{"writer": writer, "reader": writer, "admin": admin, "anything": stranger}[who]
			own := all["bucket"]
			if strings.HasPrefix(r.Action, "dynamodb:") {
				own = all["table"]
			}
			if got, sid := policytest.Decide(r, all[who], own); got != want {
				t.Errorf("%s by the %s: %s by %q, want %s", tt.name, who, got, sid, want)
			}
			// The role's policy alone holds, too, where it has a say.
			if who == "writer" && want == no {
				if got, sid := policytest.Decide(r, all[who], all["anything"]); got != no {
					t.Errorf("%s with the writer's policy beside one that allows all: %s by %q", tt.name, got, sid)
				}
			}
		}
	}
}

func parse(t testing.TB, text []byte) *policytest.Policy {
	t.Helper()
	p, err := policytest.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Nobody known is no administrator, and neither is a role of the same name
// elsewhere; a session's context has its role's ARN.
func TestAdministrators(t *testing.T) {
	c := configs()["other-root"]
	docs, _ := documents(t, c, policy.Bucket)
	own := parse(t, docs[0].JSON())
	r := on("s3:DeleteObject", c.Prefix+"a")
	for who, want := range map[string]policytest.Decision{
		"": no, admin: none, "arn:aws:iam::444455556666:role/admin": no, "arn:aws:iam::111122223333:root": no,
		"arn:aws:iam::111122223333:role/aws-reserved/sso.amazonaws.com/eu-central-1/AWSReservedSSO_Admin_0123456789abcdef": none,
		"arn:aws:iam::111122223333:role/aws-reserved/sso.amazonaws.com/eu-central-1/AWSReservedSSO_Read_0123456789abcdef":  no,
	} {
		r.Principal = who
		if got, _ := policytest.Decide(r, own); got != want {
			t.Errorf("DeleteObject by %q: %s, want %s", who, got, want)
		}
	}
	// The prefix's $, * and ? are themselves.
	r.Principal, r.Resource = stranger, "arn:aws:s3:::bucket/odd $xx \\\"%{x}${y}/a"
	if got, _ := policytest.Decide(r, own); got != none {
		t.Errorf("a key that differs where the prefix has *: %s", got)
	}
	// Another account's writer is let in by the bucket itself.
	in := put(c.Prefix+"a", ifMatch, etag)
	in.Principal = c.Writers[0]
	if got, _ := policytest.Decide(in, own); got != yes {
		t.Errorf("a writer of another account: %s", got)
	}
	root := parse(t, docs[1].JSON())
	for key, want := range map[string]policytest.Decision{
		".s3fence/scopes/nightly.json": yes, ".s3fence/scopes/other.json": none, "bucket/.s3fence/profile.json": no, "other": none,
	} {
		in.Resource = "arn:aws:s3:::roots/s3fence/" + key
		if got, _ := policytest.Decide(in, root); got != want {
			t.Errorf("%s by a writer of another account: %s, want %s", key, got, want)
		}
	}
}

// Scopes that end with an asterisk.
func TestScopePatterns(t *testing.T) {
	c := configs()["plain"]
	c.Scopes = []string{"nightly/*", "hourly"}
	docs, _ := documents(t, c, policy.Writer)
	p := parse(t, docs[0].JSON())
	for scope, want := range map[string]policytest.Decision{"nightly/a/b": yes, "hourly": yes, "nightly": no, "hourly2": no} {
		if got, _ := policytest.Decide(item("dynamodb:UpdateItem", scope), p); got != want {
			t.Errorf("UpdateItem of %s: %s, want %s", scope, got, want)
		}
	}
	for key, want := range map[string]policytest.Decision{"nightly/a.json": yes, "hourly.json": yes, "hourly2.json": none} {
		if got, _ := policytest.Decide(put(".s3fence/scopes/"+key, ifNoneMatch, "*"), p); got != want {
			t.Errorf("claim %s: %s, want %s", key, got, want)
		}
	}
}

// Counters in S3: a writer may read those of its scopes and write them under a
// condition, and nobody but an administrator may take one away.
func TestCounters(t *testing.T) {
	for name, at := range map[string]string{
		"counters": "arn:aws:s3:::bucket/team/.s3fence/counters/", "counters-apart": "arn:aws:s3:::counters/.s3fence/counters/",
		"counters-minio": "arn:aws:s3:::counters/.s3fence/counters/",
	} {
		docs, notes := documents(t, configs()[name])
		all := map[string]*policytest.Policy{}
		for _, d := range docs {
			all[d.Name] = parse(t, d.JSON())
		}
		own := all["bucket"]
		if name == "counters-apart" {
			own = all["bucket-issuer"]
		}
		if own == nil { // on MinIO
			own = &policytest.Policy{}
		}
		if len(notes) > 0 && strings.Contains(strings.Join(notes, " "), "holds the counters") {
			t.Errorf("%s: %q", name, notes)
		}
		unconditional := no
		if name == "counters-minio" {
			unconditional = yes
		}
		for _, tt := range []struct {
			what                  string
			request               policytest.Request
			key                   string
			writer, reader, admin policytest.Decision
		}{
			{"take a number", put("", ifMatch, etag), "nightly.json", yes, no, yes},
			{"make the counter", put("", ifNoneMatch, "*"), "nightly/report.json", yes, no, yes},
			{"set it with no condition", put(""), "nightly.json", unconditional, no, unconditional},
			{"another scope's", put("", ifMatch, etag), "other.json", none, no, yes},
			{"the profile's", put("", ifMatch, etag), "s3fence/profile.json", none, no, yes},
			{"look", on("s3:GetObject", ""), "nightly.json", yes, none, yes},
			{"take it away", on("s3:DeleteObject", ""), "nightly.json", no, no, yes},
			{"set it back", on("s3:DeleteObjectVersion", ""), "nightly.json", no, no, yes},
		} {
			if name == "counters" && tt.what == "look" {
				tt.reader = yes // all that is guarded in the bucket
			}
			for who, want := range map[string]policytest.Decision{"writer": tt.writer, "reader": tt.reader, "admin": tt.admin} {
				r := tt.request
				r.Resource, r.Principal = at+tt.key, map[string]string{"writer": writer, "reader": writer, "admin": admin}[who]
				if got, sid := policytest.Decide(r, all[who], own); got != want {
					t.Errorf("%s: %s by the %s: %s by %q, want %s", name, tt.what, who, got, sid, want)
				}
			}
		}
	}
	c := configs()["counters"]
	c.Prefix = "te"
	if _, notes := documents(t, c, policy.Writer); !slices.ContainsFunc(notes, func(n string) bool {
		return strings.Contains(n, "s3://bucket/te holds the counters as well: a writer can set those of other scopes back")
	}) {
		t.Errorf("notes of a prefix that holds the counters: %q", notes)
	}
}

func TestPartitions(t *testing.T) {
	for region, want := range map[string]string{"": "aws", "eu-central-1": "aws", "cn-north-1": "aws-cn", "us-gov-west-1": "aws-us-gov"} {
		docs, _, err := policy.Documents(policy.Config{Bucket: "bucket", Region: region}, policy.Reader)
		if err != nil || !strings.Contains(string(docs[0].JSON()), `"arn:`+want+`:s3:::bucket"`) {
			t.Errorf("region %q: %v, not of %s", region, err, want)
		}
	}
}

// What AWS takes: 6,144 characters of a managed policy, 20 KB of a bucket's.
func TestSizes(t *testing.T) {
	c := configs()["whole-bucket"]
	long := func(n int) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprintf("%s/%03d", strings.Repeat("s", 124), i))
		}
		return all
	}
	most := 0
	for n := 1; ; n++ {
		c.Scopes = long(n)
		docs, _, err := policy.Documents(c, policy.Writer)
		if err != nil {
			if !strings.Contains(err.Error(), "the writer policy has ") || !strings.Contains(err.Error(), "at most 6144") || !strings.Contains(err.Error(), "asterisk") {
				t.Error(err)
			}
			break
		}
		most = n
		var b bytes.Buffer
		if err := json.Compact(&b, docs[0].JSON()); err != nil || b.Len() > 6144 {
			t.Fatalf("%d scopes: %d characters, %v", n, b.Len(), err)
		}
	}
	if most < 5 {
		t.Errorf("only %d of the longest scopes fit", most)
	}
	c = configs()["other-root"]
	for i := range 400 {
		c.Readers = append(c.Readers, fmt.Sprintf("arn:aws:iam::444455556666:role/reader-%03d", i))
	}
	if _, _, err := policy.Documents(c, policy.Bucket); err == nil || !strings.Contains(err.Error(), "at most 20480") {
		t.Errorf("400 readers: %v", err)
	}
}

func TestBadConfigs(t *testing.T) {
	for _, tt := range []struct {
		name string
		c    policy.Config
		role policy.Role
		want []string
	}{
		{"nothing", policy.Config{}, policy.Bucket, []string{`bucket "" is not a bucket's name`, "who is the administrator?"}},
		{"directory bucket", policy.Config{Bucket: "b--euc1-az1--x-s3"}, policy.Reader, []string{"directory bucket"}},
		{"wildcard in the bucket", policy.Config{Bucket: "b*"}, policy.Reader, []string{"is not a bucket's name"}},
		{"prefix", policy.Config{Bucket: "bucket", Prefix: "a/日本"}, policy.Reader, []string{`name the part before "日本"`}},
		{"session", policy.Config{Bucket: "bucket", Admins: []string{"arn:aws:sts::111122223333:assumed-role/admin/ann"}}, policy.Bucket, []string{"is a session: name its role"}},
		{"everybody", policy.Config{Bucket: "bucket", Admins: []string{"arn:aws:iam::111122223333:role/*"}}, policy.Bucket, []string{"not the ARN of a role or user"}},
		{"no ARN", policy.Config{Bucket: "bucket", Admins: []string{"*"}}, policy.Bucket, []string{"not the ARN of a role or user"}},
		{"wildcard writer", policy.Config{Bucket: "bucket", Writers: []string{"arn:aws:iam::111122223333:role/a*"}}, policy.Reader, []string{"not the ARN of a role or user"}},
		{"partitions", policy.Config{Bucket: "bucket", Region: "cn-north-1", Admins: []string{admin}}, policy.Bucket, []string{"is not of the partition aws-cn"}},
		{"partition", policy.Config{Bucket: "bucket", Partition: "azure"}, policy.Reader, []string{"none of aws, aws-cn, aws-us-gov"}},
		{"region", policy.Config{Bucket: "bucket", Region: "Europe"}, policy.Reader, []string{`region "Europe"`}},
		{"account", policy.Config{Bucket: "bucket", Account: "1111"}, policy.Reader, []string{`account "1111"`}},
		{"table", policy.Config{Bucket: "bucket", Table: "t/*"}, policy.Reader, []string{`table "t/*"`}},
		{"alias", policy.Config{Bucket: "bucket", KMSKeys: []string{"arn:aws:kms:eu-central-1:111122223333:alias/k"}}, policy.Reader, []string{"an alias is none"}},
		{"no scope", policy.Config{Bucket: "bucket", Table: "s3fence"}, policy.Writer, []string{"which scopes"}},
		{"no scope, counters", policy.Config{Bucket: "bucket", IssuerBucket: "bucket"}, policy.Writer, []string{"which scopes"}},
		{"counters' bucket", policy.Config{Bucket: "bucket", IssuerBucket: "c*"}, policy.Reader, []string{`bucket "c*" is not a bucket's name`}},
		{"counters' prefix", policy.Config{Bucket: "bucket", IssuerBucket: "bucket", IssuerPrefix: "日"}, policy.Reader, []string{`prefix "日"`}},
		{"bad scope", policy.Config{Bucket: "bucket", Table: "s3fence", Scopes: []string{"a b"}}, policy.Writer, []string{"scope"}},
		{"all scopes", policy.Config{Bucket: "bucket", Table: "s3fence", Scopes: []string{"*"}}, policy.Writer, []string{"s3fence/profile is the administrator's"}},
		{"the profile's scope", policy.Config{Bucket: "bucket", Table: "s3fence", Scopes: []string{"s3fence/profile"}}, policy.Writer, []string{"the administrator's"}},
		{"MinIO", policy.Config{Bucket: "bucket", Prefix: "a*", Dialect: policy.MinIO}, policy.Reader, []string{"MinIO's policies have no way"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			docs, _, err := policy.Documents(tt.c, tt.role)
			if err == nil || docs != nil {
				t.Fatalf("%d documents, %v", len(docs), err)
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not say %q", err, w)
				}
			}
		})
	}
}
