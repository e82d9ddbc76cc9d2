package guard_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/internal/mems3"
)

func target(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func content(t *testing.T, f *os.File) []byte {
	t.Helper()
	b, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestDownload(t *testing.T) {
	for _, size := range []int{0, 1, 1999, 2000, 2001, 10000} {
		m := mems3.New()
		b := noise(1, size)
		mustPut(t, newGuard(m), 5, "k", string(b), nil)
		f := target(t)
		var seen atomic.Int64
		o := &guard.DownloadOptions{PartSize: 1000, Concurrency: 3, Progress: func(n int64) { seen.Add(n) }}
		info, err := newGuard(m).Download(t.Context(), "k", f, o)
		if err != nil || info.Record.Number != 5 || info.Size != int64(size) || !bytes.Equal(content(t, f), b) || seen.Load() != int64(size) {
			t.Errorf("%d: %+v, %v, %d bytes", size, info, err, len(content(t, f)))
		}
		if want := 1; size < 2000 && info.Requests != want {
			t.Errorf("%d: %d requests", size, info.Requests)
		}
		if size == 10000 && info.Requests != 10 {
			t.Errorf("%d: %d requests, want 10 parts", size, info.Requests)
		}
	}
}

func TestDownloadReplacedMeanwhile(t *testing.T) {
	m := mems3.New()
	mustPut(t, newGuard(m), 5, "k", strings.Repeat("5", 10000), nil)
	var n atomic.Int64
	m.Before = func(op, _ string) error {
		if op == "get" && n.Add(1) == 4 {
			mustPut(t, newGuard(m), 6, "k", strings.Repeat("6", 9000), kms)
		}
		return nil
	}
	f := target(t)
	info, err := newGuard(m).Download(t.Context(), "k", f, &guard.DownloadOptions{PartSize: 1000, Concurrency: 1})
	// What was written beyond the end is for the caller to cut: the size is in info.
	if err != nil || info.Record.Number != 6 || info.Size != 9000 || string(content(t, f)[:9000]) != strings.Repeat("6", 9000) {
		t.Errorf("%+v, %v", info, err)
	}
}

func TestDownloadErrors(t *testing.T) {
	m := mems3.New()
	mustPut(t, newGuard(m), 5, "k", string(noise(2, 10000)), nil)
	parts := &guard.DownloadOptions{PartSize: 1000}
	for n := 1; n <= 5; n++ {
		m.Before = once("get", n, errLost)
		f := target(t)
		if _, err := newGuard(m).Download(t.Context(), "k", f, parts); err != nil || !bytes.Equal(content(t, f), noise(2, 10000)) {
			t.Errorf("request %d fails once: %v", n, err)
		}
	}
	m.Before = func(op, key string) error {
		if op == "get" {
			m.Before = always("get", errLost)
		}
		return nil
	}
	if _, err := newGuard(m).Download(t.Context(), "k", target(t), parts); !errors.Is(err, errLost) {
		t.Errorf("no part for ever: %v", err)
	}
	m.Before = nil
	if _, err := newGuard(m).Download(t.Context(), "none", target(t), parts); !errors.Is(err, guard.ErrNotFound) {
		t.Errorf("not found: %v", err)
	}
	full := errors.New("disk full")
	for _, size := range []int64{0, 1000} {
		if _, err := newGuard(m).Download(t.Context(), "k", fullDisk{full}, &guard.DownloadOptions{PartSize: size}); !errors.Is(err, full) || strings.Contains(err.Error(), "gave up") {
			t.Errorf("disk full: %v", err)
		}
	}
	if _, err := newGuard(m).Download(t.Context(), "k", target(t), &guard.DownloadOptions{PartSize: 1000, Floor: token(t, 6).Floor()}); guard.ReasonOf(err) != guard.ErrStale {
		t.Errorf("below the floor: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	m.Before = func(op, _ string) error { cancel(); return ctx.Err() }
	if _, err := newGuard(m).Download(ctx, "k", target(t), parts); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

// Bytes that were damaged at rest do not pass for the object.
func TestDownloadDamaged(t *testing.T) {
	m := mems3.New()
	mustPut(t, newGuard(m), 5, "k", string(noise(3, 10000)), nil)
	f := flipping{target(t)}
	_, err := newGuard(m).Download(t.Context(), "k", f, &guard.DownloadOptions{PartSize: 1000})
	if err == nil || !strings.Contains(err.Error(), "are not what was stored") {
		t.Errorf("%v", err)
	}
}

type fullDisk struct{ err error }

func (f fullDisk) WriteAt([]byte, int64) (int, error) { return 0, f.err }
func (f fullDisk) ReadAt([]byte, int64) (int, error)  { return 0, io.EOF }

type flipping struct{ *os.File }

func (f flipping) WriteAt(p []byte, at int64) (int, error) {
	q := bytes.Clone(p)
	q[0] ^= 1
	return f.File.WriteAt(q, at)
}

// A part of any size is one.
func TestDownloadInOnePart(t *testing.T) {
	m := mems3.New()
	mustPut(t, newGuard(m), 5, "k", "bytes", nil)
	f := target(t)
	info, err := newGuard(m).Download(t.Context(), "k", f, &guard.DownloadOptions{PartSize: math.MaxInt64})
	if err != nil || info.Requests != 1 || string(content(t, f)) != "bytes" {
		t.Errorf("%+v, %v, %q", info, err, content(t, f))
	}
}
