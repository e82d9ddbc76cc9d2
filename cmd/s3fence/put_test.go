package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/s3fence/s3fence/localstack/faultproxy"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
)

// whileSent runs s3fence, and change when the answer to its n-th PUT is on its
// way back.
func whileSent(t *testing.T, n int, change func() error, args ...string) (exitCode int, stdout, stderr string) {
	t.Helper()
	m := serverstest.SharedMinIO(t)
	p, err := faultproxy.New(m.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	held := p.Hold(faultproxy.Rule{Method: http.MethodPut, Nth: n, Fault: faultproxy.Fault{Kind: faultproxy.HoldAnswer}})
	changed := make(chan error, 1)
	go func() {
		<-held.Reached()
		changed <- change()
		held.Release()
	}()
	exitCode, stdout, stderr = minioApp(t, p.URL(), serverEnv(m, m))(args...)
	if err := <-changed; err != nil {
		t.Fatal(err)
	}
	return exitCode, stdout, stderr
}

func appendTo(name string) error {
	f, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString("more")
	return err
}

// A file that changes while it is sent: what was written may be a mix, and what
// fails for it is said to.
func TestPutChanging(t *testing.T) {
	const bucket = "put-changing"
	makeBuckets(t, serverstest.SharedMinIO(t), bucket)
	for _, tt := range []struct {
		name   string
		size   int
		change func(file string) error
		json   string
		says   string
	}{
		{"appended to", 10, appendTo, `"outcome":"created","reason":"failed","error":`, "changed while it was read: s3://" + bucket + "/appended to is written, and may be a mix"},
		{"in parts", 17 << 20, appendTo, `"outcome":"created","reason":"failed","error":`, "may be a mix"},
		{"shorter", 33 << 20, func(file string) error { return os.Truncate(file, 12<<20) }, `"outcome":"failed",`, "it became shorter while it was read"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(file, make([]byte, tt.size), 0o600); err != nil {
				t.Fatal(err)
			}
			exit, stdout, stderr := whileSent(t, 1, func() error { return tt.change(file) },
				"put", "--json", "--concurrency", "1", "--token", tokenOf48, file, "s3://"+bucket+"/"+tt.name)
			if exit != 1 || !strings.Contains(stdout, tt.json) || !strings.Contains(stderr, file+" changed while it was read: ") || !strings.Contains(stderr, tt.says) {
				t.Errorf("exit code %d, %s, said %q, want %s, %s", exit, stdout, stderr, tt.json, tt.says)
			}
			if strings.Contains(stderr, "rejected") {
				t.Errorf("said %q: the store rejected nothing", stderr)
			}
		})
	}
}

// A file that changed while it was sent is not done, for --resume.
func TestResumeChanging(t *testing.T) {
	const bucket = "resume-changing"
	makeBuckets(t, serverstest.SharedMinIO(t), bucket)
	src, state := t.TempDir(), filepath.Join(t.TempDir(), "state")
	for i := range 3 {
		if err := os.WriteFile(filepath.Join(src, fmt.Sprint(i)), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"put", "-r", "--json", "--concurrency", "1", "--accept-repeatable-etag", "--token", tokenOf48, "--resume", state, src, "s3://" + bucket}
	exit, stdout, _ := whileSent(t, 2, func() error { return appendTo(filepath.Join(src, "1")) }, args...)
	if exit != 1 || !strings.Contains(stdout, `"outcome":"failed","reason":"failed"`) || !strings.Contains(stdout, `"counts":{"created":3}`) {
		t.Errorf("exit code %d, %s", exit, stdout)
	}
	m := serverstest.SharedMinIO(t)
	exit, stdout, _ = minioApp(t, m.URL, serverEnv(m, m))(args...)
	if exit != 0 || !strings.Contains(stdout, `/1","outcome":"replaced","token":48,"sequence":2,`) || !strings.Contains(stdout, `"counts":{"already-applied":2,"replaced":1}`) {
		t.Errorf("exit code %d, %s", exit, stdout)
	}
}

// An answer that can't be printed takes nothing back, and is complained of once.
func TestAnswerNotPrinted(t *testing.T) {
	src, local := t.TempDir(), t.TempDir()
	for i := range 5 {
		if err := os.WriteFile(filepath.Join(src, fmt.Sprint(i)), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(stdout io.Writer, args ...string) (exit int, stderr string) {
		var errs bytes.Buffer
		a := &app{stdin: strings.NewReader(""), stdout: stdout, stderr: &errs, getenv: func(k string) string {
			return map[string]string{"S3FENCE_LOCAL": local}[k]
		}}
		exit = a.main(t.Context(), args)
		return exit, errs.String()
	}
	full := writerFunc(func([]byte) (int, error) {
		return 0, &os.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.ENOSPC}
	})
	const says = "write to standard output: no space left on device\n"
	exit, stderr := run(full, "put", "--scope", "s", filepath.Join(src, "0"), "s3://demo/k")
	if exit != 1 || !strings.HasPrefix(stderr, "s3fence: created s3://demo/k: token 1 (scope s), 1 byte; token f1:") ||
		!strings.HasSuffix(stderr, "; it is done, and only this could not be printed: "+says) {
		t.Errorf("exit code %d, said %q", exit, stderr)
	}
	if exit, stderr := run(io.Discard, "stat", "s3://demo/k"); exit != 0 {
		t.Errorf("exit code %d, said %q", exit, stderr)
	}
	for _, flag := range []string{"--json", "--verbose=false"} {
		if exit, stderr := run(full, "put", "-r", "--scope", "s", flag, src, "s3://demo/many"); exit != 1 || stderr != "s3fence: "+says {
			t.Errorf("%s: exit code %d, said %q", flag, exit, stderr)
		}
	}
}
