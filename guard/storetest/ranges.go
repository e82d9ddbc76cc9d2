package storetest

import (
	"errors"
	"io"
	"testing"

	"github.com/s3fence/s3fence/guard"
)

// ranges: parts of the bytes, of one write.
func (h Harness) ranges(t *testing.T) {
	s := h.Open(t)
	const body = "0123456789"
	w := put(t, s, "k", guard.IfAbsent(), body, meta("a", "b"))
	for _, tt := range []struct {
		opts guard.ReadOptions
		want string
		err  error
	}{
		{guard.ReadOptions{}, body, nil},
		{guard.ReadOptions{ETag: w.res.ETag}, body, nil},
		{guard.ReadOptions{Size: 4}, "0123", nil},
		{guard.ReadOptions{Offset: 4}, "456789", nil},
		{guard.ReadOptions{Offset: 4, Size: 3, ETag: w.res.ETag}, "456", nil},
		{guard.ReadOptions{Offset: 8, Size: 100}, "89", nil},
		{guard.ReadOptions{Offset: 9, Size: 1}, "9", nil},
		{guard.ReadOptions{Offset: 10}, "", guard.ErrRejected},
		{guard.ReadOptions{ETag: `"00000000000000000000000000000000"`}, "", guard.ErrPreconditionFailed},
		{guard.ReadOptions{ETag: `"00000000000000000000000000000000"`, Offset: 1, Size: 1}, "", guard.ErrPreconditionFailed},
	} {
		obj, r, err := s.Get(t.Context(), "k", tt.opts)
		if err != nil {
			if tt.err == nil || !errors.Is(err, tt.err) {
				t.Errorf("%+v: %v", tt.opts, err)
			}
			continue
		}
		b, err := io.ReadAll(r)
		if err = errors.Join(err, r.Close()); err != nil || tt.err != nil || string(b) != tt.want {
			t.Errorf("%+v: %q, %v; want %q, %v", tt.opts, b, err, tt.want, tt.err)
		}
		if obj.Size != int64(len(body)) || obj.ETag != w.res.ETag || obj.Metadata["a"] != "b" {
			t.Errorf("%+v: %+v", tt.opts, obj)
		}
	}
	if h.Versioned == nil {
		return
	}
	v, _ := h.Versioned(t)
	first := put(t, v, "k", guard.IfAbsent(), "first", meta())
	put(t, v, "k", guard.IfMatch(first.res.ETag), "second", meta())
	_, r, err := v.Get(t.Context(), "k", guard.ReadOptions{VersionID: first.res.VersionID})
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err = errors.Join(err, r.Close()); err != nil || string(b) != "first" {
		t.Errorf("an older version: %q, %v", b, err)
	}
}
