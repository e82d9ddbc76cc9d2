package main

import (
	"bytes"
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

// putFlags are those of put.
type putFlags struct {
	guard.PutOptions
	manyFlags
	lastingFlags
	tree
	noFollow bool
}

func (a *app) putCommand() *cobra.Command {
	var p putFlags
	var metadata map[string]string
	c := &cobra.Command{
		Use:   "put SRC DST",
		Short: "Upload a file, a folder or a stream under a fencing token",
		Long: `Put uploads SRC, a file or - for standard input, to DST, s3://BUCKET/KEY. The
object refuses it unless the token is higher than the one it holds.

A DST that ends in a slash, or names only the bucket, gets the file's name
appended. What is large is sent in parts, and becomes the object at once, or
not at all. A file that changes meanwhile is an error, also where the object is
written by then. Standard input is sent as it comes, of any length. A pipe ends in
the same way whether its writer was done or died: in a script, set -o pipefail
tells, too late for the object.

With --state FILE, what is known of the keys is kept, and the next run writes
them with one request each.

With -r, SRC is a folder, and all files in it go under DST/, hidden ones too, but
not those that a killed get has left, .s3fence- and 26 letters and digits. One
token and one --sequence serve for all. A file that is refused or fails stops no
other. Links are followed. --include and --exclude are matched with the name below
SRC, in which * stands for any text, slashes too; of those that match the last one
counts. A name that none matches is taken, unless the first of them is an
--include. With --resume FILE, a run that was cut short goes on under its own
token when it is started again in the same way: what was done, and has not
changed since, is left as it is.`,
		Example: `  # 1. with a fresh token
  s3fence put --scope nightly/report report.csv s3://bucket/reports/today.csv

  # 2. with the token that was taken when the work began
  s3fence put --token @token.txt report.csv s3://bucket/reports/today.csv

  # 3. from a pipe
  pg_dump db | s3fence put --scope dump - s3://bucket/db.dump

  # 4. a folder, every night, and again after a crash
  s3fence put -r --state up.db --resume up.db --scope nightly/report out s3://bucket/reports

  # 5. a folder, but nothing hidden
  s3fence put -r --exclude '.*' --exclude '*/.*' --scope nightly/report out s3://bucket/reports`,
		Args: nargs("SRC", "DST"),
	}
	f := c.Flags()
	p.manyFlags.add(f)
	p.lastingFlags.add(f)
	f.Lookup("recursive").Usage = "SRC is a folder: all files in it"
	f.Lookup("concurrency").Usage = fmt.Sprintf("how many files at once, or without -r parts of the file, then %d", guard.DefaultConcurrency)
	p.globs.add(f)
	f.BoolVar(&p.noFollow, "no-follow-symlinks", false, "with -r: leave symbolic links out")
	partSizeFlag(f, &p.PartSize, guard.MinPart, "size of the parts of what is large", "8MiB")
	f.StringVar(&p.ContentType, "content-type", "", "content type (default: by the name's ending)")
	f.StringVar(&p.ContentEncoding, "content-encoding", "", "content encoding, gzip for one")
	f.StringVar(&p.CacheControl, "cache-control", "", "cache control header")
	f.StringToStringVar(&metadata, "metadata", nil, "user metadata, `key=value`, repeated or with commas")
	f.StringToStringVar(&p.Tags, "tags", nil, "object tags, `key=value`, repeated or with commas")
	f.StringVar(&p.StorageClass, "storage-class", "", "storage class, STANDARD_IA for one")
	sseFlags(c, &p.SSE, &p.SSEKMSKeyID)
	writeIDFlag(f, &p.WriteID)
	sequenceFlag(f, &p.Sequence)
	f.BoolVar(&p.CreateOnly, "if-absent", false, "refuse if the object is there")
	dryRunFlag(f, &p.DryRun)
	f.BoolVar(&p.AcceptRepeatableETag, "accept-repeatable-etag", false, "replace although a paused older writer could pass an If-Match on the same bytes")
	c.RunE = func(c *cobra.Command, args []string) error {
		p.Metadata = make(map[string]string, len(metadata))
		for k, v := range metadata {
			k = strings.ToLower(k) // as it comes back
			if _, twice := p.Metadata[k]; twice {
				return usagef("--metadata %s is given twice", k)
			}
			p.Metadata[k] = v
		}
		if err := p.check(f, "include", "exclude", "no-follow-symlinks", "fail-fast", "resume"); err != nil {
			return err
		}
		if f.Changed("concurrency") {
			p.Concurrency = p.concurrency
		}
		if err := a.fromRun(c, &p.Sequence); err != nil {
			return err
		}
		if p.recursive {
			return a.putMany(c.Context(), args[0], args[1], p)
		}
		return a.put(c.Context(), args[0], args[1], p)
	}
	return c
}

func (a *app) put(ctx context.Context, src, dst string, p putFlags) error {
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
	if _, err := a.openLasting(p.lastingFlags); err != nil {
		return err
	}
	j := writeJSON{Op: "put", URL: "s3://" + bucket + "/" + key, DryRun: p.DryRun}
	res, fresh, err := a.putObject(ctx, src, bucket, key, p.PutOptions)
	err = a.interrupted(ctx, bucket, key, &res, err)
	j.fill(res, err)
	text := ""
	if err == nil {
		text = describe(res, p.DryRun)
	}
	if !fresh.IsZero() {
		j.TokenText = fresh.String()
		text += "\ntoken " + fresh.String()
	}
	return a.sayEnd(j, text, err)
}

// putObject checks the source before it takes a token, so that a wrong file
// name costs no number. fresh is the token that it took, if it took one.
func (a *app) putObject(ctx context.Context, src, bucket, key string, o guard.PutOptions) (res guard.Result, fresh guard.Token, err error) {
	if err := guard.CheckKey(key); err != nil {
		return res, fresh, err
	}
	s, err := a.source(src)
	if err != nil {
		return res, fresh, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	g, err := a.openGuard(ctx, bucket)
	if err != nil {
		return res, fresh, err
	}
	tok, isFresh, err := a.token(ctx, g, o.DryRun)
	if err != nil {
		return res, fresh, err
	}
	if isFresh {
		fresh = tok
	}
	bar := a.progress("sending", s.size, byteCount)
	defer bar.end()
	res, err = s.put(ctx, g, tok, key, bar, o)
	return res, fresh, err
}

// A source is what is uploaded: a file that can be read anywhere, or what can
// be read once, from which at is missing.
type source struct {
	name  string
	r     io.Reader
	at    io.ReaderAt
	size  int64     // unknown of what can be read once
	time  time.Time // when it was changed last
	close func() error
}

func (a *app) source(src string) (source, error) {
	if src == "-" {
		return source{name: src, r: a.stdin, size: unknown, close: func() error { return nil }}, nil
	}
	return openSource(src)
}

func openSource(name string) (source, error) {
	f, err := openFile(name, "read the source")
	if err != nil {
		return source{}, err
	}
	s := source{name: name, r: f, size: unknown, close: f.Close}
	fi, err := f.Stat()
	switch {
	case err != nil:
		return source{}, errors.Join(err, f.Close())
	case fi.IsDir():
		return source{}, errors.Join(usagef("%s is a directory; -r uploads the files in it", name), f.Close())
	case fi.Mode().IsRegular():
		s.at, s.size, s.time = f, fi.Size(), fi.ModTime()
		if s.size == 0 { // those of /proc and the like are empty until they are read
			var b [1]byte
			if n, _ := f.Read(b[:]); n > 0 {
				s.r, s.at, s.size = io.MultiReader(bytes.NewReader(b[:]), f), nil, unknown
			}
		}
	}
	return s, nil
}

// put uploads it. What is read is counted by bar.
func (s source) put(ctx context.Context, g *guard.Guard, tok guard.Token, key string, bar *progress, o guard.PutOptions) (guard.Result, error) {
	if o.ContentType == "" {
		name := s.name
		if name == "-" {
			name = key
		}
		o.ContentType = mime.TypeByExtension(path.Ext(name))
	}
	if s.at == nil {
		return g.PutStream(ctx, tok, key, io.TeeReader(s.r, bar.writer(io.Discard)), &o)
	}
	res, err := g.Put(ctx, tok, key, guard.ReaderAt(bar.readerAt(s.at, s.size), s.size), &o)
	if o.DryRun || err != nil && !errors.Is(err, guard.ErrRejected) {
		return res, err
	}
	switch cerr := s.unchanged(); {
	case cerr == nil:
		return res, err
	case err == nil:
		return res, fmt.Errorf("%w: %s is written, and may be a mix of the old bytes and the new: put it again when nobody writes there, under a new token or --sequence", cerr, res.URL)
	default:
		return res, fmt.Errorf("%w: %w: put it again when nobody writes there", err, cerr)
	}
}

var errChanged = errors.New("changed while it was read")

// unchanged is an error when a file is not as it was when it was opened.
func (s source) unchanged() error {
	f, ok := s.at.(*os.File)
	if !ok {
		return nil
	}
	fi, err := f.Stat()
	if err == nil && (fi.Size() != s.size || !fi.ModTime().Equal(s.time)) {
		err = fmt.Errorf("%s %w", s.name, errChanged)
	}
	return err
}

// removeGone removes a file that may be gone already.
func removeGone(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
