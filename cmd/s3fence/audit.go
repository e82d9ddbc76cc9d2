package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/audit"
)

// findingJSON is a line for each finding.
type findingJSON struct {
	Op        string     `json:"op"` // audit-finding
	URL       string     `json:"url"`
	Kind      audit.Kind `json:"kind"`
	Severity  string     `json:"severity"`
	VersionID string     `json:"version_id,omitempty"`
	State     string     `json:"state,omitempty"` // live, deleted
	fenceJSON
	Other     *fenceJSON `json:"other,omitempty"`
	UploadID  string     `json:"upload_id,omitempty"`
	Initiated *time.Time `json:"initiated,omitempty"`
	Aborted   bool       `json:"aborted,omitempty"`
	Detail    string     `json:"detail"`
}

// auditJSON is audit's last line.
type auditJSON struct {
	Op  string `json:"op"`
	URL string `json:"url"`
	failure
	Complete   bool                 `json:"complete"`
	Objects    int64                `json:"objects"`
	Versions   int64                `json:"versions"`
	All        bool                 `json:"all_versions"` // not only the newest
	Violations int64                `json:"violations"`
	Warnings   int64                `json:"warnings"`
	Infos      int64                `json:"infos"`
	Findings   map[audit.Kind]int64 `json:"findings,omitempty"`
	Uploads    int64                `json:"uploads,omitempty"`
	Aborted    int64                `json:"aborted_uploads,omitempty"`
	Heads      int64                `json:"heads,omitempty"`
	Seconds    float64              `json:"seconds"`
	Rate       float64              `json:"rate"` // objects a second
	LastKey    string               `json:"last_key,omitempty"`
	Note       string               `json:"note,omitempty"`
	HTML       string               `json:"html,omitempty"`
}

// auditFlags are those of audit.
type auditFlags struct {
	startAfter, html     string
	abort, newest, all   bool
	olderThan            time.Duration
	concurrency, maxKeys int
}

func (a *app) auditCommand() *cobra.Command {
	var o auditFlags
	c := &cobra.Command{
		Use:   "audit URL",
		Short: "Look for what went around the guard",
		Long: `Audit looks at all objects whose keys begin with URL's, and at their older
versions where the bucket keeps them. It finds objects that are not fenced,
corrupt records, numbers that went down from one version to the next or came
twice, numbers of several issuers or scopes at one key, numbers above the
issuer's counter, delete markers over fenced versions, tombstones, and multipart
uploads that were left behind. It exits with 1 when it finds a violation, and
changes nothing but with --abort-uploads.

Each object takes a request where the store's listing leaves out metadata; only
MinIO's has it. The number of objects does not matter for the memory it takes.
Violations and warnings are printed as they are found, one a line; with --all
tombstones and other notes too. A run that was stopped says how to go on.

S3 does not say whose an upload is: every one under URL that is older than
--older-than counts, and is aborted with --abort-uploads.`,
		Example: `  # 1. did anything go around the guard?
  s3fence audit s3://bucket/reports/

  # 2. the same, as a page for people
  s3fence audit --html audit.html s3://bucket/reports/

  # 3. the objects whose number went down
  s3fence audit --json s3://bucket | jq -r 'select(.kind == "number-went-down").url'

  # 4. take away uploads that nobody completed for a week
  s3fence audit --abort-uploads --older-than 168h s3://bucket/reports/`,
		Args:              nargs("URL"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := c.Flags()
	f.StringVar(&o.startAfter, "start-after", "", "leave out `KEY` and all keys before it")
	f.StringVar(&o.html, "html", "", "draw the timeline of each key into `FILE`")
	f.IntVar(&o.maxKeys, "max-keys-in-html", audit.DefaultMaxKeys, "how many keys are drawn; those with violations first")
	f.BoolVar(&o.abort, "abort-uploads", false, "abort the multipart uploads that were left behind")
	f.DurationVar(&o.olderThan, "older-than", audit.DefaultOlderThan, "how old an upload must be to count as left behind; 0 for all")
	f.IntVar(&o.concurrency, "concurrency", 32, "how many objects are asked for at once")
	f.BoolVar(&o.newest, "no-versions", false, "look at the newest versions only")
	f.BoolVar(&o.all, "all", false, "print notes too: tombstones, older unfenced versions, writes without a claim")
	c.RunE = func(c *cobra.Command, args []string) error { return a.audit(c.Context(), args[0], o) }
	return c
}

// errViolation is the end of an audit that found one.
var errViolation = errors.New("violation")

func (a *app) audit(ctx context.Context, url string, o auditFlags) (err error) {
	switch {
	case o.concurrency < 1:
		return usagef("--concurrency %d: at least 1", o.concurrency)
	case o.maxKeys < 1:
		return usagef("--max-keys-in-html %d: at least 1", o.maxKeys)
	case o.olderThan < 0:
		return usagef("--older-than %s: at least 0", o.olderThan)
	case o.olderThan == 0:
		o.olderThan = -1
	}
	bucket, prefix, err := parseURL(url)
	if err != nil {
		return err
	}
	s, err := a.openStore(ctx, bucket)
	if err != nil {
		return err
	}
	g, err := a.openGuard(ctx, bucket)
	if err != nil {
		return err
	}
	counter, err := a.counter(ctx)
	if err != nil {
		return err
	}
	var page *auditPage
	if o.html != "" {
		if page, err = newAuditPage(url, o); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, page.close()) }()
	}

	bar := a.progress("auditing", unknown, objects)
	defer bar.end()
	opts := &audit.Options{
		Prefix: prefix, StartAfter: o.startAfter, NewestOnly: o.newest, Concurrency: o.concurrency,
		Counter: counter, Fence: g.Claimed, OlderThan: o.olderThan, AbortUploads: o.abort, Logger: a.log,
		Progress: func(n, _ int64) { bar.at(n) },
	}
	if page != nil {
		opts.History = page.Add
	}
	sum, err := audit.Run(ctx, s.store, opts, func(f audit.Finding) error {
		if page != nil {
			page.Found(f)
		}
		if f.Severity == audit.Info && !o.all && !a.json {
			return nil
		}
		return a.answer(newFindingJSON(f), printable(f.String()))
	})
	bar.end()
	j := newAuditJSON(url, sum)
	if page != nil {
		if perr := page.save(sum); perr != nil {
			err = errors.Join(err, perr)
		} else {
			j.HTML = o.html
		}
	}
	switch {
	case err == nil && sum.Objects+sum.Uploads == 0 && prefix != "" && o.startAfter == "":
		err = fmt.Errorf("audit %s: %w: no key begins with that", url, guard.ErrNotFound)
	case err != nil && sum.LastKey != "":
		err = fmt.Errorf("%w: %s done: go on with --start-after %s", err, count(sum.Objects, "object"), shellWord(sum.LastKey))
	case err == nil && sum.Violations > 0:
		err = fmt.Errorf("%w: %d found in %s", errViolation, sum.Violations, url)
	}
	j.Outcome = "clean"
	if err != nil {
		j.failure = newFailure(err)
		if errors.Is(err, errViolation) {
			j.Outcome = "violations"
		}
	}
	return errors.Join(a.say(j, j.text()), err)
}

// A peeker is an issuer that can say how far a counter is.
type peeker interface {
	Peek(ctx context.Context, scope string) (guard.IssuerID, int64, error)
}

// counter is how the last number of a scope is read. It is nil where there is
// no issuer and nobody named one.
func (a *app) counter(ctx context.Context) (func(context.Context, string) (guard.IssuerID, int64, error), error) {
	iss, err := a.openIssuer(ctx)
	if err == nil {
		return iss.Peek, nil
	}
	if named, _ := a.setting("issuer"); named != "" || ctx.Err() != nil || errors.Is(err, errUsage) {
		return nil, err
	}
	a.log.WarnContext(ctx, "no number is held against its counter", "error", err)
	return nil, nil
}

func newFindingJSON(f audit.Finding) findingJSON {
	j := findingJSON{
		Op: "audit-finding", URL: f.URL, Kind: f.Kind, Severity: f.Severity.String(), VersionID: f.VersionID,
		fenceJSON: newFenceJSON(f.Record), UploadID: f.UploadID, Aborted: f.Aborted, Detail: f.Detail,
	}
	if f.Record != nil {
		j.State = f.Record.State.String()
	}
	if f.Other != nil {
		other := newFenceJSON(f.Other)
		j.Other = &other
	}
	if !f.Initiated.IsZero() {
		t := f.Initiated.UTC()
		j.Initiated = &t
	}
	return j
}

func newAuditJSON(url string, s audit.Summary) auditJSON {
	return auditJSON{
		Op: "audit", URL: url, Complete: s.Complete, Objects: s.Objects, Versions: s.Versions, All: s.WithVersions,
		Violations: s.Violations, Warnings: s.Warnings, Infos: s.Infos, Findings: s.Findings,
		Uploads: s.Uploads, Aborted: s.Aborted, Heads: s.Heads,
		Seconds: math.Round(s.Elapsed.Seconds()*1000) / 1000, Rate: math.Round(s.Rate()), LastKey: s.LastKey, Note: s.Note,
	}
}

// text is the summary for people.
func (j auditJSON) text() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, k := range audit.Kinds() {
		if n := j.Findings[k]; n > 0 {
			fmt.Fprintf(w, "\t%d\t %s\n", n, k)
		}
	}
	_ = w.Flush() // a strings.Builder takes everything
	versions := "newest versions only"
	if j.All {
		versions = count(j.Versions, "version")
	}
	fmt.Fprintf(&b, "%s: %s, %s: %s, %s, %s (%.1f s, %.0f objects a second)",
		printable(j.URL), count(j.Objects, "object"), versions,
		count(j.Violations, "violation"), count(j.Warnings, "warning"), count(j.Infos, "note"), j.Seconds, j.Rate)
	if j.Outcome == "failed" {
		b.WriteString(": not finished, so this says nothing of the rest")
	}
	if j.Note != "" {
		fmt.Fprintf(&b, "\n%s", printable(j.Note))
	}
	if j.Aborted > 0 {
		fmt.Fprintf(&b, "\n%d of %s aborted", j.Aborted, count(j.Uploads, "upload"))
	}
	if j.HTML != "" {
		fmt.Fprintf(&b, "\nthe timeline is in %s", printable(j.HTML))
	}
	return b.String()
}

// shellWord writes a key as a shell reads it.
func shellWord(key string) string {
	safe := func(r rune) bool {
		return r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || strings.ContainsRune("._/-+:,@%=", r)
	}
	switch {
	case strings.TrimFunc(key, safe) == "" && !strings.HasPrefix(key, "-"):
		return key
	case printable(key) == key:
		return "'" + strings.ReplaceAll(key, "'", `'\''`) + "'"
	}
	var b strings.Builder
	for i := range len(key) {
		if c := key[i]; c < ' ' || c > '~' || c == '\'' || c == '\\' {
			fmt.Fprintf(&b, `\x%02x`, c)
		} else {
			b.WriteByte(c)
		}
	}
	return "$'" + b.String() + "'"
}

// An auditPage is written to a file that appears whole, or not at all.
type auditPage struct {
	*audit.Page
	name string
	tmp  *os.File
}

// newAuditPage begins the file, so that a name that can't be one is noticed
// before the audit.
func newAuditPage(url string, o auditFlags) (*auditPage, error) {
	if isDir(o.html) || strings.HasSuffix(o.html, "/") {
		return nil, usagef("--html %s is a folder: name a file in it", o.html)
	}
	if fi, err := os.Stat(o.html); err == nil && !fi.Mode().IsRegular() {
		return nil, usagef("--html %s is not a regular file", o.html)
	}
	if target, err := filepath.EvalSymlinks(o.html); err == nil {
		o.html = target // a link stays one
	}
	tmp, err := os.OpenFile(filepath.Join(filepath.Dir(o.html), ".s3fence-"+rand.Text()), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	if err != nil {
		return nil, fmt.Errorf("write next to %s: %w", o.html, err)
	}
	return &auditPage{audit.NewPage(url, &audit.PageOptions{MaxKeys: o.maxKeys, Time: time.Now()}), o.html, tmp}, nil
}

func (p *auditPage) save(sum audit.Summary) error {
	err := errors.Join(p.Write(p.tmp, sum), p.tmp.Close())
	if err == nil {
		err = os.Rename(p.tmp.Name(), p.name)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", p.name, err)
	}
	return nil
}

// close takes away what is left.
func (p *auditPage) close() error {
	p.tmp.Close()
	return removeGone(p.tmp.Name())
}
