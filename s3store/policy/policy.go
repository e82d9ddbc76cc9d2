// Package policy writes the policies that leave writers no way around the
// guard: for the bucket, for what the issuer counts in, and for the roles that
// write, read and administer.
//
//	docs, notes, err := policy.Documents(policy.Config{
//		Bucket: "bucket", Prefix: "reports/", Table: "s3fence", Scopes: []string{"nightly"},
//		Admins: []string{"arn:aws:iam::111122223333:role/admin"},
//	}, policy.Bucket, policy.Writer)
//
// The functions are pure: nothing is read from the environment and nothing is
// sent. What the statements are for, and what no policy can stop, is in
// docs/policy.md.
package policy

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/s3fence/s3fence/guard"
)

// A Role names a document by whom, or what, it is for.
type Role string

// The roles.
const (
	// Bucket is the bucket's own policy. Where the root, or the counters, are in
	// another bucket, there is one for each.
	Bucket Role = "bucket"
	// Table is the DynamoDB table's own policy.
	Table Role = "table"
	// Writer may write under the guard, and take tokens of its scopes.
	Writer Role = "writer"
	// Reader may read.
	Reader Role = "reader"
	// Admin may init, adopt, prove, audit and delete. What else the denials
	// leave an administrator, such as the bucket's settings, is for other
	// policies to allow.
	Admin Role = "admin"
)

// Roles returns all roles, in the order of their documents.
func Roles() []Role { return []Role{Bucket, Table, Writer, Reader, Admin} }

// A Dialect is the policy language of one kind of server.
type Dialect string

// The dialects.
const (
	AWS Dialect = "aws"
	// MinIO knows no conditions on If-Match and If-None-Match, and looks at a
	// bucket's policy only for requests without credentials: what can be
	// enforced there is said in the notes.
	MinIO Dialect = "minio"
)

// A Config says what to guard, and from whom.
type Config struct {
	// Bucket and Prefix are what is guarded: every key that begins with
	// Prefix. Bucket is required; no Prefix is the whole bucket.
	Bucket, Prefix string
	// RootBucket and Root are where s3fence's own objects are:
	// <Root>/.s3fence/, and in another bucket than Bucket also
	// <Root>/<Bucket>/.s3fence/. Default: the top of Bucket.
	RootBucket, Root string
	// IssuerBucket and IssuerPrefix are where an issuer that counts in S3 has its
	// counters: <IssuerPrefix>/.s3fence/counters/. No IssuerBucket is none: the
	// tokens come from Table, or from elsewhere.
	IssuerBucket, IssuerPrefix string
	// Partition is aws, aws-cn or aws-us-gov. Default: that of Region, else
	// of the first ARN given, else aws.
	Partition string
	// Region and Account are the table's. Default: any, which leaves no table
	// policy.
	Region, Account string
	// Table is the issuer's DynamoDB table. Empty leaves DynamoDB out: tokens
	// come from elsewhere.
	Table string
	// Scopes are those whose tokens a writer may take. One that ends with an
	// asterisk stands for all that begin so. Required for a writer.
	Scopes []string
	// Admins are the ARNs of roles and users to whom the denials of deletes
	// and settings don't apply; * and ? are wildcards in a name. Required for
	// a bucket and a table: without one, only the account's root user could
	// undo them.
	Admins []string
	// Writers and Readers are ARNs that the bucket's policy lets in, for
	// roles and users of other accounts. Those of the bucket's own account
	// need only their role's policy.
	Writers, Readers []string
	// KMSKeys are the ARNs of the keys that the objects are encrypted with.
	// None: no customer key.
	KMSKeys []string
	// Dialect. Default: AWS.
	Dialect Dialect

	noRoot bool // RootBucket is a default: each bucket has its profile at its top
}

// A Document is one policy, and what it is to be attached to.
type Document struct {
	// Name is the role's, with -root for the root's bucket, -issuer for that of
	// the counters and -table for what MinIO can't hold of a role.
	Name string
	// On is the bucket's name or the table's ARN, for a policy of its own;
	// empty for one of a role.
	On string
	// statements of the policy.
	statements []statement
}

// The limits of AWS: of a managed policy, not counting white space, and of a
// bucket's or a table's, counting it.
const (
	maxManaged  = 6144
	maxResource = 20 << 10
)

// Documents returns the documents of roles, and notes on what they leave out,
// for people. The error names all that is wrong with c at once. A document
// that is larger than AWS takes is an error as well.
func Documents(c Config, roles ...Role) (docs []Document, notes []string, err error) {
	if err := c.settle(roles); err != nil {
		return nil, nil, err
	}
	for _, r := range Roles() {
		if !slices.Contains(roles, r) {
			continue
		}
		d, n := c.role(r)
		docs, notes = append(docs, d...), append(notes, n...)
	}
	if c.Dialect == MinIO {
		notes = append(notes,
			"MinIO knows no conditions on If-Match and If-None-Match: nothing stops a writer who leaves the guard out from writing with no condition; only deletes and settings are denied",
			"attach each to a user or a group, not to the bucket: MinIO looks at a bucket's policy only for requests without credentials")
	} else if slices.Contains(roles, Writer) && c.covers(c.RootBucket, guard.RootKey(c.Root, "")) {
		notes = append(notes, fmt.Sprintf(
			"%s holds s3fence's own objects as well: a writer can raise the fences of other scopes; guard a prefix to prevent that", c.url()))
	}
	if slices.Contains(roles, Writer) && c.covers(c.IssuerBucket, c.counters()) {
		notes = append(notes, fmt.Sprintf(
			"%s holds the counters as well: a writer can set those of other scopes back; guard a prefix, or count in another bucket, to prevent that", c.url()))
	}
	var errs []error
	for _, d := range docs {
		errs = append(errs, d.checkSize())
	}
	return docs, notes, errors.Join(errs...)
}

// role returns the documents of one role.
func (c *Config) role(r Role) (docs []Document, notes []string) {
	name := string(r)
	add := func(name, on string, s []statement) {
		if len(s) > 0 {
			docs = append(docs, Document{name, on, s})
		}
	}
	switch {
	case r == Bucket && c.Dialect == MinIO: // a note of the dialect's says why
	case r == Bucket:
		for _, b := range c.buckets() {
			add(strings.TrimSuffix(name+"-"+b.what, "-"), b.name, c.bucketPolicy(b.name))
		}
		notes = append(notes, "a bucket has one policy: put-bucket-policy replaces what is there; add its statements to these first")
	case r == Table && (c.Table == "" || len(c.Admins) == 0):
	case r == Table && !c.knowsTable():
		notes = append(notes, "the table's own policy is left out: its ARN takes --region and --account")
	case r == Table:
		add(name, c.tableARN(), c.tablePolicy())
	case c.Dialect == MinIO:
		add(name, "", c.s3Statements(r))
		add(name+"-table", "", c.tableStatements(r))
		if c.Table != "" && r == Writer {
			notes = append(notes, "the -table policies are for the roles in AWS that use DynamoDB: MinIO takes no dynamodb actions")
		}
	default:
		add(name, "", slices.Concat(c.s3Statements(r), c.tableStatements(r)))
	}
	return docs, notes
}

func (c *Config) url() string { return "s3://" + c.Bucket + "/" + c.Prefix }

func (c *Config) knowsTable() bool { return c.Region != "*" && c.Account != "*" }

// covers: what begins so in bucket is among the keys that a writer may write.
func (c *Config) covers(bucket, begin string) bool {
	return bucket == c.Bucket && strings.HasPrefix(begin, c.Prefix)
}

// counters is the beginning of all counters' keys.
func (c *Config) counters() string { return guard.RootKey(c.IssuerPrefix, "counters/") }

func (d Document) checkSize() error {
	long, limit := len(d.JSON()), maxResource
	what := "a policy of a bucket or a table"
	if d.On == "" {
		// White space in a key counts, though AWS does not say so.
		long, limit, what = len(d.compact()), maxManaged, "a managed policy"
	}
	if long > limit {
		return fmt.Errorf("the %s policy has %d characters, %s at most %d: name fewer scopes and ARNs, or the scopes' common beginning with an asterisk", d.Name, long, what, limit)
	}
	return nil
}

var (
	bucketName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{1,62}$`)
	tableName  = regexp.MustCompile(`^[A-Za-z0-9._-]{3,255}$`)
	account    = regexp.MustCompile(`^[0-9]{12}$`)
	region     = regexp.MustCompile(`^[a-z]{2,}(-[a-z0-9]+)+$`)
	partition  = regexp.MustCompile(`^aws(-[a-z]+)*$`)
	oneRole    = regexp.MustCompile(`^arn:aws[a-z-]*:iam::[0-9]{12}:(root|(user|role)/[\w+=,.@/-]+)$`)
	// Wildcards stand for a part of a name, as in that of a single sign-on's
	// role; one that stands for all names is no administrator.
	likeOne = regexp.MustCompile(`^arn:aws[a-z-]*:iam::[0-9]{12}:(root|(user|role)/[\w+=,.@/*?-]*[\w+=,.@-][\w+=,.@/*?-]*)$`)
	kmsKey  = regexp.MustCompile(`^arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[\w-]+$`)
)

// settle fills in what c leaves out and checks it all.
func (c *Config) settle(roles []Role) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	if c.Dialect == "" {
		c.Dialect = AWS
	}
	if c.RootBucket == "" {
		c.RootBucket, c.noRoot = c.Bucket, true
	}
	for i, b := range []string{c.Bucket, c.RootBucket, c.IssuerBucket} {
		switch {
		case i == 2 && b == "":
		case !bucketName.MatchString(b):
			bad("bucket %q is not a bucket's name", b)
		case strings.HasSuffix(b, "--x-s3"):
			bad("bucket %q is a directory bucket: access to it is by sessions, and no policy can demand conditional writes", b)
		}
	}
	for _, key := range []string{c.Prefix, c.Root, c.IssuerPrefix} {
		if i := strings.IndexFunc(key, func(r rune) bool { return r < ' ' || r > 0xff || r == 0x7f }); i >= 0 {
			bad("prefix %q: a policy takes no control characters and none beyond U+00FF: name the part before %q", key, key[i:])
		}
		if c.Dialect == MinIO && strings.ContainsAny(key, "*?$") {
			bad("prefix %q: MinIO's policies have no way to write *, ? and $ as themselves: name the part before", key)
		}
	}
	if c.Table != "" && !tableName.MatchString(c.Table) {
		bad("table %q is not a DynamoDB table's name", c.Table)
	}
	if c.Account != "" && !account.MatchString(c.Account) {
		bad("account %q is not the 12 digits of an AWS account", c.Account)
	}
	if c.Region != "" && !region.MatchString(c.Region) {
		bad("region %q is not a region's name, such as eu-central-1", c.Region)
	}
	for _, who := range []struct {
		what string
		arns []string
		form *regexp.Regexp
	}{{"administrator", c.Admins, likeOne}, {"writer", c.Writers, oneRole}, {"reader", c.Readers, oneRole}} {
		for _, arn := range who.arns {
			switch {
			case strings.Contains(arn, ":assumed-role/"):
				bad("%s %q is a session: name its role, arn:aws:iam::ACCOUNT:role/NAME", who.what, arn)
			case !who.form.MatchString(arn):
				bad("%s %q is not the ARN of a role or user, arn:aws:iam::ACCOUNT:role/NAME", who.what, arn)
			}
		}
	}
	for _, arn := range c.KMSKeys {
		if !kmsKey.MatchString(arn) {
			bad("KMS key %q is not a key's ARN, arn:aws:kms:REGION:ACCOUNT:key/ID; an alias is none", arn)
		}
	}
	c.settlePartition(&errs)
	for _, s := range c.Scopes {
		begin, any := strings.CutSuffix(s, "*")
		if err := guard.CheckScope(begin + map[bool]string{true: "x"}[any]); err != nil {
			errs = append(errs, err)
		} else if rest, with := strings.CutPrefix(guard.ProfileScope, begin); with && (any || rest == "") {
			bad("scope %q: %s is the administrator's, who proves the store", s, guard.ProfileScope)
		}
	}
	if slices.Contains(roles, Writer) && len(c.Scopes) == 0 && (c.Table != "" || c.IssuerBucket != "") {
		bad("which scopes may a writer take tokens of? name one at least: --scope SCOPE")
	}
	if own := slices.Contains(roles, Bucket) || slices.Contains(roles, Table); own && len(c.Admins) == 0 && c.Dialect == AWS {
		bad("who is the administrator? name a role or user: --admin-arn arn:aws:iam::ACCOUNT:role/NAME; without one, only the account's root user could undo the policy")
	}
	if c.Region == "" {
		c.Region = "*"
	}
	if c.Account == "" {
		c.Account = "*"
	}
	return errors.Join(errs...)
}

func (c *Config) settlePartition(errs *[]error) {
	of := func(arn string) string { return strings.Split(arn+":", ":")[1] }
	arns := slices.Concat(c.Admins, c.Writers, c.Readers, c.KMSKeys)
	switch {
	case c.Partition != "":
	case strings.HasPrefix(c.Region, "cn-"):
		c.Partition = "aws-cn"
	case strings.HasPrefix(c.Region, "us-gov-"):
		c.Partition = "aws-us-gov"
	case len(arns) > 0:
		c.Partition = of(arns[0])
	default:
		c.Partition = "aws"
	}
	if !partition.MatchString(c.Partition) {
		*errs = append(*errs, fmt.Errorf("partition %q is none of aws, aws-cn, aws-us-gov", c.Partition))
	}
	for _, arn := range arns {
		if p := of(arn); p != c.Partition && partition.MatchString(p) {
			*errs = append(*errs, fmt.Errorf("%q is not of the partition %s", arn, c.Partition))
		}
	}
}

// wildcards are written so that a policy takes them for themselves.
var wildcards = strings.NewReplacer("$", "${$}", "*", "${*}", "?", "${?}")

// objects is the ARN of all keys that begin with prefix.
func (c *Config) objects(bucket, prefix string) string {
	return c.object(bucket, prefix) + "*"
}

func (c *Config) object(bucket, key string) string {
	return c.bucketARN(bucket) + "/" + wildcards.Replace(key)
}

func (c *Config) bucketARN(bucket string) string { return "arn:" + c.s3Partition() + ":s3:::" + bucket }

// MinIO's ARNs are those of the partition aws.
func (c *Config) s3Partition() string {
	if c.Dialect == MinIO {
		return "aws"
	}
	return c.Partition
}

func (c *Config) tableARN() string {
	return fmt.Sprintf("arn:%s:dynamodb:%s:%s:table/%s", c.Partition, c.Region, c.Account, c.Table)
}

// begins are the beginnings of all keys in bucket that are guarded: the prefix,
// and where s3fence's own objects are.
func (c *Config) begins(bucket string) []string {
	var all []string
	add := func(in, begin string) {
		if in == bucket && !slices.ContainsFunc(all, func(b string) bool { return strings.HasPrefix(begin, b) }) {
			all = append(all, begin)
		}
	}
	add(c.Bucket, c.Prefix)
	add(c.RootBucket, guard.RootKey(c.Root, ""))
	for _, b := range c.proven() {
		in, root := c.profileRoot(b)
		add(in, guard.RootKey(root, ""))
		add(b, guard.RootKey(c.probeRoot(b), ""))
	}
	if c.IssuerBucket != "" {
		add(c.IssuerBucket, c.counters())
	}
	return all
}

// proven are the buckets that are written to, each of which has a profile where
// it is not AWS's.
func (c *Config) proven() []string {
	if c.IssuerBucket == "" || c.IssuerBucket == c.Bucket {
		return []string{c.Bucket}
	}
	return []string{c.Bucket, c.IssuerBucket}
}

// profileRoot is the root of the profile of bucket, and the bucket that it is
// in. A root in another bucket serves several, so it has a folder for each.
func (c *Config) profileRoot(bucket string) (in, root string) {
	switch {
	case c.noRoot:
		return bucket, ""
	case c.RootBucket == bucket:
		return bucket, c.Root
	}
	return c.RootBucket, strings.TrimLeft(strings.TrimRight(c.Root, "/")+"/"+bucket, "/")
}

// probeRoot is the root of what the doctor writes into bucket itself.
func (c *Config) probeRoot(bucket string) string {
	if c.RootBucket == bucket {
		return c.Root
	}
	return ""
}

// guarded are the ARNs of all that is guarded in bucket.
func (c *Config) guarded(bucket string) []string {
	var arns []string
	for _, b := range c.begins(bucket) {
		arns = append(arns, c.objects(bucket, b))
	}
	return arns
}

func (c *Config) allGuarded() []string {
	var arns []string
	for _, b := range c.buckets() {
		arns = append(arns, c.guarded(b.name)...)
	}
	return arns
}

// A usedBucket is one of those that a config names.
type usedBucket struct {
	name string
	what string // it is for besides what is guarded: "", root, issuer
}

func (c *Config) buckets() []usedBucket {
	all := []usedBucket{{c.Bucket, ""}}
	for _, b := range []usedBucket{{c.RootBucket, "root"}, {c.IssuerBucket, "issuer"}} {
		if b.name != "" && !slices.ContainsFunc(all, func(a usedBucket) bool { return a.name == b.name }) {
			all = append(all, b)
		}
	}
	return all
}

// onlyCounters: nobody who takes no tokens has to do with bucket.
func (c *Config) onlyCounters(bucket string) bool {
	return bucket != c.Bucket && bucket != c.RootBucket
}

func (c *Config) bucketARNs() []string {
	var arns []string
	for _, b := range c.buckets() {
		arns = append(arns, c.bucketARN(b.name))
	}
	return arns
}

// ofScopes are the ARNs of what is kept of the writer's scopes in a folder under
// a root.
func (c *Config) ofScopes(bucket, root, folder string) []string {
	var arns []string
	for _, s := range c.Scopes {
		begin, any := strings.CutSuffix(s, "*")
		key := guard.ScopeKey(root, folder, begin)
		if any {
			arns = append(arns, c.objects(bucket, strings.TrimSuffix(key, ".json")))
		} else {
			arns = append(arns, c.object(bucket, key))
		}
	}
	return arns
}
