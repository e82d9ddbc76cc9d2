package guard_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/internal/mems3"
)

var (
	errLost = errors.New("connection reset by peer")
	kms     = &guard.PutOptions{SSE: "aws:kms"}
)

// newGuard returns a Guard that does not wait between attempts.
func newGuard(s guard.Store) *guard.Guard {
	return guard.New(s, &guard.Options{
		Backoff:   func(int) time.Duration { return 0 },
		RootStore: mems3.New(), // not to be counted, nor met by faults
	})
}

func mustPut(t *testing.T, g *guard.Guard, n int64, key, body string, opts *guard.PutOptions) guard.Result {
	t.Helper()
	res, err := g.Put(t.Context(), token(t, n), key, guard.Bytes([]byte(body)), opts)
	if err != nil {
		t.Fatalf("put %d: %v", n, err)
	}
	return res
}

func wantRefusal(t *testing.T, err error, reason guard.Reason) *guard.Refusal {
	t.Helper()
	var r *guard.Refusal
	if !errors.As(err, &r) || r.Reason != reason || !errors.Is(err, reason) || guard.ReasonOf(err) != reason {
		t.Fatalf("got %v, want a refusal for %s", err, reason)
	}
	return r
}

// once returns a hook that answers err to the n-th request of kind op.
func once(op string, n int, err error) func(string, string) error {
	var seen atomic.Int64
	return func(o, _ string) error {
		if o == op && seen.Add(1) == int64(n) {
			return err
		}
		return nil
	}
}

func always(op string, err error) func(string, string) error {
	return func(o, _ string) error {
		if o == op {
			return err
		}
		return nil
	}
}

func TestPutCreatesThenReplaces(t *testing.T) {
	m := mems3.New()
	res := mustPut(t, newGuard(m), 1, "k", "one", nil)
	if res.Outcome != guard.Created || res.Requests != 2 || res.ETagKind != guard.ETagRepeatable || res.Bytes != 3 {
		t.Errorf("create: %+v", res)
	}
	res = mustPut(t, newGuard(m), 2, "k", "two", kms)
	if res.Outcome != guard.Replaced || res.Requests != 2 || res.ETagKind != guard.ETagUnique || res.Previous.Number != 1 {
		t.Errorf("replace: %+v", res)
	}
	if m.Body("k") != "two" {
		t.Errorf("holds %q", m.Body("k"))
	}
	wantConds := []guard.Condition{guard.IfAbsent(), guard.IfMatch(`"` + "f97c5d29941bfb1b2fdab0874906ab82" + `"`)}
	if len(m.Conditions) != 2 || m.Conditions[0] != wantConds[0] || m.Conditions[1] != wantConds[1] {
		t.Errorf("conditions %v, want %v", m.Conditions, wantConds)
	}
}

func TestPutRefusesStaleAndReplayed(t *testing.T) {
	m := mems3.New()
	mustPut(t, newGuard(m), 48, "k", "new", nil)
	for _, tt := range []struct {
		n      int64
		reason guard.Reason
	}{{47, guard.ErrStale}, {1, guard.ErrStale}, {48, guard.ErrReplayed}} {
		res, err := newGuard(m).Put(t.Context(), token(t, tt.n), "k", guard.Bytes([]byte("old")), kms)
		r := wantRefusal(t, err, tt.reason)
		if r.Held.Number != 48 || r.Offered.Number != tt.n || r.Key != "k" || r.MayHaveApplied || len(r.Cures) == 0 {
			t.Errorf("%d: %+v", tt.n, r)
		}
		if res.Requests != 1 || res.Record.Number != tt.n {
			t.Errorf("%d: %+v", tt.n, res)
		}
	}
	_, err := newGuard(m).Put(t.Context(), token(t, 47), "k", guard.Bytes(nil), nil)
	if want := "stale token 47 for s3://mem/k: already written with 48 (scope nightly/report)"; err.Error() != want {
		t.Errorf("got  %s\nwant %s", err, want)
	}
	if m.Body("k") != "new" || m.Puts != 1 {
		t.Errorf("holds %q after %d puts", m.Body("k"), m.Puts)
	}
}

func TestPutWithoutTokenIsRefused(t *testing.T) {
	m := mems3.New()
	_, err := newGuard(m).Put(t.Context(), guard.Token{}, "k", guard.Bytes(nil), nil)
	wantRefusal(t, err, guard.ErrMissingToken)
	if m.Puts+m.Heads != 0 {
		t.Error("the store was asked")
	}
}

func TestPutSequence(t *testing.T) {
	m := mems3.New()
	g := newGuard(m)
	for seq := int64(1); seq <= 3; seq++ {
		mustPut(t, g, 7, "k", fmt.Sprint(seq), &guard.PutOptions{Sequence: seq, SSE: "aws:kms"})
	}
	_, err := newGuard(m).Put(t.Context(), token(t, 7), "k", guard.Bytes(nil), &guard.PutOptions{Sequence: 2, SSE: "aws:kms"})
	wantRefusal(t, err, guard.ErrStale)
	mustPut(t, g, 8, "k", "next owner", kms)
}

// One request for a new key where it is expected absent, two where nothing is
// known, one for a key that this guard wrote last.
func TestPutRequests(t *testing.T) {
	m := mems3.New()
	m.Bucket.UniqueETags = true
	g := newGuard(m)
	if res := mustPut(t, g, 1, "a", "x", &guard.PutOptions{ExpectAbsent: true}); res.Requests != 1 {
		t.Errorf("expected absent: %d requests", res.Requests)
	}
	if res := mustPut(t, g, 2, "a", "x", nil); res.Requests != 1 || res.Outcome != guard.Replaced {
		t.Errorf("own key again: %+v", res)
	}
	mustPut(t, newGuard(m), 3, "a", "x", nil)
	if res := mustPut(t, g, 4, "a", "x", nil); res.Requests != 3 || res.Outcome != guard.Replaced {
		t.Errorf("own key, written by others since: %+v", res)
	}
	if res := mustPut(t, newGuard(m), 5, "a", "x", &guard.PutOptions{ExpectAbsent: true}); res.Requests != 3 || res.Outcome != guard.Replaced {
		t.Errorf("wrong hint: %+v", res)
	}
	// The bucket forgot the number with the object; the guard did not.
	mustPut(t, g, 6, "b", "x", nil)
	m.Remove("b")
	_, err := g.Put(t.Context(), token(t, 6), "b", guard.Bytes(nil), nil)
	wantRefusal(t, err, guard.ErrFenceLost)
	if res := mustPut(t, g, 7, "b", "x", nil); res.Outcome != guard.Created {
		t.Errorf("own key, gone since: %+v", res)
	}
}

func TestExpectAbsentLooksWhereVersionsAreKept(t *testing.T) {
	for _, v := range []guard.Versioning{guard.VersioningOn, guard.VersioningUnknown} {
		m := mems3.New()
		m.Bucket.Versioning = v
		if res := mustPut(t, newGuard(m), 1, "a", "x", &guard.PutOptions{ExpectAbsent: true}); res.Requests != 2 {
			t.Errorf("versioning %d: %d requests", v, res.Requests)
		}
	}
}

func TestCreateOnly(t *testing.T) {
	m := mems3.New()
	only := &guard.PutOptions{CreateOnly: true, SSE: "aws:kms"}
	mustPut(t, newGuard(m), 1, "a", "x", only)
	_, err := newGuard(m).Put(t.Context(), token(t, 2), "a", guard.Bytes(nil), only)
	wantRefusal(t, err, guard.ErrExists)
}

// Case 1: the store applies the write, the answer is lost. One write, success.
func TestLostAnswer(t *testing.T) {
	for _, there := range []bool{false, true} {
		m := mems3.New()
		if there {
			mustPut(t, newGuard(m), 1, "k", "old", nil)
			m.Puts = 0
		}
		m.After = once("put", 1, errLost)
		res := mustPut(t, newGuard(m), 2, "k", "new", kms)
		if res.Outcome != guard.AlreadyApplied || m.Puts != 1 || m.Body("k") != "new" || res.Requests != 3 {
			t.Errorf("there=%v: %+v after %d puts", there, res, m.Puts)
		}
	}
}

// The request is lost before the store saw it: sent again, under the same id.
func TestLostRequest(t *testing.T) {
	m := mems3.New()
	m.Before = once("put", 1, errLost)
	if res := mustPut(t, newGuard(m), 2, "k", "new", nil); res.Outcome != guard.Created || m.Puts != 2 {
		t.Errorf("%+v after %d puts", res, m.Puts)
	}
}

// Our write landed, its answer was lost, and a newer owner has written since.
func TestLostAnswerThenSuperseded(t *testing.T) {
	m := mems3.New()
	var done bool
	m.After = func(op, key string) error {
		if op != "put" || done {
			return nil
		}
		done = true
		mustPut(t, newGuard(m), 9, key, "newer", kms)
		return errLost
	}
	_, err := newGuard(m).Put(t.Context(), token(t, 2), "k", guard.Bytes([]byte("mine")), kms)
	r := wantRefusal(t, err, guard.ErrStale)
	if !r.MayHaveApplied || r.Held.Number != 9 || !strings.Contains(err.Error(), "may have been applied") {
		t.Errorf("%+v: %v", r, err)
	}
}

// Case 2: the whole command is run again.
func TestRunAgain(t *testing.T) {
	m := mems3.New()
	opts := &guard.PutOptions{WriteID: testWriteID, SSE: "aws:kms"}
	mustPut(t, newGuard(m), 2, "k", "bytes", opts)
	if res := mustPut(t, newGuard(m), 2, "k", "bytes", opts); res.Outcome != guard.AlreadyApplied || m.Puts != 1 {
		t.Errorf("same id: %+v", res)
	}
	_, err := newGuard(m).Put(t.Context(), token(t, 2), "k", guard.Bytes([]byte("bytes")), kms)
	wantRefusal(t, err, guard.ErrReplayed)
	for _, other := range []string{"longer bytes", "BYTES"} {
		_, err = newGuard(m).Put(t.Context(), token(t, 2), "k", guard.Bytes([]byte(other)), opts)
		wantRefusal(t, err, guard.ErrReplayed)
	}
	if m.Body("k") != "bytes" || m.Puts != 1 {
		t.Errorf("holds %q after %d puts", m.Body("k"), m.Puts)
	}
	// Not knowing the checksum is no reason to refuse.
	m.Before = once("head", 2, guard.ErrDenied)
	if res := mustPut(t, newGuard(m), 2, "k", "bytes", opts); res.Outcome != guard.AlreadyApplied {
		t.Errorf("checksum denied: %+v", res)
	}
}

// Between the look that found our record and the one that compares the bytes,
// a newer write replaced the object. Its bytes say nothing about ours: the
// answer is not "replayed", which would deny a write that was applied.
func TestReplacedWhileBytesAreCompared(t *testing.T) {
	for _, lost := range []bool{false, true} {
		m := mems3.New()
		opts := &guard.PutOptions{WriteID: testWriteID, SSE: "aws:kms"}
		second := 2 // the HEAD that compares
		if lost {
			m.After = once("put", 1, errLost)
			second = 3
		} else {
			mustPut(t, newGuard(m), 2, "k", "mine", opts)
			m.Heads = 0
		}
		m.Before = func(op, key string) error {
			if op == "head" && m.Heads == second {
				m.Before = nil
				mustPut(t, newGuard(m), 9, key, "newr", kms)
			}
			return nil
		}
		_, err := newGuard(m).Put(t.Context(), token(t, 2), "k", guard.Bytes([]byte("mine")), opts)
		if r := wantRefusal(t, err, guard.ErrStale); r.Held.Number != 9 || r.MayHaveApplied != lost {
			t.Errorf("lost=%v: %+v", lost, r)
		}
	}
}

// Bytes that can't be compared just now are not taken for the same.
func TestBytesCannotBeCompared(t *testing.T) {
	m := mems3.New()
	opts := &guard.PutOptions{WriteID: testWriteID, SSE: "aws:kms"}
	mustPut(t, newGuard(m), 2, "k", "bytes", opts)
	m.Heads = 0
	m.Before = func(op, _ string) error {
		if op == "head" && m.Heads > 1 {
			return errLost
		}
		return nil
	}
	res, err := newGuard(m).Put(t.Context(), token(t, 2), "k", guard.Bytes([]byte("BYTES")), opts)
	if !errors.Is(err, errLost) || res.Outcome != "" || guard.ReasonOf(err) != "" {
		t.Errorf("%+v, %v", res, err)
	}
}

// Case 3: metadata stripped on the way and the answer lost: not stale, unknown.
func TestStrippedMetadataAndLostAnswer(t *testing.T) {
	m := mems3.New()
	m.After = func(op, key string) error {
		if op == "put" {
			m.Overwrite(key, m.Body(key), nil)
			return errLost
		}
		return nil
	}
	_, err := newGuard(m).Put(t.Context(), token(t, 2), "k", guard.Bytes([]byte("mine")), kms)
	r := wantRefusal(t, err, guard.ErrOutcomeUnknown)
	if !errors.Is(err, errLost) || !errors.Is(err, guard.ErrUnfenced) || len(r.Cures) == 0 {
		t.Errorf("%+v", r)
	}
}

// Whatever definite refusal follows a lost answer, the outcome stays unknown.
func TestDeniedAfterLostAnswer(t *testing.T) {
	m := mems3.New()
	m.After = func(op, _ string) error {
		if op == "put" {
			m.Before = always("head", guard.ErrDenied)
			return errLost
		}
		return nil
	}
	_, err := newGuard(m).Put(t.Context(), token(t, 2), "k", guard.Bytes(nil), nil)
	wantRefusal(t, err, guard.ErrOutcomeUnknown)
}

func TestLostAnswersForEver(t *testing.T) {
	m := mems3.New()
	m.Before = always("put", errLost)
	res, err := newGuard(m).Put(t.Context(), token(t, 2), "k", guard.Bytes(nil), nil)
	wantRefusal(t, err, guard.ErrOutcomeUnknown)
	if m.Puts != 10 || res.Requests != 20 {
		t.Errorf("%d puts, %d requests", m.Puts, res.Requests)
	}
}

// Case 7: a conflict once is tried again; for ever, it ends with its own words.
func TestConflict(t *testing.T) {
	m := mems3.New()
	m.Before = once("put", 1, guard.ErrConflict)
	if res := mustPut(t, newGuard(m), 1, "k", "x", nil); res.Outcome != guard.Created || m.Puts != 2 {
		t.Errorf("%+v after %d puts", res, m.Puts)
	}
	m = mems3.New()
	m.Before = always("put", guard.ErrConflict)
	_, err := newGuard(m).Put(t.Context(), token(t, 1), "k", guard.Bytes(nil), nil)
	if !errors.Is(err, guard.ErrConflict) || guard.ReasonOf(err) != "" || !strings.Contains(err.Error(), "gave up after 10") {
		t.Errorf("got %v", err)
	}
}

// Case 8: deleted between HEAD and PUT: decided again, under a condition.
func TestDeletedBetweenHeadAndPut(t *testing.T) {
	m := mems3.New()
	mustPut(t, newGuard(m), 1, "k", "old", nil)
	m.Before = func(op, key string) error {
		if op == "put" && m.Puts == 2 {
			m.Remove(key)
		}
		return nil
	}
	res := mustPut(t, newGuard(m), 2, "k", "new", kms)
	if last := m.Conditions[len(m.Conditions)-1]; res.Outcome != guard.Created || !last.Absent() {
		t.Errorf("%+v under %v", res, last)
	}
}

// Case 9: an object that can't be observed is never written.
func TestHeadFails(t *testing.T) {
	for _, bad := range []error{errLost, guard.ErrDenied, guard.ErrRejected} {
		m := mems3.New()
		m.Before = always("head", bad)
		_, err := newGuard(m).Put(t.Context(), token(t, 1), "k", guard.Bytes(nil), nil)
		if !errors.Is(err, bad) || guard.ReasonOf(err) != "" || m.Puts != 0 {
			t.Errorf("%v: got %v after %d puts", bad, err, m.Puts)
		}
	}
}

// Case 10: nothing was sent, so it is quietly tried again.
func TestNotSent(t *testing.T) {
	m := mems3.New()
	m.Before = once("head", 1, guard.ErrNotSent)
	if res := mustPut(t, newGuard(m), 1, "k", "x", nil); res.Outcome != guard.Created {
		t.Errorf("%+v", res)
	}
	m = mems3.New()
	m.Before = always("put", guard.ErrNotSent)
	_, err := newGuard(m).Put(t.Context(), token(t, 1), "k", guard.Bytes(nil), nil)
	if !errors.Is(err, guard.ErrNotSent) || errors.Is(err, guard.ErrOutcomeUnknown) {
		t.Errorf("never sent, but: %v", err)
	}
}

// A store that lacks conditions is refused; nothing falls back to a plain write.
func TestUnsupportedIsUnsafe(t *testing.T) {
	m := mems3.New()
	m.Before = always("put", guard.ErrUnsupported)
	_, err := newGuard(m).Put(t.Context(), token(t, 1), "k", guard.Bytes(nil), nil)
	wantRefusal(t, err, guard.ErrStoreUnsafe)
	if m.Puts != 1 {
		t.Errorf("%d puts", m.Puts)
	}
}

func TestPreconditionFailsForEver(t *testing.T) {
	m := mems3.New()
	m.Before = always("put", guard.ErrPreconditionFailed)
	_, err := newGuard(m).Put(t.Context(), token(t, 1), "k", guard.Bytes(nil), nil)
	wantRefusal(t, err, guard.ErrStoreUnsafe)
	if m.Puts != 10 {
		t.Errorf("%d puts", m.Puts)
	}
}

func TestForeignObjects(t *testing.T) {
	other := guard.Record{Issuer: guard.IssuerID{1}, Scope: "nightly/report", Number: 1, Sequence: 1, State: guard.Live}
	scope := guard.Record{Issuer: testIssuer, Scope: "nightly", Number: 1, Sequence: 1, State: guard.Live}
	for _, tt := range []struct {
		metadata map[string]string
		reason   guard.Reason
	}{
		{nil, guard.ErrUnfenced},
		{map[string]string{guard.RecordKey: ""}, guard.ErrUnfenced},
		{map[string]string{guard.RecordKey: "0"}, guard.ErrCorruptRecord},
		{map[string]string{guard.RecordKey: other.String()[:len(other.String())-1]}, guard.ErrCorruptRecord},
		{map[string]string{guard.RecordKey: other.String()}, guard.ErrIssuerMismatch},
		{map[string]string{guard.RecordKey: scope.String()}, guard.ErrScopeMismatch},
	} {
		m := mems3.New()
		m.Overwrite("k", "theirs", tt.metadata)
		_, err := newGuard(m).Put(t.Context(), token(t, 5), "k", guard.Bytes(nil), kms)
		wantRefusal(t, err, tt.reason)
		if m.Body("k") != "theirs" || m.Puts != 0 {
			t.Errorf("%s: holds %q", tt.reason, m.Body("k"))
		}
	}
}

// Case 17: a plain delete in a versioned bucket takes the mark away; it is
// found again under the delete marker.
func TestFenceLostUnderDeleteMarker(t *testing.T) {
	m := mems3.New()
	m.Bucket.Versioning = guard.VersioningOn
	mustPut(t, newGuard(m), 5, "k", "five", nil)
	for range 2 {
		m.Remove("k")
		for _, n := range []int64{4, 6} {
			_, err := newGuard(m).Put(t.Context(), token(t, n), "k", guard.Bytes(nil), &guard.PutOptions{ExpectAbsent: true})
			if r := wantRefusal(t, err, guard.ErrFenceLost); r.Held.Number != 5 {
				t.Errorf("%+v", r)
			}
		}
	}
	m.Before = always("list", guard.ErrDenied)
	_, err := newGuard(m).Put(t.Context(), token(t, 6), "k", guard.Bytes(nil), nil)
	wantRefusal(t, err, guard.ErrFenceLost)
	m.Before = nil
	_, err = newGuard(listsNothing{m}).Put(t.Context(), token(t, 6), "k", guard.Bytes(nil), nil)
	wantRefusal(t, err, guard.ErrFenceLost)

	// A marker over an object that never was fenced hides no number.
	m.Overwrite("plain", "x", nil)
	m.Remove("plain")
	mustPut(t, newGuard(m), 6, "plain", "y", nil)
}

// listsNothing is a store that says that a delete marker stands, and lists no
// versions, as MinIO does for a key with a leading slash.
type listsNothing struct{ *mems3.Store }

func (listsNothing) List(context.Context, guard.ListOptions) iter.Seq2[guard.Listed, error] {
	return func(func(guard.Listed, error) bool) {}
}

// sameBytes tells case 13: writer 6 is paused after it observed the object,
// writer 7 writes the very same bytes, writer 6 resumes. It returns what is
// wrong in the end.
func sameBytes(t *testing.T, m *mems3.Store, body string, opts *guard.PutOptions) error {
	mustPut(t, newGuard(m), 5, "k", body, opts)
	var seven error
	var paused bool
	m.Before = func(op, key string) error {
		if op == "put" && !paused {
			paused = true
			_, seven = newGuard(m).Put(t.Context(), token(t, 7), key, guard.Bytes([]byte(body)), opts)
		}
		return nil
	}
	_, err := newGuard(m).Put(t.Context(), token(t, 6), "k", guard.Bytes([]byte(body)), opts)
	info, serr := newGuard(m).Stat(t.Context(), "k")
	switch {
	case serr != nil:
		return serr
	case paused && seven == nil && info.Record.Number != 7:
		return fmt.Errorf("7 was written, and the object says %d", info.Record.Number)
	case paused && seven == nil && !errors.Is(err, guard.ErrStale):
		return fmt.Errorf("writer 6 was told %v", err)
	case !paused && !errors.Is(err, guard.ErrRepeatableETag):
		return fmt.Errorf("writer 6 was told %v without writing", err)
	}
	return nil
}

func TestSameBytes(t *testing.T) {
	for _, body := range []string{"", "A", strings.Repeat("A", 1<<20)} {
		for name, opts := range map[string]*guard.PutOptions{"plain": nil, "AES256": {SSE: "AES256"}, "kms": kms, "dsse": {SSE: "aws:kms:dsse"}} {
			if err := sameBytes(t, mems3.New(), body, opts); err != nil {
				t.Errorf("%d bytes, %s: %v", len(body), name, err)
			}
		}
	}
	// The test can fail: with the rule off, the stale write lands.
	if sameBytes(t, mems3.New(), "A", &guard.PutOptions{AcceptRepeatableETag: true}) == nil {
		t.Error("with the ETag rule off, the stale write was not noticed")
	}
}

func TestETagRule(t *testing.T) {
	for _, tt := range []struct {
		name     string
		settings guard.Settings
		sse      string
		ok       bool
	}{
		{"plain", guard.Settings{}, "", false},
		{"AES256", guard.Settings{}, "AES256", false},
		{"kms", guard.Settings{}, "aws:kms", true},
		{"default kms", guard.Settings{DefaultSSE: "aws:kms"}, "", true},
		{"default kms, AES256 asked for", guard.Settings{DefaultSSE: "aws:kms"}, "AES256", false},
		{"default AES256", guard.Settings{DefaultSSE: "AES256"}, "", false},
		{"unique", guard.Settings{UniqueETags: true}, "", true},
	} {
		m := mems3.New()
		m.Bucket = tt.settings
		mustPut(t, newGuard(m), 1, "k", "x", nil)
		res, err := newGuard(m).Put(t.Context(), token(t, 2), "k", guard.Bytes([]byte("y")), &guard.PutOptions{SSE: tt.sse})
		if tt.ok {
			if err != nil || res.ETagKind != guard.ETagUnique {
				t.Errorf("%s: %+v, %v", tt.name, res, err)
			}
			continue
		}
		if r := wantRefusal(t, err, guard.ErrRepeatableETag); len(r.Cures) == 0 || m.Puts != 1 {
			t.Errorf("%s: %+v after %d puts", tt.name, r, m.Puts)
		}
	}
}

// A store that ignores the encryption header is found out by what it answers.
func TestIgnoredEncryptionIsReported(t *testing.T) {
	m := mems3.New()
	liar := ignoresSSE{m}
	mustPut(t, newGuard(liar), 1, "k", "x", kms)
	res := mustPut(t, newGuard(liar), 2, "k", "y", kms)
	if res.ETagKind != guard.ETagRepeatable {
		t.Errorf("%+v", res)
	}
}

type ignoresSSE struct{ *mems3.Store }

func (s ignoresSSE) Put(ctx context.Context, key string, req guard.PutRequest) (guard.PutResult, error) {
	asked := req.SSE
	req.SSE = ""
	res, err := s.Store.Put(ctx, key, req)
	res.SSE = asked
	return res, err
}

func TestCanceledBeforeSending(t *testing.T) {
	m := mems3.New()
	ctx, cancel := context.WithCancel(t.Context())
	m.Before = func(op, _ string) error {
		if op == "head" {
			cancel()
		}
		return nil
	}
	_, err := newGuard(m).Put(ctx, token(t, 1), "k", guard.Bytes(nil), nil)
	if !errors.Is(err, context.Canceled) || guard.ReasonOf(err) != "" || m.Puts != 0 {
		t.Errorf("got %v after %d puts", err, m.Puts)
	}
}

func TestCanceledAfterSending(t *testing.T) {
	m := mems3.New()
	ctx, cancel := context.WithCancel(t.Context())
	m.After = func(op, _ string) error {
		if op != "put" {
			return nil
		}
		cancel()
		return ctx.Err()
	}
	_, err := newGuard(m).Put(ctx, token(t, 1), "k", guard.Bytes(nil), &guard.PutOptions{WriteID: testWriteID})
	r := wantRefusal(t, err, guard.ErrOutcomeUnknown)
	if !errors.Is(err, context.Canceled) || !strings.Contains(strings.Join(r.Cures, " "), testWriteID.String()) {
		t.Errorf("%v, %q", err, r.Cures)
	}
	m.After = nil
	if res := mustPut(t, newGuard(m), 1, "k", "", &guard.PutOptions{WriteID: testWriteID}); res.Outcome != guard.AlreadyApplied {
		t.Errorf("run again: %+v", res)
	}
}

func TestDeadlineEndsTheWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := mems3.New()
		m.Before = always("head", errLost)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		g := guard.New(m, &guard.Options{Backoff: func(int) time.Duration { return time.Hour }})
		start := time.Now()
		_, err := g.Put(ctx, token(t, 1), "k", guard.Bytes(nil), nil)
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errLost) || time.Since(start) != time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// A source that fails is our own failure: nothing was written, and it says what.
func TestBodyFails(t *testing.T) {
	disk := errors.New("input/output error")
	for name, r := range map[string]io.ReaderAt{
		"error":   readerAt(func([]byte, int64) (int, error) { return 0, disk }),
		"shorter": strings.NewReader("four"),
	} {
		m := mems3.New()
		_, err := newGuard(m).Put(t.Context(), token(t, 1), "k", guard.ReaderAt(r, 10), nil)
		if err == nil || errors.Is(err, guard.ErrOutcomeUnknown) || m.Puts != 0 || !strings.Contains(err.Error(), "read the body") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

type readerAt func([]byte, int64) (int, error)

func (f readerAt) ReadAt(p []byte, off int64) (int, error) { return f(p, off) }

func TestBadArguments(t *testing.T) {
	for name, tt := range map[string]struct {
		key  string
		body guard.Body
		opts guard.PutOptions
		says string
	}{
		"empty key":      {key: "", says: "empty"},
		"long key":       {key: strings.Repeat("k", 1025), says: "1025 bytes"},
		"key not UTF-8":  {key: "a\xff", says: "UTF-8"},
		"key with NUL":   {key: "a\x00b", says: "NUL"},
		"too large":      {key: "k", body: guard.ReaderAt(strings.NewReader(""), guard.MaxObject+1), says: "5497558138880"},
		"sequence":       {key: "k", opts: guard.PutOptions{Sequence: -1}, says: "sequence"},
		"sequence 11":    {key: "k", opts: guard.PutOptions{Sequence: guard.MaxSequence + 1}, says: "sequence"},
		"encryption":     {key: "k", opts: guard.PutOptions{SSE: "rot13"}, says: "rot13"},
		"key id alone":   {key: "k", opts: guard.PutOptions{SSEKMSKeyID: "x"}, says: "KMS"},
		"own metadata":   {key: "k", opts: guard.PutOptions{Headers: guard.Headers{Metadata: map[string]string{guard.RecordKey: "x"}}}, says: "guard's own"},
		"metadata name":  {key: "k", opts: guard.PutOptions{Headers: guard.Headers{Metadata: map[string]string{"A b": "x"}}}, says: "name"},
		"metadata value": {key: "k", opts: guard.PutOptions{Headers: guard.Headers{Metadata: map[string]string{"a": "é"}}}, says: "ASCII"},
		"metadata space": {key: "k", opts: guard.PutOptions{Headers: guard.Headers{Metadata: map[string]string{"a": "x "}}}, says: "space"},
		"metadata size":  {key: "k", opts: guard.PutOptions{Headers: guard.Headers{Metadata: map[string]string{"a": strings.Repeat("x", 2000)}}}, says: "leaves"},
		"header newline": {key: "k", opts: guard.PutOptions{Headers: guard.Headers{CacheControl: "a\nb"}}, says: "cache control"},
	} {
		m := mems3.New()
		_, err := newGuard(m).Put(t.Context(), token(t, 1), tt.key, tt.body, &tt.opts)
		if !errors.Is(err, guard.ErrInvalid) || !strings.Contains(err.Error(), tt.says) || m.Puts+m.Heads != 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Many writers, tokens in any order, answers lost at random: the highest
// number that anybody was told succeeded is what stands in the end, and the
// numbers in the versions only rise.
func TestManyWriters(t *testing.T) {
	m := mems3.New()
	m.Bucket = guard.Settings{Versioning: guard.VersioningOn, DefaultSSE: "aws:kms"}
	var calls atomic.Int64
	m.After = func(op, _ string) error {
		if op == "put" && calls.Add(1)%3 == 0 {
			return errLost
		}
		return nil
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	done := make(map[int64]bool)
	for n := int64(1); n <= 64; n++ {
		wg.Go(func() {
			_, err := newGuard(m).Put(t.Context(), token(t, n), "k", guard.Bytes([]byte("same")), nil)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				done[n] = true
			} else if guard.ReasonOf(err) != guard.ErrStale {
				t.Errorf("%d: %v", n, err)
			}
		})
	}
	wg.Wait()
	var last int64
	written := make(map[int64]bool)
	for _, v := range m.Written("k") {
		r, err := guard.ParseRecord(v.Metadata[guard.RecordKey])
		if err != nil || r.Number <= last {
			t.Fatalf("%v after %d: %v", r, last, err)
		}
		last = r.Number
		written[last] = true
	}
	for n := range done {
		if !written[n] {
			t.Errorf("%d succeeded and is not among the versions", n)
		}
	}
	if last != 64 {
		t.Errorf("ends with %d", last)
	}
}

// stopsReading is a store that fails before it has read the whole body.
type stopsReading struct {
	*mems3.Store
	fail func() error
}

func (s stopsReading) Put(_ context.Context, _ string, req guard.PutRequest) (guard.PutResult, error) {
	r := req.Body.Reader()
	if _, err := io.CopyN(io.Discard, r, 3); err != nil {
		return guard.PutResult{}, err
	}
	err := s.fail()
	return guard.PutResult{}, err
}

// A request that never had the whole body can't land: it is no lost answer.
func TestBodyNotReadToTheEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	m := mems3.New()
	_, err := newGuard(stopsReading{m, func() error { cancel(); return ctx.Err() }}).Put(ctx, token(t, 1), "k", guard.Bytes([]byte("bytes")), nil)
	if !errors.Is(err, context.Canceled) || errors.Is(err, guard.ErrOutcomeUnknown) {
		t.Errorf("canceled: %v", err)
	}
	_, err = newGuard(stopsReading{m, func() error { return errLost }}).Put(t.Context(), token(t, 1), "k", guard.Bytes([]byte("bytes")), nil)
	if !errors.Is(err, guard.ErrNotSent) || errors.Is(err, guard.ErrOutcomeUnknown) {
		t.Errorf("reset: %v", err)
	}
	// The last byte was read: then it may have gone out.
	_, err = newGuard(stopsReading{m, func() error { return errLost }}).Put(t.Context(), token(t, 1), "k", guard.Bytes([]byte("byt")), nil)
	if !errors.Is(err, guard.ErrOutcomeUnknown) {
		t.Errorf("read to the end: %v", err)
	}
}

// What is remembered of an object must not stand for another one that has come
// to have the same ETag since.
func TestRepeatableETagsAreNotRemembered(t *testing.T) {
	m := mems3.New()
	g := newGuard(m)
	accept := &guard.PutOptions{AcceptRepeatableETag: true}
	mustPut(t, g, 1, "k", "A", nil)
	mustPut(t, newGuard(m), 7, "k", "A", accept)
	for _, opts := range []*guard.PutOptions{kms, accept} {
		_, err := g.Put(t.Context(), token(t, 2), "k", guard.Bytes([]byte("B")), opts)
		wantRefusal(t, err, guard.ErrStale)
	}
}

// Without a kept checksum, an MD5 ETag shows that the bytes differ.
func TestRunAgainWithOtherBytesAndNoChecksum(t *testing.T) {
	m := mems3.New()
	opts := &guard.PutOptions{WriteID: testWriteID}
	mustPut(t, newGuard(noChecksum{m}), 2, "k", "one", opts)
	mustPut(t, newGuard(noChecksum{m}), 2, "k", "one", opts)
	_, err := newGuard(noChecksum{m}).Put(t.Context(), token(t, 2), "k", guard.Bytes([]byte("two")), opts)
	wantRefusal(t, err, guard.ErrReplayed)
}

type noChecksum struct{ *mems3.Store }

func (s noChecksum) Head(ctx context.Context, key string, opts guard.HeadOptions) (guard.Object, error) {
	opts.Checksum = false
	return s.Store.Head(ctx, key, opts)
}

// slowSettings answers what the bucket is set to only when told.
type slowSettings struct {
	*mems3.Store
	asked, answer chan struct{}
}

func (s slowSettings) Settings(ctx context.Context) (guard.Settings, error) {
	close(s.asked)
	select {
	case <-s.answer:
	case <-ctx.Done():
		return guard.Settings{}, ctx.Err()
	}
	return s.Store.Settings(ctx)
}

// A write that needs no settings does not wait for one that is asking for them.
func TestNoWaitForAnothersSettings(t *testing.T) {
	m := slowSettings{mems3.New(), make(chan struct{}), make(chan struct{})}
	g := newGuard(m)
	mustPut(t, g, 1, "slow", "x", nil)
	end := make(chan error, 1)
	go func() {
		_, err := g.Put(t.Context(), token(t, 2), "slow", guard.Bytes(nil), nil)
		end <- err
	}()
	<-m.asked
	mustPut(t, g, 3, "quick", "x", nil)
	close(m.answer)
	wantRefusal(t, <-end, guard.ErrRepeatableETag)
}
