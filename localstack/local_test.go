package localstack

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/s3fence/s3fence/guard"
)

func TestOneCreatorWins(t *testing.T) {
	const creators = 32
	dir := t.TempDir()
	locals := []*Local{open(t, dir, nil), open(t, dir, nil)}
	for round := range 5 {
		key := fmt.Sprint(round)
		var all sync.WaitGroup
		won := make([]string, creators)
		for i := range creators {
			all.Go(func() {
				res, err := locals[i%2].Store("bucket").Put(t.Context(), key, request(guard.IfAbsent(), fmt.Sprint(i)))
				if err != nil && !errors.Is(err, guard.ErrPreconditionFailed) {
					t.Error(err)
				}
				won[i] = res.ETag
			})
		}
		all.Wait()
		winners := 0
		for i, etag := range won {
			if etag == "" {
				continue
			}
			winners++
			for _, l := range locals {
				if o, body := mustRead(t, l.Store("bucket"), key); o.ETag != etag || body != fmt.Sprint(i) {
					t.Errorf("creator %d won with %s, the object is %q with %s", i, etag, body, o.ETag)
				}
			}
		}
		if winners != 1 {
			t.Errorf("%d creators won", winners)
		}
	}
	for _, l := range locals {
		mustClose(t, l)
	}
	checkTidy(t, dir)
}

// What a process leaves behind at each step of a write goes or stays by
// whether its transaction was committed.
func TestLeftoversOfTheDead(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, nil)
	s := l.Store("bucket")
	mustPut(t, s, "settled", guard.IfAbsent(), "settled")
	mustPut(t, s, "arriving", guard.IfAbsent(), "arriving")

	const dead = "00000000deadbeef"
	names := make([]string, 4)
	for i := range names {
		names[i] = newBlobName(dead)
	}
	uncommitted, committed, removed, halfRemoved := names[0], names[1], names[2], names[3]
	for _, name := range []string{uncommitted, committed, removed, halfRemoved} {
		if err := os.WriteFile(l.blobs.incoming(name), []byte("arriving"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	own := blobOf(t, l, "arriving")
	if err := l.blobs.remove(own); err != nil {
		t.Fatal(err)
	}
	exec(t, l, "UPDATE objects SET blob = ? WHERE blob = ?", committed, own)
	// Overwritten: one while it was arriving, one from its place, one long gone.
	if err := l.blobs.settle(halfRemoved); err != nil {
		t.Fatal(err)
	}
	exec(t, l, "INSERT INTO garbage VALUES (?), (?), (?)", removed, halfRemoved, newBlobName(dead))
	// The lock file of a process that was killed outlives the lock.
	if err := os.WriteFile(l.lockPath(dead), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(dir, incomingDir, "README")
	if err := os.WriteFile(foreign, nil, 0o600); err != nil {
		t.Fatal(err)
	}

	if _, body := mustRead(t, s, "arriving"); body != "arriving" {
		t.Errorf("before the sweep: %q", body)
	}
	next := open(t, dir, nil)
	for key := range map[string]bool{"settled": true, "arriving": true} {
		for _, s := range []guard.Store{s, next.Store("bucket")} {
			if _, body := mustRead(t, s, key); body != key {
				t.Errorf("after the sweep: %s is %q", key, body)
			}
		}
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Errorf("a file of somebody else went: %v", err)
	}
	if err := os.Remove(foreign); err != nil {
		t.Fatal(err)
	}
	mustClose(t, l)
	mustClose(t, next)
	checkTidy(t, dir)
}

// An upload that is under way is nobody's leftover, in this process or another.
func TestSweepSparesTheLiving(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, nil)
	body := at{bytes: []byte("slow"), before: func(int64) error {
		for range 3 {
			other, err := Open(dir, nil)
			if err != nil {
				return err
			}
			if err := other.Close(); err != nil {
				return err
			}
		}
		if in := files(t, filepath.Join(dir, incomingDir)); len(in) != 1 {
			t.Errorf("incoming holds %v, want the body under way", in)
		}
		return nil
	}}
	_, err := l.Store("bucket").Put(t.Context(), "key", guard.PutRequest{Condition: guard.IfAbsent(), Body: guard.ReaderAt(body, 4)})
	if err != nil {
		t.Fatal(err)
	}
	if _, got := mustRead(t, l.Store("bucket"), "key"); got != "slow" {
		t.Errorf("body is %q", got)
	}
	mustClose(t, l)
	checkTidy(t, dir)
}

// Opening and closing all the while harms nobody's writes.
func TestOpenDuringWrites(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, nil)
	stop := make(chan struct{})
	var opening, writing sync.WaitGroup
	for range 2 {
		opening.Go(func() {
			for {
				other, err := Open(dir, nil)
				if err != nil {
					t.Error(err)
					return
				}
				if err := other.Close(); err != nil {
					t.Error(err)
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	for i := range 4 {
		writing.Go(func() {
			s, key := l.Store("bucket"), fmt.Sprint("key", i)
			c := guard.IfAbsent()
			for seq := range 40 {
				res, err := s.Put(t.Context(), key, numbered(c, key, seq))
				if err != nil {
					t.Error(err)
					return
				}
				c = guard.IfMatch(res.ETag)
				o, body, err := read(t.Context(), s, key)
				if err != nil {
					t.Error(err)
					return
				}
				if got, err := checkNumbered(key, o, body); err != nil || got != seq {
					t.Errorf("%s holds write %d, want %d: %v", key, got, seq, err)
				}
			}
		})
	}
	writing.Wait()
	close(stop)
	opening.Wait()
	mustClose(t, l)
	checkTidy(t, dir)
}

func TestRemovedBodiesAreForgotten(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, nil)
	s := l.Store("bucket")
	etag := mustPut(t, s, "key", guard.IfAbsent(), "body")
	for range flushAt + 10 {
		etag = mustPut(t, s, "key", guard.IfMatch(etag), "body")
	}
	if kept := files(t, filepath.Join(dir, blobsDir)); len(kept) != 1 {
		t.Errorf("%d bodies are kept, want 1", len(kept))
	}
	if rows := texts(t, l, "SELECT blob FROM garbage"); len(rows) != 10 {
		t.Errorf("%d garbage rows stand, want 10", len(rows))
	}
	mustClose(t, l)
	l = open(t, dir, nil)
	if rows := texts(t, l, "SELECT blob FROM garbage"); len(rows) != 0 {
		t.Errorf("%d garbage rows stand after closing", len(rows))
	}
}

// writeUntilKilled is the second process of TestKilledProcess: it overwrites
// four keys, two of them by uploads, and takes tokens, and prints each write
// once it was acknowledged.
func writeUntilKilled(dir string) error {
	l, err := Open(dir, nil)
	if err != nil {
		return err
	}
	ctx := context.Background()
	failed := make(chan error)
	for i := range 4 {
		go func() {
			s, key := l.Store("bucket"), fmt.Sprint("key", i)
			for {
				c, seq := guard.IfAbsent(), 0
				o, body, err := read(ctx, s, key)
				if err == nil {
					seq, err = checkNumbered(key, o, body)
					c = guard.IfMatch(o.ETag)
				} else if errors.Is(err, guard.ErrNotFound) {
					err = nil
				}
				if err == nil && i%2 == 0 {
					_, err = s.Put(ctx, key, numbered(c, key, seq+1))
				} else if err == nil {
					err = uploadNumbered(ctx, s, key, numbered(c, key, seq+1))
				}
				if err != nil {
					failed <- err
					return
				}
				fmt.Fprintf(os.Stdout, "%s %d\n", key, seq+1)
			}
		}()
	}
	go func() {
		for {
			token, err := l.Issue(ctx, "scope")
			if err != nil {
				failed <- err
				return
			}
			fmt.Fprintf(os.Stdout, "token %d\n", token.Number())
		}
	}()
	return <-failed
}

// uploadNumbered is a Put in parts, one of which was a mistake and is sent again.
func uploadNumbered(ctx context.Context, s guard.Store, key string, req guard.PutRequest) error {
	up, err := s.CreateUpload(ctx, key, guard.UploadRequest{Headers: req.Headers})
	if err != nil {
		return err
	}
	var p guard.Part
	for _, body := range []guard.Body{guard.Bytes([]byte("a mistake")), req.Body} {
		if p, err = s.UploadPart(ctx, up, 1, body); err != nil {
			return err
		}
	}
	_, err = s.CompleteUpload(ctx, up, guard.CompleteRequest{Condition: req.Condition, Parts: []guard.Part{p}})
	return err
}

// A second process is killed in the middle of its writes, again and again.
// Whatever it acknowledged is there, whatever is there is whole, and nothing
// else is left. Another process, this one, has the folder open all the while.
func TestKilledProcess(t *testing.T) {
	dir := t.TempDir()
	witness := open(t, dir, nil)
	var s guard.Store
	acked := map[string]int{}
	for round := range 8 {
		cmd := osexec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"="+dir)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines, killAfter := bufio.NewScanner(out), 20+rand.IntN(100)
		got := 0
		for lines.Scan() {
			var what string
			var n int
			if _, err := fmt.Sscan(lines.Text(), &what, &n); err != nil {
				t.Fatalf("child printed %q: %v", lines.Text(), err)
			}
			if what == "token" && n <= acked[what] {
				t.Errorf("round %d: token %d came after %d", round, n, acked[what])
			}
			acked[what] = max(acked[what], n)
			if got++; got == killAfter {
				_ = cmd.Process.Kill()
			}
		}
		_ = cmd.Wait()
		if got < killAfter {
			t.Fatalf("round %d: the child ended by itself: %s", round, stderr.String())
		}

		var others []*Local
		if round%2 == 0 { // every other round the leftovers pile up
			others = append(others, open(t, dir, nil))
		}
		for _, l := range append(others, witness) {
			s = l.Store("bucket")
			for i := range 4 {
				key := fmt.Sprint("key", i)
				o, body, err := read(t.Context(), s, key)
				if errors.Is(err, guard.ErrNotFound) && acked[key] == 0 {
					continue
				}
				if err != nil {
					t.Fatalf("round %d: %v", round, err)
				}
				seq, err := checkNumbered(key, o, body)
				if err != nil || seq < acked[key] {
					t.Errorf("round %d: %s holds write %d, acknowledged was %d: %v", round, key, seq, acked[key], err)
				}
			}
		}
		for _, l := range others {
			mustClose(t, l)
		}
		n := mustIssue(t, witness, "scope").Number()
		if n <= int64(acked["token"]) {
			t.Errorf("round %d: token %d after %d", round, n, acked["token"])
		}
		acked["token"] = int(n)
	}
	t.Logf("acknowledged: %v", acked)

	// The killed left uploads under way: they stay, with what they have.
	left := 0
	s = witness.Store("bucket")
	for up, err := range s.Uploads(t.Context(), "key") {
		if err != nil {
			t.Fatal(err)
		}
		left++
		if err := s.AbortUpload(t.Context(), up); err != nil {
			t.Error(err)
		}
	}
	t.Logf("uploads left under way: %d", left)
	mustClose(t, witness)
	checkTidy(t, dir)
}

func TestOpenErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	newer := t.TempDir()
	l := open(t, newer, nil)
	exec(t, l, fmt.Sprintf("PRAGMA user_version = %d", format+1))
	mustClose(t, l)
	tampered := t.TempDir()
	l = open(t, tampered, nil)
	exec(t, l, "PRAGMA user_version = -1")
	mustClose(t, l)
	foreign := t.TempDir()
	if err := os.WriteFile(filepath.Join(foreign, databaseFile), []byte(strings.Repeat("no database ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	readOnly := filepath.Join(t.TempDir(), "read-only")
	if err := os.Mkdir(readOnly, 0o500); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, dir, words string }{
		{"no name", "", "no folder"},
		{"file", file, "is a file, not a folder"},
		{"under a file", filepath.Join(file, "x"), "not a directory"},
		{"newer format", newer, "newer s3fence"},
		{"no format", tampered, "it has format -1"},
		{"not a database", foreign, "not a database"},
		{"read-only", readOnly, "can't write there"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.dir == readOnly && os.Getuid() == 0 {
				t.Skip("root may write everywhere")
			}
			l, err := Open(c.dir, nil)
			if err == nil {
				l.Close()
			}
			if err == nil || !strings.Contains(err.Error(), c.words) || !strings.Contains(err.Error(), c.dir) {
				t.Errorf("got %v, want %q and the folder's name", err, c.words)
			}
		})
	}
}

// format1 is the schema that s3fence made before it knew multipart uploads.
const format1 = `
CREATE TABLE objects (
	bucket   TEXT NOT NULL,
	key      BLOB NOT NULL,
	etag     TEXT NOT NULL,
	blob     TEXT NOT NULL UNIQUE,
	size     INTEGER NOT NULL,
	crc32c   INTEGER NOT NULL,
	modified INTEGER NOT NULL, -- nanoseconds since 1970
	headers  TEXT NOT NULL,    -- JSON
	tags     TEXT NOT NULL,    -- JSON
	PRIMARY KEY (bucket, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE garbage (blob TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;
CREATE TABLE scopes (
	scope  TEXT PRIMARY KEY,
	issuer TEXT NOT NULL,
	number INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
PRAGMA user_version = 1;`

// A folder of format 1, whose last process was killed, is brought up to date
// with all that is in it.
func TestOldFolder(t *testing.T) {
	dir := t.TempDir()
	b := blobs{dir}
	if err := b.makeFolders(); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, procsDir), 0o700); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", filepath.Join(dir, databaseFile))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), format1); err != nil {
		t.Fatal(err)
	}
	const dead = "00000000deadbeef"
	blob := newBlobName(dead)
	for name, body := range map[string]string{blob: "123456789", newBlobName(dead): "uncommitted"} {
		if err := os.WriteFile(b.incoming(name), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.ExecContext(t.Context(), `
		INSERT INTO objects VALUES ('bucket', ?, 'old etag', ?, 9, ?, 1, '{"content-type":"text/plain","metadata":{"a":"1"}}', '{"team":"data"}');
		INSERT INTO scopes VALUES ('scope', '0123456789abcdef', 41);`,
		[]byte("old"), blob, int64(crc32.Checksum([]byte("123456789"), castagnoli))); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}

	for range 2 { // the second time there is nothing to do
		l := open(t, dir, nil)
		s := l.Store("bucket")
		if v := texts(t, l, "PRAGMA user_version"); !v[fmt.Sprint(format)] {
			t.Errorf("format is %v, want %d", v, format)
		}
		o, body := mustRead(t, s, "old")
		if o.ETag != "old etag" || body != "123456789" || o.ContentType != "text/plain" || o.Metadata["a"] != "1" {
			t.Errorf("old object: %+v %q", o, body)
		}
		if tags, err := s.Tags(t.Context(), "old", ""); err != nil || tags["team"] != "data" {
			t.Errorf("old tags: %v, %v", tags, err)
		}
		if got := listed(t, s, guard.ListOptions{}); got[0] != "old" {
			t.Errorf("listed: %q", got)
		}
		key := fmt.Sprint(mustIssue(t, l, "scope").Number())
		up := mustCreate(t, s, "x"+key, guard.UploadRequest{})
		p, err := s.CopyPart(t.Context(), up, 1, guard.CopySource{Key: "old", ETag: "old etag"})
		if err != nil {
			t.Fatal(err)
		}
		mustComplete(t, s, up, guard.IfAbsent(), p)
		if _, body := mustRead(t, s, "x"+key); body != "123456789" {
			t.Errorf("copy: %q", body)
		}
		mustClose(t, l)
		checkTidy(t, dir)
	}
	if got := listed(t, open(t, dir, nil).Store("bucket"), guard.ListOptions{}); !slices.Equal(got, []string{"old", "x42", "x43"}) {
		t.Errorf("listed: %q", got)
	}
}

func TestFolder(t *testing.T) {
	// Names that mean something to SQLite's URIs.
	dir := filepath.Join(t.TempDir(), "new", "100% #1?mode=ro&x=é")
	l := open(t, dir, nil)
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("folder: %v %v, want mode 0700", st.Mode(), err)
	}
	if _, err := os.Stat(filepath.Join(dir, databaseFile)); err != nil {
		t.Error(err)
	}
	for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "2", "busy_timeout": "30000"} {
		var got string
		if err := l.w.QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&got); err != nil || got != want {
			t.Errorf("%s is %q, %v, want %q", pragma, got, err, want)
		}
	}
}

func TestFirstOpenTogether(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			l, err := Open(dir, nil)
			if err != nil {
				t.Error(err)
				return
			}
			defer l.Close()
			if _, err := l.Store("bucket").Put(t.Context(), fmt.Sprint(i), request(guard.IfAbsent(), "body")); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	checkTidy(t, dir)
}

func TestClose(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, nil)
	s := l.Store("bucket")
	mustPut(t, s, "key", guard.IfAbsent(), "body")
	_, r, err := s.Get(t.Context(), "key", guard.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()

	// A call under way is finished.
	closed := make(chan error, 1)
	body := at{bytes: []byte("last"), before: func(int64) error {
		go func() { closed <- l.Close() }()
		return nil
	}}
	if _, err := s.Put(t.Context(), "last", guard.PutRequest{Condition: guard.IfAbsent(), Body: guard.ReaderAt(body, 4)}); err != nil {
		t.Error(err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	mustClose(t, l)

	_, put := s.Put(t.Context(), "key", request(guard.IfAbsent(), "body"))
	_, head := s.Head(t.Context(), "key", guard.HeadOptions{})
	_, _, get := s.Get(t.Context(), "key", guard.ReadOptions{})
	_, issue := l.Issue(t.Context(), "scope")
	_, _, create := l.CreateScope(t.Context(), "scope")
	_, tags := s.Tags(t.Context(), "key", "")
	_, begin := s.CreateUpload(t.Context(), "key", guard.UploadRequest{})
	up := guard.Upload{Key: "key", ID: "id"}
	_, part := s.UploadPart(t.Context(), up, 1, guard.Bytes(nil))
	_, copied := s.CopyPart(t.Context(), up, 1, guard.CopySource{Key: "key", ETag: "etag"})
	_, complete := s.CompleteUpload(t.Context(), up, guard.CompleteRequest{Condition: guard.IfAbsent()})
	abort := s.AbortUpload(t.Context(), up)
	var list, uploads error
	for _, list = range s.List(t.Context(), guard.ListOptions{}) {
	}
	for _, uploads = range s.Uploads(t.Context(), "") {
	}
	for _, err := range []error{put, head, get, issue, create, tags, begin, part, copied, complete, abort, list, uploads} {
		if !errors.Is(err, errClosed) {
			t.Errorf("got %v, want %v", err, errClosed)
		}
	}
	b := make([]byte, 10)
	if n, err := r.Read(b); string(b[:n]) != "body" || err != nil {
		t.Errorf("the open body gives %q, %v", b[:n], err)
	}
	checkTidy(t, dir)
	if _, got := mustRead(t, open(t, dir, nil).Store("bucket"), "last"); got != "last" {
		t.Errorf("body is %q", got)
	}
}
