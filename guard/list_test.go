package guard_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/internal/mems3"
)

func TestWalk(t *testing.T) {
	for _, lists := range []bool{false, true} {
		m := mems3.New()
		m.ListsMetadata = lists
		g := claiming(m, 0)
		mustClaim(t, g, 1)
		for i := range 40 {
			mustPut(t, g, 5, fmt.Sprintf("dir/%03d", i), "x", nil)
		}
		mustPut(t, g, 5, "a", "x", nil)
		mustPut(t, g, 5, "dir0", "x", nil)
		mustDelete(t, g, 6, "dir/007", nil)
		m.Overwrite("dir/008", "theirs", nil)
		m.Overwrite("dir/009", "theirs", map[string]string{guard.RecordKey: "48"})

		keys := func(prefix string, o *guard.WalkOptions) (keys []string) {
			t.Helper()
			for info, err := range g.Walk(t.Context(), prefix, o) {
				if err != nil && (info.Key != "dir/009" || guard.ReasonOf(err) != guard.ErrCorruptRecord) {
					t.Fatal(err)
				}
				if info.Key == "dir/008" && info.Record != nil || info.Key == "dir/010" && (info.Record == nil || info.Record.Number != 5 || info.Size != 1) {
					t.Errorf("%+v", info)
				}
				keys = append(keys, info.Key)
			}
			return keys
		}
		all := keys("dir/", nil)
		if len(all) != 39 || !slices.IsSorted(all) || slices.Contains(all, "dir/007") {
			t.Errorf("lists=%v: %v", lists, all)
		}
		if got := keys("dir/", &guard.WalkOptions{Tombstones: true, Concurrency: 1}); len(got) != 40 {
			t.Errorf("with tombstones: %v", got)
		}
		if got := keys("dir/", &guard.WalkOptions{StartAfter: "dir/037"}); !slices.Equal(got, []string{"dir/038", "dir/039"}) {
			t.Errorf("start after: %v", got)
		}
		if got := keys("", &guard.WalkOptions{Delimiter: "/"}); !slices.Equal(got, []string{"a", "dir/", "dir0"}) {
			t.Errorf("delimiter: %v", got)
		}
		if got := keys("", &guard.WalkOptions{Delimiter: "/", Own: true}); !slices.Equal(got, []string{".s3fence/", "a", "dir/", "dir0"}) {
			t.Errorf("own: %v", got)
		}
		if heads := m.Heads; lists {
			keys("", nil)
			if m.Heads != heads {
				t.Errorf("%d HEADs where the listing says it all", m.Heads-heads)
			}
		}
		for range g.Walk(t.Context(), "", nil) {
			break // nothing hangs
		}
	}
}

func TestWalkErrors(t *testing.T) {
	m := mems3.New()
	for i := range 5 {
		mustPut(t, newGuard(m), 5, fmt.Sprint(i), "x", nil)
	}
	count := func(ctx context.Context) (n int, last error) {
		for _, err := range newGuard(m).Walk(ctx, "", nil) {
			if last = err; err == nil {
				n++
			}
		}
		return n, last
	}
	m.Before = once("list", 1, errLost)
	if n, err := count(t.Context()); n != 5 || err != nil {
		t.Errorf("an error that passes: %d, %v", n, err)
	}
	m.Before = always("list", guard.ErrDenied)
	if n, err := count(t.Context()); n != 0 || !errors.Is(err, guard.ErrDenied) {
		t.Errorf("denied: %d, %v", n, err)
	}
	m.Before = func(op, key string) error {
		if op == "head" && key == "3" {
			return guard.ErrDenied
		}
		return nil
	}
	if n, err := count(t.Context()); n != 3 || !errors.Is(err, guard.ErrDenied) {
		t.Errorf("one denied: %d, %v", n, err)
	}
	m.Before = func(op, key string) error {
		if op == "head" && key == "3" {
			m.Remove("3")
		}
		return nil
	}
	if n, err := count(t.Context()); n != 4 || err != nil {
		t.Errorf("one gone: %d, %v", n, err)
	}
	m.Before = nil
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if n, err := count(ctx); n != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %d, %v", n, err)
	}
}

func TestGetFloor(t *testing.T) {
	m := mems3.New()
	g := newGuard(m)
	mustPut(t, g, 5, "k", "five", nil)
	mustDelete(t, g, 5, "gone", &guard.DeleteOptions{Absent: true})
	m.Overwrite("theirs", "x", nil)
	info, err := g.Stat(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	floor := info.Record.Floor()
	other := token(t, 5).Floor()
	other.Issuer = guard.IssuerID{3}
	for _, tt := range []struct {
		key    string
		floor  guard.Floor
		reason guard.Reason
		is     error
	}{
		{"k", floor, "", nil},
		{"k", token(t, 4).Floor(), "", nil},
		{"k", guard.Floor{Fence: guard.Fence{Number: 5, Sequence: 2}}, guard.ErrStale, nil},
		{"k", token(t, 6).Floor(), guard.ErrStale, nil},
		{"k", other, guard.ErrIssuerMismatch, nil},
		{"k", guard.Floor{Fence: guard.Fence{Number: 1}, Scope: "other"}, guard.ErrScopeMismatch, nil},
		{"gone", token(t, 5).Floor(), "", guard.ErrNotFound},
		{"gone", token(t, 6).Floor(), guard.ErrStale, nil},
		{"theirs", token(t, 1).Floor(), guard.ErrUnfenced, nil},
		{"never", token(t, 1).Floor(), guard.ErrFenceLost, guard.ErrNotFound},
		{"never", guard.Floor{}, "", guard.ErrNotFound},
	} {
		_, body, err := g.Get(t.Context(), tt.key, &guard.GetOptions{Floor: tt.floor})
		if guard.ReasonOf(err) != tt.reason || tt.is != nil && !errors.Is(err, tt.is) || (err == nil) != (tt.reason == "" && tt.is == nil) {
			t.Errorf("%s from %v: %v", tt.key, tt.floor, err)
		}
		if body != nil {
			_ = body.Close()
		}
	}
	_, _, err = g.Get(t.Context(), "k", &guard.GetOptions{Floor: token(t, 6).Floor()})
	if want := "stale object s3://mem/k: it holds 5 (scope nightly/report), and the reader has seen 6"; err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// What the store says of a request is not said once more.
func TestErrorsInWords(t *testing.T) {
	for _, tt := range []struct {
		op, says string
		do       func(g *guard.Guard) error
	}{
		{"list", "list s3://mem/dir/", func(g *guard.Guard) (failed error) {
			for _, failed = range g.Walk(t.Context(), "dir/", nil) {
			}
			return failed
		}},
		{"list", "list versions of s3://mem/dir/", func(g *guard.Guard) (failed error) {
			for _, failed = range g.Lost(t.Context(), "dir/") {
			}
			return failed
		}},
		{"create-upload", "begin a multipart upload of s3://mem/new", func(g *guard.Guard) error {
			_, err := g.Put(t.Context(), token(t, 5), "new", guard.Bytes(noise(1, 17*mib)), nil)
			return err
		}},
		{"create-upload", "begin a multipart upload of s3://mem/k", func(g *guard.Guard) error {
			_, err := g.Adopt(t.Context(), token(t, 5), "k", nil)
			return err
		}},
		{"tags", "read the tags of s3://mem/k", func(g *guard.Guard) error {
			_, err := g.Adopt(t.Context(), token(t, 5), "k", nil)
			return err
		}},
	} {
		m := mems3.New()
		m.Bucket.Versioning = guard.VersioningOn
		m.Overwrite("k", "theirs", nil)
		g := newGuard(m)
		m.Before = always(tt.op, fmt.Errorf("%s: %w", tt.says, guard.ErrDenied))
		if tt.op == "create-upload" { // a look at the versions comes first
			m.Bucket.Versioning = guard.VersioningOff
		}
		if err := tt.do(g); err == nil || err.Error() != tt.says+": access denied" {
			t.Errorf("%s: %v", tt.says, err)
		}
		// A store of few words.
		m.Before = always(tt.op, guard.ErrDenied)
		if err := tt.do(g); err == nil || !strings.Contains(err.Error(), "s3://mem/") || !strings.HasSuffix(err.Error(), ": access denied") {
			t.Errorf("%s: %v", tt.says, err)
		}
	}
}
