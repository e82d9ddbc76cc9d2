package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/s3fence/s3fence/guard"
)

func (a *app) lsCommand() *cobra.Command {
	var recursive, all bool
	c := &cobra.Command{
		Use:   "ls URL",
		Short: "List objects with their tokens",
		Long: `Ls lists the objects whose keys begin with URL's, one level of them, as aws s3 ls
does: what lies deeper is shown as PRE, once for each folder, also where only
tombstones are left in it: to know that, each folder would have to be listed. With
-r nothing is shown of those. The columns are: modified (UTC), bytes, token (48.3 is
the third write under token 48), scope, state where it is not live (deleted,
unfenced, corrupt), and the key behind URL's last slash, or with -r whole. What
does not apply is a dash. Control characters in keys are escaped; --json gives
keys exactly.

It exits with 1 when nothing matches, unless URL is a bucket alone, and with 0
whatever state the objects are in. s3fence's own objects are left out, unless
URL leads into .s3fence/. Where the store's listing doesn't give metadata, each
object takes a request.`,
		Example: `  # 1. one level
  s3fence ls s3://bucket/reports/

  # 2. everything, with what was deleted
  s3fence ls -r --all s3://bucket

  # 3. what is not fenced?
  s3fence ls -r --json s3://bucket | jq -r 'select(.outcome == "unfenced").url'`,
		Args:              nargs("URL"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := c.Flags()
	f.BoolVarP(&recursive, "recursive", "r", false, "everything, not one level")
	f.BoolVar(&all, "all", false, "tombstones too")
	c.RunE = func(c *cobra.Command, args []string) error { return a.ls(c.Context(), args[0], recursive, all) }
	return c
}

func (a *app) ls(ctx context.Context, url string, recursive, all bool) error {
	bucket, prefix, err := parseURL(url)
	if err != nil {
		return err
	}
	g, err := a.openGuard(ctx, bucket)
	if err != nil {
		return err
	}
	o := &guard.WalkOptions{Tombstones: all, Own: guard.IsOwn(prefix)}
	hide := 0 // of the keys, which a listing of one level shows without
	if !recursive {
		o.Delimiter, hide = "/", strings.LastIndexByte(prefix, '/')+1
	}
	found := prefix == "" // an empty bucket is no failure
	for info, err := range g.Walk(ctx, prefix, o) {
		if err != nil && guard.ReasonOf(err) != guard.ErrCorruptRecord {
			return err
		}
		found = true
		j := newLsJSON(info, err)
		if err := a.answer(j, lsText(j, info.Key[hide:])); err != nil {
			return err
		}
	}
	if !found {
		return fmt.Errorf("list %s: %w", url, guard.ErrNotFound)
	}
	return nil
}

// The states that ls shows in text and as outcome.
const (
	lsPrefix   = "prefix"
	lsUnfenced = "unfenced"
	lsCorrupt  = "corrupt"
)

// newLsJSON is stat's JSON, where being unfenced or corrupt is no failure.
func newLsJSON(info guard.Info, err error) statJSON {
	j := newStatJSON(info.URL, info)
	j.Op = "ls"
	switch {
	case info.Prefix:
		j.Outcome = lsPrefix
	case err != nil:
		j.Outcome, j.Reason, j.Error = lsCorrupt, string(guard.ErrCorruptRecord), oneLine(err.Error())
	case info.Record == nil:
		j.Outcome = lsUnfenced
	}
	return j
}

// lsText is one line. Its columns are as wide as most need, so that nothing has
// to be kept until the end of the listing.
func lsText(j statJSON, name string) string {
	line := func(modified, size, token, scope, state string) string {
		return fmt.Sprintf("%20s %11s %8s %-16s %8s %s", modified, size, token, scope, state, printable(name))
	}
	modified, size, token, state := "-", "-", "-", "-"
	switch j.Outcome {
	case lsPrefix:
		return line("", "", "", "", "PRE")
	case lsUnfenced, lsCorrupt:
		state = j.Outcome
	default:
		token = guard.Fence{Number: j.Token, Sequence: j.Sequence}.String()
		if j.State != guard.Live.String() {
			state = j.State
		}
	}
	if j.Modified != nil {
		modified = j.Modified.Format(time.RFC3339)
	}
	if j.Bytes != nil {
		size = fmt.Sprint(*j.Bytes)
	}
	return line(modified, size, token, cmp.Or(j.Scope, "-"), state)
}
