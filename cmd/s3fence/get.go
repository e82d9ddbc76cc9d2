package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
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
	Unfenced bool   `json:"unfenced,omitempty"`
	ETag     string `json:"etag,omitempty"`
	Version  string `json:"version_id,omitempty"`
	Bytes    *int64 `json:"bytes,omitempty"`
	Requests int    `json:"requests,omitempty"`
}

func (a *app) getCommand() *cobra.Command {
	var floor string
	c := &cobra.Command{
		Use:   "get URL DST",
		Short: "Download an object through the guard",
		Long: `Get downloads URL to the file DST, or into the folder DST, or to standard output
for -. The whole file appears, with its checksum verified where the store keeps
one, or none does. A deleted object (a tombstone) is not found. An object
without a fence record is downloaded, with a warning.

With --min-token, an object that is older than what the reader has seen already
is refused (exit 10): it was set back around the guard, or a cache or a replica
lags behind. So is one that is not fenced, or of another scope or issuer than
the token's (a bare number says nothing of those).`,
		Example: `  # 1. to a file, and into a folder under the object's own name
  s3fence get s3://bucket/reports/today.csv today.csv
  s3fence get s3://bucket/reports/today.csv downloads/

  # 2. what was written with token 48, or later
  s3fence get --min-token 48 s3://bucket/reports/today.csv today.csv`,
		Args: nargs("URL", "DST"),
	}
	floorFlag(c, &floor)
	c.RunE = func(c *cobra.Command, args []string) error { return a.get(c.Context(), args[0], args[1], floor) }
	return c
}

func floorFlag(c *cobra.Command, floor *string) {
	c.Flags().StringVar(floor, "min-token", "", "refuse what was written before `N`: a number, number.sequence, or a token's text or @FILE")
}

// getOptions reads the text of --min-token.
func getOptions(floor string) (*guard.GetOptions, error) {
	if floor == "" {
		return nil, nil
	}
	if strings.Contains(floor, ":") || strings.HasPrefix(floor, "@") {
		t, err := readToken(floor)
		return &guard.GetOptions{Floor: t.Floor()}, err
	}
	number, sequence, found := strings.Cut(floor, ".")
	if !found {
		sequence = "1"
	}
	n, err := strconv.ParseInt(number, 10, 64)
	s, serr := strconv.ParseInt(sequence, 10, 64)
	if err != nil || serr != nil || n < 1 || s < 1 {
		return nil, usagef("--min-token %q is neither a number such as 48, nor number.sequence such as 48.2, nor a token", floor)
	}
	return &guard.GetOptions{Floor: guard.Floor{Fence: guard.Fence{Number: n, Sequence: s}}}, nil
}

func (a *app) catCommand() *cobra.Command {
	var floor string
	c := &cobra.Command{
		Use:   "cat URL",
		Short: "Write an object to standard output",
		Long: `Cat writes the bytes of URL to standard output. They are written as they come: if
it exits with anything but 0, what was written is not the whole object, or did
not match its checksum. Of --min-token, s3fence help get says more.`,
		Example: `  # 1. look at the first lines
  s3fence cat s3://bucket/reports/today.csv | head`,
		Args:              nargs("URL"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	floorFlag(c, &floor)
	c.RunE = func(c *cobra.Command, args []string) error { return a.cat(c.Context(), args[0], floor) }
	return c
}

type writerFunc func([]byte) (int, error)

// Write implements io.Writer.
func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// cat prints bytes only: a line of JSON behind them would spoil them.
func (a *app) cat(ctx context.Context, url, floor string) error {
	opts, err := getOptions(floor)
	if err != nil {
		return err
	}
	g, key, err := a.openObject(ctx, url)
	if err != nil {
		return err
	}
	_, err = a.fetch(ctx, g, key, opts, writerFunc(func(p []byte) (int, error) {
		a.said = true // so that a failure later on adds no JSON to the bytes
		return a.stdout.Write(p)
	}), false)
	return err
}

func (a *app) get(ctx context.Context, url, dst, floor string) error {
	if dst == "-" {
		return a.cat(ctx, url, floor)
	}
	info, file, err := a.getFile(ctx, url, dst, floor)
	j := getJSON{Op: "get", URL: url, fenceJSON: newFenceJSON(info.Record), Requests: info.Requests}
	if err != nil {
		j.failure = newFailure(err)
		return a.sayEnd(j, "", err)
	}
	j.Outcome, j.File, j.Unfenced, j.Bytes = "fetched", file, info.Record == nil, &info.Size
	j.ETag, j.Version = strings.Trim(info.ETag, `"`), info.VersionID
	return a.say(j, fmt.Sprintf("fetched %s to %s: %s, %d bytes", printable(url), printable(file), fenceText(info.Record), info.Size))
}

func fenceText(r *guard.Record) string {
	if r == nil {
		return "not fenced"
	}
	return fmt.Sprintf("token %s (scope %s)", r.Fence(), r.Scope)
}

func (a *app) getFile(ctx context.Context, url, dst, floor string) (info guard.Info, name string, err error) {
	opts, err := getOptions(floor)
	if err != nil {
		return info, "", err
	}
	g, key, err := a.openObject(ctx, url)
	if err != nil {
		return info, "", err
	}
	if name, err = target(dst, key); err != nil {
		return info, "", err
	}
	tmp, err := os.OpenFile(filepath.Join(filepath.Dir(name), ".s3fence-"+rand.Text()), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	if err != nil {
		return info, "", fmt.Errorf("write next to %s: %w", name, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, removeGone(tmp.Name()))
		}
	}()
	info, err = a.fetch(ctx, g, key, opts, tmp, true)
	if err == nil {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return info, "", err
	}
	return info, name, os.Rename(tmp.Name(), name)
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

// fetch writes the object's bytes to w; show says that its progress may be shown.
func (a *app) fetch(ctx context.Context, g *guard.Guard, key string, opts *guard.GetOptions, w io.Writer, show bool) (guard.Info, error) {
	info, body, err := g.Get(ctx, key, opts)
	if err != nil {
		return info, err
	}
	defer body.Close()
	if info.Record == nil {
		a.log.WarnContext(ctx, "the object is not fenced", "url", info.URL)
	}
	if show {
		bar := a.progress("fetching", max(info.Size, unknown), byteCount)
		defer bar.end()
		w = bar.writer(w)
	}
	n, err := io.Copy(w, body)
	if info.Size < 0 {
		info.Size = n // the store did not say
	}
	if err == nil && n != info.Size {
		err = fmt.Errorf("%w: %d of %d bytes", io.ErrUnexpectedEOF, n, info.Size)
	}
	if err != nil {
		return info, fmt.Errorf("get %s: %w", info.URL, err)
	}
	return info, nil
}
