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
	"time"

	"github.com/spf13/cobra"

	"github.com/s3fence/s3fence/guard"
)

// putJSON is the JSON of put: a contract, described in docs/json.md.
type putJSON struct {
	Op  string `json:"op"`
	URL string `json:"url"`
	failure
	DryRun bool `json:"dryrun,omitempty"`
	fenceJSON
	TokenText string     `json:"token_text,omitempty"`
	Held      *fenceJSON `json:"held,omitempty"`
	MayHave   bool       `json:"may_have_applied,omitempty"`
	ETag      string     `json:"etag,omitempty"`
	ETagKind  string     `json:"etag_kind,omitempty"`
	VersionID string     `json:"version_id,omitempty"`
	Bytes     *int64     `json:"bytes,omitempty"`
	Requests  int        `json:"requests,omitempty"`
}

// newHeld leaves out what is the same as in the write itself.
func newHeld(r *guard.Record, offered guard.Record) *fenceJSON {
	if r == nil {
		return nil
	}
	h := newFenceJSON(r)
	if r.Scope == offered.Scope && r.Issuer == offered.Issuer {
		h.Scope, h.Issuer = "", ""
	}
	return &h
}

func (a *app) putCommand() *cobra.Command {
	var o guard.PutOptions
	var writeID string
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
	f.StringVar(&o.SSE, "sse", "", "encryption: AES256, aws:kms or aws:kms:dsse (default: the bucket's)")
	f.StringVar(&o.SSEKMSKeyID, "sse-kms-key-id", "", "KMS key for --sse aws:kms")
	f.StringVar(&writeID, "write-id", "", "name of this write, 32 `hex` digits: run again with it, the write is recognised")
	f.Int64Var(&o.Sequence, "sequence", 1, "number of this write under the token")
	f.BoolVar(&o.CreateOnly, "if-absent", false, "refuse if the object is there")
	f.BoolVar(&o.DryRun, "dryrun", false, "say what would be done, and do not write")
	f.BoolVar(&o.AcceptRepeatableETag, "accept-repeatable-etag", false, "replace although a paused older writer could pass an If-Match on the same bytes")
	c.RunE = func(c *cobra.Command, args []string) error {
		if f.Changed("sequence") && o.Sequence < 1 {
			return usagef("--sequence %d: writes are numbered from 1", o.Sequence)
		}
		if f.Changed("write-id") {
			id, err := guard.ParseWriteID(writeID)
			if err != nil || id.IsZero() {
				return usagef("--write-id %q is not 32 lower-case hex digits, not all zero", writeID)
			}
			o.WriteID = id
		}
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
	j := putJSON{Op: "put", URL: "s3://" + bucket + "/" + key, DryRun: o.DryRun}
	res, fresh, err := a.putObject(ctx, src, bucket, key, o)
	switch {
	case err == nil || ctx.Err() == nil:
	case errors.Is(err, guard.ErrOutcomeUnknown):
		err = a.afterInterrupt(ctx, bucket, key, &res, err)
	case errors.Is(err, ctx.Err()):
		err = fmt.Errorf("interrupted, nothing was written: %w", err)
	}
	j.fill(res, err)
	text := ""
	if err == nil {
		text = describePut(res, o.DryRun)
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
	tok, isFresh, err := a.token(ctx)
	if err != nil {
		return res, fresh, err
	}
	if isFresh {
		fresh = tok
	}
	res, err = g.Put(ctx, tok, key, body, o)
	return res, fresh, err
}

// afterInterrupt looks once more, briefly, whether an interrupted write is in
// the object, since the person who pressed Ctrl-C wants to know.
func (a *app) afterInterrupt(ctx context.Context, bucket, key string, res *guard.Result, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	g, gerr := a.openGuard(ctx, bucket)
	if gerr != nil {
		return err
	}
	info, serr := g.Stat(ctx, key)
	if serr == nil && info.Record != nil && *info.Record == res.Record {
		res.Outcome = guard.AlreadyApplied
		return fmt.Errorf("interrupted: the write was applied to %s: %w", res.URL, context.Canceled)
	}
	return fmt.Errorf("interrupted: %w; it was not there when looked at again, and may still land", err)
}

func (j *putJSON) fill(res guard.Result, err error) {
	if err != nil {
		j.failure = newFailure(err)
	}
	if res.Outcome != "" { // even next to an error: it was applied all the same
		j.Outcome = string(res.Outcome)
	}
	if j.fenceJSON = newFenceJSON(&res.Record); j.Token > 0 {
		j.Bytes = &res.Bytes
	}
	j.Held = newHeld(res.Previous, res.Record)
	var refusal *guard.Refusal
	if errors.As(err, &refusal) {
		j.Held, j.MayHave = newHeld(refusal.Held, res.Record), refusal.MayHaveApplied
	}
	j.ETag, j.ETagKind, j.VersionID, j.Requests = res.ETag, string(res.ETagKind), res.VersionID, res.Requests
}

func describePut(res guard.Result, dry bool) string {
	outcome := strings.ReplaceAll(string(res.Outcome), "-", " ")
	if dry {
		outcome = "would be " + outcome
	}
	s := fmt.Sprintf("%s %s: token %s (scope %s), %d bytes", outcome, res.URL, res.Record.Fence(), res.Record.Scope, res.Bytes)
	if res.Previous != nil {
		s += fmt.Sprintf(", before it token %s", res.Previous.Fence())
	}
	return s
}

// source opens what is to be uploaded. A regular file is read in place; what
// can't be read twice goes to a temporary file first.
func (a *app) source(ctx context.Context, src string) (guard.Body, func() error, error) {
	if src == "-" {
		return spool(ctx, a.stdin, "standard input")
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
		return spool(ctx, f, src)
	}
	return guard.ReaderAt(f, fi.Size()), f.Close, nil
}

// spool copies r to a temporary file that has no name any more.
func spool(ctx context.Context, r io.Reader, what string) (guard.Body, func() error, error) {
	f, err := os.CreateTemp("", "s3fence-*")
	if err != nil {
		return guard.Body{}, nil, fmt.Errorf("keep %s until it ends: %w", what, err)
	}
	remove := func() error { return errors.Join(f.Close(), removeGone(f.Name())) }
	_ = os.Remove(f.Name()) // where an open file can be removed; elsewhere it goes with remove
	type end struct {
		n   int64
		err error
	}
	done := make(chan end, 1)
	go func() {
		n, err := io.Copy(f, io.LimitReader(r, guard.MaxSinglePart+1))
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
		return guard.ReaderAt(f, e.n), remove, nil
	}
}

// removeGone removes a file that may be gone already.
func removeGone(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
