package guard_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/internal/mems3"
)

// An asked store notes the checksums that uploads are begun with, and refuses
// to begin those that refuse says.
type asked struct {
	*mems3.Store
	refuse func(guard.UploadRequest) error

	mu   sync.Mutex
	sums []string
}

func (s *asked) CreateUpload(ctx context.Context, key string, req guard.UploadRequest) (guard.Upload, error) {
	s.mu.Lock()
	s.sums = append(s.sums, req.Checksum)
	s.mu.Unlock()
	if s.refuse != nil {
		if err := s.refuse(req); err != nil {
			return guard.Upload{}, err
		}
	}
	return s.Store.CreateUpload(ctx, key, req)
}

func TestUploadChecksum(t *testing.T) {
	withOne := func(err error) func(guard.UploadRequest) error {
		return func(req guard.UploadRequest) error {
			if req.Checksum != "" {
				return fmt.Errorf("%s: %w", req.Checksum, err)
			}
			return nil
		}
	}
	for _, tt := range []struct {
		name   string
		refuse func(guard.UploadRequest) error
		want   []string // of two uploads
		err    error
	}{
		{"taken", nil, []string{"CRC32C", "CRC32C"}, nil},
		{"unsupported", withOne(guard.ErrUnsupported), []string{"CRC32C", "", ""}, nil},
		{"rejected", withOne(guard.ErrRejected), []string{"CRC32C", "", ""}, nil},
		{"denied", withOne(guard.ErrDenied), []string{"CRC32C", "CRC32C"}, guard.ErrDenied},
		{"rejected without, too", func(guard.UploadRequest) error { return guard.ErrRejected }, []string{"CRC32C", "", "CRC32C", ""}, guard.ErrRejected},
	} {
		for _, f := range uploadForms(t) {
			m := &asked{Store: mems3.New(), refuse: tt.refuse}
			g := newGuard(m)
			for _, key := range []string{"one", "two"} {
				b := noise(4, 17*mib)
				if _, err := f.put(g, token(t, 5), key, b, nil); !errors.Is(err, tt.err) || err == nil && m.Body(key) != string(b) {
					t.Errorf("%s %s %s: %v", f.name, tt.name, key, err)
				}
			}
			if !slices.Equal(m.sums, tt.want) {
				t.Errorf("%s %s: uploads began with %q, want %q", f.name, tt.name, m.sums, tt.want)
			}
			noUploads(t, m.Store)
		}
	}
}

// MinIO copies no parts into an upload that has a checksum.
func TestAdoptionHasNoChecksum(t *testing.T) {
	m := &asked{Store: mems3.New()}
	if _, err := m.Put(t.Context(), "k", guard.PutRequest{Condition: guard.IfAbsent(), Body: guard.Bytes(noise(5, 7*mib))}); err != nil {
		t.Fatal(err)
	}
	if _, err := newGuard(m).Adopt(t.Context(), token(t, 5), "k", nil); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(m.sums, []string{""}) {
		t.Errorf("uploads began with %q", m.sums)
	}
}
