package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// A progress shows how far a long command is: a bar where the total is known,
// a count where it is not, with the rate of either. It has no colours, so that
// NO_COLOR has nothing to turn off. A nil one shows nothing. It is safe for
// concurrent use, and one at a time is shown.
type progress struct {
	a *app

	mu    sync.Mutex // also of the terminal, while it is shown
	bar   *progressbar.ProgressBar
	unit  unit
	doing string
	n     int64
	total int64
	off   bool // the terminal

	// Of files whose bytes are counted.
	files, allFiles int64
}

// A unit is what a progress counts.
type unit int

const (
	objects unit = iota
	checks
	byteCount
)

// unknown is the total of a progress that only counts.
const unknown = -1

const progressEvery = 100 * time.Millisecond

// progress begins to show how far something is, to a person who is watching.
func (a *app) progress(doing string, total int64, u unit) *progress {
	if a.terminal == nil || a.quiet || a.json {
		return nil
	}
	p := newProgress(a.terminal, doing, total, u)
	p.a = a
	a.shown.Store(p)
	return p
}

func newProgress(w io.Writer, doing string, total int64, u unit) *progress {
	opts := []progressbar.Option{
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetDescription(doing),
		progressbar.OptionSetWidth(20),
		progressbar.OptionThrottle(progressEvery),
		progressbar.OptionShowCount(),
		progressbar.OptionShowTotalBytes(total != unknown), // also of objects
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSpinnerType(14),
		// It would draw from a goroutine of its own, between our lines.
		progressbar.OptionSetSpinnerChangeInterval(0),
	}
	switch u {
	case byteCount:
		opts = append(opts, progressbar.OptionShowBytes(true), progressbar.OptionUseIECUnits(true))
	case objects:
		opts = append(opts, progressbar.OptionShowIts(), progressbar.OptionSetItsString("objects"))
	}
	p := &progress{bar: progressbar.NewOptions64(total, opts...), unit: u, doing: doing, total: total}
	p.bar.StartWithoutRender() // so that the first rate is not of no time at all
	return p
}

// add counts n more.
func (p *progress) add(n int64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n += n
	_ = p.bar.Add64(n) // a terminal that can't be written to stops nothing
}

// at says that n have been counted.
func (p *progress) at(n int64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.bar.Add64(n - p.n)
	p.n = n
}

// object counts one more of many, whose bytes may be counted beside.
func (p *progress) object() {
	if p == nil {
		return
	}
	if p.unit == objects {
		p.add(1)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.files++
	p.bar.Describe(p.filesText())
}

func (p *progress) filesText() string {
	if p.allFiles == 0 {
		return fmt.Sprintf("%s, %s", p.doing, count(p.files, "file"))
	}
	return fmt.Sprintf("%s, %d of %s", p.doing, p.files, count(p.allFiles, "file"))
}

// expect says how many files and bytes there are, once that is known.
func (p *progress) expect(files, total int64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.allFiles, p.total = files, total
	p.bar.ChangeMax64(max(total, p.n, 1))
	p.bar.Describe(p.filesText())
}

// describe says what is being done now.
func (p *progress) describe(doing string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bar.Describe(doing)
}

// end takes it off the terminal.
func (p *progress) end() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.off {
		return
	}
	p.off = true
	_ = p.bar.Clear()
	_ = p.bar.Exit()
	if p.a != nil {
		p.a.shown.CompareAndSwap(p, nil)
	}
}

// write writes a line of something else, in the place of the bar, which comes
// back when it is drawn next.
func (p *progress) write(w io.Writer, b []byte) (int, error) {
	if p == nil {
		return w.Write(b)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.bar.Clear()
	return w.Write(b)
}

// writer counts what goes to w.
func (p *progress) writer(w io.Writer) io.Writer {
	if p == nil {
		return w
	}
	return writerFunc(func(b []byte) (int, error) {
		n, err := w.Write(b)
		p.add(int64(n))
		return n, err
	})
}

// readerAt counts what is read of r, which has size bytes. Its parts are read
// in any order, and what is sent again is not counted again.
func (p *progress) readerAt(r io.ReaderAt, size int64) io.ReaderAt {
	if p == nil {
		return r
	}
	f := &followed{r: r, p: p, block: max(1<<20, size/4096+1)}
	f.done = make([]int64, size/f.block+1)
	return f
}

// followed knows of each of its blocks how far it was read.
type followed struct {
	r     io.ReaderAt
	p     *progress
	block int64

	mu   sync.Mutex
	done []int64
}

// ReadAt implements io.ReaderAt.
func (f *followed) ReadAt(b []byte, off int64) (int, error) {
	n, err := f.r.ReadAt(b, off)
	f.p.add(f.mark(off, off+int64(n)))
	return n, err
}

// mark returns how many bytes more are known to be read, now that those from
// one offset to another are.
func (f *followed) mark(from, to int64) (more int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := from / f.block; i*f.block < to && i < int64(len(f.done)); i++ {
		if in := min(to-i*f.block, f.block) - f.done[i]; in > 0 {
			f.done[i] += in
			more += in
		}
	}
	return more
}

// A screen is standard output or standard error, where a progress may be shown
// on the same terminal.
type screen struct {
	a *app
	w io.Writer
}

// Write implements io.Writer.
func (s screen) Write(b []byte) (int, error) { return s.a.shown.Load().write(s.w, b) }

// watch finds out whether somebody is watching. What is printed from now on
// doesn't run into a progress.
func (a *app) watch() {
	if !isTerminal(a.stderr) || a.getenv("TERM") == "dumb" {
		return
	}
	a.terminal = a.stderr
	a.stderr = screen{a, a.stderr}
	if isTerminal(a.stdout) {
		a.stdout = screen{a, a.stdout}
	}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	fi, err := f.Stat()
	return err == nil && fi.Mode()&os.ModeCharDevice != 0
}
