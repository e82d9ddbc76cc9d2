package realservers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/localstack/faultproxy"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
)

type bodies = map[string]string

// toPublish are files of these bodies, by their names.
func toPublish(files bodies) []guard.PublishFile {
	var all []guard.PublishFile
	for name, body := range files {
		all = append(all, guard.PublishFile{Name: name, Open: func() (guard.Body, func() error, error) {
			return guard.Bytes([]byte(body)), func() error { return nil }, nil
		}})
	}
	return all
}

func mustPublish(t *testing.T, s guard.Store, tok guard.Token, files bodies, opts *guard.PublishOptions) guard.Published {
	t.Helper()
	set, err := guard.New(s, nil).Publish(t.Context(), tok, "ds", toPublish(files), opts)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// wantSet downloads the set, which must be these files, each whole.
func wantSet(t *testing.T, s guard.Store, want bodies) guard.Manifest {
	t.Helper()
	g := guard.New(s, nil)
	m, err := g.Resolve(t.Context(), "ds", nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "ds")
	if err := g.DownloadSet(t.Context(), m, dir, nil); err != nil {
		t.Fatal(err)
	}
	got := bodies{}
	err = fs.WalkDir(os.DirFS(dir), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(name)))
		got[name] = string(b)
		return err
	})
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("the set is %v, %v, want %v", got, err, want)
	}
	return m
}

// dataKeys are the keys that hold a file of any publish.
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

// setKeys are the keys of a set's files, sorted as in a listing.
func setKeys(files []guard.SetFile) (keys []string) {
	for _, f := range files {
		keys = append(keys, f.Key("ds"))
	}
	slices.Sort(keys)
	return keys
}

// collect removes all garbage, of which nothing is kept, and returns its keys.
func collect(ctx context.Context, g *guard.Guard) (removed []string, err error) {
	for f, err := range g.Garbage(ctx, "ds", &guard.GarbageOptions{Keep: -1}) {
		if err != nil {
			return removed, err
		}
		if _, err := g.Discard(ctx, f); err != nil {
			return removed, err
		}
		removed = append(removed, f.Key)
	}
	return removed, nil
}

func mustCollect(t *testing.T, g *guard.Guard) []string {
	t.Helper()
	removed, err := collect(t.Context(), g)
	if err != nil {
		t.Fatal(err)
	}
	return removed
}

const (
	manifest = "ds/manifest.json"
	blind    = "\nHEAD key=" + manifest + " nth=3 times=all status=500" // both looks before the PUT are answered
)

// Case 4: the answer to the manifest's PUT is lost. No clean-up takes a file of
// that publish while it is the set or may become it, whoever cleans up; and the
// request that was lost, when it arrives after a newer owner's, changes nothing.
func TestPublishLostAnswer(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	for _, tt := range []struct {
		name, faults string
		ends         bool // the context does, before the answer comes
		err          error
		landed       bool
		late         bool // it lands after the clean-ups
	}{
		{"seen to have landed", "drop-answer", false, nil, true, false},
		{"looks fail", "drop-answer" + blind, false, guard.ErrOutcomeUnknown, true, false},
		{"context ends", "hold-answer", true, guard.ErrOutcomeUnknown, true, false},
		{"request lost", "reset" + blind, false, guard.ErrOutcomeUnknown, false, false},
		{"request late", "reset" + blind, false, guard.ErrOutcomeUnknown, false, true},
	} {
		for sdk, open := range sdks {
			for _, claimed := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/claimed=%v", tt.name, sdk, claimed), func(t *testing.T) {
					bucket := newBucket(t, m)
					store := open(t, m, bucket)
					toks := take(t, local(t), "publish", 3)
					older := guard.New(store, nil)
					old, err := older.Publish(t.Context(), toks[0], "ds", toPublish(bodies{"a": "1", "gone": "1"}), nil)
					if err != nil {
						t.Fatal(err)
					}

					through, proxy := behind(t, m, "PUT key="+manifest+" duplicate-later")
					rules, err := proxy.AddText("PUT key=" + manifest + " " + tt.faults)
					if err != nil {
						t.Fatal(err)
					}
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					if tt.ends {
						go func() {
							<-rules[0].Reached()
							cancel()
						}()
					}
					files := bodies{"a": "2", "d/b": "2"}
					set, err := guard.New(open(t, through, bucket), impatient).Publish(ctx, toks[1], "ds", toPublish(files), nil)
					if !errors.Is(err, tt.err) || err == nil && set.Outcome != guard.AlreadyApplied {
						t.Fatalf("told %q, %v; want %v", set.Outcome, err, tt.err)
					}

					newer := guard.New(store, nil)
					if claimed {
						if _, err := newer.Claim(t.Context(), toks[2], nil); err != nil {
							t.Fatal(err)
						}
					}
					var removed, want []string
					for _, g := range []*guard.Guard{older, guard.New(store, nil), newer} {
						removed = append(removed, mustCollect(t, g)...)
					}
					if tt.landed {
						want = setKeys(old.Files)
						wantSet(t, store, files)
					} else {
						wantSet(t, store, bodies{"a": "1", "gone": "1"})
					}
					if !slices.Equal(removed, want) {
						t.Errorf("removed %q, want %q", removed, want)
					}
					if tt.late {
						if got, err := proxy.SendDuplicates(t.Context()); err != nil || !slices.Equal(got, []int{http.StatusOK}) {
							t.Errorf("the late request: %d, %v", got, err)
						}
						wantSet(t, store, files)
					}

					// Run again, nothing is sent but, at most, the manifest.
					through, wire := behind(t, m, "")
					again, err := guard.New(open(t, through, bucket), nil).Publish(t.Context(), toks[1], "ds", toPublish(files),
						&guard.PublishOptions{WriteID: set.Record.WriteID})
					puts, wantPuts := 0, 0
					for _, r := range wire.Requests() {
						if r.Method == http.MethodPut {
							puts++
							if r.Key != manifest {
								t.Errorf("%s was sent again", r.Key)
							}
						}
					}
					now := files
					switch {
					case tt.landed || tt.late:
						if err != nil || again.Outcome != guard.AlreadyApplied {
							t.Errorf("again: %q, %v", again.Outcome, err)
						}
					case claimed:
						now = bodies{"a": "1", "gone": "1"}
						var r *guard.Refusal
						if !errors.As(err, &r) || r.Reason != guard.ErrStale || r.Claim == nil {
							t.Errorf("again, when the scope is claimed: %q, %v", again.Outcome, err)
						}
					default:
						wantPuts = 1
						if err != nil || again.Outcome != guard.Replaced {
							t.Errorf("again: %q, %v", again.Outcome, err)
						}
					}
					if puts != wantPuts {
						t.Errorf("%d PUTs, want %d", puts, wantPuts)
					}
					wantSet(t, store, now)

					// The newer owner keeps one of its files, in a set of its own.
					set, err = newer.Publish(t.Context(), toks[2], "ds", toPublish(bodies{"d/b": "3"}), &guard.PublishOptions{Append: true})
					if err != nil {
						t.Fatal(err)
					}
					mustCollect(t, newer)
					if got, want := dataKeys(t, store), setKeys(set.Files); !slices.Equal(got, want) {
						t.Errorf("left are %q, want %q", got, want)
					}
					now = maps.Clone(now)
					now["d/b"] = "3"
					wantSet(t, store, now)
					if tt.late {
						return
					}
					if got, err := proxy.SendDuplicates(t.Context()); err != nil || !slices.Equal(got, []int{http.StatusPreconditionFailed}) {
						t.Errorf("the late request: %d, %v", got, err)
					}
					wantSet(t, store, now)
				})
			}
		}
	}
}

// The old owner is held up right before its manifest lands. Meanwhile the new one
// publishes, and a clean-up takes the files of the old one.
func TestPublishPausedOwner(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	for sdk, open := range sdks {
		t.Run(sdk, func(t *testing.T) {
			bucket := newBucket(t, m)
			store := open(t, m, bucket)
			toks := take(t, local(t), "publish", 3)
			mustPublish(t, store, toks[0], bodies{"a": "1"}, nil)

			through, proxy := behind(t, m, "")
			held := proxy.Hold(faultproxy.Rule{Method: http.MethodPut, Key: manifest})
			end := make(chan error, 1)
			go func() {
				_, err := guard.New(open(t, through, bucket), nil).Publish(t.Context(), toks[1], "ds", toPublish(bodies{"a": "2", "b": "2"}), nil)
				end <- err
			}()
			<-held.Reached()
			set := mustPublish(t, store, toks[2], bodies{"a": "3", "c": "3"}, nil)
			if removed := mustCollect(t, guard.New(store, nil)); len(removed) != 3 {
				t.Errorf("removed %q, want the one file of the first and the two of the held one", removed)
			}
			held.Release()
			var r *guard.Refusal
			if err := <-end; !errors.As(err, &r) || r.Reason != guard.ErrStale || r.MayHaveApplied || r.Held.Number != toks[2].Number() {
				t.Errorf("the old owner was told %v", err)
			}
			wantSet(t, store, bodies{"a": "3", "c": "3"})
			if got, want := dataKeys(t, store), setKeys(set.Files); !slices.Equal(got, want) {
				t.Errorf("left are %q, want %q", got, want)
			}
		})
	}
}

// Two processes append at once, under one token with sequences or with a token
// each time, one of them behind lost answers, and a third cleans up all the while.
// What was added successfully is there, but for what a later one replaced.
func TestPublishAppends(t *testing.T) {
	const each = 6
	m := serverstest.SharedMinIO(t)
	for sdk, open := range sdks {
		for _, sequences := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/sequences=%v", sdk, sequences), func(t *testing.T) {
				bucket := newBucket(t, m)
				store := open(t, m, bucket)
				iss := local(t)
				toks := take(t, iss, "publish", 1)
				mustPublish(t, store, toks[0], bodies{"first": "0"}, nil)
				var sequence atomic.Int64
				sequence.Store(1)
				next := func() (guard.Token, int64, error) {
					if sequences {
						return toks[0], sequence.Add(1), nil
					}
					tok, err := iss.Issue(t.Context(), "publish")
					return tok, 1, err
				}

				lossy, _ := behind(t, m, "PUT key="+manifest+" nth=2 drop-answer\nPUT key="+manifest+" nth=3 reset\nPUT prefix=ds/data/ nth=4 drop-answer")
				var mu sync.Mutex
				want, last := bodies{"first": "0"}, guard.Record{}
				var writers, cleaner sync.WaitGroup
				for process, s := range []guard.Store{open(t, lossy, bucket), open(t, m, bucket)} {
					writers.Go(func() {
						g := guard.New(s, impatient)
						for n := 0; n < each; {
							tok, seq, err := next()
							if err != nil {
								t.Error(err)
								return
							}
							own, body := fmt.Sprintf("own/%d-%d", process, n), fmt.Sprintf("%s, sequence %d", tok, seq)
							set, err := g.Publish(t.Context(), tok, "ds", toPublish(bodies{own: body, "shared": body}),
								&guard.PublishOptions{Append: true, Sequence: seq})
							if guard.ReasonOf(err) == guard.ErrStale {
								continue // with the next number
							}
							if err != nil {
								t.Error(err)
								return
							}
							n++
							mu.Lock()
							want[own] = body
							if r := set.Record; r.Number > last.Number || r.Number == last.Number && r.Sequence > last.Sequence {
								last, want["shared"] = r, body
							}
							mu.Unlock()
						}
					})
				}
				done := make(chan struct{})
				cleaner.Go(func() {
					g := guard.New(open(t, m, bucket), nil)
					for {
						if _, err := collect(t.Context(), g); err != nil {
							t.Error(err)
							return
						}
						select {
						case <-done:
							return
						default:
						}
					}
				})
				writers.Wait()
				close(done)
				cleaner.Wait()
				mustCollect(t, guard.New(store, nil))

				set := wantSet(t, store, want)
				if *set.Record != last {
					t.Errorf("the set is of %s, the last that was told of success %s", set.Record, last)
				}
				// At the set's own number all stays.
				for _, key := range dataKeys(t, store) {
					if n, _, ok := guard.DataKey(key); (!ok || n < last.Number) && !slices.Contains(setKeys(set.Files), key) {
						t.Errorf("%s is left", key)
					}
				}
				if sequences && strings.Count(strings.Join(dataKeys(t, store), "\n"), "/shared") < 2*each {
					t.Errorf("left are %q: too few", dataKeys(t, store))
				}
			})
		}
	}
}
