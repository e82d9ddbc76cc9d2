package guard_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/internal/mems3"
)

// mapMemory is a Memory that outlives Guards, and fails when told to.
type mapMemory struct {
	m                map[string]guard.Remembered
	recall, remember error
}

func (m *mapMemory) Recall(key string) (guard.Remembered, error) { return m.m[key], m.recall }

func (m *mapMemory) Remember(key string, r guard.Remembered) error {
	if m.remember == nil {
		m.m[key] = r
	}
	return m.remember
}

func guardWith(s guard.Store, m guard.Memory, log *bytes.Buffer) *guard.Guard {
	return guard.New(s, &guard.Options{Memory: m, Logger: slog.New(slog.NewTextHandler(log, nil)), RootStore: mems3.New()})
}

// What it holds is of the write that it holds it of, with an ETag only where
// that can't come back.
func TestRemembered(t *testing.T) {
	for _, tt := range []struct {
		name    string
		opts    *guard.PutOptions
		relied  bool
		deleted bool
	}{
		{name: "unique ETag", opts: kms, relied: true},
		{name: "repeatable ETag"},
		{name: "tombstone", deleted: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, m, log := mems3.New(), &mapMemory{m: map[string]guard.Remembered{}}, &bytes.Buffer{}
			res := mustPut(t, guardWith(s, m, log), 5, "k", "x", tt.opts)
			if tt.deleted {
				res = mustDelete(t, guardWith(s, m, log), 6, "k", nil)
			}
			got := m.m["k"]
			if got.Record != res.Record || (got.ETag != "") != tt.relied || tt.relied && strings.Trim(got.ETag, `"`) != res.ETag {
				t.Errorf("remembered %+v of %+v", got, res)
			}
			if len(m.m) != 1 || log.Len() > 0 {
				t.Errorf("remembered %v, logged %s", m.m, log)
			}
		})
	}
}

// What another process wrote, and this one only found, is remembered like that.
func TestRememberedApplied(t *testing.T) {
	for _, tt := range []struct {
		name   string
		sse    string
		liar   bool // takes the encryption, and gives the MD5 of the bytes
		relied bool
	}{
		{name: "unique ETag", sse: "aws:kms", relied: true},
		{name: "repeatable ETag"},
		{name: "liar", sse: "aws:kms", liar: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, m, log := mems3.New(), &mapMemory{m: map[string]guard.Remembered{}}, &bytes.Buffer{}
			s.MD5UnderKMS = tt.liar
			opts := &guard.PutOptions{SSE: tt.sse, WriteID: guard.WriteID{7}}
			mustPut(t, newGuard(s), 5, "k", "x", opts)
			res := mustPut(t, guardWith(s, m, log), 5, "k", "x", opts)
			if got := m.m["k"]; res.Outcome != guard.AlreadyApplied || got.Record != res.Record || (got.ETag != "") != tt.relied {
				t.Fatalf("remembered %+v of %+v", got, res)
			}
			if !tt.relied {
				return
			}
			if res = mustPut(t, guardWith(s, m, log), 6, "k", "y", kms); res.Outcome != guard.Replaced || res.Requests != 1 {
				t.Errorf("%+v, want one request", res)
			}
		})
	}
}

// A Memory that fails is one that knows nothing, and the log says so.
func TestMemoryFails(t *testing.T) {
	full := errors.New("disk full")
	for _, tt := range []struct {
		name     string
		m        *mapMemory
		requests int
	}{
		{"recall", &mapMemory{recall: full}, 2},
		{"remember", &mapMemory{remember: full}, 1},
		{"both", &mapMemory{recall: full, remember: full}, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, log := mems3.New(), &bytes.Buffer{}
			tt.m.m = map[string]guard.Remembered{}
			mustPut(t, guardWith(s, &mapMemory{m: tt.m.m}, &bytes.Buffer{}), 1, "k", "x", kms)
			// Of a failed Recall nothing is used, whatever came with the error.
			res := mustPut(t, guardWith(s, tt.m, log), 2, "k", "y", kms)
			if res.Outcome != guard.Replaced || res.Requests != tt.requests {
				t.Errorf("%+v, want %d requests", res, tt.requests)
			}
			if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "disk full") {
				t.Errorf("logged %q", log)
			}
		})
	}
}

// A dry run says what would come of it, so it looks.
func TestDryRunLooks(t *testing.T) {
	s, log := mems3.New(), &bytes.Buffer{}
	m := &mapMemory{m: map[string]guard.Remembered{}}
	mustPut(t, guardWith(s, m, log), 1, "k", "x", kms)
	mustPut(t, newGuard(s), 9, "k", "y", kms)
	_, err := guardWith(s, m, log).Put(t.Context(), token(t, 5), "k", guard.Bytes(nil), &guard.PutOptions{DryRun: true, SSE: "aws:kms"})
	wantRefusal(t, err, guard.ErrStale)
}

func TestOlderThan(t *testing.T) {
	at := func(issuer byte, n, sequence int64) guard.Remembered {
		return guard.Remembered{Record: guard.Record{Issuer: guard.IssuerID{issuer}, Scope: "s", Number: n, Sequence: sequence}}
	}
	for _, tt := range []struct {
		r, o guard.Remembered
		want bool
	}{
		{at(1, 4, 9), at(1, 5, 1), true},
		{at(1, 5, 1), at(1, 5, 2), true},
		{at(1, 5, 2), at(1, 5, 2), false},
		{at(1, 5, 1), at(1, 4, 9), false},
		{at(1, 4, 1), at(2, 5, 1), false}, // of another counter
		{at(1, 4, 1), guard.Remembered{}, false},
	} {
		if got := tt.r.OlderThan(tt.o); got != tt.want {
			t.Errorf("%v older than %v: %v", tt.r.Record.Fence(), tt.o.Record.Fence(), got)
		}
	}
}

// Whatever of its past a Memory goes back to, key by key, writes come out as
// they would without one: by the number alone.
func TestOldMemoryIsSafe(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s, log := mems3.New(), &bytes.Buffer{}
		m := &mapMemory{m: map[string]guard.Remembered{}}
		past := []guard.Remembered{{}}
		highest := int64(0)
		for i := range rapid.IntRange(1, 12).Draw(rt, "writes") {
			m.m["k"] = rapid.SampledFrom(past).Draw(rt, "remembered")
			n := rapid.Int64Range(1, 20).Draw(rt, "number")
			body := rapid.SampledFrom([]string{"", "a", "b"}).Draw(rt, "body")
			_, err := guardWith(s, m, log).Put(t.Context(), token(t, n), "k", guard.Bytes([]byte(body)), kms)
			switch {
			case n > highest && err != nil:
				rt.Fatalf("write %d, with %d over %d: %v", i, n, highest, err)
			case n == highest && guard.ReasonOf(err) != guard.ErrReplayed, n < highest && guard.ReasonOf(err) != guard.ErrStale:
				rt.Fatalf("write %d, with %d over %d: %v", i, n, highest, err)
			}
			if n > highest {
				highest = n
				if s.Body("k") != body {
					rt.Fatalf("holds %q, not %q", s.Body("k"), body)
				}
			}
			past = append(past, m.m["k"])
		}
	})
}
