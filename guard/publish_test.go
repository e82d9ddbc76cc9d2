package guard_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/internal/mems3"
)

type bodies = map[string]string

// toPublish are files of these bodies, by their names.
func toPublish(files bodies) []guard.PublishFile {
	var all []guard.PublishFile
	for _, name := range slices.Sorted(maps.Keys(files)) {
		all = append(all, guard.PublishFile{Name: name, ContentType: "text/plain", Open: func() (guard.Body, func() error, error) {
			return guard.Bytes([]byte(files[name])), func() error { return nil }, nil
		}})
	}
	return all
}

func mustPublish(t *testing.T, g *guard.Guard, n int64, files bodies, opts *guard.PublishOptions) guard.Published {
	t.Helper()
	set, err := g.Publish(t.Context(), token(t, n), "ds", toPublish(files), opts)
	if err != nil {
		t.Fatalf("publish %d: %v", n, err)
	}
	return set
}

// wantSet resolves the set, which must be these files, each whole.
func wantSet(t *testing.T, m *mems3.Store, want bodies) guard.Manifest {
	t.Helper()
	set, err := newGuard(m).Resolve(t.Context(), "ds", nil)
	if err != nil {
		t.Fatal(err)
	}
	got := bodies{}
	for _, f := range set.Files {
		got[f.Name] = m.Body(f.Key("ds"))
		if int64(len(got[f.Name])) != f.Size || f.Checksum != crc(got[f.Name]) {
			t.Errorf("%s is %q and should have %d bytes, checksum %s", f.Name, got[f.Name], f.Size, f.Checksum)
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("the set is %v, want %v", got, want)
	}
	return set
}

func crc(body string) guard.Checksum {
	m := mems3.New()
	m.Overwrite("k", body, nil)
	return m.Written("k")[0].Checksum
}

// dataKeys are the keys under ds/data/ that hold something.
func dataKeys(t *testing.T, s guard.Store) (keys []string) {
	t.Helper()
	for l, err := range s.List(t.Context(), guard.ListOptions{Prefix: "ds/data/"}) {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, l.Key)
	}
	return keys
}

// collect removes what garbage may go, and returns its keys.
func collect(t *testing.T, g *guard.Guard, keep time.Duration) (removed []string) {
	t.Helper()
	for f, err := range g.Garbage(t.Context(), "ds", &guard.GarbageOptions{Keep: keep}) {
		if err != nil {
			t.Fatal(err)
		}
		if f.Kept > 0 {
			continue
		}
		if _, err := g.Discard(t.Context(), f); err != nil {
			t.Fatal(err)
		}
		removed = append(removed, f.Key)
	}
	return removed
}

const now = -1 // to keep nothing

// manifestOnly is a hook for one kind of request of the manifest.
func manifestOnly(op string, do func() error) func(string, string) error {
	return func(o, key string) error {
		if o == op && key == "ds/manifest.json" {
			return do()
		}
		return nil
	}
}

func TestPublish(t *testing.T) {
	m := mems3.New()
	set := mustPublish(t, newGuard(m), 48, bodies{"b/c.txt": "cc", "a": ""}, &guard.PublishOptions{WriteID: testWriteID})
	const folder = "ds/data/00000000000000000048-00000000000000000000000000000007/"
	if set.Outcome != guard.Created || set.URL != "s3://mem/ds/manifest.json" || set.Record.Number != 48 || set.Record.WriteID != testWriteID || len(set.Files) != 2 {
		t.Errorf("%+v", set)
	}
	if got, want := dataKeys(t, m), []string{folder + "a", folder + "b/c.txt"}; !slices.Equal(got, want) {
		t.Errorf("keys %q, want %q", got, want)
	}
	// The example of docs/protocol.md.
	const want = `{"s3fence_manifest":1,"scope":"nightly/report","issuer":"8c1d0f2ab64e97d3","token":48,"sequence":1,` +
		`"write_id":"00000000000000000000000000000007","files":[` +
		`{"name":"a","folder":"00000000000000000048-00000000000000000000000000000007","size":0,"crc32c":"AAAAAA==","content_type":"text/plain"},` +
		`{"name":"b/c.txt","folder":"00000000000000000048-00000000000000000000000000000007","size":2,"crc32c":"N4ya2w==","content_type":"text/plain"}]}` + "\n"
	if got := m.Body("ds/manifest.json"); got != want {
		t.Errorf("the manifest is\n%s\nwant\n%s", got, want)
	}
	for _, key := range []string{"ds/manifest.json", folder + "a", folder + "b/c.txt"} {
		info, err := newGuard(m).Stat(t.Context(), key)
		if err != nil || info.Record == nil || *info.Record != set.Record {
			t.Errorf("%s: %+v, %v", key, info, err)
		}
		if want := map[bool]string{true: "application/json", false: "text/plain"}[key == "ds/manifest.json"]; info.ContentType != want {
			t.Errorf("%s: content type %s", key, info.ContentType)
		}
	}

	// A second one takes one request for each file, and three for the manifest.
	set = mustPublish(t, newGuard(m), 49, bodies{"a": "new", "d": "d", "e": "e"}, nil)
	if set.Outcome != guard.Replaced || set.Previous.Number != 48 || set.Requests != 3+3 {
		t.Errorf("%+v", set)
	}
	now := wantSet(t, m, bodies{"a": "new", "d": "d", "e": "e"})
	if now.Record.Number != 49 || now.Requests != 1 || !slices.Equal(now.Files, set.Files) {
		t.Errorf("%+v", now)
	}
	// So does an empty one.
	mustPublish(t, newGuard(m), 50, nil, nil)
	wantSet(t, m, bodies{})
}

// One in parts, with the checksum of the whole.
func TestPublishLarge(t *testing.T) {
	m := mems3.New()
	large := strings.Repeat("0123456789abcdef", 1<<20)
	mustPublish(t, newGuard(m), 1, bodies{"large": large, "small": "s"}, &guard.PublishOptions{PartSize: 5 << 20})
	set := wantSet(t, m, bodies{"large": large, "small": "s"})
	if etag := m.Written(set.Files[0].Key("ds"))[0].ETag; !strings.Contains(etag, "-") {
		t.Errorf("ETag %s is not one of parts", etag)
	}
	noUploads(t, m)
}

func TestPublishObserved(t *testing.T) {
	m, o := mems3.New(), &observer{}
	g := observing(m, o)
	mustPublish(t, g, 2, bodies{"a": "a"}, &guard.PublishOptions{WriteID: testWriteID})
	o.want(t,
		"put nightly/report s3://mem/ds/data/00000000000000000002-00000000000000000000000000000007/a: created, token 2, 2 requests",
		"publish nightly/report s3://mem/ds/manifest.json: created, token 2, 2 requests")
	mustPublish(t, g, 3, bodies{"a": "a"}, &guard.PublishOptions{DryRun: true})
	o.want(t)

	// Those that were over before the manifest was written are told of, too.
	mustPublish(t, g, 2, bodies{"a": "a"}, &guard.PublishOptions{WriteID: testWriteID})
	_, err := g.Publish(t.Context(), token(t, 1), "ds", toPublish(bodies{"a": "late"}), nil)
	wantRefusal(t, err, guard.ErrStale)
	broken := []guard.PublishFile{{Name: "a", Open: func() (guard.Body, func() error, error) { return guard.Body{}, nil, errLost }}}
	if _, err := g.Publish(t.Context(), token(t, 3), "ds", broken, nil); !errors.Is(err, errLost) {
		t.Error(err)
	}
	o.want(t,
		"publish nightly/report s3://mem/ds/manifest.json: already-applied, token 2, 1 requests",
		"publish nightly/report s3://mem/ds/manifest.json: refused stale, token 1, 1 requests, held 2",
		"publish nightly/report s3://mem/ds/manifest.json: failed failed, token 3, 1 requests")
}

func TestPublishDryRun(t *testing.T) {
	m := mems3.New()
	mustPublish(t, newGuard(m), 2, bodies{"a": "old"}, nil)
	puts := m.Puts
	var sent atomic.Int64
	set := mustPublish(t, newGuard(m), 3, bodies{"a": "new", "b": "b"}, &guard.PublishOptions{
		DryRun: true, Append: true, Sent: func(guard.SetFile, guard.Result, error) { sent.Add(1) },
	})
	if set.Outcome != guard.Replaced || set.Files != nil || sent.Load() != 2 || m.Puts != puts {
		t.Errorf("%+v, %d files, %d PUTs", set, sent.Load(), m.Puts-puts)
	}
	wantSet(t, m, bodies{"a": "old"})
	_, err := newGuard(m).Publish(t.Context(), token(t, 1), "ds", nil, &guard.PublishOptions{DryRun: true})
	wantRefusal(t, err, guard.ErrStale)
}

// An owner that is held up before its manifest, and one that was before all its
// files, are refused; what they had sent is never referred to, and is garbage.
func TestPublishLateOwner(t *testing.T) {
	m := mems3.New()
	mustPublish(t, newGuard(m), 1, bodies{"a": "1"}, nil)
	g := newGuard(m)
	m.Before = manifestOnly("put", func() error {
		m.Before = nil
		mustPublish(t, newGuard(m), 3, bodies{"a": "3", "b": "3"}, nil)
		return nil
	})
	_, err := g.Publish(t.Context(), token(t, 2), "ds", toPublish(bodies{"a": "2", "c": "2"}), nil)
	if r := wantRefusal(t, err, guard.ErrStale); r.Held.Number != 3 || r.Key != "ds/manifest.json" {
		t.Errorf("%+v", r)
	}
	wantSet(t, m, bodies{"a": "3", "b": "3"})

	puts := m.Puts
	_, err = newGuard(m).Publish(t.Context(), token(t, 2), "ds", toPublish(bodies{"a": "late"}), nil)
	if wantRefusal(t, err, guard.ErrStale); m.Puts != puts {
		t.Error("what was sure to be refused was sent")
	}

	// Of a claimed scope, the files are refused already.
	c := claiming(m, guard.EveryWrite)
	mustClaim(t, claiming(m, 0), 5)
	_, err = c.Publish(t.Context(), token(t, 4), "ds", toPublish(bodies{"a": "late"}), nil)
	if r := wantRefusal(t, err, guard.ErrStale); r.Claim == nil || m.Puts != puts+1 {
		t.Errorf("%+v, %d PUTs", r, m.Puts-puts)
	}

	removed := collect(t, newGuard(m), now)
	if len(removed) != 3 || len(dataKeys(t, m)) != 2 {
		t.Errorf("removed %q, left %q", removed, dataKeys(t, m))
	}
	wantSet(t, m, bodies{"a": "3", "b": "3"})
}

func TestPublishAppend(t *testing.T) {
	m := mems3.New()
	add := &guard.PublishOptions{Append: true}
	if set := mustPublish(t, newGuard(m), 1, bodies{"a": "1", "b": "1"}, add); set.Outcome != guard.Created {
		t.Errorf("%+v", set)
	}
	mustPublish(t, newGuard(m), 2, bodies{"b": "2", "c": "2"}, add)
	set := wantSet(t, m, bodies{"a": "1", "b": "2", "c": "2"})
	if !strings.HasPrefix(set.Files[0].Folder, "00000000000000000001-") || !strings.HasPrefix(set.Files[1].Folder, "00000000000000000002-") {
		t.Errorf("%+v", set.Files)
	}
	if removed := collect(t, newGuard(m), now); len(removed) != 1 || !strings.HasSuffix(removed[0], "/b") {
		t.Errorf("removed %q", removed)
	}
	wantSet(t, m, bodies{"a": "1", "b": "2", "c": "2"})

	// A name can't be a file and a folder, of two publishes neither.
	puts := m.Puts
	_, err := newGuard(m).Publish(t.Context(), token(t, 3), "ds", toPublish(bodies{"a/x": "3"}), add)
	if !errors.Is(err, guard.ErrInvalid) || !strings.Contains(err.Error(), `"a" can't be a file and the folder of "a/x"`) || m.Puts != puts {
		t.Errorf("%v, %d PUTs", err, m.Puts-puts)
	}
	mustPublish(t, newGuard(m), 4, bodies{"a/x": "4"}, nil)
	wantSet(t, m, bodies{"a/x": "4"})

	// Over a tombstone it begins anew.
	mustDelete(t, newGuard(m), 5, "ds/manifest.json", nil)
	mustPublish(t, newGuard(m), 6, bodies{"z": "6"}, add)
	wantSet(t, m, bodies{"z": "6"})
}

// While an append is on its way another one lands: at each of its requests of the
// manifest, the files of both are in the set, or the late one is refused.
func TestPublishAppendRace(t *testing.T) {
	for _, op := range []string{"head", "get", "put"} {
		for _, other := range []int64{2, 4} {
			t.Run(fmt.Sprintf("%s/%d", op, other), func(t *testing.T) {
				m := mems3.New()
				mustPublish(t, newGuard(m), 1, bodies{"a": "1"}, nil)
				add := &guard.PublishOptions{Append: true}
				nth, at := 0, 2 // of the second time, after the files
				if op == "put" {
					at = 1
				}
				m.Before = manifestOnly(op, func() error {
					if nth++; nth == at {
						mustPublish(t, newGuard(m), other, bodies{"other": "o"}, add)
					}
					return nil
				})
				_, err := newGuard(m).Publish(t.Context(), token(t, 3), "ds", toPublish(bodies{"mine": "3"}), add)
				m.Before = nil
				want := bodies{"a": "1", "other": "o", "mine": "3"}
				if other > 3 {
					wantRefusal(t, err, guard.ErrStale)
					delete(want, "mine")
				} else if err != nil {
					t.Error(err)
				}
				wantSet(t, m, want)
			})
		}
	}
}

// An older append that goes on and on meets its end: each round was another's.
func TestPublishAppendMany(t *testing.T) {
	m := mems3.New()
	var wg sync.WaitGroup
	var mu sync.Mutex
	want := bodies{}
	for n := range int64(12) {
		wg.Go(func() {
			name := fmt.Sprint(n)
			_, err := newGuard(m).Publish(t.Context(), token(t, n+1), "ds", toPublish(bodies{name: "x"}), &guard.PublishOptions{Append: true})
			switch {
			case err == nil:
				mu.Lock()
				defer mu.Unlock()
				want[name] = "x"
			case guard.ReasonOf(err) != guard.ErrStale:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if want["11"] == "" {
		t.Error("the newest was refused")
	}
	wantSet(t, m, want)
	collect(t, newGuard(m), now)
	wantSet(t, m, want)
}

// A file that fails ends it, is told of once, and nothing is committed.
func TestPublishFails(t *testing.T) {
	broken := errors.New("disk on fire")
	for _, tt := range []struct {
		name string
		fail func(m *mems3.Store, f *guard.PublishFile)
		want error
	}{
		{"open", func(_ *mems3.Store, f *guard.PublishFile) {
			f.Open = func() (guard.Body, func() error, error) { return guard.Body{}, nil, broken }
		}, broken},
		{"done", func(_ *mems3.Store, f *guard.PublishFile) {
			f.Open = func() (guard.Body, func() error, error) {
				return guard.Bytes(nil), func() error { return broken }, nil
			}
		}, broken},
		{"denied", func(m *mems3.Store, _ *guard.PublishFile) {
			m.Before = func(op, key string) error {
				if op == "put" && strings.HasSuffix(key, "/b") {
					return guard.ErrDenied
				}
				return nil
			}
		}, guard.ErrDenied},
		{"lost", func(m *mems3.Store, _ *guard.PublishFile) {
			sent := false
			m.Before = func(op, key string) error {
				switch {
				case !strings.HasSuffix(key, "/b"):
				case op == "put":
					sent = true
					return errLost
				case sent:
					return guard.ErrDenied
				}
				return nil
			}
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := mems3.New()
			mustPublish(t, newGuard(m), 1, bodies{"old": "1"}, nil)
			files := toPublish(bodies{"a": "a", "b": "b", "c": "c"})
			tt.fail(m, &files[1])
			var told []string
			set, err := newGuard(m).Publish(t.Context(), token(t, 2), "ds", files, &guard.PublishOptions{
				Concurrency: 1, Sent: func(f guard.SetFile, res guard.Result, err error) {
					told = append(told, fmt.Sprint(f.Name, res.Outcome, err != nil))
				},
			})
			if err == nil || tt.want != nil && !errors.Is(err, tt.want) || !strings.Contains(err.Error(), "nothing was committed") {
				t.Errorf("%v, want %v", err, tt.want)
			}
			// Whether a file landed doesn't matter; the set is known.
			if errors.Is(err, guard.ErrOutcomeUnknown) || set.Outcome != "" {
				t.Errorf("%v, %+v", err, set)
			}
			if want := []string{"acreatedfalse", "btrue"}; !slices.Equal(told, want) {
				t.Errorf("told %q, want %q", told, want)
			}
			m.Before = nil
			wantSet(t, m, bodies{"old": "1"})
		})
	}
}

// Run again with its write id, a publish goes on where it was cut short, and is
// applied already when it was not. Other files under the id are refused.
func TestPublishAgain(t *testing.T) {
	m := mems3.New()
	opts := &guard.PublishOptions{WriteID: testWriteID, Concurrency: 1}
	files := bodies{"a": "a", "b": "b", "c": "c"}
	puts := 0
	m.Before = func(op, _ string) error {
		if op == "put" {
			if puts++; puts == 3 {
				return guard.ErrDenied
			}
		}
		return nil
	}
	if _, err := newGuard(m).Publish(t.Context(), token(t, 2), "ds", toPublish(files), opts); !errors.Is(err, guard.ErrDenied) {
		t.Fatal(err)
	}
	_, err := newGuard(m).Publish(t.Context(), token(t, 2), "ds", toPublish(bodies{"a": "other"}), opts)
	if r := wantRefusal(t, err, guard.ErrReplayed); !strings.Contains(r.Error(), "other bytes") || !strings.Contains(r.Cures[0], "fresh write id") {
		t.Errorf("%v, %q", r, r.Cures)
	}
	puts = 100
	if set := mustPublish(t, newGuard(m), 2, files, opts); set.Outcome != guard.Created || puts != 100+2 {
		t.Errorf("%+v, %d PUTs", set, puts-100)
	}
	wantSet(t, m, files)

	for _, o := range []*guard.PublishOptions{opts, {WriteID: testWriteID, Append: true}} {
		var told atomic.Int64
		again := *o
		again.Sent = func(_ guard.SetFile, res guard.Result, err error) {
			if res.Outcome == guard.AlreadyApplied && err == nil {
				told.Add(1)
			}
		}
		puts = 0
		set := mustPublish(t, newGuard(m), 2, files, &again)
		if set.Outcome != guard.AlreadyApplied || len(set.Files) != 3 || told.Load() != 3 || puts != 0 {
			t.Errorf("%+v, %d files, %d PUTs", set, told.Load(), puts)
		}
		for _, other := range []bodies{{"a": "a", "b": "b"}, {"a": "a", "b": "b", "c": "d"}, {"a": "a", "b": "b", "d": "c"}} {
			set, err := newGuard(m).Publish(t.Context(), token(t, 2), "ds", toPublish(other), o)
			if wantRefusal(t, err, guard.ErrReplayed); set.Outcome != "" || set.Files != nil {
				t.Errorf("refused, and %+v", set)
			}
		}
	}
	// Another write id, or another sequence.
	_, err = newGuard(m).Publish(t.Context(), token(t, 2), "ds", toPublish(files), nil)
	wantRefusal(t, err, guard.ErrReplayed)
	wantSet(t, m, files)
	mustPublish(t, newGuard(m), 2, bodies{"a": "2.2"}, &guard.PublishOptions{Sequence: 2})
	_, err = newGuard(m).Publish(t.Context(), token(t, 2), "ds", toPublish(files), opts)
	wantRefusal(t, err, guard.ErrStale)
	wantSet(t, m, bodies{"a": "2.2"})
	// Of one number: all its files stay.
	if removed := collect(t, newGuard(m), now); removed != nil || len(dataKeys(t, m)) != 4 {
		t.Errorf("removed %q", removed)
	}
}

// Applied already, as it seems, and then another owner publishes.
func TestPublishAgainReplaced(t *testing.T) {
	m := mems3.New()
	opts := &guard.PublishOptions{WriteID: testWriteID}
	mustPublish(t, newGuard(m), 2, bodies{"a": "2"}, opts)
	m.Before = manifestOnly("get", func() error {
		m.Before = nil
		mustPublish(t, newGuard(m), 3, bodies{"a": "3"}, nil)
		return nil
	})
	_, err := newGuard(m).Publish(t.Context(), token(t, 2), "ds", toPublish(bodies{"a": "2"}), opts)
	wantRefusal(t, err, guard.ErrStale)
	wantSet(t, m, bodies{"a": "3"})
}

// Case 4: the answer to the manifest's PUT is lost, and nothing can be seen any
// more. No clean-up takes a file of that publish while it may be the set, whether
// it landed or not, and whoever cleans up.
func TestPublishLostAnswer(t *testing.T) {
	for _, landed := range []bool{true, false} {
		t.Run(fmt.Sprint("landed=", landed), func(t *testing.T) {
			m := mems3.New()
			mustPublish(t, newGuard(m), 1, bodies{"old": "1"}, nil)
			sent := false
			lost := manifestOnly("put", func() error {
				sent = true
				return errLost
			})
			m.Before = func(op, key string) error {
				if sent {
					return errLost // until the network is back
				}
				if landed {
					return nil
				}
				return lost(op, key)
			}
			if landed {
				m.After = lost
			}
			set, err := newGuard(m).Publish(t.Context(), token(t, 2), "ds", toPublish(bodies{"a": "2", "b": "2"}), nil)
			wantRefusal(t, err, guard.ErrOutcomeUnknown)
			m.Before, m.After = nil, nil

			removed := collect(t, newGuard(m), now)
			if landed {
				wantSet(t, m, bodies{"a": "2", "b": "2"})
			} else {
				wantSet(t, m, bodies{"old": "1"})
			}
			if want := map[bool]int{true: 1, false: 0}[landed]; len(removed) != want {
				t.Errorf("removed %q", removed)
			}
			// It may land yet, and the files are there.
			again := mustPublish(t, newGuard(m), 2, bodies{"a": "2", "b": "2"}, &guard.PublishOptions{WriteID: set.Record.WriteID})
			if want := map[bool]guard.Outcome{true: guard.AlreadyApplied, false: guard.Replaced}[landed]; again.Outcome != want {
				t.Errorf("again: %+v", again)
			}
			wantSet(t, m, bodies{"a": "2", "b": "2"})
			// A newer owner keeps some of it.
			mustPublish(t, newGuard(m), 3, bodies{"b": "3"}, &guard.PublishOptions{Append: true})
			collect(t, newGuard(m), now)
			wantSet(t, m, bodies{"a": "2", "b": "3"})
		})
	}
}

func TestGarbageKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := mems3.New()
		mustPublish(t, newGuard(m), 1, bodies{"a": "1", "b": "1"}, nil)
		time.Sleep(48 * time.Hour)
		mustPublish(t, newGuard(m), 2, bodies{"a": "2"}, nil)
		time.Sleep(time.Hour)
		// Old as the files are, a reader may have resolved them an hour ago.
		n := 0
		for f, err := range newGuard(m).Garbage(t.Context(), "ds", nil) {
			n++
			if err != nil || f.Kept != guard.DefaultKeep-time.Hour || f.Number != 1 || f.Size != 1 || f.URL != "s3://mem/"+f.Key {
				t.Errorf("%+v, %v", f, err)
			}
		}
		if n != 2 {
			t.Errorf("%d files are garbage", n)
		}
		if removed := collect(t, newGuard(m), 61*time.Minute); removed != nil {
			t.Errorf("removed %q", removed)
		}
		if removed := collect(t, newGuard(m), time.Hour); len(removed) != 2 {
			t.Errorf("removed %q", removed)
		}
		// A file that comes late is as old as it is.
		time.Sleep(24 * time.Hour)
		m.Overwrite("ds/data/00000000000000000001-00000000000000000000000000000007/late", "x", nil)
		if removed := collect(t, newGuard(m), 0); removed != nil {
			t.Errorf("removed %q", removed)
		}
		time.Sleep(guard.DefaultKeep)
		if removed := collect(t, newGuard(m), 0); len(removed) != 1 {
			t.Errorf("removed %q", removed)
		}
		wantSet(t, m, bodies{"a": "2"})
	})
}

func TestGarbage(t *testing.T) {
	m := mems3.New()
	g := newGuard(m)
	const old = "ds/data/00000000000000000001-00000000000000000000000000000007/"
	m.Overwrite(old+"x", "x", nil)
	for _, err := range g.Garbage(t.Context(), "ds", &guard.GarbageOptions{Keep: now}) {
		if !errors.Is(err, guard.ErrNotFound) {
			t.Errorf("without a manifest: %v", err)
		}
	}
	mustPublish(t, g, 2, bodies{"a": "2"}, nil)
	// What is no file of a publish, or one at the manifest's number and above, stays.
	for _, key := range []string{
		"ds/data/x", "ds/data/1-7/x", "ds/data/00000000000000000001/x", old[:len(old)-1], old,
		"ds/data/00000000000000000002-00000000000000000000000000000007/x",
		"ds/data/00000000000000000003-00000000000000000000000000000007/x",
		"ds/datax/00000000000000000001-00000000000000000000000000000007/x", "other/data/" + old[8:] + "x",
	} {
		m.Overwrite(key, "theirs", nil)
	}
	var failed atomic.Int64
	m.Before = func(op, _ string) error {
		if (op == "list" || op == "delete") && failed.Add(1)%2 == 1 {
			return errLost
		}
		return nil
	}
	if removed, want := collect(t, g, now), []string{old + "x"}; !slices.Equal(removed, want) || m.Body(old+"x") != "(absent)" {
		t.Errorf("removed %q, want %q", removed, want)
	}
	m.Before = nil
	if n := len(dataKeys(t, m)); n != 1+7 {
		t.Errorf("%d files are left", n)
	}
	for _, f := range []guard.Garbage{{Key: "k"}, {Key: "ds/manifest.json"}, {Key: old + "x", Number: 7}} {
		if _, err := g.Discard(t.Context(), f); !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("%+v: %v", f, err)
		}
	}

	// A manifest that can't be read makes nothing garbage.
	m.Overwrite(old+"x", "x", nil)
	for _, spoil := range []func(){
		func() {
			m.Overwrite("ds/manifest.json", "{}", map[string]string{guard.RecordKey: stand(t, m, "ds/manifest.json").Metadata[guard.RecordKey]})
		},
		func() { m.Overwrite("ds/manifest.json", "{}", nil) },
		func() { m.Remove("ds/manifest.json") },
	} {
		spoil()
		for f, err := range g.Garbage(t.Context(), "ds", &guard.GarbageOptions{Keep: now}) {
			if err == nil {
				t.Errorf("%+v is garbage", f)
			}
		}
	}
}

// What is deleted under the guard leaves garbage up to the tombstone's number. Its
// bytes stay where versions are kept.
func TestGarbageOfDeleted(t *testing.T) {
	m := mems3.New()
	m.Bucket.Versioning = guard.VersioningOn
	mustPublish(t, newGuard(m), 1, bodies{"a": "1"}, nil)
	key := dataKeys(t, m)[0]
	mustDelete(t, newGuard(m), 2, "ds/manifest.json", nil)
	if _, err := newGuard(m).Resolve(t.Context(), "ds", nil); !errors.Is(err, guard.ErrNotFound) {
		t.Errorf("%v", err)
	}
	if removed := collect(t, newGuard(m), now); !slices.Equal(removed, []string{key}) {
		t.Errorf("removed %q", removed)
	}
	var ids []string
	for v, err := range guard.Versions(t.Context(), m, key) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, fmt.Sprint(v.DeleteMarker))
	}
	if !slices.Equal(ids, []string{"true", "false"}) {
		t.Errorf("delete markers: %q", ids)
	}
	mustPublish(t, newGuard(m), 3, bodies{"a": "3"}, nil)
	wantSet(t, m, bodies{"a": "3"})
}

func TestPublishRefuses(t *testing.T) {
	m := mems3.New()
	for _, dataset := range []string{"", "/", "/ds", "ds/", ".s3fence/ds", "a/.s3fence", strings.Repeat("d", 1020), "\xff"} {
		if _, err := newGuard(m).Publish(t.Context(), token(t, 1), dataset, toPublish(bodies{"a": ""}), nil); !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("dataset %q: %v", dataset, err)
		}
		if _, err := newGuard(m).Resolve(t.Context(), dataset, nil); !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("resolve %q: %v", dataset, err)
		}
	}
	many := func(n int, name string) []guard.PublishFile {
		files := make([]guard.PublishFile, n)
		for i := range files {
			files[i].Name = fmt.Sprintf("%06d%s", i, name)
		}
		return files
	}
	for name, files := range map[string][]guard.PublishFile{
		"empty": {{Name: ""}}, "dot": {{Name: "."}}, "up": {{Name: "a/../b"}}, "absolute": {{Name: "/a"}}, "slash": {{Name: "a/"}},
		"double": {{Name: "a//b"}}, "utf8": {{Name: "\xff"}}, "nul": {{Name: "a\x00"}}, "long": {{Name: strings.Repeat("n", 1000)}},
		"twice": {{Name: "a"}, {Name: "b"}, {Name: "a"}}, "folder": {{Name: "a"}, {Name: "a-b"}, {Name: "a/b"}},
		"too many": many(guard.MaxSetFiles+1, ""), "too large": many(80_000, strings.Repeat("n", 300)),
	} {
		if _, err := newGuard(m).Publish(t.Context(), token(t, 1), "ds", files, nil); !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := newGuard(m).Publish(t.Context(), guard.Token{}, "ds", nil, nil)
	wantRefusal(t, err, guard.ErrMissingToken)
	if m.Puts != 0 {
		t.Errorf("%d PUTs", m.Puts)
	}

	m.Overwrite("ds/manifest.json", "theirs", nil)
	_, err = newGuard(m).Publish(t.Context(), token(t, 1), "ds", toPublish(bodies{"a": ""}), nil)
	wantRefusal(t, err, guard.ErrUnfenced)
	if m.Puts != 0 {
		t.Errorf("%d PUTs", m.Puts)
	}
}

func TestResolveRefuses(t *testing.T) {
	m := mems3.New()
	g := newGuard(m)
	if _, err := g.Resolve(t.Context(), "ds", nil); !errors.Is(err, guard.ErrNotFound) {
		t.Errorf("never published: %v", err)
	}
	mustPublish(t, g, 2, bodies{"a": "2"}, nil)
	if _, err := g.Resolve(t.Context(), "ds", &guard.GetOptions{Floor: token(t, 3).Floor()}); guard.ReasonOf(err) != guard.ErrStale {
		t.Errorf("below the floor: %v", err)
	}
	good := m.Body("ds/manifest.json")
	meta := stand(t, m, "ds/manifest.json").Metadata
	for name, body := range map[string]string{"nothing": "", "cut": good[:len(good)-3], "more": good + "{}", "object": "{}", "large": strings.Repeat(" ", guard.MaxManifest)} {
		m.Overwrite("ds/manifest.json", body, meta)
		_, err := g.Resolve(t.Context(), "ds", nil)
		if want := guard.ErrCorruptRecord; name != "large" && guard.ReasonOf(err) != want || err == nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := g.Publish(t.Context(), token(t, 3), "ds", nil, &guard.PublishOptions{Append: true}); err == nil {
			t.Errorf("%s: it was appended to", name)
		}
	}
	m.Overwrite("ds/manifest.json", good, map[string]string{guard.RecordKey: "r1:edited"})
	_, err := g.Resolve(t.Context(), "ds", nil)
	if guard.ReasonOf(err) != guard.ErrCorruptRecord {
		t.Errorf("%v", err)
	}
	m.Overwrite("ds/manifest.json", good, nil)
	_, err = g.Resolve(t.Context(), "ds", nil)
	wantRefusal(t, err, guard.ErrUnfenced)

	// Adopted, it is good again, and can be appended to.
	mustAdopt(t, g, 3, "ds/manifest.json", nil)
	wantSet(t, m, bodies{"a": "2"})
	mustPublish(t, g, 4, bodies{"b": "4"}, &guard.PublishOptions{Append: true})
	wantSet(t, m, bodies{"a": "2", "b": "4"})
}

func TestSessionPublish(t *testing.T) {
	m := mems3.New()
	s, err := claiming(m, 0).OpenSession(t.Context(), &counter{id: testIssuer}, testScope, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		body := fmt.Sprint(i)
		set, err := s.Publish(t.Context(), "ds", toPublish(bodies{"a": body}), nil)
		if err != nil || set.Record.Sequence != int64(i+1) {
			t.Fatalf("%+v, %v", set, err)
		}
		wantSet(t, m, bodies{"a": body})
	}
}

func TestDataKey(t *testing.T) {
	const folder = "00000000000000000048-00000000000000000000000000000007"
	for key, want := range map[string]bool{
		"ds/data/" + folder + "/a": true, "a/data/b/data/" + folder + "/a/b": true, "data/" + folder + "/a": false,
		"ds/data/" + folder: false, "ds/data/" + folder + "/": false, "ds/data/" + folder + "x/a": false, "ds/data/48-7/a": false, "": false,
	} {
		n, id, ok := guard.DataKey(key)
		if ok != want || ok && (n != 48 || id != testWriteID) {
			t.Errorf("%q: %d, %s, %t", key, n, id, ok)
		}
	}
}
