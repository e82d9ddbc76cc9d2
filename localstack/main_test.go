package localstack

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/s3fence/s3fence/guard"
	"go.uber.org/goleak"
)

const childEnv = "S3FENCE_LOCALSTACK_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		fmt.Fprintln(os.Stderr, writeUntilKilled(dir))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func open(t testing.TB, dir string, opts *Options) *Local {
	t.Helper()
	l, err := Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func mustClose(t testing.TB, l *Local) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func request(c guard.Condition, body string) guard.PutRequest {
	return guard.PutRequest{Condition: c, Body: guard.Bytes([]byte(body))}
}

func mustPut(t testing.TB, s guard.Store, key string, c guard.Condition, body string) string {
	t.Helper()
	res, err := s.Put(t.Context(), key, request(c, body))
	if err != nil {
		t.Fatal(err)
	}
	return res.ETag
}

func read(ctx context.Context, s guard.Store, key string) (guard.Object, []byte, error) {
	o, r, err := s.Get(ctx, key, guard.ReadOptions{})
	if err != nil {
		return o, nil, err
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	return o, b, err
}

func mustRead(t testing.TB, s guard.Store, key string) (guard.Object, string) {
	t.Helper()
	o, b, err := read(t.Context(), s, key)
	if err != nil {
		t.Fatal(err)
	}
	return o, string(b)
}

func exec(t testing.TB, l *Local, query string, args ...any) {
	t.Helper()
	if _, err := l.w.ExecContext(t.Context(), query, args...); err != nil {
		t.Fatal(err)
	}
}

// texts returns the first column of a query.
func texts(t testing.TB, l *Local, query string, args ...any) map[string]bool {
	t.Helper()
	rows, err := l.r.QueryContext(t.Context(), query, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	found := map[string]bool{}
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			t.Fatal(err)
		}
		found[s] = true
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return found
}

func blobOf(t testing.TB, l *Local, key string) string {
	t.Helper()
	for name := range texts(t, l, "SELECT blob FROM objects WHERE key = ?", []byte(key)) {
		return name
	}
	t.Fatalf("no row for %q", key)
	return ""
}

func files(t testing.TB, dir string) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			found[d.Name()] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// checkTidy opens the folder and demands that its files are exactly the bodies
// that rows name, each in its place, and that nobody dead is on record.
func checkTidy(t testing.TB, dir string) {
	t.Helper()
	l, err := Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if in := files(t, filepath.Join(dir, incomingDir)); len(in) > 0 {
		t.Errorf("left in incoming: %v", in)
	}
	if g := texts(t, l, "SELECT blob FROM garbage"); len(g) > 0 {
		t.Errorf("left in garbage: %v", g)
	}
	if p := files(t, filepath.Join(dir, procsDir)); len(p) != 1 || !p[l.id+".lock"] {
		t.Errorf("procs holds %v, want only this Local's lock", p)
	}
	stored, named := files(t, filepath.Join(dir, blobsDir)), texts(t, l, "SELECT blob FROM objects UNION ALL SELECT blob FROM parts")
	for name := range stored {
		if !named[name] {
			t.Errorf("body %s is named by no row", name)
		}
	}
	for name := range named {
		if !stored[name] {
			t.Errorf("body %s is missing", name)
		}
	}
}

// content is the body that write number seq gives to key, of 0 to 64 KiB.
func content(key string, seq int) []byte {
	seed := sha256.Sum256(fmt.Appendf(nil, "%s %d", key, seq))
	b := make([]byte, (int(seed[0])<<8)|int(seed[1]))
	_, _ = rand.NewChaCha8(seed).Read(b)
	return b
}

func numbered(c guard.Condition, key string, seq int) guard.PutRequest {
	return guard.PutRequest{
		Condition: c,
		Body:      guard.Bytes(content(key, seq)),
		Headers:   guard.Headers{Metadata: map[string]string{"seq": strconv.Itoa(seq)}},
	}
}

// checkNumbered demands that body and metadata are of one numbered write.
func checkNumbered(key string, o guard.Object, body []byte) (seq int, err error) {
	seq, err = strconv.Atoi(o.Metadata["seq"])
	if err != nil {
		return 0, err
	}
	if want := content(key, seq); o.Size != int64(len(want)) || !bytes.Equal(body, want) {
		return seq, fmt.Errorf("%s has the metadata of write %d and another's body (%d bytes, size %d, want %d)", key, seq, len(body), o.Size, len(want))
	}
	return seq, nil
}

// at is a ReaderAt that calls before before each read.
type at struct {
	before func(offset int64) error
	bytes  []byte
}

func (a at) ReadAt(p []byte, offset int64) (int, error) {
	if err := a.before(offset); err != nil {
		return 0, err
	}
	return strings.NewReader(string(a.bytes)).ReadAt(p, offset)
}
