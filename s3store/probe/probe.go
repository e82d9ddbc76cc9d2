// Package probe proves with real requests what a store does, instead of
// believing what it says. Many stores that speak S3 take If-Match and
// If-None-Match and ignore them, or get one PUT right and a multipart upload
// wrong, or answer HEAD with the metadata of one write and the ETag of
// another; a guard over such a store guards nothing.
//
//	report, err := probe.Run(ctx, probe.Target{
//		Store: s3store.New(client, "bucket", nil), S3: client, Bucket: "bucket",
//	}, nil)
//
// Run writes small objects under <root>/.s3fence/probe-<random>/ and removes
// them again. It never changes a setting of the bucket.
//
// A run can find that a store lies; that it found nothing is strong evidence
// and no proof, since races and torn reads come by chance. What it says holds
// for the store as it was then: prove it again after an upgrade.
package probe

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/s3fence/s3fence/guard"
)

// Version of the probe: it rises when a run proves more than it did before.
const Version = 1

// S3API is what the probe calls of an *s3.Client, for what [guard.Store] has
// no method for.
type S3API interface {
	PutObject(context.Context, *s3.PutObjectInput, ...func(*s3.Options)) (*s3.PutObjectOutput, error)
	DeleteObject(context.Context, *s3.DeleteObjectInput, ...func(*s3.Options)) (*s3.DeleteObjectOutput, error)
	CopyObject(context.Context, *s3.CopyObjectInput, ...func(*s3.Options)) (*s3.CopyObjectOutput, error)
	CreateMultipartUpload(context.Context, *s3.CreateMultipartUploadInput, ...func(*s3.Options)) (*s3.CreateMultipartUploadOutput, error)
	UploadPart(context.Context, *s3.UploadPartInput, ...func(*s3.Options)) (*s3.UploadPartOutput, error)
	CompleteMultipartUpload(context.Context, *s3.CompleteMultipartUploadInput, ...func(*s3.Options)) (*s3.CompleteMultipartUploadOutput, error)
	AbortMultipartUpload(context.Context, *s3.AbortMultipartUploadInput, ...func(*s3.Options)) (*s3.AbortMultipartUploadOutput, error)
	ListMultipartUploads(context.Context, *s3.ListMultipartUploadsInput, ...func(*s3.Options)) (*s3.ListMultipartUploadsOutput, error)
	ListObjectVersions(context.Context, *s3.ListObjectVersionsInput, ...func(*s3.Options)) (*s3.ListObjectVersionsOutput, error)
	GetBucketVersioning(context.Context, *s3.GetBucketVersioningInput, ...func(*s3.Options)) (*s3.GetBucketVersioningOutput, error)
	GetBucketEncryption(context.Context, *s3.GetBucketEncryptionInput, ...func(*s3.Options)) (*s3.GetBucketEncryptionOutput, error)
	GetBucketLifecycleConfiguration(context.Context, *s3.GetBucketLifecycleConfigurationInput, ...func(*s3.Options)) (*s3.GetBucketLifecycleConfigurationOutput, error)
	GetBucketReplication(context.Context, *s3.GetBucketReplicationInput, ...func(*s3.Options)) (*s3.GetBucketReplicationOutput, error)
	GetObjectLockConfiguration(context.Context, *s3.GetObjectLockConfigurationInput, ...func(*s3.Options)) (*s3.GetObjectLockConfigurationOutput, error)
}

var _ S3API = (*s3.Client)(nil)

// A Target is the bucket to prove.
type Target struct {
	// Store is the bucket as a guard would use it. Required.
	Store guard.Store
	// S3 is the same bucket's client, where it speaks S3. Without it, what
	// only S3 has (multipart uploads, deletes, copies, settings) is skipped.
	S3 S3API
	// Bucket is its name, required with S3.
	Bucket string
	// Remove deletes an object of the probe's where there is no S3 to do it
	// with. Default: none, and the probe's objects stay.
	Remove func(ctx context.Context, key string) error
	// Guarded is the prefix of the keys that will be guarded: lifecycle rules
	// that expire them are warned of. Default: the whole bucket.
	Guarded string
}

// Options of a run. The zero value of each field, and nil, mean its default.
type Options struct {
	// Quick makes fewer and smaller races and shorter hunts: under three
	// seconds on a local store. It asks for every property all the same.
	Quick bool
	// Progress is called before each check, from one goroutine.
	Progress func(done, total int, property string)
	// Checked is called after each check, from one goroutine.
	Checked func(Check)
	// Interrupted is called when the context has ended and objects of the
	// probe's, under where, are about to be removed.
	Interrupted func(where string)
	// Prefix is the root: the probe's objects go to <Prefix>/.s3fence/.
	// Default: the top of the bucket.
	Prefix string
}

// A Verdict is what one check comes to, and what a whole run does.
type Verdict string

// The verdicts. A run's own is Pass or Fail.
const (
	// Pass: the store does what was wanted.
	Pass Verdict = "pass"
	// Fail: it does not, and guarded writes need it.
	Fail Verdict = "fail"
	// Limit: it does not, and only the capability that [Check.Limit] names needs it.
	Limit Verdict = "limit"
	// Info: a fact about the store that nothing depends on.
	Info Verdict = "info"
	// Skipped: not applicable here, or not allowed.
	Skipped Verdict = "skipped"
	// Warn: nothing that the guard needs, but something to know of.
	Warn Verdict = "warn"
)

// The limits: capabilities that plain guarded PUTs don't need.
const (
	LimitMultipartIfNoneMatch = "multipart-if-none-match"
	LimitMultipartIfMatch     = "multipart-if-match"
	LimitMultipartMetadata    = "multipart-metadata"
	LimitMultipartRace        = "multipart-put-race"
	LimitMultipart            = "multipart"
	LimitMetadata2KB          = "metadata-2kb"
	LimitCreateOverMarker     = "create-over-delete-marker"
	LimitFenceLost            = "fence-lost-detection"
)

// A Check is one property and what became of it.
type Check struct {
	Property string
	// Why it matters.
	Why         string
	Wanted, Got string
	Verdict     Verdict
	// Limit is the capability that is unsafe, with the verdict Limit.
	Limit string
	// Duration of the check.
	Duration time.Duration
}

// A Report is what a run found.
type Report struct {
	// Verdict is Fail when a property that plain guarded PUTs need fails, else Pass.
	Verdict Verdict
	// Limits are the capabilities that are unsafe all the same, sorted.
	Limits []string
	Checks []Check
	// ETagKinds says for each encryption asked for ("none", "AES256",
	// "aws:kms") whether the same bytes get the same ETag again. One that the
	// store refuses is absent.
	ETagKinds map[string]guard.ETagKind
	// UniqueETags: every write gets an ETag of its own with no encryption.
	UniqueETags bool
	// Version of the probe, and whether the run was a quick one.
	Version int
	Quick   bool
	// Duration of the run.
	Duration time.Duration
}

// Run proves target. It returns an error, next to what it found so far, when
// it could not go on: the network, permissions, the context. That says nothing
// of the store; a store that misbehaves is no error but the verdict Fail.
//
// The probe's objects are removed at the end, also after an error and when ctx
// has ended (in a time of its own, at most 30 seconds).
func Run(ctx context.Context, target Target, opts *Options) (Report, error) {
	p := &probe{Target: target}
	if opts != nil {
		p.opts = *opts
	}
	p.Store = notedStore{p.Store, &p.left}
	if p.S3 != nil {
		p.S3 = notedS3{p.S3, &p.left}
	}
	p.run = strings.ToLower(rand.Text()[:16])
	p.root = guard.RootKey(p.opts.Prefix, "probe-"+p.run+"/")
	p.report = Report{Version: Version, Quick: p.opts.Quick, ETagKinds: map[string]guard.ETagKind{}}
	begin := time.Now()
	err := p.all(ctx)
	p.clean(ctx)
	p.report.Duration = time.Since(begin)
	p.report.Verdict = Pass
	for _, c := range p.report.Checks {
		switch {
		case c.Verdict == Fail:
			p.report.Verdict = Fail
		case c.Verdict == Limit && !slices.Contains(p.report.Limits, c.Limit):
			p.report.Limits = append(p.report.Limits, c.Limit)
		}
	}
	slices.Sort(p.report.Limits)
	if err != nil {
		p.report.Verdict = "" // it can't be told
		return p.report, fmt.Errorf("probe %s: %w", target.Store.URL(p.root), err)
	}
	return p.report, nil
}

// A probe is one run.
type probe struct {
	Target
	opts   Options
	run    string // random, in every key and body
	root   string
	report Report

	// versioning is the bucket's own word: "", Enabled, Suspended; or unknown.
	versioning string
	// first was written where a setting can't be read.
	first *firstWrite
	// changed are the refusals after which the object was not what it was.
	changed   []string
	refusals  int
	bigBuffer []byte

	mu     sync.Mutex
	serial int
	keys   []string
	left   left
}

// A property is one row of the report.
type property struct {
	name, why, wanted string
	// s3 says that it takes Target.S3.
	s3 bool
	// needed says that plain guarded PUTs stand on it: not even getting as far
	// as to try it is then a failure.
	needed bool
	check  func(context.Context) (finding, error)
}

// A finding is what a check found.
type finding struct {
	verdict Verdict
	got     string
	limit   string
}

func found(v Verdict, format string, args ...any) finding {
	return finding{verdict: v, got: fmt.Sprintf(format, args...)}
}

func limited(limit, format string, args ...any) finding {
	return finding{Limit, fmt.Sprintf(format, args...), limit}
}

func (p *probe) all(ctx context.Context) error {
	if p.S3 != nil && p.Bucket == "" {
		return errors.New("a target with S3 needs its bucket's name")
	}
	props := p.properties()
	for i, prop := range props {
		if err := ctx.Err(); err != nil {
			return err
		}
		if p.opts.Progress != nil {
			p.opts.Progress(i, len(props), prop.name)
		}
		begin := time.Now()
		f := found(Skipped, "not applicable: not an S3 store")
		if !prop.s3 || p.S3 != nil {
			var err error
			f, err = prop.check(ctx)
			var step *stepError
			switch {
			case err == nil:
			case ctx.Err() != nil: // whatever else the requests under way said of it
				return fmt.Errorf("%s: %w", prop.name, ctx.Err())
			case errors.As(err, &step):
				f = found(Skipped, "could not be tried: %v", step)
				if prop.needed {
					f.verdict = Fail
				}
			default:
				return fmt.Errorf("%s: %w", prop.name, meaning(err))
			}
		}
		p.checked(Check{
			Property: prop.name, Why: prop.why, Wanted: prop.wanted, Got: f.got, Verdict: f.verdict, Limit: f.limit,
			Duration: time.Since(begin),
		})
	}
	if p.opts.Progress != nil {
		p.opts.Progress(len(props), len(props), "")
	}
	return nil
}

func (p *probe) checked(c Check) {
	p.report.Checks = append(p.report.Checks, c)
	if p.opts.Checked != nil {
		p.opts.Checked(c)
	}
}

// size picks a number by the kind of the run.
func size[T any](p *probe, full, quick T) T {
	if p.opts.Quick {
		return quick
	}
	return full
}

// key returns a new key, which will be removed.
func (p *probe) key(name string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.serial++
	k := fmt.Sprintf("%s%s-%d", p.root, name, p.serial)
	p.keys = append(p.keys, k)
	return k
}
