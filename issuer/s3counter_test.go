package issuer_test

import (
	"testing"

	"github.com/s3fence/s3fence/issuer"
	"github.com/s3fence/s3fence/issuer/issuertest"
	"github.com/s3fence/s3fence/localstack"
)

func openLocal(t testing.TB, opts *localstack.Options) *localstack.Local {
	t.Helper()
	l, err := localstack.Open(t.TempDir(), opts)
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

func TestS3Conformance(t *testing.T) {
	for name, md5 := range map[string]bool{"unique ETags": false, "MD5 ETags": true} {
		t.Run(name, func(t *testing.T) {
			l := openLocal(t, &localstack.Options{MD5ETags: md5})
			issuertest.Run(t, issuertest.Harness{
				Open:    func(*testing.T) issuertest.Issuer { return issuer.NewS3(l.Store("counters"), "team") },
				Callers: 64, Each: 50,
			})
		})
	}
}
