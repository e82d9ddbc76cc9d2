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
	case code == "InvalidBucketName" || code == "InvalidURI":
		return finding{}, err
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
		f, err := setting(err, "off")
		if f.verdict != Skipped || err != nil {
			return f, err
		}
		return p.versionsByAnswer(ctx, f)
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

// unknown is a versioning that can't be found out.
const unknown = "unknown"

// versionsByAnswer looks at the answer to a write for what can't be read, as f says.
func (p *probe) versionsByAnswer(ctx context.Context, f finding) (finding, error) {
	p.versioning = unknown
	w, err := p.tryFirst(ctx)
	switch {
	case err != nil:
		return finding{}, err
	case w.id == "null":
		p.versioning = "Suspended"
	case w.id != "":
		p.versioning = "Enabled"
	default:
		f.got = "not known, and a write's answer named no version; " + f.got
		return f, nil
	}
	return found(Info, "%s, by the version that a write's answer named; %s", strings.ToLower(p.versioning), f.got), nil
}

// keepsVersions reports whether a delete by name leaves a marker.
func (p *probe) keepsVersions() bool {
	return p.versioning == "Enabled" || p.versioning == "Suspended"
}

// A firstWrite is one version that was written before the many.
type firstWrite struct {
	id string
	// kept is why it could not be removed.
	kept error
}

// tryFirst writes one object where a setting can't be read, once, and removes
// its version.
func (p *probe) tryFirst(ctx context.Context) (firstWrite, error) {
	if p.first != nil {
		return *p.first, nil
	}
	p.first = &firstWrite{}
	key := p.key("first")
	w := p.content("first")
	res, err := p.Store.Put(ctx, key, w.request(guard.IfAbsent()))
	switch a := judge(err); {
	case a == none:
		return firstWrite{}, err
	case a != took, res.VersionID == "": // what is wrong with it is for other checks
		return firstWrite{}, nil
	}
	p.first.id = res.VersionID
	_, err = p.S3.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &p.Bucket, Key: &key, VersionId: &res.VersionID}, once)
	switch a := judge(err); {
	case denied(err), a == rejected, a == conflict, a == unsupported:
		p.first.kept = fmt.Errorf("a version of %s: %s", p.Store.URL(key), words(err))
		return *p.first, nil
	case a == refused: // it is gone
		return *p.first, nil
	}
	return *p.first, err
}

// errMayRetain is the same of a bucket whose Object Lock can't be read.
var errMayRetain = errors.New("the bucket may keep objects under retention, so nothing more was written: let whoever may read its Object Lock, or delete in it, prove it, or prove another bucket of the same store and write here with --no-profile")

// errRetention: the probe would leave objects that nobody can remove.
var errRetention = errors.New("the bucket keeps every object under retention, so the probe's could not be removed; prove another bucket of the same store, and write here with --no-profile")

func (p *probe) bucketObjectLock(ctx context.Context) (finding, error) {
	out, err := p.S3.GetObjectLockConfiguration(ctx, &s3.GetObjectLockConfigurationInput{Bucket: &p.Bucket}, once)
	if err != nil {
		f, err := setting(err, "off")
		if f.verdict != Skipped || err != nil {
			return f, err
		}
		// Retention takes versions: a version that can be removed has none.
		w, err := p.tryFirst(ctx)
		if err == nil && w.kept != nil {
			err = fmt.Errorf("%w (%s), and what was written first can't be removed (%w)", errMayRetain, f.got, w.kept)
		}
		return f, err
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
		prefix, tags := ruleFilter(r)
		for _, ours := range []string{p.Guarded, guard.RootKey(p.opts.Prefix, "")} {
			if strings.HasPrefix(ours, prefix) || strings.HasPrefix(prefix, ours) {
				bad = append(bad, fmt.Sprintf("rule %q expires objects under %q%s", aws.ToString(r.ID), prefix, tags))
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

// ruleFilter returns the prefix of a rule, and its other conditions in words.
func ruleFilter(r types.LifecycleRule) (prefix, rest string) {
	f := r.Filter
	if f == nil {
		return aws.ToString(r.Prefix), "" //nolint:staticcheck // deprecated, and still in use in old rules
	}
	and := types.LifecycleRuleAndOperator{Prefix: f.Prefix, ObjectSizeGreaterThan: f.ObjectSizeGreaterThan, ObjectSizeLessThan: f.ObjectSizeLessThan}
	if f.And != nil {
		and = *f.And
	}
	if f.Tag != nil {
		and.Tags = append(and.Tags, *f.Tag)
	}
	for _, t := range and.Tags {
		rest += fmt.Sprintf(" with the tag %s=%s", aws.ToString(t.Key), aws.ToString(t.Value))
	}
	if n := and.ObjectSizeGreaterThan; n != nil {
		rest += fmt.Sprintf(" of more than %d bytes", *n)
	}
	if n := and.ObjectSizeLessThan; n != nil {
		rest += fmt.Sprintf(" of less than %d bytes", *n)
	}
	return aws.ToString(and.Prefix), rest
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
	switch p.versioning {
	case "Enabled":
		return p.overMarker(ctx)
	case "Suspended":
		return found(Skipped, "versioning is suspended"), nil
	case unknown:
		return found(Skipped, "not known whether the bucket keeps versions"), nil
	}
	return found(Skipped, "the bucket keeps no versions"), nil
}

func (p *probe) suspendedVersioning(ctx context.Context) (finding, error) {
	switch p.versioning {
	case "Suspended":
		return p.overMarker(ctx)
	case unknown:
		return found(Skipped, "not known whether versioning is suspended"), nil
	}
	return found(Skipped, "versioning is not suspended"), nil
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
