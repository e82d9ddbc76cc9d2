package policy

import (
	"slices"

	"github.com/s3fence/s3fence/guard"
)

// A statement of a policy. An empty list is left out.
type statement struct {
	sid, effect string
	principals  []string // "*" is everybody
	actions     []string
	resources   []string
	condition   object
}

const allow, deny = "Allow", "Deny"

// The actions that a role needs, or that go around the guard.
var (
	readObjects = []string{"s3:GetObject", "s3:GetObjectTagging", "s3:GetObjectVersion"}
	// HEAD of a missing key is answered 403 to whoever may not list.
	listBucket = []string{"s3:ListBucket", "s3:ListBucketVersions"}
	// What the guard looks at before it writes.
	readSettings = []string{"s3:GetBucketLocation", "s3:GetBucketObjectLockConfiguration", "s3:GetBucketVersioning", "s3:GetEncryptionConfiguration"}

	writeObjects = []string{"s3:AbortMultipartUpload", "s3:ListMultipartUploadParts", "s3:PutObject", "s3:PutObjectTagging"}
	listUploads  = []string{"s3:ListBucketMultipartUploads"}

	deleteObjects = []string{"s3:DeleteObject", "s3:DeleteObjectVersion"}
	// Replication into the bucket writes and deletes with no condition.
	replicate = []string{"s3:ReplicateDelete", "s3:ReplicateObject"}
	// What the doctor reads.
	readAllSettings = []string{"s3:GetLifecycleConfiguration", "s3:GetReplicationConfiguration"}
	changeSettings  = []string{
		"s3:DeleteBucket", "s3:DeleteBucketPolicy", "s3:PutBucketPolicy", "s3:PutBucketVersioning",
		"s3:PutEncryptionConfiguration", "s3:PutLifecycleConfiguration", "s3:PutReplicationConfiguration",
	}
	// A bucket's removal with all that is in it, which only MinIO has.
	changeMinIO = []string{"s3:ForceDeleteBucket"}

	useScope = []string{"dynamodb:GetItem", "dynamodb:UpdateItem"}
	// None of these adds to a counter; each can set it back.
	changeItems = []string{
		"dynamodb:BatchWriteItem", "dynamodb:DeleteItem", "dynamodb:PartiQLDelete", "dynamodb:PartiQLInsert",
		"dynamodb:PartiQLUpdate", "dynamodb:PutItem",
	}
	changeTable = []string{
		"dynamodb:DeleteResourcePolicy", "dynamodb:DeleteTable", "dynamodb:PutResourcePolicy",
		"dynamodb:UpdateTable", "dynamodb:UpdateTimeToLive",
	}
	// What has the tokens of old events removed.
	expireEvents = []string{"dynamodb:DescribeTimeToLive", "dynamodb:UpdateTimeToLive"}
	// A table's own policy can't name these: they make a table.
	makeTable = []string{
		"dynamodb:CreateTable", "dynamodb:ImportTable", "dynamodb:RestoreTableFromAwsBackup",
		"dynamodb:RestoreTableFromBackup", "dynamodb:RestoreTableToPointInTime",
	}
)

// everybodyElse: all but the administrators, those with no ARN included.
func (c *Config) everybodyElse() field {
	return field{"ArnNotLike", object{{"aws:PrincipalArn", c.Admins}}}
}

// creates is true of the operations that make an object: PutObject, CopyObject
// and CompleteMultipartUpload, not the steps that lead to the latter. With
// IfExists a request that does not say is taken for one that does.
func creates() field { return field{"BoolIfExists", object{{"s3:ObjectCreationOperation", "true"}}} }

// conditional denies every write that does not name what it replaces.
func conditional(resources []string) []statement {
	put := []string{"s3:PutObject"}
	return []statement{
		{
			sid: "DenyUnconditionalWrites", effect: deny, actions: put, resources: resources,
			condition: object{
				{"Null", object{{"s3:if-match", "true"}, {"s3:if-none-match", "true"}}},
				creates(),
			},
		},
		// The guard sends one ETag, or If-None-Match: *. Anything else that a
		// store takes may hold of an object that nobody looked at.
		{
			sid: "DenyIfMatchAny", effect: deny, actions: put, resources: resources,
			condition: object{{"StringEquals", object{{"s3:if-match", "*"}}}},
		},
		{
			sid: "DenyIfNoneMatchOne", effect: deny, actions: put, resources: resources,
			condition: object{
				{"Null", object{{"s3:if-none-match", "false"}}},
				{"StringNotEquals", object{{"s3:if-none-match", "*"}}},
			},
		},
	}
}

// around are the other ways around the guard, in s3.
func (c *Config) around(objects, buckets []string) []statement {
	settings := changeSettings
	var all []statement
	if c.Dialect == MinIO {
		settings = slices.Concat(settings, changeMinIO)
	} else {
		// A copy brings its source's fence record along.
		all = append(all, statement{
			sid: "DenyCopies", effect: deny, actions: []string{"s3:PutObject"}, resources: objects,
			condition: object{{"Null", object{{"s3:x-amz-copy-source", "false"}}}, creates()},
		})
	}
	all = append(all,
		statement{sid: "DenyDeletes", effect: deny, actions: slices.Concat(deleteObjects, replicate), resources: objects},
		statement{sid: "DenySettings", effect: deny, actions: settings, resources: buckets})
	var profiles []string
	for _, b := range c.proven() {
		if in, root := c.profileRoot(b); slices.Contains(buckets, c.bucketARN(in)) {
			profiles = append(profiles, c.object(in, guard.RootKey(root, "profile.json")))
		}
	}
	if len(profiles) > 0 {
		all = append(all, statement{sid: "DenyProfile", effect: deny, actions: []string{"s3:PutObject"}, resources: profiles})
	}
	return all
}

// bucketPolicy is the policy of bucket.
func (c *Config) bucketPolicy(bucket string) []statement {
	objects, arn := c.guarded(bucket), []string{c.bucketARN(bucket)}
	all := conditional(objects)
	for _, s := range c.around(objects, arn) {
		s.condition = append(slices.Clone(s.condition), c.everybodyElse())
		all = append(all, s)
	}
	for i := range all {
		all[i].principals = []string{"*"}
	}
	for _, who := range []struct {
		sid  string
		arns []string
		role Role
	}{{"Writers", c.Writers, Writer}, {"Readers", c.Readers, Reader}} {
		if len(who.arns) == 0 {
			continue
		}
		for _, s := range c.use(bucket, who.role) {
			s.sid, s.principals = who.sid+s.sid, who.arns
			all = append(all, s)
		}
	}
	return all
}

// use lets somebody read what is guarded in bucket, and a writer write it.
func (c *Config) use(bucket string, r Role) []statement {
	switch {
	case !c.onlyCounters(bucket):
	case r == Reader:
		return nil
	case r == Writer:
		return c.count()
	}
	objects, settings, write := readObjects, readSettings, r == Writer
	if write {
		settings = slices.Concat(settings, listUploads)
	}
	all := []statement{{sid: "Read", effect: allow, actions: objects, resources: c.guarded(bucket)}}
	if write {
		var where []string
		if bucket == c.Bucket {
			where = append(where, c.objects(bucket, c.Prefix))
		}
		if bucket == c.RootBucket && !c.covers(bucket, guard.RootKey(c.Root, "")) {
			where = append(where, c.ofScopes(bucket, c.Root, "scopes")...)
		}
		if bucket == c.IssuerBucket && !c.covers(bucket, c.counters()) {
			where = append(where, c.ofScopes(bucket, c.IssuerPrefix, "counters")...)
		}
		if len(where) > 0 {
			all = append(all, statement{sid: "Write", effect: allow, actions: writeObjects, resources: where})
		}
	}
	arn := []string{c.bucketARN(bucket)}
	return append(all,
		statement{sid: "List", effect: allow, actions: listBucket, resources: arn, condition: c.listed(bucket)},
		statement{sid: "Settings", effect: allow, actions: settings, resources: arn})
}

// count lets a writer take numbers from counters in a bucket of their own.
func (c *Config) count() []statement {
	b := c.IssuerBucket
	all := []statement{{sid: "Counters", effect: allow, actions: []string{"s3:GetObject", "s3:PutObject"}, resources: c.ofScopes(b, c.IssuerPrefix, "counters")}}
	if in, root := c.profileRoot(b); in == b {
		all = append(all, statement{sid: "Profile", effect: allow, actions: []string{"s3:GetObject"}, resources: []string{c.object(in, guard.RootKey(root, "profile.json"))}})
	}
	return append(all, statement{sid: "List", effect: allow, actions: []string{"s3:ListBucket"}, resources: []string{c.bucketARN(b)}, condition: c.listed(b)})
}

// listed limits listing to what is guarded. IfExists: the question that HEAD
// of a missing key comes to names no prefix. MinIO has no IfExists.
func (c *Config) listed(bucket string) object {
	whole := bucket == c.Bucket && c.Prefix == ""
	if whole || c.Dialect == MinIO {
		return nil
	}
	var prefixes []string
	for _, b := range c.begins(bucket) {
		prefixes = append(prefixes, wildcards.Replace(b)+"*")
	}
	return object{{"StringLikeIfExists", object{{"s3:prefix", prefixes}}}}
}

// s3Statements are the part of a role's policy that is about objects. The
// denials are those of the bucket's policy once more: they hold where the
// bucket's is not in place, or another policy allows more.
func (c *Config) s3Statements(r Role) []statement {
	var all []statement
	for _, b := range c.buckets() {
		for _, s := range c.use(b.name, r) {
			s.sid = map[string]string{"": "", "root": "Root", "issuer": "Issuer"}[b.what] + s.sid
			all = append(all, s)
		}
	}
	all = append(all, c.keys(r)...)
	objects, arns := c.allGuarded(), c.bucketARNs()
	if r == Admin {
		all = append(all,
			statement{sid: "AdminObjects", effect: allow, actions: slices.Concat(deleteObjects, writeObjects), resources: objects},
			statement{sid: "AdminBuckets", effect: allow, actions: slices.Concat(readAllSettings, listUploads), resources: arns})
	}
	if c.Dialect == AWS && r != Reader {
		all = append(all, conditional(objects)...)
	}
	switch r {
	case Writer:
		all = append(all, c.around(objects, arns)...)
	case Reader:
		all = append(all, statement{
			sid: "DenyWrites", effect: deny, actions: slices.Concat(deleteObjects, replicate, []string{"s3:PutObject"}), resources: objects,
		})
	}
	return all
}

// keys lets a role use the objects' KMS keys. Decrypt is for multipart
// uploads, too.
func (c *Config) keys(r Role) []statement {
	if len(c.KMSKeys) == 0 || c.Dialect == MinIO {
		return nil
	}
	actions := []string{"kms:Decrypt"}
	if r != Reader {
		actions = append(actions, "kms:GenerateDataKey")
	}
	return []statement{{sid: "Keys", effect: allow, actions: actions, resources: c.KMSKeys}}
}

// tableStatements are the part of a role's policy that is about tokens.
func (c *Config) tableStatements(r Role) []statement {
	if c.Table == "" || r == Reader {
		return nil
	}
	table := []string{c.tableARN()}
	if r == Admin {
		return []statement{{
			sid: "AdminTable", effect: allow, resources: table,
			actions: slices.Concat([]string{"dynamodb:CreateTable", "dynamodb:DescribeTable"}, useScope, []string{"dynamodb:PutItem"}, expireEvents),
		}}
	}
	op, not := "StringEquals", "StringNotEquals"
	if slices.ContainsFunc(c.Scopes, func(s string) bool { return s[len(s)-1] == '*' }) {
		op, not = "StringLike", "StringNotLike"
	}
	scopes := object{{"dynamodb:LeadingKeys", c.Scopes}}
	return []statement{
		{
			sid: "Tokens", effect: allow, actions: useScope, resources: table,
			// ForAllValues is true of none at all.
			condition: object{
				{"ForAllValues:" + op, scopes},
				{"Null", object{{"dynamodb:LeadingKeys", "false"}}},
			},
		},
		{sid: "Table", effect: allow, actions: []string{"dynamodb:DescribeTable"}, resources: table},
		{
			sid: "DenyOtherScopes", effect: deny, actions: []string{"dynamodb:UpdateItem"}, resources: table,
			condition: object{{"ForAnyValue:" + not, scopes}},
		},
		{sid: "DenyTable", effect: deny, actions: slices.Concat(changeItems, changeTable, makeTable), resources: table},
	}
}

// tablePolicy is the table's own. What it denies it denies to its account,
// too, whatever a role's policy says.
func (c *Config) tablePolicy() []statement {
	return []statement{{
		sid: "DenyTable", effect: deny, principals: []string{"*"}, resources: []string{c.tableARN()},
		actions:   slices.Concat(changeItems, changeTable),
		condition: object{c.everybodyElse()},
	}}
}
