package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
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
		s += fmt.Sprintf(", %d bytes", res.Bytes)
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
	g, key, err := a.openObject(ctx, url)
	if err != nil {
		return err
	}
	bucket, _, err := parseURL(url)
	if err != nil {
		return err
	}
	j := writeJSON{Op: v.op, URL: url, DryRun: v.dryRun}
	tok, fresh, err := a.token(ctx, g)
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
	TokenText string         `json:"token_text,omitempty"`
	Millis    int64          `json:"ms"`
}

// writeMany does to all objects under url what writeOne does to one: with one
// token, and the same sequence, since each object compares with its own. What
// is refused or fails stops no other object, unless m says so.
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
	begun := time.Now()
	t := tally{a: a, v: v, counts: map[string]int{}, reasons: map[string]bool{}}
	j := summaryJSON{Op: v.op + "-summary", URL: url, DryRun: v.dryRun}
	tok, fresh, err := a.token(ctx, g)
	if err != nil {
		return err
	}
	t.bar = a.progress(v.doing, unknown, objects)
	defer t.bar.end()
	var wg sync.WaitGroup
	slots := make(chan struct{}, m.concurrency)
	nth := 0
	for key, err := range v.keys(ctx, g, key) {
		if err == nil {
			slots <- struct{}{}
			err = ctx.Err()
		}
		if err != nil {
			if ctx.Err() != nil {
				err = fmt.Errorf("interrupted, not all of %s was looked at: %w", url, err)
			}
			t.fail(nth, err)
			break
		}
		if t.stops(m.failFast) {
			break
		}
		n := nth
		nth++
		wg.Go(func() {
			defer func() { <-slots }()
			res, err := v.write(ctx, g, tok, key)
			err = a.interrupted(ctx, bucket, key, &res, err)
			t.add(n, res, err)
		})
	}
	wg.Wait()
	t.bar.end()

	j.Outcome = "done"
	if t.worst != nil {
		j.failure = newFailure(t.worst)
	}
	j.Counts, j.Millis = t.counts, time.Since(begun).Milliseconds()
	text := t.text(url, time.Since(begun))
	if fresh {
		j.TokenText = tok.String()
		text += "\ntoken " + tok.String()
	}
	if err := a.say(j, text); err != nil {
		return errors.Join(t.worst, err)
	}
	if t.worst != nil {
		return reportedError{t.worst}
	}
	return nil
}

// A tally is what the objects of one command came to.
type tally struct {
	a   *app
	v   verb
	bar *progress

	mu      sync.Mutex
	counts  map[string]int
	reasons map[string]bool // that were explained
	worst   error
	nth     int  // of the objects in the order of the listing, the one of worst
	broken  bool // nothing can be printed any more
}

// add counts the n-th object, and prints what became of it.
func (t *tally) add(n int, res guard.Result, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	j := writeJSON{Op: t.v.op, URL: res.URL, DryRun: t.v.dryRun}
	text := ""
	switch {
	case err == nil:
		j.fill(res, nil)
		text = describe(res, t.v.dryRun)
	case errors.Is(err, guard.ErrNotFound) && !refused(err):
		j.fill(res, nil)
		j.Outcome, j.Bytes = t.v.gone, nil
		text, err = outcomeText(t.v.gone, false)+" "+printable(res.URL), nil
	default:
		j.fill(res, err)
	}
	t.counts[j.Outcome]++
	t.bar.add(1)
	if err != nil {
		t.note(n, err)
		t.explain(err)
	}
	if err == nil || t.a.json {
		if err := t.a.say(j, text); err != nil {
			t.broken = true
			t.note(n, err)
			t.a.reportLine(err)
		}
	}
}

// fail ends the listing, after n objects.
func (t *tally) fail(n int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.note(n, err)
	t.explain(err)
}

// note keeps the worst error; of two as bad, that of the object listed first.
func (t *tally) note(n int, err error) {
	if was, is := badness(t.worst), badness(err); is > was || is == was && n < t.nth {
		t.worst, t.nth = err, n
	}
}

// explain reports an error, and once for each reason what can be done about it.
func (t *tally) explain(err error) {
	reason, _, _ := outcomeOf(err)
	t.a.reportLine(err)
	if !t.reasons[reason] {
		t.reasons[reason] = true
		t.a.hint(err)
	}
}

func (t *tally) stops(failFast bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.broken || failFast && t.worst != nil
}

// text is the line for people. What is rare is left out where there was none.
func (t *tally) text(url string, took time.Duration) string {
	var parts []string
	show := func(outcome string, always bool) {
		if n := t.counts[outcome]; n > 0 || always {
			parts = append(parts, fmt.Sprintf("%s %d", outcomeText(outcome, t.v.dryRun && outcome == t.v.outcomes[0]), n))
		}
	}
	for _, o := range t.v.outcomes {
		show(o, true)
	}
	show(string(guard.AlreadyApplied), false)
	if !slices.Contains(t.v.outcomes, t.v.gone) {
		show(t.v.gone, false)
	}
	show("refused", true)
	show("failed", true)
	return fmt.Sprintf("%s: %s in %.1f s", printable(url), strings.Join(parts, ", "), took.Seconds())
}
