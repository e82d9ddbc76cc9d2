package localstack

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

const (
	incomingDir = "incoming"
	blobsDir    = "blobs"
	// A body is named <id of the Local that wrote it>-<random>, each in hex,
	// and never again after its removal.
	procIDLen = 16
	nameLen   = procIDLen + 1 + 32
	copyChunk = 256 << 10
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// blobs keeps bodies as files. One arrives in incoming and moves to blobs/<xx>
// once it is committed. It only ever moves that way, so whoever looks for it,
// to read or to remove it, looks in incoming first and can't miss it.
type blobs struct{ dir string }

func newBlobName(proc string) string { return proc + "-" + randomHex(16) }

func isBlobName(name string) bool {
	return len(name) == nameLen && name[procIDLen] == '-' &&
		strings.Trim(name, "0123456789abcdef-") == ""
}

func (b blobs) incoming(name string) string { return filepath.Join(b.dir, incomingDir, name) }

func (b blobs) shard(name string) string {
	return filepath.Join(b.dir, blobsDir, name[len(name)-2:])
}

func (b blobs) settled(name string) string { return filepath.Join(b.shard(name), name) }

// makeFolders makes them all at once, so that no move into one needs to sync
// its parent.
func (b blobs) makeFolders() error {
	if err := os.MkdirAll(filepath.Join(b.dir, incomingDir), 0o700); err != nil {
		return err
	}
	for i := range 256 {
		if err := os.MkdirAll(filepath.Join(b.dir, blobsDir, fmt.Sprintf("%02x", i)), 0o700); err != nil {
			return err
		}
	}
	return syncDir(filepath.Join(b.dir, blobsDir))
}

// listIncoming returns the names of bodies in incoming; files that aren't ours
// are left alone.
func (b blobs) listIncoming() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(b.dir, incomingDir))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if isBlobName(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// receive stores a body of size bytes in incoming, durably, and returns its
// CRC-32C. also get the bytes too. On an error nothing is left of it.
func (b blobs) receive(ctx context.Context, name string, body io.Reader, size int64, also ...io.Writer) (crc32c uint32, err error) {
	path := b.incoming(name)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil {
			_ = os.Remove(path)
		}
	}()

	crc := crc32.New(castagnoli)
	buf := make([]byte, max(1, min(size, copyChunk)))
	n, err := io.CopyBuffer(io.MultiWriter(append(also, f, crc)...), contextReader{ctx, body}, buf)
	if err != nil {
		return 0, err
	}
	if n != size {
		return 0, fmt.Errorf("the body ended after %d of %d bytes", n, size)
	}
	if err := f.Sync(); err != nil {
		return 0, err
	}
	return crc.Sum32(), syncDir(filepath.Dir(path))
}

// settle moves a committed body to its place. That it is gone is no error: an
// overwrite has already removed it.
func (b blobs) settle(name string) error {
	return unlessMissing(os.Rename(b.incoming(name), b.settled(name)))
}

func (b blobs) open(name string) (*os.File, error) {
	f, err := os.Open(b.incoming(name))
	if errors.Is(err, fs.ErrNotExist) {
		f, err = os.Open(b.settled(name))
	}
	return f, err
}

// remove unlinks a body wherever it is.
func (b blobs) remove(name string) error {
	return errors.Join(
		unlessMissing(os.Remove(b.incoming(name))),
		unlessMissing(os.Remove(b.settled(name))))
}

// syncRemoved makes removals durable.
func (b blobs) syncRemoved(names []string) error {
	dirs := map[string]bool{filepath.Join(b.dir, incomingDir): true}
	for _, name := range names {
		dirs[b.shard(name)] = true
	}
	for dir := range dirs {
		if err := syncDir(dir); err != nil {
			return err
		}
	}
	return nil
}

func unlessMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// syncDir makes a folder's entries durable. Windows has no such call and
// needs none.
func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// A contextReader ends when its context does.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// A bodyReader gives a stored body out and io.EOF only when every byte of it
// was right.
type bodyReader struct {
	from contextReader
	file *os.File
	url  string
	want row
	n    int64
	crc  uint32
}

func newBodyReader(ctx context.Context, f *os.File, url string, want row) *bodyReader {
	return &bodyReader{from: contextReader{ctx, f}, file: f, url: url, want: want}
}

// Read implements io.Reader.
func (b *bodyReader) Read(p []byte) (int, error) {
	n, err := b.from.Read(p)
	b.n += int64(n)
	b.crc = crc32.Update(b.crc, castagnoli, p[:n])
	switch {
	case b.n > b.want.size || err == io.EOF && b.n < b.want.size:
		return n, fmt.Errorf("read %s: file %s does not have the %d bytes that were stored: it was damaged, write the object again", b.url, b.file.Name(), b.want.size)
	case err == io.EOF && b.crc != b.want.crc32c:
		return n, fmt.Errorf("read %s: file %s does not match its checksum: it was damaged, write the object again", b.url, b.file.Name())
	case err != nil && err != io.EOF:
		return n, fmt.Errorf("read %s: %w", b.url, err)
	}
	return n, err
}

// Close implements io.Closer.
func (b *bodyReader) Close() error { return b.file.Close() }
