package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/s3fence/s3fence/guard"
)

func (a *app) putCommand() *cobra.Command {
	var o guard.PutOptions
	var metadata map[string]string
	c := &cobra.Command{
		Use:   "put SRC DST",
		Short: "Upload a file under a fencing token",
		Long: `Put uploads SRC, a file or - for standard input, to DST, s3://BUCKET/KEY. The
object refuses it unless the token is higher than the one it holds.

A DST that ends in a slash, or names only the bucket, gets the file's name
appended. Standard input is kept in a temporary file until it ends, and nothing
is sent before. A pipe ends in the same way whether its writer was done or died:
in a script, set -o pipefail tells.`,
		Example: `  # 1. with a fresh token
  s3fence put --scope nightly/report report.csv s3://bucket/reports/today.csv

  # 2. with the token that was taken when the work began
  s3fence put --token @token.txt report.csv s3://bucket/reports/today.csv

  # 3. from a pipe, under SSE-KMS so that the object may be replaced on S3
  pg_dump db | s3fence put --scope dump --sse aws:kms - s3://bucket/db.dump`,
		Args: nargs("SRC", "DST"),
	}
	f := c.Flags()
	f.StringVar(&o.ContentType, "content-type", "", "content type (default: by the name's ending)")
	f.StringVar(&o.ContentEncoding, "content-encoding", "", "content encoding, gzip for one")
	f.StringVar(&o.CacheControl, "cache-control", "", "cache control header")
	f.StringToStringVar(&metadata, "metadata", nil, "user metadata, `key=value`, repeated or with commas")
	f.StringToStringVar(&o.Tags, "tags", nil, "object tags, `key=value`, repeated or with commas")
	f.StringVar(&o.StorageClass, "storage-class", "", "storage class, STANDARD_IA for one")
	sseFlags(c, &o.SSE, &o.SSEKMSKeyID)
	writeIDFlag(f, &o.WriteID)
	sequenceFlag(f, &o.Sequence)
	f.BoolVar(&o.CreateOnly, "if-absent", false, "refuse if the object is there")
	dryRunFlag(f, &o.DryRun)
	f.BoolVar(&o.AcceptRepeatableETag, "accept-repeatable-etag", false, "replace although a paused older writer could pass an If-Match on the same bytes")
	c.RunE = func(c *cobra.Command, args []string) error {
		o.Metadata = make(map[string]string, len(metadata))
		for k, v := range metadata {
			k = strings.ToLower(k) // as it comes back
			if _, twice := o.Metadata[k]; twice {
				return usagef("--metadata %s is given twice", k)
			}
			o.Metadata[k] = v
		}
		return a.put(c.Context(), args[0], args[1], &o)
	}
	return c
}

func (a *app) put(ctx context.Context, src, dst string, o *guard.PutOptions) error {
	bucket, key, err := parseURL(dst)
	if err != nil {
		return err
	}
	if key == "" || strings.HasSuffix(key, "/") {
		if src == "-" {
			return usagef("%s names no object: standard input has no name to append", dst)
		}
		key += filepath.Base(src)
	}
	j := writeJSON{Op: "put", URL: "s3://" + bucket + "/" + key, DryRun: o.DryRun}
	res, fresh, err := a.putObject(ctx, src, bucket, key, o)
	err = a.interrupted(ctx, bucket, key, &res, err)
	j.fill(res, err)
	text := ""
	if err == nil {
		text = describe(res, o.DryRun)
	}
	if !fresh.IsZero() {
		j.TokenText = fresh.String()
		text += "\ntoken " + fresh.String()
	}
	return a.sayEnd(j, text, err)
}

// putObject checks the source before it takes a token, so that a wrong file
// name costs no number. fresh is the token that it took, if it took one.
func (a *app) putObject(ctx context.Context, src, bucket, key string, o *guard.PutOptions) (res guard.Result, fresh guard.Token, err error) {
	if err := guard.CheckKey(key); err != nil {
		return res, fresh, err
	}
	body, closeBody, err := a.source(ctx, src)
	if err != nil {
		return res, fresh, err
	}
	defer func() { err = errors.Join(err, closeBody()) }()
	if o.ContentType == "" {
		name := src
		if src == "-" {
			name = key
		}
		o.ContentType = mime.TypeByExtension(path.Ext(name))
	}
	g, err := a.openGuard(ctx, bucket)
	if err != nil {
		return res, fresh, err
	}
	tok, isFresh, err := a.token(ctx, g)
	if err != nil {
		return res, fresh, err
	}
	if isFresh {
		fresh = tok
	}
	res, err = g.Put(ctx, tok, key, body, o)
	return res, fresh, err
}

// source opens what is to be uploaded. A regular file is read in place; what
// can't be read twice goes to a temporary file first.
func (a *app) source(ctx context.Context, src string) (guard.Body, func() error, error) {
	if src == "-" {
		return a.spool(ctx, a.stdin, "standard input")
	}
	f, err := openFile(src, "read the source")
	if err != nil {
		return guard.Body{}, nil, err
	}
	fi, err := f.Stat()
	switch {
	case err != nil:
		return guard.Body{}, nil, errors.Join(err, f.Close())
	case fi.IsDir():
		return guard.Body{}, nil, errors.Join(usagef("%s is a directory; put takes a file, or - for standard input", src), f.Close())
	case !fi.Mode().IsRegular() || fi.Size() == 0:
		// Files of /proc and the like are regular, and empty until they are read.
		defer f.Close()
		return a.spool(ctx, f, src)
	}
	body, closeBody := a.sending(f, fi.Size(), f.Close)
	return body, closeBody, nil
}

// sending is a body that is shown while it is read.
func (a *app) sending(f io.ReaderAt, size int64, closeFile func() error) (guard.Body, func() error) {
	bar := a.progress("sending", size, byteCount)
	return guard.ReaderAt(bar.readerAt(f), size), func() error {
		bar.end()
		return closeFile()
	}
}

// spool copies r to a temporary file that has no name any more.
func (a *app) spool(ctx context.Context, r io.Reader, what string) (guard.Body, func() error, error) {
	f, err := os.CreateTemp("", "s3fence-*")
	if err != nil {
		return guard.Body{}, nil, fmt.Errorf("keep %s until it ends: %w", what, err)
	}
	remove := func() error { return errors.Join(f.Close(), removeGone(f.Name())) }
	_ = os.Remove(f.Name()) // where an open file can be removed; elsewhere it goes with remove
	bar := a.progress("reading "+what, unknown, byteCount)
	defer bar.end()
	type end struct {
		n   int64
		err error
	}
	done := make(chan end, 1)
	go func() {
		n, err := io.Copy(bar.writer(f), io.LimitReader(r, guard.MaxSinglePart+1))
		done <- end{n, err}
	}()
	select {
	case <-ctx.Done():
		// The read may be stuck in a pipe that nobody writes to; the process is about to end.
		return guard.Body{}, nil, errors.Join(fmt.Errorf("read %s: %w", what, ctx.Err()), remove())
	case e := <-done:
		if e.err != nil {
			return guard.Body{}, nil, errors.Join(fmt.Errorf("read %s: %w", what, e.err), remove())
		}
		bar.end()
		body, closeBody := a.sending(f, e.n, remove)
		return body, closeBody, nil
	}
}

// removeGone removes a file that may be gone already.
func removeGone(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
