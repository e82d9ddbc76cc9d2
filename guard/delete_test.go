package guard_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/internal/mems3"
)

func mustDelete(t *testing.T, g *guard.Guard, n int64, key string, opts *guard.DeleteOptions) guard.Result {
	t.Helper()
	res, err := g.Delete(t.Context(), token(t, n), key, opts)
	if err != nil {
		t.Fatalf("delete %d: %v", n, err)
	}
	return res
}

func TestDeleteLeavesATombstone(t *testing.T) {
	m := mems3.New() // MD5 ETags: the tombstone's bytes keep to the ETag rule
	mustPut(t, newGuard(m), 5, "k", "five", nil)
	res := mustDelete(t, newGuard(m), 6, "k", nil)
	if res.Outcome != guard.Removed || res.Previous.Number != 5 || res.Record.State != guard.Deleted || res.ETagKind != guard.ETagUnique || res.Requests != 2 {
		t.Errorf("%+v", res)
	}
	var body map[string]any
	if err := json.Unmarshal([]byte(m.Body("k")), &body); err != nil || body["write_id"] != res.Record.WriteID.String() || body["token"] != 6.0 {
		t.Errorf("tombstone %q: %v", m.Body("k"), err)
	}
	if _, _, err := newGuard(m).Get(t.Context(), "k", nil); !errors.Is(err, guard.ErrNotFound) {
		t.Errorf("get: %v", err)
	}
	for n, reason := range map[int64]guard.Reason{5: guard.ErrStale, 6: guard.ErrReplayed} {
		_, err := newGuard(m).Put(t.Context(), token(t, n), "k", guard.Bytes(nil), kms)
		wantRefusal(t, err, reason)
		_, err = newGuard(m).Delete(t.Context(), token(t, n), "k", nil)
		wantRefusal(t, err, reason)
	}
	// A higher number finds nothing to delete, and may write.
	_, err := newGuard(m).Delete(t.Context(), token(t, 7), "k", nil)
	if !errors.Is(err, guard.ErrNotFound) || guard.ReasonOf(err) != "" || !strings.Contains(err.Error(), "deleted already, with token 6") {
		t.Errorf("delete again: %v", err)
	}
	if res := mustPut(t, newGuard(m), 7, "k", "seven", kms); res.Outcome != guard.Replaced || m.Body("k") != "seven" {
		t.Errorf("%+v, %q", res, m.Body("k"))
	}
}

func TestDeleteOfNothing(t *testing.T) {
	m := mems3.New()
	if _, err := newGuard(m).Delete(t.Context(), token(t, 5), "k", nil); !errors.Is(err, guard.ErrNotFound) || m.Puts != 0 {
		t.Errorf("%v, %d puts", err, m.Puts)
	}
	absent := &guard.DeleteOptions{Absent: true}
	mustDelete(t, newGuard(m), 5, "k", absent)
	_, err := newGuard(m).Put(t.Context(), token(t, 4), "k", guard.Bytes(nil), nil)
	wantRefusal(t, err, guard.ErrStale)
	mustDelete(t, newGuard(m), 6, "k", absent) // raises the number
	_, err = newGuard(m).Put(t.Context(), token(t, 5), "k", guard.Bytes(nil), nil)
	wantRefusal(t, err, guard.ErrStale)
}

func TestDeleteRefusesWhatIsNotFenced(t *testing.T) {
	m := mems3.New()
	m.Overwrite("k", "theirs", nil)
	_, err := newGuard(m).Delete(t.Context(), token(t, 5), "k", nil)
	if r := wantRefusal(t, err, guard.ErrUnfenced); !strings.Contains(r.Cures[0], "adopt") {
		t.Errorf("%+v", r)
	}
	if m.Body("k") != "theirs" {
		t.Errorf("holds %q", m.Body("k"))
	}
}

// Case 1 for a delete: its answer is lost, and the object tells.
func TestDeleteLostAnswer(t *testing.T) {
	m := mems3.New()
	mustPut(t, newGuard(m), 5, "k", "five", nil)
	m.After = once("put", 1, errLost)
	id := guard.WriteID{9}
	if res := mustDelete(t, newGuard(m), 6, "k", &guard.DeleteOptions{WriteID: id}); res.Outcome != guard.AlreadyApplied || m.Puts != 2 {
		t.Errorf("%+v after %d puts", res, m.Puts)
	}
	if res := mustDelete(t, newGuard(m), 6, "k", &guard.DeleteOptions{WriteID: id}); res.Outcome != guard.AlreadyApplied {
		t.Errorf("run again: %+v", res)
	}
}

// A writer that saw the object before a delete and a put must not pass, even
// with the bytes that were there.
func TestDeleteSameBytes(t *testing.T) {
	m := mems3.New()
	mustPut(t, newGuard(m), 5, "k", "x", nil)
	paused := false
	m.Before = func(op, _ string) error {
		if op == "put" && !paused {
			paused = true
			mustDelete(t, newGuard(m), 7, "k", nil)
		}
		return nil
	}
	_, err := newGuard(m).Put(t.Context(), token(t, 6), "k", guard.Bytes([]byte("x")), &guard.PutOptions{AcceptRepeatableETag: true})
	wantRefusal(t, err, guard.ErrStale)
}

func TestDeleteDryRun(t *testing.T) {
	m := mems3.New()
	mustPut(t, newGuard(m), 5, "k", "five", nil)
	if res := mustDelete(t, newGuard(m), 6, "k", &guard.DeleteOptions{DryRun: true}); res.Outcome != guard.Removed || m.Body("k") != "five" {
		t.Errorf("%+v, %q", res, m.Body("k"))
	}
}
