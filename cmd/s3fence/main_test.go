package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/localstack"
	"github.com/s3fence/s3fence/localstack/servers"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
)

func TestMain(m *testing.M) {
	if os.Getenv("S3FENCE_TEST_MAIN") != "" {
		main() // exits
	}
	testscript.Main(wrapMain{m}, map[string]func(){"s3fence": main})
}

type wrapMain struct{ m *testing.M }

func (w wrapMain) Run() int { return serverstest.Main(w.m) }

// TestScripts runs the scripts that need no server, each in a folder of its own.
func TestScripts(t *testing.T) { runScripts(t, "testdata/script", nil) }

func runScripts(t *testing.T, dir string, env map[string]string) {
	t.Helper()
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			for _, kv := range os.Environ() { // what the user has set must not matter
				if k, _, _ := strings.Cut(kv, "="); strings.HasPrefix(k, "AWS_") || strings.HasPrefix(k, "S3FENCE_") {
					e.Setenv(k, "")
				}
			}
			e.Setenv("AWS_CONFIG_FILE", "nofile")
			e.Setenv("AWS_SHARED_CREDENTIALS_FILE", "nofile")
			e.Setenv("AWS_EC2_METADATA_DISABLED", "true")
			for k, v := range env {
				e.Setenv(k, v)
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":   exits,
			"keep":    keep,
			"around":  around,
			"counter": counter,
		},
	})
}

// exits CODE PROGRAM ARG... runs a program and checks its exit code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARG...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		got = exit.ExitCode()
	case err != nil:
		ts.Fatalf("run %s: %v", args[1], err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// keep NAME puts the last word of the last standard output into $NAME.
func keep(ts *testscript.TestScript, neg bool, args []string) {
	f := strings.Fields(ts.ReadFile("stdout"))
	if neg || len(args) != 1 || len(f) == 0 {
		ts.Fatalf("usage: keep NAME, after a program that printed something")
	}
	ts.Setenv(args[0], f[len(f)-1])
}

// around put URL FILE [RECORD] writes an object around the guard, with RECORD as
// its fence record; around rm URL deletes one. In URL, \n and \x1b are what they
// mean in Go.
func around(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: around put URL FILE [RECORD], or around rm URL")
	}
	url, err := strconv.Unquote(`"` + args[1] + `"`)
	ts.Check(err)
	bucket, key, err := parseURL(url)
	ts.Check(err)
	ctx := context.Background()
	var body string
	var metadata map[string]string
	switch args[0] {
	case "put":
		body = ts.ReadFile(args[2])
		if len(args) > 3 {
			metadata = map[string]string{guard.RecordKey: args[3]}
		}
	case "rm":
	default:
		ts.Fatalf("around %s: neither put nor rm", args[0])
	}
	if dir := ts.Getenv("S3FENCE_LOCAL"); dir != "" {
		l, err := localstack.Open(ts.MkAbs(dir), nil)
		ts.Check(err)
		defer l.Close()
		if args[0] == "rm" {
			ts.Check(l.Remove(ctx, bucket, key))
			return
		}
		cond := guard.IfAbsent()
		if o, err := l.Store(bucket).Head(ctx, key, guard.HeadOptions{}); err == nil {
			cond = guard.IfMatch(o.ETag)
		}
		_, err = l.Store(bucket).Put(ctx, key, guard.PutRequest{
			Condition: cond, Body: guard.Bytes([]byte(body)), Headers: guard.Headers{Metadata: metadata},
		})
		ts.Check(err)
		return
	}
	c := serverstest.S3Client(&servers.Server{
		URL: ts.Getenv("AWS_ENDPOINT_URL_S3"), Region: ts.Getenv("AWS_REGION"),
		AccessKey: ts.Getenv("AWS_ACCESS_KEY_ID"), SecretKey: ts.Getenv("AWS_SECRET_ACCESS_KEY"),
	})
	if args[0] == "rm" {
		_, err = c.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &bucket, Key: &key})
	} else {
		_, err = c.PutObject(ctx, &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: strings.NewReader(body), Metadata: metadata})
	}
	ts.Check(err)
}
