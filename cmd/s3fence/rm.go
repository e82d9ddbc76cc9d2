package main

import (
	"context"
	"iter"

	"github.com/spf13/cobra"

	"github.com/s3fence/s3fence/guard"
)

func (a *app) rmCommand() *cobra.Command {
	var o guard.DeleteOptions
	var m manyFlags
	c := &cobra.Command{
		Use:   "rm URL",
		Short: "Delete under a fencing token, and keep the number",
		Long: `Rm replaces the object with a tombstone, if the token is higher than the one
the object holds. Whoever reads through s3fence finds nothing there then, and
an older owner's writes stay refused: a plain delete would take the number away
with the object. An object that is not fenced is refused; adopt it first. In a
bucket that keeps versions the older ones stay.

With -r it deletes the object at URL and all that lie under URL/: s3://b/dir is
dir and dir/x, and not dirty. A URL that ends in a slash is only what lies under
it, a bucket alone all of it. s3fence's own objects under .s3fence/ are never
deleted. One token and one --sequence serve for all. An object that is refused
or fails stops no other. There is no order; --dryrun shows what would go.`,
		Example: `  # 1. one object
  s3fence rm --scope nightly/report s3://bucket/reports/today.csv

  # 2. with the token that was taken when the work began, also where nothing is yet
  s3fence rm --absent --token @token.txt s3://bucket/reports/today.csv

  # 3. all under reports/2024/, after a look
  s3fence rm -r --dryrun --scope nightly/report s3://bucket/reports/2024/
  s3fence rm -r --scope nightly/report s3://bucket/reports/2024/`,
		Args:              nargs("URL"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := c.Flags()
	m.add(f)
	f.BoolVar(&o.Absent, "absent", false, "leave a tombstone also where nothing is")
	sseFlags(c, &o.SSE, &o.SSEKMSKeyID)
	writeIDFlag(f, &o.WriteID)
	sequenceFlag(f, &o.Sequence)
	dryRunFlag(f, &o.DryRun)
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := m.check(f); err != nil {
			return err
		}
		if o.Absent && m.recursive {
			return usagef("--absent and -r exclude each other; s3fence claim refuses an older owner at every key")
		}
		if err := a.fromRun(c, &o.Sequence); err != nil {
			return err
		}
		return a.runVerb(c.Context(), verb{
			op: "rm", doing: "deleting", dryRun: o.DryRun,
			write: func(ctx context.Context, g *guard.Guard, tok guard.Token, key string) (guard.Result, error) {
				return g.Delete(ctx, tok, key, &o)
			},
			keys: func(ctx context.Context, g *guard.Guard, key string) iter.Seq2[string, error] {
				return under(ctx, g, key, guard.WalkOptions{Concurrency: m.concurrency}, false)
			},
			outcomes: []string{string(guard.Removed), alreadyDeleted}, gone: alreadyDeleted,
		}, args[0], m)
	}
	return c
}

// alreadyDeleted is the outcome of an object that was gone when its turn came.
const alreadyDeleted = "already-deleted"
