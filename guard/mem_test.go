package guard_test

import (
	"context"
	"crypto/md5"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"iter"
	"maps"
	"strconv"
	"strings"
	"sync"

	"github.com/s3fence/s3fence/guard"
)

// memStore is an S3 bucket in memory, with what S3 does and an embedded store
// does not: ETags that are the MD5 of the bytes unless SSE-KMS is asked for,
// versions, delete markers. Its hooks are where tests put faults.
type memStore struct {
	mu       sync.Mutex
	objects  map[string][]memVersion // oldest first
	settings guard.Settings
	next     int

	// before is called with each request before it is decided; an error is
	// the answer. after is called once it was applied; an error replaces the answer.
	before, after func(op, key string) error
	puts, heads   int
	// conditions are those of each Put, in order.
	conditions []guard.Condition
}

type memVersion struct {
	id     string
	marker bool
	body   []byte
	obj    guard.Object
}

func newMemStore() *memStore {
	return &memStore{
		objects:  make(map[string][]memVersion),
		settings: guard.Settings{Versioning: guard.VersioningOff},
	}
}

func (m *memStore) hooks(op, key string) (before, after error) {
	if m.before != nil {
		before = m.before(op, key)
	}
	if before == nil && m.after != nil {
		after = m.after(op, key)
	}
	return before, after
}

func (m *memStore) URL(key string) string { return "s3://mem/" + key }

func (m *memStore) Settings(context.Context) (guard.Settings, error) { return m.settings, nil }

// newest returns the newest version, nil when the key was never written.
func (m *memStore) newest(key string) *memVersion {
	if vs := m.objects[key]; len(vs) > 0 {
		return &vs[len(vs)-1]
	}
	return nil
}

func (m *memStore) find(key, version string) (memVersion, error) {
	v := m.newest(key)
	if version != "" {
		v = nil
		for i := range m.objects[key] {
			if m.objects[key][i].id == version {
				v = &m.objects[key][i]
			}
		}
	}
	if v == nil || v.marker {
		return memVersion{obj: guard.Object{DeleteMarker: v != nil}}, fmt.Errorf("%s: %w", key, guard.ErrNotFound)
	}
	return *v, nil
}

func (m *memStore) Head(ctx context.Context, key string, opts guard.HeadOptions) (guard.Object, error) {
	m.mu.Lock()
	m.heads++
	m.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return guard.Object{}, err
	}
	before, _ := m.hooks("head", key)
	if before != nil {
		return guard.Object{}, before
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	v, err := m.find(key, opts.VersionID)
	if !opts.Checksum {
		v.obj.Checksum = guard.Checksum{}
	}
	return v.obj, err
}

func (m *memStore) Get(ctx context.Context, key string) (guard.Object, io.ReadCloser, error) {
	if err := ctx.Err(); err != nil {
		return guard.Object{}, nil, err
	}
	if before, _ := m.hooks("get", key); before != nil {
		return guard.Object{}, nil, before
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	v, err := m.find(key, "")
	if err != nil {
		return v.obj, nil, err
	}
	return v.obj, io.NopCloser(strings.NewReader(string(v.body))), nil
}

func (m *memStore) Put(ctx context.Context, key string, req guard.PutRequest) (guard.PutResult, error) {
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
	m.mu.Lock()
	m.puts++
	m.conditions = append(m.conditions, req.Condition)
	m.mu.Unlock()
	if m.before != nil {
		if err := m.before("put", key); err != nil {
			return guard.PutResult{}, err
		}
	}
	res, err := m.apply(key, req, body)
	if err == nil && m.after != nil {
		if err := m.after("put", key); err != nil {
			return guard.PutResult{}, err
		}
	}
	return res, err
}

func (m *memStore) apply(key string, req guard.PutRequest, body []byte) (guard.PutResult, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.newest(key)
	live := old != nil && !old.marker
	switch etag := req.Condition.ETag(); {
	case req.Condition.Absent() && live:
		return guard.PutResult{}, fmt.Errorf("%s: %w", key, guard.ErrPreconditionFailed)
	case etag != "" && !live:
		return guard.PutResult{}, fmt.Errorf("%s: %w", key, guard.ErrNotFound)
	case etag != "" && etag != old.obj.ETag:
		return guard.PutResult{}, fmt.Errorf("%s: %w", key, guard.ErrPreconditionFailed)
	}
	sse := req.SSE
	if sse == "" {
		sse = m.settings.DefaultSSE
	}
	sum := md5.Sum(body)
	if m.settings.UniqueETags || sse == "aws:kms" || sse == "aws:kms:dsse" {
		if _, err := rand.Read(sum[:]); err != nil {
			return guard.PutResult{}, err
		}
	}
	checksum := guard.Checksum{Algorithm: "CRC32C"}
	h := checksum.NewHash()
	h.Write(body)
	checksum.Value = base64Of(h.Sum(nil))
	m.next++
	v := memVersion{
		id:   strconv.Itoa(m.next),
		body: body,
		obj: guard.Object{
			ETag: `"` + hex.EncodeToString(sum[:]) + `"`, Size: int64(len(body)),
			SSE: sse, Headers: req.Headers, Checksum: checksum,
		},
	}
	v.obj.Metadata = maps.Clone(req.Headers.Metadata)
	if m.settings.Versioning == guard.VersioningOn {
		v.obj.VersionID = v.id
		m.objects[key] = append(m.objects[key], v)
	} else {
		m.objects[key] = []memVersion{v}
	}
	return guard.PutResult{ETag: v.obj.ETag, VersionID: v.obj.VersionID, SSE: sse}, nil
}

func (m *memStore) Versions(_ context.Context, key string) iter.Seq2[guard.Version, error] {
	return func(yield func(guard.Version, error) bool) {
		if before, _ := m.hooks("versions", key); before != nil {
			yield(guard.Version{}, before)
			return
		}
		m.mu.Lock()
		vs := m.objects[key]
		m.mu.Unlock()
		for i := len(vs) - 1; i >= 0; i-- {
			v := guard.Version{ID: vs[i].id, ETag: vs[i].obj.ETag, DeleteMarker: vs[i].marker, Latest: i == len(vs)-1}
			if !yield(v, nil) {
				return
			}
		}
	}
}

// remove deletes around the guard.
func (m *memStore) remove(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.settings.Versioning == guard.VersioningOn {
		m.next++
		m.objects[key] = append(m.objects[key], memVersion{id: strconv.Itoa(m.next), marker: true})
	} else {
		delete(m.objects, key)
	}
}

// overwrite writes around the guard.
func (m *memStore) overwrite(key, body string, metadata map[string]string) {
	m.mu.Lock()
	cond := guard.IfAbsent()
	if v := m.newest(key); v != nil && !v.marker {
		cond = guard.IfMatch(v.obj.ETag)
	}
	m.mu.Unlock()
	_, err := m.apply(key, guard.PutRequest{Condition: cond, Headers: guard.Headers{Metadata: metadata}}, []byte(body))
	if err != nil {
		panic(err)
	}
}

func (m *memStore) body(key string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, err := m.find(key, "")
	if err != nil {
		return "(absent)"
	}
	return string(v.body)
}
