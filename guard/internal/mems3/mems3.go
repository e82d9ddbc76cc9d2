// Package mems3 is an S3 bucket in memory, for tests: what S3 does and the
// embedded store does not. ETags are the MD5 of the bytes, unless SSE-KMS is
// asked for or the bucket is set otherwise; versions are kept where they are
// turned on; a delete then leaves a marker. Multipart uploads are S3's too, the
// ETag of parts included. Hooks are where tests put faults.
package mems3

import (
	"context"
	"crypto/md5"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/s3fence/s3fence/guard"
)

// A Store is one bucket. Make it with [New]. Its methods are safe for
// concurrent use; its fields are set, and read, while no request is under way
// or from a hook.
type Store struct {
	// Bucket is what Settings answers, and what the bucket then does.
	Bucket guard.Settings

	// SmallParts allows every part of an upload to be under S3's 5 MiB, which
	// are refused at the completion otherwise.
	SmallParts bool
	// ForgetRefused throws away an upload whose completion was refused by its
	// condition, as AWS does after some conflicts. Otherwise it stays.
	ForgetRefused bool
	// MD5UnderKMS makes the ETag the MD5 of the bytes under SSE-KMS, too.
	MD5UnderKMS bool
	// ListsMetadata has List give the metadata that it is asked for.
	ListsMetadata bool

	// Before is called with each request ("head", "get", "put", "list", "tags",
	// "create-upload", "upload-part", "copy-part", "complete", "abort",
	// "uploads", "delete") before it is decided; an error is the answer. After is
	// called once a put, a delete or a request of an upload was applied; an error
	// replaces the answer. The key of a "list" or "uploads" is the prefix.
	Before, After func(op, key string) error

	// Puts and Heads count the requests, those that failed included.
	Puts, Heads int
	// Conditions are those of each Put and CompleteUpload, in order.
	Conditions []guard.Condition

	mu      sync.Mutex
	objects map[string][]version // oldest first
	written map[string][]Written
	next    int
	uploads []*upload // oldest first
	begun   int
}

// Written is one write that became the object.
type Written struct {
	guard.Object
	Body []byte
	Tags map[string]string
}

type version struct {
	id     string
	marker bool
	Written
}

// New returns an empty bucket that keeps no versions.
func New() *Store {
	return &Store{
		Bucket:  guard.Settings{Versioning: guard.VersioningOff},
		objects: make(map[string][]version),
		written: make(map[string][]Written),
	}
}

// URL implements [guard.Store].
func (s *Store) URL(key string) string { return "s3://mem/" + key }

// Settings implements [guard.Store].
func (s *Store) Settings(ctx context.Context) (guard.Settings, error) { return s.Bucket, ctx.Err() }

func (s *Store) before(op, key string) error {
	if s.Before == nil {
		return nil
	}
	return s.Before(op, key)
}

func (s *Store) after(op, key string) error {
	if s.After == nil {
		return nil
	}
	return s.After(op, key)
}

// check is what is refused of a key before anything is sent.
func check(ctx context.Context, key string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", guard.ErrNotSent, err)
	}
	if key == "" || len(key) > 1024 || !utf8.ValidString(key) {
		return fmt.Errorf("key %.20q: %w", key, guard.ErrRejected)
	}
	return nil
}

func read(b guard.Body) ([]byte, error) {
	body, err := io.ReadAll(b.Reader())
	if err != nil || int64(len(body)) != b.Size() {
		return nil, fmt.Errorf("body cut short: %v", err)
	}
	return body, nil
}

// newest returns the newest version, nil when the key was never written.
func (s *Store) newest(key string) *version {
	if vs := s.objects[key]; len(vs) > 0 {
		return &vs[len(vs)-1]
	}
	return nil
}

// find returns a live version, the newest if none is named.
func (s *Store) find(key, id string) (version, error) {
	v := s.newest(key)
	if id != "" {
		v = nil
		for i := range s.objects[key] {
			if s.objects[key][i].id == id {
				v = &s.objects[key][i]
			}
		}
	}
	if v == nil || v.marker {
		absent := version{Written: Written{Object: guard.Object{DeleteMarker: v != nil}}}
		return absent, fmt.Errorf("%s: %w", key, guard.ErrNotFound)
	}
	return *v, nil
}

// Head implements [guard.Store].
func (s *Store) Head(ctx context.Context, key string, opts guard.HeadOptions) (guard.Object, error) {
	s.mu.Lock()
	s.Heads++
	s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return guard.Object{}, err
	}
	if err := s.before("head", key); err != nil {
		return guard.Object{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.find(key, opts.VersionID)
	if !opts.Checksum {
		v.Checksum = guard.Checksum{}
	}
	return v.Object, err
}

// Get implements [guard.Store].
func (s *Store) Get(ctx context.Context, key string, opts guard.ReadOptions) (guard.Object, io.ReadCloser, error) {
	if err := ctx.Err(); err != nil {
		return guard.Object{}, nil, err
	}
	if err := s.before("get", key); err != nil {
		return guard.Object{}, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.find(key, opts.VersionID)
	switch size := int64(len(v.Body)); {
	case err != nil:
		return v.Object, nil, err
	case opts.ETag != "" && opts.ETag != v.ETag:
		return guard.Object{}, nil, fmt.Errorf("%s: %w", key, guard.ErrPreconditionFailed)
	case !opts.Whole() && opts.Offset >= size:
		return guard.Object{}, nil, fmt.Errorf("%s: bytes from %d of %d: %w", key, opts.Offset, size, guard.ErrRejected)
	case opts.Size == 0 || opts.Size > size-opts.Offset:
		opts.Size = size - opts.Offset
	}
	return v.Object, io.NopCloser(strings.NewReader(string(v.Body[opts.Offset : opts.Offset+opts.Size]))), nil
}

// Put implements [guard.Store].
func (s *Store) Put(ctx context.Context, key string, req guard.PutRequest) (guard.PutResult, error) {
	if err := req.Condition.Check(); err != nil {
		return guard.PutResult{}, err
	}
	if err := check(ctx, key); err != nil {
		return guard.PutResult{}, err
	}
	body, err := read(req.Body)
	if err != nil {
		return guard.PutResult{}, err
	}
	s.mu.Lock()
	s.Puts++
	s.Conditions = append(s.Conditions, req.Condition)
	s.mu.Unlock()
	if err := s.before("put", key); err != nil {
		return guard.PutResult{}, err
	}
	res, err := s.apply(key, req, body)
	if err == nil {
		err = s.after("put", key)
	}
	if err != nil {
		return guard.PutResult{}, err
	}
	return res, nil
}

func (s *Store) apply(key string, req guard.PutRequest, body []byte) (guard.PutResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.holds(key, req.Condition); err != nil {
		return guard.PutResult{}, err
	}
	sse, sum := s.sum(req.SSE, body)
	return s.become(key, Written{
		Object: guard.Object{
			ETag: quote(sum, ""), SSE: sse, Headers: req.Headers, Checksum: checksum("CRC32C", body),
		},
		Body: body, Tags: req.Tags,
	}), nil
}

// holds says what is wrong with a condition.
func (s *Store) holds(key string, c guard.Condition) error {
	old := s.newest(key)
	live := old != nil && !old.marker
	switch etag := c.ETag(); {
	case c.Absent() && live:
		return fmt.Errorf("%s: %w", key, guard.ErrPreconditionFailed)
	case etag != "" && !live:
		return fmt.Errorf("%s: %w", key, guard.ErrNotFound)
	case etag != "" && etag != old.ETag:
		return fmt.Errorf("%s: %w", key, guard.ErrPreconditionFailed)
	}
	return nil
}

// sum is the hash that is the ETag of b under the encryption that was asked
// for, and the encryption.
func (s *Store) sum(sse string, b []byte) (string, [md5.Size]byte) {
	if sse == "" {
		sse = s.Bucket.DefaultSSE
	}
	sum := md5.Sum(b)
	if s.Bucket.UniqueETags || !s.MD5UnderKMS && (sse == "aws:kms" || sse == "aws:kms:dsse") {
		rand.Read(sum[:]) // never fails
	}
	return sse, sum
}

func quote(sum [md5.Size]byte, suffix string) string {
	return `"` + hex.EncodeToString(sum[:]) + suffix + `"`
}

func checksum(algorithm string, body []byte) guard.Checksum {
	c := guard.Checksum{Algorithm: algorithm}
	h := c.NewHash()
	h.Write(body)
	c.Value = base64.StdEncoding.EncodeToString(h.Sum(nil))
	return c
}

// become makes w the object.
func (s *Store) become(key string, w Written) guard.PutResult {
	s.next++
	v := version{id: strconv.Itoa(s.next), Written: w}
	v.Size = int64(len(w.Body))
	v.LastModified = time.Now()
	v.Metadata = maps.Clone(w.Metadata)
	v.Tags = maps.Clone(w.Tags)
	if s.Bucket.Versioning == guard.VersioningOn {
		v.VersionID = v.id
		s.objects[key] = append(s.objects[key], v)
	} else {
		s.objects[key] = []version{v}
	}
	s.written[key] = append(s.written[key], v.Written)
	return guard.PutResult{ETag: v.ETag, VersionID: v.VersionID, SSE: v.SSE}
}

// Tags implements [guard.Store].
func (s *Store) Tags(ctx context.Context, key, versionID string) (map[string]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := s.before("tags", key); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.find(key, versionID)
	return maps.Clone(v.Tags), err
}

// Delete implements [guard.Store].
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := check(ctx, key); err != nil {
		return err
	}
	if err := s.before("delete", key); err != nil {
		return err
	}
	s.Remove(key)
	return s.after("delete", key)
}

// Remove deletes around the guard.
func (s *Store) Remove(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Bucket.Versioning == guard.VersioningOn {
		s.next++
		v := version{id: strconv.Itoa(s.next), marker: true}
		v.LastModified = time.Now()
		s.objects[key] = append(s.objects[key], v)
	} else {
		delete(s.objects, key)
	}
}

// Overwrite writes around the guard.
func (s *Store) Overwrite(key, body string, metadata map[string]string) {
	s.mu.Lock()
	cond := guard.IfAbsent()
	if v := s.newest(key); v != nil && !v.marker {
		cond = guard.IfMatch(v.ETag)
	}
	s.mu.Unlock()
	_, err := s.apply(key, guard.PutRequest{Condition: cond, Headers: guard.Headers{Metadata: metadata}}, []byte(body))
	if err != nil {
		panic(err)
	}
}

// Body returns what the key holds, "(absent)" when nothing.
func (s *Store) Body(key string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.find(key, "")
	if err != nil {
		return "(absent)"
	}
	return string(v.Body)
}

// Written returns every write that ever became the object, oldest first, also
// where the bucket keeps no versions.
func (s *Store) Written(key string) []Written {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.written[key])
}
