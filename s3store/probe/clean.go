package probe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/s3fence/s3fence/guard"
)

const cleanTime = 30 * time.Second

// clean removes all that the run wrote, in a time of its own: the caller's
// context may have ended. What is left is a warning, with its place.
func (p *probe) clean(ctx context.Context) {
	begin := time.Now()
	interrupted := ctx.Err() != nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
	defer cancel()
	c := Check{Property: "cleanup", Why: "the probe leaves nothing behind", Wanted: "all removed", Verdict: Pass}
	left := len(p.keys)
	if !p.left.landed {
		return
	}
	if interrupted && p.opts.Interrupted != nil {
		p.opts.Interrupted(p.Store.URL(p.root))
	}
	var err error
	switch {
	case p.S3 != nil:
		err = p.cleanS3(ctx)
	case p.Remove != nil:
		err = each(p.keys, func(key string) error {
			if err := p.Remove(ctx, key); !errors.Is(err, guard.ErrNotFound) {
				return err
			}
			return nil
		})
	default:
		c.Verdict, c.Got = Info, "this store has no way to remove objects: they stay under "+p.Store.URL(p.root)
	}
	unlisted, unsure := errors.AsType[*unlistedError](err)
	switch {
	case denied(err):
		c.Verdict, c.Got = Warn, fmt.Sprintf("not allowed to delete (%s): whoever may can remove what is left under %s", words(err), p.Store.URL(p.root))
	case unsure:
		c.Verdict, c.Got = Warn, fmt.Sprintf("what answers named is removed; whether more is left under %s can't be listed: %s", p.Store.URL(p.root), words(unlisted.err))
	case err != nil:
		c.Verdict, c.Got = Warn, fmt.Sprintf("some are left under %s: %v", p.Store.URL(p.root), words(err))
	case c.Got == "":
		c.Got = fmt.Sprintf("%d keys removed", left)
	}
	c.Duration = time.Since(begin)
	p.checked(c)
}

// each calls f for all of them, eight at a time, and joins what failed.
func each[T any](all []T, f func(T) error) error {
	var (
		mu   sync.Mutex
		errs []error
		wg   sync.WaitGroup
		next = make(chan T)
	)
	for range 8 {
		wg.Go(func() {
			for v := range next {
				if err := f(v); err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
				}
			}
		})
	}
	for _, v := range all {
		next <- v
	}
	close(next)
	wg.Wait()
	return errors.Join(errs...)
}

func (p *probe) cleanS3(ctx context.Context) error {
	abort := func(u upload) error {
		_, err := p.S3.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &p.Bucket, Key: &u.key, UploadId: &u.id}, once)
		if judge(err) == refused { // completed, or aborted already
			return nil
		}
		return err
	}
	remove := func(v version) error {
		_, err := p.S3.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &p.Bucket, Key: &v.key, VersionId: v.id}, once)
		if judge(err) == refused {
			return nil
		}
		return err
	}
	err := each(p.left.uploads, abort)
	// A request that was under way when the run was interrupted may land after
	// its key was removed, so the keys are gone through at least once, and
	// what is listed until nothing is.
	if !p.keepsVersions() { // else each would only leave a marker
		var vs []version
		for _, k := range p.keys {
			vs = append(vs, version{key: k})
		}
		err = errors.Join(err, each(vs, remove))
	}
	return errors.Join(err, p.cleanVersions(ctx, remove), p.cleanPending(ctx, abort))
}

// cleanVersions removes what is listed, and where that can't be done, the
// versions that answers named.
func (p *probe) cleanVersions(ctx context.Context, remove func(version) error) error {
	for range 100 {
		out, err := p.S3.ListObjectVersions(ctx, &s3.ListObjectVersionsInput{Bucket: &p.Bucket, Prefix: &p.root}, once)
		if err != nil {
			derr := each(slices.Clone(p.left.versions), remove)
			if !p.keepsVersions() && slices.Contains([]answer{unsupported, rejected, none}, judge(err)) && ctx.Err() == nil {
				return derr // every key was removed by name
			}
			return errors.Join(derr, &unlistedError{err})
		}
		var vs []version
		for _, v := range out.Versions {
			vs = append(vs, version{aws.ToString(v.Key), v.VersionId})
		}
		for _, d := range out.DeleteMarkers {
			vs = append(vs, version{aws.ToString(d.Key), d.VersionId})
		}
		if len(vs) == 0 {
			return nil
		}
		if err := each(vs, remove); err != nil {
			return err
		}
	}
	return errors.New("the list of what is left does not end")
}

// cleanPending aborts the uploads whose begin had no answer. Each is listed by
// its whole key: MinIO lists none by a shorter prefix.
func (p *probe) cleanPending(ctx context.Context, abort func(upload) error) error {
	for _, key := range p.left.pending {
		out, err := p.S3.ListMultipartUploads(ctx, &s3.ListMultipartUploadsInput{Bucket: &p.Bucket, Prefix: &key}, once)
		if err != nil {
			return &unlistedError{err}
		}
		for _, u := range out.Uploads {
			if k := aws.ToString(u.Key); k == key {
				err = errors.Join(err, abort(upload{k, aws.ToString(u.UploadId)}))
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// An unlistedError: what is left could not be listed, so that more may be. It
// hides its cause, which is no refusal to remove anything.
type unlistedError struct{ err error }

func (e *unlistedError) Error() string { return "what is left can't be listed: " + words(e.err) }
