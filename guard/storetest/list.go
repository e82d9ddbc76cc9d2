package storetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/s3fence/s3fence/guard"
)

// list collects a listing.
func list(t *testing.T, s guard.Store, opts guard.ListOptions) []guard.Listed {
	t.Helper()
	var ls []guard.Listed
	for l, err := range s.List(t.Context(), opts) {
		if err != nil {
			t.Fatalf("list %+v: %v", opts, err)
		}
		ls = append(ls, l)
	}
	return ls
}

// lists checks that a listing has these keys, in this order. A common prefix
// is written with "... " before it.
func lists(t *testing.T, s guard.Store, opts guard.ListOptions, want ...string) []guard.Listed {
	t.Helper()
	ls := list(t, s, opts)
	var got []string
	for _, l := range ls {
		name := l.Key
		if l.Prefix {
			name = "... " + name
			if l.Version != (guard.Version{}) || l.StorageClass != "" || l.Metadata != nil {
				t.Errorf("list %+v: the common prefix %q has more than its key: %+v", opts, l.Key, l)
			}
		}
		got = append(got, name)
	}
	if !slices.Equal(got, want) {
		t.Errorf("list %+v: %q, want %q", opts, got, want)
	}
	return ls
}

// Keys to list, in no order. Sorted by bytes, they are not in the order of
// UTF-16, of a locale, of folders, or of their encoded forms.
var unsorted = []string{
	"b", "a/x", "a-b", "a.b", "a+b", "a b", "a%20b", "a&b", "a<b", `a"b`, "a?b", "a#b", "a=b",
	"B", "\U0001F600", "\uFF5E", "caf\u00e9", "cafe\u0301", "a/y/z", "ab", "a0",
}

func (h Harness) list(t *testing.T) {
	s := h.Open(t)
	lists(t, s, guard.ListOptions{})
	lists(t, s, guard.ListOptions{Versions: true})
	ws := map[string]written{}
	for i, key := range unsorted {
		w := put(t, s, key, guard.IfAbsent(), strings.Repeat("x", i), meta("n", "1"))
		if i%2 == 0 {
			w = put(t, s, key, guard.IfMatch(w.res.ETag), strings.Repeat("y", i+1), meta("n", "2"))
		}
		ws[key] = w
	}
	keys := slices.Sorted(slices.Values(unsorted))
	check := func(t *testing.T, versions bool, optss ...guard.ListOptions) {
		t.Helper()
		for _, opts := range optss {
			opts.Versions = versions
			want := slices.DeleteFunc(slices.Clone(keys), func(k string) bool {
				return !strings.HasPrefix(k, opts.Prefix) || k <= opts.StartAfter
			})
			for _, l := range lists(t, s, opts, want...) {
				w := ws[l.Key]
				if l.ETag != w.res.ETag || l.Size != int64(len(w.body)) || l.DeleteMarker {
					t.Errorf("list %+v: %+v, want ETag %s and size %d", opts, l, w.res.ETag, len(w.body))
				}
				if l.LastModified.IsZero() {
					t.Errorf("list %+v: %q has no time", opts, l.Key)
				}
				if l.Latest != versions || !versions && l.ID != "" {
					t.Errorf("list %+v: %q: latest %t, version %q", opts, l.Key, l.Latest, l.ID)
				}
			}
		}
	}
	for how, versions := range map[string]bool{"": false, "versions-": true} {
		h.run(t, "List/"+how+"all", func(t *testing.T) {
			check(t, versions, guard.ListOptions{})
			// The caller stops when it has seen enough.
			for range s.List(t.Context(), guard.ListOptions{Versions: versions}) {
				break
			}
		})
		h.run(t, "List/"+how+"prefix", func(t *testing.T) {
			for _, prefix := range []string{"a", "a/", "a/y/z", "a/y/z/", "a b", "a%", "a+", "none", "caf", "\U0001F600"} {
				check(t, versions, guard.ListOptions{Prefix: prefix})
			}
		})
		h.run(t, "List/"+how+"start-after", func(t *testing.T) {
			for _, key := range []string{
				"a/x", "a b", "a%20b", "a+b", "a&b", "cafe\u0301", "\U0001F600", "0", "a", "a/xx", "\U0001F601", // the last are no keys of its
			} {
				check(t, versions, guard.ListOptions{StartAfter: key})
			}
			for _, x := range [][2]string{{"a/", "a/x"}, {"a/", "a/"}, {"a/", "B"}, {"a/", "b"}, {"a", "a"}} {
				check(t, versions, guard.ListOptions{Prefix: x[0], StartAfter: x[1]})
			}
		})
	}
	h.run(t, "List/read", func(t *testing.T) {
		// What is read during a listing does no harm, in either direction.
		for l, err := range s.List(t.Context(), guard.ListOptions{Prefix: "a"}) {
			if err != nil {
				t.Fatal(err)
			}
			stands(t, s, l.Key, ws[l.Key])
		}
	})
	h.run(t, "List/below-a-key", func(t *testing.T) {
		s := h.Open(t)
		for _, key := range []string{"k/below", "k", "k/below/further", "k/"} {
			put(t, s, key, guard.IfAbsent(), "x", meta())
		}
		lists(t, s, guard.ListOptions{}, "k", "k/", "k/below", "k/below/further")
		lists(t, s, guard.ListOptions{Versions: true}, "k", "k/", "k/below", "k/below/further")
		lists(t, s, guard.ListOptions{Prefix: "k/"}, "k/", "k/below", "k/below/further")
		lists(t, s, guard.ListOptions{Delimiter: "/"}, "k", "... k/")
		lists(t, s, guard.ListOptions{Prefix: "k/", Delimiter: "/"}, "k/", "k/below", "... k/below/")
	})
}

func (h Harness) listDelimiter(t *testing.T) {
	s := h.Open(t)
	for _, key := range []string{"c", "a/b", "a/c d/e", "a/c d/f", "b-1/x", "b-2", "d/e/f", "e/"} {
		put(t, s, key, guard.IfAbsent(), "x", meta())
	}
	for _, x := range []struct {
		opts guard.ListOptions
		want []string
	}{
		{guard.ListOptions{}, []string{"... a/", "... b-1/", "b-2", "c", "... d/", "... e/"}},
		{guard.ListOptions{Prefix: "a"}, []string{"... a/"}},
		{guard.ListOptions{Prefix: "a/"}, []string{"a/b", "... a/c d/"}},
		{guard.ListOptions{Prefix: "a/c d/"}, []string{"a/c d/e", "a/c d/f"}},
		{guard.ListOptions{Prefix: "b-"}, []string{"... b-1/", "b-2"}},
		{guard.ListOptions{Prefix: "e/"}, []string{"e/"}},
		{guard.ListOptions{Prefix: "none"}, nil},
		{guard.ListOptions{StartAfter: "b-2"}, []string{"c", "... d/", "... e/"}},
		{guard.ListOptions{StartAfter: "c"}, []string{"... d/", "... e/"}},
		{guard.ListOptions{Prefix: "a/", StartAfter: "a/b"}, []string{"... a/c d/"}},
	} {
		x.opts.Delimiter = "/"
		lists(t, s, x.opts, x.want...)
	}
	h.run(t, "ListDelimiter/other", func(t *testing.T) {
		lists(t, s, guard.ListOptions{Delimiter: "-"}, "a/b", "a/c d/e", "a/c d/f", "... b-", "c", "d/e/f", "e/")
	})
}

func (h Harness) listVersions(t *testing.T) {
	s, remove := h.versioned(t)
	type want struct {
		key, etag string
		size      int64
		latest    bool
	}
	var wants []want
	add := func(key, etag string, size int) {
		for i := range wants {
			if wants[i].key == key {
				wants[i].latest = false
			}
		}
		wants = append(wants, want{key, etag, int64(size), true})
		time.Sleep(10 * time.Millisecond) // versions and markers are told apart by time
	}
	last := map[string]guard.Condition{}
	for i, key := range []string{"b", "a/b", "a b", "b", "a/b", "-a/b", "c", "-c", "a/b", "b", "b-c", "-b-c", "b-c"} {
		if key, ok := strings.CutPrefix(key, "-"); ok {
			remove(t, key)
			add(key, "", 0)
			delete(last, key)
			continue
		}
		c, ok := last[key]
		if !ok {
			c = guard.IfAbsent()
		}
		w := put(t, s, key, c, fmt.Sprint(key, i), meta())
		last[key] = guard.IfMatch(w.res.ETag)
		add(key, w.res.ETag, len(w.body))
	}
	slices.Reverse(wants)
	slices.SortStableFunc(wants, func(a, b want) int { return cmp.Compare(a.key, b.key) })

	check := func(t *testing.T, opts guard.ListOptions) {
		t.Helper()
		opts.Versions = true
		expect := slices.DeleteFunc(slices.Clone(wants), func(w want) bool {
			return !strings.HasPrefix(w.key, opts.Prefix) || w.key <= opts.StartAfter
		})
		got := list(t, s, opts)
		ids := map[string]bool{}
		for i, l := range got {
			if l.ID == "" || ids[l.Key+l.ID] {
				t.Errorf("list %+v: version id %q of %q is empty or comes twice", opts, l.ID, l.Key)
			}
			ids[l.Key+l.ID] = true
			if l.LastModified.IsZero() || l.DeleteMarker != (l.ETag == "") {
				t.Errorf("list %+v: %+v", opts, l)
			}
			if w := (want{l.Key, l.ETag, l.Size, l.Latest}); i < len(expect) && w != expect[i] {
				t.Errorf("list %+v: entry %d is %+v, want %+v", opts, i, w, expect[i])
			}
		}
		if len(got) != len(expect) {
			t.Errorf("list %+v: %d entries, want %d", opts, len(got), len(expect))
		}
	}
	h.run(t, "ListVersions/all", func(t *testing.T) {
		check(t, guard.ListOptions{})
		for range s.List(t.Context(), guard.ListOptions{Versions: true}) {
			break
		}
	})
	h.run(t, "ListVersions/prefix", func(t *testing.T) {
		for _, prefix := range []string{"b", "b-", "a/b", "a/b/", "none"} {
			check(t, guard.ListOptions{Prefix: prefix})
		}
	})
	h.run(t, "ListVersions/start-after", func(t *testing.T) {
		for _, key := range []string{"a/b", "a b", "b", "b-c", "a0", "c"} {
			check(t, guard.ListOptions{StartAfter: key})
		}
		check(t, guard.ListOptions{Prefix: "b", StartAfter: "b"})
	})
	for _, l := range lists(t, s, guard.ListOptions{}, "a b", "a/b", "b", "b-c") {
		if l.ID != "" || l.Latest || l.DeleteMarker {
			t.Errorf("a listing without versions: %+v", l)
		}
	}
}

// listMetadata: what a listing says of metadata is what the object has.
func (h Harness) listMetadata(t *testing.T) {
	s := h.Open(t)
	ws := map[string]written{}
	for key, hd := range map[string]guard.Headers{
		"plain":  meta(),
		"record": meta(guard.RecordKey, "r1:00000000000000a1:a/b-c_d.e:00000000000000000001:0000000001:0123456789abcdef0123456789abcdef:l:01234567"),
		"many":   meta("a-b", "1, 2", "c", `<&>"'`, "content-type", "not the header of that name"),
		"a b/c":  {ContentType: "text/csv", CacheControl: "no-store", ContentLanguage: "de", Metadata: map[string]string{"n": "1"}},
	} {
		ws[key] = put(t, s, key, guard.IfAbsent(), key, hd)
	}
	for _, versions := range []bool{false, true} {
		for _, l := range lists(t, s, guard.ListOptions{Metadata: true, Versions: versions}, "a b/c", "many", "plain", "record") {
			want := ws[l.Key].h.Metadata
			if l.ETag != ws[l.Key].res.ETag {
				t.Errorf("list (versions: %t): ETag %s of %q, want %s", versions, l.ETag, l.Key, ws[l.Key].res.ETag)
			}
			if l.Metadata != nil && !maps.Equal(l.Metadata, want) {
				t.Errorf("list (versions: %t): metadata of %q is %v, want %v", versions, l.Key, l.Metadata, want)
			}
			if h.ListsMetadata && l.Metadata == nil && len(want) > 0 {
				t.Errorf("list (versions: %t): no metadata of %q, the harness says that there is", versions, l.Key)
			}
		}
	}
	lists(t, s, guard.ListOptions{Metadata: true, Delimiter: "/"}, "... a b/", "many", "plain", "record")
}

// listPages: a listing goes on where its last page ended, in the middle of a
// key's versions as well.
func (h Harness) listPages(t *testing.T) {
	if h.PageSize == 0 {
		t.Skip("left out: the harness names no page size")
	}
	s, remove := h.Open(t), func(*testing.T, string) {}
	if h.Versioned != nil {
		s, remove = h.Versioned(t)
	}
	// Folders of four, and a page must end in the middle of one.
	var keys, folders []string
	for i := range h.PageSize + 5 {
		keys = append(keys, fmt.Sprintf("a b+%04d/%d%%", i/4, i))
	}
	slices.Sort(keys)
	for _, key := range keys {
		folder, _, _ := strings.Cut(key, "/")
		folders = append(folders, "... "+folder+"/")
	}
	folders = slices.Compact(folders)
	var wg sync.WaitGroup
	todo := make(chan string, len(keys))
	for _, key := range keys {
		todo <- key
	}
	close(todo)
	for range 8 {
		wg.Go(func() {
			for key := range todo {
				if _, err := s.Put(t.Context(), key, request(guard.IfAbsent(), nil, meta())); err != nil {
					t.Errorf("put %q: %v", key, err)
				}
			}
		})
	}
	wg.Wait()
	lists(t, s, guard.ListOptions{}, keys...)
	lists(t, s, guard.ListOptions{StartAfter: keys[1]}, keys[2:]...)
	lists(t, s, guard.ListOptions{Prefix: "a ", Delimiter: "/"}, folders...)
	if h.Versioned == nil {
		lists(t, s, guard.ListOptions{Versions: true}, keys...)
		return
	}
	// With its three versions and a marker this key lies across the first page's end.
	at := h.PageSize - 2
	obj, err := s.Head(t.Context(), keys[at], guard.HeadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c := guard.IfMatch(obj.ETag)
	for i := range 2 {
		w := put(t, s, keys[at], c, fmt.Sprint(i), meta())
		c = guard.IfMatch(w.res.ETag)
	}
	remove(t, keys[at])
	lists(t, s, guard.ListOptions{Versions: true}, slices.Insert(slices.Clone(keys), at, keys[at], keys[at], keys[at])...)
	lists(t, s, guard.ListOptions{}, slices.Delete(slices.Clone(keys), at, at+1)...)
}

func (h Harness) listCancelled(t *testing.T) {
	s := h.Open(t)
	for _, key := range []string{"a", "b", "c"} {
		put(t, s, key, guard.IfAbsent(), "x", meta())
	}
	for _, versions := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		var keys []string
		var errs []error
		for l, err := range s.List(ctx, guard.ListOptions{Versions: versions}) {
			cancel() // it is noticed at the next entry, though that was fetched before
			if err != nil {
				errs = append(errs, err)
			} else {
				keys = append(keys, l.Key)
			}
		}
		cancel()
		if !slices.Equal(keys, []string{"a"}) || len(errs) != 1 || !errors.Is(errs[0], context.Canceled) {
			t.Errorf("list (versions: %t), cancelled at the first entry: %q, then %v", versions, keys, errs)
		}
		n := 0
		for l, err := range s.List(ctx, guard.ListOptions{Versions: versions}) {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("list (versions: %t) under a done context: %+v %v", versions, l, err)
			}
			n++
		}
		if n != 1 {
			t.Errorf("list (versions: %t) under a done context yielded %d times, want once, the error", versions, n)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Tags(ctx, "a", "")
	refused(t, err, context.Canceled)
}

// tagged checks an object's tags, a missing map being an empty one.
func tagged(t *testing.T, s guard.Store, key, versionID string, want map[string]string) {
	t.Helper()
	got, err := s.Tags(t.Context(), key, versionID)
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("tags of %q %q: %v %v, want %v", key, versionID, got, err, want)
	}
}

func (h Harness) tags(t *testing.T) {
	all := map[string]string{"team": "data eng", "cost:center": "a+b/c=d", "empty": "", "n": "@_.-0"}
	s := h.Open(t)
	req := request(guard.IfAbsent(), []byte("x"), meta("n", "1"))
	req.Tags = all
	res, err := s.Put(t.Context(), "k", req)
	if err != nil {
		t.Fatal(err)
	}
	stands(t, s, "k", written{[]byte("x"), meta("n", "1"), res})
	tagged(t, s, "k", "", all)

	// Tags are replaced with the object, never kept.
	req.Condition, req.Tags = guard.IfMatch(res.ETag), map[string]string{"other": "1"}
	req.Body = guard.Bytes([]byte("y"))
	if res, err = s.Put(t.Context(), "k", req); err != nil {
		t.Fatal(err)
	}
	tagged(t, s, "k", "", req.Tags)
	put(t, s, "k", guard.IfMatch(res.ETag), "z", meta())
	tagged(t, s, "k", "", nil)
	_, err = s.Tags(t.Context(), "missing", "")
	refused(t, err, guard.ErrNotFound)

	h.run(t, "Tags/unicode", func(t *testing.T) {
		s := h.Open(t)
		req := request(guard.IfAbsent(), []byte("x"), meta())
		req.Tags = map[string]string{"caf\u00e9": "\u00fc", "\u03bb": "a b"}
		if _, err := s.Put(t.Context(), "k", req); err != nil {
			refused(t, err, guard.ErrRejected, guard.ErrInvalid)
			t.Logf("tags %q are refused: %v", req.Tags, err)
			absent(t, s, "k")
			return
		}
		tagged(t, s, "k", "", req.Tags)
	})
	if h.Versioned == nil {
		return
	}
	h.run(t, "Tags/versions", func(t *testing.T) {
		s, remove := h.Versioned(t)
		req := request(guard.IfAbsent(), []byte("x"), meta())
		req.Tags = all
		first, err := s.Put(t.Context(), "a b", req)
		if err != nil {
			t.Fatal(err)
		}
		second := put(t, s, "a b", guard.IfMatch(first.ETag), "y", meta())
		tagged(t, s, "a b", "", nil)
		tagged(t, s, "a b", first.VersionID, all)
		tagged(t, s, "a b", second.res.VersionID, nil)
		remove(t, "a b")
		tagged(t, s, "a b", first.VersionID, all)
		_, err = s.Tags(t.Context(), "a b", "")
		refused(t, err, guard.ErrNotFound)
	})
}
