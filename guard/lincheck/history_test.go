package lincheck

import (
	"errors"
	"testing"

	"github.com/s3fence/s3fence/guard"
)

// Histories told by hand, and whether a fenced register allows them.
func TestRegister(t *testing.T) {
	rec := func(n int64, id byte) guard.Record {
		return guard.Record{Scope: "s", Number: n, Sequence: 1, WriteID: guard.WriteID{id}, State: guard.Live}
	}
	put := func(call, ret, n int64, outcome guard.Outcome, err error) *Op {
		return &Op{Call: call, Return: ret, Kind: "put", Offered: rec(n, byte(n)), Content: "x", Outcome: outcome, Err: err}
	}
	get := func(call, ret, n int64) *Op {
		if n == 0 {
			return &Op{Call: call, Return: ret, Kind: "get"}
		}
		r := rec(n, byte(n))
		return &Op{Call: call, Return: ret, Kind: "get", Found: true, Record: &r, Content: "x"}
	}
	refused := func(why guard.Reason, held int64, mayHave bool) error {
		r := &guard.Refusal{Reason: why, MayHaveApplied: mayHave}
		if held > 0 {
			h := rec(held, byte(held))
			r.Held = &h
		}
		return r
	}
	unknown := refused(guard.ErrOutcomeUnknown, 0, false)
	other := put(3, 4, 1, "", refused(guard.ErrReplayed, 1, false))
	other.Offered.WriteID = guard.WriteID{9}
	for _, tt := range []struct {
		name string
		ops  []*Op
		ok   bool
	}{
		{"one after the other", []*Op{put(1, 2, 1, guard.Created, nil), put(3, 4, 2, guard.Replaced, nil), get(5, 6, 2)}, true},
		{"two at once, the lower first", []*Op{put(1, 4, 2, guard.Replaced, nil), put(2, 3, 1, guard.Created, nil), get(5, 6, 2)}, true},
		{"a lower one over a higher", []*Op{put(1, 2, 2, guard.Created, nil), put(3, 4, 1, guard.Replaced, nil)}, false},
		{"the same number again", []*Op{put(1, 2, 1, guard.Created, nil), put(3, 4, 1, guard.Replaced, nil)}, false},
		{"created twice", []*Op{put(1, 2, 1, guard.Created, nil), put(3, 4, 2, guard.Created, nil)}, false},
		{"an old read", []*Op{put(1, 2, 1, guard.Created, nil), put(3, 4, 2, guard.Replaced, nil), get(5, 6, 1)}, false},
		{"a lost write", []*Op{put(1, 2, 1, guard.Created, nil), get(3, 4, 0)}, false},
		{"already applied", []*Op{put(1, 2, 1, guard.Created, nil), put(3, 4, 1, guard.AlreadyApplied, nil), get(5, 6, 1)}, true},
		{"already applied, but replaced before", []*Op{put(1, 2, 1, guard.Created, nil), put(3, 4, 2, guard.Replaced, nil), put(5, 6, 1, guard.AlreadyApplied, nil)}, false},
		{"stale", []*Op{put(1, 2, 2, guard.Created, nil), put(3, 4, 1, "", refused(guard.ErrStale, 2, false)), get(5, 6, 2)}, true},
		{"stale against nothing", []*Op{put(3, 4, 1, "", refused(guard.ErrStale, 2, false)), get(5, 6, 0)}, false},
		{"stale, and seen", []*Op{put(1, 9, 2, guard.Replaced, nil), put(2, 8, 1, "", refused(guard.ErrStale, 2, false)), get(3, 4, 1)}, false},
		{"stale, may have applied, and seen", []*Op{put(1, 9, 2, guard.Replaced, nil), put(2, 8, 1, "", refused(guard.ErrStale, 2, true)), get(3, 4, 1)}, true},
		{"stale, may have applied, and did not", []*Op{put(1, 9, 2, guard.Created, nil), put(2, 8, 1, "", refused(guard.ErrStale, 2, true)), get(3, 4, 2)}, true},
		{"replayed", []*Op{put(1, 2, 1, guard.Created, nil), other}, true},
		{"replayed against itself", []*Op{put(1, 2, 1, guard.Created, nil), put(3, 4, 1, "", refused(guard.ErrReplayed, 1, false))}, false},
		{"exists", []*Op{put(1, 2, 1, guard.Created, nil), put(3, 4, 2, "", refused(guard.ErrExists, 1, false)), get(5, 6, 1)}, true},
		{"unknown, never", []*Op{put(1, 2, 1, "", unknown), get(3, 4, 0), get(5, 6, 0)}, true},
		{"unknown, later", []*Op{put(1, 2, 1, "", unknown), get(3, 4, 0), get(5, 6, 1)}, true},
		{"unknown, there and gone", []*Op{put(1, 2, 1, "", unknown), get(3, 4, 1), get(5, 6, 0)}, false},
		{"unknown, over a higher", []*Op{put(1, 2, 1, "", unknown), put(3, 4, 2, guard.Created, nil), get(5, 6, 1)}, false},
		{"an error, and seen", []*Op{put(1, 2, 1, "", errors.New("denied")), get(3, 4, 1)}, false},
	} {
		h := &History{ops: tt.ops}
		if v := h.Check(nil); (v == nil) != tt.ok {
			t.Errorf("%s: allowed is %v, want %v", tt.name, v == nil, tt.ok)
		}
	}
}
