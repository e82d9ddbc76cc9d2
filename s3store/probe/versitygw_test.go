package probe_test

import (
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/s3fence/s3fence/localstack/servers"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
	"github.com/s3fence/s3fence/s3store/probe"
)

// versitygw starts the versitygw that S3FENCE_VERSITYGW names, over one
// folder. It takes minutes to build and no other test needs it, so it is no
// server of ./test.
func versitygw(t *testing.T) *s3.Client {
	t.Helper()
	path := os.Getenv("S3FENCE_VERSITYGW")
	if path == "" {
		t.Skip("left out: needs S3FENCE_VERSITYGW=path; go install github.com/versity/versitygw/cmd/versitygw@v1.8.0 makes one")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	cmd := exec.Command(path, "--access", "user", "--secret", "password", "--port", addr,
		"posix", "--versioning-dir", t.TempDir(), t.TempDir())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	for range 200 {
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	return serverstest.S3Client(&servers.Server{URL: "http://" + addr, AccessKey: "user", SecretKey: "password", Region: "us-east-1"})
}

// A real store that must fail: it reads an object and its metadata apart.
func TestVersitygw(t *testing.T) {
	c := versitygw(t)
	for name, versions := range map[string][]types.BucketVersioningStatus{
		"plain": nil, "versions": {types.BucketVersioningStatusEnabled},
	} {
		t.Run(name, func(t *testing.T) {
			b := bucket(t, c, versions...)
			r := run(t, c, b, nil)
			if r.Verdict != probe.Fail {
				t.Errorf("it is a %s", r.Verdict)
			}
		})
	}
}
