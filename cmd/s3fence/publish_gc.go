package main

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/spf13/cobra"

	"github.com/s3fence/s3fence/guard"
)

// garbageJSON is the line of one file that no set refers to.
type garbageJSON struct {
	Op  string `json:"op"` // publish-gc
	URL string `json:"url"`
	failure
	DryRun   bool       `json:"dryrun,omitempty"`
	Token    int64      `json:"token"`
	Bytes    int64      `json:"bytes"`
	Modified *time.Time `json:"last_modified,omitempty"`
	Requests int        `json:"requests,omitempty"`
}

// The outcomes of garbage.
const (
	garbageRemoved = "removed"
	garbageKept    = "kept"
)

type gcFlags struct {
	manyFlags
	keep   time.Duration
	dryRun bool
}

func (a *app) publishGCCommand() *cobra.Command {
	p := gcFlags{manyFlags: manyFlags{recursive: true}}
	c := &cobra.Command{
		Use:   "gc DATASET",
		Short: "Remove files that no set refers to any more",
		Long: `Gc removes the files of DATASET that its set does not refer to and that were sent
with a lower number than the set's: of sets that were replaced, and of publishes
that failed or came too late. At the set's own number and above, a publish may be
under way, or may have been committed with its answer lost, so nothing there is
touched. It takes no token, and can run at any time, also while others publish.

Files are kept as long as they, or the set that does not refer to them any more, are
younger than --keep, for readers who have resolved an older set. So --keep must be
shorter than the time from one publish to the next, or nothing ever goes: where sets
come daily, run gc before the next one is published.

The files are deleted and leave no tombstones, since no key is used twice. It takes
s3:DeleteObject, which the policies that s3fence policy writes leave to the
administrator. Where the bucket keeps versions, the bytes stay until a lifecycle
rule for noncurrent versions removes them.`,
		Example: `  # 1. what would go?
  s3fence publish gc --dryrun s3://bucket/reports

  # 2. a nightly job
  s3fence publish gc -q s3://bucket/reports
  s3fence publish --scope nightly/report out s3://bucket/reports`,
		Args:              nargs("DATASET"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := c.Flags()
	f.DurationVar(&p.keep, "keep", guard.DefaultKeep, "how long files stay for readers who have resolved an older set; 0 keeps none")
	f.IntVar(&p.concurrency, "concurrency", defaultConcurrency, "how many files at once")
	f.BoolVar(&p.dryRun, "dryrun", false, "say what would be removed, and remove nothing")
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := p.check(f); err != nil {
			return err
		}
		if p.keep < 0 {
			return usagef("--keep %s is negative", p.keep)
		}
		return a.publishGC(c.Context(), args[0], p)
	}
	return c
}

func (a *app) publishGC(ctx context.Context, url string, p gcFlags) error {
	bucket, dataset, err := parseDataset(url)
	if err != nil {
		return err
	}
	g, err := a.openGuard(ctx, bucket)
	if err != nil {
		return err
	}
	t := newTally(a, "publish-gc", url, a.progress("removing", unknown, objects))
	t.outcomes, t.always, t.dryRun, t.sizes = []string{garbageRemoved, garbageKept}, 2, p.dryRun, true
	var until time.Duration
	overMany(ctx, t, p.manyFlags, t.garbage(ctx, g, dataset, p.keep, &until), func(ctx context.Context, f guard.Garbage) ending {
		j := garbageJSON{Op: "publish-gc", URL: f.URL, DryRun: p.dryRun, Token: f.Number, Bytes: f.Size}
		j.Outcome = garbageRemoved
		if !f.LastModified.IsZero() {
			m := f.LastModified.UTC()
			j.Modified = &m
		}
		var err error
		if !p.dryRun {
			j.Requests, err = g.Discard(ctx, f)
		}
		if err != nil {
			j.failure = newFailure(err)
			return ending{json: j, outcome: j.Outcome, err: err}
		}
		return ending{json: j, text: outcomeText(garbageRemoved, p.dryRun) + " " + printable(f.URL), outcome: garbageRemoved, bytes: f.Size}
	})
	if until > 0 && !a.json && !a.quiet {
		fmt.Fprintf(a.stderr, "s3fence: note: readers of an older set may still want what is kept, until %s (--keep %s)\n",
			time.Now().Add(until).UTC().Format(time.RFC3339), p.keep)
	}
	return t.end()
}

// garbage yields what may go, and counts what is kept. until is how much longer
// that is.
func (t *tally) garbage(ctx context.Context, g *guard.Guard, dataset string, keep time.Duration, until *time.Duration) iter.Seq2[guard.Garbage, error] {
	o := &guard.GarbageOptions{Keep: keep}
	if keep == 0 {
		o.Keep = -1
	}
	return func(yield func(guard.Garbage, error) bool) {
		for f, err := range g.Garbage(ctx, dataset, o) {
			if err == nil && f.Kept > 0 {
				*until = max(*until, f.Kept)
				t.mu.Lock()
				t.counts[garbageKept]++
				t.mu.Unlock()
				continue
			}
			if !yield(f, err) {
				return
			}
		}
	}
}
