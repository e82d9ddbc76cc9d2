package guard

import (
	"bytes"
	"io"
)

// A Body is the bytes of a write. It can be read any number of times, since a
// write whose answer was lost is sent again.
type Body struct {
	r    io.ReaderAt
	size int64
}

// Bytes is a Body held in memory. The caller leaves b alone until the write is done.
func Bytes(b []byte) Body { return Body{bytes.NewReader(b), int64(len(b))} }

// ReaderAt is a Body of the first size bytes of r, an *os.File for one.
func ReaderAt(r io.ReaderAt, size int64) Body { return Body{r, size} }

// Size in bytes.
func (b Body) Size() int64 { return b.size }

// Reader returns a new reader of the whole Body.
func (b Body) Reader() *io.SectionReader {
	if b.r == nil {
		return io.NewSectionReader(bytes.NewReader(nil), 0, 0)
	}
	return io.NewSectionReader(b.r, 0, b.size)
}
