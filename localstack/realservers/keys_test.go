package realservers

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
)

// oddKeys are keys that a store, an SDK or a proxy might take for others.
var oddKeys = map[string]string{
	"lead":      "/lead",
	"lead two":  "//foo",
	"double":    "foo//bar",
	"dot dot":   "a/../b",
	"space":     "with space/a b ",
	"signs":     "a+b^c%d?e#f&g=h%2Fi",
	"unicode":   "dir/ü/cafe\u0301/\U0001F600",
	"longest":   strings.Repeat("0123456789abcde/", 63) + "0123456789abcdef",
	"long name": strings.Repeat("k", 1024),
	"too long":  strings.Repeat("k", 1025),
	"not UTF-8": "a\xffb",
}

// Case 24 through the whole guard: what is put, in one part or in several, is
// found, listed, read and deleted under that very key, or refused before
// anything is there.
func TestKeys(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	stores := map[string]func(*testing.T) guard.Store{
		"embedded": func(t *testing.T) guard.Store { return local(t).Store("bucket") },
	}
	for sdk, open := range sdks {
		stores[sdk] = func(t *testing.T) guard.Store { return open(t, m, newBucket(t, m)) }
	}
	// MinIO's names are those of files.
	everywhere, onMinIO := []string{"embedded", "aws", "minio-go"}, []string{"aws", "minio-go"}
	refused := map[string][]string{
		"too long": everywhere, "not UTF-8": everywhere, "double": onMinIO, "dot dot": onMinIO, "long name": onMinIO,
	}
	for name, open := range stores {
		for what, key := range oddKeys {
			for form, size := range map[string]int{"one part": 5, "parts": 6<<20 + 5} {
				t.Run(name+"/"+what+"/"+form, func(t *testing.T) {
					g := guard.New(open(t), nil)
					toks := take(t, local(t), "keys", 2)
					var want bytes.Buffer
					if _, err := want.ReadFrom(newPattern(24).body(int64(size)).Reader()); err != nil {
						t.Fatal(err)
					}
					_, err := g.PutStream(t.Context(), toks[0], key, bytes.NewReader(want.Bytes()), &guard.PutOptions{PartSize: guard.MinPart})
					listed := walk(t, g)
					if slices.Contains(refused[what], name) {
						if !errors.Is(err, guard.ErrRejected) && !errors.Is(err, guard.ErrInvalid) || len(listed) > 0 {
							t.Errorf("%v, listed %q", err, listed)
						}
						return
					}
					if err != nil {
						t.Fatal(err)
					}
					as := key
					if name != "embedded" {
						as = strings.TrimLeft(key, "/") // MinIO takes /lead for lead
					}
					if !slices.Equal(listed, []string{as}) {
						t.Errorf("listed %q", listed)
					}
					if info, err := g.Stat(t.Context(), key); err != nil || info.Record == nil || info.Size != int64(size) {
						t.Errorf("stat: %+v, %v", info, err)
					}
					if !bytes.Equal(read(t, g, key), want.Bytes()) {
						t.Error("get: other bytes")
					}
					to, err := os.Create(filepath.Join(t.TempDir(), "to"))
					if err != nil {
						t.Fatal(err)
					}
					defer to.Close()
					_, err = g.Download(t.Context(), key, to, &guard.DownloadOptions{PartSize: 1 << 20})
					if got, rerr := os.ReadFile(to.Name()); err != nil || rerr != nil || !bytes.Equal(got, want.Bytes()) {
						t.Errorf("download: %d bytes, %v, %v", len(got), err, rerr)
					}
					if res, err := g.Delete(t.Context(), toks[1], key, nil); err != nil || res.Outcome != guard.Removed {
						t.Errorf("delete: %+v, %v", res, err)
					}
					if listed := walk(t, g); len(listed) > 0 {
						t.Errorf("listed after the delete: %q", listed)
					}
					if _, _, err := g.Get(t.Context(), key, nil); !errors.Is(err, guard.ErrNotFound) {
						t.Errorf("get after the delete: %v", err)
					}
				})
			}
		}
	}
}

// walk returns the keys that g lists.
func walk(t *testing.T, g *guard.Guard) (keys []string) {
	t.Helper()
	for info, err := range g.Walk(t.Context(), "", nil) {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, info.Key)
	}
	return keys
}
