package localstack

import (
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/s3fence/s3fence/guard"
)

const (
	// etagBytes is not 16, so that nobody takes a random ETag for an MD5.
	etagBytes = 20
	// readTries bounds how often Get starts anew because the object was
	// overwritten between its row and its file.
	readTries = 1000
)

// Store returns a bucket of the folder. It exists from its first use, so
// reading from it gives [guard.ErrNotFound] at worst. A name that S3 would not
// allow gives a Store each of whose calls fails with [guard.ErrNoBucket].
//
// Its errors follow [guard.Store], with these particulars:
//   - Put refuses any encryption with [guard.ErrUnsupported].
//   - A Put that fails before its commit changed nothing and says so: with
//     [guard.ErrNotSent] when its context ended, [guard.ErrConflict] when another
//     process held the folder for 30 seconds, [guard.ErrDenied] when the folder
//     can't be written, and [guard.ErrRejected] for all else, such as a disk that
//     is full or a body that can't be read.
//   - Only a failed commit itself is of unknown outcome.
//
// The ETag is 40 random hex digits, made anew for every write, or with
// [Options].MD5ETags the MD5 of the bytes. The CRC-32C of every body is kept,
// and checked whenever the body is read. There are no versions.
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
	var h storedHeaders
	if err := json.Unmarshal([]byte(w.headers), &h); err != nil {
		return guard.Object{}, fmt.Errorf("stored headers: %w", err)
	}
	o.Headers = guard.Headers(h)
	if withChecksum {
		sum := binary.BigEndian.AppendUint32(nil, w.crc32c)
		o.Checksum = guard.Checksum{Algorithm: "CRC32C", Value: base64.StdEncoding.EncodeToString(sum)}
	}
	return o, nil
}

// storedHeaders fixes the names in the database, whatever Go calls the fields.
type storedHeaders struct {
	ContentType        string            `json:"content-type,omitempty"`
	ContentEncoding    string            `json:"content-encoding,omitempty"`
	ContentDisposition string            `json:"content-disposition,omitempty"`
	ContentLanguage    string            `json:"content-language,omitempty"`
	CacheControl       string            `json:"cache-control,omitempty"`
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
	// S3 calls the one version of a bucket without versions "null".
	if opts.VersionID != "" && opts.VersionID != "null" {
		return guard.Object{}, fmt.Errorf("%w: version %q: the embedded store keeps no versions", guard.ErrNotFound, opts.VersionID)
	}
	w, err := s.lookup(ctx, s.l.r, key)
	if err != nil {
		return guard.Object{}, err
	}
	return w.object(opts.Checksum)
}

// Get implements [guard.Store].
func (s *store) Get(ctx context.Context, key string) (guard.Object, io.ReadCloser, error) {
	o, body, err := s.get(ctx, key)
	if err != nil {
		return guard.Object{}, nil, s.fail(ctx, "get", key, err)
	}
	return o, body, nil
}

func (s *store) get(ctx context.Context, key string) (guard.Object, io.ReadCloser, error) {
	if err := s.enter(ctx, key); err != nil {
		return guard.Object{}, nil, err
	}
	defer s.l.calls.Done()
	missing := ""
	for range readTries {
		w, err := s.lookup(ctx, s.l.r, key)
		if err != nil {
			return guard.Object{}, nil, err
		}
		// The row still names what was not there: no overwrite took it.
		if w.blob == missing {
			return guard.Object{}, nil, fmt.Errorf("its file %s is missing: it was damaged, write the object again", s.l.blobs.settled(w.blob))
		}
		f, err := s.l.blobs.open(w.blob)
		if errors.Is(err, fs.ErrNotExist) {
			missing = w.blob
			continue
		}
		if err != nil {
			return guard.Object{}, nil, err
		}
		o, err := w.object(false)
		if err != nil {
			return guard.Object{}, nil, errors.Join(err, f.Close())
		}
		return o, newBodyReader(ctx, f, s.URL(key), w), nil
	}
	return guard.Object{}, nil, fmt.Errorf("overwritten %d times while it was being opened: try again", readTries)
}

// Put implements [guard.Store].
func (s *store) Put(ctx context.Context, key string, req guard.PutRequest) (guard.PutResult, error) {
	etag, err := s.put(ctx, key, req)
	if err != nil {
		return guard.PutResult{}, s.failPut(ctx, key, err)
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
	if req.SSE != "" || req.SSEKMSKeyID != "" {
		return "", fmt.Errorf("%w: encryption %q: the embedded store does not encrypt: ask for none", guard.ErrUnsupported, req.SSE+req.SSEKMSKeyID)
	}
	headers, tags, err := encode(req)
	if err != nil {
		return "", err
	}

	// A write that is already lost needn't bring its bytes.
	if _, err := s.decide(ctx, s.l.r, key, req.Condition); err != nil {
		return "", err
	}
	name := newBlobName(s.l.id)
	sum, err := s.l.blobs.receive(ctx, name, req.Body, s.l.opts.MD5ETags)
	if err != nil {
		return "", err
	}
	etag = sum.md5
	if etag == "" {
		etag = randomHex(etagBytes)
	}

	var old string
	err = s.l.write(ctx, func(ctx context.Context, tx *sql.Conn) error {
		if old, err = s.decide(ctx, tx, key, req.Condition); err != nil {
			return err
		}
		if old != "" {
			if _, err := tx.ExecContext(ctx, "INSERT INTO garbage VALUES (?)", old); err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO objects
			(bucket, key, etag, blob, size, crc32c, modified, headers, tags) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (bucket, key) DO UPDATE SET etag = excluded.etag, blob = excluded.blob, size = excluded.size,
				crc32c = excluded.crc32c, modified = excluded.modified, headers = excluded.headers, tags = excluded.tags`,
			s.bucket, []byte(key), etag, name, req.Body.Size(), int64(sum.crc32c), time.Now().UnixNano(), headers, tags)
		return err
	})
	if _, unknown := errors.AsType[*commitError](err); unknown {
		return "", err // a row may name the body: it stays until the next Open knows
	}
	if err != nil {
		_ = s.l.blobs.remove(name)
		return "", err
	}

	// It is done and durable. A body that can't be moved is read where it is.
	_ = s.l.blobs.settle(name)
	if old != "" {
		s.l.discard(ctx, old)
	}
	return etag, nil
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

// Versions implements [guard.Store]: there are none.
func (s *store) Versions(ctx context.Context, key string) iter.Seq2[guard.Version, error] {
	return func(yield func(guard.Version, error) bool) {
		if err := s.enter(ctx, key); err != nil {
			yield(guard.Version{}, s.fail(ctx, "list versions of", key, err))
			return
		}
		s.l.calls.Done()
	}
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
	guard.ErrNotFound, guard.ErrNoBucket, guard.ErrPreconditionFailed, guard.ErrConflict,
	guard.ErrNotSent, guard.ErrDenied, guard.ErrUnsupported, guard.ErrRejected,
}

// failPut says of every error but a commit's that nothing changed: all the
// others come before it.
func (s *store) failPut(ctx context.Context, key string, err error) error {
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
	return s.fail(ctx, "put", key, err)
}

func isAnswer(err error) bool {
	for _, a := range answers {
		if errors.Is(err, a) {
			return true
		}
	}
	return false
}

// encode returns a request's headers and tags as JSON. JSON would replace what
// isn't UTF-8, and what is stored comes back exactly or is refused.
func encode(req guard.PutRequest) (headers, tags string, err error) {
	h := req.Headers
	texts := []string{h.ContentType, h.ContentEncoding, h.ContentDisposition, h.ContentLanguage, h.CacheControl, h.StorageClass}
	for _, m := range []map[string]string{h.Metadata, req.Tags} {
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
	ts, err := json.Marshal(req.Tags)
	return string(hs), string(ts), err
}
