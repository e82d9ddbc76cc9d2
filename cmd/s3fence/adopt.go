package main

import (
	"context"
	"iter"

	"github.com/spf13/cobra"

	"github.com/s3fence/s3fence/guard"
)

func (a *app) adoptCommand() *cobra.Command {
	var o guard.AdoptOptions
	var m manyFlags
	c := &cobra.Command{
		Use:   "adopt URL",
		Short: "Bring objects under the guard, bytes and headers unchanged",
		Long: `Adopt adds a fence record to an object that was written around the guard, or
before there was one. Bytes, content headers, metadata, tags and storage class
stay; the ETag changes. An object that is fenced by the token's own counter is
left alone. ACLs, legal holds and retention are those of a new object.

--recover brings back what was deleted, or set back to an older version, around
the guard, in a bucket that keeps versions. --from-issuer takes over objects of
another counter, when nobody writes with its tokens any more.

With -r it does so to the object at URL and all that lie under URL/, as rm -r
does; with --recover also to those that were deleted.`,
		Example: `  # 1. one object
  s3fence adopt --scope nightly/report s3://bucket/reports/today.csv

  # 2. all that are not fenced yet
  s3fence adopt -r --scope nightly/report s3://bucket/reports/

  # 3. somebody ran aws s3 rm --recursive
  s3fence adopt -r --recover --scope nightly/report s3://bucket/reports/`,
		Args:              nargs("URL"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := c.Flags()
	m.add(f)
	f.BoolVar(&o.Recover, "recover", false, "bring back what was deleted or set back around the guard")
	f.Var(&parsed[guard.IssuerID]{value: &o.From, kind: "hex", parse: guard.ParseIssuerID},
		"from-issuer", "take over objects of this issuer id, 16 `hex` digits")
	sseFlags(c, &o.SSE, &o.SSEKMSKeyID)
	f.BoolVar(&o.AcceptRepeatableETag, "accept-repeatable-etag", false, "replace although a paused older writer could pass an If-Match on the same bytes")
	writeIDFlag(f, &o.WriteID)
	sequenceFlag(f, &o.Sequence)
	dryRunFlag(f, &o.DryRun)
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := m.check(f); err != nil {
			return err
		}
		if err := a.fromRun(c, &o.Sequence); err != nil {
			return err
		}
		return a.runVerb(c.Context(), verb{
			op: "adopt", doing: "adopting", dryRun: o.DryRun,
			write: func(ctx context.Context, g *guard.Guard, tok guard.Token, key string) (guard.Result, error) {
				return g.Adopt(ctx, tok, key, &o)
			},
			keys: func(ctx context.Context, g *guard.Guard, key string) iter.Seq2[string, error] {
				// A tombstone of another counter, or one that was set back, is to be taken too.
				w := guard.WalkOptions{Concurrency: m.concurrency, Tombstones: o.Recover || o.From != guard.IssuerID{}}
				return under(ctx, g, key, w, o.Recover)
			},
			outcomes: []string{string(guard.Adopted), string(guard.AlreadyFenced)}, gone: "not-found",
		}, args[0], m)
	}
	return c
}
