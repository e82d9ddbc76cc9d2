package guard_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/internal/mems3"
)

// sizing keeps the sizes of parts and never looks at their bytes.
type sizing struct{ counting }

func (s *sizing) UploadPart(_ context.Context, _ guard.Upload, n int, b guard.Body) (guard.Part, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.parts) < n {
		s.parts = append(s.parts, 0)
	}
	s.parts[n-1] = b.Size()
	return guard.Part{Number: n, ETag: fmt.Sprint(n), Size: b.Size()}, nil
}

// Case 26: the parts of a stream grow so that 5 TiB, the most that an object
// takes, fit into those that an upload may have, whatever size they begin with.
// How they grow is seen over the first 2,000 of them; later ones are GiBs, which
// would have to be in memory, and are reckoned.
func TestUploadOfAllThatFits(t *testing.T) {
	const every, seen = 900, 2000
	for _, partSize := range []int64{guard.MinPart, guard.DefaultPartSize + 1} {
		grown := func(n int) int64 { // the size of the n-th part, from 0
			size := partSize
			for range n / every {
				if size < guard.MaxSinglePart/2 {
					size *= 2
				}
			}
			return size
		}
		s := &sizing{counting{Store: mems3.New()}}
		var size int64
		for n := range seen {
			size += grown(n)
		}
		res, err := newGuard(s).PutStream(t.Context(), token(t, 5), "k", io.LimitReader(zeros{}, size), &guard.PutOptions{PartSize: partSize, Concurrency: 1})
		if err != nil || res.Bytes != size {
			t.Fatalf("%d: %+v, %v", partSize, res, err)
		}
		var total int64
		for n, p := range s.parts {
			total += p
			// The first is cut by the salt, and the last is what is left.
			if want := grown(n); n > 0 && n < len(s.parts)-1 && p != want {
				t.Fatalf("%d: part %d has %d bytes, want %d", partSize, n+1, p, want)
			}
		}
		if total != size || len(s.parts) < seen {
			t.Errorf("%d: %d bytes in %d parts, want %d", partSize, total, len(s.parts), size)
		}
		total = guard.MinPart
		for n := 1; n < guard.MaxParts; n++ {
			total += grown(n)
		}
		if total < guard.MaxObject || grown(guard.MaxParts) > guard.MaxSinglePart {
			t.Errorf("%d: all parts have %d bytes, the last %d", partSize, total, grown(guard.MaxParts))
		}
	}
}

// A file is cut into few enough parts from the start.
func TestUploadOfAllThatFitsIntoAFile(t *testing.T) {
	for _, size := range []int64{50 << 30, 100 << 30, guard.MaxObject - 1, guard.MaxObject} {
		for _, partSize := range []int64{0, guard.MinPart, guard.MaxSinglePart} {
			s := &sizing{counting{Store: mems3.New()}}
			res, err := newGuard(s).Put(t.Context(), token(t, 5), "k", guard.ReaderAt(nothing{}, size), &guard.PutOptions{PartSize: partSize})
			if err != nil {
				t.Fatalf("%d by %d: %+v, %v", size, partSize, res, err)
			}
			var total int64
			for i, p := range s.parts {
				total += p
				if last := i == len(s.parts)-1; p > guard.MaxSinglePart || !last && p < guard.MinPart {
					t.Errorf("%d by %d: part %d has %d bytes", size, partSize, i+1, p)
				}
			}
			if total != size || len(s.parts) > guard.MaxParts {
				t.Errorf("%d by %d: %d bytes in %d parts", size, partSize, total, len(s.parts))
			}
		}
	}
	_, err := newGuard(mems3.New()).Put(t.Context(), token(t, 5), "k", guard.ReaderAt(nothing{}, guard.MaxObject+1), nil)
	if !errors.Is(err, guard.ErrInvalid) {
		t.Errorf("more than an object takes: %v", err)
	}
}

// nothing is never read.
type nothing struct{}

func (nothing) ReadAt([]byte, int64) (int, error) { return 0, errors.New("it was read") }

// An empty stream is an empty object, however its end comes.
func TestUploadEmptyStream(t *testing.T) {
	for name, r := range map[string]io.Reader{
		"nothing":      bytes.NewReader(nil),
		"its end soon": iotest.DataErrReader(strings.NewReader("")),
		"empty reads":  io.MultiReader(&blank{n: 100}, strings.NewReader("")),
	} {
		m := mems3.New()
		res, err := newGuard(m).PutStream(t.Context(), token(t, 5), "k", r, nil)
		if err != nil || res.Outcome != guard.Created || res.Bytes != 0 || m.Body("k") != "" || stand(t, m, "k").Size != 0 {
			t.Errorf("%s: %+v, %v", name, res, err)
		}
		noUploads(t, m)
	}
}

// blank reads nothing n times, and then ends.
type blank struct{ n int }

func (b *blank) Read([]byte) (int, error) {
	if b.n--; b.n < 0 {
		return 0, io.EOF
	}
	return 0, nil
}

// Case 25: metadata that no header carries is refused before the stream is read
// and before anything is asked of the store.
func TestUploadMetadata(t *testing.T) {
	for name, metadata := range map[string]map[string]string{
		"value":   {"a": "é"},
		"emoji":   {"a": "\U0001F600"},
		"name":    {"é": "a"},
		"control": {"a": "x\ny"},
		"cut":     {"a": "\xc3"},
	} {
		for form, put := range map[string]func(g *guard.Guard, o *guard.PutOptions) error{
			"stream": func(g *guard.Guard, o *guard.PutOptions) error {
				_, err := g.PutStream(t.Context(), token(t, 5), "k", iotest.ErrReader(errors.New("it was read")), o)
				return err
			},
			"file": func(g *guard.Guard, o *guard.PutOptions) error {
				_, err := g.Put(t.Context(), token(t, 5), "k", guard.ReaderAt(nothing{}, 20*mib), o)
				return err
			},
		} {
			m := mems3.New()
			m.Before = func(op, _ string) error {
				t.Errorf("%s, %s: asked the store to %s", name, form, op)
				return nil
			}
			err := put(newGuard(m), &guard.PutOptions{Headers: guard.Headers{Metadata: metadata}})
			if !errors.Is(err, guard.ErrInvalid) || !strings.Contains(err.Error(), "metadata") {
				t.Errorf("%s, %s: %v", name, form, err)
			}
		}
	}
}
