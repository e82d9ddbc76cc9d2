package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/s3fence/s3fence/guard"
)

type getJSON struct {
	Op  string `json:"op"`
	URL string `json:"url"`
	failure
	File string `json:"file,omitempty"`
	fenceJSON
	DryRun   bool   `json:"dryrun,omitempty"`
	Unfenced bool   `json:"unfenced,omitempty"`
	ETag     string `json:"etag,omitempty"`
	Version  string `json:"version_id,omitempty"`
	Bytes    *int64 `json:"bytes,omitempty"`
	Requests int    `json:"requests,omitempty"`
}

// fetched is the outcome of a download.
const fetched = "fetched"

// getFlags are those of get.
type getFlags struct {
	guard.DownloadOptions
	manyFlags
	globs
	dryRun bool
}

func (a *app) getCommand() *cobra.Command {
	var p getFlags
	var floor string
	c := &cobra.Command{
		Use:   "get URL DST",
		Short: "Download an object, or all under a prefix, through the guard",
		Long: `Get downloads URL to the file DST, or into the folder DST, or to standard output
for -. The whole file appears, with its checksum verified where the store keeps
one, or none does. What is large is read in several parts at once. A deleted
object (a tombstone) is not found. An object without a fence record is
downloaded, with a warning.

With --min-token, an object that is older than what the reader has seen already
is refused (exit 10): it was set back around the guard, or a cache or a replica
lags behind. So is one that is not fenced, or of another scope or issuer than
the token's (a bare number says nothing of those).

With -r it downloads the object at URL and all that lie under URL/: from s3://b/dir
these are dir, and dir/x as the file x, and not dirty. DST is a folder, which is
made if it is not there. A key that can't be a file under DST fails, and nothing
is ever written outside it: one with .. or // in it, one that another object's
file is in the way of, one that leads through a symbolic link out of DST. A key
that ends in a slash is a folder. An object that is refused or fails stops no
other. A file under DST that is of no object stays. --include and --exclude are
matched with the name below URL/, in which * stands for any text, slashes too;
of those that match the last one counts. A name that none matches is taken,
unless the first of them is an --include. Where there is nothing under URL/,
that is not found.`,
		Example: `  # 1. to a file, and into a folder under the object's own name
  s3fence get s3://bucket/reports/today.csv today.csv
  s3fence get s3://bucket/reports/today.csv downloads/

  # 2. what was written with token 48, or later
  s3fence get --min-token 48 s3://bucket/reports/today.csv today.csv

  # 3. all under reports/, but no temporary files
  s3fence get -r --exclude '*.tmp' s3://bucket/reports downloads`,
		Args: nargs("URL", "DST"),
	}
	f := c.Flags()
	floorFlag(c, &floor)
	p.manyFlags.add(f)
	f.Lookup("concurrency").Usage = fmt.Sprintf("how many objects at once, or without -r parts of the object, then %d", guard.DefaultConcurrency)
	p.globs.add(f)
	partSizeFlag(f, &p.PartSize, leastRead, "size of the parts that what is large is read in", "16MiB")
	dryRunFlag(f, &p.dryRun)
	f.Lookup("dryrun").Usage = "with -r: say what would be downloaded, and write nothing"
	c.RunE = func(c *cobra.Command, args []string) (err error) {
		if err := p.check(f, "include", "exclude", "dryrun", "fail-fast"); err != nil {
			return err
		}
		if args[1] == "" {
			return usagef("DST is empty")
		}
		if p.Floor, err = readFloor(c, floor); err != nil {
			return err
		}
		if p.recursive {
			return a.getMany(c.Context(), args[0], args[1], p)
		}
		if f.Changed("concurrency") {
			p.Concurrency = p.concurrency
		}
		return a.get(c.Context(), args[0], args[1], p.DownloadOptions)
	}
	return c
}

func floorFlag(c *cobra.Command, floor *string) {
	c.Flags().StringVar(floor, "min-token", "", "refuse what was written before `N`: a number, number.sequence, or a token's text or @FILE")
}

// readFloor reads the text of --min-token.
func readFloor(c *cobra.Command, floor string) (guard.Floor, error) {
	if !c.Flags().Changed("min-token") {
		return guard.Floor{}, nil
	}
	if strings.Contains(floor, ":") || strings.HasPrefix(floor, "@") {
		t, err := readToken(floor)
		return t.Floor(), err
	}
	number, sequence, found := strings.Cut(floor, ".")
	if !found {
		sequence = "1"
	}
	n, err := strconv.ParseInt(number, 10, 64)
	s, serr := strconv.ParseInt(sequence, 10, 64)
	if err != nil || serr != nil || n < 1 || s < 1 {
		return guard.Floor{}, usagef("--min-token %q is neither a number such as 48, nor number.sequence such as 48.2, nor a token", floor)
	}
	return guard.Floor{Fence: guard.Fence{Number: n, Sequence: s}}, nil
}

func (a *app) catCommand() *cobra.Command {
	var floor string
	c := &cobra.Command{
		Use:   "cat URL",
		Short: "Write an object to standard output",
		Long: `Cat writes the bytes of URL to standard output. They are written as they come, and
a download that is cut short goes on where it was. If cat exits with anything but
0, what was written is not the whole object, or did not match its checksum. Of --min-token, s3fence help get says more.`,
		Example: `  # 1. look at the first lines
  s3fence cat s3://bucket/reports/today.csv | head`,
		Args:              nargs("URL"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	floorFlag(c, &floor)
	c.RunE = func(c *cobra.Command, args []string) error {
		floor, err := readFloor(c, floor)
		if err != nil {
			return err
		}
		return a.cat(c.Context(), args[0], floor)
	}
	return c
}

type writerFunc func([]byte) (int, error)

// Write implements io.Writer.
func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// cat prints bytes only: a line of JSON behind them would spoil them.
func (a *app) cat(ctx context.Context, url string, floor guard.Floor) error {
	g, key, err := a.openObject(ctx, url)
	if err != nil {
		return err
	}
	info, body, err := g.Get(ctx, key, &guard.GetOptions{Floor: floor, Resume: true})
	if err != nil {
		return err
	}
	defer body.Close()
	a.warnUnfenced(ctx, info)
	n, err := io.Copy(writerFunc(a.print), body)
	if err == nil && info.Size >= 0 && n != info.Size { // negative: the store did not say
		err = fmt.Errorf("%w: %d of %d bytes", io.ErrUnexpectedEOF, n, info.Size)
	}
	if err != nil {
		return fmt.Errorf("get %s: %s written, which are not the object: %w", info.URL, count(n, "byte"), err)
	}
	return nil
}

func (a *app) warnUnfenced(ctx context.Context, info guard.Info) {
	if info.Record == nil {
		a.log.WarnContext(ctx, "the object is not fenced", "url", info.URL)
	}
}

func (a *app) get(ctx context.Context, url, dst string, o guard.DownloadOptions) error {
	if dst == "-" {
		return a.cat(ctx, url, o.Floor)
	}
	info, file, err := a.getFile(ctx, url, dst, o)
	j, text := newGetJSON(url, file, false, info, err)
	return a.sayEnd(j, text, err)
}

// newGetJSON says how the download of an object ended, for programs and, of a
// success, in words.
func newGetJSON(url, file string, dry bool, info guard.Info, err error) (getJSON, string) {
	j := getJSON{Op: "get", URL: url, DryRun: dry, fenceJSON: newFenceJSON(info.Record), Requests: info.Requests}
	if err != nil {
		j.failure = newFailure(err)
		return j, ""
	}
	j.Outcome, j.File, j.Unfenced, j.Bytes = fetched, file, info.Record == nil, &info.Size
	j.ETag, j.Version = strings.Trim(info.ETag, `"`), info.VersionID
	return j, fmt.Sprintf("%s %s to %s: %s, %s", outcomeText(fetched, dry), printable(url), printable(file), fenceText(info.Record), count(info.Size, "byte"))
}

func fenceText(r *guard.Record) string {
	if r == nil {
		return "not fenced"
	}
	return fmt.Sprintf("token %s (scope %s)", r.Fence(), r.Scope)
}

func (a *app) getFile(ctx context.Context, url, dst string, o guard.DownloadOptions) (info guard.Info, name string, err error) {
	if err := notBucket(url); err != nil {
		return info, "", err
	}
	g, key, err := a.openObject(ctx, url)
	if err != nil {
		return info, "", err
	}
	if name, err = target(dst, key); err != nil {
		return info, "", err
	}
	dir, err := os.OpenRoot(filepath.Dir(name))
	if err != nil {
		return info, "", fmt.Errorf("write next to %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	size := int64(unknown)
	if a.terminal != nil { // whoever is watching wants to know it first
		if info, err := g.Stat(ctx, key); err == nil {
			size = info.Size
		}
	}
	bar := a.progress("fetching", size, byteCount)
	defer bar.end()
	info, err = a.download(ctx, g, key, dir, filepath.Base(name), bar, o)
	return info, name, err
}

// target is the file that dst means for key. A key never chooses the folder:
// only its last part is used, and only if it is a plain file name.
func target(dst, key string) (string, error) {
	into := strings.HasSuffix(dst, "/") || isDir(dst)
	if !into {
		fi, err := os.Stat(dst)
		if err == nil && !fi.Mode().IsRegular() {
			return "", usagef("%s is not a regular file; s3fence cat writes to standard output", dst)
		}
		return dst, nil
	}
	base := key[strings.LastIndexByte(key, '/')+1:]
	if base == "" || base == "." || base == ".." || !filepath.IsLocal(base) || filepath.Base(base) != base {
		return "", usagef("the key %q does not end in a file name: name the file to write", key)
	}
	return filepath.Join(dst, base), nil
}

// download downloads key to the file name in dir.
func (a *app) download(ctx context.Context, g *guard.Guard, key string, dir *os.Root, name string, bar *progress, o guard.DownloadOptions) (info guard.Info, err error) {
	o.Progress = bar.add
	err = appear(dir, name, func(tmp *os.File) (err error) {
		if info, err = g.Download(ctx, key, tmp, &o); err != nil {
			return err
		}
		a.warnUnfenced(ctx, info)
		return tmp.Truncate(info.Size) // of one that was replaced by a shorter one meanwhile
	})
	return info, err
}

// appear makes what fill writes the file name in dir: all of it, or nothing
// appears. What is no file stays as it is.
func appear(dir *os.Root, name string, fill func(*os.File) error) (err error) {
	fi, err := dir.Lstat(name)
	switch {
	case err == nil && !fi.Mode().IsRegular() && fi.Mode()&fs.ModeSymlink == 0:
		return fmt.Errorf("%s is not a regular file: move it away", filepath.Join(dir.Name(), name))
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return inDir("write", dir, name, err)
	}
	part := filepath.Join(filepath.Dir(name), newPart())
	tmp, err := dir.OpenFile(part, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o666)
	if err != nil {
		return inDir("write next to", dir, name, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, dir.Remove(part))
		}
	}()
	err = fill(tmp)
	if err == nil {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	return dir.Rename(part, name)
}

const partPrefix = ".s3fence-"

// newPart names a file that is not whole yet.
func newPart() string { return partPrefix + rand.Text() }

var partText = regexp.MustCompile(`^[A-Z2-7]{26}$`)

// isPart reports whether a name is one of newPart's, in the folder that it is in.
func isPart(name string) bool {
	text, ok := strings.CutPrefix(name, partPrefix)
	return ok && partText.MatchString(text)
}

// inDir names what an error is of, which said only how it is called in dir.
func inDir(doing string, dir *os.Root, name string, err error) error {
	for p := new(fs.PathError); errors.As(err, &p); {
		err = p.Err
	}
	return fmt.Errorf("%s %s: %w", doing, filepath.Join(dir.Name(), name), err)
}
