package audit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/audit"
)

// A hugeStore lists objects that nobody keeps.
type hugeStore struct {
	guard.Store
	keys, versions int
	record         func(key, version int) string
}

func (hugeStore) Settings(context.Context) (guard.Settings, error) {
	return guard.Settings{Versioning: guard.VersioningOn}, nil
}

func (hugeStore) URL(key string) string { return "s3://huge/" + key }

func (h hugeStore) List(_ context.Context, _ guard.ListOptions) iter.Seq2[guard.Listed, error] {
	return func(yield func(guard.Listed, error) bool) {
		for k := range h.keys {
			for v := range h.versions {
				l := guard.Listed{Key: fmt.Sprintf("key-%09d", k), Version: guard.Version{
					ID: fmt.Sprintf("version-%09d", h.versions-v), Latest: v == 0, LastModified: time.Unix(int64(h.versions-v), 0),
				}}
				l.Metadata = map[string]string{guard.RecordKey: h.record(k, h.versions-v)}
				if !yield(l, nil) {
					return
				}
			}
		}
	}
}

func (h hugeStore) Uploads(context.Context, string) iter.Seq2[guard.Upload, error] {
	return func(yield func(guard.Upload, error) bool) {
		for k := range h.keys {
			if !yield(guard.Upload{Key: fmt.Sprintf("up-%09d", k), ID: "u", Initiated: time.Unix(1, 0)}, nil) {
				return
			}
		}
	}
}

// What is held does not grow with the objects, nor with the versions of one,
// nor with what is found, nor with the scopes; not for the page either.
func TestConstantMemory(t *testing.T) {
	live := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	good := func(_, v int) string { return record(int64(v)).String() }
	scopes := func(k, v int) string {
		r := record(int64(v))
		r.Scope = fmt.Sprintf("scope-%d", k)
		return r.String()
	}
	bad := func(k, v int) string {
		r := record(int64(1 + (v*7)%100))
		r.WriteID = guard.WriteID{byte(v), byte(v >> 8)}
		r.Issuer[0] = byte(v % 3)
		return r.String()
	}
	for name, tt := range map[string]struct {
		few, many hugeStore
	}{
		"many objects":            {hugeStore{keys: 3_000, versions: 1, record: good}, hugeStore{keys: 30_000, versions: 1, record: good}},
		"many versions of one":    {hugeStore{keys: 1, versions: 3_000, record: good}, hugeStore{keys: 1, versions: 30_000, record: good}},
		"many findings":           {hugeStore{keys: 1_500, versions: 2, record: bad}, hugeStore{keys: 15_000, versions: 2, record: bad}},
		"many findings at one":    {hugeStore{keys: 1, versions: 3_000, record: bad}, hugeStore{keys: 1, versions: 30_000, record: bad}},
		"many scopes":             {hugeStore{keys: 6_000, versions: 1, record: scopes}, hugeStore{keys: 60_000, versions: 1, record: scopes}},
		"unfenced, many versions": {hugeStore{keys: 1, versions: 3_000, record: func(int, int) string { return "" }}, hugeStore{keys: 1, versions: 30_000, record: func(int, int) string { return "" }}},
	} {
		held := func(s hugeStore) int64 {
			before := live()
			p := audit.NewPage("s3://huge", &audit.PageOptions{MaxKeys: 100})
			var most uint64
			looked := 0
			look := func() {
				if looked++; looked%(s.keys*s.versions/3) == 0 {
					most = max(most, live())
				}
			}
			o := &audit.Options{
				History: p.Add,
				Counter: func(context.Context, string) (guard.IssuerID, int64, error) {
					look()
					return issuer, 1 << 40, nil
				},
				Progress: func(int64, int64) { look() },
			}
			sum, err := audit.Run(t.Context(), s, o, func(f audit.Finding) error {
				look()
				p.Found(f)
				return nil
			})
			if err != nil || sum.Versions != int64(s.keys*s.versions) {
				t.Fatalf("%v, %+v", err, sum)
			}
			most = max(most, live())
			if err := p.Write(io.Discard, sum); err != nil {
				t.Fatal(err)
			}
			return int64(most) - int64(before)
		}
		few, many := held(tt.few), held(tt.many)
		t.Logf("%s: %d KiB, and of ten times as many %d KiB", name, few>>10, many>>10)
		// 27,000 more, of which no more than the keys were held, would be over this.
		if many > few+1<<20 {
			t.Errorf("%s: %d KiB, and of ten times as many %d KiB", name, few>>10, many>>10)
		}
	}
}

// Where nobody may say whether versions are kept, they are looked at if they
// can be, and if not the summary says so.
func TestVersionsUnknown(t *testing.T) {
	m := bucket(guard.VersioningOn)
	mustPut(t, m, "k", 49)
	plant(m, "k", record(47))
	m.Bucket.Versioning = guard.VersioningUnknown
	if sum, fs := run(t, m, audit.Options{}); kinds(fs) != "violation number-went-down" || !sum.WithVersions || sum.Note != "" {
		t.Errorf("%v, %+v", fs, sum)
	}
	for _, err := range []error{guard.ErrDenied, guard.ErrUnsupported} {
		if sum, fs := run(t, noVersions{m, err}, audit.Options{}); len(fs) != 0 || sum.WithVersions || !strings.Contains(sum.Note, err.Error()) || sum.Objects != 1 {
			t.Errorf("%v, %+v", fs, sum)
		}
	}
	m.Bucket.Versioning = guard.VersioningOn
	if _, err := audit.Run(t.Context(), noVersions{m, guard.ErrDenied}, nil, nil); !errors.Is(err, guard.ErrDenied) {
		t.Errorf("where they are known to be kept: %v", err)
	}
	if sum, fs := run(t, noVersions{m, guard.ErrDenied}, audit.Options{NewestOnly: true}); len(fs) != 0 || sum.WithVersions {
		t.Errorf("the newest only: %v, %+v", fs, sum)
	}
}

// noVersions is a store that lists no versions.
type noVersions struct {
	guard.Store
	err error
}

func (s noVersions) List(ctx context.Context, o guard.ListOptions) iter.Seq2[guard.Listed, error] {
	if !o.Versions {
		return s.Store.List(ctx, o)
	}
	return func(yield func(guard.Listed, error) bool) { yield(guard.Listed{}, fmt.Errorf("list: %w", s.err)) }
}

// What the store does not show is told, and does not end the audit; being
// denied does.
func TestUnreadable(t *testing.T) {
	m := bucket(guard.VersioningOff)
	mustPut(t, m, "a", 1)
	mustPut(t, m, "b", 1)
	mustPut(t, m, "c", 1)
	answer := guard.ErrRejected
	m.Before = func(op, key string) error {
		if op == "head" && key == "b" {
			return answer
		}
		return nil
	}
	if sum, fs := run(t, m, audit.Options{}); kinds(fs) != "warning unreadable" || sum.Objects != 3 {
		t.Errorf("%v, %+v", fs, sum)
	}
	answer = guard.ErrDenied
	if sum, err := audit.Run(t.Context(), m, nil, nil); !errors.Is(err, guard.ErrDenied) || !strings.Contains(err.Error(), "s3://mem/b") || sum.LastKey != "a" && sum.LastKey != "" {
		t.Errorf("%v, %+v", err, sum)
	}
}

// Objects that go while they are looked at are no findings.
func TestGone(t *testing.T) {
	m := bucket(guard.VersioningOff)
	mustPut(t, m, "a", 1)
	mustPut(t, m, "b", 1)
	m.Before = func(op, key string) error {
		if op == "head" && key == "a" {
			m.Remove("a")
		}
		return nil
	}
	if sum, fs := run(t, m, audit.Options{}); len(fs) != 0 || sum.Objects != 1 || sum.LastKey != "b" {
		t.Errorf("%v, %+v", fs, sum)
	}
}
