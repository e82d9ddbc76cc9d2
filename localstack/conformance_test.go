package localstack_test

import (
	"fmt"
	"testing"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/storetest"
	"github.com/s3fence/s3fence/issuer/issuertest"
	"github.com/s3fence/s3fence/localstack"
)

func openLocal(t *testing.T, dir string, opts *localstack.Options) *localstack.Local {
	t.Helper()
	l, err := localstack.Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func TestStoreConformance(t *testing.T) {
	for name, md5 := range map[string]bool{"unique ETags": false, "MD5 ETags": true} {
		t.Run(name, func(t *testing.T) {
			l := openLocal(t, t.TempDir(), &localstack.Options{MD5ETags: md5})
			buckets := 0
			storetest.Run(t, storetest.Harness{
				Open: func(*testing.T) guard.Store {
					buckets++
					return l.Store(fmt.Sprintf("suite-%d", buckets))
				},
				UniqueETags:   !md5,
				ListsMetadata: true,
				PageSize:      256,
			})
		})
	}
}

func TestIssuerConformance(t *testing.T) {
	dir := t.TempDir()
	issuertest.Run(t, issuertest.Harness{
		Open:      func(t *testing.T) issuertest.Issuer { return openLocal(t, dir, nil) },
		MadeOnUse: true,
		Callers:   16, Each: 50, // each is on disk before it is told
	})
}
