package state

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/s3fence/s3fence/guard"
)

// childEnv makes the test binary write to the state file that it names.
const childEnv = "S3FENCE_STATE_CHILD"

func TestMain(m *testing.M) {
	if path := os.Getenv(childEnv); path != "" {
		fmt.Fprintln(os.Stderr, writeUntilKilled(path))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

var testIssuer = guard.IssuerID{1, 2, 3, 4, 5, 6, 7, 8}

func token(t testing.TB, n int64) guard.Token {
	t.Helper()
	tok, err := guard.NewToken(testIssuer, "nightly", n)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func record(n, sequence int64) guard.Record {
	return guard.Record{
		Issuer: testIssuer, Scope: "nightly", Number: n, Sequence: sequence,
		WriteID: guard.WriteID{byte(n), byte(sequence), 1}, State: guard.Live,
	}
}

func path(t testing.TB) string { return filepath.Join(t.TempDir(), "state") }

func open(t testing.TB, path string) *File {
	t.Helper()
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func memoryOf(t testing.TB, f *File, bucket string) guard.Memory {
	t.Helper()
	m, err := f.Memory("http://127.0.0.1:9000", bucket)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func begin(t testing.TB, f *File, run Run) *Journal {
	t.Helper()
	j, err := f.Begin(run, token(t, 48))
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func recall(t testing.TB, m guard.Memory, key string) guard.Remembered {
	t.Helper()
	r, err := m.Recall(key)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func remember(t testing.TB, m guard.Memory, key string, r guard.Remembered) {
	t.Helper()
	if err := m.Remember(key, r); err != nil {
		t.Fatal(err)
	}
}

// change alters the file behind its back.
func change(t testing.TB, f *File, query string, args ...any) {
	t.Helper()
	if err := f.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.w.ExecContext(context.Background(), query, args...); err != nil {
		t.Fatal(err)
	}
}
