package guard

import (
	"testing"

	"pgregory.net/rapid"
)

func TestDecide(t *testing.T) {
	id, other := IssuerID{1}, IssuerID{2}
	rec := func(n, seq int64, w byte) Record {
		return Record{Issuer: id, Scope: "s", Number: n, Sequence: seq, WriteID: WriteID{w}, State: Live}
	}
	with := func(r Record, f func(*Record)) Record { f(&r); return r }
	at := func(r Record) sighting { return sighting{exists: true, etag: "e", record: r.String()} }
	mine := rec(5, 2, 9)
	for _, tt := range []struct {
		name   string
		offer  offer
		seen   sighting
		action action
		reason Reason
	}{
		{"nothing there", offer{record: mine}, sighting{}, create, ""},
		{"nothing there, create only", offer{record: mine, createOnly: true}, sighting{}, create, ""},
		{"nothing there, repeatable", offer{record: mine, repeatableETag: true}, sighting{}, create, ""},
		{"marker over a fenced version", offer{record: mine}, sighting{lost: &Record{Number: 1, Sequence: 1}}, refuse, ErrFenceLost},
		{"no record", offer{record: mine}, sighting{exists: true, etag: "e"}, refuse, ErrUnfenced},
		{"cut record", offer{record: mine}, sighting{exists: true, etag: "e", record: mine.String()[:60]}, refuse, ErrCorruptRecord},
		{"other scope", offer{record: mine}, at(with(rec(1, 1, 1), func(r *Record) { r.Scope = "t"; r.Issuer = other })), refuse, ErrScopeMismatch},
		{"other issuer, lower number", offer{record: mine}, at(with(rec(1, 1, 1), func(r *Record) { r.Issuer = other })), refuse, ErrIssuerMismatch},
		{"other issuer, higher number", offer{record: mine}, at(with(rec(9, 1, 1), func(r *Record) { r.Issuer = other })), refuse, ErrIssuerMismatch},
		{"other issuer, same write", offer{record: mine}, at(with(mine, func(r *Record) { r.Issuer = other })), refuse, ErrIssuerMismatch},
		{"higher number", offer{record: mine}, at(rec(6, 1, 1)), refuse, ErrStale},
		{"higher number, my write id", offer{record: mine}, at(rec(6, 1, 9)), refuse, ErrStale},
		{"same number, higher sequence", offer{record: mine}, at(rec(5, 3, 1)), refuse, ErrStale},
		{"same fence, other write", offer{record: mine}, at(rec(5, 2, 1)), refuse, ErrReplayed},
		{"same write", offer{record: mine}, at(mine), applied, ""},
		{"same write, create only", offer{record: mine, createOnly: true}, at(mine), applied, ""},
		{"same write, other bytes", offer{record: mine}, sighting{exists: true, etag: "e", record: mine.String(), differs: true}, refuse, ErrReplayed},
		{"same number, lower sequence", offer{record: mine}, at(rec(5, 1, 1)), replace, ""},
		{"lower number", offer{record: mine}, at(rec(4, 9, 1)), replace, ""},
		{"lower number, my write id", offer{record: mine}, at(rec(4, 9, 9)), replace, ""},
		{"lower number, repeatable", offer{record: mine, repeatableETag: true}, at(rec(4, 9, 1)), refuse, ErrRepeatableETag},
		{"higher number, repeatable", offer{record: mine, repeatableETag: true}, at(rec(6, 9, 1)), refuse, ErrStale},
		{"lower number, create only", offer{record: mine, createOnly: true}, at(rec(4, 9, 1)), refuse, ErrExists},
		{"tombstone, create only", offer{record: mine, createOnly: true}, at(with(rec(4, 9, 1), func(r *Record) { r.State = Deleted })), replace, ""},
		{"tombstone of a higher number", offer{record: mine}, at(with(rec(6, 1, 1), func(r *Record) { r.State = Deleted })), refuse, ErrStale},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := decide(tt.offer, tt.seen)
			if v.action != tt.action || v.reason != tt.reason {
				t.Errorf("got action %d reason %q, want %d %q", v.action, v.reason, tt.action, tt.reason)
			}
			if v.action == replace && v.etag != tt.seen.etag {
				t.Errorf("replace would match %q, seen was %q", v.etag, tt.seen.etag)
			}
		})
	}
}

// Whatever is observed, the verdicts keep the promise: an object is replaced
// only by a higher fence of its own issuer and scope, under its ETag, and
// created only where nothing is.
func TestDecideKeepsThePromise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gen := func(name string) Record {
			return Record{
				Issuer:   IssuerID{byte(rapid.IntRange(0, 1).Draw(t, name+" issuer"))},
				Scope:    rapid.SampledFrom([]string{"a", "b"}).Draw(t, name+" scope"),
				Number:   rapid.Int64Range(1, 3).Draw(t, name+" number"),
				Sequence: rapid.Int64Range(1, 3).Draw(t, name+" sequence"),
				WriteID:  WriteID{byte(rapid.IntRange(0, 2).Draw(t, name+" write"))},
				State:    rapid.SampledFrom([]State{Live, Deleted}).Draw(t, name+" state"),
			}
		}
		held := gen("held")
		o := offer{gen("offered"), rapid.Bool().Draw(t, "create only"), rapid.Bool().Draw(t, "repeatable")}
		s := sighting{exists: rapid.Bool().Draw(t, "exists"), etag: "e", differs: rapid.Bool().Draw(t, "differs")}
		text := rapid.SampledFrom([]string{"", held.String(), held.String()[1:]}).Draw(t, "text")
		if s.exists {
			s.record = text
		}
		switch v := decide(o, s); v.action {
		case create:
			if s.exists {
				t.Fatal("created over an object")
			}
		case replace:
			if s.record != held.String() || o.record.Fence().Compare(held.Fence()) <= 0 ||
				o.record.Issuer != held.Issuer || o.record.Scope != held.Scope || o.repeatableETag || v.etag != "e" {
				t.Fatalf("replaced %+v by %+v", held, o)
			}
		case applied:
			if s.record != held.String() || held.WriteID != o.record.WriteID || held.Fence() != o.record.Fence() || s.differs {
				t.Fatalf("took %+v for %+v", held, o)
			}
		case refuse:
			if v.reason == "" {
				t.Fatal("refused without a reason")
			}
			if !s.exists {
				t.Fatalf("refused as %s where nothing is", v.reason)
			}
		}
	})
}
