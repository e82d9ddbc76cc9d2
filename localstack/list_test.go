package localstack

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/s3fence/s3fence/guard"
)

// listed returns a listing's keys, with " ..." after a common prefix.
func listed(t *testing.T, s guard.Store, opts guard.ListOptions) []string {
	t.Helper()
	var keys []string
	for l, err := range s.List(t.Context(), opts) {
		if err != nil {
			t.Fatal(err)
		}
		if l.Prefix {
			l.Key += " ..."
		}
		keys = append(keys, l.Key)
	}
	return keys
}

// fill makes objects that share one body, with no file.
func fill(t *testing.T, l *Local, keys ...string) {
	t.Helper()
	tx, err := l.w.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if _, err := tx.ExecContext(t.Context(), `INSERT INTO objects
			(bucket, key, etag, blob, size, crc32c, modified, headers, tags) VALUES ('bucket', ?, 'etag', ?, 0, 0, 0, '{}', 'null')`,
			[]byte(key), newBlobName(l.id)); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

func numberedKeys(prefix string, n int) []string {
	var keys []string
	for i := range n {
		keys = append(keys, fmt.Sprintf("%s%05d", prefix, i))
	}
	return keys
}

// A prefix is bytes: no pattern, and neither case nor characters are known.
func TestListPrefixes(t *testing.T) {
	l := open(t, t.TempDir(), nil)
	s := l.Store("bucket")
	keys := []string{"%", "%a", "A%B", "[a]", "_", "a%", "a%b", "a*", "aXb", "a\\", "a\\%b", "a_b", "è", "é", "é_", "\U0010FFFF", "\U0010FFFFx"}
	slices.Sort(keys)
	for _, key := range keys {
		mustPut(t, s, key, guard.IfAbsent(), key)
	}
	mustPut(t, l.Store("bucket-2"), "a%", guard.IfAbsent(), "other bucket")
	for _, prefix := range append([]string{
		"", "a", "A", "a%b", "a_", "[", "a\\%", "\xc3", "\xc3\xa9", "\xf4", "\xf4\x8f\xbf\xbf", "\xff", "\xff\xff", "a\xff", "none", strings.Repeat("k", 2000),
	}, keys...) {
		var want []string
		for _, key := range keys {
			if strings.HasPrefix(key, prefix) {
				want = append(want, key)
			}
		}
		if got := listed(t, s, guard.ListOptions{Prefix: prefix}); !slices.Equal(got, want) {
			t.Errorf("prefix %q lists %q, want %q", prefix, got, want)
		}
	}
}

// The last key of a page and its first are listed once, and so is a folder
// that lies across the end of one.
func TestListPageEnds(t *testing.T) {
	for _, n := range []int{pageRows - 1, pageRows, pageRows + 1, 2 * pageRows, 2*pageRows + 1} {
		l := open(t, t.TempDir(), nil)
		s := l.Store("bucket")
		keys := numberedKeys("a", n)
		fill(t, l, keys...)
		fill(t, l, "b/1", "b/2", "b/3", "c")
		all := slices.Concat(keys, []string{"b/1", "b/2", "b/3", "c"})
		if got := listed(t, s, guard.ListOptions{}); !slices.Equal(got, all) {
			t.Errorf("of %d keys, %d are listed", len(all), len(got))
		}
		want := slices.Concat(keys, []string{"b/ ...", "c"})
		if got := listed(t, s, guard.ListOptions{Delimiter: "/"}); !slices.Equal(got, want) {
			t.Errorf("with %d keys and a folder, %d entries are listed, the last %q", n, len(got), got[len(got)-2:])
		}
	}
}

func TestListDelimiter(t *testing.T) {
	l := open(t, t.TempDir(), nil)
	s := l.Store("bucket")
	fill(t, l, "a", "a/", "a/b", "a/b/c", "a0", "x--1", "x--2", "x-3", "é/é")
	for _, c := range []struct {
		opts guard.ListOptions
		want []string
	}{
		{guard.ListOptions{Delimiter: "/"}, []string{"a", "a/ ...", "a0", "x--1", "x--2", "x-3", "é/ ..."}},
		{guard.ListOptions{Delimiter: "/", Prefix: "a"}, []string{"a", "a/ ...", "a0"}},
		{guard.ListOptions{Delimiter: "/", Prefix: "a/"}, []string{"a/", "a/b", "a/b/ ..."}},
		{guard.ListOptions{Delimiter: "--"}, []string{"a", "a/", "a/b", "a/b/c", "a0", "x-- ...", "x-3", "é/é"}},
		// A listing goes on after any of its entries.
		{guard.ListOptions{Delimiter: "/", StartAfter: "a"}, []string{"a/ ...", "a0", "x--1", "x--2", "x-3", "é/ ..."}},
		{guard.ListOptions{Delimiter: "/", StartAfter: "a/"}, []string{"a0", "x--1", "x--2", "x-3", "é/ ..."}},
		{guard.ListOptions{Delimiter: "/", StartAfter: "a/a"}, []string{"a0", "x--1", "x--2", "x-3", "é/ ..."}},
		{guard.ListOptions{Delimiter: "/", StartAfter: "é/"}, nil},
		{guard.ListOptions{Delimiter: "/", Prefix: "a/", StartAfter: "a/b"}, []string{"a/b/ ..."}},
		{guard.ListOptions{Delimiter: "--", StartAfter: "x-"}, []string{"x-- ...", "x-3", "é/é"}},
	} {
		if got := listed(t, s, c.opts); !slices.Equal(got, c.want) {
			t.Errorf("%+v lists %q, want %q", c.opts, got, c.want)
		}
	}
	for _, err := range s.List(t.Context(), guard.ListOptions{Delimiter: "/", Versions: true}) {
		if !errors.Is(err, guard.ErrRejected) {
			t.Errorf("delimiter and versions: got %v, want rejected", err)
		}
	}
}

// What is rolled up isn't read: a folder costs one seek, whatever is in it.
func TestListSeeksOverFolders(t *testing.T) {
	l := open(t, t.TempDir(), nil)
	fill(t, l, numberedKeys("a/", 10*pageRows)...)
	fill(t, l, numberedKeys("b/", 10*pageRows)...)
	li := newListing(&store{l, "bucket"}, guard.ListOptions{Delimiter: "/"})
	pages := 0
	var got []string
	for more := true; more; pages++ {
		var page []guard.Listed
		var err error
		if page, more, err = li.page(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, e := range page {
			got = append(got, e.Key)
		}
	}
	if !slices.Equal(got, []string{"a/", "b/"}) || pages != 3 {
		t.Errorf("%q in %d queries, want two folders in 3", got, pages)
	}
}

func TestListSaysWhatHeadSays(t *testing.T) {
	s := open(t, t.TempDir(), nil).Store("bucket")
	req := request(guard.IfAbsent(), "body")
	req.Headers = guard.Headers{StorageClass: "GLACIER", Metadata: map[string]string{"a": "1"}}
	if _, err := s.Put(t.Context(), "full", req); err != nil {
		t.Fatal(err)
	}
	mustPut(t, s, "bare", guard.IfAbsent(), "")
	for _, versions := range []bool{false, true} {
		for e, err := range s.List(t.Context(), guard.ListOptions{Versions: versions}) {
			if err != nil {
				t.Fatal(err)
			}
			o, err := s.Head(t.Context(), e.Key, guard.HeadOptions{VersionID: e.ID})
			if err != nil {
				t.Fatal(err)
			}
			want := guard.Version{ETag: o.ETag, Size: o.Size, LastModified: o.LastModified}
			if versions {
				want.ID, want.Latest = "null", true
			}
			if e.Version != want || e.StorageClass != o.StorageClass || e.Metadata == nil || e.Metadata["a"] != o.Metadata["a"] {
				t.Errorf("listed %+v, want %+v of %+v", e, want, o)
			}
		}
	}
}

// A consumer that takes its time holds nothing: others write, and what it has
// yet to read changes under it.
func TestListDuringWrites(t *testing.T) {
	dir := t.TempDir()
	l, other := open(t, dir, nil), open(t, dir, nil)
	s := l.Store("bucket")
	keys := numberedKeys("k", 3*pageRows)
	fill(t, l, keys...)
	var got []string
	for e, err := range s.List(t.Context(), guard.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		if n := l.r.Stats().InUse; n != 0 {
			t.Fatalf("%d connections are in use between two entries", n)
		}
		switch got = append(got, e.Key); len(got) {
		case 1:
			mustPut(t, s, "a before it", guard.IfAbsent(), "x")
			mustPut(t, other.Store("bucket"), "z after it", guard.IfAbsent(), "x")
		case pageRows: // the last of a page, and the next one
			for _, key := range keys[pageRows-1 : pageRows+1] {
				exec(t, l, "DELETE FROM objects WHERE key = ?", []byte(key))
			}
		}
	}
	want := append(slices.Delete(slices.Clone(keys), pageRows, pageRows+1), "z after it")
	if !slices.Equal(got, want) {
		t.Errorf("%d keys are listed, the last %q; want %d, the last %q", len(got), got[len(got)-1], len(want), want[len(want)-1])
	}
}

// Closing doesn't wait for who is in the middle of a listing.
func TestCloseDuringList(t *testing.T) {
	l := open(t, t.TempDir(), nil)
	fill(t, l, numberedKeys("k", 2*pageRows)...)
	n := 0
	var last error
	for _, err := range l.Store("bucket").List(t.Context(), guard.ListOptions{}) {
		if n == 0 {
			mustClose(t, l)
		}
		n, last = n+1, err
	}
	if n != pageRows+1 || !errors.Is(last, errClosed) {
		t.Errorf("%d entries, the last %v; want a page and %v", n, last, errClosed)
	}
}

func TestUploadsPages(t *testing.T) {
	l := open(t, t.TempDir(), nil)
	s := l.Store("bucket")
	var want []guard.Upload
	for _, key := range []string{"a%", "a%b"} {
		for range pageRows/2 + 10 {
			want = append(want, mustCreate(t, s, key, guard.UploadRequest{Checksum: "CRC32"}))
		}
	}
	for _, key := range []string{"A%", "aXb", "a", "b"} {
		mustCreate(t, s, key, guard.UploadRequest{})
	}
	mustCreate(t, l.Store("bucket-2"), "a%", guard.UploadRequest{})
	var got []guard.Upload
	for up, err := range s.Uploads(t.Context(), "a%") {
		if err != nil {
			t.Fatal(err)
		}
		if up.Initiated.IsZero() || up.Checksum != "" {
			t.Errorf("listed as %+v, want when it began and no more", up)
		}
		if err := s.AbortUpload(t.Context(), up); err != nil {
			t.Error(err)
		}
		got = append(got, guard.Upload{Key: up.Key, ID: up.ID, Checksum: "CRC32"})
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d uploads are listed, want %d in the order of their keys and times", len(got), len(want))
	}
	if left := len(texts(t, l, "SELECT id FROM uploads")); left != 5 {
		t.Errorf("%d uploads are left, want 5", left)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var last error
	for _, err := range s.Uploads(ctx, "a") {
		cancel()
		last = err
	}
	if !errors.Is(last, context.Canceled) {
		t.Errorf("cancelled: got %v", last)
	}
}
