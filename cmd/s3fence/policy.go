package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/s3fence/s3fence/s3store/policy"
)

// policyJSON is policy's line of JSON.
type policyJSON struct {
	Op  string `json:"op"`
	URL string `json:"url"`
	// Documents are the policies by name; Terraform is their configuration.
	// One of the two is there.
	Documents map[string]policy.Document `json:"documents,omitempty"`
	Terraform string                     `json:"terraform,omitempty"`
	Notes     []string                   `json:"notes,omitempty"`
}

// policyFlags are the flags of policy.
type policyFlags struct {
	roles, scopes, admins, writers, readers, keys []string
	format, dialect, account, partition           string
}

func (a *app) policyCommand() *cobra.Command {
	var p policyFlags
	c := &cobra.Command{
		Use:   "policy URL",
		Short: "Write the policies that leave no way around the guard",
		Long: `Policy prints policies for what is guarded under URL: every key that begins so,
and s3fence's own objects. It sends nothing and changes nothing.

  bucket   the bucket's own: writes without a condition are denied to everybody;
           deletes, copies, replication into it and its settings to all but
           --admin-arn
  table    the DynamoDB table's own; it takes --region and --account
  writer   may write under the guard and take tokens of --scope from --issuer
  reader   may read
  admin    may init, adopt, prove, audit and delete

Where --root, or the counters of --issuer s3://BUCKET/PREFIX, are in another
bucket, that has a policy of its own. One role's policy is printed as it is,
several as one object by their names.
Notes on what is not enforced go to standard error. MinIO (--for minio) has no
conditions on If-Match: there, only deletes and settings can be denied.`,
		Example: `  # 1. put the bucket's policy in force; it replaces the one that is there
  s3fence policy s3://bucket/reports/ --role bucket \
    --admin-arn arn:aws:iam::111122223333:role/admin > policy.json
  aws s3api put-bucket-policy --bucket bucket --policy file://policy.json

  # 2. all of them, for Terraform
  s3fence policy s3://bucket/reports/ --scope nightly --region eu-central-1 --account 111122223333 \
    --admin-arn arn:aws:iam::111122223333:role/admin --format terraform > s3fence.tf

  # 3. a job's policy on MinIO, where the counters are, too
  s3fence policy s3://bucket/reports/ --role writer --scope nightly --issuer s3://bucket/team --for minio > writer.json
  mc admin policy create minio nightly writer.json`,
		Args: nargs("URL"),
	}
	f := c.Flags()
	f.StringSliceVar(&p.roles, "role", []string{"all"}, "bucket, table, writer, reader, admin or all; several with commas between")
	f.StringVar(&p.format, "format", "json", "json or terraform")
	f.StringVar(&p.dialect, "for", string(policy.AWS), "the server whose policies they are: aws or minio")
	// Not the persistent flag, which names one scope to take a token of.
	f.StringArrayVar(&p.scopes, "scope", nil, "a writer may take tokens of this `SCOPE`, or of all that begin so (SCOPE*); may be repeated [S3FENCE_SCOPE]")
	f.StringArrayVar(&p.admins, "admin-arn", nil, "`ARN` of a role or user who may delete and change settings; may be repeated")
	f.StringArrayVar(&p.writers, "writer-arn", nil, "`ARN` of a writer in another account, let in by the bucket; may be repeated")
	f.StringArrayVar(&p.readers, "reader-arn", nil, "`ARN` of a reader in another account, let in by the bucket; may be repeated")
	f.StringArrayVar(&p.keys, "kms-key", nil, "`ARN` of a KMS key that the objects are encrypted with; may be repeated")
	f.StringVar(&p.account, "account", "", "the 12 digits of the table's AWS account (default any)")
	f.StringVar(&p.partition, "partition", "", "aws, aws-cn or aws-us-gov (default that of the region, or of the ARNs)")
	c.RunE = func(_ *cobra.Command, args []string) error { return a.policy(args[0], p) }
	return c
}

func (a *app) policy(url string, p policyFlags) error {
	c, roles, err := a.policyConfig(url, p)
	if err != nil {
		return err
	}
	docs, notes, err := policy.Documents(c, roles...)
	if err != nil {
		return usageError{err}
	}
	j := policyJSON{Op: "policy", URL: url, Notes: notes}
	if p.format == "terraform" {
		// Its comments hold the notes.
		j.Terraform = string(policy.Terraform(c, docs, notes))
		return a.answer(j, strings.TrimSuffix(j.Terraform, "\n"))
	}
	j.Documents = make(map[string]policy.Document, len(docs))
	for _, d := range docs {
		j.Documents[d.Name] = d
	}
	if !a.quiet && !a.json {
		for _, n := range notes {
			fmt.Fprintf(a.stderr, "s3fence: note: %s\n", n)
		}
	}
	return a.answer(j, strings.TrimSuffix(string(policy.JSON(docs)), "\n"))
}

// policyConfig reads what the flags and the environment say.
func (a *app) policyConfig(url string, p policyFlags) (c policy.Config, roles []policy.Role, err error) {
	if dir, fromFlag := a.setting("local"); dir != "" && fromFlag {
		return c, nil, usagef("--local has no policies: whoever can write to its folder can write around the guard")
	}
	if c.Bucket, c.Prefix, err = parseURL(url); err != nil {
		return c, nil, err
	}
	if c.RootBucket, c.Root, err = a.root(""); err != nil {
		return c, nil, err
	}
	if c.IssuerBucket, c.IssuerPrefix, err = a.issuerBucket(); err != nil {
		return c, nil, err
	}
	if c.IssuerBucket == "" {
		if c.Table, err = a.tableName(); err != nil {
			return c, nil, err
		}
	}
	c.Dialect = policy.Dialect(p.dialect)
	switch {
	case c.Dialect != policy.AWS && c.Dialect != policy.MinIO:
		return c, nil, usagef("--for %q is neither aws nor minio", p.dialect)
	case p.format != "json" && p.format != "terraform":
		return c, nil, usagef("--format %q is neither json nor terraform", p.format)
	case p.format == "terraform" && c.Dialect == policy.MinIO:
		return c, nil, usagef("--format terraform writes resources of AWS's provider, which makes no policies of MinIO's: use --format json")
	}
	for _, r := range p.roles {
		switch role := policy.Role(r); {
		case r == "all":
			roles = append(roles, policy.Roles()...)
		case !slices.Contains(policy.Roles(), role):
			return c, nil, usagef("--role %q is none of bucket, table, writer, reader, admin, all", r)
		case role == policy.Table && c.IssuerBucket != "":
			return c, nil, usagef("--issuer s3://%s has no table: its counters are in the policies of --role bucket,writer,admin", c.IssuerBucket)
		case role == policy.Bucket && c.Dialect == policy.MinIO:
			return c, nil, usagef("MinIO looks at a bucket's policy only for requests without credentials: give its users the policies of --role writer,reader,admin")
		default:
			roles = append(roles, role)
		}
	}
	c.Scopes = p.scopes
	if scope, _ := a.setting("scope"); len(c.Scopes) == 0 && scope != "" {
		c.Scopes = []string{scope}
	}
	c.Region, _ = a.setting("region")
	for _, env := range []string{"AWS_REGION", "AWS_DEFAULT_REGION"} {
		if c.Region == "" {
			c.Region = a.getenv(env)
		}
	}
	c.Account, c.Partition = p.account, p.partition
	c.Admins, c.Writers, c.Readers, c.KMSKeys = p.admins, p.writers, p.readers, p.keys
	return c, roles, nil
}
