package guard_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/internal/mems3"
)

// wantFolder checks that dir holds just these files.
func wantFolder(t *testing.T, dir string, want bodies) {
	t.Helper()
	found := 0
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		found++
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		b, err := os.ReadFile(path)
		if body, ok := want[filepath.ToSlash(name)]; !ok || body != string(b) {
			t.Errorf("%s: %q, want %q, %t", name, b, body, ok)
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) && want == nil {
		return
	}
	if err != nil || found != len(want) {
		t.Errorf("%s: %d files, %v, want %v", dir, found, err, want)
	}
}

// noStage checks that nothing but these is in dir.
func noStage(t *testing.T, dir string, want ...string) {
	t.Helper()
	all, err := os.ReadDir(dir)
	var names []string
	for _, e := range all {
		names = append(names, e.Name())
	}
	if err != nil || strings.Join(names, " ") != strings.Join(want, " ") {
		t.Errorf("%s holds %q, %v, want %q", dir, names, err, want)
	}
}

func TestDownloadSet(t *testing.T) {
	m := mems3.New()
	g := newGuard(m)
	large := strings.Repeat("0123456789abcdef", 1<<18)
	mustPublish(t, g, 1, bodies{"a": "1", "d/e/f": large, "d/g": ""}, nil)
	set := wantSet(t, m, bodies{"a": "1", "d/e/f": large, "d/g": ""})
	base := t.TempDir()
	var n atomic.Int64
	o := &guard.DownloadSetOptions{PartSize: 1 << 20, Progress: func(k int64) { n.Add(k) }}
	dir := filepath.Join(base, "new", "ds") + string(filepath.Separator)
	if err := g.DownloadSet(t.Context(), set, dir, o); err != nil {
		t.Fatal(err)
	}
	wantFolder(t, dir, bodies{"a": "1", "d/e/f": large, "d/g": ""})
	noStage(t, filepath.Dir(filepath.Clean(dir)), "ds")
	if want := int64(1 + len(large)); n.Load() != want {
		t.Errorf("%d bytes were told of, want %d", n.Load(), want)
	}

	// Into a folder that is there: other files stay, links are replaced.
	mustPublish(t, g, 2, bodies{"a": "2", "new/h": "h"}, nil)
	set = wantSet(t, m, bodies{"a": "2", "new/h": "h"})
	outside := filepath.Join(base, "outside")
	if err := errors.Join(os.WriteFile(outside, []byte("theirs"), 0o600), os.Remove(filepath.Join(dir, "a")),
		os.Symlink(outside, filepath.Join(dir, "a"))); err != nil {
		t.Fatal(err)
	}
	if err := g.DownloadSet(t.Context(), set, dir, nil); err != nil {
		t.Fatal(err)
	}
	wantFolder(t, dir, bodies{"a": "2", "d/e/f": large, "d/g": "", "new/h": "h"})
	if b, err := os.ReadFile(outside); string(b) != "theirs" {
		t.Errorf("outside the folder: %q, %v", b, err)
	}

	// None of a set is there before all of it can be.
	fresh := filepath.Join(base, "fresh")
	for _, tt := range []struct {
		name  string
		spoil func() error
		want  error
	}{
		{"other bytes", func() error {
			m.Overwrite(set.Files[1].Key("ds"), "x", stand(t, m, set.Files[1].Key("ds")).Metadata)
			return nil
		}, nil},
		{"gone", func() error { m.Remove(set.Files[1].Key("ds")); return nil }, guard.ErrNotFound},
	} {
		if err := tt.spoil(); err != nil {
			t.Fatal(err)
		}
		for dir, want := range map[string]bodies{dir: {"a": "2", "d/e/f": large, "d/g": "", "new/h": "h"}, fresh: nil} {
			err := g.DownloadSet(t.Context(), set, dir, nil)
			if err == nil || tt.want != nil && !errors.Is(err, tt.want) || !strings.Contains(err.Error(), `"new/h"`) {
				t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
			}
			wantFolder(t, dir, want)
		}
	}
	noStage(t, base, "new", "outside")
	noStage(t, filepath.Join(base, "new", "ds"), "a", "d", "new")
}

// Names in a manifest are anybody's: none leads outside, and what is in the way
// stays.
func TestDownloadSetInside(t *testing.T) {
	m := mems3.New()
	g := newGuard(m)
	mustPublish(t, g, 1, bodies{"ok": "new", "sub/x": "x"}, nil)
	good := wantSet(t, m, bodies{"ok": "new", "sub/x": "x"})
	for _, name := range []string{"../x", "/x", "a/../../x", "", ".", "..", "a\x00"} {
		set := good
		set.Files = []guard.SetFile{good.Files[0], good.Files[1]}
		set.Files[1].Name = name
		base := t.TempDir()
		if err := g.DownloadSet(t.Context(), set, filepath.Join(base, "dir"), nil); err == nil || !strings.Contains(err.Error(), "can't be the name of a file") {
			t.Errorf("%q: %v", name, err)
		}
		noStage(t, base)
	}

	inTheWay := map[string]func(dir string) error{
		"a folder": func(dir string) error { return os.MkdirAll(filepath.Join(dir, "ok", "x"), 0o700) },
		"a file":   func(dir string) error { return os.WriteFile(filepath.Join(dir, "sub"), nil, 0o600) },
	}
	if runtime.GOOS != "windows" {
		inTheWay["a link that leads out"] = func(dir string) error { return os.Symlink(t.TempDir(), filepath.Join(dir, "sub")) }
	}
	for name, put := range inTheWay {
		dir := t.TempDir()
		if err := put(dir); err != nil {
			t.Fatal(err)
		}
		err := g.DownloadSet(t.Context(), good, dir, nil)
		if err == nil {
			t.Errorf("%s: no error", name)
		}
		if fi, err := os.Stat(filepath.Join(dir, "ok")); err == nil && fi.Mode().IsRegular() {
			t.Errorf("%s: the other file was put in place", name)
		}
		all, err := filepath.Glob(filepath.Join(dir, ".s3fence-*"))
		if err != nil || len(all) > 0 {
			t.Errorf("%s: left behind: %q, %v", name, all, err)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := g.DownloadSet(t.Context(), good, file, nil); err == nil || !strings.Contains(err.Error(), "not a folder") {
		t.Errorf("into a file: %v", err)
	}
}
