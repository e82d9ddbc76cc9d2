package guard_test

import (
	"errors"
	"io"
	"testing"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/internal/mems3"
)

func TestGet(t *testing.T) {
	m := mems3.New()
	g := newGuard(m)
	mustPut(t, g, 3, "k", "bytes", &guard.PutOptions{Headers: guard.Headers{ContentType: "text/plain", Metadata: map[string]string{"a": "b"}}})
	m.Before = once("get", 1, errLost) // an error that passes is not seen
	info, body, err := newGuard(m).Get(t.Context(), "k", nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(body)
	if err != nil || string(b) != "bytes" || info.Record.Number != 3 || info.ContentType != "text/plain" || info.Metadata["a"] != "b" || info.Requests != 2 {
		t.Errorf("%q, %v, %+v", b, err, info)
	}
}

func TestReadsOfEveryState(t *testing.T) {
	m := mems3.New()
	g := newGuard(m)
	tomb := guard.Record{Issuer: testIssuer, Scope: "s", Number: 9, Sequence: 1, State: guard.Deleted}
	m.Overwrite("tombstone", "{}", map[string]string{guard.RecordKey: tomb.String()})
	m.Overwrite("unfenced", "x", nil)
	m.Overwrite("corrupt", "x", map[string]string{guard.RecordKey: "0"})
	for _, tt := range []struct {
		key       string
		stat, get error
	}{
		{"absent", guard.ErrNotFound, guard.ErrNotFound},
		{"tombstone", nil, guard.ErrNotFound},
		{"unfenced", nil, nil},
		{"corrupt", guard.ErrCorruptRecord, guard.ErrCorruptRecord},
		{"", guard.ErrInvalid, guard.ErrInvalid},
	} {
		info, err := g.Stat(t.Context(), tt.key)
		if !errors.Is(err, tt.stat) {
			t.Errorf("stat %s: %v", tt.key, err)
		}
		if tt.key == "tombstone" && (info.Record == nil || *info.Record != tomb) {
			t.Errorf("tombstone: %+v", info)
		}
		if tt.key == "unfenced" && info.Record != nil {
			t.Errorf("unfenced: %+v", info)
		}
		_, body, err := g.Get(t.Context(), tt.key, nil)
		if !errors.Is(err, tt.get) || (body == nil) != (err != nil) {
			t.Errorf("get %s: %v", tt.key, err)
		}
	}
}
