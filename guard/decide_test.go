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
	dead := func(n int64) Record { return with(rec(n, 1, 1), func(r *Record) { r.State = Deleted }) }
	gone := with(mine, func(r *Record) { r.State = Deleted })
	four, five, six := rec(4, 1, 1), rec(5, 2, 1), rec(6, 1, 1)
	foreign := with(rec(9, 1, 1), func(r *Record) { r.Issuer = other })
	setBack := func(s sighting, lost *Record) sighting { s.lost = lost; return s }
	claimed := func(s sighting, c *Record) sighting { s.claim = c; return s }
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

		{"delete, nothing there", offer{record: gone, kind: deleting}, sighting{}, missing, ""},
		{"delete even so", offer{record: gone, kind: deleting, evenAbsent: true}, sighting{}, create, ""},
		{"delete, lower number", offer{record: gone, kind: deleting}, at(rec(4, 1, 1)), replace, ""},
		{"delete, higher number", offer{record: gone, kind: deleting}, at(rec(6, 1, 1)), refuse, ErrStale},
		{"delete, same write put it", offer{record: gone, kind: deleting}, at(mine), refuse, ErrReplayed},
		{"delete, applied", offer{record: gone, kind: deleting}, at(gone), applied, ""},
		{"delete, deleted already", offer{record: gone, kind: deleting}, at(dead(4)), missing, ""},
		{"delete, deleted already, even so", offer{record: gone, kind: deleting, evenAbsent: true}, at(dead(4)), replace, ""},
		{"delete, deleted by a newer owner", offer{record: gone, kind: deleting}, at(dead(6)), refuse, ErrStale},
		{"delete, unfenced", offer{record: gone, kind: deleting}, sighting{exists: true, etag: "e"}, refuse, ErrUnfenced},
		{"put, the same write deleted it", offer{record: mine}, at(gone), refuse, ErrReplayed},

		{"adopt, nothing there", offer{record: mine, kind: adopting}, sighting{}, missing, ""},
		{"adopt, unfenced", offer{record: mine, kind: adopting}, sighting{exists: true, etag: "e"}, replace, ""},
		{"adopt, unfenced, repeatable", offer{record: mine, kind: adopting, repeatableETag: true}, sighting{exists: true, etag: "e"}, replace, ""},
		{"adopt, fenced", offer{record: mine, kind: adopting}, at(rec(4, 1, 1)), fenced, ""},
		{"adopt, fenced with a higher number", offer{record: mine, kind: adopting}, at(rec(6, 1, 1)), fenced, ""},
		{"adopt, applied", offer{record: mine, kind: adopting}, at(mine), applied, ""},
		{"adopt, corrupt", offer{record: mine, kind: adopting}, sighting{exists: true, etag: "e", record: "48"}, refuse, ErrCorruptRecord},
		{"adopt, other issuer", offer{record: mine, kind: adopting}, at(foreign), refuse, ErrIssuerMismatch},
		{"adopt, other issuer, named", offer{record: mine, kind: adopting, from: other}, at(foreign), replace, ""},
		{"adopt, other issuer, named, repeatable", offer{record: mine, kind: adopting, from: other, repeatableETag: true}, at(foreign), refuse, ErrRepeatableETag},
		{"adopt, other issuer than named", offer{record: mine, kind: adopting, from: IssuerID{3}}, at(foreign), refuse, ErrIssuerMismatch},
		{"adopt, own issuer named", offer{record: mine, kind: adopting, from: id}, at(rec(4, 1, 1)), fenced, ""},
		{"put, other issuer named", offer{record: mine, from: other}, at(foreign), refuse, ErrIssuerMismatch},
		{"adopt, lost", offer{record: mine, kind: adopting}, sighting{lost: &four}, refuse, ErrFenceLost},
		{"adopt, unfenced over a lower number", offer{record: mine, kind: adopting}, setBack(sighting{exists: true, etag: "e"}, &four), replace, ""},
		{"adopt, unfenced over a higher number", offer{record: mine, kind: adopting}, setBack(sighting{exists: true, etag: "e"}, &six), refuse, ErrStale},
		{"recover what is gone", offer{record: mine, kind: adopting, recover: true}, sighting{lost: &four}, create, ""},
		{"recover what is gone, repeatable", offer{record: mine, kind: adopting, recover: true, repeatableETag: true}, sighting{lost: &four}, create, ""},
		{"recover with a lower number", offer{record: mine, kind: adopting, recover: true}, sighting{lost: &six}, refuse, ErrStale},
		{"recover with the same number", offer{record: mine, kind: adopting, recover: true}, sighting{lost: &five}, refuse, ErrReplayed},
		{"recover what was set back", offer{record: mine, kind: adopting, recover: true}, setBack(at(rec(1, 1, 1)), &four), replace, ""},
		{"recover what was set back, repeatable", offer{record: mine, kind: adopting, recover: true, repeatableETag: true}, setBack(at(rec(1, 1, 1)), &four), refuse, ErrRepeatableETag},
		{"recover nothing lost", offer{record: mine, kind: adopting, recover: true}, at(rec(4, 1, 1)), fenced, ""},
		{"put over what was set back", offer{record: mine}, setBack(at(rec(1, 1, 1)), &four), refuse, ErrFenceLost},

		{"claimed by a newer owner, nothing there", offer{record: mine}, sighting{claim: &six}, refuse, ErrStale},
		{"claimed by a newer owner, lower number there", offer{record: mine}, claimed(at(rec(4, 1, 1)), &six), refuse, ErrStale},
		{"claimed by a newer owner, delete", offer{record: gone, kind: deleting}, claimed(at(rec(4, 1, 1)), &six), refuse, ErrStale},
		{"claimed by a newer owner, adopt", offer{record: mine, kind: adopting}, claimed(sighting{exists: true, etag: "e"}, &six), refuse, ErrStale},
		{"claimed by a newer owner, applied before", offer{record: mine}, claimed(at(mine), &six), applied, ""},
		{"claimed by this owner", offer{record: mine}, sighting{claim: &five}, create, ""},
		{"claimed by an older owner", offer{record: mine}, sighting{claim: &four}, create, ""},
		{"claimed by another counter", offer{record: mine}, sighting{claim: &foreign}, refuse, ErrIssuerMismatch},
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
		o := offer{
			record: gen("offered"), kind: rapid.SampledFrom([]kind{putting, deleting, adopting}).Draw(t, "kind"),
			createOnly: rapid.Bool().Draw(t, "create only"), repeatableETag: rapid.Bool().Draw(t, "repeatable"),
			evenAbsent: rapid.Bool().Draw(t, "even absent"), recover: rapid.Bool().Draw(t, "recover"),
			from: IssuerID{byte(rapid.IntRange(0, 2).Draw(t, "from"))},
		}
		s := sighting{exists: rapid.Bool().Draw(t, "exists"), etag: "e", differs: rapid.Bool().Draw(t, "differs")}
		if rapid.Bool().Draw(t, "claimed") {
			c := gen("claim")
			s.claim = &c
		}
		if rapid.Bool().Draw(t, "something lost") {
			l := gen("lost")
			s.lost = &l
		}
		text := rapid.SampledFrom([]string{"", held.String(), held.String()[1:]}).Draw(t, "text")
		if s.exists {
			s.record = text
		}
		above := func(r Record) bool {
			return o.record.sameCounter(r) && o.record.Fence().Compare(r.Fence()) > 0 ||
				o.kind == adopting && r.Issuer == o.from && !o.record.sameCounter(r)
		}
		v := decide(o, s)
		if v.action == create || v.action == replace {
			if c := s.claim; c != nil && (c.Issuer != o.record.Issuer || c.Number > o.record.Number) {
				t.Fatalf("%+v passed the claim %+v", o, c)
			}
			rescue := o.kind == adopting && (o.recover || s.exists && s.record == "")
			if s.lost != nil && (!rescue || !above(*s.lost)) {
				t.Fatalf("%+v passed over what was lost, %+v", o, s.lost)
			}
		}
		switch v.action {
		case create:
			if s.exists || o.kind == adopting && s.lost == nil {
				t.Fatalf("created by %+v over %+v", o, s)
			}
		case replace:
			switch {
			case !s.exists || v.etag != "e":
				t.Fatalf("replaced %+v under %q", s, v.etag)
			case s.lost != nil: // above
			case s.record == "":
				if o.kind != adopting {
					t.Fatalf("replaced what is not fenced by %+v", o)
				}
			case s.record != held.String() || !above(held) || o.repeatableETag:
				t.Fatalf("replaced %+v by %+v", held, o)
			}
		case applied:
			if r := held; s.lost == nil && (s.record != r.String() || r.WriteID != o.record.WriteID || r.Fence() != o.record.Fence() || s.differs) {
				t.Fatalf("took %+v for %+v", held, o)
			}
		case missing:
			if s.exists && (o.kind != deleting || held.State != Deleted) {
				t.Fatalf("%+v took %+v for nothing", o, s)
			}
		case fenced:
			if o.kind != adopting || !s.exists || !held.sameCounter(o.record) {
				t.Fatalf("%+v took %+v for fenced", o, held)
			}
		case refuse:
			if v.reason == "" {
				t.Fatal("refused without a reason")
			}
			if !s.exists && s.lost == nil && s.claim == nil {
				t.Fatalf("refused as %s where nothing is", v.reason)
			}
		}
	})
}
