package main

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/localstack/faultproxy"
	"github.com/s3fence/s3fence/localstack/servers"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
	"github.com/s3fence/s3fence/s3store"
)

// makeBuckets makes the buckets that the scripts use, and an unfenced object.
func makeBuckets(t *testing.T, s *servers.Server, names ...string) {
	t.Helper()
	c := serverstest.S3Client(s)
	for _, name := range names {
		if _, err := c.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &name}); err != nil {
			t.Fatal(err)
		}
		key := "unfenced"
		if _, err := c.PutObject(t.Context(), &s3.PutObjectInput{Bucket: &name, Key: &key, Body: strings.NewReader("plain")}); err != nil {
			t.Fatal(err)
		}
	}
}

func serverEnv(s3, dynamo *servers.Server) map[string]string {
	return map[string]string{
		"AWS_ENDPOINT_URL_S3": s3.URL, "AWS_ENDPOINT_URL_DYNAMODB": dynamo.URL,
		"AWS_ACCESS_KEY_ID": s3.AccessKey, "AWS_SECRET_ACCESS_KEY": s3.SecretKey, "AWS_REGION": s3.Region,
		"OTHER_ENDPOINT": strings.Replace(s3.URL, "127.0.0.1", "localhost", 1),
	}
}

// TestServerScripts runs the scripts that need MinIO and dynalite.
func TestServerScripts(t *testing.T) {
	m, d := serverstest.SharedMinIO(t), serverstest.SharedDynalite(t)
	makeBuckets(t, m, "reconciled", "counted", "scripts", "bucket", "proven", "copied", "commands", "recovered")
	recovered := "recovered"
	if _, err := serverstest.S3Client(m).PutBucketVersioning(t.Context(), &s3.PutBucketVersioningInput{
		Bucket: &recovered, VersioningConfiguration: &types.VersioningConfiguration{Status: types.BucketVersioningStatusEnabled},
	}); err != nil {
		t.Fatal(err)
	}
	runScripts(t, "testdata/servers", serverEnv(m, d))
}

// TestNoKMSScripts runs the scripts about MinIO without KMS.
func TestNoKMSScripts(t *testing.T) {
	m, d := serverstest.SharedMinIONoKMS(t), serverstest.SharedDynalite(t)
	makeBuckets(t, m, "nokms")
	runScripts(t, "testdata/nokms", serverEnv(m, d))
}

// interrupted runs s3fence against m, with the fault held in its way, and
// interrupts it when it gets there.
func interrupted(t *testing.T, m *servers.Server, fault faultproxy.Rule, stdin string, args ...string) (exitCode int, stdout, stderr string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p, err := faultproxy.New(m.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	held := p.Hold(fault)
	// The test binary is s3fence when it is called so.
	cmd := exec.CommandContext(t.Context(), exe, append(args, "--json",
		"--token", "f1:8c1d0f2ab64e97d3:nightly/report:00000000000000000048:422d5fde")...)
	cmd.Args[0] = "s3fence"
	cmd.Env = append(os.Environ(), "S3FENCE_TEST_MAIN=1", "S3FENCE_LOCAL=", "S3FENCE_NO_PROFILE=1")
	for k, v := range serverEnv(m, m) {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.Env = append(cmd.Env, "AWS_ENDPOINT_URL_S3="+p.URL())
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-held.Reached()
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	t.Logf("%s%s", &out, &errs)
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("exited with %v", err)
	}
	return exit.ExitCode(), out.String(), errs.String()
}

// Ctrl-C while the request is out: nothing half-written, and the person is
// told whether the write was applied.
func TestInterrupt(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	makeBuckets(t, m, "interrupt")
	for _, tt := range []struct {
		name string
		verb string
		kind faultproxy.Kind
		exit int
		says string
	}{
		{"applied", http.MethodPut, faultproxy.HoldAnswer, 130, "interrupted: the write was applied to s3://interrupt/applied"},
		{"looking", http.MethodHead, faultproxy.Hold, 130, "interrupted, nothing was written"},
		{"held", http.MethodPut, faultproxy.Hold, 16, "was not there when looked at again, and may still land"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			exit, _, stderr := interrupted(t, m, faultproxy.Rule{Method: tt.verb, Fault: faultproxy.Fault{Kind: tt.kind}},
				"bytes", "put", "-", "s3://interrupt/"+tt.name)
			if exit != tt.exit {
				t.Errorf("exit code %d, want %d", exit, tt.exit)
			}
			if !strings.Contains(stderr, tt.says) {
				t.Errorf("said %q, want %q", stderr, tt.says)
			}
		})
	}
}

// Ctrl-C among many objects: what is on its way is settled, nothing more begins,
// and the summary says how far it got.
func TestInterruptMany(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	makeBuckets(t, m, "interrupt-many")
	g := guard.New(s3store.New(serverstest.S3Client(m), "interrupt-many", nil), nil)
	id, err := guard.ParseIssuerID("8c1d0f2ab64e97d3")
	if err != nil {
		t.Fatal(err)
	}
	old, err := guard.NewToken(id, "nightly/report", 47)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		kind faultproxy.Kind
		exit int
		says string
	}{
		{"applied", faultproxy.HoldAnswer, 130, "the write was applied to s3://interrupt-many/applied/1"},
		{"held", faultproxy.Hold, 16, "may still land"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, name := range []string{"0", "1", "2", "3"} {
				if _, err := g.Put(t.Context(), old, tt.name+"/"+name, guard.Bytes(nil), nil); err != nil {
					t.Fatal(err)
				}
			}
			exit, stdout, stderr := interrupted(t, m,
				faultproxy.Rule{Method: http.MethodPut, Nth: 2, Fault: faultproxy.Fault{Kind: tt.kind}},
				"", "rm", "-r", "--concurrency", "1", "s3://interrupt-many/"+tt.name+"/")
			if exit != tt.exit || !strings.Contains(stderr, tt.says) {
				t.Errorf("exit code %d, said %q, want %d, %q", exit, stderr, tt.exit, tt.says)
			}
			if !strings.Contains(stdout, `"op":"rm-summary"`) || !strings.Contains(stdout, `"deleted":1`) {
				t.Errorf("the summary: %s", stdout)
			}
			for name, want := range map[string]guard.State{"0": guard.Deleted, "3": guard.Live} {
				info, err := g.Stat(t.Context(), tt.name+"/"+name)
				if err != nil || info.Record == nil || info.Record.State != want {
					t.Errorf("%s: %+v, %v, want %v", name, info.Record, err, want)
				}
			}
		})
	}
}
