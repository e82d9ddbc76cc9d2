// Package mems3 is an S3 bucket in memory, for tests: what S3 does and the
// embedded store does not. ETags are the MD5 of the bytes, unless SSE-KMS is
// asked for or the bucket is set otherwise; versions are kept where they are
// turned on; a delete then leaves a marker. Hooks are where tests put faults.
package mems3

import (
	"context"
	"crypto/md5"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/s3fence/s3fence/guard"
)

// A Store is one bucket. Make it with [New]. Its methods are safe for
// concurrent use; its fields are set, and read, while no request is under way
// or from a hook.
type Store struct {
	// Bucket is what Settings answers, and what the bucket then does.
	Bucket guard.Settings

	// Before is called with each request ("head", "get", "put", "versions")
	// before it is decided; an error is the answer. After is called once a
	// Put was applied; an error replaces the answer.
	Before, After func(op, key string) error

	// Puts and Heads count the requests, those that failed included.
	Puts, Heads int
	// Conditions are those of each Put, in order.
	Conditions []guard.Condition

	mu      sync.Mutex
	objects map[string][]version // oldest first
	written map[string][]Written
	next    int
}

// Written is one write that became the object.
type Written struct {
	guard.Object
	Body []byte
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
func (s *Store) Settings(context.Context) (guard.Settings, error) { return s.Bucket, nil }

func (s *Store) before(op, key string) error {
	if s.Before == nil {
		return nil
	}
	return s.Before(op, key)
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
func (s *Store) Get(ctx context.Context, key string) (guard.Object, io.ReadCloser, error) {
	if err := ctx.Err(); err != nil {
		return guard.Object{}, nil, err
	}
	if err := s.before("get", key); err != nil {
		return guard.Object{}, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.find(key, "")
	if err != nil {
		return v.Object, nil, err
	}
	return v.Object, io.NopCloser(strings.NewReader(string(v.Body))), nil
}

// Put implements [guard.Store].
func (s *Store) Put(ctx context.Context, key string, req guard.PutRequest) (guard.PutResult, error) {
	if err := req.Condition.Check(); err != nil {
		return guard.PutResult{}, err
	}
	if err := ctx.Err(); err != nil {
		return guard.PutResult{}, fmt.Errorf("%w: %w", guard.ErrNotSent, err)
	}
	body, err := io.ReadAll(req.Body.Reader())
	if err != nil || int64(len(body)) != req.Body.Size() {
		return guard.PutResult{}, fmt.Errorf("body cut short: %v", err)
	}
	s.mu.Lock()
	s.Puts++
	s.Conditions = append(s.Conditions, req.Condition)
	s.mu.Unlock()
	if err := s.before("put", key); err != nil {
		return guard.PutResult{}, err
	}
	res, err := s.apply(key, req, body)
	if err == nil && s.After != nil {
		if err := s.After("put", key); err != nil {
			return guard.PutResult{}, err
		}
	}
	return res, err
}

func (s *Store) apply(key string, req guard.PutRequest, body []byte) (guard.PutResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.newest(key)
	live := old != nil && !old.marker
	switch etag := req.Condition.ETag(); {
	case req.Condition.Absent() && live:
		return guard.PutResult{}, fmt.Errorf("%s: %w", key, guard.ErrPreconditionFailed)
	case etag != "" && !live:
		return guard.PutResult{}, fmt.Errorf("%s: %w", key, guard.ErrNotFound)
	case etag != "" && etag != old.ETag:
		return guard.PutResult{}, fmt.Errorf("%s: %w", key, guard.ErrPreconditionFailed)
	}
	sse := req.SSE
	if sse == "" {
		sse = s.Bucket.DefaultSSE
	}
	sum := md5.Sum(body)
	if s.Bucket.UniqueETags || sse == "aws:kms" || sse == "aws:kms:dsse" {
		rand.Read(sum[:]) // never fails
	}
	checksum := guard.Checksum{Algorithm: "CRC32C"}
	h := checksum.NewHash()
	h.Write(body)
	checksum.Value = base64.StdEncoding.EncodeToString(h.Sum(nil))
	s.next++
	v := version{id: strconv.Itoa(s.next), Written: Written{
		Object: guard.Object{
			ETag: `"` + hex.EncodeToString(sum[:]) + `"`, Size: int64(len(body)),
			SSE: sse, Headers: req.Headers, Checksum: checksum,
		},
		Body: body,
	}}
	v.Metadata = maps.Clone(req.Headers.Metadata)
	if s.Bucket.Versioning == guard.VersioningOn {
		v.VersionID = v.id
		s.objects[key] = append(s.objects[key], v)
	} else {
		s.objects[key] = []version{v}
	}
	s.written[key] = append(s.written[key], v.Written)
	return guard.PutResult{ETag: v.ETag, VersionID: v.VersionID, SSE: sse}, nil
}

// Versions implements [guard.Store].
func (s *Store) Versions(_ context.Context, key string) iter.Seq2[guard.Version, error] {
	return func(yield func(guard.Version, error) bool) {
		if err := s.before("versions", key); err != nil {
			yield(guard.Version{}, err)
			return
		}
		s.mu.Lock()
		vs := s.objects[key]
		s.mu.Unlock()
		for i := len(vs) - 1; i >= 0; i-- {
			v := guard.Version{ID: vs[i].id, ETag: vs[i].ETag, DeleteMarker: vs[i].marker, Latest: i == len(vs)-1}
			if !yield(v, nil) {
				return
			}
		}
	}
}

// Remove deletes around the guard.
func (s *Store) Remove(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Bucket.Versioning == guard.VersioningOn {
		s.next++
		s.objects[key] = append(s.objects[key], version{id: strconv.Itoa(s.next), marker: true})
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
