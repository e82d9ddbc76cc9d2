package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"os"
	"path"
	"slices"
	"strings"
	"sync/atomic"

	humanize "github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/s3fence/s3fence/guard"
)

// publishFlags are those of publish.
type publishFlags struct {
	guard.PublishOptions
	tree
	noFollow bool
}

func (a *app) publishCommand() *cobra.Command {
	var p publishFlags
	c := &cobra.Command{
		Use:   "publish DIR DATASET",
		Short: "Publish a folder as a set: many files, one atomic commit",
		Long: `Publish makes the files in DIR the set of DATASET, s3://BUCKET/PREFIX, at once.
Whoever resolves the dataset finds the set that was there before, or the whole new
one, never a mix; an owner with an older token is refused, wherever it was held up.

The files go to DATASET/data/NUMBER-WRITEID/NAME first, where nothing refers to
them. Then DATASET/manifest.json is replaced by one guarded write. A file that
fails ends it, and nothing is committed. What was sent already is not sent again
when the same is run with the same token and --write-id. With --append, the files
of the set that is there stay in it, unless one of the same name is published.

A set has at most 100,000 files, and a manifest of less than 32 MiB. All files in
DIR are taken, hidden ones too, and links are followed; --include and --exclude are
those of put -r. A DIR that is called like one of the commands below is ./get, say.`,
		Example: `  # 1. tonight's set in the place of yesterday's
  s3fence publish --scope nightly/report out s3://bucket/reports

  # 2. what is in it, and all of it in a folder
  s3fence publish resolve s3://bucket/reports
  s3fence publish get s3://bucket/reports copy

  # 3. one more day of a table
  s3fence publish --append --scope nightly/report out/day=2026-12-02 s3://bucket/table

  # 4. remove what no set refers to any more
  s3fence publish gc s3://bucket/reports`,
		Args: nargs("DIR", "DATASET"),
		// Next to commands, cobra completes no files by itself.
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
	}
	f := c.Flags()
	f.BoolVar(&p.Append, "append", false, "keep the set that is there, and add to it")
	p.globs.add(f)
	for _, name := range []string{"include", "exclude"} {
		f.Lookup(name).Usage = strings.TrimPrefix(f.Lookup(name).Usage, "with -r: ")
	}
	f.BoolVar(&p.noFollow, "no-follow-symlinks", false, "leave symbolic links out")
	f.IntVar(&p.Concurrency, "concurrency", defaultConcurrency, "how many files at once")
	partSizeFlag(f, &p.PartSize, guard.MinPart, "size of the parts of what is large", "8MiB")
	sseFlags(c, &p.SSE, &p.SSEKMSKeyID)
	writeIDFlag(f, &p.WriteID)
	sequenceFlag(f, &p.Sequence)
	dryRunFlag(f, &p.DryRun)
	c.RunE = func(c *cobra.Command, args []string) error {
		m := manyFlags{recursive: true, concurrency: p.Concurrency}
		if err := m.check(f); err != nil {
			return err
		}
		if err := a.fromRun(c, &p.Sequence); err != nil {
			return err
		}
		return a.publish(c.Context(), args[0], args[1], p)
	}
	c.AddCommand(a.publishResolveCommand(), a.publishGetCommand(), a.publishGCCommand())
	return c
}

// publishJSON is the line of the commit.
type publishJSON struct {
	writeJSON
	Dataset string `json:"dataset"`
	Files   *int   `json:"files,omitempty"` // in the set
}

// parseDataset splits s3://BUCKET/PREFIX.
func parseDataset(url string) (bucket, dataset string, err error) {
	bucket, dataset, err = parseURL(url)
	dataset = strings.TrimSuffix(dataset, "/")
	if err == nil && dataset == "" {
		err = usagef("%s names no dataset: it takes a prefix of its own, s3://%s/PREFIX", url, bucket)
	}
	return bucket, dataset, err
}

func (a *app) publish(ctx context.Context, dir, url string, p publishFlags) error {
	bucket, dataset, err := parseDataset(url)
	if err != nil {
		return err
	}
	p.root, p.follow = dir, !p.noFollow
	sources, size, err := a.publishSources(ctx, p)
	if err != nil {
		return err
	}
	g, err := a.openGuard(ctx, bucket)
	if err != nil {
		return err
	}
	tok, fresh, err := a.token(ctx, g, p.DryRun)
	if err != nil {
		return err
	}
	bar := a.progress("sending", size, byteCount)
	bar.expect(int64(len(sources)), size)
	t := newTally(a, "publish", url, bar)
	t.outcomes, t.always = []string{string(guard.Created), string(guard.AlreadyApplied)}, 2
	t.dryRun, t.sizes = p.DryRun, true
	if fresh {
		t.token = tok
	}
	files, paths := make([]guard.PublishFile, len(sources)), make(map[string]string, len(sources))
	for i, f := range sources {
		files[i] = guard.PublishFile{Name: f.name, ContentType: mime.TypeByExtension(path.Ext(f.name)), Open: func() (guard.Body, func() error, error) {
			return openUnchanging(f.path, bar)
		}}
		paths[f.name] = f.path
	}
	p.Sent = func(f guard.SetFile, res guard.Result, err error) {
		if res.URL == "" {
			res.URL = "s3://" + bucket + "/" + f.Key(dataset)
		}
		j := putFileJSON{writeJSON: writeJSON{Op: "publish-file", URL: res.URL, DryRun: p.DryRun}, File: paths[f.Name]}
		j.fill(res, err)
		if err != nil {
			t.failed(j, j.Outcome)
			return
		}
		t.add(0, ending{json: j, outcome: j.Outcome, text: describe(res, p.DryRun), bytes: res.Bytes})
	}
	set, err := g.Publish(ctx, tok, dataset, files, &p.PublishOptions)
	switch {
	case err != nil && ctx.Err() != nil && guard.ReasonOf(err) != guard.ErrOutcomeUnknown && errors.Is(err, ctx.Err()):
		err = fmt.Errorf("interrupted, nothing was committed to %s: %w", url, ctx.Err())
	default:
		err = a.interrupted(ctx, bucket, guard.ManifestKey(dataset), &set.Result, err)
	}
	return a.published(t, set, err, url, p)
}

// published says how a publish ended.
func (a *app) published(t *tally, set guard.Published, err error, url string, p publishFlags) error {
	j := publishJSON{writeJSON: writeJSON{Op: "publish", URL: set.URL, DryRun: p.DryRun}, Dataset: url}
	if j.URL == "" {
		j.URL = url
	}
	j.fill(set.Result, err)
	text := "published " + printable(url) + fmt.Sprintf(": token %s (scope %s)", set.Record.Fence(), set.Record.Scope)
	switch {
	case p.DryRun:
		text = "would be " + text
	case set.Outcome == guard.AlreadyApplied:
		text = "already " + text
	}
	if set.Files != nil {
		n := len(set.Files)
		j.Files = &n
		text += fmt.Sprintf(", %s, %s in the set", count(int64(n), "file"), humanize.IBytes(uint64(setSize(set.Files))))
	}
	if set.Previous != nil {
		text += ", before it token " + set.Previous.Fence().String()
	}
	if err != nil {
		t.fail(0, err)
	}
	if err == nil || a.json {
		if err := a.say(j, text); err != nil {
			t.fail(0, err)
		}
	}
	if err != nil && !refused(err) && t.sent() && !p.DryRun {
		fmt.Fprintf(a.stderr, "s3fence: hint: with the same token, --sequence and --write-id %s, what was sent is not sent again\n", set.Record.WriteID)
	}
	return t.end()
}

// failed counts an object whose error is told of later.
func (t *tally) failed(j any, outcome string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts[outcome]++
	if t.a.json {
		if err := t.a.say(j, ""); err != nil {
			t.note(0, err)
		}
	}
}

// sent reports whether some objects are there.
func (t *tally) sent() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.outcomes, func(o string) bool { return t.counts[o] > 0 })
}

// publishSources are the files to be published, sorted by their names, and how
// many bytes they have.
func (a *app) publishSources(ctx context.Context, p publishFlags) (files []treeFile, size int64, err error) {
	switch fi, err := os.Stat(p.root); {
	case err != nil:
		return nil, 0, fmt.Errorf("read the source: %w", err)
	case !fi.IsDir():
		return nil, 0, usagef("%s is not a folder; s3fence put uploads one file", p.root)
	}
	p.leftOut = func(path string, mode fs.FileMode) {
		a.log.WarnContext(ctx, "neither a file nor a folder: left out", "file", path, "mode", mode.String())
	}
	for f, err := range p.files(ctx) {
		if err == nil && f.err != nil {
			err = fmt.Errorf("read the source: %w", f.err)
		}
		if err == nil && len(files) == guard.MaxSetFiles {
			err = usagef("%s has more files than the %d that a set takes", p.root, guard.MaxSetFiles)
		}
		if err != nil {
			return nil, 0, err
		}
		files = append(files, f)
		size += f.size
	}
	if len(files) == 0 {
		return nil, 0, usagef("there is no file to publish in %s", p.root)
	}
	slices.SortFunc(files, func(a, b treeFile) int { return strings.Compare(a.name, b.name) })
	return files, size, nil
}

// openUnchanging opens a file that must not change before done is called.
func openUnchanging(name string, bar *progress) (body guard.Body, done func() error, err error) {
	s, err := openSource(name)
	if err != nil {
		return body, nil, err
	}
	f, ok := s.at.(*os.File)
	if !ok {
		return body, nil, errors.Join(usagef("%s has no size before it is read: publish takes regular files", name), s.close())
	}
	var r io.ReaderAt = f
	if bar != nil {
		r = &summedFirst{r: f, then: bar.readerAt(f, s.size), size: s.size}
	}
	return guard.ReaderAt(r, s.size), func() error {
		err := s.unchanged()
		if errors.Is(err, errChanged) {
			err = fmt.Errorf("%w: publish when nobody writes there", err)
		}
		return errors.Join(err, s.close())
	}, nil
}

// summedFirst is read once for its checksum. What is read then is what is sent.
type summedFirst struct {
	r, then io.ReaderAt
	size    int64
	summed  atomic.Bool
}

// ReadAt implements io.ReaderAt.
func (s *summedFirst) ReadAt(b []byte, off int64) (int, error) {
	if s.summed.Load() {
		return s.then.ReadAt(b, off)
	}
	n, err := s.r.ReadAt(b, off)
	if off+int64(n) >= s.size {
		s.summed.Store(true)
	}
	return n, err
}
