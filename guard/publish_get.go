package guard

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// DownloadSetOptions refine a DownloadSet. The zero value of each field means its
// default.
type DownloadSetOptions struct {
	// PartSize is that of [DownloadOptions].
	PartSize int64
	// Concurrency is how many files are read at once. Default: 16.
	Concurrency int
	// Progress is that of [DownloadOptions], of all files together.
	Progress func(n int64)
}

// DownloadSet downloads the files of a set into the folder dir. Nothing is ever
// written outside it, whatever names the manifest has.
//
// All files are downloaded next to where they belong first, each compared with the
// manifest's checksum. Then, if dir is not there, the folder appears with all of
// them, or not at all. If it is there, they are put in place one by one, each whole
// or not at all: only an end of the process, or an error of the file system, in that
// moment leaves a mix, which the next download mends. What is in dir and has
// another name stays.
//
// Errors are those of [Guard.Get] and of the file system. ErrNotFound says that the
// set's files were removed since it was resolved.
func (g *Guard) DownloadSet(ctx context.Context, m Manifest, dir string, opts *DownloadSetOptions) (err error) {
	d := setDownload{g: g, m: m}
	if opts != nil {
		d.o = *opts
	}
	if d.o.Concurrency <= 0 {
		d.o.Concurrency = defaultPublishers
	}
	if err := d.localize(); err != nil {
		return err
	}
	into, err := d.open(dir)
	if err != nil {
		return fmt.Errorf("write to %s: %w", dir, err)
	}
	defer func() { err = errors.Join(err, d.root.Close()) }()
	defer func() {
		if rerr := d.root.RemoveAll(d.stage); rerr != nil {
			err = errors.Join(err, rerr)
		}
	}()
	if err := d.fetch(ctx); err != nil {
		return err
	}
	if err := d.place(into); err != nil {
		return fmt.Errorf("write to %s: %w", dir, err)
	}
	return nil
}

type setDownload struct {
	g     *Guard
	m     Manifest
	o     DownloadSetOptions
	names []string // of the files, as the system has them
	root  *os.Root
	stage string // the folder in root that they are downloaded to
}

// localize finds out what the files are called here.
func (d *setDownload) localize() error {
	for _, f := range d.m.Files {
		name, err := filepath.Localize(f.Name)
		if err != nil || name == "." {
			return fmt.Errorf("%q of %s can't be the name of a file here", f.Name, d.m.URL)
		}
		d.names = append(d.names, name)
	}
	return nil
}

// open makes the stage: in dir, or next to it if it is not there. into is where the
// files go from there, "" if each goes to its own place in dir.
func (d *setDownload) open(dir string) (into string, err error) {
	dir = filepath.Clean(dir)
	fi, err := os.Stat(dir)
	switch {
	case err == nil && !fi.IsDir():
		return "", errors.New("it is not a folder")
	case errors.Is(err, fs.ErrNotExist):
		dir, into = filepath.Dir(dir), filepath.Base(dir)
		err = os.MkdirAll(dir, 0o777)
	}
	if err != nil {
		return "", err
	}
	if d.root, err = os.OpenRoot(dir); err != nil {
		return "", err
	}
	d.stage = ".s3fence-" + rand.Text()
	if err := d.root.Mkdir(d.stage, 0o777); err != nil {
		return "", errors.Join(err, d.root.Close())
	}
	return into, nil
}

func (d *setDownload) fetch(ctx context.Context) error {
	next := 0
	return inParallel(ctx, d.o.Concurrency, func(context.Context) (func(context.Context) error, error) {
		if next == len(d.names) {
			return nil, io.EOF
		}
		i := next
		next++
		return func(ctx context.Context) error {
			if err := d.file(ctx, d.m.Files[i], filepath.Join(d.stage, d.names[i])); err != nil {
				return fmt.Errorf("get %q: %w", d.m.Files[i].Name, err)
			}
			return nil
		}, nil
	})
}

// file downloads one file to the stage.
func (d *setDownload) file(ctx context.Context, f SetFile, name string) (err error) {
	if err := d.root.MkdirAll(filepath.Dir(name), 0o777); err != nil {
		return err
	}
	to, err := d.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o666)
	if errors.Is(err, fs.ErrExist) {
		err = fmt.Errorf("another file of the set has that name here: %w", err)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	info, err := d.g.Download(ctx, f.Key(d.m.Dataset), to, &DownloadOptions{PartSize: d.o.PartSize, Progress: d.o.Progress})
	if errors.Is(err, ErrNotFound) {
		err = fmt.Errorf("%w; if a newer set was published meanwhile, resolve it", err)
	}
	if err != nil {
		return err
	}
	same, _, err := f.Checksum.matches(ctx, ReaderAt(to, info.Size))
	if err != nil {
		return err
	}
	if info.Size != f.Size || !same {
		return fmt.Errorf("%s is not what was published: its size or its checksum is another one", info.URL)
	}
	return to.Sync()
}

// place puts the files in their places.
func (d *setDownload) place(into string) error {
	if into != "" {
		return d.root.Rename(d.stage, into)
	}
	for _, name := range d.names {
		if err := d.root.MkdirAll(filepath.Dir(name), 0o777); err != nil {
			return err
		}
		fi, err := d.root.Lstat(name)
		if err == nil && !fi.Mode().IsRegular() && fi.Mode()&fs.ModeSymlink == 0 {
			return fmt.Errorf("%s is not a regular file: move it away", name)
		}
	}
	for _, name := range d.names {
		if err := d.root.Rename(filepath.Join(d.stage, name), name); err != nil {
			return err
		}
	}
	return nil
}
