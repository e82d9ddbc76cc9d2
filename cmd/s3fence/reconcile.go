package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	humanize "github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/issuer"
)

// reconcileJSON is what token reconcile prints.
type reconcileJSON struct {
	Op string `json:"op"` // token-reconcile
	failure
	DryRun    bool   `json:"dryrun,omitempty"`
	IssuerURL string `json:"issuer_url,omitempty"`
	Scope     string `json:"scope,omitempty"`
	// Before is absent where there was no counter.
	Before *counterJSON `json:"before,omitempty"`
	After  *counterJSON `json:"after,omitempty"`
	// Moved: the counter was made in another table, or at another place.
	Moved       bool        `json:"moved,omitempty"`
	ScopeFences []foundJSON `json:"scope_fences,omitempty"`
	Objects     []foundJSON `json:"objects,omitempty"`
	Corrupt     int64       `json:"corrupt_records,omitempty"`
}

type counterJSON struct {
	Token  int64  `json:"token"`
	Issuer string `json:"issuer,omitempty"`
}

// foundJSON is what the objects of one issuer hold at most.
type foundJSON struct {
	Issuer  string `json:"issuer"`
	Objects int64  `json:"objects,omitempty"`
	Token   int64  `json:"token"`
	URL     string `json:"url"` // that has it
	Counted bool   `json:"counted"`
}

// reconcileFlags are those of token reconcile.
type reconcileFlags struct {
	scan        []string
	yes, dryRun bool
}

func (a *app) reconcileCommand() *cobra.Command {
	var o reconcileFlags
	c := &cobra.Command{
		Use:   "reconcile",
		Short: "Raise a counter that went back above every number it gave",
		Long: `Reconcile is for a counter that gives no tokens any more: its table was restored
from a backup or made anew, its object was copied or deleted, or it gave a number
that was claimed before. Let no writer of the scope run meanwhile.

It reads the scope's fence (under --root, by default at the top of each --scan
URL's bucket) and, with --scan, the fence records of all objects under URL. It
says what it found and what it would do, and asks before it does it; --yes does
not ask. In one conditional write the counter is raised to the highest number
found, never lowered, gets back the issuer id of the fence, or of the objects
where no fence is, and is bound to where it is now.

A counter that had another issuer id, or was restored or copied, takes over the id
of the one before it. That one must be gone for good: its table or object deleted,
or the scope's item removed from it. Two live counters with one id give equal
tokens. Nothing tells reconcile where the former one is, or whether it lives. Where
it lives, don't reconcile: point --issuer at it.

Scan all that the scope writes to: a number that was given and not claimed is
only in objects, and one that was never written is nowhere: end all that hold a
token of the scope. Without --scan numbers in use may be given again. Objects of
another issuer id are told and not counted.`,
		Example: `  # 1. after a restore of the table: what would be done?
  s3fence token reconcile --dryrun --scope nightly/report --scan s3://bucket/reports/

  # 2. do it, from a script
  s3fence token reconcile --yes --scope nightly/report --scan s3://bucket/reports/`,
		Args: cobra.NoArgs,
	}
	f := c.Flags()
	f.StringArrayVar(&o.scan, "scan", nil, "look at all objects whose keys begin with `URL`'s; may be given again")
	f.BoolVar(&o.yes, "yes", false, "do not ask")
	dryRunFlag(f, &o.dryRun)
	c.RunE = func(c *cobra.Command, _ []string) error { return a.reconcile(c.Context(), o) }
	return c
}

func (a *app) reconcile(ctx context.Context, o reconcileFlags) error {
	j := reconcileJSON{Op: "token-reconcile", DryRun: o.dryRun}
	text, err := a.reconcileScope(ctx, o, &j)
	if err != nil {
		j.failure = newFailure(err)
	}
	return a.sayEnd(j, text, err)
}

func (a *app) reconcileScope(ctx context.Context, o reconcileFlags, j *reconcileJSON) (string, error) {
	scope, err := a.needScope()
	if err != nil {
		return "", err
	}
	j.Scope = scope
	if j.IssuerURL, err = a.issuerURL(); err != nil {
		return "", err
	}
	seen, err := a.numbersOf(ctx, scope, o.scan)
	if err != nil {
		return "", err
	}
	iss, err := a.openIssuer(ctx)
	if err != nil {
		return "", err
	}
	r, ok := iss.(interface {
		issuer.Reconciler
		peeker
	})
	if !ok {
		return "", fmt.Errorf("%s can't be reconciled", j.IssuerURL)
	}
	own, _, err := r.Peek(ctx, scope)
	if err != nil && !errors.Is(err, guard.ErrIssuerRefuses) { // gone, or damaged: that is what this is for
		return "", err
	}
	want, err := seen.issuer(own)
	if err != nil {
		return "", &guard.Refusal{
			Reason: guard.ErrIssuerMismatch, URL: "scope " + scope + " of " + j.IssuerURL, Err: err,
			Cures: []string{"leave out what was written under another counter: a narrower --scan URL, or --root", "or use another scope, for new keys"},
		}
	}
	opts := issuer.ReconcileOptions{AtLeast: seen.highest(want), Issuer: want, DryRun: true}
	plan, err := r.Reconcile(ctx, scope, opts)
	if err != nil {
		return "", err
	}
	seen.fill(j, plan.After.Issuer)
	j.plan(plan)
	warnings := j.warnings(plan.Changed, len(o.scan) > 0)
	switch {
	case !plan.Changed:
		j.Outcome = "nothing-to-do"
		fmt.Fprintf(a.stderr, "%s", warnings)
		return j.found() + "\n" + j.did(false), nil
	case want == (guard.IssuerID{}) && len(o.scan) == 0:
		return "", &issuer.Error{
			Source: j.IssuerURL, Scope: scope, Detail: "nothing tells which numbers it gave: the scope was never claimed",
			Cures: []string{"look at all that it wrote to: --scan s3://BUCKET/PREFIX"},
		}
	}
	j.Outcome = "reconciled"
	text := j.found() + "\n" + j.did(true)
	if o.dryRun {
		fmt.Fprintf(a.stderr, "%s", warnings)
		return text, nil
	}
	if !o.yes {
		if err := a.confirm(ctx, text+"\n"+warnings); err != nil {
			return "", err
		}
		text = ""
	} else {
		fmt.Fprintf(a.stderr, "%s", warnings)
		text = j.found() + "\n"
	}
	opts.DryRun = false
	if plan, err = r.Reconcile(ctx, scope, opts); err != nil {
		return "", err
	}
	j.plan(plan)
	if !plan.Changed { // somebody did it meanwhile
		j.Outcome = "nothing-to-do"
	}
	return text + j.did(false), nil
}

const lookThenYes = "look with --dryrun, then run it with --yes"

// confirm shows what would be done and asks whether it shall be.
func (a *app) confirm(ctx context.Context, text string) error {
	in, ok := a.stdin.(*os.File)
	if !ok || !isTerminal(in) {
		return usagef("there is no terminal to ask on, so nothing was changed: %s", lookThenYes)
	}
	return ask(ctx, in, a.stderr, text)
}

// ask shows text and returns nil after a yes. It does not wait for an answer
// beyond the end of ctx.
func ask(ctx context.Context, in io.Reader, out io.Writer, text string) error {
	fmt.Fprintf(out, "%sDo it? [y/N] ", text)
	type reading struct {
		line string
		err  error
	}
	read := make(chan reading, 1)
	go func() { // a terminal can't be told to stop
		line, err := bufio.NewReader(in).ReadString('\n')
		read <- reading{line, err}
	}()
	var r reading
	select {
	case r = <-read:
	case <-ctx.Done():
		fmt.Fprintln(out) // the question has left its line open
		return fmt.Errorf("interrupted, so nothing was changed: %w", ctx.Err())
	}
	switch answer := strings.ToLower(strings.TrimSpace(r.line)); {
	case answer == "y" || answer == "yes":
		return nil
	case r.err != nil:
		return usagef("nobody answered, so nothing was changed: %s", lookThenYes)
	}
	return errors.New("not confirmed, so nothing was changed")
}

// A peak is the highest number that was seen of one issuer id.
type peak struct {
	objects int64
	highest int64
	url     string
}

func (f *peak) add(number int64, url string) {
	f.objects++
	if number > f.highest {
		f.highest, f.url = number, url
	}
}

// numbers are those that were seen of a scope.
type numbers struct {
	fences, objects map[guard.IssuerID]*peak
	corrupt         int64
}

func note(in map[guard.IssuerID]*peak, r *guard.Record, url string) {
	f := in[r.Issuer]
	if f == nil {
		f = &peak{}
		in[r.Issuer] = f
	}
	f.add(r.Number, url)
}

// numbersOf reads the scope's fences, and the objects under the URLs.
func (a *app) numbersOf(ctx context.Context, scope string, scan []string) (*numbers, error) {
	n := &numbers{fences: make(map[guard.IssuerID]*peak), objects: make(map[guard.IssuerID]*peak)}
	root, _, err := a.root("")
	if err != nil {
		return nil, err
	}
	var roots []string // the buckets whose roots the fences are under
	if root != "" {
		roots = append(roots, root)
	}
	for _, u := range scan {
		bucket, _, err := parseURL(u)
		if err != nil {
			return nil, fmt.Errorf("--scan: %w", err)
		}
		if root == "" && !slices.Contains(roots, bucket) {
			roots = append(roots, bucket)
		}
	}
	if len(roots) == 0 {
		return nil, usagef("where is the scope's fence? give --scan URL, --root or S3FENCE_ROOT")
	}
	for _, bucket := range roots {
		if err := a.addFence(ctx, n, bucket, scope); err != nil {
			return nil, err
		}
	}
	bar := a.progress("scanning", unknown, objects)
	defer bar.end()
	var count int64
	for _, u := range scan {
		bucket, prefix, err := parseURL(u)
		if err != nil {
			return nil, err
		}
		g, err := a.openGuard(ctx, bucket)
		if err != nil {
			return nil, err
		}
		for info, err := range g.Walk(ctx, prefix, &guard.WalkOptions{Tombstones: true, Own: true}) {
			switch {
			case guard.ReasonOf(err) == guard.ErrCorruptRecord:
				n.corrupt++
			case err != nil:
				return nil, err
			case info.Record != nil && info.Record.Scope == scope:
				note(n.objects, info.Record, info.URL)
			}
			count++
			bar.at(count)
		}
	}
	return n, nil
}

func (a *app) addFence(ctx context.Context, n *numbers, bucket, scope string) error {
	g, err := a.openGuard(ctx, bucket)
	if err != nil {
		return err
	}
	r, err := g.Claimed(ctx, scope)
	if err != nil || r == nil {
		return err
	}
	rootBucket, root, err := a.root(bucket)
	if err == nil {
		note(n.fences, r, "s3://"+rootBucket+"/"+guard.ScopeFenceKey(root, scope))
	}
	return err
}

// issuer returns the id that the counter shall have, which has the id own now:
// the fence's, without which no write passes, else that of the objects. It is
// zero where nothing was seen.
func (n *numbers) issuer(own guard.IssuerID) (guard.IssuerID, error) {
	from, what := n.fences, "the scope's fences"
	if len(from) == 0 {
		from, what = n.objects, "the objects"
		if from[own] != nil {
			return own, nil
		}
	}
	if len(from) > 1 {
		return guard.IssuerID{}, fmt.Errorf("%s are of several counters, and it is not known which one is meant: issuer ids %s", what, strings.Join(ids(from), ", "))
	}
	for id := range from {
		return id, nil
	}
	return guard.IssuerID{}, nil
}

func ids(in map[guard.IssuerID]*peak) []string {
	return slices.Sorted(func(yield func(string) bool) {
		for id := range in {
			if !yield(id.String()) {
				return
			}
		}
	})
}

// highest returns the highest number of an issuer id, 0 for none.
func (n *numbers) highest(id guard.IssuerID) (highest int64) {
	for _, in := range []map[guard.IssuerID]*peak{n.fences, n.objects} {
		if f := in[id]; f != nil {
			highest = max(highest, f.highest)
		}
	}
	return highest
}

// fill puts what was seen into j; counted is what has the id that the counter
// shall have.
func (n *numbers) fill(j *reconcileJSON, id guard.IssuerID) {
	list := func(in map[guard.IssuerID]*peak) (all []foundJSON) {
		for i, f := range in {
			all = append(all, foundJSON{Issuer: i.String(), Objects: f.objects, Token: f.highest, URL: f.url, Counted: i == id})
		}
		slices.SortFunc(all, func(x, y foundJSON) int { return strings.Compare(x.Issuer, y.Issuer) })
		return all
	}
	j.ScopeFences, j.Objects, j.Corrupt = list(n.fences), list(n.objects), n.corrupt
}

// plan puts what becomes of the counter into j.
func (j *reconcileJSON) plan(r issuer.Reconciled) {
	j.Moved = r.Moved
	if r.Before != nil {
		j.Before = newCounterJSON(*r.Before)
	}
	j.After = newCounterJSON(r.After)
}

func newCounterJSON(c issuer.Counter) *counterJSON {
	j := &counterJSON{Token: c.Number}
	if c.Issuer != (guard.IssuerID{}) {
		j.Issuer = c.Issuer.String()
	}
	return j
}

// found says in words what was found.
func (j *reconcileJSON) found() string {
	var b strings.Builder
	fmt.Fprintf(&b, "scope %s, counter in %s: ", j.Scope, j.IssuerURL)
	switch {
	case j.Before == nil:
		b.WriteString("gone")
	case j.Before.Issuer == "":
		fmt.Fprintf(&b, "at %d, its issuer id is damaged", j.Before.Token)
	default:
		fmt.Fprintf(&b, "at %d (issuer %s)", j.Before.Token, j.Before.Issuer)
	}
	if j.Moved {
		b.WriteString(", restored or copied from somewhere else")
	}
	list := func(all []foundJSON, what string) {
		for _, f := range all {
			fmt.Fprintf(&b, "\n%s: highest %d (issuer %s), %s", what, f.Token, f.Issuer, printable(f.URL))
			if f.Objects > 1 {
				fmt.Fprintf(&b, ", of %s", humanize.Comma(f.Objects))
			}
			if !f.Counted {
				b.WriteString(": not counted, and refuses the tokens of this counter")
			}
		}
	}
	list(j.ScopeFences, "scope fence")
	list(j.Objects, "objects")
	if j.Corrupt > 0 {
		fmt.Fprintf(&b, "\n%s objects with a corrupt record: not counted (s3fence audit names them)", humanize.Comma(j.Corrupt))
	}
	return b.String()
}

// warnings are lines about what reconcile can't know, and whoever runs it must.
func (j *reconcileJSON) warnings(changed, scanned bool) string {
	var b strings.Builder
	warn := func(format string, args ...any) { fmt.Fprintf(&b, "s3fence: warning: "+format+"\n", args...) }
	const gone = "must be gone for good (its table or object deleted, or the scope's item removed): two live counters with one issuer id give equal tokens"
	switch {
	case !changed:
	case j.Before == nil || j.Before.Issuer != j.After.Issuer:
		warn("the counter in %s takes over the issuer id %s: any other counter with that id %s", j.IssuerURL, j.After.Issuer, gone)
	case j.Moved:
		warn("the counter in %s has the issuer id of the one that it was restored or copied from, which %s", j.IssuerURL, gone)
	}
	if !scanned {
		warn("only the scope's fence was looked at: objects may hold higher numbers, which would be given again: --scan URL for each place that the scope writes to")
	}
	return b.String()
}

// did says in words what was done, or would be.
func (j *reconcileJSON) did(would bool) string {
	if j.Outcome == "nothing-to-do" {
		return fmt.Sprintf("nothing to do: the next token is %d", j.After.Token+1)
	}
	var does []string
	if j.Before == nil {
		does = append(does, fmt.Sprintf("make the counter again at %d with issuer id %s", j.After.Token, j.After.Issuer))
	} else {
		if j.Before.Token != j.After.Token {
			does = append(does, fmt.Sprintf("raise the counter from %d to %d", j.Before.Token, j.After.Token))
		}
		if j.Before.Issuer != j.After.Issuer {
			does = append(does, "give it back the issuer id "+j.After.Issuer)
		}
		if j.Moved {
			does = append(does, "bind it to where it is now")
		}
	}
	prefix := "done: "
	if would {
		prefix = "would "
	}
	return prefix + strings.Join(does, ", ") + fmt.Sprintf("; the next token is %d", j.After.Token+1)
}
