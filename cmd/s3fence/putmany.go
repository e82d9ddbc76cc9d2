package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/state"
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
	if p.own, err = p.paths(); err != nil {
		return err
	}
	l, err := a.openLasting(p.lastingFlags)
	if err != nil {
		return err
	}
	if l != nil {
		l.dryRun = p.DryRun
	}
	g, err := a.openGuard(ctx, bucket)
	if err != nil {
		return err
	}
	run, err := p.run(dir, "s3://"+bucket+"/"+prefix)
	if err != nil {
		return err
	}
	tok, fresh, err := l.begin(ctx, a, run, func() (guard.Token, bool, error) { return a.token(ctx, g, p.DryRun) })
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
	u := uploads{g: g, tok: tok, o: p.PutOptions, bar: bar, lasting: l}
	overMany(ctx, t, p.manyFlags, p.files(ctx), func(ctx context.Context, f treeFile) ending {
		key := prefix + f.name
		res, err := u.put(ctx, key, f)
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
	if err := l.end(t.well() && ctx.Err() == nil); err != nil && !t.lost {
		t.fail(math.MaxInt, err)
	}
	return t.end()
}

// run is what tells this run from others. How fast it goes is none of it, nor a
// sequence, which rises within s3fence run, nor whether it is only a dry run.
func (p putFlags) run(dir, dst string) (state.Run, error) {
	root, err := filepath.Abs(dir)
	if err != nil {
		return state.Run{}, err
	}
	o := p.PutOptions
	o.PartSize, o.Concurrency, o.Sequence, o.DryRun = 0, 0, 0, false
	var rules []string
	for _, r := range p.globs {
		rules = append(rules, fmt.Sprint(r.include, " ", r.pattern))
	}
	options, err := json.Marshal(struct {
		guard.PutOptions
		Globs    []string
		NoFollow bool
	}{o, rules, p.noFollow})
	return state.Run{Op: "put -r", Source: root, Target: dst, Options: string(options)}, err
}

// uploads are those of one folder.
type uploads struct {
	g    *guard.Guard
	tok  guard.Token
	o    guard.PutOptions
	bar  *progress
	hint presence
	*lasting
}

func (u *uploads) put(ctx context.Context, key string, f treeFile) (res guard.Result, err error) {
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
	return u.lasting.put(key, s.size, s.time, u.o, func(o guard.PutOptions) (guard.Result, error) {
		return u.hint.put(func(expectAbsent bool) (guard.Result, error) {
			o.ExpectAbsent = expectAbsent
			return s.put(ctx, u.g, u.tok, key, u.bar, o)
		})
	})
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
