package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strings"

	"github.com/s3fence/s3fence/guard"
)

// getMany downloads all objects under url into the folder dst.
func (a *app) getMany(ctx context.Context, url, dst string, p getFlags) error {
	bucket, key, err := parseURL(url)
	if err != nil {
		return err
	}
	if key != "" {
		if err := guard.CheckKey(key); err != nil {
			return fmt.Errorf("%s: %w", url, err)
		}
	}
	if dst == "-" {
		return usagef("-r goes with a folder, not with standard output")
	}
	if _, err := os.Stat(dst); err == nil && !isDir(dst) {
		return usagef("%s is not a folder; without -r one object is downloaded", dst)
	}
	g, err := a.openGuard(ctx, bucket)
	if err != nil {
		return err
	}
	bar := a.progress("fetching", unknown, byteCount)
	t := newTally(a, "get", url, bar)
	t.outcomes, t.always, t.dryRun, t.sizes = []string{fetched, goneMeanwhile}, 1, p.dryRun, true
	f := fetcher{a: a, g: g, bar: bar, flags: p, dst: dst, names: names{prefix: key}}
	if key != "" && !strings.HasSuffix(key, "/") {
		f.names.prefix += "/"
	}
	overMany(ctx, t, p.manyFlags, f.objects(ctx, url, key), func(ctx context.Context, o object) ending {
		url := "s3://" + bucket + "/" + o.key
		info, err := f.fetch(ctx, o)
		if errors.Is(err, guard.ErrNotFound) && !refused(err) {
			j := getJSON{Op: "get", URL: url, DryRun: p.dryRun, Requests: info.Requests}
			j.Outcome = goneMeanwhile
			return ending{json: j, outcome: j.Outcome, text: outcomeText(j.Outcome, false) + " " + printable(url)}
		}
		if err != nil && !strings.Contains(err.Error(), url) {
			err = fmt.Errorf("get %s: %w", url, err)
		}
		j, text := newGetJSON(url, filepath.Join(dst, o.name), p.dryRun, info, err)
		e := ending{json: j, text: text, outcome: j.Outcome, err: err}
		if err == nil {
			e.bytes = info.Size
		}
		return e
	})
	return errors.Join(t.end(), f.close())
}

// goneMeanwhile is the outcome of an object that was gone when its turn came.
const goneMeanwhile = "not-found"

// An object is one to be downloaded.
type object struct {
	key    string
	name   string // below DST, as the system has it
	folder bool   // the object only stands for one
	err    error  // why it can't be
}

// A fetcher downloads the objects under a URL.
type fetcher struct {
	a     *app
	g     *guard.Guard
	bar   *progress
	flags getFlags
	dst   string
	dir   *os.Root // dst, once there is something to put there
	names names
}

// objects yields those that are to be downloaded.
func (f *fetcher) objects(ctx context.Context, url, key string) iter.Seq2[object, error] {
	return func(yield func(object, error) bool) {
		none := true
		for key, err := range under(ctx, f.g, key, guard.WalkOptions{Concurrency: f.flags.concurrency}, false) {
			if err == nil && none && !f.flags.dryRun {
				err = f.open()
			}
			if err != nil {
				yield(object{}, err)
				return
			}
			none = false
			if name, _ := f.names.below(key); !f.flags.take(name) {
				continue
			}
			if !yield(f.names.object(key), nil) {
				return
			}
		}
		if none {
			yield(object{}, fmt.Errorf("get %s: %w: nothing lies under it", url, guard.ErrNotFound))
		}
	}
}

// open makes the folder, if it is not there, and finds out what it is like.
func (f *fetcher) open() error {
	err := os.MkdirAll(f.dst, 0o777)
	if err == nil {
		f.dir, err = os.OpenRoot(f.dst)
	}
	var folds bool
	if err == nil {
		folds, err = foldsCase(f.dir)
	}
	if err != nil {
		return fmt.Errorf("write to %s: %w", f.dst, err)
	}
	if folds {
		f.names.folded = map[string]string{}
	}
	return nil
}

func (f *fetcher) close() error {
	if f.dir == nil {
		return nil
	}
	return f.dir.Close()
}

// foldsCase reports whether names in dir that differ only by case are one.
func foldsCase(dir *os.Root) (bool, error) {
	name := newPart() // in upper case
	tmp, err := dir.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	if err != nil {
		return false, err
	}
	_, err = dir.Lstat(strings.ToLower(name))
	return err == nil, errors.Join(tmp.Close(), dir.Remove(name))
}

// fetch downloads one object.
func (f *fetcher) fetch(ctx context.Context, o object) (guard.Info, error) {
	if o.err != nil {
		return guard.Info{}, o.err
	}
	if !o.folder && !f.flags.dryRun {
		if err := f.makeDir(filepath.Dir(o.name)); err != nil {
			return guard.Info{}, err
		}
		return f.a.download(ctx, f.g, o.key, f.dir, o.name, f.bar, f.flags.DownloadOptions)
	}
	// Nothing of the body is wanted.
	info, body, err := f.g.Get(ctx, o.key, &guard.GetOptions{Floor: f.flags.Floor})
	if err != nil {
		return info, err
	}
	defer body.Close()
	f.a.warnUnfenced(ctx, info)
	switch {
	case o.folder && info.Size != 0:
		return info, fmt.Errorf("its key ends in a slash, which is a folder, and it has %d bytes: get it alone, to a file that you name", info.Size)
	case f.flags.dryRun:
		return info, nil
	}
	return info, f.makeDir(o.name)
}

func (f *fetcher) makeDir(name string) error {
	if err := f.dir.MkdirAll(name, 0o777); err != nil {
		return inDir("make the folder", f.dir, name, err)
	}
	return nil
}

// names gives the keys of a listing, one after the other in its order, the
// names of files in a folder.
type names struct {
	prefix string // of the keys, with its slash
	// taken are the files that the key listed last, and what follows, may lie
	// under if they were folders: the keys of all begin with those before them.
	taken []object
	// folded has the key of each file by its name in lower case, where the file
	// system does not tell these apart. Nil where it does.
	folded map[string]string
}

// below returns what key is called below the prefix, with slashes, and whether
// it stands for a folder. The key of the URL itself, which is not below it, is
// called as its last part.
func (n *names) below(key string) (name string, folder bool) {
	if key == n.prefix {
		return ".", true
	}
	name, ok := strings.CutPrefix(key, n.prefix)
	if !ok {
		return key[strings.LastIndexByte(key, '/')+1:], false
	}
	return strings.CutSuffix(name, "/")
}

// object says what becomes of a key. It can't be a file if its name would be
// changed, or would lie outside the folder, or is taken.
func (n *names) object(key string) object {
	o := object{key: key}
	o.name, o.folder = n.below(key)
	local, err := filepath.Localize(o.name)
	if err != nil || o.name == "." && key != n.prefix {
		o.err = fmt.Errorf("%q can't be the name of a file: get it alone, to a file that you name", o.name)
		return o
	}
	if first, ok := n.clash(o); ok {
		o.err = fmt.Errorf("the file of the object %q is in its way: get it alone, to a file that you name", first)
		return o
	}
	if !o.folder {
		n.taken = append(n.taken, o)
		if n.folded != nil {
			n.folded[strings.ToLower(o.name)] = key
		}
	}
	o.name = local
	return o
}

// clash returns the key whose file has the name of o, or that of a folder that
// o is in.
func (n *names) clash(o object) (key string, found bool) {
	for len(n.taken) > 0 && !strings.HasPrefix(o.key, n.taken[len(n.taken)-1].key) {
		n.taken = n.taken[:len(n.taken)-1]
	}
	for _, t := range n.taken {
		if o.name == t.name || strings.HasPrefix(o.name, t.name+"/") {
			return t.key, true
		}
	}
	if o.folder {
		return "", false
	}
	key, found = n.folded[strings.ToLower(o.name)]
	return key, found
}
