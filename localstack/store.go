package localstack

import (
	"context"
	"crypto/md5"
	"database/sql"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/s3fence/s3fence/guard"
)

const (
	// etagBytes is not 16, so that nobody takes a random ETag for an MD5.
	etagBytes = 20
	// readTries bounds how often a reader starts anew because the body was
	// replaced between its row and its file.
	readTries = 1000
)

// Store returns a bucket of the folder. It exists from its first use, so
// reading from it gives [guard.ErrNotFound] at worst. A name that S3 would not
// allow gives a Store each of whose calls fails with [guard.ErrNoBucket].
//
// Its errors follow [guard.Store], with these particulars:
//   - Put and CreateUpload refuse any encryption with [guard.ErrUnsupported].
//   - A call that writes and fails before its commit changed nothing and says so:
//     with [guard.ErrNotSent] when its context ended, [guard.ErrConflict] when
//     another process held the folder for 30 seconds, [guard.ErrDenied] when the
//     folder can't be written, and [guard.ErrRejected] for all else, such as a
//     disk that is full or a body that can't be read.
//   - Only a failed commit itself is of unknown outcome.
//
// The ETag is 40 random hex digits, made anew for every write, or with
// [Options].MD5ETags the MD5 of the bytes. The CRC-32C of every body is kept,
// and checked whenever the whole body is read. There are no versions.
//
// A multipart upload stays until it is completed or aborted, over any number of
// openings. Its completion copies the parts into one body, so it takes the
// time, and for that time the room, of a second copy. Whatever refuses a
// completion, the upload can be completed again.
func (l *Local) Store(bucket string) guard.Store { return &store{l, bucket} }

type store struct {
	l      *Local
	bucket string
}

// A row is what the database says of an object.
type row struct {
	etag     string
	blob     string
	size     int64
	crc32c   uint32
	modified int64
	headers  string
}

func (w row) object(withChecksum bool) (guard.Object, error) {
	o := guard.Object{ETag: w.etag, Size: w.size, LastModified: time.Unix(0, w.modified).UTC()}
	var h storedObject
	if err := json.Unmarshal([]byte(w.headers), &h); err != nil {
		return guard.Object{}, fmt.Errorf("stored headers: %w", err)
	}
	o.Headers = guard.Headers(h.storedHeaders)
	if withChecksum {
		o.Checksum = checksum(w.crc32c)
		if h.Checksum != nil {
			o.Checksum = guard.Checksum(*h.Checksum)
		}
	}
	return o, nil
}

func checksum(crc32c uint32) guard.Checksum {
	return guard.Checksum{Algorithm: "CRC32C", Value: base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc32c))}
}

// A storedObject is what the column headers holds.
type storedObject struct {
	storedHeaders
	// Checksum is that of an upload that asked for another than CRC-32C.
	Checksum *storedChecksum `json:"checksum,omitempty"`
}

type storedChecksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"value"`
}

// storedHeaders fixes the names in the database, whatever Go calls the fields.
type storedHeaders struct {
	ContentType        string            `json:"content-type,omitempty"`
	ContentEncoding    string            `json:"content-encoding,omitempty"`
	ContentDisposition string            `json:"content-disposition,omitempty"`
	ContentLanguage    string            `json:"content-language,omitempty"`
	CacheControl       string            `json:"cache-control,omitempty"`
	Expires            string            `json:"expires,omitempty"`
	WebsiteRedirect    string            `json:"website-redirect,omitempty"`
	StorageClass       string            `json:"storage-class,omitempty"`
	Metadata           map[string]string `json:"metadata,omitempty"`
}

// Head implements [guard.Store].
func (s *store) Head(ctx context.Context, key string, opts guard.HeadOptions) (guard.Object, error) {
	o, err := s.head(ctx, key, opts)
	return o, s.fail(ctx, "head", key, err)
}

func (s *store) head(ctx context.Context, key string, opts guard.HeadOptions) (guard.Object, error) {
	if err := s.enter(ctx, key); err != nil {
		return guard.Object{}, err
	}
	defer s.l.calls.Done()
	if err := checkVersion(opts.VersionID); err != nil {
		return guard.Object{}, err
	}
	w, err := s.lookup(ctx, s.l.r, key)
	if err != nil {
		return guard.Object{}, err
	}
	return w.object(opts.Checksum)
}

// Get implements [guard.Store].
func (s *store) Get(ctx context.Context, key string, opts guard.ReadOptions) (guard.Object, io.ReadCloser, error) {
	o, body, err := s.get(ctx, key, opts)
	if err != nil {
		return guard.Object{}, nil, s.fail(ctx, "get", key, err)
	}
	return o, body, nil
}

func (s *store) get(ctx context.Context, key string, opts guard.ReadOptions) (guard.Object, io.ReadCloser, error) {
	if err := s.enter(ctx, key); err != nil {
		return guard.Object{}, nil, err
	}
	defer s.l.calls.Done()
	if err := checkVersion(opts.VersionID); err != nil {
		return guard.Object{}, nil, err
	}
	var w row
	f, err := s.l.openFound(func() (blob string, err error) {
		w, err = s.lookup(ctx, s.l.r, key)
		return w.blob, err
	})
	if err != nil {
		return guard.Object{}, nil, err
	}
	o, err := w.object(opts.Whole())
	if err != nil {
		return guard.Object{}, nil, errors.Join(err, f.Close())
	}
	switch {
	case opts.ETag != "" && opts.ETag != w.etag:
		err = fmt.Errorf("%w: the object's ETag is %q, not %q", guard.ErrPreconditionFailed, w.etag, opts.ETag)
	case !opts.Whole() && opts.Offset >= w.size:
		err = fmt.Errorf("%w: bytes from %d of %d", guard.ErrRejected, opts.Offset, w.size)
	}
	if err != nil {
		return guard.Object{}, nil, errors.Join(err, f.Close())
	}
	if !opts.Whole() {
		n := w.size - opts.Offset
		if opts.Size > 0 {
			n = min(n, opts.Size)
		}
		return o, partReader{contextReader{ctx, io.NewSectionReader(f, opts.Offset, n)}, f}, nil
	}
	return o, newBodyReader(ctx, f, s.URL(key), w), nil
}

// A partReader reads some of a body, which no checksum is kept of.
type partReader struct {
	io.Reader
	io.Closer
}

// openFound opens the body that find names, and asks find again when that was
// replaced meanwhile.
func (l *Local) openFound(find func() (blob string, err error)) (*os.File, error) {
	missing := ""
	for range readTries {
		blob, err := find()
		if err != nil {
			return nil, err
		}
		// The row still names what was not there: nothing has replaced it.
		if blob == missing {
			return nil, fmt.Errorf("its file %s is missing: it was damaged, write it again", l.blobs.settled(blob))
		}
		f, err := l.blobs.open(blob)
		if !errors.Is(err, fs.ErrNotExist) {
			return f, err
		}
		missing = blob
	}
	return nil, fmt.Errorf("overwritten %d times while it was being opened: try again", readTries)
}

// Put implements [guard.Store].
func (s *store) Put(ctx context.Context, key string, req guard.PutRequest) (guard.PutResult, error) {
	etag, err := s.put(ctx, key, req)
	if err != nil {
		return guard.PutResult{}, s.failWrite(ctx, "put", key, err)
	}
	return guard.PutResult{ETag: etag}, nil
}

func (s *store) put(ctx context.Context, key string, req guard.PutRequest) (etag string, err error) {
	if err := req.Condition.Check(); err != nil {
		return "", err
	}
	if err := s.enter(ctx, key); err != nil {
		return "", err
	}
	defer s.l.calls.Done()
	if err := plain(req.SSE, req.SSEKMSKeyID); err != nil {
		return "", err
	}
	headers, tags, err := encode(req.Headers, req.Tags)
	if err != nil {
		return "", err
	}

	// A write that is already lost needn't bring its bytes.
	if _, err := s.decide(ctx, s.l.r, key, req.Condition); err != nil {
		return "", err
	}
	w := row{blob: newBlobName(s.l.id), size: req.Body.Size(), headers: headers}
	if w.etag, w.crc32c, err = s.receive(ctx, w.blob, req.Body.Reader(), w.size, nil); err != nil {
		return "", err
	}
	var old string
	err = s.l.write(ctx, func(ctx context.Context, tx *sql.Conn) (err error) {
		old, err = s.replace(ctx, tx, key, req.Condition, w, tags)
		return err
	})
	if err := s.l.written(w.blob, err); err != nil {
		return "", err
	}
	if old != "" {
		s.l.discard(ctx, old)
	}
	return w.etag, nil
}

// receive stores a body that is sent. Its ETag is its MD5 or made up. also, if
// not nil, gets the bytes too.
func (s *store) receive(ctx context.Context, name string, body io.Reader, size int64, also hash.Hash) (etag string, crc32c uint32, err error) {
	var to []io.Writer
	if also != nil {
		to = append(to, also)
	}
	if !s.l.opts.MD5ETags {
		crc32c, err = s.l.blobs.receive(ctx, name, body, size, to...)
		return randomHex(etagBytes), crc32c, err
	}
	sum := md5.New()
	crc32c, err = s.l.blobs.receive(ctx, name, body, size, append(to, sum)...)
	return hex.EncodeToString(sum.Sum(nil)), crc32c, err
}

// written ends a write whose row names a new body, by the outcome of its
// transaction.
func (l *Local) written(name string, err error) error {
	if _, unknown := errors.AsType[*commitError](err); unknown {
		return err // a row may name the body: it stays until the next Open knows
	}
	if err != nil {
		_ = l.blobs.remove(name)
		return err
	}
	// It is done and durable. A body that can't be moved is read where it is.
	_ = l.blobs.settle(name)
	return nil
}

// replace writes an object's row if c holds, and returns the body that it had.
func (s *store) replace(ctx context.Context, tx *sql.Conn, key string, c guard.Condition, w row, tags string) (old string, err error) {
	if old, err = s.decide(ctx, tx, key, c); err != nil {
		return "", err
	}
	if old != "" {
		if _, err := tx.ExecContext(ctx, "INSERT INTO garbage VALUES (?)", old); err != nil {
			return "", err
		}
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO objects
		(bucket, key, etag, blob, size, crc32c, modified, headers, tags) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (bucket, key) DO UPDATE SET etag = excluded.etag, blob = excluded.blob, size = excluded.size,
			crc32c = excluded.crc32c, modified = excluded.modified, headers = excluded.headers, tags = excluded.tags`,
		s.bucket, []byte(key), w.etag, w.blob, w.size, int64(w.crc32c), time.Now().UnixNano(), w.headers, tags)
	return old, err
}

// decide returns the body that a write under c would replace, or why it may not.
func (s *store) decide(ctx context.Context, q querier, key string, c guard.Condition) (blob string, err error) {
	w, err := s.lookup(ctx, q, key)
	switch {
	case errors.Is(err, guard.ErrNotFound) && c.Absent():
		return "", nil
	case err != nil:
		return "", err
	case c.Absent():
		return "", fmt.Errorf("%w: the object exists", guard.ErrPreconditionFailed)
	case w.etag != c.ETag():
		return "", fmt.Errorf("%w: the object's ETag is %q, not %q", guard.ErrPreconditionFailed, w.etag, c.ETag())
	}
	return w.blob, nil
}

type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func (s *store) lookup(ctx context.Context, q querier, key string) (w row, err error) {
	err = q.QueryRowContext(ctx, "SELECT etag, blob, size, crc32c, modified, headers FROM objects WHERE bucket = ? AND key = ?", s.bucket, []byte(key)).
		Scan(&w.etag, &w.blob, &w.size, &w.crc32c, &w.modified, &w.headers)
	if errors.Is(err, sql.ErrNoRows) {
		err = guard.ErrNotFound
	}
	return w, err
}

// Tags implements [guard.Store].
func (s *store) Tags(ctx context.Context, key, versionID string) (map[string]string, error) {
	tags, err := s.tags(ctx, key, versionID)
	return tags, s.fail(ctx, "tags of", key, err)
}

func (s *store) tags(ctx context.Context, key, versionID string) (map[string]string, error) {
	if err := s.enter(ctx, key); err != nil {
		return nil, err
	}
	defer s.l.calls.Done()
	if err := checkVersion(versionID); err != nil {
		return nil, err
	}
	var stored string
	err := s.l.r.QueryRowContext(ctx, "SELECT tags FROM objects WHERE bucket = ? AND key = ?", s.bucket, []byte(key)).Scan(&stored)
	if errors.Is(err, sql.ErrNoRows) {
		err = guard.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	var tags map[string]string
	if err := json.Unmarshal([]byte(stored), &tags); err != nil {
		return nil, fmt.Errorf("stored tags: %w", err)
	}
	return tags, nil
}

// Settings implements [guard.Store].
func (s *store) Settings(ctx context.Context) (guard.Settings, error) {
	if err := s.enterBucket(ctx); err != nil {
		return guard.Settings{}, s.fail(ctx, "settings of", "", err)
	}
	s.l.calls.Done()
	return guard.Settings{Versioning: guard.VersioningOff, UniqueETags: !s.l.opts.MD5ETags}, nil
}

// URL implements [guard.Store].
func (s *store) URL(key string) string { return "s3://" + s.bucket + "/" + key }

// enter begins a call on an object, if it may be made; the caller ends it with
// calls.Done.
func (s *store) enter(ctx context.Context, key string) error {
	if err := guard.CheckKey(key); err != nil {
		return fmt.Errorf("%w: %w", guard.ErrRejected, err)
	}
	return s.enterBucket(ctx)
}

func (s *store) enterBucket(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if why := badBucket(s.bucket); why != "" {
		return fmt.Errorf("%w: %q can't be a bucket's name: %s", guard.ErrNoBucket, s.bucket, why)
	}
	return s.l.enter()
}

// nullVersion is what S3 calls the one version of a bucket without versions.
const nullVersion = "null"

func checkVersion(id string) error {
	if id != "" && id != nullVersion {
		return fmt.Errorf("%w: version %q: the embedded store keeps no versions", guard.ErrNotFound, id)
	}
	return nil
}

// plain refuses encryption.
func plain(sse, keyID string) error {
	if sse != "" || keyID != "" {
		return fmt.Errorf("%w: encryption %q: the embedded store does not encrypt: ask for none", guard.ErrUnsupported, sse+keyID)
	}
	return nil
}

func badBucket(name string) string {
	edge := func(c byte) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' }
	switch {
	case len(name) < 3 || len(name) > 63:
		return "it must be 3 to 63 characters long"
	case strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789.-") != "":
		return "it may hold only lower-case letters, digits, dots and hyphens"
	case !edge(name[0]) || !edge(name[len(name)-1]):
		return "it must begin and end with a letter or a digit"
	case strings.Contains(name, ".."):
		return "it may not hold two dots in a row"
	}
	return ""
}

// fail names the call and its object.
func (s *store) fail(ctx context.Context, call, key string, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && !errors.Is(err, ctx.Err()):
		err = fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return fmt.Errorf("%s %s: %w", call, s.URL(key), err)
}

var answers = []error{
	guard.ErrNotFound, guard.ErrNoBucket, guard.ErrPreconditionFailed, guard.ErrNoUpload, guard.ErrConflict,
	guard.ErrNotSent, guard.ErrDenied, guard.ErrUnsupported, guard.ErrRejected,
}

// failWrite says of every error but a commit's that nothing changed: all the
// others come before it.
func (s *store) failWrite(ctx context.Context, call, key string, err error) error {
	if err == nil {
		return nil
	}
	if _, unknown := errors.AsType[*commitError](err); !unknown && !isAnswer(err) {
		answer := guard.ErrRejected
		switch {
		case ctx.Err() != nil:
			answer = guard.ErrNotSent
		case isBusy(err):
			answer = guard.ErrConflict
		case errors.Is(err, fs.ErrPermission):
			answer = guard.ErrDenied
		}
		err = fmt.Errorf("%w: %w", answer, err)
	}
	return s.fail(ctx, call, key, err)
}

func isAnswer(err error) bool {
	for _, a := range answers {
		if errors.Is(err, a) {
			return true
		}
	}
	return false
}

// encode returns headers and tags as JSON. JSON would replace what isn't UTF-8,
// and what is stored comes back exactly or is refused.
func encode(h guard.Headers, tags map[string]string) (headers, encodedTags string, err error) {
	texts := []string{
		h.ContentType, h.ContentEncoding, h.ContentDisposition, h.ContentLanguage, h.CacheControl,
		h.Expires, h.WebsiteRedirect, h.StorageClass,
	}
	for _, m := range []map[string]string{h.Metadata, tags} {
		for k, v := range m {
			texts = append(texts, k, v)
		}
	}
	for _, t := range texts {
		if !utf8.ValidString(t) {
			return "", "", fmt.Errorf("%w: header, metadata or tag %q is not UTF-8", guard.ErrRejected, t)
		}
	}
	hs, err := json.Marshal(storedHeaders(h))
	if err != nil {
		return "", "", err
	}
	ts, err := json.Marshal(tags)
	return string(hs), string(ts), err
}
