package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/s3fence/s3fence/guard"
)

// claimShowJSON is what claim --show prints.
type claimShowJSON struct {
	Op  string `json:"op"` // claim-show
	URL string `json:"url"`
	failure
	fenceJSON
}

func (a *app) claimCommand() *cobra.Command {
	var o guard.ClaimOptions
	var show bool
	c := &cobra.Command{
		Use:   "claim [URL]",
		Short: "Raise a scope's fence, so that older owners are refused at every key",
		Long: `Claim writes the token's number into the fence of its scope, which every guarded
write of the scope reads: from then on one with a lower number is refused, also
at keys that the new owner never touched. Workers that share a scope in parallel
must not claim it.

The fence is under --root, by default at the top of URL's bucket; the rest of
URL doesn't matter. All who write under a scope must use the same root. A
writer may rely on a reading of it that is --fence-max-age old.

With --show it prints who holds --scope, and changes nothing.`,
		Example: `  # 1. take over with a fresh token, and go on with it
  s3fence claim --scope nightly/report s3://bucket
  export S3FENCE_TOKEN=$(s3fence claim --json --scope nightly/report s3://bucket | jq -r .token_text)

  # 2. with a token that was taken before
  s3fence claim --token @token.txt --root s3://bucket/team

  # 3. who holds it?
  s3fence claim --show --scope nightly/report s3://bucket`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("%s takes at most one URL, got %d arguments", c.CommandPath(), len(args))
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := c.Flags()
	f.BoolVar(&show, "show", false, "print who holds --scope")
	writeIDFlag(f, &o.WriteID)
	dryRunFlag(f, &o.DryRun)
	c.RunE = func(c *cobra.Command, args []string) error {
		bucket, err := a.claimBucket(args)
		if err != nil {
			return err
		}
		if show {
			return a.showClaim(c.Context(), bucket)
		}
		return a.claim(c.Context(), bucket, &o)
	}
	return c
}

// claimBucket is the bucket whose root is meant.
func (a *app) claimBucket(urls []string) (string, error) {
	for _, u := range urls {
		bucket, _, err := parseURL(u)
		return bucket, err
	}
	bucket, _, err := a.root("")
	if err == nil && bucket == "" {
		err = usagef("in which bucket? give a URL, --root or S3FENCE_ROOT")
	}
	return bucket, err
}

func (a *app) claim(ctx context.Context, bucket string, o *guard.ClaimOptions) error {
	g, err := a.openGuard(ctx, bucket)
	if err != nil {
		return err
	}
	rootBucket, _, err := a.root(bucket)
	if err != nil {
		return err
	}
	tok, fresh, err := a.token(ctx, g, o.DryRun)
	if err != nil {
		return err
	}
	res, err := g.Claim(ctx, tok, o)
	err = a.interrupted(ctx, rootBucket, res.Key, &res, err)
	j := writeJSON{Op: "claim", URL: res.URL, DryRun: o.DryRun}
	j.fill(res, err)
	text := ""
	if err == nil {
		text = fmt.Sprintf("%s scope %s with token %d", outcomeText(string(res.Outcome), false), tok.Scope(), tok.Number())
		if o.DryRun {
			text = fmt.Sprintf("would claim scope %s with token %d", tok.Scope(), tok.Number())
		}
		if res.Previous != nil {
			text += fmt.Sprintf(", before it token %s", res.Previous.Fence())
		}
		text += ": " + res.URL
	}
	if fresh {
		j.TokenText = tok.String()
		text += "\ntoken " + tok.String()
	}
	return a.sayEnd(j, text, err)
}

func (a *app) showClaim(ctx context.Context, bucket string) error {
	scope, err := a.needScope()
	if err != nil {
		return err
	}
	g, err := a.openGuard(ctx, bucket)
	if err != nil {
		return err
	}
	rootBucket, root, err := a.root(bucket)
	if err != nil {
		return err
	}
	r, err := g.Claimed(ctx, scope)
	j := claimShowJSON{Op: "claim-show", URL: "s3://" + rootBucket + "/" + guard.ScopeFenceKey(root, scope), fenceJSON: newFenceJSON(r)}
	if err == nil && r == nil {
		err = fmt.Errorf("scope %s was never claimed: %s: %w", scope, j.URL, guard.ErrNotFound)
	}
	if err != nil {
		j.failure = newFailure(err)
		return a.sayEnd(j, "", err)
	}
	j.Outcome = string(guard.Claimed)
	return a.answer(j, fmt.Sprintf("scope %s is claimed with token %s (issuer %s, write id %s)", r.Scope, r.Fence(), r.Issuer, r.WriteID))
}
