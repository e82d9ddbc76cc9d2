package audit

import (
	"context"
	"fmt"
	"strings"

	"github.com/s3fence/s3fence/guard"
)

// A counter is what two numbers must share to be compared.
type counter struct {
	issuer guard.IssuerID
	scope  string
}

// maxCounters bounds how many counters of one key are remembered. A key has
// one, and one more for each time that it was adopted from another.
const maxCounters = 64

// A keyState is what is remembered of a key while its versions come by, from
// the newest to the oldest.
type keyState struct {
	key, url string
	own      string // what it is called under .s3fence/, "" for others
	versions int64

	newer    *fenced // the last fenced version that came by
	counters map[counter]*fenced

	unfenced run // versions without a record, since the last one that had one
	deleted  run // delete markers, since then
	shown    shown
}

// fenced is a version that has a record.
type fenced struct {
	record  guard.Record
	version string
	above   bool // it was told already that its counter has not given such a number
}

// A run is versions that are alike.
type run struct {
	n      int64
	newest bool   // the key's newest version is among them
	first  string // the version that came by first: the newest of the run
	last   string
}

func (r *run) add(id string, newest bool) {
	if r.n == 0 {
		r.first = id
	}
	r.n++
	r.last = id
	r.newest = r.newest || newest
}

func newKeyState(key, url string, shows bool) *keyState {
	return &keyState{key: key, url: url, own: ownName(key), counters: make(map[counter]*fenced, 1), shown: shown{on: shows, h: History{Key: key, URL: url}}}
}

// ownName is what one of s3fence's own objects is called under .s3fence/.
func ownName(key string) string {
	if i := strings.Index("/"+key, "/"+guard.OwnPrefix); i >= 0 {
		return key[i+len(guard.OwnPrefix):]
	}
	return ""
}

// needsNone reports whether the guard makes no record for one of our own.
func needsNone(own string) bool {
	return own != "" && own != "profile.json" && !strings.HasPrefix(own, "scopes/")
}

func (a *auditor) about(id string, kind Kind, severity Severity, format string, args ...any) Finding {
	return Finding{
		Kind: kind, Severity: severity, Key: a.key.key, URL: a.key.url, VersionID: id,
		Detail: fmt.Sprintf(format, args...),
	}
}

// version looks at one version of the key under way.
func (a *auditor) version(ctx context.Context, e entry) error {
	k := a.key
	newest := k.versions == 0
	k.versions++
	k.shown.add(e)
	switch {
	case e.DeleteMarker:
		k.deleted.add(e.ID, newest)
		return nil
	case e.err != nil:
		return a.found(a.about(e.ID, Unreadable, Warning, "the store does not show it: %v", e.err))
	case strings.HasPrefix(k.own, "probe-"):
		if !newest {
			return nil
		}
		return a.found(a.about(e.ID, Unfenced, Info, "it was left behind by doctor: remove it"))
	case e.text == "":
		k.unfenced.add(e.ID, newest)
		return nil
	}
	r, err := guard.ParseRecord(e.text)
	if err != nil {
		if err := a.closeRuns(&fenced{version: e.ID}); err != nil {
			return err
		}
		k.shown.corrupt()
		return a.found(a.about(e.ID, CorruptRecord, Violation, "%v", err))
	}
	k.shown.record(r)
	f := &fenced{record: r, version: e.ID}
	if err := a.closeRuns(f); err != nil {
		return err
	}
	if newest {
		if err := a.newest(f); err != nil {
			return err
		}
	}
	if err := a.compare(f); err != nil {
		return err
	}
	return a.count(ctx, f, newest)
}

// newest tells what can only be told of what is the object now.
func (a *auditor) newest(f *fenced) error {
	k, r := a.key, f.record
	if name, ok := strings.CutPrefix(k.own, "scopes/"); ok && guard.ScopeFenceKey("", r.Scope) != guard.OwnPrefix+"scopes/"+name {
		t := a.about(f.version, MixedScope, Violation, "it should be the fence of another scope, and is that of scope %s", r.Scope)
		t.Record = &r
		return a.found(t)
	}
	if r.State != guard.Deleted {
		return nil
	}
	t := a.about(f.version, Tombstone, Info, "deleted with token %s (scope %s)", r.Fence(), r.Scope)
	t.Record = &r
	return a.found(t)
}

// compare holds a version against the newer ones of its key.
func (a *auditor) compare(f *fenced) error {
	k, r := a.key, f.record
	of := counter{r.Issuer, r.Scope}
	same := k.counters[of]
	if n := k.newer; n != nil && (n.record.Scope != r.Scope || n.record.Issuer != r.Issuer) {
		t := a.about(n.version, MixedIssuer, Warning, "token %s of issuer %s stands over token %s of issuer %s (scope %s)",
			n.record.Fence(), n.record.Issuer, r.Fence(), r.Issuer, r.Scope)
		if n.record.Scope != r.Scope {
			t = a.about(n.version, MixedScope, Warning, "token %s of scope %s stands over token %s of scope %s",
				n.record.Fence(), n.record.Scope, r.Fence(), r.Scope)
		}
		t.Record, t.Other = &n.record, &r
		if same != nil {
			t.Severity = Violation
			t.Detail += ", which then came back"
		} else {
			t.Detail += ": was it adopted?"
		}
		if err := a.found(t); err != nil {
			return err
		}
	}
	k.newer = f
	switch {
	case same != nil:
		f.above = same.above
		if err := a.order(same, f); err != nil {
			return err
		}
	case len(k.counters) >= maxCounters:
		return nil
	}
	k.counters[of] = f
	return nil
}

// order looks whether the numbers of one counter went up.
func (a *auditor) order(newer, older *fenced) error {
	n, o := newer.record, older.record
	var t Finding
	switch order := n.Fence().Compare(o.Fence()); {
	case order > 0:
		return nil
	case order < 0:
		t = a.about(newer.version, WentDown, Violation, "the number went down: %s was written after %s (scope %s)", n.Fence(), o.Fence(), n.Scope)
	case n == o:
		t = a.about(newer.version, SameNumber, Warning, "the write with token %s (scope %s) stands here twice: it was copied around the guard", n.Fence(), n.Scope)
	default:
		t = a.about(newer.version, SameNumber, Violation, "two writes have token %s (scope %s): %s and %s", n.Fence(), n.Scope, o.WriteID, n.WriteID)
	}
	t.Record, t.Other = &n, &o
	return a.found(t)
}

// isData reports whether r is of the only write that the key of a published
// file ever gets. With it goes no number that anybody could need.
func isData(key string, r *guard.Record) bool {
	number, id, ok := guard.DataKey(key)
	return ok && r != nil && r.Number == number && r.WriteID == id
}

// closeRuns ends what came by since the last version that had a record, at the
// next one, or at the end of the key, when under is nil.
func (a *auditor) closeRuns(under *fenced) error {
	k := a.key
	u, d := k.unfenced, k.deleted
	k.unfenced, k.deleted = run{}, run{}
	var other *guard.Record
	beneath := "one whose record is corrupt"
	if under != nil && under.record.Number > 0 {
		other = &under.record
		beneath = fmt.Sprintf("token %s (scope %s)", other.Fence(), other.Scope)
	}
	if d.n > 0 && under != nil {
		t := a.about(d.last, FenceLost, Violation, "it was deleted around the guard, and the number with it: %s", beneath)
		if d.n > 1 {
			t.Detail += fmt.Sprintf("; %d delete markers lie over it", d.n)
		}
		switch {
		case isData(k.key, other):
			t.Severity, t.Detail = Info, fmt.Sprintf("a file of a published set was removed, as publish gc does: %s", beneath)
		case !d.newest:
			t.Severity = Warning
			t.Detail += "; it was written again since"
		}
		t.Other = other
		if err := a.found(t); err != nil {
			return err
		}
	}
	if u.n == 0 {
		return nil
	}
	t := a.about(u.first, Unfenced, Violation, "it carries no fence record: anybody's write may replace it")
	switch {
	case needsNone(k.own):
		t.Severity, t.Detail = Info, "it carries no fence record, and needs none"
	case u.newest && under != nil:
		t.Detail = "it was written over around the guard, and the number is lost: " + beneath
	case u.newest:
	case under != nil:
		t.Severity, t.Detail = Warning, "it was written over around the guard, and is under it again since; below is "+beneath
	default:
		t.Severity, t.Detail = Info, "it is from before the key was adopted"
		if k.newer == nil {
			t.Detail = "it was never fenced, and is deleted"
		}
	}
	if u.n > 1 {
		t.Detail += fmt.Sprintf(" (%d versions, to %s)", u.n, u.last)
	}
	t.Other = other
	return a.found(t)
}
