package audit

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/s3fence/s3fence/guard"
)

// An entry is a version that is listed, and its record's text.
type entry struct {
	guard.Listed
	text string
	gone bool // it was deleted since it was listed
	head bool // it took a request of its own
	err  error
}

// walk looks at every version, in the order of the listing.
func (a *auditor) walk(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	// What is on its way, in order. Its room bounds the concurrency.
	queue := make(chan chan entry, a.o.Concurrency)
	var listErr error
	wg.Go(func() {
		defer close(queue)
		listErr = a.list(ctx, func(l guard.Listed) bool {
			next := make(chan entry, 1)
			known := l.DeleteMarker || l.Metadata != nil
			if known {
				next <- entry{Listed: l, text: l.Metadata[guard.RecordKey]}
			}
			select {
			case queue <- next:
			case <-ctx.Done():
				return false
			}
			if !known {
				wg.Go(func() { next <- a.head(ctx, l) })
			}
			return true
		})
	})
	for next := range queue {
		if err := a.take(ctx, <-next); err != nil {
			return err
		}
	}
	// The queue is closed, so listErr is there to read.
	if listErr == nil {
		listErr = ctx.Err()
	}
	if listErr != nil {
		return fmt.Errorf("list %s: %w", a.store.URL(a.o.Prefix), listErr)
	}
	return a.endKey()
}

// take looks at one version.
func (a *auditor) take(ctx context.Context, e entry) error {
	if e.head {
		a.sum.Heads++
	}
	if errors.Is(e.err, guard.ErrRejected) {
		e.text = ""
	} else if e.err != nil {
		return fmt.Errorf("look at %s: %w", a.store.URL(e.Key), e.err)
	}
	if a.key == nil || a.key.key != e.Key {
		if err := a.endKey(); err != nil {
			return err
		}
		a.key = newKeyState(e.Key, a.store.URL(e.Key), a.o.History != nil)
	}
	if e.gone {
		return nil
	}
	a.sum.Versions++
	return a.version(ctx, e)
}

// endKey ends the key under way.
func (a *auditor) endKey() error {
	k := a.key
	if k == nil {
		return nil
	}
	if err := a.closeRuns(nil); err != nil {
		return err
	}
	a.key = nil
	a.sum.LastKey = k.key
	if k.versions == 0 {
		return nil // deleted since it was listed
	}
	a.sum.Objects++
	if a.o.History != nil {
		a.o.History(k.shown.history())
	}
	if a.o.Progress != nil {
		a.o.Progress(a.sum.Objects, a.sum.Versions)
	}
	return nil
}

// list yields the listing. After an error that may pass it goes on from where
// it was: a listing can only be begun after a whole key, so what was yielded of
// a key already is passed over.
func (a *auditor) list(ctx context.Context, yield func(guard.Listed) bool) error {
	behind := a.o.StartAfter // the last key that is yielded whole
	var at *guard.Listed     // what was yielded last
	failures := 0
	for {
		skip := at != nil && a.sum.WithVersions
		err := func() error {
			opts := guard.ListOptions{Prefix: a.o.Prefix, StartAfter: behind, Versions: a.sum.WithVersions, Metadata: true}
			for l, err := range a.store.List(ctx, opts) {
				if err != nil {
					return err
				}
				if skip {
					skip = l.Key == at.Key && !l.LastModified.Before(at.LastModified) && l.ID != at.ID
					if skip || l.Key == at.Key && l.ID == at.ID {
						continue
					}
				}
				failures = 0
				switch {
				case !a.sum.WithVersions:
					behind = l.Key
				case at != nil && at.Key != l.Key:
					behind = at.Key
				}
				at = &l
				if !yield(l) {
					return nil
				}
			}
			return nil
		}()
		if err == nil {
			return nil
		}
		if at == nil && a.sum.WithVersions && a.keepsVersions == guard.VersioningUnknown && (errors.Is(err, guard.ErrDenied) || final(err) && !errors.Is(err, guard.ErrNoBucket)) {
			// Nobody may say whether there are any, and nobody may list them.
			a.sum.WithVersions = false
			a.sum.Note = fmt.Sprintf("older versions, if there are any, were not looked at: %v", err)
			continue
		}
		failures++
		if err := a.pause(ctx, failures, err); err != nil {
			return err
		}
	}
}

// head asks for a version whose record the listing left out.
func (a *auditor) head(ctx context.Context, l guard.Listed) entry {
	e := entry{Listed: l, head: true}
	id := l.ID
	if id == nullVersion && a.keepsVersions == guard.VersioningUnknown {
		id = "" // not every store knows this name where it keeps no versions
	}
	var obj guard.Object
	e.err = a.retry(ctx, func() (err error) {
		obj, err = a.store.Head(ctx, l.Key, guard.HeadOptions{VersionID: id})
		if errors.Is(err, guard.ErrNotFound) {
			e.gone, err = true, nil
		}
		return err
	})
	if e.err == nil && !e.gone {
		e.text = obj.Metadata[guard.RecordKey]
		if id == "" { // it may have been written since it was listed
			e.ETag, e.Size, e.LastModified = obj.ETag, obj.Size, obj.LastModified
		}
	}
	return e
}

// final reports whether asking again can't help.
func final(err error) bool {
	for _, e := range []error{guard.ErrNoBucket, guard.ErrDenied, guard.ErrUnsupported, guard.ErrRejected} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// retry asks again while errors may pass.
func (a *auditor) retry(ctx context.Context, ask func() error) error {
	for n := 1; ; n++ {
		err := ask()
		if err == nil {
			return nil
		}
		if err := a.pause(ctx, n, err); err != nil {
			return err
		}
	}
}

// pause waits after the n-th error in a row, or returns why there shall be no
// other attempt.
func (a *auditor) pause(ctx context.Context, n int, cause error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case final(cause):
		return cause
	case n >= a.o.MaxAttempts:
		return fmt.Errorf("gave up after %d failed attempts: %w", n, cause)
	}
	a.o.Logger.DebugContext(ctx, "request failed", "failures", n, "error", cause)
	t := time.NewTimer(a.o.Backoff(n))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func jitter(n int) time.Duration {
	return mathrand.N(min(50*time.Millisecond<<min(n-1, 10), 5*time.Second))
}

// uploads looks for uploads that were left behind. It is done once all keys
// are, whatever StartAfter says.
func (a *auditor) uploads(ctx context.Context) error {
	failures := 0
	for {
		seen := false
		err := func() error {
			for up, err := range a.store.Uploads(ctx, a.o.Prefix) {
				if err != nil {
					return err
				}
				seen = true
				a.sum.Uploads++
				if err := a.upload(ctx, up); err != nil {
					return &visitError{err}
				}
			}
			return nil
		}()
		var visit *visitError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &visit):
			return visit.err
		case !seen:
			// Later on it would begin anew, and tell of the same uploads again.
			failures++
			if err = a.pause(ctx, failures, err); err == nil {
				continue
			}
		}
		return fmt.Errorf("list the uploads under %s: %w", a.store.URL(a.o.Prefix), err)
	}
}

// visitError is an error that is not the listing's.
type visitError struct{ err error }

func (e *visitError) Error() string { return e.err.Error() }

func (a *auditor) upload(ctx context.Context, up guard.Upload) error {
	age := time.Since(up.Initiated)
	known := !up.Initiated.IsZero()
	if a.o.OlderThan > 0 && known && age < a.o.OlderThan {
		return nil
	}
	f := Finding{
		Kind: Upload, Severity: Warning, Key: up.Key, UploadID: up.ID, Initiated: up.Initiated,
		Detail: "a multipart upload is under way, and the store does not say since when",
	}
	if known {
		f.Detail = "a multipart upload was begun " + up.Initiated.UTC().Format(time.RFC3339) + " and not completed"
	}
	if a.o.AbortUploads && (known || a.o.OlderThan < 0) {
		err := a.retry(ctx, func() error {
			err := a.store.AbortUpload(ctx, up)
			if errors.Is(err, guard.ErrNoUpload) {
				return nil
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("abort upload %s of %s: %w", up.ID, a.store.URL(up.Key), err)
		}
		a.sum.Aborted++
		f.Aborted = true
		f.Detail += "; it was aborted now"
	}
	return a.found(f)
}
