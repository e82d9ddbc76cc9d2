package state

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/s3fence/s3fence/guard"
)

var (
	mtime = time.Unix(1_764_000_000, 123_456_789)
	put   = Run{Op: "put", Source: "data", Target: "s3://b/p/", Options: "1f"}
)

func plan(t testing.TB, j *Journal, key string, size int64, mtime time.Time) *Step {
	t.Helper()
	s, err := j.Plan(key, size, mtime)
	if err != nil {
		t.Fatal(err)
	}
	if s.WriteID.IsZero() {
		t.Errorf("%s has no write id", key)
	}
	return s
}

func resume(t testing.TB, f *File, run Run) *Journal {
	t.Helper()
	j, err := f.Resume(run)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func closeAll(t testing.TB, closers ...interface{ Close() error }) {
	t.Helper()
	for _, c := range closers {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A run is cut short and goes on, in another process: what was written is left
// out, what was begun is written as before, what has changed as the next.
func TestResume(t *testing.T) {
	path := path(t)
	f := open(t, path)
	j := begin(t, f, put)
	first := map[string]*Step{}
	for _, key := range []string{"done", "begun", "planned", "done, changed", "begun, changed", "begun, touched"} {
		s := plan(t, j, key, 7, mtime)
		first[key] = s
		if s.Outcome != "" || s.Sequence != 1 {
			t.Errorf("%s: %+v", key, s)
		}
		if key != "planned" {
			if err := s.Begin(); err != nil {
				t.Fatal(err)
			}
		}
		if strings.HasPrefix(key, "done") {
			if err := s.Done(guard.Replaced); err != nil {
				t.Fatal(err)
			}
		}
	}
	closeAll(t, j, f)

	f = open(t, path)
	j = resume(t, f, put)
	if j.Token() != token(t, 48) {
		t.Errorf("resumed with %s", j.Token())
	}
	for _, tt := range []struct {
		key      string
		size     int64
		mtime    time.Time
		outcome  guard.Outcome
		sequence int64
		sameID   bool
	}{
		{"done", 7, mtime, guard.Replaced, 1, true},
		{"begun", 7, mtime, "", 1, true},
		{"planned", 7, mtime, "", 1, true},
		{"done, changed", 8, mtime, "", 2, false},
		{"begun, changed", 8, mtime, "", 2, false},
		{"begun, changed", 7, mtime, "", 3, true}, // once more, and back
		{"begun, touched", 7, mtime.Add(1), "", 2, false},
	} {
		s := plan(t, j, tt.key, tt.size, tt.mtime)
		if s.Outcome != tt.outcome || s.Sequence != tt.sequence || (s.WriteID == first[tt.key].WriteID) != tt.sameID {
			t.Errorf("%s: %+v, first %+v", tt.key, s, first[tt.key])
		}
		if err := s.Begin(); err != nil {
			t.Error(err)
		}
	}
	if s := plan(t, j, "new", 7, mtime); s.Outcome != "" || s.Sequence != 1 {
		t.Errorf("new: %+v", s)
	}
	if err := j.Finish(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Resume(put); !errors.Is(err, ErrNoRun) {
		t.Errorf("finished: %v", err)
	}
}

// Begin waits for the note even when the key was planned twice.
func TestPlannedTwice(t *testing.T) {
	f := open(t, path(t))
	j := begin(t, f, put)
	defer j.Close()
	a, b := plan(t, j, "k", 7, mtime), plan(t, j, "k", 7, mtime)
	if a.WriteID != b.WriteID || a.Sequence != b.Sequence {
		t.Errorf("%+v, then %+v", a, b)
	}
	if err := b.Begin(); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := f.r.QueryRowContext(t.Context(), "SELECT count(*) FROM files WHERE outcome = ''").Scan(&n); err != nil || n != 1 {
		t.Errorf("%d notes, %v", n, err)
	}
}

// A new run takes the place of the last one, finished or not, and has other ids.
func TestBeginAgain(t *testing.T) {
	f := open(t, path(t))
	if _, err := f.Resume(put); !errors.Is(err, ErrNoRun) {
		t.Errorf("an empty file: %v", err)
	}
	var ids []guard.WriteID
	for _, finish := range []bool{true, false, true} {
		j := begin(t, f, put)
		s := plan(t, j, "k", 7, mtime)
		if s.Outcome != "" || s.Sequence != 1 {
			t.Errorf("%+v", s)
		}
		for _, id := range ids {
			if id == s.WriteID {
				t.Errorf("write id %s came again", id)
			}
		}
		ids = append(ids, s.WriteID)
		if err := s.Done(guard.Created); err != nil {
			t.Fatal(err)
		}
		end := j.Close
		if finish {
			end = j.Finish
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.Begin(put, guard.Token{}); !errors.Is(err, guard.ErrMissingToken) {
		t.Errorf("without a token: %v", err)
	}
}

func TestResumeRefuses(t *testing.T) {
	other := func(change func(*Run)) Run { r := put; change(&r); return r }
	for _, tt := range []struct {
		name string
		run  Run
		do   string
		want string
	}{
		{"op", other(func(r *Run) { r.Op = "rm" }), "", `the command was "put" in the unfinished run, and is "rm" now`},
		{"source", other(func(r *Run) { r.Source = "other" }), "", `the source was "data" in the unfinished run, and is "other" now`},
		{"target", other(func(r *Run) { r.Target = "s3://b/q/" }), "", `the target was "s3://b/p/" in the unfinished run, and is "s3://b/q/" now`},
		{"options", other(func(r *Run) { r.Options = "2e" }), "", "the unfinished run had other options: give the same, or name another file"},
		{"another token put in", put, "UPDATE run SET token = '" + token(t, 49).String() + "'", "an entry is damaged: remove the file, and run it from the start"},
		{"opened again", put, "UPDATE run SET finished = 1", "an entry is damaged"},
		{"another id", put, "UPDATE run SET id = x'00'", "an entry is damaged"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := open(t, path(t))
			closeAll(t, begin(t, f, put))
			if tt.do != "" {
				change(t, f, tt.do)
			}
			_, err := f.Resume(tt.run)
			if err == nil || !strings.Contains(err.Error(), f.path+": "+tt.want) || errors.Is(err, ErrNoRun) {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
			closeAll(t, begin(t, f, put)) // the lock is free again
		})
	}
}

// A note that was damaged is never taken for that of a file that was written.
func TestDamagedNotes(t *testing.T) {
	for _, damage := range []string{
		"UPDATE files SET outcome = 'created'",
		"UPDATE files SET size = 8",
		"UPDATE files SET mtime = mtime + 1",
		"UPDATE files SET sequence = 2",
		"UPDATE files SET key = CAST('other' AS BLOB)",
		"UPDATE files SET sum = x''",
	} {
		f := open(t, path(t))
		j := begin(t, f, put)
		plan(t, j, "k", 7, mtime)
		change(t, f, damage)
		for _, key := range []string{"k", "other"} {
			s, err := j.Plan(key, 7, mtime)
			if err == nil && (s.Outcome != "" || s.Sequence != 1) || err != nil && !strings.Contains(err.Error(), "an entry is damaged, that of \""+key+"\": remove the file") {
				t.Errorf("%s, %s: %+v, %v", damage, key, s, err)
			}
		}
		closeAll(t, j)
	}
}

func TestOneJournalAtATime(t *testing.T) {
	path := path(t)
	f, g := open(t, path), open(t, path)
	j := begin(t, f, put)
	for _, h := range []*File{f, g} {
		_, berr := h.Begin(put, token(t, 49))
		_, rerr := h.Resume(put)
		for _, err := range []error{berr, rerr} {
			if want := "lock the journal of state file " + path + ": another run has it open: wait for its end, or name another file"; err == nil || err.Error() != want {
				t.Errorf("got  %v\nwant %s", err, want)
			}
		}
	}
	remember(t, memoryOf(t, g, "bucket"), "k", guard.Remembered{Record: record(1, 1)}) // which is anyone's
	closeAll(t, j)
	closeAll(t, resume(t, g, put))
}

// Journals and memories of one file don't know of each other's keys, and any
// key, size and time comes back as it was.
func TestStoredForm(t *testing.T) {
	path := path(t)
	f := open(t, path)
	defer func() { f.Close() }()
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		key := rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) })).Draw(rt, "key")
		run := Run{rapid.String().Draw(rt, "op"), rapid.String().Draw(rt, "source"), "s3://b/", rapid.String().Draw(rt, "options")}
		size, at := rapid.Int64Min(0).Draw(rt, "size"), time.Unix(0, rapid.Int64().Draw(rt, "mtime"))
		r := guard.Remembered{
			Record: guard.Record{
				Issuer: testIssuer, Scope: rapid.StringMatching(`[A-Za-z0-9._/-]{1,128}`).Draw(rt, "scope"),
				Number: rapid.Int64Min(1).Draw(rt, "number"), Sequence: rapid.Int64Range(1, guard.MaxSequence).Draw(rt, "sequence"),
				WriteID: guard.WriteID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(rt, "write id")),
				State:   rapid.SampledFrom([]guard.State{guard.Live, guard.Deleted}).Draw(rt, "state"),
			},
			ETag: rapid.String().Draw(rt, "etag"),
		}
		bucket := fmt.Sprint(rapid.String().Draw(rt, "bucket"), n) // of its own, as an older record does not pass over a newer
		remember(t, memoryOf(t, f, bucket), key, r)
		j := begin(t, f, run)
		s := plan(t, j, key, size, at)
		if err := s.Done(guard.Created); err != nil {
			rt.Fatal(err)
		}
		closeAll(t, j)
		if n%10 == 0 {
			closeAll(t, f)
			f = open(t, path)
		}
		if got := recall(t, memoryOf(t, f, bucket), key); got != r {
			rt.Fatalf("got %+v, want %+v", got, r)
		}
		j = resume(t, f, run)
		if again := plan(t, j, key, size, at); again.Outcome != guard.Created || again.Sequence != 1 || again.WriteID != s.WriteID {
			rt.Fatalf("got %+v, want %+v", again, s)
		}
		if other := plan(t, j, key+"\x00", size, at); other.Outcome != "" || other.WriteID == s.WriteID {
			rt.Fatalf("another key: %+v", other)
		}
		closeAll(t, j)
	})
}
