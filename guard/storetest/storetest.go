// Package storetest holds the suite that every [guard.Store] must pass. Run it
// on a store of your own:
//
//	func TestConformance(t *testing.T) {
//		storetest.Run(t, storetest.Harness{Open: openMyStore})
//	}
//
// What it asks for is what the protocol stands on; a store that fails a part
// can lose or mix up writes, so a failure is not a matter of taste.
package storetest

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/s3fence/s3fence/guard"
)

// A Harness opens the store under test and says what to expect of it.
type Harness struct {
	// Open gives a Store over an empty bucket, or an unused prefix of one.
	// It is called once for each sub-test. Required.
	Open func(t *testing.T) guard.Store
	// UniqueETags claims that every write gets an ETag of its own with no
	// encryption asked for. Default false: the same bytes get the same ETag.
	UniqueETags bool
	// SSE is an encryption to ask for under which every write gets an ETag
	// of its own, such as "aws:kms". Default "": there is none.
	SSE string
	// Versioned, if set, gives a Store over an empty bucket that keeps
	// versions, and a function that deletes the newest version of a key
	// around the guard, so that a delete marker stands.
	Versioned func(t *testing.T) (s guard.Store, remove func(t *testing.T, key string))
	// ListsMetadata says that List gives user metadata when it is asked for.
	// Default false: where it does, it must be right.
	ListsMetadata bool
	// PageSize, if set, is how many entries the store lists in one answer at
	// most; the suite then writes and lists a few more, which takes a while.
	PageSize int
	// Known names sub-tests, as "Keys/lead" without the outer test's name,
	// that this store is known to fail, with the reason. They are skipped
	// and the reason printed.
	Known map[string]string
}

// Run runs the whole suite as sub-tests of t.
func Run(t *testing.T, h Harness) {
	h.run(t, "RoundTrip", h.roundTrip)
	h.run(t, "NoCondition", h.noCondition)
	h.run(t, "NotFound", h.notFound)
	h.run(t, "IfAbsent", h.ifAbsent)
	h.run(t, "IfMatch", h.ifMatch)
	h.run(t, "MetadataReplaced", h.metadataReplaced)
	h.run(t, "Metadata", h.metadata)
	h.run(t, "Tags", h.tags)
	h.run(t, "RacingCreators", h.racingCreators)
	h.run(t, "RacingReplacers", h.racingReplacers)
	h.run(t, "ReadAfterWrite", h.readAfterWrite)
	h.run(t, "GetRange", h.ranges)
	h.run(t, "NotTorn", h.notTorn)
	h.run(t, "Delete", h.delete)
	h.run(t, "Cancelled", h.cancelled)
	h.run(t, "Keys", h.keys)
	h.run(t, "ETags", h.etags)
	h.run(t, "SSE", h.sse)
	h.run(t, "Checksum", h.checksum)
	h.run(t, "Settings", h.settings)
	h.run(t, "URL", h.url)
	h.run(t, "VersionedDeleteMarker", h.deleteMarker)
	h.run(t, "VersionedDelete", h.versionedDelete)
	h.run(t, "VersionedList", h.versions)
	h.run(t, "List", h.list)
	h.run(t, "ListDelimiter", h.listDelimiter)
	h.run(t, "ListVersions", h.listVersions)
	h.run(t, "ListMetadata", h.listMetadata)
	h.run(t, "ListPages", h.listPages)
	h.run(t, "ListCancelled", h.listCancelled)
	h.run(t, "Multipart", h.multipart)
	h.run(t, "MultipartConditions", h.multipartConditions)
	h.run(t, "MultipartRace", h.multipartRace)
	h.run(t, "MultipartAgainstPut", h.multipartAgainstPut)
	h.run(t, "MultipartAbort", h.multipartAbort)
	h.run(t, "MultipartMissing", h.multipartMissing)
	h.run(t, "MultipartHeaders", h.multipartHeaders)
	h.run(t, "MultipartChecksum", h.multipartChecksum)
	h.run(t, "MultipartCancelled", h.multipartCancelled)
	h.run(t, "CopyPart", h.copyPart)
	h.run(t, "Uploads", h.uploads)
	h.run(t, "GuardWriteRule", h.writeRule)
	h.run(t, "GuardPausedWriter", h.pausedWriter)
	h.run(t, "GuardSameBytes", h.sameBytesAll)
	h.run(t, "GuardSameBytesInParts", h.sameBytesParts)
	h.run(t, "GuardForeign", h.foreign)
	h.run(t, "GuardFenceLost", h.fenceLost)
	h.run(t, "GuardManyWriters", h.manyWriters)
	h.run(t, "GuardCanceled", h.canceledPut)
}

func (h Harness) run(t *testing.T, name string, f func(*testing.T)) {
	t.Helper()
	t.Run(name[strings.LastIndex(name, "/")+1:], func(t *testing.T) {
		if why, ok := h.Known[name]; ok {
			t.Skipf("known: %s", why)
		}
		f(t)
	})
}

// A written is a write that a test made, to be found again.
type written struct {
	body []byte
	h    guard.Headers
	res  guard.PutResult
}

func meta(kv ...string) guard.Headers {
	h := guard.Headers{Metadata: map[string]string{}}
	for i := 0; i < len(kv); i += 2 {
		h.Metadata[kv[i]] = kv[i+1]
	}
	return h
}

func request(c guard.Condition, body []byte, h guard.Headers) guard.PutRequest {
	return guard.PutRequest{Condition: c, Body: guard.Bytes(body), Headers: h}
}

func put(t *testing.T, s guard.Store, key string, c guard.Condition, body string, h guard.Headers) written {
	t.Helper()
	res, err := s.Put(t.Context(), key, request(c, []byte(body), h))
	if err != nil {
		t.Fatalf("put %q: %v", key, err)
	}
	if res.ETag == "" {
		t.Fatalf("put %q: no ETag", key)
	}
	return written{[]byte(body), h, res}
}

// get reads an object to its end. The error is that of Get or of the first
// Read or Close to fail.
func get(ctx context.Context, s guard.Store, key string) (guard.Object, []byte, error) {
	obj, r, err := s.Get(ctx, key, guard.ReadOptions{})
	if err != nil {
		return obj, nil, err
	}
	body, err := io.ReadAll(r)
	return obj, body, errors.Join(err, r.Close())
}

// stands checks that key holds w, through Head and through Get.
func stands(t *testing.T, s guard.Store, key string, w written) {
	t.Helper()
	head, err := s.Head(t.Context(), key, guard.HeadOptions{})
	if err != nil {
		t.Fatalf("head %q: %v", key, err)
	}
	same(t, "head", head, w)
	obj, body, err := get(t.Context(), s, key)
	if err != nil {
		t.Fatalf("get %q: %v", key, err)
	}
	same(t, "get", obj, w)
	if !bytes.Equal(body, w.body) {
		t.Errorf("get %q: %d bytes %.40q, want %d bytes %.40q", key, len(body), body, len(w.body), w.body)
	}
}

func same(t *testing.T, how string, obj guard.Object, w written) {
	t.Helper()
	if obj.ETag != w.res.ETag {
		t.Errorf("%s: ETag %s, the write's was %s", how, obj.ETag, w.res.ETag)
	}
	if obj.Size != int64(len(w.body)) {
		t.Errorf("%s: size %d, want %d", how, obj.Size, len(w.body))
	}
	if obj.DeleteMarker {
		t.Errorf("%s: a delete marker, want an object", how)
	}
	if obj.LastModified.IsZero() {
		t.Errorf("%s: no time of modification", how)
	}
	if !maps.Equal(obj.Metadata, w.h.Metadata) {
		t.Errorf("%s: metadata %v, want %v", how, obj.Metadata, w.h.Metadata)
	}
	for _, x := range [][3]string{
		{"content type", obj.ContentType, w.h.ContentType},
		{"content encoding", obj.ContentEncoding, w.h.ContentEncoding},
		{"content disposition", obj.ContentDisposition, w.h.ContentDisposition},
		{"content language", obj.ContentLanguage, w.h.ContentLanguage},
		{"cache control", obj.CacheControl, w.h.CacheControl},
		{"expires", obj.Expires, w.h.Expires},
	} {
		if x[1] != x[2] && (x[0] != "content type" || x[2] != "") { // stores have a default for it
			t.Errorf("%s: %s %q, want %q", how, x[0], x[1], x[2])
		}
	}
}

func absent(t *testing.T, s guard.Store, key string) {
	t.Helper()
	if obj, err := s.Head(t.Context(), key, guard.HeadOptions{}); !errors.Is(err, guard.ErrNotFound) {
		t.Errorf("head %q: %v %v, want %v", key, obj, err, guard.ErrNotFound)
	}
	_, r, err := s.Get(t.Context(), key, guard.ReadOptions{})
	if !errors.Is(err, guard.ErrNotFound) {
		t.Errorf("get %q: %v, want %v", key, err, guard.ErrNotFound)
	}
	if err == nil {
		_ = r.Close()
	}
}

// refused checks that a write changed nothing, for one of the reasons given.
func refused(t *testing.T, err error, want ...error) {
	t.Helper()
	if !slices.ContainsFunc(want, func(w error) bool { return errors.Is(err, w) }) {
		t.Errorf("error %v, want one of %v", err, want)
	}
}

func (h Harness) roundTrip(t *testing.T) {
	s := h.Open(t)
	big := make([]byte, 1<<20+7)
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(big)
	all := guard.Headers{
		ContentType:        "text/csv; charset=utf-8",
		ContentEncoding:    "gzip", // of bytes that are not: nobody may unpack them
		ContentDisposition: `attachment; filename="a b.csv"`,
		ContentLanguage:    "en, de",
		CacheControl:       "max-age=60, must-revalidate",
		Expires:            "Tue, 01 Dec 2026 10:00:00 GMT",
		// 2,000 bytes of keys and values, of the 2,048 that S3 allows.
		Metadata: map[string]string{
			guard.RecordKey: strings.Repeat("r", 239),
			"a-9":           `!"#$%&'()*+,-./:;<=>?@[\]^_{|}~`,
		},
	}
	n := 0
	for k, v := range all.Metadata {
		n += len(k) + len(v)
	}
	all.Metadata["fill"] = strings.Repeat("f", 2000-n-len("fill"))
	for name, body := range map[string]string{"empty": "", "one": "x", "big": string(big)} {
		h.run(t, "RoundTrip/"+name, func(t *testing.T) {
			key := "round/" + name
			w := put(t, s, key, guard.IfAbsent(), body, all)
			stands(t, s, key, w)
			w = put(t, s, key, guard.IfMatch(w.res.ETag), body+"2", meta("n", "2"))
			stands(t, s, key, w)
			w = put(t, s, key, guard.IfMatch(w.res.ETag), body, guard.Headers{})
			stands(t, s, key, w)
			// A reader that stops early leaves nothing broken behind.
			_, r, err := s.Get(t.Context(), key, guard.ReadOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Close(); err != nil {
				t.Errorf("close before the end: %v", err)
			}
			stands(t, s, key, w)
		})
	}
}

func (h Harness) noCondition(t *testing.T) {
	s := h.Open(t)
	if _, err := s.Put(t.Context(), "k", request(guard.Condition{}, []byte("x"), guard.Headers{})); err == nil {
		t.Error("a write without a condition was made")
	}
	absent(t, s, "k")
	w := put(t, s, "k", guard.IfAbsent(), "x", meta())
	if _, err := s.Put(t.Context(), "k", request(guard.Condition{}, []byte("y"), guard.Headers{})); err == nil {
		t.Error("a write without a condition was made")
	}
	stands(t, s, "k", w)
}

func (h Harness) notFound(t *testing.T) {
	s := h.Open(t)
	absent(t, s, "missing")
	for v, err := range guard.Versions(t.Context(), s, "missing") {
		t.Errorf("versions of a missing key: %v %v", v, err)
	}
	// A key is no folder: what is below it doesn't make it exist.
	put(t, s, "a/b", guard.IfAbsent(), "x", meta())
	absent(t, s, "a")
	absent(t, s, "a/")
	absent(t, s, "a/b/")
	absent(t, s, "a/b/c")
}

func (h Harness) ifAbsent(t *testing.T) {
	s := h.Open(t)
	w := put(t, s, "k", guard.IfAbsent(), "first", meta("n", "1"))
	for _, body := range []string{"second", "first", ""} {
		_, err := s.Put(t.Context(), "k", request(guard.IfAbsent(), []byte(body), meta("n", "2")))
		refused(t, err, guard.ErrPreconditionFailed)
		stands(t, s, "k", w)
	}
}

func (h Harness) ifMatch(t *testing.T) {
	s := h.Open(t)
	w := put(t, s, "k", guard.IfAbsent(), "first", meta("n", "1"))
	other := put(t, s, "other", guard.IfAbsent(), "other", meta())
	_, err := s.Put(t.Context(), "k", request(guard.IfMatch(other.res.ETag), []byte("no"), meta("n", "no")))
	refused(t, err, guard.ErrPreconditionFailed)
	stands(t, s, "k", w)

	w2 := put(t, s, "k", guard.IfMatch(w.res.ETag), "second", meta("n", "2"))
	_, err = s.Put(t.Context(), "k", request(guard.IfMatch(w.res.ETag), []byte("no"), meta("n", "no")))
	refused(t, err, guard.ErrPreconditionFailed)
	stands(t, s, "k", w2)

	_, err = s.Put(t.Context(), "missing", request(guard.IfMatch(w2.res.ETag), []byte("no"), meta()))
	refused(t, err, guard.ErrNotFound, guard.ErrPreconditionFailed)
	absent(t, s, "missing")
}

func (h Harness) metadataReplaced(t *testing.T) {
	s := h.Open(t)
	old := meta("old", "1", "both", "1")
	old.ContentLanguage, old.CacheControl = "de", "no-store"
	w := put(t, s, "k", guard.IfAbsent(), "x", old)
	w = put(t, s, "k", guard.IfMatch(w.res.ETag), "y", meta("both", "2", "new", "2"))
	stands(t, s, "k", w)
}

// metadata: an entry comes back as it was or is refused.
func (h Harness) metadata(t *testing.T) {
	for name, kv := range map[string][2]string{
		"header-name":     {"content-type", "not the header of that name"},
		"punctuated-key":  {"a.b_c~d", "x"},
		"upper-case":      {"Upper", "x"},
		"empty":           {"empty", ""},
		"spaces-inside":   {"k", "a  b   c"},
		"spaces-outside":  {"k", " a "},
		"comma":           {"k", "a, b,c"},
		"latin":           {"k", "caf\u00e9"},
		"emoji":           {"k", "\U0001F600"},
		"encoded-word":    {"k", "=?utf-8?q?caf=C3=A9?="},
		"newline":         {"k", "a\nx-amz-meta-b: c"},
		"tab":             {"k", "a\tb"},
		"space-in-key":    {"a b", "x"},
		"colon-in-key":    {"a:b", "x"},
		"non-ascii-key":   {"caf\u00e9", "x"},
		"empty-key":       {"", "x"},
		"percent-encoded": {"k", "%41+%2B"},
	} {
		h.run(t, "Metadata/"+name, func(t *testing.T) {
			s := h.Open(t)
			ours := meta(kv[0], kv[1], "other", "1")
			res, err := s.Put(t.Context(), "k", request(guard.IfAbsent(), []byte("x"), ours))
			if err != nil {
				refused(t, err, guard.ErrRejected, guard.ErrInvalid)
				t.Logf("metadata %q is refused: %v", kv, err)
				absent(t, s, "k")
				return
			}
			stands(t, s, "k", written{[]byte("x"), ours, res})
		})
	}
}

const (
	racers = 16
	rounds = 10
)

// race has racers write to key at once under the same condition, and checks
// that one of them won and that key holds that one's write.
func race(t *testing.T, s guard.Store, key string, c guard.Condition, round int) written {
	t.Helper()
	var (
		wg    sync.WaitGroup
		start = make(chan struct{})
		ws    [racers]written
		errs  [racers]error
	)
	for i := range racers {
		wg.Go(func() {
			name := fmt.Sprintf("%d.%d", round, i)
			// Bodies of different lengths: a mix of two would show.
			w := written{body: []byte(strings.Repeat(name+"\n", 1+i*50)), h: meta("writer", name)}
			<-start
			w.res, errs[i] = s.Put(t.Context(), key, request(c, w.body, w.h))
			ws[i] = w
		})
	}
	close(start)
	wg.Wait()
	winner := -1
	for i, err := range errs {
		switch {
		case err == nil && winner >= 0:
			t.Fatalf("round %d: writers %d and %d both won", round, winner, i)
		case err == nil:
			winner = i
		case !errors.Is(err, guard.ErrPreconditionFailed) && !errors.Is(err, guard.ErrConflict):
			t.Fatalf("round %d: writer %d lost with %v, want %v or %v", round, i, err, guard.ErrPreconditionFailed, guard.ErrConflict)
		}
	}
	if winner < 0 {
		t.Fatalf("round %d: nobody won: %v", round, errors.Join(errs[:]...))
	}
	stands(t, s, key, ws[winner])
	return ws[winner]
}

func (h Harness) racingCreators(t *testing.T) {
	s := h.Open(t)
	for round := range rounds {
		race(t, s, fmt.Sprintf("k%d", round), guard.IfAbsent(), round)
	}
}

func (h Harness) racingReplacers(t *testing.T) {
	s := h.Open(t)
	w := put(t, s, "k", guard.IfAbsent(), "first", meta())
	for round := range rounds {
		w = race(t, s, "k", guard.IfMatch(w.res.ETag), round)
	}
}

func (h Harness) readAfterWrite(t *testing.T) {
	s := h.Open(t)
	c := guard.IfAbsent()
	for i := range 50 {
		w := put(t, s, "k", c, fmt.Sprint("body ", i), meta("n", fmt.Sprint(i)))
		stands(t, s, "k", w)
		c = guard.IfMatch(w.res.ETag)
	}
}

// notTorn: what one read says must come from one write. A Head with the old
// metadata and the new ETag would let a stale writer through.
func (h Harness) notTorn(t *testing.T) {
	s := h.Open(t)
	const writes, readers = 60, 4
	var bodies [writes + 1][]byte
	for i := range bodies {
		bodies[i] = []byte(strings.Repeat(fmt.Sprintf("%03d ", i), 64+i*16))
	}
	var (
		wg    sync.WaitGroup
		done  = make(chan struct{})
		read  = make(chan struct{}, 1) // there was one
		ended = make(chan struct{})    // there will be no more
		etags [writes + 1]string       // by write, read only once the readers have ended
		seen  [2 * readers]map[string]string
	)
	w := put(t, s, "k", guard.IfAbsent(), string(bodies[0]), meta("n", "0"))
	etags[0] = w.res.ETag
	for r := range 2 * readers {
		seen[r] = map[string]string{}
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				var obj guard.Object
				var err error
				if r < readers {
					obj, err = s.Head(t.Context(), "k", guard.HeadOptions{})
				} else {
					var body []byte
					obj, body, err = get(t.Context(), s, "k")
					var n int
					if _, serr := fmt.Sscan(obj.Metadata["n"], &n); err == nil && (serr != nil || !bytes.Equal(body, bodies[n])) {
						t.Errorf("get: torn: metadata of write %q, body %.12q (%d bytes)", obj.Metadata["n"], body, len(body))
					}
				}
				if err != nil {
					t.Errorf("read under overwrites: %v", err)
					return
				}
				seen[r][obj.Metadata["n"]+" "+obj.ETag] = fmt.Sprint(obj.Size)
				select {
				case read <- struct{}{}:
				default:
				}
			}
		})
	}
	go func() {
		wg.Wait()
		close(ended)
	}()
	for i := 1; i <= writes; i++ {
		res, err := s.Put(t.Context(), "k", request(guard.IfMatch(etags[i-1]), bodies[i], meta("n", fmt.Sprint(i))))
		if err != nil {
			t.Errorf("write %d: %v", i, err)
			break
		}
		etags[i] = res.ETag
		if i%10 == 0 { // a store may be quicker than the readers start
			select {
			case <-read:
			case <-ended:
			}
		}
	}
	close(done)
	<-ended
	reads := 0
	for r := range seen {
		for k, size := range seen[r] {
			reads++
			n, etag, _ := strings.Cut(k, " ")
			var i int
			if _, err := fmt.Sscan(n, &i); err != nil || etags[i] != etag || size != fmt.Sprint(len(bodies[i])) {
				t.Errorf("torn: metadata of write %q with ETag %s and size %s; that write's ETag was %s", n, etag, size, etags[i])
			}
		}
	}
	if reads < readers {
		t.Errorf("only %d reads fell between the writes", reads)
	}
}

func (h Harness) cancelled(t *testing.T) {
	s := h.Open(t)
	w := put(t, s, "k", guard.IfAbsent(), "x", meta("n", "1"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Put(ctx, "k", request(guard.IfMatch(w.res.ETag), []byte("y"), meta()))
	refused(t, err, context.Canceled)
	_, err = s.Put(ctx, "new", request(guard.IfAbsent(), []byte("y"), meta()))
	refused(t, err, context.Canceled)
	_, err = s.Head(ctx, "k", guard.HeadOptions{})
	refused(t, err, context.Canceled)
	_, r, err := s.Get(ctx, "k", guard.ReadOptions{})
	refused(t, err, context.Canceled)
	if err == nil {
		_ = r.Close()
	}
	_, err = s.Settings(ctx)
	refused(t, err, context.Canceled)
	n := 0
	for _, err := range guard.Versions(ctx, s, "k") {
		refused(t, err, context.Canceled)
		n++
	}
	if n != 1 {
		t.Errorf("versions under a done context yielded %d times, want once, the error", n)
	}
	ctx, cancel = context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	_, err = s.Put(ctx, "new", request(guard.IfAbsent(), []byte("y"), meta()))
	refused(t, err, context.DeadlineExceeded)
	stands(t, s, "k", w)
	absent(t, s, "new")
}

// Keys, each with keys that a store or an SDK might take it for.
var keys = []struct {
	name, key  string
	neighbours []string
}{
	{"plain", "foo/bar.csv", []string{"foo", "foo/", "bar.csv"}},
	{"lead", "/lead", []string{"lead", "//lead"}},
	{"lead-two", "//foo", []string{"foo", "/foo"}},
	{"double", "foo//bar", []string{"foo/bar", "foo/", "foo///bar"}},
	{"dot-dot", "a/../b", []string{"b", "a/b", "/b"}},
	{"dot-dot-out", "../../x", []string{"x", "../x"}},
	{"dot", "a/./b", []string{"a/b", "a//b"}},
	{"dots-only", "..", []string{".", "../"}},
	{"folder", "dir/", []string{"dir", "dir//"}},
	{"space", "a b  c", []string{"a+b++c", "a%20b%20%20c", "a b c"}},
	{"space-end", "a /b ", []string{"a /b", "a/b"}},
	{"plus", "a+b", []string{"a b", "a%2Bb"}},
	{"caret", "a^b", []string{"a%5Eb"}},
	{"percent", "100%", []string{"100", "100%25"}},
	{"percent-hex", "a%2Fb", []string{"a/b", "a%252Fb"}},
	{"percent-zz", "a%zzb", []string{"a%25zzb"}},
	{"question", "a?b=c", []string{"a", "a%3Fb=c"}},
	{"version-query", "a?versionId=null", []string{"a"}},
	{"hash", "a#b", []string{"a", "a%23b"}},
	{"ampersand", "a&b=c&d", []string{"a", "a&amp;b=c&amp;d"}},
	{"punctuation", `!"$'()*,:;<>@[]{}|~` + "`", nil},
	{"backslash", `a\b`, []string{"a/b"}},
	{"composed", "caf\u00e9", []string{"cafe\u0301", "cafe"}},
	{"decomposed", "cafe\u0301", []string{"caf\u00e9", "cafe"}},
	{"emoji", "\U0001F600/\U0001F469\u200d\U0001F4BB", nil},
	{"case", "Key", []string{"key", "KEY"}},
	{"control", "a\x01b", []string{"ab"}},
	{"newline", "a\nb", []string{"ab", "a b", "a"}},
	{"dot-files", ".s3fence/scopes/x.json", []string{"s3fence/scopes/x.json"}},
	{"long", strings.Repeat("0123456789abcde/", 63) + "0123456789abcdef", nil},
	{"long-segment", strings.Repeat("k", 255), []string{strings.Repeat("k", 254)}},
	{"longest-segment", strings.Repeat("k", 1024), []string{strings.Repeat("k", 255)}},
}

// keys: a key comes back as it was or is refused. It never ends up as another.
func (h Harness) keys(t *testing.T) {
	for _, k := range keys {
		h.run(t, "Keys/"+k.name, func(t *testing.T) {
			s := h.Open(t)
			ours := meta("key-number", k.name)
			res, err := s.Put(t.Context(), k.key, request(guard.IfAbsent(), []byte(k.name), ours))
			gone := k.neighbours
			if err != nil {
				refused(t, err, guard.ErrRejected, guard.ErrInvalid)
				t.Logf("key %.60q is refused: %v", k.key, err)
				gone = append(slices.Clone(gone), k.key)
			} else {
				w := written{[]byte(k.name), ours, res}
				stands(t, s, k.key, w)
				_, err = s.Put(t.Context(), k.key, request(guard.IfAbsent(), []byte("no"), meta()))
				refused(t, err, guard.ErrPreconditionFailed)
				w = put(t, s, k.key, guard.IfMatch(w.res.ETag), k.name+" again", ours)
				stands(t, s, k.key, w)
				for v, err := range guard.Versions(t.Context(), s, k.key) {
					if err != nil {
						t.Errorf("versions: %v", err)
					} else if v.ETag != w.res.ETag {
						t.Errorf("versions: ETag %s, want %s", v.ETag, w.res.ETag)
					}
				}
			}
			for _, n := range gone {
				_, err := s.Head(t.Context(), n, guard.HeadOptions{})
				refused(t, err, guard.ErrNotFound, guard.ErrRejected, guard.ErrInvalid)
			}
		})
	}
	for name, key := range map[string]string{
		"empty": "", "too-long": strings.Repeat("k", 1025), "not-utf8": "a\xffb",
	} {
		h.run(t, "Keys/"+name, func(t *testing.T) {
			s := h.Open(t)
			_, err := s.Put(t.Context(), key, request(guard.IfAbsent(), []byte("x"), meta()))
			refused(t, err, guard.ErrRejected, guard.ErrInvalid)
			_, err = s.Head(t.Context(), key, guard.HeadOptions{})
			refused(t, err, guard.ErrRejected, guard.ErrInvalid, guard.ErrNotFound)
		})
	}
}

// sameBytes writes the same bytes over themselves, and returns the ETags.
func sameBytes(t *testing.T, s guard.Store, sse string) (a, b guard.PutResult) {
	t.Helper()
	req := request(guard.IfAbsent(), []byte("same"), meta("n", "1"))
	req.SSE = sse
	a, err := s.Put(t.Context(), "k", req)
	if err != nil {
		t.Fatal(err)
	}
	req.Condition, req.Headers = guard.IfMatch(a.ETag), meta("n", "2")
	b, err = s.Put(t.Context(), "k", req)
	if err != nil {
		t.Fatal(err)
	}
	stands(t, s, "k", written{[]byte("same"), meta("n", "2"), b})
	return a, b
}

func (h Harness) etags(t *testing.T) {
	s := h.Open(t)
	a, b := sameBytes(t, s, "")
	switch {
	case h.UniqueETags && a.ETag == b.ETag:
		t.Errorf("the same bytes got the same ETag %s twice; unique ones are claimed", a.ETag)
	case !h.UniqueETags && a.ETag != b.ETag:
		t.Errorf("the same bytes got ETags %s and %s; unique ones are not claimed", a.ETag, b.ETag)
	}
}

func (h Harness) sse(t *testing.T) {
	if h.SSE == "" {
		t.Skip("the harness names no encryption")
	}
	s := h.Open(t)
	a, b := sameBytes(t, s, h.SSE)
	if a.ETag == b.ETag {
		t.Errorf("with %s, the same bytes got the same ETag %s twice", h.SSE, a.ETag)
	}
	if a.SSE != "" && a.SSE != h.SSE {
		t.Errorf("put: encryption %q, asked for %q", a.SSE, h.SSE)
	}
	head, err := s.Head(t.Context(), "k", guard.HeadOptions{})
	if err != nil || head.SSE != h.SSE {
		t.Errorf("head: encryption %q %v, asked for %q", head.SSE, err, h.SSE)
	}
}

func (h Harness) checksum(t *testing.T) {
	s := h.Open(t)
	w := put(t, s, "k", guard.IfAbsent(), "123456789", meta())
	obj, err := s.Head(t.Context(), "k", guard.HeadOptions{Checksum: true})
	if err != nil {
		t.Fatal(err)
	}
	same(t, "head", obj, w)
	got, body, err := s.Get(t.Context(), "k", guard.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := body.Close(); err != nil || got.Checksum != obj.Checksum {
		t.Errorf("get: checksum %+v %v, head %+v", got.Checksum, err, obj.Checksum)
	}
	var sum hash.Hash
	switch obj.Checksum.Algorithm {
	case "CRC32":
		sum = crc32.NewIEEE()
	case "CRC32C":
		sum = crc32.New(crc32.MakeTable(crc32.Castagnoli))
	default:
		t.Logf("checksum %+v is not compared", obj.Checksum)
		return
	}
	_, _ = sum.Write(w.body)
	if want := base64.StdEncoding.EncodeToString(sum.Sum(nil)); obj.Checksum.Value != want {
		t.Errorf("checksum %+v, want %s", obj.Checksum, want)
	}
}

func (h Harness) settings(t *testing.T) {
	s := h.Open(t)
	set, err := s.Settings(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if set.UniqueETags != h.UniqueETags {
		t.Errorf("settings say unique ETags: %t, the harness: %t", set.UniqueETags, h.UniqueETags)
	}
	if h.Versioned == nil {
		return
	}
	s, _ = h.Versioned(t)
	if set, err = s.Settings(t.Context()); err != nil || set.Versioning == guard.VersioningOff {
		t.Errorf("settings of a bucket that keeps versions: %+v %v", set, err)
	}
}

func (h Harness) url(t *testing.T) {
	s := h.Open(t)
	if u := s.URL("a/b.csv"); !strings.HasSuffix(u, "/a/b.csv") || !strings.Contains(u, "://") {
		t.Errorf("url %q of a/b.csv", u)
	}
}

func (h Harness) versioned(t *testing.T) (guard.Store, func(*testing.T, string)) {
	if h.Versioned == nil {
		t.Skip("the harness has no bucket that keeps versions")
	}
	return h.Versioned(t)
}

func (h Harness) deleteMarker(t *testing.T) {
	s, remove := h.versioned(t)
	if obj, err := s.Head(t.Context(), "k", guard.HeadOptions{}); !errors.Is(err, guard.ErrNotFound) || obj.DeleteMarker {
		t.Errorf("head of a key that never was: %+v %v", obj, err)
	}
	w := put(t, s, "k", guard.IfAbsent(), "one", meta("n", "1"))
	for i := range 2 {
		stands(t, s, "k", w)
		remove(t, "k")
		absent(t, s, "k")
		if obj, err := s.Head(t.Context(), "k", guard.HeadOptions{}); !errors.Is(err, guard.ErrNotFound) || !obj.DeleteMarker {
			t.Errorf("head of a delete marker: %+v %v", obj, err)
		}
		_, err := s.Put(t.Context(), "k", request(guard.IfMatch(w.res.ETag), []byte("no"), meta()))
		refused(t, err, guard.ErrNotFound, guard.ErrPreconditionFailed)
		absent(t, s, "k")
		w = put(t, s, "k", guard.IfAbsent(), fmt.Sprint("again ", i), meta("n", fmt.Sprint("again ", i)))
	}
	stands(t, s, "k", w)
}

func (h Harness) versions(t *testing.T) {
	s, remove := h.versioned(t)
	var want []string
	c := guard.IfAbsent()
	var ws []written
	for i := range 3 {
		w := put(t, s, "k", c, fmt.Sprint("k", i), meta("n", fmt.Sprint(i)))
		ws, c = append(ws, w), guard.IfMatch(w.res.ETag)
		want = append([]string{w.res.ETag}, want...)
		// Neighbours whose versions are none of k's.
		for _, n := range []string{"k/", "k0", "j"} {
			put(t, s, fmt.Sprintf("%s%d", n, i), guard.IfAbsent(), "n", meta())
		}
		time.Sleep(10 * time.Millisecond) // versions and markers are told apart by time
	}
	remove(t, "k")
	want = append([]string{""}, want...)
	time.Sleep(10 * time.Millisecond)
	w := put(t, s, "k", guard.IfAbsent(), "last", meta("n", "last"))
	ws, want = append(ws, w), append([]string{w.res.ETag}, want...)

	var got []string
	ids := map[string]bool{}
	for v, err := range guard.Versions(t.Context(), s, "k") {
		if err != nil {
			t.Fatal(err)
		}
		if v.ID == "" || ids[v.ID] {
			t.Errorf("version id %q is empty or comes twice", v.ID)
		}
		ids[v.ID] = true
		if v.Latest != (len(got) == 0) {
			t.Errorf("version %d: latest %t", len(got), v.Latest)
		}
		if v.DeleteMarker != (v.ETag == "") {
			t.Errorf("version %d: delete marker %t, ETag %q", len(got), v.DeleteMarker, v.ETag)
		}
		if v.LastModified.IsZero() {
			t.Errorf("version %d: no time", len(got))
		}
		got = append(got, v.ETag)
		obj, err := s.Head(t.Context(), "k", guard.HeadOptions{VersionID: v.ID})
		if v.DeleteMarker {
			if !errors.Is(err, guard.ErrNotFound) {
				t.Errorf("head of a delete marker by its id: %+v %v", obj, err)
			}
			continue
		}
		i := slices.IndexFunc(ws, func(w written) bool { return w.res.ETag == v.ETag })
		if err != nil || i < 0 {
			t.Errorf("head of version %d: %v", len(got), err)
			continue
		}
		same(t, "head by version id", obj, ws[i])
		if v.Size != int64(len(ws[i].body)) {
			t.Errorf("version %d: size %d", len(got), v.Size)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("versions %q, want %q, newest first, %q being the delete marker", got, want, "")
	}
	// The caller stops when it has seen enough.
	for range guard.Versions(t.Context(), s, "k") {
		break
	}
}
