package state

import (
	"bytes"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/s3fence/s3fence/guard"
)

// What is no state file is refused, by name and with a cure, and left as it was.
func TestOpenRefuses(t *testing.T) {
	build := func(t *testing.T, path string, statements string) {
		db, err := sql.Open("sqlite", path)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if _, err := db.ExecContext(t.Context(), statements); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name string
		at   func(t *testing.T, path string)
		want string
	}{
		{"text", func(t *testing.T, path string) {
			if err := os.WriteFile(path, bytes.Repeat([]byte("not a database\n"), 1000), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "it is no state file, or damaged: choose another name, or remove it"},
		{"short text", func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte("a,b\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "it is no state file, or damaged: choose another name, or remove it"},
		{"another program's", func(t *testing.T, path string) {
			build(t, path, "CREATE TABLE files (name TEXT)")
		}, "it is the database of another program: choose another name"},
		{"a marked one of another program", func(t *testing.T, path string) {
			build(t, path, "PRAGMA application_id = 77; CREATE TABLE t (c)")
		}, "it is the database of another program: choose another name"},
		{"newer", func(t *testing.T, path string) {
			open(t, path).Close()
			build(t, path, "PRAGMA user_version = 2; PRAGMA wal_checkpoint")
		}, "it has format 2 and this s3fence knows format 1: use a newer s3fence, or remove the file, which is only a memory"},
		{"damaged", func(t *testing.T, path string) {
			f := open(t, path)
			remember(t, memoryOf(t, f, "bucket"), "k", guard.Remembered{Record: record(1, 1)})
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for i := 100; i < len(b); i++ {
				b[i] = 0xff
			}
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "it is damaged: remove it, with its -wal and -shm, since it is only a memory"},
		{"folder", func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}, "it is a folder: name a file in it"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := path(t)
			tt.at(t, path)
			before, _ := os.ReadFile(path)
			f, err := Open(path)
			if err == nil {
				f.Close()
				t.Fatal("opened")
			}
			if got := err.Error(); !strings.HasPrefix(got, "open state file "+path+": "+tt.want) {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
				t.Error("it was changed")
			}
		})
	}
	for name, path := range map[string]string{"": "no file given", filepath.Join(t.TempDir(), "none", "state"): "no such file or directory"} {
		if _, err := Open(name); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v, want %s", name, err, path)
		}
	}
}

// It holds tokens and names of files, which concern nobody else.
func TestMode(t *testing.T) {
	path := path(t)
	f := open(t, path)
	remember(t, memoryOf(t, f, "bucket"), "k", guard.Remembered{Record: record(1, 1)})
	j := begin(t, f, Run{})
	defer j.Close()
	for _, suffix := range []string{"", "-wal", "-shm", ".lock"} {
		st, err := os.Stat(path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if st.Mode() != 0o600 {
			t.Errorf("%s has mode %v", suffix, st.Mode())
		}
	}
}

// Names that mean something in a URL are names all the same.
func TestNames(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a b", "50%25", "what?mode=memory", "#1", "ü"} {
		path := filepath.Join(dir, name)
		f := open(t, path)
		remember(t, memoryOf(t, f, "bucket"), "k", guard.Remembered{Record: record(1, 1)})
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if r := recall(t, memoryOf(t, open(t, path), "bucket"), "k"); r.Record != record(1, 1) {
			t.Errorf("%s: %v", name, r)
		}
	}
}

// Many open one file that is not there yet, and share its memory.
func TestOpenAtOnce(t *testing.T) {
	for range 10 {
		path := path(t)
		files := make([]*File, 8)
		var all sync.WaitGroup
		for i := range files {
			all.Go(func() {
				f, err := Open(path)
				if err != nil {
					t.Error(err)
					return
				}
				files[i] = f
				m, err := f.Memory("e", "b")
				if err == nil {
					err = m.Remember(string(rune('a'+i)), guard.Remembered{Record: record(int64(i+1), 1)})
				}
				if err == nil {
					err = f.Flush()
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		for _, f := range files {
			if f == nil {
				continue
			}
			m, err := f.Memory("e", "b")
			if err != nil {
				t.Fatal(err)
			}
			for i := range files {
				if r := recall(t, m, string(rune('a'+i))); r.Record != record(int64(i+1), 1) {
					t.Errorf("%d: %v", i, r)
				}
			}
		}
		for _, f := range files {
			if f != nil {
				f.Close()
			}
		}
	}
}

// A disk that is full, a file that stays locked: one error, and nothing is
// remembered from then on. Flush and Close keep saying so.
func TestGivesUp(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, f *File)
		want string
	}{
		{"full", func(t *testing.T, f *File) { change(t, f, "PRAGMA max_page_count = 1") }, "the disk is full"},
		{"locked", func(t *testing.T, f *File) {
			change(t, f, "PRAGMA busy_timeout = 1")
			tx, err := open(t, f.path).w.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { tx.Rollback() })
		}, "another process has been writing to it"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, err := Open(path(t))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			m := memoryOf(t, f, "bucket")
			j := begin(t, f, Run{})
			defer j.Close()
			tt.do(t, f)
			big := guard.Remembered{Record: record(1, 1), ETag: strings.Repeat("x", 1<<20)}
			if err := m.Remember("k", big); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := f.Flush(); err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), f.path) {
					t.Errorf("flush: %v", err)
				}
			}
			if f.Told() {
				t.Error("told before anybody asked")
			}
			if _, err := m.Recall("k"); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("recall: %v", err)
			}
			if !f.Told() {
				t.Error("not told")
			}
			for range 2 * batchEntries { // it does not wait either
				if err := m.Remember("k", guard.Remembered{Record: record(2, 1)}); err != nil {
					t.Errorf("told twice: %v", err)
				}
			}
			if r := recall(t, m, "k"); r != (guard.Remembered{}) {
				t.Errorf("recalled %v", r)
			}
			if _, err := j.Plan("k", 1, mtime); !errors.Is(err, ErrGivenUp) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("plan: %v", err)
			}
			if err := f.Close(); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("close: %v", err)
			}
		})
	}
}

func TestClosed(t *testing.T) {
	f := open(t, path(t))
	m := memoryOf(t, f, "bucket")
	for range 2 {
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Remember("k", guard.Remembered{Record: record(1, 1)}); err == nil || !strings.Contains(err.Error(), "it is closed") {
		t.Errorf("remember: %v", err)
	}
	if _, err := m.Recall("k"); err == nil {
		t.Error("recalled")
	}
	if _, err := f.Memory("e", "b"); err == nil {
		t.Error("gave a memory")
	}
	if _, err := f.Begin(Run{}, token(t, 1)); err == nil {
		t.Error("began a journal")
	}
}
