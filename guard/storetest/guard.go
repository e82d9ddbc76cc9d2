package storetest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/s3fence/s3fence/guard"
)

// The guard's own promise, on the store under test: these sub-tests write only
// through guards, each writer through one of its own, as processes would.

// tokens makes tokens of one counter, in any order the test wants.
func tokens(t *testing.T) func(n int64) guard.Token {
	t.Helper()
	id, err := guard.NewIssuerID(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return func(n int64) guard.Token {
		tok, err := guard.NewToken(id, "suite", n)
		if err != nil {
			t.Fatal(err)
		}
		return tok
	}
}

// replaceable are options under which the store lets a guard replace objects,
// or nil, false when it has none.
func (h Harness) replaceable() (*guard.PutOptions, bool) {
	return &guard.PutOptions{SSE: h.SSE}, h.SSE != "" || h.UniqueETags
}

func guarded(s guard.Store) *guard.Guard { return guard.New(s, nil) }

func content(t *testing.T, s guard.Store, key string) string {
	t.Helper()
	_, r, err := guarded(s).Get(t.Context(), key, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err = errors.Join(err, r.Close()); err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// writeRule walks through the outcomes that one key can have.
func (h Harness) writeRule(t *testing.T) {
	s, tok := h.Open(t), tokens(t)
	opts, can := h.replaceable()
	const key = "rule"
	held := "(absent)"
	step := func(n, seq int64, id byte, body string, outcome guard.Outcome, reason guard.Reason) {
		t.Helper()
		o := *opts
		o.Sequence = seq
		if id != 0 {
			o.WriteID = guard.WriteID{id}
		}
		res, err := guarded(s).Put(t.Context(), tok(n), key, guard.Bytes([]byte(body)), &o)
		if res.Outcome != outcome || guard.ReasonOf(err) != reason || (err == nil) != (reason == "") {
			t.Errorf("%d.%d: got %q, %v; want %q %q", n, seq, res.Outcome, err, outcome, reason)
		}
		if outcome == guard.Created || outcome == guard.Replaced {
			held = body
		}
		if got := content(t, s, key); got != held {
			t.Errorf("after %d.%d the object holds %q, want %q", n, seq, got, held)
		}
	}
	step(2, 1, 1, "two", guard.Created, "")
	step(2, 1, 1, "two", guard.AlreadyApplied, "")
	step(2, 1, 1, "TWO", "", guard.ErrReplayed)
	step(2, 1, 0, "two", "", guard.ErrReplayed)
	step(1, 9, 0, "one", "", guard.ErrStale)
	if !can {
		step(3, 1, 0, "three", "", guard.ErrRepeatableETag)
		return
	}
	step(3, 1, 0, "three", guard.Replaced, "")
	step(3, 2, 0, "three again", guard.Replaced, "")
	step(3, 1, 0, "three", "", guard.ErrStale)
	step(2, 1, 1, "two", "", guard.ErrStale)
}

// pausedWriter is the story that all of this is for: an owner pauses in the
// middle of its write, a newer one writes, the first one resumes.
func (h Harness) pausedWriter(t *testing.T) {
	opts, can := h.replaceable()
	for _, there := range []bool{false, true} {
		if there && !can {
			continue
		}
		s, tok := h.Open(t), tokens(t)
		if there {
			if _, err := guarded(s).Put(t.Context(), tok(1), "k", guard.Bytes([]byte("first")), opts); err != nil {
				t.Fatal(err)
			}
		}
		late := pausedPut(t, s, tok(2), "k", "old", opts)
		if _, err := guarded(s).Put(t.Context(), tok(3), "k", guard.Bytes([]byte("new")), opts); err != nil {
			t.Fatal(err)
		}
		err := late()
		if guard.ReasonOf(err) != guard.ErrStale || errors.Is(err, guard.ErrOutcomeUnknown) {
			t.Errorf("there=%v: the late writer was told %v", there, err)
		}
		if got := content(t, s, "k"); got != "new" {
			t.Errorf("there=%v: the object holds %q", there, got)
		}
	}
}

// pausedPut begins a write and returns once it has observed the object and is
// held just before its request. The returned function lets it go on and waits
// for its end.
func pausedPut(t *testing.T, s guard.Store, tok guard.Token, key, body string, opts *guard.PutOptions) (resume func() error) {
	t.Helper()
	p := Pause(s)
	t.Cleanup(p.Release)
	end := make(chan error, 1)
	go func() {
		_, err := guarded(p).Put(t.Context(), tok, key, guard.Bytes([]byte(body)), opts)
		end <- err
	}()
	select {
	case <-p.Reached():
	case err := <-end: // refused before it sent anything
		return func() error { return err }
	}
	return func() error {
		p.Release()
		return <-end
	}
}

// sameBytes is the hole that the ETag rule closes: between the late writer's
// look and its request the object changed, and came back to the same bytes.
// It returns how the promise was broken, nil if it was kept.
func (h Harness) sameBytes(t *testing.T, bodies []string, opts *guard.PutOptions) error {
	t.Helper()
	s, tok := h.Open(t), tokens(t)
	first, back := bodies[0], bodies[len(bodies)-1]
	if _, err := guarded(s).Put(t.Context(), tok(5), "k", guard.Bytes([]byte(first)), opts); err != nil {
		t.Fatal(err)
	}
	late := pausedPut(t, s, tok(6), "k", back, opts)
	held := int64(5)
	for i, body := range bodies[1:] {
		n := int64(7 + i)
		_, err := guarded(s).Put(t.Context(), tok(n), "k", guard.Bytes([]byte(body)), opts)
		switch {
		case err == nil:
			held = n
		case guard.ReasonOf(err) != guard.ErrRepeatableETag:
			return fmt.Errorf("writer %d was told %w", n, err)
		}
	}
	err := late()
	if want := guard.ErrStale; held > 5 && guard.ReasonOf(err) != want {
		return fmt.Errorf("writer 6 was told %v (want %v) after %d had written", err, want, held)
	}
	if want := guard.ErrRepeatableETag; held == 5 && guard.ReasonOf(err) != want {
		return fmt.Errorf("writer 6 was told %v (want %v)", err, want)
	}
	info, err := guarded(s).Stat(t.Context(), "k")
	if err != nil {
		return err
	}
	if info.Record.Number != held {
		return fmt.Errorf("the object says %d after %d had written", info.Record.Number, held)
	}
	return nil
}

func (h Harness) sameBytesAll(t *testing.T) {
	opts, _ := h.replaceable()
	big := strings.Repeat("A", 1<<20)
	for name, bodies := range map[string][]string{
		"one byte": {"A", "A"}, "empty": {"", ""}, "A B A": {"A", "B", "A"}, "1 MiB": {big, big},
	} {
		if err := h.sameBytes(t, bodies, opts); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if h.UniqueETags {
		return
	}
	// The test can fail: on this store, with the rule off, the stale write lands.
	if h.sameBytes(t, []string{"A", "A"}, &guard.PutOptions{AcceptRepeatableETag: true}) == nil {
		t.Error("with the ETag rule off, the stale write was not caught")
	}
}

// sameBytesParts is the same hole for bodies that are sent in parts, which
// their boundaries close on every store.
func (h Harness) sameBytesParts(t *testing.T) {
	opts, _ := h.replaceable()
	big := strings.Repeat("0123456789abcde\n", 7<<16)
	if err := h.sameBytes(t, []string{big, big}, opts); err != nil {
		t.Error(err)
	}
	if h.UniqueETags {
		return
	}
	// Without any encryption too, where a single part could not be replaced.
	if err := h.sameBytes(t, []string{big, "", big}, nil); err != nil {
		t.Error(err)
	}
}

// foreign: what was written around the guard is never written over.
func (h Harness) foreign(t *testing.T) {
	s, tok := h.Open(t), tokens(t)
	opts, _ := h.replaceable()
	for key, headers := range map[string]guard.Headers{
		"plain":   meta("owner", "somebody"),
		"corrupt": meta(guard.RecordKey, "48"),
	} {
		w := put(t, s, key, guard.IfAbsent(), "theirs", headers)
		want := guard.ErrUnfenced
		if key == "corrupt" {
			want = guard.ErrCorruptRecord
		}
		if _, err := guarded(s).Put(t.Context(), tok(1), key, guard.Bytes([]byte("ours")), opts); guard.ReasonOf(err) != want {
			t.Errorf("%s: got %v, want %v", key, err, want)
		}
		stands(t, s, key, w)
	}
}

// fenceLost: case 17, a plain delete around the guard in a versioned bucket.
func (h Harness) fenceLost(t *testing.T) {
	if h.Versioned == nil {
		t.Skip("left out: the store keeps no versions")
	}
	s, remove := h.Versioned(t)
	tok := tokens(t)
	opts, can := h.replaceable()
	if _, err := guarded(s).Put(t.Context(), tok(5), "k", guard.Bytes([]byte("five")), opts); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		remove(t, "k")
		for _, n := range []int64{4, 6} {
			o := *opts
			o.ExpectAbsent = true
			if _, err := guarded(s).Put(t.Context(), tok(n), "k", guard.Bytes(nil), &o); guard.ReasonOf(err) != guard.ErrFenceLost {
				t.Errorf("%d over a delete marker: %v", n, err)
			}
		}
	}
	if !can {
		return
	}
	// Another key of the bucket is none the wiser, and versions pile up.
	for n := int64(1); n <= 3; n++ {
		if _, err := guarded(s).Put(t.Context(), tok(n), "other", guard.Bytes([]byte("same")), opts); err != nil {
			t.Errorf("other %d: %v", n, err)
		}
	}
}

// manyWriters race for one key with their numbers in any order.
func (h Harness) manyWriters(t *testing.T) {
	opts, can := h.replaceable()
	if !can {
		t.Skip("left out: this store lets nothing be replaced")
	}
	s, tok := h.Open(t), tokens(t)
	const writers = 12
	var wg sync.WaitGroup
	var mu sync.Mutex
	var told int64
	for n := int64(1); n <= writers; n++ {
		wg.Go(func() {
			body := bytes.Repeat([]byte{byte('a' + n)}, 1000)
			_, err := guarded(s).Put(t.Context(), tok(n), "k", guard.Bytes(body), opts)
			mu.Lock()
			defer mu.Unlock()
			switch guard.ReasonOf(err) {
			case "":
				if err != nil {
					t.Errorf("%d: %v", n, err)
				}
				told = max(told, n)
			case guard.ErrStale:
			default:
				t.Errorf("%d: %v", n, err)
			}
		})
	}
	wg.Wait()
	info, err := guarded(s).Stat(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if info.Record.Number != writers || told != writers {
		t.Errorf("the object says %d, the highest success was %d, want %d", info.Record.Number, told, writers)
	}
	if got, want := content(t, s, "k"), strings.Repeat(string(rune('a'+writers)), 1000); got != want {
		t.Errorf("the object holds %.3q..., want %.3q...", got, want)
	}
}

// canceledPut: a context that is done changes nothing, and says so.
func (h Harness) canceledPut(t *testing.T) {
	s, tok := h.Open(t), tokens(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := guarded(s).Put(ctx, tok(1), "k", guard.Bytes(nil), nil); !errors.Is(err, context.Canceled) || guard.ReasonOf(err) != "" {
		t.Errorf("got %v", err)
	}
	if _, err := guarded(s).Stat(t.Context(), "k"); !errors.Is(err, guard.ErrNotFound) {
		t.Errorf("after it: %v", err)
	}
}
