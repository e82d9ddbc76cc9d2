package main

import (
	"database/sql"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/s3fence/s3fence/localstack/faultproxy"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
)

// A file that can't be written any more in the middle of a run: what --state
// remembers is given up, with a warning, and a run that --resume could not go on
// with ends at once.
func TestLastingGivesUp(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	const bucket, files = "lasting-gives-up", 40
	makeBuckets(t, m, bucket)
	src := t.TempDir()
	for i := range files {
		if err := os.WriteFile(filepath.Join(src, fmt.Sprintf("%02d", i)), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name, flag, include string
		nth                 int    // PUT, after which it can't be written
		counts              string // a pattern
		says                string
		exit                int
	}{
		{"state", "--state", "*", 4, `"outcome":"done","counts":{"created":40}`, "what was written is not remembered", 0},
		{"resume", "--resume", "*", 4, `"counts":{"created":[1-9],"failed":[1-4]}`, "no more files are begun, since the run could not be gone on with", 1},
		{"at the end", "--resume", "00", 1, `"outcome":"failed","reason":"failed",.*"counts":{"created":1}`, "write to state file ", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := faultproxy.New(m.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			file := filepath.Join(t.TempDir(), "file")
			db, err := sql.Open("sqlite", file+"?_pragma=busy_timeout(5000)")
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			held := p.Hold(faultproxy.Rule{Method: http.MethodPut, Nth: tt.nth, Fault: faultproxy.Fault{Kind: faultproxy.HoldAnswer}})
			locked := make(chan error, 1)
			go func() {
				<-held.Reached()
				_, err := db.Exec("BEGIN IMMEDIATE")
				locked <- err
				held.Release()
			}()
			run := minioApp(t, p.URL(), serverEnv(m, m))
			exit, stdout, stderr := run("put", "-r", "--json", "--concurrency", "4", "--token", tokenOf48, tt.flag, file, "--include", tt.include, src, "s3://"+bucket+"/"+tt.name)
			if err := <-locked; err != nil {
				t.Fatal(err)
			}
			if exit != tt.exit || !regexp.MustCompile(tt.counts).MatchString(stdout) {
				t.Errorf("exit code %d, %s", exit, stdout)
			}
			if strings.Count(stderr, file) != 1 || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, tt.says) {
				t.Errorf("said %q, want %q", stderr, tt.says)
			}
		})
	}
}
