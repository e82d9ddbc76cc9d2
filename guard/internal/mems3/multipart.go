package mems3

import (
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/s3fence/s3fence/guard"
)

// An upload is a multipart upload under way.
type upload struct {
	guard.Upload
	req   guard.UploadRequest
	parts map[int]part
}

type part struct {
	etag string
	body []byte
}

const leastPart = 5 << 20

// CreateUpload implements [guard.Store].
func (s *Store) CreateUpload(ctx context.Context, key string, req guard.UploadRequest) (guard.Upload, error) {
	if err := check(ctx, key); err != nil {
		return guard.Upload{}, err
	}
	if err := s.before("create-upload", key); err != nil {
		return guard.Upload{}, err
	}
	if req.Checksum != "" && (guard.Checksum{Algorithm: req.Checksum}).NewHash() == nil {
		return guard.Upload{}, fmt.Errorf("checksum %q: %w", req.Checksum, guard.ErrRejected)
	}
	s.mu.Lock()
	s.begun++
	u := &upload{
		Upload: guard.Upload{Key: key, ID: fmt.Sprintf("upload-%d", s.begun), Checksum: req.Checksum, Initiated: time.Now()},
		req:    req, parts: make(map[int]part),
	}
	u.req.Headers.Metadata, u.req.Tags = maps.Clone(req.Headers.Metadata), maps.Clone(req.Tags)
	s.uploads = append(s.uploads, u)
	s.mu.Unlock()
	if err := s.after("create-upload", key); err != nil {
		return guard.Upload{}, err
	}
	return u.Upload, nil
}

// under returns the upload under way. The mutex is held.
func (s *Store) under(up guard.Upload) (*upload, error) {
	for _, u := range s.uploads {
		if u.ID == up.ID && u.Key == up.Key {
			return u, nil
		}
	}
	return nil, fmt.Errorf("upload %q of %s: %w", up.ID, up.Key, guard.ErrNoUpload)
}

// forget ends an upload. The mutex is held.
func (s *Store) forget(u *upload) {
	s.uploads = slices.DeleteFunc(s.uploads, func(o *upload) bool { return o == u })
}

// UploadPart implements [guard.Store].
func (s *Store) UploadPart(ctx context.Context, up guard.Upload, number int, body guard.Body) (guard.Part, error) {
	if err := check(ctx, up.Key); err != nil {
		return guard.Part{}, err
	}
	b, err := read(body)
	if err != nil {
		return guard.Part{}, err
	}
	return s.part("upload-part", up, number, func() ([]byte, error) { return b, nil })
}

// CopyPart implements [guard.Store].
func (s *Store) CopyPart(ctx context.Context, up guard.Upload, number int, src guard.CopySource) (guard.Part, error) {
	if err := check(ctx, up.Key); err != nil {
		return guard.Part{}, err
	}
	if src.ETag == "" {
		return guard.Part{}, errors.Join(guard.ErrRejected, errors.New("a copy of no particular ETag"))
	}
	return s.part("copy-part", up, number, func() ([]byte, error) {
		v, err := s.find(src.Key, src.VersionID)
		switch end := src.Offset + src.Size; {
		case err != nil:
			return nil, err
		case v.ETag != src.ETag:
			return nil, fmt.Errorf("%s: %w", src.Key, guard.ErrPreconditionFailed)
		case src.Size == 0:
			return v.Body, nil
		case src.Offset < 0 || src.Size < 0 || end > int64(len(v.Body)):
			return nil, fmt.Errorf("%s: bytes %d to %d of %d: %w", src.Key, src.Offset, end, len(v.Body), guard.ErrRejected)
		default:
			return v.Body[src.Offset:end], nil
		}
	})
}

// part makes a part of what bytes returns, which is called with the mutex held.
func (s *Store) part(op string, up guard.Upload, number int, bytes func() ([]byte, error)) (guard.Part, error) {
	if err := s.before(op, up.Key); err != nil {
		return guard.Part{}, err
	}
	p, err := s.addPart(up, number, bytes)
	if err == nil {
		err = s.after(op, up.Key)
	}
	if err != nil {
		return guard.Part{}, err
	}
	return p, nil
}

func (s *Store) addPart(up guard.Upload, number int, bytes func() ([]byte, error)) (guard.Part, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u, err := s.under(up)
	if err != nil {
		return guard.Part{}, err
	}
	if number < 1 || number > 10000 {
		return guard.Part{}, fmt.Errorf("part number %d: %w", number, guard.ErrRejected)
	}
	b, err := bytes()
	if err != nil {
		return guard.Part{}, err
	}
	_, sum := s.sum(u.req.SSE, b)
	p := guard.Part{Number: number, ETag: quote(sum, ""), Size: int64(len(b))}
	if u.Checksum != "" {
		p.Checksum = checksum(u.Checksum, b)
	}
	u.parts[number] = part{etag: p.ETag, body: b}
	return p, nil
}

// CompleteUpload implements [guard.Store].
func (s *Store) CompleteUpload(ctx context.Context, up guard.Upload, req guard.CompleteRequest) (guard.PutResult, error) {
	if err := req.Condition.Check(); err != nil {
		return guard.PutResult{}, err
	}
	if err := check(ctx, up.Key); err != nil {
		return guard.PutResult{}, err
	}
	s.mu.Lock()
	s.Conditions = append(s.Conditions, req.Condition)
	s.mu.Unlock()
	if err := s.before("complete", up.Key); err != nil {
		return guard.PutResult{}, err
	}
	res, err := s.complete(up, req)
	if err == nil {
		err = s.after("complete", up.Key)
	}
	if err != nil {
		return guard.PutResult{}, err
	}
	return res, nil
}

func (s *Store) complete(up guard.Upload, req guard.CompleteRequest) (guard.PutResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u, err := s.under(up)
	if err != nil {
		return guard.PutResult{}, err
	}
	body, sums, err := s.assemble(u, req.Parts)
	if err != nil {
		return guard.PutResult{}, err
	}
	algorithm := u.Checksum
	if algorithm == "" {
		algorithm = "CRC32C"
	}
	whole := checksum(algorithm, body)
	if req.Checksum != (guard.Checksum{}) && (u.Checksum == "" || req.Checksum != whole) {
		return guard.PutResult{}, fmt.Errorf("%s: checksum %+v, the parts' is %+v: %w", up.Key, req.Checksum, whole, guard.ErrRejected)
	}
	if err := s.holds(up.Key, req.Condition); err != nil {
		if s.ForgetRefused {
			s.forget(u)
		}
		return guard.PutResult{}, err
	}
	s.forget(u)
	sse, sum := s.sum(u.req.SSE, sums)
	return s.become(up.Key, Written{
		Object: guard.Object{
			ETag: quote(sum, fmt.Sprintf("-%d", len(req.Parts))),
			SSE:  sse, Headers: u.req.Headers, Checksum: whole,
		},
		Body: body, Tags: u.req.Tags,
	}), nil
}

// assemble returns the bytes of the parts, and the MD5 sums of each in a row.
func (s *Store) assemble(u *upload, parts []guard.Part) (body, sums []byte, err error) {
	if len(parts) == 0 {
		return nil, nil, fmt.Errorf("%s: an upload of no parts: %w", u.Key, guard.ErrRejected)
	}
	for i, p := range parts {
		have, ok := u.parts[p.Number]
		switch {
		case i > 0 && p.Number <= parts[i-1].Number:
			return nil, nil, fmt.Errorf("%s: part %d after part %d: %w", u.Key, p.Number, parts[i-1].Number, guard.ErrRejected)
		case !ok || have.etag != p.ETag:
			return nil, nil, fmt.Errorf("%s: no part %d with ETag %s: %w", u.Key, p.Number, p.ETag, guard.ErrRejected)
		case i < len(parts)-1 && len(have.body) < leastPart && !s.SmallParts:
			return nil, nil, fmt.Errorf("%s: part %d has %d bytes: %w", u.Key, p.Number, len(have.body), guard.ErrRejected)
		}
		body = append(body, have.body...)
		sum := md5.Sum(have.body)
		sums = append(sums, sum[:]...)
	}
	return body, sums, nil
}

// AbortUpload implements [guard.Store].
func (s *Store) AbortUpload(ctx context.Context, up guard.Upload) error {
	if err := check(ctx, up.Key); err != nil {
		return err
	}
	if err := s.before("abort", up.Key); err != nil {
		return err
	}
	s.mu.Lock()
	u, err := s.under(up)
	if err == nil {
		s.forget(u)
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return s.after("abort", up.Key)
}

// Uploads implements [guard.Store]. It lists what there was when it began.
func (s *Store) Uploads(ctx context.Context, prefix string) iter.Seq2[guard.Upload, error] {
	return func(yield func(guard.Upload, error) bool) {
		err := ctx.Err()
		if err == nil {
			err = s.before("uploads", prefix)
		}
		if err != nil {
			yield(guard.Upload{}, err)
			return
		}
		s.mu.Lock()
		uploads := slices.Clone(s.uploads)
		s.mu.Unlock()
		for _, u := range uploads {
			if !strings.HasPrefix(u.Key, prefix) {
				continue
			}
			if err := ctx.Err(); err != nil {
				yield(guard.Upload{}, err)
				return
			}
			if !yield(guard.Upload{Key: u.Key, ID: u.ID, Initiated: u.Initiated}, nil) {
				return
			}
		}
	}
}
