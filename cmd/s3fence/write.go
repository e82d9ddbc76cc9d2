package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/s3fence/s3fence/guard"
)

// writeJSON is the JSON of put, rm, adopt and claim, one for each object: a
// contract, described in docs/json.md.
type writeJSON struct {
	Op  string `json:"op"`
	URL string `json:"url"`
	failure
	DryRun bool `json:"dryrun,omitempty"`
	fenceJSON
	TokenText  string     `json:"token_text,omitempty"`
	Held       *fenceJSON `json:"held,omitempty"`
	ScopeFence *fenceJSON `json:"scope_fence,omitempty"`
	MayHave    bool       `json:"may_have_applied,omitempty"`
	ETag       string     `json:"etag,omitempty"`
	ETagKind   string     `json:"etag_kind,omitempty"`
	VersionID  string     `json:"version_id,omitempty"`
	Bytes      *int64     `json:"bytes,omitempty"`
	Requests   int        `json:"requests,omitempty"`
}

// newHeld leaves out what is the same as in the write itself.
func newHeld(r *guard.Record, offered guard.Record) *fenceJSON {
	if r == nil {
		return nil
	}
	h := newFenceJSON(r)
	if r.Scope == offered.Scope && r.Issuer == offered.Issuer {
		h.Scope, h.Issuer = "", ""
	}
	return &h
}

func (j *writeJSON) fill(res guard.Result, err error) {
	if err != nil {
		j.failure = newFailure(err)
	}
	if res.Outcome != "" { // even next to an error: it was applied all the same
		j.Outcome = string(res.Outcome)
	}
	if j.fenceJSON = newFenceJSON(&res.Record); j.Token > 0 {
		j.Bytes = &res.Bytes
	}
	j.Held = newHeld(res.Previous, res.Record)
	var refusal *guard.Refusal
	if errors.As(err, &refusal) {
		j.Held, j.MayHave = newHeld(refusal.Held, res.Record), refusal.MayHaveApplied
		j.ScopeFence = newHeld(refusal.Claim, res.Record)
	}
	j.ETag, j.ETagKind, j.VersionID, j.Requests = res.ETag, string(res.ETagKind), res.VersionID, res.Requests
}

// describe says in words what a write came to.
func describe(res guard.Result, dry bool) string {
	s := fmt.Sprintf("%s %s: token %s (scope %s)", outcomeText(string(res.Outcome), dry), printable(res.URL), res.Record.Fence(), res.Record.Scope)
	if res.Record.State == guard.Live { // a tombstone's own bytes are nobody's
		s += ", " + count(res.Bytes, "byte")
	}
	if res.Previous != nil {
		s += fmt.Sprintf(", before it token %s", res.Previous.Fence())
	}
	return s
}

func outcomeText(outcome string, dry bool) string {
	outcome = strings.ReplaceAll(outcome, "-", " ")
	if dry {
		outcome = "would be " + outcome
	}
	return outcome
}

// A verb is a guarded write of what is there already: a deletion, an adoption.
type verb struct {
	op     string // in JSON
	doing  string // for a person who is watching
	dryRun bool
	write  func(ctx context.Context, g *guard.Guard, tok guard.Token, key string) (guard.Result, error)

	// With -r: keys yields what there is under a key, outcomes are those to be
	// counted, and gone is the one where there was nothing left to do it to.
	keys     func(ctx context.Context, g *guard.Guard, key string) iter.Seq2[string, error]
	outcomes []string
	gone     string
}

func (a *app) runVerb(ctx context.Context, v verb, url string, m manyFlags) error {
	if m.recursive {
		return a.writeMany(ctx, v, url, m)
	}
	return a.writeOne(ctx, v, url)
}

func (a *app) writeOne(ctx context.Context, v verb, url string) error {
	if err := notBucket(url); err != nil {
		return err
	}
	g, key, err := a.openObject(ctx, url)
	if err != nil {
		return err
	}
	bucket, _, err := parseURL(url)
	if err != nil {
		return err
	}
	j := writeJSON{Op: v.op, URL: url, DryRun: v.dryRun}
	tok, fresh, err := a.token(ctx, g, v.dryRun)
	var res guard.Result
	if err == nil {
		res, err = v.write(ctx, g, tok, key)
		err = a.interrupted(ctx, bucket, key, &res, err)
	}
	j.fill(res, err)
	text := ""
	if err == nil {
		text = describe(res, v.dryRun)
	}
	if fresh {
		j.TokenText = tok.String()
		text += "\ntoken " + tok.String()
	}
	return a.sayEnd(j, text, err)
}

// notBucket refuses a bucket alone, where -r would take one.
func notBucket(url string) error {
	_, key, err := parseURL(url)
	if err == nil && key == "" {
		err = usagef("%s names no object; -r means all that lies in the bucket", url)
	}
	return err
}

// interrupted says of a write that Ctrl-C came into what became of it. It looks
// once more, briefly, whether the write is in the object, since the person who
// pressed it wants to know.
func (a *app) interrupted(ctx context.Context, bucket, key string, res *guard.Result, err error) error {
	switch {
	case err == nil || ctx.Err() == nil:
		return err
	case !errors.Is(err, guard.ErrOutcomeUnknown):
		if errors.Is(err, ctx.Err()) {
			err = fmt.Errorf("interrupted, nothing was written: %w", err)
		}
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	g, gerr := a.openGuard(ctx, bucket)
	if gerr != nil {
		return err
	}
	info, serr := g.Stat(ctx, key)
	if serr == nil && info.Record != nil && *info.Record == res.Record {
		res.Outcome = guard.AlreadyApplied
		return fmt.Errorf("interrupted: the write was applied to %s: %w", res.URL, context.Canceled)
	}
	return fmt.Errorf("interrupted: %w; it was not there when looked at again, and may still land", err)
}

// under yields the keys that a URL with -r means: its own, unless it ends in a
// slash or names only the bucket, and all that lie under it. With lost, also
// those that were deleted around the guard. An error of a record is left for
// the write to meet, which decides what it means.
func under(ctx context.Context, g *guard.Guard, key string, o guard.WalkOptions, lost bool) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		prefix := key
		if key != "" && !strings.HasSuffix(key, "/") {
			prefix += "/"
			own, err := hasObject(ctx, g, key, o, lost)
			if (own || err != nil) && (!yield(key, err) || err != nil) {
				return
			}
		}
		for info, err := range g.Walk(ctx, prefix, &o) {
			if guard.ReasonOf(err) == guard.ErrCorruptRecord {
				err = nil
			}
			if !yield(info.Key, err) || err != nil {
				return
			}
		}
		if !lost {
			return
		}
		for key, err := range g.Lost(ctx, prefix) {
			if !yield(key, err) || err != nil {
				return
			}
		}
	}
}

// hasObject reports whether under yields key itself.
func hasObject(ctx context.Context, g *guard.Guard, key string, o guard.WalkOptions, lost bool) (bool, error) {
	o.Concurrency = 1
	for info, err := range g.Walk(ctx, key, &o) {
		if err != nil && guard.ReasonOf(err) != guard.ErrCorruptRecord {
			return false, err
		}
		if info.Key == key {
			return true, nil
		}
		break // what has the key as a prefix sorts after the key itself
	}
	if !lost || guard.IsOwn(key) {
		return false, nil
	}
	info, err := g.Stat(ctx, key)
	if errors.Is(err, guard.ErrNotFound) {
		return info.DeleteMarker, nil
	}
	return false, err
}

// summaryJSON is the last line of a command that went over many objects.
type summaryJSON struct {
	Op  string `json:"op"` // rm-summary, adopt-summary
	URL string `json:"url"`
	failure
	DryRun    bool           `json:"dryrun,omitempty"`
	Counts    map[string]int `json:"counts"` // of objects, by outcome
	Bytes     *int64         `json:"bytes,omitempty"`
	TokenText string         `json:"token_text,omitempty"`
	Millis    int64          `json:"ms"`
}

// writeMany does to all objects under url what writeOne does to one: with one
// token, and the same sequence, since each object compares with its own.
func (a *app) writeMany(ctx context.Context, v verb, url string, m manyFlags) error {
	bucket, key, err := parseURL(url)
	if err != nil {
		return err
	}
	if key != "" {
		if err := guard.CheckKey(key); err != nil {
			return fmt.Errorf("%s: %w", url, err)
		}
	}
	g, err := a.openGuard(ctx, bucket)
	if err != nil {
		return err
	}
	tok, fresh, err := a.token(ctx, g, v.dryRun)
	if err != nil {
		return err
	}
	t := newTally(a, v.op, url, a.progress(v.doing, unknown, objects))
	t.dryRun, t.outcomes, t.always = v.dryRun, append(slices.Clone(v.outcomes), string(guard.AlreadyApplied)), len(v.outcomes)
	if !slices.Contains(v.outcomes, v.gone) {
		t.outcomes = append(t.outcomes, v.gone)
	}
	if fresh {
		t.token = tok
	}
	overMany(ctx, t, m, v.keys(ctx, g, key), func(ctx context.Context, key string) ending {
		res, err := v.write(ctx, g, tok, key)
		err = a.interrupted(ctx, bucket, key, &res, err)
		return v.ending(res, err)
	})
	return t.end()
}

func (v verb) ending(res guard.Result, err error) ending {
	j := writeJSON{Op: v.op, URL: res.URL, DryRun: v.dryRun}
	if errors.Is(err, guard.ErrNotFound) && !refused(err) {
		j.fill(res, nil)
		j.Outcome, j.Bytes = v.gone, nil
		return ending{json: j, outcome: v.gone, text: outcomeText(v.gone, false) + " " + printable(res.URL)}
	}
	j.fill(res, err)
	e := ending{json: j, outcome: j.Outcome, err: err}
	if err == nil {
		e.text = describe(res, v.dryRun)
	}
	return e
}
