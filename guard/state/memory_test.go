package state

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/internal/mems3"
)

var kms = &guard.PutOptions{SSE: "aws:kms"}

// A world is a bucket and a state file, which commands use one after another.
type world struct {
	t    *testing.T
	s    *mems3.Store
	path string
	log  bytes.Buffer
}

func newWorld(t *testing.T) *world { return &world{t: t, s: mems3.New(), path: path(t)} }

// put is one command that writes one key, with the state file at path, or
// without one.
func (w *world) put(path string, n int64) (guard.Result, error) {
	o := &guard.Options{
		Logger: slog.New(slog.NewTextHandler(&w.log, nil)), RootStore: mems3.New(),
		Backoff: func(int) time.Duration { return 0 },
	}
	if path != "" {
		f, err := Open(path)
		if err != nil {
			w.t.Fatal(err)
		}
		defer closeAll(w.t, f)
		o.Memory = memoryOf(w.t, f, "mem")
	}
	return guard.New(w.s, o).Put(w.t.Context(), token(w.t, n), "k", guard.Bytes(fmt.Append(nil, n)), kms)
}

func (w *world) mustPut(path string, n int64) guard.Result {
	w.t.Helper()
	res, err := w.put(path, n)
	if err != nil {
		w.t.Fatal(err)
	}
	return res
}

// backup copies the state file.
func (w *world) backup() string {
	w.t.Helper()
	b, err := os.ReadFile(w.path)
	if err != nil {
		w.t.Fatal(err)
	}
	to := filepath.Join(w.t.TempDir(), "backup")
	if err := os.WriteFile(to, b, 0o600); err != nil {
		w.t.Fatal(err)
	}
	return to
}

// damage changes the file at path.
func (w *world) damage(path, statement string, args ...any) {
	w.t.Helper()
	f := open(w.t, path)
	change(w.t, f, statement, args...)
	closeAll(w.t, f)
}

// setBack brings an older object back around the guard.
func (w *world) setBack(n int64) {
	w.s.Overwrite("k", fmt.Sprint(n), map[string]string{guard.RecordKey: record(n, 1).String()})
}

// What a later command makes of the file. Each begins with a bucket that holds
// 5 and a file that says so.
func TestFromRunToRun(t *testing.T) {
	for _, tt := range []struct {
		name string
		// before changes bucket or file, and returns another file if that is it.
		before   func(w *world) string
		number   int64
		reason   guard.Reason // of the refusal, "" for none
		outcome  guard.Outcome
		requests int
	}{
		{name: "own key again", number: 6, outcome: guard.Replaced, requests: 1},
		{name: "own number again", number: 5, reason: guard.ErrReplayed, requests: 1},
		{name: "an older number", number: 4, reason: guard.ErrStale, requests: 1},
		{name: "from before someone else's write", before: func(w *world) string {
			w.mustPut("", 7)
			return w.path
		}, number: 8, outcome: guard.Replaced, requests: 3},
		{name: "from before someone else's newer write", before: func(w *world) string {
			w.mustPut("", 7)
			return w.path
		}, number: 6, reason: guard.ErrStale, requests: 2},
		{name: "restored from a backup", before: func(w *world) string {
			old := w.backup()
			w.mustPut(w.path, 7)
			return old
		}, number: 6, reason: guard.ErrStale, requests: 2},
		{name: "deleted around the guard", before: func(w *world) string {
			w.s.Remove("k")
			return w.path
		}, number: 5, reason: guard.ErrFenceLost, requests: 1},
		{name: "deleted around the guard, and a newer number", before: func(w *world) string {
			w.s.Remove("k")
			return w.path
		}, number: 6, outcome: guard.Created, requests: 3},
		{name: "deleted around the guard that keeps versions", before: func(w *world) string {
			w.s.Bucket.Versioning = guard.VersioningOn
			w.mustPut(w.path, 6)
			w.s.Remove("k")
			return w.path
		}, number: 7, reason: guard.ErrFenceLost, requests: 4},
		{name: "set back", before: func(w *world) string {
			w.setBack(3)
			return w.path
		}, number: 4, reason: guard.ErrFenceLost, requests: 1},
		{name: "set back, own number again", before: func(w *world) string {
			w.setBack(3)
			return w.path
		}, number: 5, reason: guard.ErrFenceLost, requests: 1},
		{name: "set back, and a newer number", before: func(w *world) string {
			w.setBack(3)
			return w.path
		}, number: 6, outcome: guard.Replaced, requests: 3},
		{name: "overwritten around the guard", before: func(w *world) string {
			w.s.Overwrite("k", "5", nil)
			return w.path
		}, number: 6, reason: guard.ErrUnfenced, requests: 2},
		{name: "another bucket's", before: func(w *world) string {
			w.damage(w.path, "UPDATE buckets SET bucket = 'other'")
			return w.path
		}, number: 6, outcome: guard.Replaced, requests: 2},
		{name: "another endpoint's", before: func(w *world) string {
			w.damage(w.path, "UPDATE buckets SET endpoint = 'http://127.0.0.1:9001'")
			return w.path
		}, number: 6, outcome: guard.Replaced, requests: 2},
		{name: "no file", before: func(w *world) string { return path(w.t) }, number: 6, outcome: guard.Replaced, requests: 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.mustPut(w.path, 5)
			path := w.path
			if tt.before != nil {
				path = tt.before(w)
			}
			w.log.Reset()
			res, err := w.put(path, tt.number)
			if reason := guard.ReasonOf(err); reason != tt.reason || reason == "" && err != nil {
				t.Errorf("%v, want %q", err, tt.reason)
			}
			if res.Outcome != tt.outcome || res.Requests != tt.requests {
				t.Errorf("%+v, want %s with %d requests", res, tt.outcome, tt.requests)
			}
			if want := map[bool]string{true: fmt.Sprint(tt.number)}[tt.reason == ""]; want != "" && w.s.Body("k") != want {
				t.Errorf("holds %q", w.s.Body("k"))
			}
			if strings.Contains(w.log.String(), "recall") || strings.Contains(w.log.String(), "remember") {
				t.Errorf("logged %s", &w.log)
			}
		})
	}
}

// An entry that was damaged is forgotten and said to be, and the next write
// mends it. Each would let a stale write pass over 7, were it believed: it gives
// the object's very ETag to an older record, or makes that of one key another's.
func TestDamagedEntries(t *testing.T) {
	for _, tt := range []struct {
		name   string
		damage func(w *world, seven string)
	}{
		{"a newer ETag with the old record", func(w *world, seven string) {
			w.damage(w.path, "UPDATE memory SET etag = ?", seven)
		}},
		{"an older record with the ETag", func(w *world, _ string) {
			w.mustPut(w.path, 8)
			w.damage(w.path, "UPDATE memory SET record = ?", record(5, 1).String())
		}},
		{"no record", func(w *world, seven string) {
			w.damage(w.path, "UPDATE memory SET record = '', etag = ?", seven)
		}},
		{"no check", func(w *world, seven string) {
			w.damage(w.path, "UPDATE memory SET etag = ?, sum = x''", seven)
		}},
		{"another key's", func(w *world, seven string) {
			f := open(w.t, w.path)
			remember(w.t, memoryOf(w.t, f, "mem"), "other", guard.Remembered{Record: record(5, 1), ETag: seven})
			change(w.t, f, "DELETE FROM memory WHERE key = CAST('k' AS BLOB)")
			change(w.t, f, "UPDATE memory SET key = CAST('k' AS BLOB)")
			closeAll(w.t, f)
		}},
		{"another bucket's", func(w *world, seven string) {
			f := open(w.t, w.path)
			remember(w.t, memoryOf(w.t, f, "other"), "k", guard.Remembered{Record: record(5, 1), ETag: seven})
			change(w.t, f, "DELETE FROM memory WHERE bucket = 1")
			change(w.t, f, "UPDATE memory SET bucket = 1")
			closeAll(w.t, f)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.mustPut(w.path, 5)
			w.mustPut("", 7)
			obj, err := w.s.Head(t.Context(), "k", guard.HeadOptions{})
			if err != nil {
				t.Fatal(err)
			}
			tt.damage(w, obj.ETag)
			if _, err := w.put(w.path, 6); !errors.Is(err, guard.ErrStale) {
				t.Errorf("a stale write: %v", err)
			}
			if log := w.log.String(); !strings.Contains(log, "an entry is damaged") || !strings.Contains(log, "s3://mem/k") {
				t.Errorf("logged %s", log)
			}
			if res := w.mustPut(w.path, 9); res.Requests != 2 {
				t.Errorf("%+v", res)
			}
			w.log.Reset()
			if res := w.mustPut(w.path, 10); res.Requests != 1 || w.log.Len() > 0 {
				t.Errorf("mended: %+v, logged %s", res, &w.log)
			}
		})
	}
}

// Of two writes at once the newer is remembered, in whatever order the news come.
func TestNewerStays(t *testing.T) {
	f := open(t, path(t))
	m := memoryOf(t, f, "bucket")
	remember(t, m, "k", guard.Remembered{Record: record(6, 2), ETag: "new"})
	remember(t, m, "k", guard.Remembered{Record: record(6, 1), ETag: "old"})
	for range 2 {
		if r := recall(t, m, "k"); r.ETag != "new" {
			t.Errorf("%+v", r)
		}
		if err := f.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	forgotten := guard.Remembered{Record: record(6, 2)}
	remember(t, m, "k", forgotten)
	if r := recall(t, m, "k"); r != forgotten {
		t.Errorf("%+v", r)
	}
}

func TestMemoryOfNoBucket(t *testing.T) {
	f := open(t, path(t))
	for _, names := range [][2]string{{"", "b"}, {"e", ""}} {
		if _, err := f.Memory(names[0], names[1]); err == nil || !strings.Contains(err.Error(), "name a bucket") {
			t.Errorf("%q: %v", names, err)
		}
	}
}
