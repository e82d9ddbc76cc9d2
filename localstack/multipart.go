package localstack

import (
	"context"
	"crypto/md5"
	"database/sql"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"os"
	"time"

	"github.com/s3fence/s3fence/guard"
)

// S3's limits: the least size is for all parts but the last.
const (
	maxParts = 10_000
	minPart  = 5 << 20
)

// CreateUpload implements [guard.Store].
func (s *store) CreateUpload(ctx context.Context, key string, req guard.UploadRequest) (guard.Upload, error) {
	up, err := s.createUpload(ctx, key, req)
	return up, s.failWrite(ctx, "create an upload of", key, err)
}

func (s *store) createUpload(ctx context.Context, key string, req guard.UploadRequest) (guard.Upload, error) {
	if err := s.enter(ctx, key); err != nil {
		return guard.Upload{}, err
	}
	defer s.l.calls.Done()
	if err := plain(req.SSE, req.SSEKMSKeyID); err != nil {
		return guard.Upload{}, err
	}
	switch req.Checksum {
	case "", "CRC32", "CRC32C", "CRC64NVME":
	default:
		return guard.Upload{}, fmt.Errorf("%w: checksum %q: parts can make a whole one with CRC32, CRC32C or CRC64NVME", guard.ErrRejected, req.Checksum)
	}
	headers, tags, err := encode(req.Headers, req.Tags)
	if err != nil {
		return guard.Upload{}, err
	}
	// The time leads, so that the uploads of a key are kept in their order.
	now := time.Now().UnixNano()
	id := fmt.Sprintf("%016x-%s", now, randomHex(16))
	err = s.l.write(ctx, func(ctx context.Context, tx *sql.Conn) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO uploads
			(bucket, key, id, checksum, initiated, headers, tags) VALUES (?, ?, ?, ?, ?, ?, ?)`,
			s.bucket, []byte(key), id, req.Checksum, now, headers, tags)
		return err
	})
	if err != nil {
		return guard.Upload{}, err
	}
	return guard.Upload{Key: key, ID: id, Checksum: req.Checksum}, nil
}

// An uploadRow is what the database says of an upload.
type uploadRow struct{ checksum, headers, tags string }

// objectHeaders are the headers that the object gets, with its checksum if the
// upload asked for one.
func (u uploadRow) objectHeaders(sum hash.Hash) (string, error) {
	if sum == nil {
		return u.headers, nil
	}
	var h storedObject
	if err := json.Unmarshal([]byte(u.headers), &h); err != nil {
		return "", fmt.Errorf("stored headers: %w", err)
	}
	h.Checksum = &storedChecksum{u.checksum, base64.StdEncoding.EncodeToString(sum.Sum(nil))}
	b, err := json.Marshal(h)
	return string(b), err
}

func (s *store) upload(ctx context.Context, q querier, up guard.Upload) (u uploadRow, err error) {
	err = q.QueryRowContext(ctx, "SELECT checksum, headers, tags FROM uploads WHERE bucket = ? AND key = ? AND id = ?", s.bucket, []byte(up.Key), up.ID).
		Scan(&u.checksum, &u.headers, &u.tags)
	if errors.Is(err, sql.ErrNoRows) {
		err = fmt.Errorf("%w: %q: it was completed or aborted", guard.ErrNoUpload, up.ID)
	}
	return u, err
}

// UploadPart implements [guard.Store].
func (s *store) UploadPart(ctx context.Context, up guard.Upload, number int, body guard.Body) (guard.Part, error) {
	p, err := s.uploadPart(ctx, up, number, func() (partSource, error) {
		return partSource{body: body.Reader(), size: body.Size()}, nil
	})
	return p, s.failWrite(ctx, fmt.Sprintf("upload part %d of", number), up.Key, err)
}

// CopyPart implements [guard.Store]. A copy of a whole object is checked
// against the object's CRC-32C; of a range, only that the file has its size.
func (s *store) CopyPart(ctx context.Context, up guard.Upload, number int, src guard.CopySource) (guard.Part, error) {
	p, err := s.uploadPart(ctx, up, number, func() (partSource, error) {
		from, err := s.copySource(ctx, src)
		if err != nil {
			return from, fmt.Errorf("copy from %s: %w", s.URL(src.Key), err)
		}
		return from, nil
	})
	return p, s.failWrite(ctx, fmt.Sprintf("copy part %d of", number), up.Key, err)
}

// A partSource is where the bytes of a part come from.
type partSource struct {
	body   io.Reader
	size   int64
	file   *os.File // to close, if not nil
	crc32c *uint32  // that the bytes must have, if not nil
}

func (s *store) copySource(ctx context.Context, src guard.CopySource) (partSource, error) {
	if err := guard.CheckKey(src.Key); err != nil {
		return partSource{}, fmt.Errorf("%w: %w", guard.ErrRejected, err)
	}
	if src.ETag == "" {
		return partSource{}, fmt.Errorf("%w: a copy without the ETag that the source must have", guard.ErrRejected)
	}
	if err := checkVersion(src.VersionID); err != nil {
		return partSource{}, err
	}
	var w row
	f, err := s.l.openFound(func() (blob string, err error) {
		w, err = s.lookup(ctx, s.l.r, src.Key)
		if err == nil && w.etag != src.ETag {
			err = fmt.Errorf("%w: its ETag is %q, not %q", guard.ErrPreconditionFailed, w.etag, src.ETag)
		}
		return w.blob, err
	})
	if err != nil {
		return partSource{}, err
	}
	from, err := cut(f, w, src.Offset, src.Size)
	if err != nil {
		return partSource{}, errors.Join(err, f.Close())
	}
	return from, nil
}

// cut takes a range of an object's file, a size of 0 being all of it.
func cut(f *os.File, w row, offset, size int64) (partSource, error) {
	st, err := f.Stat()
	if err != nil {
		return partSource{}, err
	}
	if st.Size() != w.size {
		return partSource{}, fmt.Errorf("file %s does not have the %d bytes that were stored: it was damaged, write the object again", f.Name(), w.size)
	}
	if size == 0 && offset == 0 {
		size = w.size
	} else if offset < 0 || size <= 0 || size > w.size-offset {
		return partSource{}, fmt.Errorf("%w: it has %d bytes, of which there are no %d from byte %d on", guard.ErrRejected, w.size, size, offset)
	}
	from := partSource{body: io.NewSectionReader(f, offset, size), size: size, file: f}
	if size == w.size {
		from.crc32c = &w.crc32c
	}
	return from, nil
}

// uploadPart stores a part of what source gives, which it asks only if the
// part is wanted.
func (s *store) uploadPart(ctx context.Context, up guard.Upload, number int, source func() (partSource, error)) (guard.Part, error) {
	if number < 1 || number > maxParts {
		return guard.Part{}, fmt.Errorf("%w: parts have numbers from 1 to %d", guard.ErrRejected, maxParts)
	}
	if err := s.enter(ctx, up.Key); err != nil {
		return guard.Part{}, err
	}
	defer s.l.calls.Done()
	u, err := s.upload(ctx, s.l.r, up)
	if err != nil {
		return guard.Part{}, err
	}
	from, err := source()
	if err != nil {
		return guard.Part{}, err
	}
	if from.file != nil {
		defer from.file.Close()
	}

	sum := guard.Checksum{Algorithm: u.checksum}
	h := sum.NewHash() // nil for none
	p := storedPart{number: number, blob: newBlobName(s.l.id), size: from.size}
	if p.etag, p.crc32c, err = s.receive(ctx, p.blob, from.body, from.size, h); err != nil {
		return guard.Part{}, err
	}
	if from.crc32c != nil && p.crc32c != *from.crc32c {
		_ = s.l.blobs.remove(p.blob)
		return guard.Part{}, fmt.Errorf("file %s does not match its checksum: it was damaged, write the object again", from.file.Name())
	}
	if h != nil {
		sum.Value = base64.StdEncoding.EncodeToString(h.Sum(nil))
	} else {
		sum = checksum(p.crc32c)
	}

	var old string
	err = s.l.write(ctx, func(ctx context.Context, tx *sql.Conn) (err error) {
		old, err = s.replacePart(ctx, tx, up, p)
		return err
	})
	if err := s.l.written(p.blob, err); err != nil {
		return guard.Part{}, err
	}
	if old != "" {
		s.l.discard(ctx, old)
	}
	return guard.Part{Number: number, ETag: p.etag, Size: p.size, Checksum: sum}, nil
}

// A storedPart is what the database says of a part.
type storedPart struct {
	number     int
	etag, blob string
	size       int64
	crc32c     uint32
}

// replacePart writes a part's row and returns the body that the part had.
func (s *store) replacePart(ctx context.Context, tx *sql.Conn, up guard.Upload, p storedPart) (old string, err error) {
	if _, err := s.upload(ctx, tx, up); err != nil {
		return "", err
	}
	err = tx.QueryRowContext(ctx, "SELECT blob FROM parts WHERE upload = ? AND number = ?", up.ID, p.number).Scan(&old)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	if err == nil && old != "" {
		_, err = tx.ExecContext(ctx, "INSERT INTO garbage VALUES (?)", old)
	}
	if err != nil {
		return "", err
	}
	_, err = tx.ExecContext(ctx, `INSERT OR REPLACE INTO parts
		(upload, number, etag, blob, size, crc32c) VALUES (?, ?, ?, ?, ?, ?)`,
		up.ID, p.number, p.etag, p.blob, p.size, int64(p.crc32c))
	return old, err
}

// CompleteUpload implements [guard.Store].
func (s *store) CompleteUpload(ctx context.Context, up guard.Upload, req guard.CompleteRequest) (guard.PutResult, error) {
	etag, err := s.completeUpload(ctx, up, req)
	if err != nil {
		return guard.PutResult{}, s.failWrite(ctx, "complete the upload of", up.Key, err)
	}
	return guard.PutResult{ETag: etag}, nil
}

func (s *store) completeUpload(ctx context.Context, up guard.Upload, req guard.CompleteRequest) (etag string, err error) {
	if err := req.Condition.Check(); err != nil {
		return "", err
	}
	if err := s.enter(ctx, up.Key); err != nil {
		return "", err
	}
	defer s.l.calls.Done()

	// A completion that is already lost needn't copy its bytes.
	u, parts, err := s.completionNow(ctx, up, req.Parts)
	if err != nil {
		return "", err
	}
	if _, err := s.decide(ctx, s.l.r, up.Key, req.Condition); err != nil {
		return "", err
	}
	whole, err := compare(req.Checksum)
	if err != nil {
		return "", err
	}
	w := row{etag: randomHex(etagBytes), blob: newBlobName(s.l.id)}
	for _, p := range parts {
		w.size += p.size
	}
	kept := guard.Checksum{Algorithm: u.checksum}.NewHash()
	var also []io.Writer
	for _, h := range []hash.Hash{whole.h, kept} {
		if h != nil {
			also = append(also, h)
		}
	}
	from := &joined{ctx: ctx, s: s, up: up, want: req.Parts, parts: parts}
	if s.l.opts.MD5ETags {
		from.md5s = md5.New()
	}
	w.crc32c, err = s.l.blobs.receive(ctx, w.blob, from, w.size, also...)
	from.close()
	if err == nil {
		err = whole.check()
	}
	if err == nil {
		w.headers, err = u.objectHeaders(kept)
	}
	if err != nil {
		_ = s.l.blobs.remove(w.blob)
		return "", err
	}
	if from.md5s != nil {
		w.etag = fmt.Sprintf("%s-%d", hex.EncodeToString(from.md5s.Sum(nil)), len(parts))
	}

	var gone []string
	err = s.l.write(ctx, func(ctx context.Context, tx *sql.Conn) error {
		// Again, since it may have been completed, aborted, or sent parts.
		if _, _, err := s.completion(ctx, tx, up, req.Parts); err != nil {
			return err
		}
		old, err := s.replace(ctx, tx, up.Key, req.Condition, w, u.tags)
		if err != nil {
			return err
		}
		if gone, err = endUpload(ctx, tx, up); err == nil && old != "" {
			gone = append(gone, old)
		}
		return err
	})
	if err := s.l.written(w.blob, err); err != nil {
		return "", err
	}
	s.l.discard(ctx, gone...)
	return w.etag, nil
}

// completion returns an upload and its parts that a completion names, or why it
// can't be completed with them.
func (s *store) completion(ctx context.Context, q querier, up guard.Upload, want []guard.Part) (uploadRow, []storedPart, error) {
	u, err := s.upload(ctx, q, up)
	if err != nil {
		return u, nil, err
	}
	if len(want) == 0 {
		return u, nil, fmt.Errorf("%w: a completion without parts", guard.ErrRejected)
	}
	for i, p := range want[1:] {
		if p.Number <= want[i].Number {
			return u, nil, fmt.Errorf("%w: part %d after part %d: name them in their order, each once", guard.ErrRejected, p.Number, want[i].Number)
		}
	}
	held, err := heldParts(ctx, q, up)
	if err != nil {
		return u, nil, err
	}
	parts := make([]storedPart, len(want))
	for i, p := range want {
		h, ok := held[p.Number]
		if !ok {
			return u, nil, fmt.Errorf("%w: part %d was never sent", guard.ErrRejected, p.Number)
		}
		if h.etag != p.ETag {
			return u, nil, fmt.Errorf("%w: part %d has ETag %q, not %q: it was sent again", guard.ErrRejected, p.Number, h.etag, p.ETag)
		}
		if h.size < minPart && i < len(want)-1 {
			return u, nil, fmt.Errorf("%w: part %d has %d bytes: all but the last must have %d", guard.ErrRejected, p.Number, h.size, minPart)
		}
		parts[i] = h
	}
	return u, parts, nil
}

// completionNow is completion outside of a transaction that writes.
func (s *store) completionNow(ctx context.Context, up guard.Upload, want []guard.Part) (u uploadRow, parts []storedPart, err error) {
	// The upload and its parts as of one moment.
	tx, err := s.l.r.BeginTx(ctx, nil)
	if err != nil {
		return u, nil, err
	}
	u, parts, err = s.completion(ctx, tx, up, want)
	return u, parts, errors.Join(err, tx.Rollback())
}

// heldParts returns the parts that were sent, by their numbers.
func heldParts(ctx context.Context, q querier, up guard.Upload) (map[int]storedPart, error) {
	rows, err := q.QueryContext(ctx, "SELECT number, etag, blob, size, crc32c FROM parts WHERE upload = ?", up.ID)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	held := map[int]storedPart{}
	for rows.Next() {
		var p storedPart
		if err := rows.Scan(&p.number, &p.etag, &p.blob, &p.size, &p.crc32c); err != nil {
			return nil, err
		}
		held[p.number] = p
	}
	return held, rows.Err()
}

// endUpload takes an upload away and returns the bodies of its parts, which are
// garbage now.
func endUpload(ctx context.Context, tx *sql.Conn, up guard.Upload) (blobs []string, err error) {
	held, err := heldParts(ctx, tx, up)
	if err != nil {
		return nil, err
	}
	for _, p := range held {
		blobs = append(blobs, p.blob)
	}
	for _, query := range []string{
		"INSERT INTO garbage SELECT blob FROM parts WHERE upload = ?",
		"DELETE FROM parts WHERE upload = ?",
		"DELETE FROM uploads WHERE id = ?",
	} {
		if _, err := tx.ExecContext(ctx, query, up.ID); err != nil {
			return nil, err
		}
	}
	return blobs, nil
}

// AbortUpload implements [guard.Store].
func (s *store) AbortUpload(ctx context.Context, up guard.Upload) error {
	return s.failWrite(ctx, "abort the upload of", up.Key, s.abortUpload(ctx, up))
}

func (s *store) abortUpload(ctx context.Context, up guard.Upload) error {
	if err := s.enter(ctx, up.Key); err != nil {
		return err
	}
	defer s.l.calls.Done()
	var gone []string
	err := s.l.write(ctx, func(ctx context.Context, tx *sql.Conn) (err error) {
		if _, err = s.upload(ctx, tx, up); err == nil {
			gone, err = endUpload(ctx, tx, up)
		}
		return err
	})
	if err != nil {
		return err
	}
	s.l.discard(ctx, gone...)
	return nil
}

// A comparison is of a checksum that is wanted with that of the bytes.
type comparison struct {
	want guard.Checksum
	h    hash.Hash // gets the bytes; nil when no checksum is wanted
}

func compare(want guard.Checksum) (comparison, error) {
	if want.Value == "" {
		return comparison{}, nil
	}
	c := comparison{want, want.NewHash()}
	if c.h == nil {
		return c, fmt.Errorf("%w: checksum algorithm %q is not known: use CRC32, CRC32C or CRC64NVME", guard.ErrRejected, want.Algorithm)
	}
	return c, nil
}

func (c comparison) check() error {
	if c.h == nil {
		return nil
	}
	if got := base64.StdEncoding.EncodeToString(c.h.Sum(nil)); got != c.want.Value {
		return fmt.Errorf("%w: its %s is %s, not %s", guard.ErrRejected, c.want.Algorithm, got, c.want.Value)
	}
	return nil
}

// joined reads parts one after the other, and each with its own checks.
type joined struct {
	ctx   context.Context
	s     *store
	up    guard.Upload
	want  []guard.Part
	parts []storedPart
	md5s  hash.Hash // gets the MD5 of each part, if not nil

	i    int // the part being read
	file *os.File
	n    int64
	crc  uint32
	sum  comparison
	md5  hash.Hash
}

// Read implements io.Reader.
func (j *joined) Read(p []byte) (int, error) {
	for j.i < len(j.parts) {
		if j.file == nil {
			if err := j.open(); err != nil {
				return 0, fmt.Errorf("part %d: %w", j.want[j.i].Number, err)
			}
		}
		n, err := j.file.Read(p)
		j.n += int64(n)
		j.crc = crc32.Update(j.crc, castagnoli, p[:n])
		for _, h := range []hash.Hash{j.sum.h, j.md5} {
			if h != nil {
				h.Write(p[:n])
			}
		}
		if n > 0 || err != io.EOF {
			return n, err
		}
		if err := j.finish(); err != nil {
			return 0, fmt.Errorf("part %d: %w", j.want[j.i].Number, err)
		}
	}
	return 0, io.EOF
}

// open begins part i. A file that is missing may have been replaced by the same
// bytes sent again; else the upload says what became of it.
func (j *joined) open() (err error) {
	known := true
	find := func() (string, error) {
		if !known {
			_, parts, err := j.s.completionNow(j.ctx, j.up, j.want)
			if err != nil {
				return "", err
			}
			j.parts = parts
		}
		known = false
		return j.parts[j.i].blob, nil
	}
	if j.sum, err = compare(j.want[j.i].Checksum); err != nil {
		return err
	}
	if j.file, err = j.s.l.openFound(find); err != nil {
		return err
	}
	j.n, j.crc = 0, 0
	if j.md5s != nil {
		j.md5 = md5.New()
	}
	return nil
}

// finish ends part i.
func (j *joined) finish() error {
	p := j.parts[j.i]
	if j.n != p.size || j.crc != p.crc32c {
		return fmt.Errorf("file %s is not as it was stored: it was damaged, send the part again", j.file.Name())
	}
	if err := j.sum.check(); err != nil {
		return err
	}
	if j.md5s != nil {
		j.md5s.Write(j.md5.Sum(nil))
	}
	j.close()
	j.i++
	return nil
}

func (j *joined) close() {
	if j.file != nil {
		_ = j.file.Close()
		j.file = nil
	}
}
