package audit_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/audit"
)

// Published sets are nothing to find, and what gc removed of them is no loss. A
// manifest that was deleted is.
func TestPublished(t *testing.T) {
	for versioning, want := range map[guard.Versioning]string{
		guard.VersioningOff: "", guard.VersioningOn: "info fence-lost, info fence-lost",
	} {
		t.Run(fmt.Sprint("versioning=", versioning), func(t *testing.T) {
			m := bucket(versioning)
			for n := range int64(3) {
				files := []guard.PublishFile{{Name: "a", Open: func() (guard.Body, func() error, error) {
					return guard.Bytes(nil), func() error { return nil }, nil
				}}}
				if _, err := newGuard(m).Publish(t.Context(), token(t, issuer, scope, n+1), "ds", files, nil); err != nil {
					t.Fatal(err)
				}
			}
			_, fs := run(t, m, audit.Options{})
			if kinds(fs) != "" {
				t.Errorf("found %s: %v", kinds(fs), fs)
			}
			for f, err := range newGuard(m).Garbage(t.Context(), "ds", &guard.GarbageOptions{Keep: -1}) {
				if err == nil {
					_, err = newGuard(m).Discard(t.Context(), f)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			_, fs = run(t, m, audit.Options{})
			if kinds(fs) != want {
				t.Errorf("found %s, want %s: %v", kinds(fs), want, fs)
			}
			for _, f := range fs {
				if !strings.HasPrefix(f.Detail, "a file of a published set was removed, as publish gc does: token ") {
					t.Errorf("%s", f)
				}
			}
			if versioning == guard.VersioningOff {
				return
			}
			// Another's record there, or no number's loss of its own, is as ever.
			plant(m, "ds/data/00000000000000000001-00000000000000000000000000000001/x", record(2))
			m.Remove("ds/data/00000000000000000001-00000000000000000000000000000001/x")
			m.Remove("ds/manifest.json")
			if _, fs = run(t, m, audit.Options{}); kinds(fs) != "violation fence-lost, "+want+", violation fence-lost" {
				t.Errorf("found %s: %v", kinds(fs), fs)
			}
		})
	}
}
