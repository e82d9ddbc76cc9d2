package localstack

import (
	"bytes"
	"context"
	"crypto/md5"
	"database/sql"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/s3fence/s3fence/guard"
	"pgregory.net/rapid"
)

func TestConditions(t *testing.T) {
	s := open(t, t.TempDir(), nil).Store("bucket")
	first := mustPut(t, s, "there", guard.IfAbsent(), "old")
	current := mustPut(t, s, "there", guard.IfMatch(first), "body")
	for _, c := range []struct {
		name string
		key  string
		cond guard.Condition
		want error
	}{
		{"create what exists", "there", guard.IfAbsent(), guard.ErrPreconditionFailed},
		{"match an older ETag", "there", guard.IfMatch(first), guard.ErrPreconditionFailed},
		{"match a quoted ETag", "there", guard.IfMatch(`"` + current + `"`), guard.ErrPreconditionFailed},
		{"match a star", "there", guard.IfMatch("*"), guard.ErrPreconditionFailed},
		{"match what is missing", "missing", guard.IfMatch(current), guard.ErrNotFound},
		{"no condition, exists", "there", guard.Condition{}, guard.ErrRejected},
		{"no condition, missing", "missing", guard.Condition{}, guard.ErrRejected},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := s.Put(t.Context(), c.key, request(c.cond, "new"))
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), s.URL(c.key)) {
				t.Errorf("got %v, want %v with the object's name", err, c.want)
			}
			if o, body := mustRead(t, s, "there"); body != "body" || o.ETag != current {
				t.Errorf("the refused write changed the object: %q %q", o.ETag, body)
			}
			if _, err := s.Head(t.Context(), "missing", guard.HeadOptions{}); !errors.Is(err, guard.ErrNotFound) {
				t.Errorf("the refused write made an object: %v", err)
			}
		})
	}
}

// The condition that held before the body came may not hold after it.
func TestConditionIsDecidedAtTheCommit(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, nil)
	s := l.Store("bucket")
	slow := at{bytes: []byte("slow"), before: func(int64) error {
		_, err := s.Put(t.Context(), "key", request(guard.IfAbsent(), "fast"))
		return err
	}}
	_, err := s.Put(t.Context(), "key", guard.PutRequest{Condition: guard.IfAbsent(), Body: guard.ReaderAt(slow, 4)})
	if !errors.Is(err, guard.ErrPreconditionFailed) {
		t.Fatalf("got %v, want precondition failed", err)
	}
	if _, body := mustRead(t, s, "key"); body != "fast" {
		t.Errorf("body is %q", body)
	}
	mustClose(t, l)
	checkTidy(t, dir)
}

func TestDoomedWriteReadsNoBody(t *testing.T) {
	s := open(t, t.TempDir(), nil).Store("bucket")
	mustPut(t, s, "key", guard.IfAbsent(), "body")
	body := at{before: func(int64) error { t.Error("the body was read"); return io.ErrUnexpectedEOF }}
	_, err := s.Put(t.Context(), "key", guard.PutRequest{Condition: guard.IfAbsent(), Body: guard.ReaderAt(body, 1<<40)})
	if !errors.Is(err, guard.ErrPreconditionFailed) {
		t.Errorf("got %v, want precondition failed", err)
	}
}

func TestRoundTrip(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, nil)
	want := guard.Headers{
		ContentType: "text/plain; charset=utf-8", ContentEncoding: "gzip", ContentDisposition: `attachment; filename="<é>.txt"`,
		ContentLanguage: "de", CacheControl: "no-store", StorageClass: "STANDARD_IA",
		Expires: "tomorrow", WebsiteRedirect: "/né",
		Metadata: map[string]string{"fence-token": "r1:x", "empty": "", "odd": " \t\u2028<&>é\x00"},
	}
	keys := []string{"plain", "a/b/../../../c", "né", strings.Repeat("k", guard.MaxKey), "."}
	for _, key := range keys {
		for _, bucket := range []string{"bucket-1", "bucket.2"} {
			_, err := l.Store(bucket).Put(t.Context(), key, guard.PutRequest{
				Condition: guard.IfAbsent(), Body: guard.Bytes([]byte(bucket + key)), Headers: want,
				Tags: map[string]string{"team": "<data>"},
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	mustClose(t, l)
	l = open(t, dir, nil)
	for _, key := range keys {
		for _, bucket := range []string{"bucket-1", "bucket.2"} {
			s := l.Store(bucket)
			got, body := mustRead(t, s, key)
			if body != bucket+key || got.Size != int64(len(body)) {
				t.Errorf("%s: body %q", s.URL(key), body)
			}
			if !reflect.DeepEqual(got.Headers, want) {
				t.Errorf("%s: headers\n%#v, want\n%#v", s.URL(key), got.Headers, want)
			}
			head, err := s.Head(t.Context(), key, guard.HeadOptions{VersionID: "null", Checksum: true})
			if err != nil || !reflect.DeepEqual(head, got) {
				t.Errorf("head of %s: %#v %v, want\n%#v", s.URL(key), head, err, got)
			}
		}
	}
	if got := texts(t, l, "SELECT tags FROM objects"); len(got) != 1 || !got[`{"team":"\u003cdata\u003e"}`] {
		t.Errorf("tags are stored as %v", got)
	}
	if got, err := l.Store("bucket-1").Tags(t.Context(), "né", "null"); err != nil || !maps.Equal(got, map[string]string{"team": "<data>"}) {
		t.Errorf("tags are %v, %v", got, err)
	}
}

// Headers of an older write never show through those of a newer one.
func TestOverwriteReplacesHeaders(t *testing.T) {
	s := open(t, t.TempDir(), nil).Store("bucket")
	req := request(guard.IfAbsent(), "a")
	req.Headers = guard.Headers{ContentType: "text/plain", Metadata: map[string]string{"a": "1"}}
	res, err := s.Put(t.Context(), "key", req)
	if err != nil {
		t.Fatal(err)
	}
	mustPut(t, s, "key", guard.IfMatch(res.ETag), "b")
	if o, _ := mustRead(t, s, "key"); !reflect.DeepEqual(o.Headers, guard.Headers{}) {
		t.Errorf("headers are %#v, want none", o.Headers)
	}
}

func TestETags(t *testing.T) {
	unique := open(t, t.TempDir(), nil)
	s := unique.Store("bucket")
	seen := map[string]bool{}
	etag := mustPut(t, s, "key", guard.IfAbsent(), "same")
	for range 20 {
		if seen[etag] || !regexp.MustCompile(`^[0-9a-f]{40}$`).MatchString(etag) {
			t.Fatalf("ETag %q came back or is not 40 hex digits", etag)
		}
		seen[etag] = true
		etag = mustPut(t, s, "key", guard.IfMatch(etag), "same")
	}

	repeatable := open(t, t.TempDir(), &Options{MD5ETags: true})
	m := repeatable.Store("bucket")
	for _, body := range []string{"", "same", strings.Repeat("long", copyChunk)} {
		key, want := fmt.Sprint(len(body)), fmt.Sprintf("%x", md5.Sum([]byte(body)))
		if got := mustPut(t, m, key, guard.IfAbsent(), body); got != want {
			t.Errorf("ETag is %q, want the MD5 %q", got, want)
		}
		if got := mustPut(t, m, key, guard.IfMatch(want), body); got != want {
			t.Errorf("second ETag is %q, want the MD5 %q", got, want)
		}
		if _, got := mustRead(t, m, key); got != body {
			t.Errorf("body of %s bytes changed", key)
		}
	}

	for _, c := range []struct {
		s    guard.Store
		want guard.Settings
	}{
		{s, guard.Settings{Versioning: guard.VersioningOff, UniqueETags: true}},
		{m, guard.Settings{Versioning: guard.VersioningOff}},
	} {
		if got, err := c.s.Settings(t.Context()); err != nil || got != c.want {
			t.Errorf("settings %+v, %v, want %+v", got, err, c.want)
		}
	}
}

func TestChecksum(t *testing.T) {
	s := open(t, t.TempDir(), nil).Store("bucket")
	mustPut(t, s, "key", guard.IfAbsent(), "123456789")
	o, err := s.Head(t.Context(), "key", guard.HeadOptions{Checksum: true})
	// The check value of CRC-32C is e3069283.
	if want := (guard.Checksum{Algorithm: "CRC32C", Value: "4waSgw=="}); err != nil || o.Checksum != want {
		t.Errorf("checksum is %v, %v, want %v", o.Checksum, err, want)
	}
	if o, _ := s.Head(t.Context(), "key", guard.HeadOptions{}); o.Checksum != (guard.Checksum{}) {
		t.Errorf("checksum %v came unasked", o.Checksum)
	}
}

func TestNoVersions(t *testing.T) {
	s := open(t, t.TempDir(), nil).Store("bucket")
	mustPut(t, s, "key", guard.IfAbsent(), "body")
	for v, err := range guard.Versions(t.Context(), s, "missing") {
		t.Errorf("got %v, %v", v, err)
	}
	o, err := s.Head(t.Context(), "key", guard.HeadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := guard.Version{ID: "null", Latest: true, ETag: o.ETag, Size: 4, LastModified: o.LastModified}
	var got []guard.Version
	for v, err := range guard.Versions(t.Context(), s, "key") {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, v)
	}
	if len(got) != 1 || got[0] != want {
		t.Errorf("versions are %+v, want one, %+v", got, want)
	}
	if _, err := s.Tags(t.Context(), "key", "v1"); !errors.Is(err, guard.ErrNotFound) {
		t.Errorf("tags: got %v, want not found", err)
	}
	if _, err := s.Head(t.Context(), "key", guard.HeadOptions{VersionID: "v1"}); !errors.Is(err, guard.ErrNotFound) {
		t.Errorf("got %v, want not found", err)
	}
}

func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, nil)
	good := func() guard.PutRequest { return request(guard.IfAbsent(), "body") }
	short := good()
	short.Body = guard.ReaderAt(strings.NewReader("short"), 6)
	broken := good()
	broken.Body = guard.ReaderAt(at{before: func(int64) error { return errors.New("tape tore") }}, 6)
	encrypted := good()
	encrypted.SSE = "aws:kms"
	keyed := good()
	keyed.SSEKMSKeyID = "key"
	redirect := good()
	redirect.Headers.WebsiteRedirect = "/\xe9"
	latin := good()
	latin.Headers.Metadata = map[string]string{"name": "\xe9"}
	for _, c := range []struct {
		name, bucket, key string
		req               guard.PutRequest
		want              error
		words             string
	}{
		{"encryption", "bucket", "key", encrypted, guard.ErrUnsupported, "does not encrypt"},
		{"encryption key", "bucket", "key", keyed, guard.ErrUnsupported, "does not encrypt"},
		{"short body", "bucket", "key", short, guard.ErrRejected, "5 of 6 bytes"},
		{"broken body", "bucket", "key", broken, guard.ErrRejected, "tape tore"},
		{"metadata not UTF-8", "bucket", "key", latin, guard.ErrRejected, "UTF-8"},
		{"header not UTF-8", "bucket", "key", redirect, guard.ErrRejected, "UTF-8"},
		{"empty key", "bucket", "", good(), guard.ErrRejected, "empty"},
		{"long key", "bucket", strings.Repeat("k", guard.MaxKey+1), good(), guard.ErrRejected, "S3 takes 1024"},
		{"key with NUL", "bucket", "nul\x00byte", good(), guard.ErrRejected, "NUL"},
		{"key not UTF-8", "bucket", "a\xffb", good(), guard.ErrRejected, "UTF-8"},
		{"short bucket", "ab", "key", good(), guard.ErrNoBucket, "3 to 63"},
		{"long bucket", strings.Repeat("b", 64), "key", good(), guard.ErrNoBucket, "3 to 63"},
		{"upper case", "Bucket", "key", good(), guard.ErrNoBucket, "lower-case"},
		{"slash inside", "buc/ket", "key", good(), guard.ErrNoBucket, "lower-case"},
		{"first character", "-bucket", "key", good(), guard.ErrNoBucket, "begin and end"},
		{"last character", "bucket.", "key", good(), guard.ErrNoBucket, "begin and end"},
		{"two dots", "buc..ket", "key", good(), guard.ErrNoBucket, "two dots"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := l.Store(c.bucket)
			_, err := s.Put(t.Context(), c.key, c.req)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.words) {
				t.Errorf("got %v, want %v with %q", err, c.want, c.words)
			}
			if _, err := s.Head(t.Context(), c.key, guard.HeadOptions{}); err == nil {
				t.Error("the refused write made an object")
			}
			if c.want == guard.ErrNoBucket {
				_, _, err := s.Get(t.Context(), "key", guard.ReadOptions{})
				_, settings := s.Settings(t.Context())
				var versions error
				for _, versions = range guard.Versions(t.Context(), s, "key") {
				}
				for _, err := range []error{err, settings, versions} {
					if !errors.Is(err, guard.ErrNoBucket) {
						t.Errorf("got %v, want no bucket", err)
					}
				}
			}
		})
	}
	mustClose(t, l)
	checkTidy(t, dir)
}

func TestCancelled(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, nil)
	s := l.Store("bucket")
	mustPut(t, s, "key", guard.IfAbsent(), "body")
	done, cancel := context.WithCancel(t.Context())
	_, r, err := s.Get(done, "key", guard.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cancel()

	check := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got %v, want context canceled", what, err)
		}
	}
	_, err = io.ReadAll(r)
	check("read", err)
	_, err = s.Head(done, "key", guard.HeadOptions{})
	check("head", err)
	_, _, err = s.Get(done, "key", guard.ReadOptions{})
	check("get", err)
	_, err = s.Settings(done)
	check("settings", err)
	for _, err = range guard.Versions(done, s, "key") {
	}
	check("versions", err)
	_, err = l.Issue(done, "scope")
	check("issue", err)
	_, _, err = l.CreateScope(done, "scope")
	check("create scope", err)

	checkPut := func(what string, err error) {
		t.Helper()
		check(what, err)
		if !errors.Is(err, guard.ErrNotSent) {
			t.Errorf("%s: got %v, want not sent", what, err)
		}
		if _, err := s.Head(t.Context(), "new", guard.HeadOptions{}); !errors.Is(err, guard.ErrNotFound) {
			t.Errorf("%s: the cancelled write made an object: %v", what, err)
		}
	}
	_, err = s.Put(done, "new", request(guard.IfAbsent(), "body"))
	checkPut("put", err)

	during, cancel := context.WithCancel(t.Context())
	body := at{bytes: make([]byte, 3*copyChunk), before: func(offset int64) error {
		if offset > copyChunk {
			t.Errorf("read on at %d after the cancellation", offset)
		}
		if offset > 0 {
			cancel()
		}
		return nil
	}}
	_, err = s.Put(during, "new", guard.PutRequest{Condition: guard.IfAbsent(), Body: guard.ReaderAt(body, 3*copyChunk)})
	checkPut("put, in the body", err)

	// While a transaction of this process holds the folder, and one of another.
	for name, holder := range map[string]*Local{"same Local": l, "other Local": open(t, dir, nil)} {
		waiting, cancel := context.WithCancel(t.Context())
		hold(t, holder, func() {
			body := at{bytes: []byte("body"), before: func(int64) error { go cancel(); return nil }}
			_, err = s.Put(waiting, "new", guard.PutRequest{Condition: guard.IfAbsent(), Body: guard.ReaderAt(body, 4)})
		})
		checkPut("put, waiting for "+name, err)
		cancel()
	}
	if in := files(t, filepath.Join(dir, incomingDir)); len(in) > 0 {
		t.Errorf("left in incoming: %v", in)
	}
}

// A transaction whose context ends before its COMMIT changes nothing.
func TestCancelledBeforeCommit(t *testing.T) {
	l := open(t, t.TempDir(), nil)
	ctx, cancel := context.WithCancel(t.Context())
	err := l.write(ctx, func(ctx context.Context, tx *sql.Conn) error {
		cancel()
		_, err := tx.ExecContext(ctx, "INSERT INTO garbage VALUES ('name')")
		return err
	})
	if !errors.Is(err, context.Canceled) || len(texts(t, l, "SELECT blob FROM garbage")) != 0 {
		t.Errorf("got %v, want context canceled and no row", err)
	}
	mustIssue(t, l, "scope")
}

// hold runs fn while a transaction of l is open.
func hold(t *testing.T, l *Local, fn func()) {
	t.Helper()
	conn, err := l.w.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	fn()
	if _, err := conn.ExecContext(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
}

func TestBusyIsConflict(t *testing.T) {
	dir := t.TempDir()
	l, other := open(t, dir, nil), open(t, dir, nil)
	s := l.Store("bucket")
	hold(t, other, func() {
		exec(t, l, "PRAGMA busy_timeout = 0")
		if _, err := s.Put(t.Context(), "key", request(guard.IfAbsent(), "body")); !errors.Is(err, guard.ErrConflict) {
			t.Errorf("got %v, want conflict", err)
		}
		// Again, since the first failure cost the connection.
		exec(t, l, "PRAGMA busy_timeout = 0")
		if _, err := l.Issue(t.Context(), "scope"); err == nil {
			t.Error("issued without the folder")
		}
	})
	mustPut(t, s, "key", guard.IfAbsent(), "body")
}

// A COMMIT that fails leaves the outcome unknown: no sentinel, and the body
// stays until the next Open has decided.
func TestFailedCommitIsUnknown(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, nil)
	s := l.Store("bucket")
	mustPut(t, s, "old", guard.IfAbsent(), "body")
	exec(t, l, `PRAGMA foreign_keys = ON;
		CREATE TABLE bad (n INTEGER REFERENCES scopes (scope) DEFERRABLE INITIALLY DEFERRED);
		CREATE TRIGGER spoil AFTER INSERT ON objects BEGIN INSERT INTO bad VALUES ('none'); END;`)
	_, err := s.Put(t.Context(), "key", request(guard.IfAbsent(), "body"))
	if err == nil || isAnswer(err) {
		t.Fatalf("got %v, want an error of no kind", err)
	}
	if in := files(t, filepath.Join(dir, incomingDir)); len(in) != 1 {
		t.Errorf("incoming holds %v, want the one body", in)
	}
	exec(t, l, "DROP TRIGGER spoil; DROP TABLE bad")
	if _, err := s.Head(t.Context(), "key", guard.HeadOptions{}); !errors.Is(err, guard.ErrNotFound) {
		t.Errorf("got %v, want not found", err)
	}
	mustPut(t, s, "key", guard.IfAbsent(), "body")
	mustClose(t, l)
	checkTidy(t, dir)
}

func TestDamagedBody(t *testing.T) {
	body := strings.Repeat("0123456789", 10_000)
	for name, damage := range map[string]func(path string) error{
		"flipped byte": func(path string) error { return os.WriteFile(path, []byte("1"+body[1:]), 0o600) },
		"last byte":    func(path string) error { return os.WriteFile(path, []byte(body[1:]+"8"), 0o600) },
		"cut":          func(path string) error { return os.Truncate(path, int64(len(body)-1)) },
		"emptied":      func(path string) error { return os.Truncate(path, 0) },
		"longer":       func(path string) error { return os.Truncate(path, int64(len(body)+1)) },
		"gone":         os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			l := open(t, t.TempDir(), nil)
			s := l.Store("bucket")
			etag := mustPut(t, s, "key", guard.IfAbsent(), body)
			if err := damage(l.blobs.settled(blobOf(t, l, "key"))); err != nil {
				t.Fatal(err)
			}
			// Small reads as well as large ones.
			for _, chunk := range []int{1 << 20, 7} {
				_, r, err := s.Get(t.Context(), "key", guard.ReadOptions{})
				if err == nil {
					_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, r, make([]byte, chunk))
					if _, again := r.Read(make([]byte, 1)); again == nil || again == io.EOF {
						t.Errorf("after the error: got %v", again)
					}
					r.Close()
				}
				if err == nil || !strings.Contains(err.Error(), "damaged") || !strings.Contains(err.Error(), s.URL("key")) {
					t.Errorf("got %v, want damage to the named object", err)
				}
			}
			mustPut(t, s, "key", guard.IfMatch(etag), "written again")
			if _, got := mustRead(t, s, "key"); got != "written again" {
				t.Errorf("body is %q", got)
			}
		})
	}
}

// Readers of a key that is overwritten all the time see one write each, body,
// ETag and metadata, on either Local.
func TestReadersAreNeverTorn(t *testing.T) {
	const writes, writers, readers = 60, 3, 4
	dir := t.TempDir()
	locals := []*Local{open(t, dir, nil), open(t, dir, nil)}
	s := locals[0].Store("bucket")
	var etags sync.Map // ETag to seq
	put := func(s guard.Store, c guard.Condition, seq int) error {
		res, err := s.Put(t.Context(), "key", numbered(c, "key", seq))
		if err == nil {
			etags.Store(res.ETag, seq)
		}
		return err
	}
	if err := put(s, guard.IfAbsent(), 0); err != nil {
		t.Fatal(err)
	}

	var seq atomic.Int64
	var writing, reading sync.WaitGroup
	stop := make(chan struct{})
	type sight struct {
		etag string
		seq  int
	}
	sights := make([]map[sight]bool, readers)
	for i := range writers {
		writing.Go(func() {
			s := locals[i%2].Store("bucket")
			for range writes {
				o, err := s.Head(t.Context(), "key", guard.HeadOptions{})
				if err == nil {
					err = put(s, guard.IfMatch(o.ETag), int(seq.Add(1)))
				}
				if err != nil && !errors.Is(err, guard.ErrPreconditionFailed) {
					t.Error(err)
				}
			}
		})
	}
	for i := range readers {
		sights[i] = map[sight]bool{}
		reading.Go(func() {
			s := locals[i%2].Store("bucket")
			for {
				o, body, err := read(t.Context(), s, "key")
				if err != nil {
					t.Error(err)
					return
				}
				n, err := checkNumbered("key", o, body)
				if err != nil {
					t.Error(err)
				}
				sights[i][sight{o.ETag, n}] = true
				o, err = s.Head(t.Context(), "key", guard.HeadOptions{Checksum: true})
				if err != nil {
					t.Error(err)
					return
				}
				sights[i][sight{o.ETag, mustAtoi(t, o.Metadata["seq"])}] = true
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	writing.Wait()
	close(stop)
	reading.Wait()
	for _, seen := range sights {
		for got := range seen {
			if want, ok := etags.Load(got.etag); !ok || want != got.seq {
				t.Errorf("ETag %s is of write %v and was seen with the metadata of %d", got.etag, want, got.seq)
			}
		}
	}
	for _, l := range locals {
		mustClose(t, l)
	}
	checkTidy(t, dir)
}

// The store against a map, with reopening and two Locals at once.
func TestModel(t *testing.T) {
	dir := t.TempDir()
	locals := []*Local{open(t, dir, nil), open(t, dir, nil)}
	checks := 0
	rapid.Check(t, func(rt *rapid.T) {
		checks++
		bucket := fmt.Sprintf("bucket-%d", checks)
		type object struct{ etag, body string }
		model := map[string]object{}
		var past []string
		keys := rapid.SampledFrom([]string{"a", "a/", "A", "né"})
		which := rapid.IntRange(0, 1)
		rt.Repeat(map[string]func(*rapid.T){
			"put": func(rt *rapid.T) {
				key, body := keys.Draw(rt, "key"), rapid.String().Draw(rt, "body")
				held, there := model[key]
				cond, ok := guard.IfAbsent(), !there
				if !rapid.Bool().Draw(rt, "create") {
					etag := rapid.SampledFrom(append([]string{"none", held.etag}, past...)).Draw(rt, "etag")
					if etag == "" {
						return
					}
					cond, ok = guard.IfMatch(etag), there && etag == held.etag
				}
				res, err := locals[which.Draw(rt, "local")].Store(bucket).Put(rt.Context(), key, request(cond, body))
				switch {
				case ok && err == nil:
					model[key] = object{res.ETag, body}
					past = append(past, res.ETag)
				case ok || err == nil:
					rt.Fatalf("put: got %v, want success: %v", err, ok)
				case !there != errors.Is(err, guard.ErrNotFound) || there != errors.Is(err, guard.ErrPreconditionFailed):
					rt.Fatalf("put: got %v, object there: %v", err, there)
				}
			},
			"get": func(rt *rapid.T) {
				key := keys.Draw(rt, "key")
				o, body, err := read(rt.Context(), locals[which.Draw(rt, "local")].Store(bucket), key)
				held, there := model[key]
				if there && (err != nil || o.ETag != held.etag || string(body) != held.body) || !there && !errors.Is(err, guard.ErrNotFound) {
					rt.Fatalf("get: %v %q %v, want %v %v", o, body, err, held, there)
				}
			},
			"reopen": func(rt *rapid.T) {
				i := which.Draw(rt, "local")
				if err := locals[i].Close(); err != nil {
					rt.Fatal(err)
				}
				locals[i] = open(t, dir, nil)
			},
		})
	})
	mustClose(t, locals[0])
	mustClose(t, locals[1])
	checkTidy(t, dir)
}

func TestChecksumIsOfTheWholeBody(t *testing.T) {
	body := bytes.Repeat([]byte("chunk"), copyChunk)
	l := open(t, t.TempDir(), nil)
	sum := md5.New()
	crc, err := l.blobs.receive(t.Context(), newBlobName(l.id), bytes.NewReader(body), int64(len(body)), sum)
	if err != nil || crc != crc32.Checksum(body, castagnoli) || [md5.Size]byte(sum.Sum(nil)) != md5.Sum(body) {
		t.Errorf("got %x and %x, %v", crc, sum.Sum(nil), err)
	}
}
