package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A treeFile is a file of a tree, or what is in its place an error.
type treeFile struct {
	path string // to open it
	name string // below the root, with slashes
	size int64
	time time.Time // when it was changed last
	err  error
}

// A tree is the files under root that globs takes, without those that a get has
// not finished.
type tree struct {
	root  string
	globs globs
	// follow: what a symbolic link leads to is in the tree. If not, links are
	// left out.
	follow bool
	// own are files of this command, by their absolute paths, which are not in
	// the tree wherever they lie.
	own []string
	// leftOut, if set, is told what is neither a file nor a folder.
	leftOut func(path string, mode fs.FileMode)
}

// files yields the files, in no order, since a folder that is sorted must be
// read whole first. The error of a file or folder is its own; that
// of the iterator ends it.
func (t tree) files(ctx context.Context) iter.Seq2[treeFile, error] {
	return func(yield func(treeFile, error) bool) {
		w := walk{tree: t, ctx: ctx, yield: yield}
		w.folder(t.root, "", nil)
		if err := ctx.Err(); err != nil && !w.over {
			yield(treeFile{}, err)
		}
	}
}

type walk struct {
	tree
	ctx   context.Context
	yield func(treeFile, error) bool
	over  bool
}

// entriesAtOnce bounds what is held of a folder, and so of how many entries the
// order is that of names: --state reads its keys ahead in that order.
const entriesAtOnce = 1 << 14

// folder walks one folder; above are those that it is in.
func (w *walk) folder(path, name string, above []fs.FileInfo) {
	dir, err := os.Open(path)
	if err != nil {
		w.fail(path, name, err)
		return
	}
	defer dir.Close()
	info, err := dir.Stat()
	if err != nil {
		w.fail(path, name, err)
		return
	}
	for _, a := range above {
		if os.SameFile(a, info) {
			w.fail(path, name, fmt.Errorf("%s leads back to a folder that it is in; --no-follow-symlinks leaves links out", path))
			return
		}
	}
	above = append(above[:len(above):len(above)], info)
	for !w.stopped() {
		entries, err := dir.ReadDir(entriesAtOnce)
		slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
		for _, e := range entries {
			if w.stopped() {
				return
			}
			w.entry(filepath.Join(path, e.Name()), e, name, above)
		}
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			w.fail(path, name, err)
			return
		}
	}
}

func (w *walk) entry(path string, e fs.DirEntry, in string, above []fs.FileInfo) {
	name := e.Name()
	if in != "" {
		name = in + "/" + name
	}
	mode := e.Type()
	if mode&fs.ModeSymlink != 0 && !w.follow {
		return
	}
	if mode.IsDir() {
		w.folder(path, name, above)
		return
	}
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		w.folder(path, name, above)
	case isPart(e.Name()): // left by a get that was killed
	case !w.globs.take(name) || w.isOwn(path):
	case mode&fs.ModeSymlink != 0 && errors.Is(err, fs.ErrNotExist):
		w.fail(path, name, fmt.Errorf("%s is a symbolic link to what is not there; --no-follow-symlinks leaves links out: %w", path, fs.ErrNotExist))
	case err != nil:
		w.fail(path, name, err)
	case !info.Mode().IsRegular():
		if w.leftOut != nil {
			w.leftOut(path, info.Mode())
		}
	default:
		w.found(treeFile{path: path, name: name, size: info.Size(), time: info.ModTime()})
	}
}

func (w *walk) isOwn(path string) bool {
	if len(w.own) == 0 {
		return false
	}
	abs, err := filepath.Abs(path)
	return err == nil && slices.Contains(w.own, abs)
}

func (w *walk) fail(path, name string, err error) {
	w.found(treeFile{path: path, name: name, err: err})
}

func (w *walk) found(f treeFile) { w.over = w.over || !w.yield(f, nil) }

func (w *walk) stopped() bool { return w.over || w.ctx.Err() != nil }
