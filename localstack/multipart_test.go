package localstack

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/s3fence/s3fence/guard"
)

func mustCreate(t testing.TB, s guard.Store, key string, req guard.UploadRequest) guard.Upload {
	t.Helper()
	up, err := s.CreateUpload(t.Context(), key, req)
	if err != nil {
		t.Fatal(err)
	}
	return up
}

func mustSend(t testing.TB, s guard.Store, up guard.Upload, number int, body string) guard.Part {
	t.Helper()
	p, err := s.UploadPart(t.Context(), up, number, guard.Bytes([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func mustComplete(t testing.TB, s guard.Store, up guard.Upload, c guard.Condition, parts ...guard.Part) string {
	t.Helper()
	res, err := s.CompleteUpload(t.Context(), up, guard.CompleteRequest{Condition: c, Parts: parts})
	if err != nil {
		t.Fatal(err)
	}
	return res.ETag
}

// zeros is a part that needn't be the last.
var zeros = string(make([]byte, minPart))

// partBlob is the file of a part, wherever it is.
func partBlob(t testing.TB, l *Local, up guard.Upload, number int) string {
	t.Helper()
	for name := range texts(t, l, "SELECT blob FROM parts WHERE upload = ? AND number = ?", up.ID, number) {
		return name
	}
	t.Fatalf("no row for part %d", number)
	return ""
}

// The values are Python's: md5(md5(first) + md5(second)).
func TestMultipartETags(t *testing.T) {
	s := open(t, t.TempDir(), &Options{MD5ETags: true}).Store("bucket")
	for _, c := range []struct {
		parts []string
		want  string
	}{
		{[]string{zeros, "123456789"}, "4f71ea28b759fb81d89dfa86e3a269cb-2"},
		{[]string{"123456789"}, "5927c5d64d94a5786f90003aa26d0159-1"},
		{[]string{""}, "59adb24ef3cdbe0297f05b395827453f-1"},
	} {
		up := mustCreate(t, s, c.want, guard.UploadRequest{})
		var parts []guard.Part
		for i, body := range c.parts {
			parts = append(parts, mustSend(t, s, up, 2*i+1, body))
		}
		etag := mustComplete(t, s, up, guard.IfAbsent(), parts...)
		if o, body := mustRead(t, s, c.want); etag != c.want || o.ETag != c.want || body != strings.Join(c.parts, "") {
			t.Errorf("ETags are %q and %q, want %q", etag, o.ETag, c.want)
		}
	}

	// An upload can be ended by a Local with other options than its beginner's.
	dir := t.TempDir()
	unique, repeatable := open(t, dir, nil), open(t, dir, &Options{MD5ETags: true})
	up := mustCreate(t, unique.Store("bucket"), "key", guard.UploadRequest{})
	p := mustSend(t, unique.Store("bucket"), up, 1, "123456789")
	if len(p.ETag) != 2*etagBytes {
		t.Errorf("the part's ETag is %q, want a random one", p.ETag)
	}
	if etag := mustComplete(t, repeatable.Store("bucket"), up, guard.IfAbsent(), p); etag != "5927c5d64d94a5786f90003aa26d0159-1" {
		t.Errorf("ETag is %q", etag)
	}
	up = mustCreate(t, repeatable.Store("bucket"), "key", guard.UploadRequest{})
	p = mustSend(t, repeatable.Store("bucket"), up, 1, "123456789")
	if etag := mustComplete(t, unique.Store("bucket"), up, guard.IfMatch("5927c5d64d94a5786f90003aa26d0159-1"), p); len(etag) != 2*etagBytes {
		t.Errorf("ETag is %q, want a random one", etag)
	}
}

// The object's checksum is of the algorithm that its last write asked for.
func TestMultipartChecksum(t *testing.T) {
	s := open(t, t.TempDir(), nil).Store("bucket")
	headers := guard.Headers{ContentType: "text/plain", Metadata: map[string]string{"a": "1"}}
	c := guard.IfAbsent()
	for _, want := range []guard.Checksum{
		// The check values of the algorithms.
		{Algorithm: "CRC32", Value: "y/Q5Jg=="},
		{Algorithm: "CRC64NVME", Value: "rosUhgp5mIg="},
		{Algorithm: "CRC32C", Value: "4waSgw=="},
		{Value: "4waSgw=="},
	} {
		up := mustCreate(t, s, "key", guard.UploadRequest{Checksum: want.Algorithm, Headers: headers})
		up.Checksum = "" // as it is when it was found in a listing
		p := mustSend(t, s, up, 1, "123456789")
		want.Algorithm = cmp.Or(want.Algorithm, "CRC32C")
		c = guard.IfMatch(mustComplete(t, s, up, c, p))
		o, err := s.Head(t.Context(), "key", guard.HeadOptions{Checksum: true})
		if err != nil || p.Checksum != want || o.Checksum != want || !reflect.DeepEqual(o.Headers, headers) {
			t.Errorf("part %+v, object %+v, %v, want %+v", p, o, err, want)
		}
	}
	mustPut(t, s, "key", c, "")
	if o, err := s.Head(t.Context(), "key", guard.HeadOptions{Checksum: true}); err != nil || o.Checksum != checksum(0) {
		t.Errorf("checksum is %v, %v", o.Checksum, err)
	}
}

// Everything that refuses a completion leaves the upload as it was.
func TestMultipartRefusals(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, nil)
	s := l.Store("bucket")
	up := mustCreate(t, s, "key", guard.UploadRequest{})
	one, small, last := mustSend(t, s, up, 1, zeros), mustSend(t, s, up, 2, "small"), mustSend(t, s, up, 10_000, "last")
	old := mustSend(t, s, up, 3, "old")
	mustSend(t, s, up, 3, "new")
	wrong := last
	wrong.Checksum.Value = "AAAAAA=="
	unsent := last
	unsent.Number = 4
	there := guard.CompleteRequest{Condition: guard.IfMatch("etag")}
	with := func(sum guard.Checksum, parts ...guard.Part) guard.CompleteRequest {
		return guard.CompleteRequest{Condition: guard.IfAbsent(), Parts: parts, Checksum: sum}
	}
	none := guard.Checksum{}
	for _, c := range []struct {
		name  string
		req   guard.CompleteRequest
		want  error
		words string
	}{
		{"no condition", guard.CompleteRequest{Parts: []guard.Part{one}}, guard.ErrRejected, "condition"},
		{"no parts", with(none), guard.ErrRejected, "without parts"},
		{"small in the middle", with(none, one, small, last), guard.ErrRejected, "part 2 has 5 bytes"},
		{"out of order", with(none, last, one), guard.ErrRejected, "part 1 after part 10000"},
		{"twice", with(none, one, one), guard.ErrRejected, "part 1 after part 1"},
		{"never sent", with(none, one, unsent), guard.ErrRejected, "part 4 was never sent"},
		{"sent again", with(none, one, old), guard.ErrRejected, "part 3 has ETag"},
		{"part's checksum", with(none, one, wrong), guard.ErrRejected, "part 10000: "},
		{"checksum", with(wrong.Checksum, one, last), guard.ErrRejected, "its CRC32C is"},
		{"checksum of no algorithm", with(guard.Checksum{Algorithm: "ADLER", Value: "x"}, one), guard.ErrRejected, "ADLER"},
		{"nothing to match", guard.CompleteRequest{Condition: there.Condition, Parts: []guard.Part{one}}, guard.ErrNotFound, "not found"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := s.CompleteUpload(t.Context(), up, c.req)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.words) || !strings.Contains(err.Error(), s.URL("key")) {
				t.Errorf("got %v, want %v with %q", err, c.want, c.words)
			}
			if _, err := s.Head(t.Context(), "key", guard.HeadOptions{}); !errors.Is(err, guard.ErrNotFound) {
				t.Errorf("the refused completion made an object: %v", err)
			}
			if in := files(t, filepath.Join(dir, incomingDir)); len(in) > 0 {
				t.Errorf("left in incoming: %v", in)
			}
		})
	}
	etag := mustPut(t, s, "key", guard.IfAbsent(), "there")
	if _, err := s.CompleteUpload(t.Context(), up, with(none, one)); !errors.Is(err, guard.ErrPreconditionFailed) {
		t.Errorf("got %v, want precondition failed", err)
	}
	mustComplete(t, s, up, guard.IfMatch(etag), one, last)
	if o, body := mustRead(t, s, "key"); body != zeros+"last" || o.Size != minPart+4 {
		t.Errorf("%d bytes, size %d", len(body), o.Size)
	}
	// Nothing is left of the parts, used and unused, nor of the old object.
	if kept := files(t, filepath.Join(dir, blobsDir)); len(kept) != 1 {
		t.Errorf("%d bodies are kept, want 1", len(kept))
	}
	mustClose(t, l)
	checkTidy(t, dir)
}

func TestUploadRefusals(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, nil)
	s := l.Store("bucket")
	for _, c := range []struct {
		name, bucket, key string
		req               guard.UploadRequest
		want              error
		words             string
	}{
		{"encryption", "bucket", "key", guard.UploadRequest{SSE: "AES256"}, guard.ErrUnsupported, "does not encrypt"},
		{"encryption key", "bucket", "key", guard.UploadRequest{SSEKMSKeyID: "key"}, guard.ErrUnsupported, "does not encrypt"},
		{"checksum of parts only", "bucket", "key", guard.UploadRequest{Checksum: "SHA256"}, guard.ErrRejected, "SHA256"},
		{"tag not UTF-8", "bucket", "key", guard.UploadRequest{Tags: map[string]string{"a": "\xe9"}}, guard.ErrRejected, "UTF-8"},
		{"bad key", "bucket", "nul\x00byte", guard.UploadRequest{}, guard.ErrRejected, "NUL"},
		{"bad bucket", "Bucket", "key", guard.UploadRequest{}, guard.ErrNoBucket, "lower-case"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := l.Store(c.bucket).CreateUpload(t.Context(), c.key, c.req); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.words) {
				t.Errorf("got %v, want %v with %q", err, c.want, c.words)
			}
		})
	}
	if ids := texts(t, l, "SELECT id FROM uploads"); len(ids) > 0 {
		t.Errorf("refused and begun: %v", ids)
	}

	up := mustCreate(t, s, "key", guard.UploadRequest{})
	etag := mustPut(t, s, "source", guard.IfAbsent(), "source")
	kept := mustSend(t, s, up, 1, "kept")
	send := func(s guard.Store, number int, body guard.Body) error {
		_, err := s.UploadPart(t.Context(), up, number, body)
		return err
	}
	copies := func(src guard.CopySource) error {
		_, err := s.CopyPart(t.Context(), up, 1, src)
		return err
	}
	unread := guard.ReaderAt(at{before: func(int64) error { t.Error("the body was read"); return io.ErrUnexpectedEOF }}, 1<<40)
	for _, c := range []struct {
		name  string
		err   error
		want  error
		words string
	}{
		{"part 0", send(s, 0, unread), guard.ErrRejected, "from 1 to 10000"},
		{"part 10001", send(s, 10_001, unread), guard.ErrRejected, "from 1 to 10000"},
		{"other bucket", send(l.Store("bucket-2"), 1, unread), guard.ErrNoUpload, "no such multipart upload"},
		{"short body", send(s, 1, guard.ReaderAt(strings.NewReader("short"), 6)), guard.ErrRejected, "5 of 6 bytes"},
		{"abort in other bucket", l.Store("bucket-2").AbortUpload(t.Context(), up), guard.ErrNoUpload, ""},
		{"copy of nothing", copies(guard.CopySource{Key: "missing", ETag: etag}), guard.ErrNotFound, "missing"},
		{"copy of no key", copies(guard.CopySource{ETag: etag}), guard.ErrRejected, "empty"},
		{"copy of a version", copies(guard.CopySource{Key: "source", ETag: etag, VersionID: "v1"}), guard.ErrNotFound, "no versions"},
		{"copy of another", copies(guard.CopySource{Key: "source", ETag: "other"}), guard.ErrPreconditionFailed, etag},
		{"copy of whatever", copies(guard.CopySource{Key: "source"}), guard.ErrRejected, "without the ETag"},
		{"copy past the end", copies(guard.CopySource{Key: "source", ETag: etag, Offset: 2, Size: 5}), guard.ErrRejected, "6 bytes"},
		{"copy from past the end", copies(guard.CopySource{Key: "source", ETag: etag, Offset: 7, Size: 1}), guard.ErrRejected, "6 bytes"},
		{"copy from an offset", copies(guard.CopySource{Key: "source", ETag: etag, Offset: 1}), guard.ErrRejected, "6 bytes"},
		{"copy from before", copies(guard.CopySource{Key: "source", ETag: etag, Offset: -1, Size: 1}), guard.ErrRejected, "6 bytes"},
		{"copy of less than nothing", copies(guard.CopySource{Key: "source", ETag: etag, Size: -1}), guard.ErrRejected, "6 bytes"},
		{"copy of too much", copies(guard.CopySource{Key: "source", ETag: etag, Offset: 1, Size: 1<<63 - 1}), guard.ErrRejected, "6 bytes"},
	} {
		if !errors.Is(c.err, c.want) || !strings.Contains(c.err.Error(), c.words) {
			t.Errorf("%s: got %v, want %v with %q", c.name, c.err, c.want, c.words)
		}
	}
	if _, err := s.CopyPart(t.Context(), up, 2, guard.CopySource{Key: "source", ETag: etag, VersionID: "null", Offset: 1, Size: 5}); err != nil {
		t.Error(err)
	}
	mustComplete(t, s, up, guard.IfAbsent(), kept)
	if _, body := mustRead(t, s, "key"); body != "kept" {
		t.Errorf("body is %q", body)
	}
	mustClose(t, l)
	checkTidy(t, dir)
}

// A part or a source that is not as it was stored makes no object, and the part
// can be sent again.
func TestDamagedParts(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"flipped byte": func(path string) error { return os.WriteFile(path, []byte("Body"), 0o600) },
		"cut":          func(path string) error { return os.Truncate(path, 3) },
		"longer":       func(path string) error { return os.Truncate(path, 5) },
		"gone":         os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			l := open(t, dir, nil)
			s := l.Store("bucket")
			etag := mustPut(t, s, "source", guard.IfAbsent(), "body")
			up := mustCreate(t, s, "key", guard.UploadRequest{})
			p := mustSend(t, s, up, 1, "body")
			for _, blob := range []string{blobOf(t, l, "source"), partBlob(t, l, up, 1)} {
				if err := damage(l.blobs.settled(blob)); err != nil {
					t.Fatal(err)
				}
			}
			_, complete := s.CompleteUpload(t.Context(), up, guard.CompleteRequest{Condition: guard.IfAbsent(), Parts: []guard.Part{p}})
			_, copied := s.CopyPart(t.Context(), up, 1, guard.CopySource{Key: "source", ETag: etag})
			for _, err := range []error{complete, copied} {
				if !errors.Is(err, guard.ErrRejected) || !strings.Contains(err.Error(), "damaged") {
					t.Errorf("got %v, want damage", err)
				}
			}
			if in := files(t, filepath.Join(dir, incomingDir)); len(in) > 0 {
				t.Errorf("left in incoming: %v", in)
			}
			mustComplete(t, s, up, guard.IfAbsent(), mustSend(t, s, up, 1, "again"))
			if _, body := mustRead(t, s, "key"); body != "again" {
				t.Errorf("body is %q", body)
			}
		})
	}
}

// A part may be replaced between its row and its file. The same bytes under the
// same ETag will do; anything else ends the completion.
func TestPartsReplacedDuringCompletion(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(t *testing.T, s guard.Store, up guard.Upload)
		want   error
	}{
		{"the same bytes", func(t *testing.T, s guard.Store, up guard.Upload) { mustSend(t, s, up, 1, "body") }, nil},
		{"other bytes", func(t *testing.T, s guard.Store, up guard.Upload) { mustSend(t, s, up, 1, "other") }, guard.ErrRejected},
		{"aborted", func(t *testing.T, s guard.Store, up guard.Upload) {
			if err := s.AbortUpload(t.Context(), up); err != nil {
				t.Error(err)
			}
		}, guard.ErrNoUpload},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := open(t, t.TempDir(), &Options{MD5ETags: true})
			s := &store{l, "bucket"}
			up := mustCreate(t, s, "key", guard.UploadRequest{})
			want := []guard.Part{mustSend(t, s, up, 1, "body")}
			_, parts, err := s.completionNow(t.Context(), up, want)
			if err != nil {
				t.Fatal(err)
			}
			c.change(t, s, up)
			from := &joined{ctx: t.Context(), s: s, up: up, want: want, parts: parts}
			defer from.close()
			body, err := io.ReadAll(from)
			if !errors.Is(err, c.want) || err == nil && string(body) != "body" {
				t.Errorf("got %q, %v, want %v", body, err, c.want)
			}
		})
	}
}

// endAt is a context that ends when it has been asked n times whether it has.
type endAt struct {
	context.Context
	n      *atomic.Int64
	cancel context.CancelFunc
}

func (c endAt) Err() error {
	if c.n.Add(-1) == 0 {
		c.cancel()
	}
	return c.Context.Err()
}

// Wherever in a completion the context ends, nothing has changed.
func TestCancelledCompletion(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, nil)
	s := l.Store("bucket")
	up := mustCreate(t, s, "key", guard.UploadRequest{})
	parts := []guard.Part{mustSend(t, s, up, 1, zeros), mustSend(t, s, up, 2, "last")}
	stops := 0
	for step := 1; ; step += 1 + step/4 {
		ctx, cancel := context.WithCancel(t.Context())
		var left atomic.Int64
		left.Store(int64(step))
		_, err := s.CompleteUpload(endAt{ctx, &left, cancel}, up, guard.CompleteRequest{Condition: guard.IfAbsent(), Parts: parts})
		cancel()
		if err == nil {
			break
		}
		stops++
		if !errors.Is(err, context.Canceled) || !errors.Is(err, guard.ErrNotSent) {
			t.Errorf("step %d: got %v, want context canceled and not sent", step, err)
		}
		if _, err := s.Head(t.Context(), "key", guard.HeadOptions{}); !errors.Is(err, guard.ErrNotFound) {
			t.Fatalf("step %d: the cancelled completion made an object: %v", step, err)
		}
		if in := files(t, filepath.Join(dir, incomingDir)); len(in) > 0 {
			t.Errorf("step %d: left in incoming: %v", step, in)
		}
	}
	if _, body := mustRead(t, s, "key"); body != zeros+"last" || stops < 8 {
		t.Errorf("%d bytes after %d stops", len(body), stops)
	}
	mustClose(t, l)
	checkTidy(t, dir)
}

// A COMMIT that fails leaves the outcome unknown, and the upload as it was if
// it turns out to have failed.
func TestFailedCommitOfCompletion(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, nil)
	s := l.Store("bucket")
	up := mustCreate(t, s, "key", guard.UploadRequest{})
	p := mustSend(t, s, up, 1, "body")
	exec(t, l, `PRAGMA foreign_keys = ON;
		CREATE TABLE bad (n INTEGER REFERENCES scopes (scope) DEFERRABLE INITIALLY DEFERRED);
		CREATE TRIGGER spoil AFTER INSERT ON objects BEGIN INSERT INTO bad VALUES ('none'); END;`)
	_, err := s.CompleteUpload(t.Context(), up, guard.CompleteRequest{Condition: guard.IfAbsent(), Parts: []guard.Part{p}})
	if err == nil || isAnswer(err) {
		t.Fatalf("got %v, want an error of no kind", err)
	}
	exec(t, l, "DROP TRIGGER spoil; DROP TABLE bad")
	mustComplete(t, s, up, guard.IfAbsent(), p)
	mustClose(t, l)
	checkTidy(t, dir)
}

// What a process leaves behind of uploads goes or stays by whether its
// transaction was committed, and a part that stays can be used.
func TestUploadsOfTheDead(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, nil)
	s := l.Store("bucket")
	up := mustCreate(t, s, "key", guard.UploadRequest{})
	parts := []guard.Part{mustSend(t, s, up, 1, zeros), mustSend(t, s, up, 2, "arriving")}

	// One part committed and not yet in its place, another never committed, a
	// completion that was still joining, and a part thrown away with its upload.
	const dead = "00000000deadbeef"
	var names []string
	for _, body := range []string{"arriving", "uncommitted", "half of th", "aborted"} {
		name := newBlobName(dead)
		if err := os.WriteFile(l.blobs.incoming(name), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	own := partBlob(t, l, up, 2)
	if err := l.blobs.remove(own); err != nil {
		t.Fatal(err)
	}
	exec(t, l, "UPDATE parts SET blob = ? WHERE blob = ?", names[0], own)
	exec(t, l, "INSERT INTO garbage VALUES (?)", names[3])
	mustClose(t, l)

	checkTidy(t, dir)
	l = open(t, dir, nil)
	s = l.Store("bucket")
	mustComplete(t, s, up, guard.IfAbsent(), parts...)
	if _, body := mustRead(t, s, "key"); body != zeros+"arriving" {
		t.Errorf("%d bytes", len(body))
	}
	mustClose(t, l)
	checkTidy(t, dir)
}

// Other processes' openings spare a part and a completion under way.
func TestSweepSparesParts(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, nil)
	s := l.Store("bucket")
	up := mustCreate(t, s, "key", guard.UploadRequest{})
	body := at{bytes: []byte("slow"), before: func(int64) error {
		other, err := Open(dir, nil)
		if err != nil {
			return err
		}
		return other.Close()
	}}
	p, err := s.UploadPart(t.Context(), up, 1, guard.ReaderAt(body, 4))
	if err != nil {
		t.Fatal(err)
	}
	mustComplete(t, s, up, guard.IfAbsent(), p)
	if _, got := mustRead(t, s, "key"); got != "slow" {
		t.Errorf("body is %q", got)
	}
	mustClose(t, l)
	checkTidy(t, dir)
}

// More parts than a batch of garbage, and a body of many files.
func TestManyParts(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, nil)
	s := l.Store("bucket")
	up := mustCreate(t, s, "key", guard.UploadRequest{})
	for number := range flushAt + 10 {
		mustSend(t, s, up, number+1, fmt.Sprint(number))
	}
	last := mustSend(t, s, up, maxParts, "last")
	mustComplete(t, s, up, guard.IfAbsent(), last)
	if kept := files(t, filepath.Join(dir, blobsDir)); len(kept) != 1 {
		t.Errorf("%d bodies are kept, want 1", len(kept))
	}
	if g := texts(t, l, "SELECT blob FROM garbage"); len(g) != 0 {
		t.Errorf("%d garbage rows stand", len(g))
	}
	up = mustCreate(t, s, "key-2", guard.UploadRequest{})
	o, _ := mustRead(t, s, "key")
	var parts []guard.Part
	for i := range 3 {
		parts = append(parts, mustSend(t, s, up, i+1, zeros))
	}
	p, err := s.CopyPart(t.Context(), up, 4, guard.CopySource{Key: "key", ETag: o.ETag})
	if err != nil {
		t.Fatal(err)
	}
	mustComplete(t, s, up, guard.IfAbsent(), append(parts, p)...)
	if _, body := mustRead(t, s, "key-2"); !bytes.Equal([]byte(body), append(make([]byte, 3*minPart), "last"...)) {
		t.Errorf("%d bytes", len(body))
	}
	mustClose(t, l)
	checkTidy(t, dir)
}
