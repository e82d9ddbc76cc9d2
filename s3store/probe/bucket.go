package probe

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/s3fence/s3fence/guard"
)

// setting judges the error of reading a setting: absent says that there is
// none. What may not be read is no failure of the store's.
func setting(err error, absent string) (finding, error) {
	status, code := statusOf(err)
	switch {
	case status == 404 && code != "NoSuchBucket":
		return found(Info, "%s", absent), nil
	case status == 403 || status == 401:
		return found(Skipped, "not allowed to read it: %s", words(err)), nil
	case status >= 400 && code != "NoSuchBucket" && status != 503:
		return found(Skipped, "the store does not say: %s", words(err)), nil
	}
	return finding{}, err
}

func (p *probe) bucketVersioning(ctx context.Context) (finding, error) {
	out, err := p.S3.GetBucketVersioning(ctx, &s3.GetBucketVersioningInput{Bucket: &p.Bucket}, once)
	if err != nil {
		return setting(err, "off")
	}
	p.versioning = string(out.Status)
	switch p.versioning {
	case "":
		return found(Info, "off"), nil
	case "Enabled":
		return found(Info, "on"), nil
	}
	return found(Info, "%s", strings.ToLower(p.versioning)), nil
}

// errRetention: the probe would leave objects that nobody can remove.
var errRetention = errors.New("the bucket keeps every object under retention, so the probe's could not be removed; prove another bucket of the same store, and write here with --no-profile")

func (p *probe) bucketObjectLock(ctx context.Context) (finding, error) {
	out, err := p.S3.GetObjectLockConfiguration(ctx, &s3.GetObjectLockConfigurationInput{Bucket: &p.Bucket}, once)
	if err != nil {
		return setting(err, "off")
	}
	c := out.ObjectLockConfiguration
	switch {
	case c == nil || c.ObjectLockEnabled != types.ObjectLockEnabledEnabled:
		return found(Info, "off"), nil
	case c.Rule == nil || c.Rule.DefaultRetention == nil || c.Rule.DefaultRetention.Mode == "":
		return found(Info, "on, with no default retention"), nil
	}
	return finding{}, errRetention
}

// bucketLifecycle looks for rules that expire what is, or will be, guarded.
func (p *probe) bucketLifecycle(ctx context.Context) (finding, error) {
	out, err := p.S3.GetBucketLifecycleConfiguration(ctx, &s3.GetBucketLifecycleConfigurationInput{Bucket: &p.Bucket}, once)
	if err != nil {
		return setting(err, "no rules")
	}
	var bad []string
	for _, r := range out.Rules {
		if r.Status != types.ExpirationStatusEnabled || !expires(r) {
			continue
		}
		prefix := rulePrefix(r)
		for _, ours := range []string{p.Guarded, guard.RootKey(p.opts.Prefix, "")} {
			if strings.HasPrefix(ours, prefix) || strings.HasPrefix(prefix, ours) {
				bad = append(bad, fmt.Sprintf("rule %q expires objects under %q", aws.ToString(r.ID), prefix))
				break
			}
		}
	}
	if len(bad) > 0 {
		return found(Warn, "%s: with an object goes its high-water mark", strings.Join(bad, "; ")), nil
	}
	return found(Info, "%d rules, none expires guarded objects", len(out.Rules)), nil
}

func expires(r types.LifecycleRule) bool {
	e := r.Expiration
	return e != nil && (e.Days != nil && *e.Days > 0 || e.Date != nil)
}

func rulePrefix(r types.LifecycleRule) string {
	switch f := r.Filter; {
	case f == nil:
		return aws.ToString(r.Prefix) //nolint:staticcheck // deprecated, and still in use in old rules
	case f.And != nil:
		return aws.ToString(f.And.Prefix)
	default:
		return aws.ToString(f.Prefix)
	}
}

func (p *probe) bucketReplication(ctx context.Context) (finding, error) {
	out, err := p.S3.GetBucketReplication(ctx, &s3.GetBucketReplicationInput{Bucket: &p.Bucket}, once)
	if err != nil {
		return setting(err, "none")
	}
	n := 0
	if c := out.ReplicationConfiguration; c != nil {
		for _, r := range c.Rules {
			if r.Status == types.ReplicationRuleStatusEnabled {
				n++
			}
		}
	}
	if n > 0 {
		return found(Warn, "%d rules are on: write on one side only, the other lags behind", n), nil
	}
	return found(Info, "none"), nil
}

func (p *probe) bucketEncryption(ctx context.Context) (finding, error) {
	out, err := p.S3.GetBucketEncryption(ctx, &s3.GetBucketEncryptionInput{Bucket: &p.Bucket}, once)
	if err != nil {
		return setting(err, "none by default")
	}
	if c := out.ServerSideEncryptionConfiguration; c != nil {
		for _, r := range c.Rules {
			if d := r.ApplyServerSideEncryptionByDefault; d != nil {
				return found(Info, "%s by default", d.SSEAlgorithm), nil
			}
		}
	}
	return found(Info, "none by default"), nil
}

func (p *probe) deleteMarker(ctx context.Context) (finding, error) {
	if p.versioning != "Enabled" {
		return found(Skipped, "the bucket keeps no versions"), nil
	}
	return p.overMarker(ctx)
}

func (p *probe) suspendedVersioning(ctx context.Context) (finding, error) {
	if p.versioning != "Suspended" {
		return found(Skipped, "versioning is not suspended"), nil
	}
	return p.overMarker(ctx)
}

// overMarker deletes an object around the guard, twice, and looks what can be
// seen and written then.
func (p *probe) overMarker(ctx context.Context) (finding, error) {
	key, w, err := p.create(ctx, "marker")
	if err != nil {
		return finding{}, err
	}
	var lost, create string
	for i := range 2 {
		_, err := p.S3.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &p.Bucket, Key: &key}, once)
		switch {
		case denied(err):
			return found(Skipped, "not allowed to delete: %s", words(err)), nil
		case err != nil:
			return finding{}, step("delete an object", err)
		}
		obj, err := p.Store.Head(ctx, key, guard.HeadOptions{})
		switch {
		case err == nil:
			return found(Fail, "HEAD still shows a deleted object"), nil
		case !errors.Is(err, guard.ErrNotFound):
			return finding{}, err
		case !obj.DeleteMarker:
			lost = "HEAD does not tell a delete marker from no object"
		}
		// In a bucket whose versioning is suspended, the null version is gone
		// with its marker: there is no fenced version left to be seen.
		if p.versioning == "Enabled" {
			under, err := p.underMarker(ctx, key, w)
			if err != nil {
				return finding{}, err
			}
			if under != "" {
				lost = under
			}
		}
		late := p.content("marker-late")
		f, err := wantRefused(p.put(ctx, key, guard.IfMatch(w.etag), &late))
		if f.verdict != Pass {
			f.got = "If-Match over a delete marker: " + f.got
			return f, err
		}
		next := p.content("marker-%d", i)
		switch err := p.put(ctx, key, guard.IfAbsent(), &next); judge(err) {
		case took:
			w = next
		case none, failed:
			return finding{}, err
		default:
			create = "If-None-Match:* over a delete marker is answered " + words(err)
			return limited(LimitCreateOverMarker, "%s", create), nil
		}
		diff, err := p.compare(ctx, key, w)
		if err != nil {
			return finding{}, err
		}
		if diff != "" {
			return found(Fail, "created over a delete marker, but %s", diff), nil
		}
	}
	if lost != "" {
		return limited(LimitFenceLost, "%s", lost), nil
	}
	return found(Pass, "the marker is seen, If-Match refused, If-None-Match:* taken, twice"), nil
}

// underMarker looks for w's record in the versions under the marker.
func (p *probe) underMarker(ctx context.Context, key string, w written) (string, error) {
	marker := false
	for v, err := range guard.Versions(ctx, p.Store, key) {
		if err != nil {
			if a := judge(err); a == none && !errors.Is(err, guard.ErrDenied) || a == failed {
				return "", err
			}
			return "versions can't be listed: " + words(err), nil
		}
		if v.DeleteMarker {
			marker = true
			continue
		}
		obj, err := p.Store.Head(ctx, key, guard.HeadOptions{VersionID: v.ID})
		if err != nil {
			if a := judge(err); a == none && !errors.Is(err, guard.ErrDenied) || a == failed {
				return "", err
			}
			return "the version under the marker can't be read: " + words(err), nil
		}
		switch {
		case !marker:
			return "the list of versions does not begin with the marker", nil
		case obj.Metadata[tagKey] != w.meta[tagKey]:
			return "the newest version under the marker is not the newest write", nil
		}
		return "", nil
	}
	return "the versions are not listed", nil
}
