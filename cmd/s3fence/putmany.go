package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/s3fence/s3fence/guard"
)

// putFileJSON is the line of one file of many.
type putFileJSON struct {
	writeJSON
	File string `json:"file"`
}

// putMany uploads all files under dir, with one token and the same sequence,
// since each object compares with its own.
func (a *app) putMany(ctx context.Context, dir, dst string, p putFlags) error {
	bucket, prefix, err := parseURL(dst)
	if err != nil {
		return err
	}
	if prefix != "" && !strings.HasSuffix(prefix, "/") {
		prefix += "/"
	}
	if !p.WriteID.IsZero() {
		return usagef("--write-id names one write; with -r there are many")
	}
	switch fi, err := os.Stat(dir); {
	case dir == "-":
		return usagef("-r goes with a folder, not with standard input")
	case err != nil:
		return fmt.Errorf("read the source: %w", err)
	case !fi.IsDir():
		return usagef("%s is not a folder; without -r one file is uploaded", dir)
	}
	g, err := a.openGuard(ctx, bucket)
	if err != nil {
		return err
	}
	tok, fresh, err := a.token(ctx, g)
	if err != nil {
		return err
	}
	p.root, p.follow = dir, !p.noFollow
	bar := a.progress("sending", unknown, byteCount)
	stop := p.count(ctx, bar)
	defer stop()
	t := newTally(a, "put", "s3://"+bucket+"/"+prefix, bar)
	t.outcomes, t.always = []string{string(guard.Created), string(guard.Replaced), string(guard.AlreadyApplied)}, 3
	t.dryRun, t.sizes = p.DryRun, true
	if fresh {
		t.token = tok
	}
	p.leftOut = func(path string, mode fs.FileMode) {
		a.log.WarnContext(ctx, "neither a file nor a folder: left out", "file", path, "mode", mode.String())
	}
	var hint presence
	overMany(ctx, t, p.manyFlags, p.files(ctx), func(ctx context.Context, f found) ending {
		key := prefix + f.name
		res, err := hint.put(func(expectAbsent bool) (guard.Result, error) {
			return putFile(ctx, g, tok, key, f, bar, p.PutOptions, expectAbsent)
		})
		if res.URL == "" {
			res.URL = "s3://" + bucket + "/" + key
		}
		err = a.interrupted(ctx, bucket, key, &res, err)
		j := putFileJSON{writeJSON: writeJSON{Op: "put", URL: res.URL, DryRun: p.DryRun}, File: f.path}
		j.fill(res, err)
		e := ending{json: j, outcome: j.Outcome, err: err}
		if err == nil {
			e.text, e.bytes = describe(res, p.DryRun), res.Bytes
		}
		return e
	})
	return t.end()
}

func putFile(ctx context.Context, g *guard.Guard, tok guard.Token, key string, f found, bar *progress, o guard.PutOptions, expectAbsent bool) (res guard.Result, err error) {
	if err := f.err; err != nil {
		return res, fmt.Errorf("read the source: %w", err)
	}
	if err := guard.CheckKey(key); err != nil {
		return res, fmt.Errorf("%s: %w", f.path, err)
	}
	s, err := openSource(f.path)
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	o.ExpectAbsent = expectAbsent
	return s.put(ctx, g, tok, key, bar, o)
}

// count finds out for bar how much there is, while it is being sent. It looks
// at each file once more, so only where somebody is watching. stop ends it.
func (p putFlags) count(ctx context.Context, bar *progress) (stop func()) {
	if bar == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		var files, bytes int64
		for f, err := range p.files(ctx) {
			if err != nil {
				return
			}
			files++
			bytes += f.size
		}
		bar.expect(files, bytes)
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// presence guesses of keys that are written one after the other whether there
// are objects already. A new key then takes one request, and one that is there
// takes two; a wrong guess takes one more.
type presence struct {
	once   sync.Once
	absent atomic.Bool
}

// put runs write. The others wait for the very first, which looks.
func (p *presence) put(write func(expectAbsent bool) (guard.Result, error)) (res guard.Result, err error) {
	run := func(expectAbsent bool) {
		if res, err = write(expectAbsent); res.Outcome != guard.AlreadyApplied {
			p.absent.Store(res.Outcome == guard.Created)
		}
	}
	first := false
	p.once.Do(func() {
		first = true
		run(false)
	})
	if !first {
		run(p.absent.Load())
	}
	return res, err
}
