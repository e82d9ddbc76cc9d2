package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
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
	return &cobra.Command{
		Use:   "get URL DST",
		Short: "Download an object through the guard",
		Long: `Get downloads URL to the file DST, or into the folder DST, or to standard output
for -. The whole file appears, with its checksum verified where the store keeps
one, or none does. A deleted object (a tombstone) is not found. An object
without a fence record is downloaded, with a warning.`,
		Example: `  # 1. to a file, and into a folder under the object's own name
  s3fence get s3://bucket/reports/today.csv today.csv
  s3fence get s3://bucket/reports/today.csv downloads/`,
		Args: nargs("URL", "DST"),
		RunE: func(c *cobra.Command, args []string) error { return a.get(c.Context(), args[0], args[1]) },
	}
}

func (a *app) catCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "cat URL",
		Short: "Write an object to standard output",
		Long: `Cat writes the bytes of URL to standard output. They are written as they come: if
it exits with anything but 0, what was written is not the whole object, or did
not match its checksum.`,
		Example: `  # 1. look at the first lines
  s3fence cat s3://bucket/reports/today.csv | head`,
		Args: nargs("URL"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.cat(c.Context(), args[0])
		},
	}
}

type writerFunc func([]byte) (int, error)

// Write implements io.Writer.
func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// cat prints bytes only: a line of JSON behind them would spoil them.
func (a *app) cat(ctx context.Context, url string) error {
	g, key, err := a.openObject(ctx, url)
	if err != nil {
		return err
	}
	_, err = a.fetch(ctx, g, key, writerFunc(func(p []byte) (int, error) {
		a.said = true // so that a failure later on adds no JSON to the bytes
		return a.stdout.Write(p)
	}))
	return err
}

func (a *app) get(ctx context.Context, url, dst string) error {
	if dst == "-" {
		return a.cat(ctx, url)
	}
	info, file, err := a.getFile(ctx, url, dst)
	j := getJSON{Op: "get", URL: url, fenceJSON: newFenceJSON(info.Record), Requests: info.Requests}
	if err != nil {
		j.failure = newFailure(err)
		return a.sayEnd(j, "", err)
	}
	j.Outcome, j.File, j.Unfenced, j.Bytes = "fetched", file, info.Record == nil, &info.Size
	j.ETag, j.Version = strings.Trim(info.ETag, `"`), info.VersionID
	return a.say(j, fmt.Sprintf("fetched %s to %s: %s, %d bytes", url, file, fenceText(info.Record), info.Size))
}

func fenceText(r *guard.Record) string {
	if r == nil {
		return "not fenced"
	}
	return fmt.Sprintf("token %s (scope %s)", r.Fence(), r.Scope)
}

func (a *app) getFile(ctx context.Context, url, dst string) (info guard.Info, name string, err error) {
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
	info, err = a.fetch(ctx, g, key, tmp)
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

// fetch writes the object's bytes to w.
func (a *app) fetch(ctx context.Context, g *guard.Guard, key string, w io.Writer) (guard.Info, error) {
	info, body, err := g.Get(ctx, key)
	if err != nil {
		return info, err
	}
	defer body.Close()
	if info.Record == nil {
		a.log.WarnContext(ctx, "the object is not fenced", "url", info.URL)
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
