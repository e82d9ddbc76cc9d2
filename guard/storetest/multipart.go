package storetest

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/s3fence/s3fence/guard"
)

// partSize is the least that S3 takes for any part but the last.
const partSize = 5 << 20

// big is n bytes that are the same every time.
func big(n int) []byte {
	b := make([]byte, n)
	rng := rand.NewChaCha8([32]byte{2})
	_, _ = rng.Read(b)
	return b
}

// begin begins an upload, which is thrown away when the test ends.
func begin(t *testing.T, s guard.Store, key string, req guard.UploadRequest) guard.Upload {
	t.Helper()
	up, err := s.CreateUpload(t.Context(), key, req)
	if err != nil {
		t.Fatalf("create upload of %q: %v", key, err)
	}
	if up.Key != key || up.ID == "" || up.Checksum != req.Checksum {
		t.Errorf("create upload of %q: %+v", key, up)
	}
	t.Cleanup(func() { _ = s.AbortUpload(context.WithoutCancel(t.Context()), up) })
	return up
}

// send sends one part.
func send(t *testing.T, s guard.Store, up guard.Upload, number int, body []byte) guard.Part {
	t.Helper()
	p, err := s.UploadPart(t.Context(), up, number, guard.Bytes(body))
	if err != nil {
		t.Fatalf("part %d of %q: %v", number, up.Key, err)
	}
	if p.Number != number || p.ETag == "" || p.Size != int64(len(body)) {
		t.Errorf("part %d of %q, %d bytes: %+v", number, up.Key, len(body), p)
	}
	return p
}

// An assembled is an upload whose parts are sent: all but its completion.
type assembled struct {
	up    guard.Upload
	parts []guard.Part
	body  []byte
	h     guard.Headers
}

// assemble begins an upload of key and sends its parts.
func assemble(t *testing.T, s guard.Store, key string, h guard.Headers, parts ...[]byte) assembled {
	t.Helper()
	a := assembled{up: begin(t, s, key, guard.UploadRequest{Headers: h}), h: h}
	for i, p := range parts {
		a.parts = append(a.parts, send(t, s, a.up, i+1, p))
		a.body = append(a.body, p...)
	}
	return a
}

func (a assembled) complete(t *testing.T, s guard.Store, c guard.Condition) (guard.PutResult, error) {
	t.Helper()
	return s.CompleteUpload(t.Context(), a.up, guard.CompleteRequest{Condition: c, Parts: a.parts})
}

// become completes the upload and checks that it is the object.
func (a assembled) become(t *testing.T, s guard.Store, c guard.Condition) written {
	t.Helper()
	res, err := a.complete(t, s, c)
	if err != nil {
		t.Fatalf("complete the upload of %q: %v", a.up.Key, err)
	}
	w := written{a.body, a.h, res}
	stands(t, s, a.up.Key, w)
	return w
}

// underWay returns the ids of the uploads under way of keys with a prefix, by key.
func underWay(t *testing.T, s guard.Store, prefix string) map[string][]string {
	t.Helper()
	m := map[string][]string{}
	for up, err := range s.Uploads(t.Context(), prefix) {
		if err != nil {
			t.Fatalf("uploads of %q: %v", prefix, err)
		}
		m[up.Key] = append(m[up.Key], up.ID)
	}
	for _, ids := range m {
		slices.Sort(ids)
	}
	return m
}

func (h Harness) multipart(t *testing.T) {
	whole := big(partSize + 1000)
	h.run(t, "Multipart/two-parts", func(t *testing.T) {
		s := h.Open(t)
		key := "a/b c+100%.csv"
		up := begin(t, s, key, guard.UploadRequest{Headers: meta("n", "1")})
		// In any order, and one of them twice: the later bytes count.
		send(t, s, up, 7, []byte("not these"))
		last := send(t, s, up, 7, whole[partSize:])
		first := send(t, s, up, 2, whole[:partSize])
		absent(t, s, key)
		lists(t, s, guard.ListOptions{})
		a := assembled{up, []guard.Part{first, last}, whole, meta("n", "1")}
		w := a.become(t, s, guard.IfAbsent())
		for _, l := range lists(t, s, guard.ListOptions{}, key) {
			if l.ETag != w.res.ETag || l.Size != int64(len(whole)) {
				t.Errorf("list: %+v, want ETag %s and size %d", l, w.res.ETag, len(whole))
			}
		}
		// It can be replaced as any other, and replace.
		w = put(t, s, key, guard.IfMatch(w.res.ETag), "put", meta())
		w = assemble(t, s, key, meta("n", "3"), []byte("three")).become(t, s, guard.IfMatch(w.res.ETag))
		put(t, s, key, guard.IfMatch(w.res.ETag), "", meta())
	})
	h.run(t, "Multipart/some-parts", func(t *testing.T) {
		// Parts that the completion leaves out are thrown away.
		s := h.Open(t)
		a := assemble(t, s, "k", meta(), []byte("ours"), []byte("not ours"))
		a.parts, a.body = a.parts[:1], a.body[:4]
		a.become(t, s, guard.IfAbsent())
	})
	h.run(t, "Multipart/empty", func(t *testing.T) {
		s := h.Open(t)
		assemble(t, s, "k", meta("n", "1"), nil).become(t, s, guard.IfAbsent())
	})
	// What makes a multipart ETag unique: where the parts end, and that there
	// are parts. The guard stakes a replacement on it.
	h.run(t, "Multipart/boundary", func(t *testing.T) {
		s := h.Open(t)
		one := assemble(t, s, "one", meta(), whole[:partSize], whole[partSize:]).become(t, s, guard.IfAbsent())
		two := assemble(t, s, "two", meta(), whole[:partSize+1], whole[partSize+1:]).become(t, s, guard.IfAbsent())
		if one.res.ETag == two.res.ETag {
			t.Errorf("the same bytes in other parts have the same ETag %s", one.res.ETag)
		}
		for _, body := range []string{"", "x"} {
			multi := assemble(t, s, "multi"+body, meta(), []byte(body)).become(t, s, guard.IfAbsent())
			single := put(t, s, "single"+body, guard.IfAbsent(), body, meta())
			if multi.res.ETag == single.res.ETag {
				t.Errorf("the bytes %q put whole and in parts have the same ETag %s", body, single.res.ETag)
			}
		}
	})
	h.run(t, "Multipart/bad-parts", func(t *testing.T) {
		s := h.Open(t)
		a := assemble(t, s, "k", meta(), []byte("too small"), []byte("last"))
		other := assemble(t, s, "k", meta(), []byte("other"))
		wrong := a.parts[0]
		wrong.ETag = other.parts[0].ETag
		missing := a.parts[0]
		missing.Number = 9
		for name, parts := range map[string][]guard.Part{
			"too small": a.parts, "of another upload": {wrong}, "never sent": {missing}, "none": nil,
		} {
			_, err := s.CompleteUpload(t.Context(), a.up, guard.CompleteRequest{Condition: guard.IfAbsent(), Parts: parts})
			if !errors.Is(err, guard.ErrRejected) {
				t.Errorf("parts %s: %v, want %v", name, err, guard.ErrRejected)
			}
			absent(t, s, "k")
		}
	})
	h.run(t, "Multipart/no-condition", func(t *testing.T) {
		s := h.Open(t)
		a := assemble(t, s, "k", meta(), []byte("x"))
		if _, err := a.complete(t, s, guard.Condition{}); err == nil {
			t.Error("an upload was completed without a condition")
		}
		absent(t, s, "k")
		a.become(t, s, guard.IfAbsent())
	})
	// A completion that comes again, late, as a duplicated request does.
	h.run(t, "Multipart/again", func(t *testing.T) {
		s := h.Open(t)
		a := assemble(t, s, "k", meta("n", "1"), []byte("first"))
		w := a.become(t, s, guard.IfAbsent())
		_, err := a.complete(t, s, guard.IfAbsent())
		refused(t, err, guard.ErrNoUpload, guard.ErrPreconditionFailed)
		_, err = a.complete(t, s, guard.IfMatch(w.res.ETag))
		refused(t, err, guard.ErrNoUpload, guard.ErrPreconditionFailed)
		stands(t, s, "k", w)
		w = put(t, s, "k", guard.IfMatch(w.res.ETag), "second", meta("n", "2"))
		for _, c := range []guard.Condition{guard.IfAbsent(), guard.IfMatch(w.res.ETag)} {
			_, err = a.complete(t, s, c)
			refused(t, err, guard.ErrNoUpload, guard.ErrPreconditionFailed)
			stands(t, s, "k", w)
		}
	})
	if h.Versioned != nil {
		h.run(t, "Multipart/versioned", func(t *testing.T) {
			s, remove := h.Versioned(t)
			w := assemble(t, s, "k", meta("n", "1"), []byte("one")).become(t, s, guard.IfAbsent())
			w2 := assemble(t, s, "k", meta("n", "2"), []byte("two")).become(t, s, guard.IfMatch(w.res.ETag))
			if w.res.VersionID == w2.res.VersionID {
				t.Errorf("two completions have the same version %q", w.res.VersionID)
			}
			for _, w := range []written{w, w2} {
				obj, err := s.Head(t.Context(), "k", guard.HeadOptions{VersionID: w.res.VersionID})
				if err != nil {
					t.Fatal(err)
				}
				same(t, "head by version id", obj, w)
			}
			remove(t, "k")
			late := assemble(t, s, "k", meta("n", "3"), []byte("three"))
			_, err := late.complete(t, s, guard.IfMatch(w2.res.ETag))
			refused(t, err, guard.ErrNotFound, guard.ErrPreconditionFailed)
			absent(t, s, "k")
			assemble(t, s, "k", meta("n", "4"), []byte("four")).become(t, s, guard.IfAbsent())
		})
	}
}

// settled completes an upload that was refused before under a condition that
// holds. It either becomes the object or is gone, and then before stands.
func settled(t *testing.T, s guard.Store, a assembled, c guard.Condition, before *written) {
	t.Helper()
	res, err := a.complete(t, s, c)
	switch {
	case err == nil:
		stands(t, s, a.up.Key, written{a.body, a.h, res})
	case !errors.Is(err, guard.ErrNoUpload):
		t.Errorf("a refused upload, completed again: %v, want success or %v", err, guard.ErrNoUpload)
	case before == nil:
		absent(t, s, a.up.Key)
	default:
		stands(t, s, a.up.Key, *before)
	}
}

func (h Harness) multipartConditions(t *testing.T) {
	h.run(t, "MultipartConditions/if-absent", func(t *testing.T) {
		s := h.Open(t)
		w := put(t, s, "k", guard.IfAbsent(), "first", meta("n", "1"))
		a := assemble(t, s, "k", meta("n", "2"), []byte("first"))
		_, err := a.complete(t, s, guard.IfAbsent())
		refused(t, err, guard.ErrPreconditionFailed)
		stands(t, s, "k", w)
		settled(t, s, a, guard.IfMatch(w.res.ETag), &w)
	})
	h.run(t, "MultipartConditions/if-match", func(t *testing.T) {
		s := h.Open(t)
		other := put(t, s, "other", guard.IfAbsent(), "other", meta())
		w := put(t, s, "k", guard.IfAbsent(), "first", meta("n", "1"))
		a := assemble(t, s, "k", meta("n", "2"), []byte("second"))
		_, err := a.complete(t, s, guard.IfMatch(other.res.ETag))
		refused(t, err, guard.ErrPreconditionFailed)
		stands(t, s, "k", w)
		settled(t, s, a, guard.IfMatch(w.res.ETag), &w)

		// The ETag of an upload is as good as any other, and no better once it is gone.
		obj, err := s.Head(t.Context(), "k", guard.HeadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		w = assemble(t, s, "k", meta("n", "3"), []byte("third")).become(t, s, guard.IfMatch(obj.ETag))
		w2 := assemble(t, s, "k", meta("n", "4"), []byte("fourth")).become(t, s, guard.IfMatch(w.res.ETag))
		_, err = assemble(t, s, "k", meta("n", "5"), []byte("fifth")).complete(t, s, guard.IfMatch(w.res.ETag))
		refused(t, err, guard.ErrPreconditionFailed)
		stands(t, s, "k", w2)
	})
	h.run(t, "MultipartConditions/if-match-missing", func(t *testing.T) {
		s := h.Open(t)
		other := put(t, s, "other", guard.IfAbsent(), "other", meta())
		a := assemble(t, s, "k", meta("n", "1"), []byte("x"))
		_, err := a.complete(t, s, guard.IfMatch(other.res.ETag))
		refused(t, err, guard.ErrNotFound, guard.ErrPreconditionFailed)
		absent(t, s, "k")
		settled(t, s, a, guard.IfAbsent(), nil)
	})
}

const (
	completers      = 32
	multipartRounds = 2
)

// contest has writers write to key at once, and checks that one of them won
// and that key holds that one's write. A loser's upload may be gone.
func contest(t *testing.T, s guard.Store, key string, writers []func() (written, error)) written {
	t.Helper()
	var (
		wg    sync.WaitGroup
		start = make(chan struct{})
		ws    = make([]written, len(writers))
		errs  = make([]error, len(writers))
	)
	for i, write := range writers {
		wg.Go(func() {
			<-start
			ws[i], errs[i] = write()
		})
	}
	close(start)
	wg.Wait()
	winner := -1
	for i, err := range errs {
		switch {
		case err == nil && winner >= 0:
			t.Fatalf("writers %d and %d both won", winner, i)
		case err == nil:
			winner = i
		default:
			refused(t, err, guard.ErrPreconditionFailed, guard.ErrConflict, guard.ErrNoUpload)
		}
	}
	if winner < 0 {
		t.Fatalf("nobody won: %v", errors.Join(errs...))
	}
	stands(t, s, key, ws[winner])
	return ws[winner]
}

// completions are n uploads of key, each ready to be completed under c. Their
// bytes are of that round alone: where ETags are hashes, one that comes back
// would let a loser in.
func completions(t *testing.T, s guard.Store, key string, c guard.Condition, round, n int) []func() (written, error) {
	t.Helper()
	var writers []func() (written, error)
	for i := range n {
		name := fmt.Sprintf("upload %d.%d", round, i)
		// Bodies of different lengths: a mix of two would show.
		a := assemble(t, s, key, meta("writer", name), bytes.Repeat([]byte(name+"\n"), 1+i*50))
		writers = append(writers, func() (written, error) {
			res, err := a.complete(t, s, c)
			return written{a.body, a.h, res}, err
		})
	}
	return writers
}

func (h Harness) multipartRace(t *testing.T) {
	h.run(t, "MultipartRace/creators", func(t *testing.T) {
		s := h.Open(t)
		for round := range multipartRounds {
			key := fmt.Sprint("k", round)
			contest(t, s, key, completions(t, s, key, guard.IfAbsent(), round, completers))
		}
	})
	h.run(t, "MultipartRace/replacers", func(t *testing.T) {
		s := h.Open(t)
		w := put(t, s, "k", guard.IfAbsent(), "first", meta())
		for round := range multipartRounds {
			w = contest(t, s, "k", completions(t, s, "k", guard.IfMatch(w.res.ETag), round, completers))
		}
	})
	// One upload, completed by several at once: a request that was duplicated.
	h.run(t, "MultipartRace/one-upload", func(t *testing.T) {
		s := h.Open(t)
		for round := range multipartRounds {
			key := fmt.Sprint("k", round)
			one := completions(t, s, key, guard.IfAbsent(), round, 1)
			contest(t, s, key, slices.Repeat(one, 8))
		}
	})
}

func (h Harness) multipartAgainstPut(t *testing.T) {
	against := func(t *testing.T, s guard.Store, key string, c guard.Condition, round int) written {
		t.Helper()
		writers := completions(t, s, key, c, round, racers)
		for i := range racers {
			name := fmt.Sprintf("put %d.%d", round, i)
			w := written{body: bytes.Repeat([]byte(name+"\n"), 1+i*50), h: meta("writer", name)}
			writers = slices.Insert(writers, 2*i, func() (written, error) {
				var err error
				w.res, err = s.Put(t.Context(), key, request(c, w.body, w.h))
				return w, err
			})
		}
		return contest(t, s, key, writers)
	}
	h.run(t, "MultipartAgainstPut/creators", func(t *testing.T) {
		s := h.Open(t)
		for round := range multipartRounds {
			against(t, s, fmt.Sprint("k", round), guard.IfAbsent(), round)
		}
	})
	h.run(t, "MultipartAgainstPut/replacers", func(t *testing.T) {
		s := h.Open(t)
		w := put(t, s, "k", guard.IfAbsent(), "first", meta())
		for round := range multipartRounds {
			w = against(t, s, "k", guard.IfMatch(w.res.ETag), round)
		}
	})
}

// gone checks that nothing can be done with an upload any more.
func gone(t *testing.T, s guard.Store, a assembled, c guard.Condition, src guard.CopySource) {
	t.Helper()
	_, err := s.UploadPart(t.Context(), a.up, 1, guard.Bytes([]byte("late")))
	refused(t, err, guard.ErrNoUpload)
	_, err = s.CopyPart(t.Context(), a.up, 1, src)
	refused(t, err, guard.ErrNoUpload)
	_, err = a.complete(t, s, c)
	refused(t, err, guard.ErrNoUpload)
	if ids := underWay(t, s, a.up.Key)[a.up.Key]; slices.Contains(ids, a.up.ID) {
		t.Errorf("an upload that is gone is listed: %q", ids)
	}
}

func (h Harness) multipartAbort(t *testing.T) {
	abort := func(t *testing.T, s guard.Store, up guard.Upload) {
		t.Helper()
		if err := s.AbortUpload(t.Context(), up); err != nil {
			t.Fatalf("abort: %v", err)
		}
	}
	for name, there := range map[string]bool{"new": false, "replacing": true} {
		h.run(t, "MultipartAbort/"+name, func(t *testing.T) {
			s := h.Open(t)
			w := put(t, s, "src", guard.IfAbsent(), "source", meta())
			src := guard.CopySource{Key: "src", ETag: w.res.ETag}
			c := guard.IfAbsent()
			if there {
				w = put(t, s, "k", c, "first", meta("n", "1"))
				c = guard.IfMatch(w.res.ETag)
			}
			a := assemble(t, s, "k", meta("n", "2"), []byte("x"))
			kept := assemble(t, s, "k", meta("n", "3"), []byte("kept"))
			abort(t, s, a.up)
			gone(t, s, a, c, src)
			if there {
				stands(t, s, "k", w)
			} else {
				absent(t, s, "k")
			}
			// The other upload of the key is none the wiser.
			kept.become(t, s, c)
		})
	}
	h.run(t, "MultipartAbort/again", func(t *testing.T) {
		s := h.Open(t)
		a := assemble(t, s, "k", meta(), []byte("x"))
		abort(t, s, a.up)
		refused(t, s.AbortUpload(t.Context(), a.up), guard.ErrNoUpload)
	})
	h.run(t, "MultipartAbort/completed", func(t *testing.T) {
		s := h.Open(t)
		a := assemble(t, s, "k", meta(), []byte("x"))
		w := a.become(t, s, guard.IfAbsent())
		err := s.AbortUpload(t.Context(), a.up)
		stands(t, s, "k", w)
		refused(t, err, guard.ErrNoUpload)
	})
}

func (h Harness) multipartMissing(t *testing.T) {
	start := func(t *testing.T) (guard.Store, written, guard.CopySource) {
		s := h.Open(t)
		w := put(t, s, "k", guard.IfAbsent(), "first", meta("n", "1"))
		return s, w, guard.CopySource{Key: "k", ETag: w.res.ETag}
	}
	made := guard.Upload{Key: "new", ID: "bm8tc3VjaC11cGxvYWQ"}
	h.run(t, "MultipartMissing/made-up", func(t *testing.T) {
		s, w, src := start(t)
		gone(t, s, assembled{up: made, parts: []guard.Part{{Number: 1, ETag: w.res.ETag}}}, guard.IfAbsent(), src)
		stands(t, s, "k", w)
		absent(t, s, "new")
	})
	// An id is that of one key's upload.
	h.run(t, "MultipartMissing/other-key", func(t *testing.T) {
		s, w, src := start(t)
		mine := assemble(t, s, "mine", meta(), []byte("x"))
		for key, c := range map[string]guard.Condition{"k": guard.IfMatch(w.res.ETag), "new": guard.IfAbsent()} {
			moved := mine
			moved.up.Key = key
			gone(t, s, moved, c, src)
		}
		stands(t, s, "k", w)
		absent(t, s, "new")
		mine.become(t, s, guard.IfAbsent())
	})
	h.run(t, "MultipartMissing/abort", func(t *testing.T) {
		s, _, _ := start(t)
		mine := assemble(t, s, "mine", meta(), []byte("x"))
		moved := mine.up
		moved.Key = "k"
		for _, up := range []guard.Upload{made, moved} {
			refused(t, s.AbortUpload(t.Context(), up), guard.ErrNoUpload)
		}
		mine.become(t, s, guard.IfAbsent())
	})
}

func (h Harness) multipartHeaders(t *testing.T) {
	s := h.Open(t)
	req := guard.UploadRequest{
		Headers: guard.Headers{
			ContentType:        "text/csv; charset=utf-8",
			ContentEncoding:    "gzip", // of bytes that are not: nobody may unpack them
			ContentDisposition: `attachment; filename="a b.csv"`,
			ContentLanguage:    "en, de",
			CacheControl:       "max-age=60, must-revalidate",
			Expires:            "Tue, 01 Dec 2026 10:00:00 GMT",
			Metadata:           map[string]string{guard.RecordKey: "r1:a/b:00000000000000000001", "a-9": `!"#$%&'()*+,-./:;<=>?@[\]^_{|}~`},
		},
		SSE:  h.SSE,
		Tags: map[string]string{"team": "data eng", "cost:center": "a+b/c=d"},
	}
	old := meta("old", "1", "a-9", "old")
	old.ContentLanguage = "fr"
	first := request(guard.IfAbsent(), []byte("old"), old)
	first.Tags = map[string]string{"old": "1"}
	res, err := s.Put(t.Context(), "k", first)
	if err != nil {
		t.Fatal(err)
	}
	for key, c := range map[string]guard.Condition{"new": guard.IfAbsent(), "k": guard.IfMatch(res.ETag)} {
		up := begin(t, s, key, req)
		a := assembled{up, []guard.Part{send(t, s, up, 1, []byte("body"))}, []byte("body"), req.Headers}
		w := a.become(t, s, c)
		tagged(t, s, key, "", req.Tags)
		obj, err := s.Head(t.Context(), key, guard.HeadOptions{})
		if err != nil || h.SSE != "" && obj.SSE != h.SSE {
			t.Errorf("head: encryption %q %v, asked for %q", obj.SSE, err, h.SSE)
		}
		if w.res.SSE != "" && h.SSE != "" && w.res.SSE != h.SSE {
			t.Errorf("complete: encryption %q, asked for %q", w.res.SSE, h.SSE)
		}
		// And none of it stays behind.
		w = assemble(t, s, key, guard.Headers{}, []byte("bare")).become(t, s, guard.IfMatch(w.res.ETag))
		tagged(t, s, key, "", nil)
		if h.SSE == "" {
			continue
		}
		// With the encryption that the harness names, the same parts get
		// another ETag, as the same bytes do.
		up = begin(t, s, key, req)
		a = assembled{up, []guard.Part{send(t, s, up, 1, []byte("body"))}, []byte("body"), req.Headers}
		if again := a.become(t, s, guard.IfMatch(w.res.ETag)); again.res.ETag == obj.ETag {
			t.Errorf("with %s, the same parts got the same ETag %s twice", h.SSE, obj.ETag)
		}
	}
}

// checksumOf returns the checksum of body.
func checksumOf(algorithm string, body []byte) guard.Checksum {
	c := guard.Checksum{Algorithm: algorithm}
	sum := c.NewHash()
	_, _ = sum.Write(body)
	c.Value = base64.StdEncoding.EncodeToString(sum.Sum(nil))
	return c
}

func (h Harness) multipartChecksum(t *testing.T) {
	whole := big(partSize + 1000)
	for _, algorithm := range []string{"CRC32", "CRC32C", "CRC64NVME"} {
		// The parts are sent once; the right completion comes after the wrong one.
		start := func(t *testing.T, s guard.Store) assembled {
			t.Helper()
			a := assembled{up: begin(t, s, "k", guard.UploadRequest{Checksum: algorithm}), body: whole}
			for i, body := range [][]byte{whole[:partSize], whole[partSize:]} {
				p := send(t, s, a.up, i+1, body)
				if want := checksumOf(algorithm, body); p.Checksum != want {
					t.Errorf("part %d has checksum %+v, want %+v", i+1, p.Checksum, want)
				}
				a.parts = append(a.parts, p)
			}
			return a
		}
		h.run(t, "MultipartChecksum/"+algorithm, func(t *testing.T) {
			s := h.Open(t)
			a := start(t, s)
			want := checksumOf(algorithm, whole)
			res, err := s.CompleteUpload(t.Context(), a.up, guard.CompleteRequest{Condition: guard.IfAbsent(), Parts: a.parts, Checksum: want})
			if err != nil {
				t.Fatal(err)
			}
			stands(t, s, "k", written{body: whole, res: res})
			obj, err := s.Head(t.Context(), "k", guard.HeadOptions{Checksum: true})
			if err != nil || obj.Checksum != want {
				t.Errorf("head: checksum %+v %v, want %+v", obj.Checksum, err, want)
			}
		})
		h.run(t, "MultipartChecksum/"+algorithm+"-of-parts", func(t *testing.T) {
			s := h.Open(t)
			a := start(t, s)
			a.become(t, s, guard.IfAbsent())
			obj, err := s.Head(t.Context(), "k", guard.HeadOptions{Checksum: true})
			if want := checksumOf(algorithm, whole); err != nil || obj.Checksum != want {
				t.Errorf("head: checksum %+v %v, want %+v", obj.Checksum, err, want)
			}
		})
		h.run(t, "MultipartChecksum/"+algorithm+"-wrong", func(t *testing.T) {
			s := h.Open(t)
			a := start(t, s)
			wrong := checksumOf(algorithm, whole[1:])
			_, err := s.CompleteUpload(t.Context(), a.up, guard.CompleteRequest{Condition: guard.IfAbsent(), Parts: a.parts, Checksum: wrong})
			refused(t, err, guard.ErrRejected)
			absent(t, s, "k")
		})
	}
}

func (h Harness) multipartCancelled(t *testing.T) {
	s := h.Open(t)
	w := put(t, s, "k", guard.IfAbsent(), "x", meta("n", "1"))
	a := assemble(t, s, "k", meta("n", "2"), []byte("y"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.CreateUpload(ctx, "new", guard.UploadRequest{})
	refused(t, err, context.Canceled)
	_, err = s.UploadPart(ctx, a.up, 1, guard.Bytes([]byte("z")))
	refused(t, err, context.Canceled)
	_, err = s.CopyPart(ctx, a.up, 1, guard.CopySource{Key: "k", ETag: w.res.ETag})
	refused(t, err, context.Canceled)
	_, err = s.CompleteUpload(ctx, a.up, guard.CompleteRequest{Condition: guard.IfMatch(w.res.ETag), Parts: a.parts})
	refused(t, err, context.Canceled)
	refused(t, s.AbortUpload(ctx, a.up), context.Canceled)
	n := 0
	for _, err := range s.Uploads(ctx, "") {
		refused(t, err, context.Canceled)
		n++
	}
	if n != 1 {
		t.Errorf("uploads under a done context yielded %d times, want once, the error", n)
	}
	stands(t, s, "k", w)
	a.become(t, s, guard.IfMatch(w.res.ETag))
}

// copied makes a part a copy of src.
func copied(t *testing.T, s guard.Store, up guard.Upload, number int, src guard.CopySource) guard.Part {
	t.Helper()
	p, err := s.CopyPart(t.Context(), up, number, src)
	if err != nil {
		t.Fatalf("part %d of %q from %+v: %v", number, up.Key, src, err)
	}
	if p.Number != number || p.ETag == "" || src.Size != 0 && p.Size != src.Size {
		t.Errorf("part %d of %q from %+v: %+v", number, up.Key, src, p)
	}
	return p
}

func (h Harness) copyPart(t *testing.T) {
	whole := big(partSize + 1000)
	h.run(t, "CopyPart/whole", func(t *testing.T) {
		s := h.Open(t)
		w := put(t, s, "src", guard.IfAbsent(), "source", meta("n", "1"))
		up := begin(t, s, "dst", guard.UploadRequest{Headers: meta("n", "2")})
		p := copied(t, s, up, 1, guard.CopySource{Key: "src", ETag: w.res.ETag})
		assembled{up, []guard.Part{p}, w.body, meta("n", "2")}.become(t, s, guard.IfAbsent())
		stands(t, s, "src", w)
	})
	h.run(t, "CopyPart/range", func(t *testing.T) {
		s := h.Open(t)
		w := put(t, s, "src", guard.IfAbsent(), string(whole), meta("n", "1"))
		up := begin(t, s, "dst", guard.UploadRequest{Headers: meta("n", "2")})
		src := guard.CopySource{Key: "src", ETag: w.res.ETag, Size: partSize}
		parts := []guard.Part{copied(t, s, up, 1, src)}
		src.Offset, src.Size = partSize, 999
		parts = append(parts, copied(t, s, up, 2, src))
		src.Offset, src.Size = partSize+999, 1
		parts = append(parts, copied(t, s, up, 3, src))
		if _, err := (assembled{up: up, parts: parts}).complete(t, s, guard.IfAbsent()); !errors.Is(err, guard.ErrRejected) {
			t.Errorf("a part in the middle of 999 bytes: %v, want %v", err, guard.ErrRejected)
		}
		src.Offset, src.Size = partSize, 1000
		parts[1] = copied(t, s, up, 2, src)
		assembled{up, parts[:2], whole, meta("n", "2")}.become(t, s, guard.IfAbsent())
	})
	h.run(t, "CopyPart/past-the-end", func(t *testing.T) {
		s := h.Open(t)
		w := put(t, s, "src", guard.IfAbsent(), string(whole), meta())
		up := begin(t, s, "dst", guard.UploadRequest{})
		for _, offset := range []int64{partSize + 1, partSize + 1000} {
			_, err := s.CopyPart(t.Context(), up, 1, guard.CopySource{Key: "src", ETag: w.res.ETag, Offset: offset, Size: 1000})
			if err == nil {
				t.Errorf("1000 bytes from %d of %d were copied", offset, len(whole))
			}
		}
	})
	h.run(t, "CopyPart/source", func(t *testing.T) {
		s := h.Open(t)
		old := put(t, s, "src", guard.IfAbsent(), "old", meta())
		w := put(t, s, "src", guard.IfMatch(old.res.ETag), "new", meta())
		a := assemble(t, s, "dst", meta("n", "1"), []byte("sent"))
		_, err := s.CopyPart(t.Context(), a.up, 1, guard.CopySource{Key: "src", ETag: old.res.ETag})
		refused(t, err, guard.ErrPreconditionFailed)
		_, err = s.CopyPart(t.Context(), a.up, 1, guard.CopySource{Key: "missing", ETag: w.res.ETag})
		refused(t, err, guard.ErrNotFound)
		if _, err = s.CopyPart(t.Context(), a.up, 1, guard.CopySource{Key: "src"}); err == nil {
			t.Error("a copy of no particular ETag was made")
		}
		// A copy that was refused leaves the part as it was.
		a.become(t, s, guard.IfAbsent())
	})
	// What adopt does: an object is made anew of its own bytes.
	h.run(t, "CopyPart/onto-itself", func(t *testing.T) {
		s := h.Open(t)
		w := put(t, s, "k", guard.IfAbsent(), "theirs", meta("n", "1"))
		adopted := meta("n", "1", guard.RecordKey, "ours")
		up := begin(t, s, "k", guard.UploadRequest{Headers: adopted})
		p := copied(t, s, up, 1, guard.CopySource{Key: "k", ETag: w.res.ETag})
		stands(t, s, "k", w)
		a := assembled{up, []guard.Part{p}, w.body, adopted}
		if again := a.become(t, s, guard.IfMatch(w.res.ETag)); again.res.ETag == w.res.ETag {
			t.Errorf("the object that was made anew has its old ETag %s", w.res.ETag)
		}
	})
	h.run(t, "CopyPart/other-key", func(t *testing.T) {
		s := h.Open(t)
		w := put(t, s, "a b", guard.IfAbsent(), "x", meta())
		up := begin(t, s, "k", guard.UploadRequest{})
		for _, key := range []string{"a+b", "a%20b", "a"} {
			_, err := s.CopyPart(t.Context(), up, 1, guard.CopySource{Key: key, ETag: w.res.ETag})
			refused(t, err, guard.ErrNotFound)
		}
	})
	for name, key := range map[string]string{
		"plain": "a/b.csv", "space": "a b/c", "plus": "a+b", "percent": "100%", "percent-hex": "a%20b", "question": "a?b=c&d",
		"version-query": "a?versionId=null", "hash": "a#b", "composed": "caf\u00e9/\U0001F600", "decomposed": "cafe\u0301",
		"punctuation": `a"<>'\b`, "folder": "dir/",
	} {
		h.run(t, "CopyPart/key-"+name, func(t *testing.T) {
			s := h.Open(t)
			w := put(t, s, key, guard.IfAbsent(), key, meta("n", "1"))
			for dst, c := range map[string]guard.Condition{key: guard.IfMatch(w.res.ETag), "copy of " + key: guard.IfAbsent()} {
				up := begin(t, s, dst, guard.UploadRequest{})
				p := copied(t, s, up, 1, guard.CopySource{Key: key, ETag: w.res.ETag})
				if dst != key {
					stands(t, s, key, w)
				}
				w2 := assembled{up: up, parts: []guard.Part{p}, body: w.body}.become(t, s, c)
				if dst == key {
					w = w2
				}
			}
		})
	}
	if h.Versioned == nil {
		return
	}
	h.run(t, "CopyPart/versions", func(t *testing.T) {
		s, remove := h.Versioned(t)
		one := put(t, s, "a b", guard.IfAbsent(), "one", meta())
		two := put(t, s, "a b", guard.IfMatch(one.res.ETag), "two", meta())
		up := begin(t, s, "dst", guard.UploadRequest{})
		_, err := s.CopyPart(t.Context(), up, 1, guard.CopySource{Key: "a b", VersionID: one.res.VersionID, ETag: two.res.ETag})
		refused(t, err, guard.ErrPreconditionFailed)
		p := copied(t, s, up, 1, guard.CopySource{Key: "a b", VersionID: one.res.VersionID, ETag: one.res.ETag})
		assembled{up: up, parts: []guard.Part{p}, body: one.body}.become(t, s, guard.IfAbsent())
		remove(t, "a b")
		up = begin(t, s, "dst2", guard.UploadRequest{})
		_, err = s.CopyPart(t.Context(), up, 1, guard.CopySource{Key: "a b", ETag: two.res.ETag})
		refused(t, err, guard.ErrNotFound)
		p = copied(t, s, up, 1, guard.CopySource{Key: "a b", VersionID: two.res.VersionID, ETag: two.res.ETag})
		assembled{up: up, parts: []guard.Part{p}, body: two.body}.become(t, s, guard.IfAbsent())
	})
}

func (h Harness) uploads(t *testing.T) {
	s := h.Open(t)
	if m := underWay(t, s, ""); len(m) != 0 {
		t.Errorf("uploads of an empty bucket: %v", m)
	}
	put(t, s, "a/plain", guard.IfAbsent(), "x", meta())
	all := map[string][]string{}
	ups := map[string]guard.Upload{}
	for _, key := range []string{"a/1", "a/2 b+c%", "a/1", "a", "b", "caf\u00e9&<\U0001F600"} {
		up := begin(t, s, key, guard.UploadRequest{})
		ups[key] = up
		all[key] = append(all[key], up.ID)
		slices.Sort(all[key])
	}
	check := func(t *testing.T, prefix string, keys ...string) {
		t.Helper()
		want := map[string][]string{}
		for _, key := range keys {
			want[key] = all[key]
		}
		if got := underWay(t, s, prefix); !maps.EqualFunc(got, want, slices.Equal) {
			t.Errorf("uploads of %q: %v, want %v", prefix, got, want)
		}
	}
	check(t, "", slices.Collect(maps.Keys(all))...)
	h.run(t, "Uploads/prefix", func(t *testing.T) {
		check(t, "a/1", "a/1")
		check(t, "a/", "a/1", "a/2 b+c%")
		check(t, "a/2 b", "a/2 b+c%")
		check(t, "a", "a", "a/1", "a/2 b+c%")
		check(t, "caf\u00e9&", "caf\u00e9&<\U0001F600")
		check(t, "a+")
		check(t, "none")
	})
	// The caller stops when it has seen enough.
	for range s.Uploads(t.Context(), "") {
		break
	}
	// What was found in the listing can be thrown away.
	for up, err := range s.Uploads(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		if up.Key == "b" {
			if err := s.AbortUpload(t.Context(), up); err != nil {
				t.Errorf("abort: %v", err)
			}
			delete(all, "b")
		}
	}
	// What became the object is under way no more.
	part := send(t, s, ups["a"], 1, []byte("x"))
	assembled{up: ups["a"], parts: []guard.Part{part}, body: []byte("x")}.become(t, s, guard.IfAbsent())
	delete(all, "a")
	check(t, "", slices.Collect(maps.Keys(all))...)
}
