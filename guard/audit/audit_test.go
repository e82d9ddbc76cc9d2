package audit_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/audit"
	"github.com/s3fence/s3fence/guard/internal/mems3"
)

var (
	issuer = guard.IssuerID{0x8c, 0x1d, 0x0f, 0x2a, 0xb6, 0x4e, 0x97, 0xd3}
	second = guard.IssuerID{0x22}
	kms    = &guard.PutOptions{SSE: "aws:kms"}
)

const scope = "nightly/report"

func bucket(v guard.Versioning) *mems3.Store {
	m := mems3.New()
	m.Bucket.Versioning = v
	return m
}

func newGuard(m *mems3.Store) *guard.Guard { return guard.New(m, nil) }

func token(t testing.TB, id guard.IssuerID, scope string, n int64) guard.Token {
	t.Helper()
	tok, err := guard.NewToken(id, scope, n)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func mustPut(t testing.TB, m *mems3.Store, key string, n int64) {
	t.Helper()
	if _, err := newGuard(m).Put(t.Context(), token(t, issuer, scope, n), key, guard.Bytes([]byte("guarded")), kms); err != nil {
		t.Fatal(err)
	}
}

func record(n int64) guard.Record {
	return guard.Record{Issuer: issuer, Scope: scope, Number: n, Sequence: 1, WriteID: guard.WriteID{15: byte(n)}, State: guard.Live}
}

// plant writes around the guard, with a record.
func plant(m *mems3.Store, key string, r guard.Record) {
	m.Overwrite(key, "planted "+r.String(), map[string]string{guard.RecordKey: r.String()})
}

// run audits and returns the findings.
func run(t testing.TB, s guard.Store, o audit.Options) (audit.Summary, []audit.Finding) {
	t.Helper()
	var fs []audit.Finding
	if o.Backoff == nil {
		o.Backoff = func(int) time.Duration { return 0 }
	}
	sum, err := audit.Run(t.Context(), s, &o, func(f audit.Finding) error {
		fs = append(fs, f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !sum.Complete {
		t.Error("not complete")
	}
	return sum, fs
}

func kinds(fs []audit.Finding) string {
	var ks []string
	for _, f := range fs {
		ks = append(ks, fmt.Sprintf("%s %s", f.Severity, f.Kind))
	}
	return strings.Join(ks, ", ")
}

// Each tampering is found as what it is, and as nothing else.
func TestKinds(t *testing.T) {
	with := func(change func(*guard.Record)) func(*mems3.Store) {
		return func(m *mems3.Store) {
			r := record(60)
			change(&r)
			plant(m, "k", r)
		}
	}
	for name, tt := range map[string]struct {
		plant  func(m *mems3.Store)
		want   string
		detail string
		newest string // where only the newest versions are there to see; want if ""
	}{
		"nothing": {plant: func(*mems3.Store) {}},
		"never fenced": {
			plant:  func(m *mems3.Store) { m.Overwrite("other", "x", nil) },
			want:   "violation unfenced",
			detail: "it carries no fence record: anybody's write may replace it",
		},
		"written over": {
			plant:  func(m *mems3.Store) { m.Overwrite("k", "x", nil); m.Overwrite("k", "y", nil) },
			want:   "violation unfenced",
			detail: "it was written over around the guard, and the number is lost: token 49 (scope nightly/report) (2 versions, to 3)",
		},
		"record edited": {
			plant: func(m *mems3.Store) {
				m.Overwrite("k", "x", map[string]string{guard.RecordKey: record(60).String()[1:]})
			},
			want:   "violation corrupt-record",
			detail: `corrupt fence record: does not begin with "r1:"`,
		},
		"went down": {
			plant:  func(m *mems3.Store) { plant(m, "k", record(47)) },
			want:   "violation number-went-down",
			detail: "the number went down: 47 was written after 49 (scope nightly/report)",
			newest: "none",
		},
		"sequence went down": {
			plant: func(m *mems3.Store) {
				r := record(60)
				r.Sequence = 3
				plant(m, "k", r)
				r.Sequence = 2
				plant(m, "k", r)
			},
			want:   "violation number-went-down",
			detail: "the number went down: 60.2 was written after 60.3 (scope nightly/report)",
			newest: "none",
		},
		"same number": {
			plant:  func(m *mems3.Store) { plant(m, "k", record(49)) },
			want:   "violation same-number",
			newest: "none",
		},
		"copied": {
			plant: func(m *mems3.Store) {
				ws := m.Written("k")
				m.Overwrite("k", "guarded", ws[len(ws)-1].Metadata)
			},
			want:   "warning same-number",
			detail: "the write with token 49 (scope nightly/report) stands here twice: it was copied around the guard",
			newest: "none",
		},
		"another issuer": {
			plant:  with(func(r *guard.Record) { r.Issuer = second }),
			want:   "warning mixed-issuer",
			newest: "none",
		},
		"an issuer comes back": {
			plant: func(m *mems3.Store) {
				with(func(r *guard.Record) { r.Issuer = second })(m)
				plant(m, "k", record(61))
			},
			want:   "warning mixed-issuer, violation mixed-issuer",
			newest: "none",
		},
		"another scope": {
			plant:  with(func(r *guard.Record) { r.Issuer, r.Scope = second, "other" }),
			want:   "warning mixed-scope",
			newest: "none",
		},
		"a scope comes back": {
			plant: func(m *mems3.Store) {
				with(func(r *guard.Record) { r.Issuer, r.Scope = second, "other" })(m)
				plant(m, "k", record(61))
			},
			want:   "warning mixed-scope, violation mixed-scope",
			newest: "none",
		},
		"deleted": {
			plant:  func(m *mems3.Store) { m.Remove("k") },
			want:   "violation fence-lost",
			detail: "it was deleted around the guard, and the number with it: token 49 (scope nightly/report)",
			newest: "none",
		},
		"deleted twice": {
			plant:  func(m *mems3.Store) { m.Remove("k"); m.Remove("k") },
			want:   "violation fence-lost",
			detail: "it was deleted around the guard, and the number with it: token 49 (scope nightly/report); 2 delete markers lie over it",
			newest: "none",
		},
		"deleted and written again": {
			plant:  func(m *mems3.Store) { m.Remove("k"); plant(m, "k", record(60)) },
			want:   "warning fence-lost",
			newest: "none",
		},
		"deleted and set back": {
			plant:  func(m *mems3.Store) { m.Remove("k"); plant(m, "k", record(3)) },
			want:   "warning fence-lost, violation number-went-down",
			newest: "none",
		},
		"written over and deleted": {
			plant:  func(m *mems3.Store) { m.Overwrite("k", "x", nil); m.Remove("k") },
			want:   "violation fence-lost, warning unfenced",
			newest: "none",
		},
		"went down under an overwriting": {
			plant: func(m *mems3.Store) { m.Overwrite("k", "x", nil); plant(m, "k", record(48)) },
			want:  "warning unfenced, violation number-went-down", newest: "none",
		},
		"never fenced and deleted": {
			plant:  func(m *mems3.Store) { m.Overwrite("other", "x", nil); m.Remove("other") },
			want:   "info unfenced",
			newest: "none",
		},
		"another scope's fence": {
			plant:  func(m *mems3.Store) { plant(m, ".s3fence/scopes/other.json", record(60)) },
			want:   "violation mixed-scope",
			detail: "it should be the fence of another scope, and is that of scope nightly/report",
		},
		"an unfenced scope fence":     {plant: func(m *mems3.Store) { m.Overwrite("p/.s3fence/scopes/other.json", "x", nil) }, want: "violation unfenced"},
		"an unfenced profile":         {plant: func(m *mems3.Store) { m.Overwrite(".s3fence/profile.json", "x", nil) }, want: "violation unfenced"},
		"own, without a record":       {plant: func(m *mems3.Store) { m.Overwrite("p/.s3fence/notes", "x", nil) }, want: "info unfenced"},
		"left by doctor":              {plant: func(m *mems3.Store) { plant(m, ".s3fence/probe-1/x", record(1)) }, want: "info unfenced"},
		"not own, though it looks so": {plant: func(m *mems3.Store) { m.Overwrite("x.s3fence/notes", "x", nil) }, want: "violation unfenced"},
	} {
		for _, lists := range []bool{true, false} {
			for _, v := range []guard.Versioning{guard.VersioningOn, guard.VersioningOff} {
				m := bucket(v)
				m.ListsMetadata = lists
				mustPut(t, m, "k", 48)
				mustPut(t, m, "k", 49)
				tt.plant(m)
				sum, fs := run(t, m, audit.Options{})
				want := tt.want
				if v == guard.VersioningOff {
					if tt.newest == "none" {
						want = ""
					} else if tt.newest != "" {
						want = tt.newest
					}
				}
				if got := kinds(fs); got != want {
					t.Errorf("%s (lists %t, versioning %d): found %q, want %q", name, lists, v, got, want)
					continue
				}
				if tt.detail != "" && v == guard.VersioningOn && fs[0].Detail != tt.detail {
					t.Errorf("%s: %q", name, fs[0].Detail)
				}
				if lists && sum.Heads != 0 || !lists && sum.Heads == 0 && sum.Versions > 0 || sum.WithVersions != (v == guard.VersioningOn) {
					t.Errorf("%s: %+v", name, sum)
				}
				total := int64(0)
				for _, n := range sum.Findings {
					total += n
				}
				if total != int64(len(fs)) || sum.Violations+sum.Warnings+sum.Infos != total {
					t.Errorf("%s: %+v with %d findings", name, sum, len(fs))
				}
			}
		}
	}
}

// What a finding names.
func TestFinding(t *testing.T) {
	m := bucket(guard.VersioningOn)
	mustPut(t, m, "k", 49)
	plant(m, "k", record(47))
	_, fs := run(t, m, audit.Options{})
	f := fs[0]
	if len(fs) != 1 || f.VersionID != "2" || *f.Record != record(47) || f.Other.Number != 49 || f.Key != "k" {
		t.Errorf("%+v", f)
	}
	if want := "violation: number-went-down: s3://mem/k (version 2): the number went down: 47 was written after 49 (scope nightly/report)"; f.String() != want {
		t.Errorf("%s", f)
	}
}

func adopt(t testing.TB, m *mems3.Store, tok guard.Token, key string, o *guard.AdoptOptions) {
	t.Helper()
	if _, err := newGuard(m).Adopt(t.Context(), tok, key, o); err != nil {
		t.Fatal(err)
	}
}

func TestAdopted(t *testing.T) {
	m := bucket(guard.VersioningOn)
	m.Overwrite("k", "theirs", nil)
	adopt(t, m, token(t, issuer, scope, 5), "k", nil)
	if _, fs := run(t, m, audit.Options{}); kinds(fs) != "info unfenced" || fs[0].Detail != "it is from before the key was adopted" {
		t.Errorf("adopted: %v", fs)
	}
	adopt(t, m, token(t, second, scope, 2), "k", &guard.AdoptOptions{From: issuer, SSE: "aws:kms"})
	if _, fs := run(t, m, audit.Options{}); kinds(fs) != "warning mixed-issuer, info unfenced" {
		t.Errorf("adopted from another issuer: %v", fs)
	}
	m.Remove("k")
	if _, fs := run(t, m, audit.Options{}); !strings.HasPrefix(kinds(fs), "violation fence-lost") {
		t.Errorf("removed: %v", fs)
	}
	adopt(t, m, token(t, second, scope, 3), "k", &guard.AdoptOptions{Recover: true})
	if sum, fs := run(t, m, audit.Options{}); sum.Violations != 0 || fs[0].Kind != audit.FenceLost {
		t.Errorf("recovered: %v", fs)
	}
}

// counters are what the issuer of each scope is and has given.
type counters map[string]*struct {
	id    guard.IssuerID
	n     int64
	asked int
}

func (c counters) counter(_ context.Context, scope string) (guard.IssuerID, int64, error) {
	s := c[scope]
	if s == nil {
		return guard.IssuerID{}, 0, fmt.Errorf("%w: no such scope", guard.ErrIssuerRefuses)
	}
	s.asked++
	return s.id, s.n, nil
}

func newCounters() counters {
	c := make(counters)
	c[scope] = &struct {
		id    guard.IssuerID
		n     int64
		asked int
	}{id: issuer}
	return c
}

func TestCounter(t *testing.T) {
	m := bucket(guard.VersioningOn)
	for n := range int64(3) {
		mustPut(t, m, "a", 10*n+10)
		mustPut(t, m, "b", 10*n+11)
	}
	c := newCounters()
	c[scope].n = 31
	o := audit.Options{Counter: c.counter}
	if _, fs := run(t, m, o); len(fs) != 0 || c[scope].asked != 1 {
		t.Errorf("found %v after %d readings", fs, c[scope].asked)
	}

	// The counter moves while the audit runs.
	c[scope].n, c[scope].asked = 30, 0
	o.Counter = func(ctx context.Context, scope string) (guard.IssuerID, int64, error) {
		id, n, err := c.counter(ctx, scope)
		c[scope].n = 31
		return id, n, err
	}
	if _, fs := run(t, m, o); len(fs) != 0 || c[scope].asked != 2 {
		t.Errorf("found %v after %d readings", fs, c[scope].asked)
	}

	// It was set back. Each key is told of once.
	c[scope].n = 15
	o.Counter = c.counter
	_, fs := run(t, m, o)
	if kinds(fs) != "violation above-counter, violation above-counter" || fs[1].Record.Number != 31 ||
		fs[1].Detail != "token 31 is higher than the counter of scope nightly/report ever gave: it is at 15" {
		t.Errorf("found %v", fs)
	}

	// It was made anew.
	c[scope].id = second
	if _, fs = run(t, m, o); kinds(fs) != "warning mixed-issuer, warning mixed-issuer" || fs[0].Record.Number != 30 {
		t.Errorf("found %v", fs)
	}

	// There is none.
	delete(c, scope)
	if _, fs = run(t, m, o); kinds(fs) != "warning no-counter" {
		t.Errorf("found %v", fs)
	}

	o.Counter = func(ctx context.Context, _ string) (guard.IssuerID, int64, error) {
		return guard.IssuerID{}, 0, ctx.Err()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := audit.Run(ctx, m, &o, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

func TestScopeFence(t *testing.T) {
	m := bucket(guard.VersioningOff)
	g := newGuard(m)
	mustPut(t, m, "data/k", 48)
	o := audit.Options{Prefix: "data/", Fence: g.Claimed}
	if _, fs := run(t, m, o); len(fs) != 0 {
		t.Errorf("no claim: %v", fs)
	}
	if _, err := g.Claim(t.Context(), token(t, issuer, scope, 48), nil); err != nil {
		t.Fatal(err)
	}
	if _, fs := run(t, m, o); len(fs) != 0 {
		t.Errorf("claimed: %v", fs)
	}
	mustPut(t, m, "data/k", 49)
	mustPut(t, m, "data/l", 52)
	if _, fs := run(t, m, o); kinds(fs) != "info above-scope-fence" || fs[0].Key != "data/l" || fs[0].Other.Number != 48 {
		t.Errorf("above: %v", fs)
	}
	m.Overwrite(guard.ScopeFenceKey("", scope), "x", nil)
	if _, fs := run(t, m, o); kinds(fs) != "violation unfenced" || fs[0].Key != guard.ScopeFenceKey("", scope) {
		t.Errorf("overwritten: %v", fs)
	}
	if _, fs := run(t, m, audit.Options{Fence: g.Claimed}); kinds(fs) != "violation unfenced" {
		t.Errorf("overwritten, and walked: %v", fs)
	}
}

func TestTombstone(t *testing.T) {
	m := bucket(guard.VersioningOn)
	mustPut(t, m, "k", 48)
	if _, err := newGuard(m).Delete(t.Context(), token(t, issuer, scope, 49), "k", nil); err != nil {
		t.Fatal(err)
	}
	if _, fs := run(t, m, audit.Options{}); kinds(fs) != "info tombstone" {
		t.Errorf("found %v", fs)
	}
	mustPut(t, m, "k", 50)
	if _, fs := run(t, m, audit.Options{}); len(fs) != 0 {
		t.Errorf("written again: %v", fs)
	}
}

func TestUploads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bucket(guard.VersioningOff)
		begin := func(key string) {
			if _, err := m.CreateUpload(t.Context(), key, guard.UploadRequest{}); err != nil {
				t.Fatal(err)
			}
		}
		begin("p/old")
		time.Sleep(time.Hour)
		begin("p/young")
		begin("q/other")
		time.Sleep(23 * time.Hour)
		o := audit.Options{Prefix: "p/", StartAfter: "z"}
		sum, fs := run(t, m, o)
		if kinds(fs) != "warning leftover-upload" || fs[0].Key != "p/old" || fs[0].UploadID == "" || sum.Uploads != 2 {
			t.Errorf("found %v, %+v", fs, sum)
		}
		o.OlderThan = time.Hour
		if _, fs = run(t, m, o); kinds(fs) != "warning leftover-upload, warning leftover-upload" || fs[1].Aborted {
			t.Errorf("found %v", fs)
		}
		o.OlderThan, o.AbortUploads = 24*time.Hour, true
		if sum, fs = run(t, m, o); sum.Aborted != 1 || !fs[0].Aborted {
			t.Errorf("found %v, %+v", fs, sum)
		}
		begin("p/now")
		o.OlderThan = -1
		if sum, _ = run(t, m, o); sum.Aborted != 2 {
			t.Errorf("%+v", sum)
		}
		left := 0
		for up := range m.Uploads(t.Context(), "") {
			left++
			if up.Key != "q/other" {
				t.Errorf("left: %s", up.Key)
			}
		}
		if left != 1 {
			t.Errorf("%d left", left)
		}
		o.Prefix, o.NoUploads = "", true
		if sum, fs = run(t, m, o); len(fs) != 0 || sum.Uploads != 0 {
			t.Errorf("left out: %v, %+v", fs, sum)
		}
	})
}

// It goes on where it was stopped, and both parts are the whole.
func TestResume(t *testing.T) {
	m := bucket(guard.VersioningOn)
	for i := range 50 {
		for n := range int64(1 + i%3) {
			mustPut(t, m, fmt.Sprintf("k%02d", i), n+1)
		}
		if i%5 == 0 {
			m.Overwrite(fmt.Sprintf("k%02d", i), "x", nil)
		}
	}
	whole, all := run(t, m, audit.Options{})
	enough := errors.New("enough")
	for stop := range all {
		var first []audit.Finding
		sum, err := audit.Run(t.Context(), m, nil, func(f audit.Finding) error {
			if len(first) == stop {
				return enough
			}
			first = append(first, f)
			return nil
		})
		if !errors.Is(err, enough) || sum.Complete || sum.LastKey >= all[stop].Key {
			t.Fatalf("%v, %+v", err, sum)
		}
		rest, then := run(t, m, audit.Options{StartAfter: sum.LastKey})
		if sum.Objects+rest.Objects != whole.Objects || rest.LastKey != whole.LastKey {
			t.Errorf("%d and %d objects of %d", sum.Objects, rest.Objects, whole.Objects)
		}
		if !slices.EqualFunc(append(first, then...), all, func(a, b audit.Finding) bool { return a.String() == b.String() }) {
			t.Errorf("%v, then %v", first, then)
		}
	}
}

// An error that may pass leaves nothing out and tells nothing twice.
func TestErrorsThatPass(t *testing.T) {
	for _, v := range []guard.Versioning{guard.VersioningOn, guard.VersioningOff, guard.VersioningUnknown} {
		m := bucket(v)
		for i := range 8 {
			key := fmt.Sprintf("k%d", i)
			for n := range int64(4) {
				mustPut(t, m, key, n+1)
			}
			m.Overwrite(key, "x", nil)
		}
		want, all := run(t, m, audit.Options{})
		flaky := &flakyStore{Store: m, each: 3, grow: 1}
		var requests atomic.Int64 // HEADs run beside the listing
		m.Before = func(op, _ string) error {
			if n := requests.Add(1); op == "head" && n%3 == 0 {
				return errors.New("connection reset by peer")
			}
			return nil
		}
		got, fs := run(t, flaky, audit.Options{})
		if got.Objects != want.Objects || got.Versions != want.Versions || kinds(fs) != kinds(all) || flaky.failed == 0 {
			t.Errorf("%d: %+v after %d errors, want %+v", v, got, flaky.failed, want)
		}
		m.Before = nil
		flaky.each, flaky.grow = 1, 0
		if sum, err := audit.Run(t.Context(), flaky, &audit.Options{Backoff: func(int) time.Duration { return 0 }}, nil); !errors.Is(err, errFlaky) || sum.LastKey != "" {
			t.Errorf("%v, %+v", err, sum)
		}
	}
}

var errFlaky = errors.New("503")

// A flakyStore ends each listing with an error after a few entries.
type flakyStore struct {
	guard.Store
	each, grow, failed int
}

func (f *flakyStore) List(ctx context.Context, o guard.ListOptions) iter.Seq2[guard.Listed, error] {
	return func(yield func(guard.Listed, error) bool) {
		n := 0
		for l, err := range f.Store.List(ctx, o) {
			if n++; n%f.each == 0 {
				f.each += f.grow // or of a history longer than that nothing new would ever come
				f.failed++
				yield(guard.Listed{}, errFlaky)
				return
			}
			if !yield(l, err) {
				return
			}
		}
	}
}

// inBubble runs f where time passes at once.
func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}
