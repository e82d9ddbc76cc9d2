// Package realservers runs the whole product on real servers: the issuer on
// dynalite and moto, stories end to end on MinIO and moto, and another
// program's reading of what the guard wrote. It has tests only, and without
// servers none of them: `go test` then says that it ran no tests.
package realservers

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/localstack"
	"github.com/s3fence/s3fence/localstack/servers"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
	"github.com/s3fence/s3fence/s3store"
)

func TestMain(m *testing.M) {
	os.Exit(serverstest.MainOnly(m, "all that needs a real server ("+strings.Join(servers.Names(), ", ")+")"))
}

var names atomic.Int64

// newBucket makes an empty bucket.
func newBucket(t *testing.T, s *servers.Server) string {
	t.Helper()
	name := fmt.Sprintf("real-%d", names.Add(1))
	if _, err := serverstest.S3Client(s).CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &name}); err != nil {
		t.Fatal(err)
	}
	return name
}

// sdks are the two ways to the same server.
var sdks = map[string]func(t *testing.T, s *servers.Server, bucket string) guard.Store{
	"aws": func(_ *testing.T, s *servers.Server, bucket string) guard.Store {
		return s3store.New(serverstest.S3Client(s), bucket, nil)
	},
	"minio-go": func(t *testing.T, s *servers.Server, bucket string) guard.Store {
		return s3store.NewMinIO(serverstest.MinIOClient(t, s), bucket, nil)
	},
}

// local is an issuer for tests that are not about the issuer.
func local(t *testing.T) *localstack.Local {
	t.Helper()
	l, err := localstack.Open(t.TempDir(), nil)
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

func sha256Hex(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
