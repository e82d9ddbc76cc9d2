package guard_test

import (
	"context"
	"encoding/base64"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

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

// A cutting store ends each of its answers after some bytes.
type cutting struct {
	guard.Store
	after   int64
	end     error               // of an answer
	between func()              // before each further answer
	change  func(*guard.Object) // of the first answer
	answers int
	at      bool // the end comes with the last bytes
}

func (c *cutting) Get(ctx context.Context, key string, o guard.ReadOptions) (guard.Object, io.ReadCloser, error) {
	c.answers++
	if c.answers > 1 && c.between != nil {
		c.between()
	}
	obj, body, err := c.Store.Get(ctx, key, o)
	if err != nil {
		return obj, nil, err
	}
	if c.answers == 1 && c.change != nil {
		c.change(&obj)
	}
	r := io.MultiReader(io.LimitReader(body, c.after), iotest.ErrReader(c.end))
	if c.at {
		r = iotest.DataErrReader(r)
	}
	return obj, io.NopCloser(r), nil
}

func TestGetResumes(t *testing.T) {
	text := string(noise(4, 1000))
	crc := guard.Checksum{Algorithm: "CRC32"}
	h := crc.NewHash()
	h.Write([]byte(text))
	crc.Value = base64.StdEncoding.EncodeToString(h.Sum(nil))
	reset := errors.New("connection reset")
	for _, tt := range []struct {
		name    string
		resume  bool
		end     error
		change  func(*guard.Object)
		between func(m *mems3.Store)
		read    int
		answers int
		err     error
		says    string
	}{
		{"reset", true, reset, nil, nil, 1000, 4, nil, ""},
		{"short", true, io.EOF, nil, nil, 1000, 4, nil, ""},
		{"right", true, reset, func(o *guard.Object) { o.Checksum = crc }, nil, 1000, 4, nil, ""},
		{"damaged", true, reset, func(o *guard.Object) { o.Checksum = guard.Checksum{Algorithm: "CRC32", Value: "AAAAAA=="} }, nil, 1000, 4, nil, "the bytes are not what was stored"},
		{"replaced", true, reset, nil, func(m *mems3.Store) { m.Overwrite("k", "other", nil) }, 300, 2, guard.ErrPreconditionFailed, "replaced after 300 of 1000 bytes"},
		{"denied", true, reset, nil, func(m *mems3.Store) { m.Before = always("get", guard.ErrDenied) }, 300, 2, guard.ErrDenied, ""},
		{"not asked to", false, reset, nil, nil, 300, 1, reset, ""},
	} {
		for _, at := range []bool{false, true} {
			m := mems3.New()
			mustPut(t, newGuard(m), 1, "k", text, nil)
			c := &cutting{Store: m, after: 300, end: tt.end, change: tt.change, at: at}
			if tt.between != nil {
				c.between = func() { tt.between(m) }
			}
			_, body, err := newGuard(c).Get(t.Context(), "k", &guard.GetOptions{Resume: tt.resume})
			if err != nil {
				t.Fatal(err)
			}
			defer body.Close()
			got, err := io.ReadAll(body)
			if string(got) != text[:tt.read] || c.answers != tt.answers {
				t.Errorf("%s, %t: %d bytes in %d answers, want %d in %d", tt.name, at, len(got), c.answers, tt.read, tt.answers)
			}
			if (err == nil) != (tt.err == nil && tt.says == "") || tt.err != nil && !errors.Is(err, tt.err) || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%s, %t: %v, want %v, %s", tt.name, at, err, tt.err, tt.says)
			}
		}
	}
}
