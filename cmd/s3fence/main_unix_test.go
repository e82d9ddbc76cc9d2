//go:build unix

package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/s3fence/s3fence/localstack/faultproxy"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
)

// The end of the terminal in the middle of an upload in parts leaves nothing of
// it behind, and nohup lets it go on.
func TestHangup(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	const bucket = "hangup"
	makeBuckets(t, m, bucket)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, make([]byte, 17<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		before string // in the shell
		exit   int
		says   string
	}{
		{"hangup", "", 130, "interrupted, nothing was written"},
		{"nohup", "trap '' HUP; ", 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := faultproxy.New(m.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			held := p.Hold(faultproxy.Rule{Method: http.MethodPut, Nth: 2, Fault: faultproxy.Fault{Kind: faultproxy.HoldAnswer}})
			put := program(t, serverstest.At(m, p.URL()), "put", "--token", tokenOf48, file, "s3://"+bucket+"/"+tt.name)
			cmd := exec.CommandContext(t.Context(), "sh", append([]string{"-c", tt.before + `exec "$0" "$@"`}, append([]string{put.Path}, put.Args[1:]...)...)...)
			var stderr bytes.Buffer
			cmd.Env, cmd.Stderr = put.Env, &stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			<-held.Reached()
			if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
			if tt.exit == 0 {
				held.Release()
			}
			if err := cmd.Wait(); err != nil && !errors.As(err, new(*exec.ExitError)) {
				t.Fatal(err)
			}
			if got := cmd.ProcessState.ExitCode(); got != tt.exit || !strings.Contains(stderr.String(), tt.says) {
				t.Errorf("exit code %d, said %q, want %d, %q", got, &stderr, tt.exit, tt.says)
			}
			letArrive(p, held)
			nothingLeft(t, m, bucket)
		})
	}
}

// Who reads the output and goes is no reason to leave things behind, nor to
// complain.
func TestOutputClosed(t *testing.T) {
	src, dst, local := t.TempDir(), t.TempDir(), t.TempDir()
	for i := range 40 {
		if err := os.WriteFile(filepath.Join(src, fmt.Sprint(i)), make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s3fence := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), exe, args...)
		cmd.Args[0] = "s3fence"
		cmd.Env = append(os.Environ(), "S3FENCE_TEST_MAIN=1", "S3FENCE_LOCAL="+local)
		return cmd
	}
	if out, err := s3fence("put", "-r", "--scope", "s", src, "s3://demo").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, args := range [][]string{
		{"put", "-r", "--scope", "s", src, "s3://demo"},
		{"put", "--scope", "s", filepath.Join(src, "0"), "s3://demo/0"},
		{"put", "--json", "--scope", "s", filepath.Join(src, "0"), "s3://demo/0"},
		{"get", "-r", "s3://demo", dst},
		{"get", "-r", "--json", "s3://demo", dst},
		{"cat", "s3://demo/0"},
		{"ls", "s3://demo"},
		{"audit", "--json", "s3://demo"},
		{"token", "show", tokenOf48},
	} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd := s3fence(args...)
		var stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = w, &stderr
		r.Close()
		err = cmd.Run()
		w.Close()
		if cmd.ProcessState.ExitCode() != exitPipe || stderr.Len() > 0 {
			t.Errorf("%v: %v, said %q", args, err, &stderr)
		}
	}
	for name := range hashes(t, dst, "") {
		if strings.HasPrefix(filepath.Base(name), ".s3fence-") {
			t.Errorf("%s is left", name)
		}
	}
	// What s3fence runs must not inherit any of it.
	cmd := s3fence("run", "--scope", "r", "--", "sh", "-c", "kill -PIPE $$; echo it goes on")
	if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != exitPipe || strings.Contains(string(out), "goes on") {
		t.Errorf("%v: %s", cmd.ProcessState, out)
	}
}
