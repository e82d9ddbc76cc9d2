package guard_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/internal/mems3"
)

const mib = 1 << 20

// noise returns bytes that no shift or swap leaves the same.
func noise(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed)})
	_, _ = r.Read(b)
	return b
}

// upload is a way to hand over a body.
type uploadForm struct {
	name string
	put  func(g *guard.Guard, tok guard.Token, key string, b []byte, o *guard.PutOptions) (guard.Result, error)
}

func uploadForms(t *testing.T) []uploadForm {
	return []uploadForm{
		{"file", func(g *guard.Guard, tok guard.Token, key string, b []byte, o *guard.PutOptions) (guard.Result, error) {
			return g.Put(t.Context(), tok, key, guard.Bytes(b), o)
		}},
		{"stream", func(g *guard.Guard, tok guard.Token, key string, b []byte, o *guard.PutOptions) (guard.Result, error) {
			return g.PutStream(t.Context(), tok, key, iotest.HalfReader(bytes.NewReader(b)), o)
		}},
	}
}

func TestUploadInParts(t *testing.T) {
	for _, f := range uploadForms(t) {
		for _, size := range []int{0, 1, 6*mib - 1, 6 * mib, 8 * mib, 8*mib + 1, 16 * mib, 24*mib + 3} {
			t.Run(fmt.Sprint(f.name, size), func(t *testing.T) {
				m := mems3.New() // MD5 ETags
				b := noise(1, size)
				o := &guard.PutOptions{Headers: guard.Headers{ContentType: "text/x"}, Tags: map[string]string{"a": "b"}}
				res, err := f.put(newGuard(m), token(t, 5), "k", b, o)
				if err != nil || res.Outcome != guard.Created || res.Bytes != int64(size) || m.Body("k") != string(b) {
					t.Fatalf("%+v, %v", res, err)
				}
				first := res.ETag
				tags, err := m.Tags(t.Context(), "k", "")
				if obj := stand(t, m, "k"); obj.ContentType != "text/x" || err != nil || tags["a"] != "b" {
					t.Errorf("%+v, tags %v, %v", obj, tags, err)
				}
				// The same bytes over it: their ETag must not come back.
				res, err = f.put(newGuard(m), token(t, 6), "k", b, o)
				if size < 6*mib {
					wantRefusal(t, err, guard.ErrRepeatableETag)
					return
				}
				if err != nil || res.Outcome != guard.Replaced || res.ETag == first || res.ETagKind != guard.ETagSalted || m.Body("k") != string(b) {
					t.Fatalf("again: %+v, %v", res, err)
				}
				_, err = f.put(newGuard(m), token(t, 5), "k", b, o)
				wantRefusal(t, err, guard.ErrStale)
				noUploads(t, m)
			})
		}
	}
}

// Case 13 for a body in parts.
func TestUploadSameBytes(t *testing.T) {
	for _, f := range uploadForms(t) {
		m := mems3.New()
		b := noise(2, 17*mib)
		if _, err := f.put(newGuard(m), token(t, 5), "k", b, nil); err != nil {
			t.Fatal(err)
		}
		paused := false
		m.Before = func(op, _ string) error {
			if op == "complete" && !paused {
				paused = true
				if _, err := f.put(newGuard(m), token(t, 7), "k", b, nil); err != nil {
					t.Error(err)
				}
			}
			return nil
		}
		_, err := f.put(newGuard(m), token(t, 6), "k", b, nil)
		if r := wantRefusal(t, err, guard.ErrStale); r.Held.Number != 7 || r.MayHaveApplied {
			t.Errorf("%s: %+v", f.name, r)
		}
		noUploads(t, m)
	}
}

// The answers to a completion, and what becomes of the parts.
func TestUploadCompletion(t *testing.T) {
	for _, f := range uploadForms(t) {
		for _, tt := range []struct {
			name string
			hook func(m *mems3.Store)
			want func(res guard.Result, err error) bool
			all  bool // of the parts are sent again
		}{
			{"lost answer", func(m *mems3.Store) { m.After = once("complete", 1, errLost) },
				func(res guard.Result, err error) bool { return err == nil && res.Outcome == guard.AlreadyApplied }, false},
			{"lost request", func(m *mems3.Store) { m.Before = once("complete", 1, errLost) },
				func(res guard.Result, err error) bool { return err == nil && res.Outcome == guard.Created }, false},
			{"conflict", func(m *mems3.Store) { m.Before = once("complete", 1, guard.ErrConflict) },
				func(res guard.Result, err error) bool { return err == nil && res.Outcome == guard.Created }, false},
			{"conflict for ever", func(m *mems3.Store) { m.Before = always("complete", guard.ErrConflict) },
				func(_ guard.Result, err error) bool {
					return errors.Is(err, guard.ErrConflict) && guard.ReasonOf(err) == ""
				}, false},
			{"overtaken by an older one", func(m *mems3.Store) {
				m.Before = func(op, _ string) error {
					if op == "complete" {
						m.Before = nil
						mustPut(t, newGuard(m), 4, "k", "four", nil)
					}
					return nil
				}
			}, func(res guard.Result, err error) bool {
				return err == nil && res.Outcome == guard.Replaced && res.Previous.Number == 4
			}, false},
			{"its upload gone", func(m *mems3.Store) { m.Before = once("complete", 1, guard.ErrNoUpload) },
				func(res guard.Result, err error) bool {
					if f.name == "stream" {
						return errors.Is(err, guard.ErrRejected) && strings.Contains(err.Error(), "run it again from the start")
					}
					return err == nil && res.Outcome == guard.Created
				}, true},
		} {
			t.Run(f.name+" "+tt.name, func(t *testing.T) {
				m := mems3.New()
				parts := 0
				tt.hook(m)
				before := m.Before
				var mu sync.Mutex
				m.Before = func(op, key string) error {
					if op == "upload-part" {
						mu.Lock()
						parts++
						mu.Unlock()
					}
					if before != nil {
						return before(op, key)
					}
					return nil
				}
				b := noise(3, 20*mib)
				res, err := f.put(newGuard(m), token(t, 5), "k", b, nil)
				if !tt.want(res, err) {
					t.Errorf("%+v, %v", res, err)
				}
				if err == nil && m.Body("k") != string(b) || err != nil && m.Body("k") != "(absent)" {
					t.Error("holds something else")
				}
				if again := parts > 4; again != (tt.all && f.name == "file") {
					t.Errorf("%d parts were sent", parts)
				}
				if !tt.all { // there, the store only said so
					noUploads(t, m)
				}
			})
		}
	}
}

// Case 5: the upload is aborted behind our back while another object stands at
// the key: that something is there proves nothing.
func TestUploadAbortedBehindOurBack(t *testing.T) {
	for _, tt := range []struct {
		name   string
		there  func(m *mems3.Store)
		reason guard.Reason
	}{
		{"theirs", func(m *mems3.Store) { m.Overwrite("k", "theirs", nil) }, guard.ErrUnfenced},
		{"newer", func(m *mems3.Store) { mustPut(t, newGuard(m), 9, "k", "nine", nil) }, guard.ErrStale},
		{"nothing", func(*mems3.Store) {}, ""},
	} {
		m := mems3.New()
		m.Before = func(op, _ string) error {
			if op == "complete" {
				m.Before = nil
				for up := range m.Uploads(t.Context(), "") {
					if err := m.AbortUpload(t.Context(), up); err != nil {
						t.Error(err)
					}
				}
				tt.there(m)
			}
			return nil
		}
		b := noise(4, 20*mib)
		res, err := newGuard(m).Put(t.Context(), token(t, 5), "k", guard.Bytes(b), nil)
		if tt.reason != "" {
			wantRefusal(t, err, tt.reason)
		} else if err != nil || res.Outcome != guard.Created || m.Body("k") != string(b) {
			t.Errorf("%s: %+v, %v", tt.name, res, err)
		}
		noUploads(t, m)
	}
}

// Where a refused completion ends the upload, a file is sent again.
func TestUploadForgotten(t *testing.T) {
	m := mems3.New()
	m.ForgetRefused = true
	m.Before = func(op, _ string) error {
		if op == "complete" {
			m.Before = nil
			mustPut(t, newGuard(m), 4, "k", "four", nil)
		}
		return nil
	}
	b := noise(4, 20*mib)
	res, err := newGuard(m).Put(t.Context(), token(t, 5), "k", guard.Bytes(b), nil)
	if err != nil || res.Outcome != guard.Replaced || m.Body("k") != string(b) {
		t.Errorf("%+v, %v", res, err)
	}
	noUploads(t, m)
}

// An upload that is too late ends early, and leaves nothing behind.
func TestUploadDoomed(t *testing.T) {
	b := make([]byte, 300*mib)
	for _, f := range uploadForms(t) {
		m := mems3.New()
		s := &counting{Store: m}
		newer := make(chan struct{})
		s.each = func(n int) {
			if n == 10 {
				mustPut(t, newGuard(m), 9, "k", "nine", nil)
				close(newer)
			}
			if n > 10 {
				<-newer
			}
		}
		o := &guard.PutOptions{PartSize: guard.MinPart, Concurrency: 2}
		_, err := f.put(newGuard(s), token(t, 5), "k", b, o)
		if r := wantRefusal(t, err, guard.ErrStale); r.Held.Number != 9 {
			t.Errorf("%+v", r)
		}
		if len(s.parts) > 40 {
			t.Errorf("%s: %d of 60 parts were sent", f.name, len(s.parts))
		}
		noUploads(t, m)
	}
}

// What is refused anyway is not read.
func TestUploadStreamIsNotReadInVain(t *testing.T) {
	m := mems3.New()
	mustPut(t, newGuard(m), 9, "k", "nine", nil)
	_, err := newGuard(m).PutStream(t.Context(), token(t, 5), "k", iotest.ErrReader(errors.New("it was read")), nil)
	wantRefusal(t, err, guard.ErrStale)
}

func TestUploadBrokenBody(t *testing.T) {
	broken := errors.New("the pipe broke")
	for _, at := range []int{0, 3, 20 * mib} {
		for _, cause := range []error{broken, io.ErrUnexpectedEOF} {
			m := mems3.New()
			r := io.MultiReader(bytes.NewReader(noise(6, at)), iotest.ErrReader(cause))
			_, err := newGuard(m).PutStream(t.Context(), token(t, 5), "k", r, nil)
			if !errors.Is(err, cause) || !errors.Is(err, guard.ErrRejected) || guard.ReasonOf(err) != "" {
				t.Errorf("%d: %v", at, err)
			}
			if m.Body("k") != "(absent)" {
				t.Errorf("%d: something was written", at)
			}
			noUploads(t, m)
		}
	}
	m := mems3.New()
	_, err := newGuard(m).Put(t.Context(), token(t, 5), "k", guard.ReaderAt(bytes.NewReader(noise(7, 10*mib)), 30*mib), nil)
	if !errors.Is(err, guard.ErrRejected) || m.Body("k") != "(absent)" {
		t.Errorf("a file that became shorter: %v", err)
	}
	noUploads(t, m)
}

func TestUploadCanceled(t *testing.T) {
	for _, op := range []string{"create-upload", "upload-part", "complete"} {
		m := mems3.New()
		ctx, cancel := context.WithCancel(t.Context())
		m.Before = func(o, _ string) error {
			if o == op {
				cancel()
				return ctx.Err()
			}
			return nil
		}
		_, err := newGuard(m).PutStream(ctx, token(t, 5), "k", bytes.NewReader(noise(8, 20*mib)), nil)
		want := guard.Reason("")
		if op == "complete" {
			want = guard.ErrOutcomeUnknown
		}
		if !errors.Is(err, context.Canceled) || guard.ReasonOf(err) != want {
			t.Errorf("%s: %v", op, err)
		}
		noUploads(t, m)
	}
	// A read that hangs holds nothing up.
	r, w := io.Pipe()
	defer w.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	m := mems3.New()
	if _, err := newGuard(m).PutStream(ctx, token(t, 5), "k", r, nil); !errors.Is(err, context.DeadlineExceeded) || guard.ReasonOf(err) != "" {
		t.Errorf("%v", err)
	}
}

// A stream of unknown length grows its parts.
func TestUploadGrows(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: moves 10 GB through memory")
	}
	s := &counting{Store: mems3.New()}
	const size = 901*guard.MinPart + 20*mib
	res, err := newGuard(s).PutStream(t.Context(), token(t, 5), "k", io.LimitReader(zeros{}, size), &guard.PutOptions{PartSize: guard.MinPart})
	if err != nil || res.Bytes != size {
		t.Fatalf("%+v, %v", res, err)
	}
	var total int64
	for n, p := range s.parts {
		total += p
		if last := n == len(s.parts)-1; !last && p < guard.MinPart || n >= 900 && !last && p != 2*guard.MinPart {
			t.Errorf("part %d has %d bytes", n+1, p)
		}
	}
	if n := len(s.parts); total != size || n < 902 || n > 904 { // by the salt of the first
		t.Errorf("%d bytes in %d parts", total, len(s.parts))
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// counting keeps the sizes of parts and throws the bytes away.
type counting struct {
	*mems3.Store
	each  func(n int)
	mu    sync.Mutex
	parts []int64
}

func (c *counting) UploadPart(_ context.Context, _ guard.Upload, n int, b guard.Body) (guard.Part, error) {
	if _, err := io.Copy(io.Discard, b.Reader()); err != nil {
		return guard.Part{}, err
	}
	if c.each != nil {
		c.each(n)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.parts) < n {
		c.parts = append(c.parts, 0)
	}
	c.parts[n-1] = b.Size()
	return guard.Part{Number: n, ETag: fmt.Sprint(n), Size: b.Size()}, nil
}

func (c *counting) CompleteUpload(context.Context, guard.Upload, guard.CompleteRequest) (guard.PutResult, error) {
	return guard.PutResult{ETag: `"x-904"`}, nil
}

// A store that does not honour the conditions of a completion gets none.
func TestUploadWhereMultipartIsUnsafe(t *testing.T) {
	m := mems3.New()
	open := func() *guard.Guard {
		return guard.New(m, &guard.Options{RootStore: mems3.New(), Profile: func(context.Context) (guard.Profile, error) {
			return guard.Profile{Pass: true, Limits: []string{"multipart-if-match"}}, nil
		}})
	}
	b := noise(9, 20*mib)
	if res := mustPut(t, open(), 5, "k", string(b), nil); res.Outcome != guard.Created || strings.Contains(res.ETag, "-") {
		t.Errorf("in one part: %+v", res)
	}
	_, err := open().Put(t.Context(), token(t, 6), "k", guard.Bytes(b), nil)
	wantRefusal(t, err, guard.ErrRepeatableETag)
	_, err = open().PutStream(t.Context(), token(t, 6), "s", bytes.NewReader(b), nil)
	if r := wantRefusal(t, err, guard.ErrStoreUnsafe); !strings.Contains(r.Detail, "multipart-if-match") {
		t.Errorf("%+v", r)
	}
	m.Overwrite("theirs", "x", nil)
	_, err = open().Adopt(t.Context(), token(t, 6), "theirs", nil)
	wantRefusal(t, err, guard.ErrStoreUnsafe)
	// What is too large for one part, also where it is not to be sent.
	_, err = open().Put(t.Context(), token(t, 6), "huge", guard.ReaderAt(bytes.NewReader(nil), 6<<30), &guard.PutOptions{DryRun: true})
	wantRefusal(t, err, guard.ErrStoreUnsafe)
}
