package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	humanize "github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/state"
)

// An ending is what one of many objects came to.
type ending struct {
	json    any    // its line for programs
	text    string // for people; of an error the error itself
	outcome string // to be counted
	bytes   int64
	err     error
}

// overMany does what do says to all items, some at once. What is refused or
// fails stops no other, unless m says so; an error of items itself ends it.
func overMany[T any](ctx context.Context, t *tally, m manyFlags, items iter.Seq2[T, error], do func(context.Context, T) ending) {
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, m.concurrency)
	type job struct {
		nth  int
		item T
	}
	// Workers, since a goroutine for each item would grow its stack for each, to tens
	// of KiB in the SDK: an eighth of the CPU time that a small object takes.
	jobs := make(chan job, m.concurrency)
	defer close(jobs)
	nth := 0
	for item, err := range items {
		if err == nil {
			slots <- struct{}{}
			err = ctx.Err()
		}
		if err != nil {
			if ctx.Err() != nil {
				err = fmt.Errorf("interrupted, not all of %s was looked at: %w", t.url, err)
			}
			t.fail(nth, err)
			return
		}
		if t.stops(m.failFast) {
			return
		}
		if nth < m.concurrency {
			wg.Go(func() {
				for j := range jobs {
					t.add(j.nth, do(ctx, j.item))
					<-slots
				}
			})
		}
		jobs <- job{nth, item}
		nth++
	}
}

// A tally is what the objects of one command came to.
type tally struct {
	a      *app
	op     string
	url    string
	bar    *progress
	begun  time.Time
	dryRun bool
	// outcomes are those of success, in the order they are told in. The first
	// so many are always told, the others where there were some.
	outcomes []string
	always   int
	sizes    bool        // the bytes are told too
	token    guard.Token // taken by this command

	mu      sync.Mutex
	counts  map[string]int
	bytes   int64
	reasons map[string]bool // that were explained
	worst   error
	nth     int  // of the objects in the order of the listing, the one of worst
	broken  bool // nothing can be printed any more
	lost    bool // the journal can't be written any more
}

// newTally begins to count. end must be called.
func newTally(a *app, op, url string, bar *progress) *tally {
	return &tally{a: a, op: op, url: url, bar: bar, begun: time.Now(), counts: map[string]int{}, reasons: map[string]bool{}}
}

// add counts the n-th object, and prints what became of it.
func (t *tally) add(n int, e ending) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts[e.outcome]++
	t.bytes += e.bytes
	t.bar.object()
	if e.err != nil {
		t.note(n, e.err)
		lost := errors.Is(e.err, state.ErrGivenUp)
		if !lost || !t.lost { // the same of all that are on their way
			t.explain(e.err)
		}
		t.lost = t.lost || lost
	}
	if (e.err == nil || t.a.json) && !t.broken {
		t.say(n, e.json, e.text)
	}
}

// say prints what became of the n-th object.
func (t *tally) say(n int, v any, text string) {
	if err := t.a.say(v, text); err != nil {
		t.broken = true
		t.note(n, err)
		t.a.reportLine(err)
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
	return t.broken || t.lost || failFast && t.worst != nil
}

// well reports whether everything was done.
func (t *tally) well() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.worst == nil && !t.broken
}

// end prints the summary, and returns the error to exit with.
func (t *tally) end() error {
	t.bar.end()
	took := time.Since(t.begun)
	j := summaryJSON{Op: t.op + "-summary", URL: t.url, DryRun: t.dryRun, Counts: t.counts, Millis: took.Milliseconds()}
	j.Outcome = "done"
	if t.worst != nil {
		j.failure = newFailure(t.worst)
	}
	if t.sizes {
		j.Bytes = &t.bytes
	}
	text := t.text(took)
	if !t.token.IsZero() {
		j.TokenText = t.token.String()
		text += "\ntoken " + t.token.String()
	}
	if !t.broken {
		t.say(math.MaxInt, j, text)
	}
	if t.worst != nil {
		return reportedError{t.worst}
	}
	return nil
}

// count says how many there are of what is called so.
func count(n int64, what string) string {
	return fmt.Sprintf("%d %s", n, english.PluralWord(int(n), what, ""))
}

// text is the line for people. What is rare is left out where there was none.
func (t *tally) text(took time.Duration) string {
	var parts []string
	show := func(outcome string, always bool) {
		if n := t.counts[outcome]; n > 0 || always {
			// Of what is already so nothing would be.
			would := t.dryRun && slices.Contains(t.outcomes, outcome) && !strings.HasPrefix(outcome, "already")
			parts = append(parts, fmt.Sprintf("%s %d", outcomeText(outcome, would), n))
		}
	}
	for i, o := range t.outcomes {
		show(o, i < t.always)
	}
	show("refused", true)
	show("failed", true)
	if t.sizes {
		parts = append(parts, humanize.IBytes(uint64(t.bytes)))
	}
	return fmt.Sprintf("%s: %s in %.1f s", printable(t.url), strings.Join(parts, ", "), took.Seconds())
}
