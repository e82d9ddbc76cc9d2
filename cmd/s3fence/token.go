package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/issuer"
	"github.com/s3fence/s3fence/s3store/probe"
)

type tokenJSON struct {
	Op     string `json:"op"`
	Token  int64  `json:"token"`
	Scope  string `json:"scope"`
	Issuer string `json:"issuer"`
	Text   string `json:"text"`
}

func newTokenJSON(op string, t guard.Token) tokenJSON {
	return tokenJSON{Op: op, Token: t.Number(), Scope: t.Scope(), Issuer: t.Issuer().String(), Text: t.String()}
}

func (a *app) tokenCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "token",
		Short: "Take a fencing token, read one, or put a counter right",
		Long: `A fencing token is a number of one scope, higher than every number that the
scope gave before. Take it before the work begins: that is what makes the work
of an older owner refusable.`,
		Example: `  # 1. one token for a whole job
  export S3FENCE_TOKEN=$(s3fence token issue --scope nightly/report)`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(&cobra.Command{
		Use:   "issue",
		Short: "Take a new token of --scope and print its text",
		Long: `Issue takes the next number of --scope. With --root or S3FENCE_ROOT it holds the
number against the scope's fence there: a counter that went back is refused.`,
		Example: `  # 1. keep it in a file that other commands read with --token @token.txt
  s3fence token issue --scope nightly/report > token.txt`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.tokenIssue(c.Context()) },
	}, &cobra.Command{
		Use:   "show TOKEN",
		Short: "Print what a token says",
		Long:  `Show checks the text of a token, or of @FILE, and prints its number, scope and issuer.`,
		Example: `  # 1. whose is it?
  s3fence token show "$S3FENCE_TOKEN"`,
		Args: nargs("TOKEN"),
		RunE: func(_ *cobra.Command, args []string) error {
			t, err := readToken(args[0])
			if err != nil {
				return err
			}
			return a.answer(newTokenJSON("token-show", t),
				fmt.Sprintf("token   %d\nscope   %s\nissuer  %s", t.Number(), t.Scope(), t.Issuer()))
		},
	}, a.reconcileCommand())
	return c
}

func (a *app) tokenIssue(ctx context.Context) error {
	scope, err := a.needScope()
	if err != nil {
		return err
	}
	iss, err := a.openIssuer(ctx)
	if err != nil {
		return err
	}
	issue := iss.Issue
	bucket, _, err := a.root("")
	if err != nil {
		return err
	}
	if bucket != "" { // there is a scope fence to hold the number against
		g, err := a.openGuard(ctx, bucket)
		if err != nil {
			return err
		}
		issue = func(ctx context.Context, scope string) (guard.Token, error) { return g.Issue(ctx, iss, scope) }
	}
	t, err := issue(ctx, scope)
	if err != nil {
		return err
	}
	return a.answer(newTokenJSON("token-issue", t), t.String())
}

func (a *app) needScope() (string, error) {
	scope, _ := a.setting("scope")
	if scope == "" {
		return "", usagef("which scope? give --scope or S3FENCE_SCOPE")
	}
	return scope, guard.CheckScope(scope)
}

type initJSON struct {
	Op           string `json:"op"`
	Issuer       string `json:"issuer_url"`
	CreatedTable bool   `json:"created_table"`
	Scope        string `json:"scope,omitempty"`
	IssuerID     string `json:"issuer,omitempty"`
	CreatedScope bool   `json:"created_scope"`
	// URL and the rest are there when a store was proven.
	URL     string   `json:"url,omitempty"`
	Verdict string   `json:"verdict,omitempty"`
	Limits  []string `json:"limits,omitempty"`
	Saved   string   `json:"saved,omitempty"`
}

func (a *app) initCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "init [URL]",
		Short: "Make the issuer's table and a scope's counter, where absent; prove a store",
		Long: `Init makes the DynamoDB table if there is none, and the counter of --scope if
it has none, with a fresh issuer id. It never resets or changes what is there.
The embedded default (--local) needs no init; there it makes the same things.

With a URL it also proves the store, as doctor --quick --save does, and keeps
the result. A store that is not AWS needs that once, before the first write. A
result that was saved with another issuer, and says the same, is kept as it is.`,
		Example: `  # 1. once for each scope
  s3fence init --scope nightly/report

  # 2. the same, and prove a MinIO for s3fence to write to
  s3fence init --scope nightly/report s3://bucket

  # 3. in a table of another name
  s3fence init --issuer dynamodb://fences --scope nightly/report`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("%s takes at most one URL, got %d arguments", c.CommandPath(), len(args))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error { return a.init(c.Context(), args) },
	}
}

func (a *app) init(ctx context.Context, urls []string) error {
	for _, u := range urls { // before anything is made
		if _, _, err := parseURL(u); err != nil {
			return err
		}
	}
	scope, _ := a.setting("scope")
	if scope != "" {
		if err := guard.CheckScope(scope); err != nil {
			return err
		}
	}
	j := initJSON{Op: "init", Scope: scope}
	l, err := a.openLocal()
	if err != nil {
		return err
	}
	bucket, prefix, err := a.issuerBucket()
	if err != nil {
		return err
	}
	if j.Issuer, err = a.issuerURL(); err != nil {
		return err
	}
	var maker scopeMaker = l
	var text string
	var unsafe error
	prove := func() error {
		for _, u := range urls {
			d, err := a.prove(ctx, u, true, true, func(probe.Check) error { return nil })
			if err != nil && d.Verdict == "" {
				return err
			}
			kept := ""
			if len(d.Failed) == 0 && guard.ReasonOf(err) == guard.ErrIssuerMismatch { // the profile is another issuer's
				proven, perr := a.isProven(ctx, d)
				if perr != nil {
					return errors.Join(perr, err)
				}
				if proven {
					kept, err = "\nalready proven by another issuer; its profile is kept", nil
				}
			}
			unsafe = err
			j.URL, j.Verdict, j.Limits, j.Saved = d.URL, d.Verdict, d.Limits, d.Saved
			text += "\nstore " + strings.TrimSpace(d.text()) + kept
		}
		urls = nil
		return nil
	}
	switch {
	case l != nil:
		text = "folder " + strings.TrimPrefix(j.Issuer, "local:") + ": ready"
	case bucket != "":
		text = "counters in " + j.Issuer
		// First, since the counter may be in the very bucket.
		if err := prove(); err != nil {
			return err
		}
		if maker, err = a.openS3Issuer(ctx, bucket, prefix); err != nil {
			return cmp.Or(unsafe, err) // a store that fails is why
		}
	default:
		client, table, err := a.dynamoDB(ctx)
		if err != nil {
			return err
		}
		d, created, err := issuer.InitDynamoDB(ctx, client, table)
		if err != nil {
			return err
		}
		maker, j.CreatedTable = d, created
		text = fmt.Sprintf("table %s: %s", table, madeOrThere(j.CreatedTable))
	}
	if scope != "" {
		id, created, err := maker.CreateScope(ctx, scope)
		if err != nil {
			return err
		}
		j.IssuerID, j.CreatedScope = id.String(), created
		text += fmt.Sprintf("\nscope %s: %s, issuer id %s", scope, madeOrThere(created), id)
	}
	if err := prove(); err != nil {
		return err
	}
	return errors.Join(a.say(j, text), unsafe)
}

func madeOrThere(created bool) string {
	if created {
		return "made"
	}
	return "already there"
}
