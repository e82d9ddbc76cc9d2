package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/localstack/faultproxy"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
	"github.com/s3fence/s3fence/s3store"
	"github.com/s3fence/s3fence/s3store/policy"
)

// writeIDHint is what a publish that was cut short can be gone on with.
var writeIDHint = regexp.MustCompile(`(?m)^s3fence: hint: with the same token, --sequence and --write-id ([0-9a-f]{32}), what was sent is not sent again$`)

// Ctrl-C in the middle of publish: the person is told whether the set was
// committed, and with the write id the same publish goes on where it was.
func TestInterruptPublish(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	const bucket = "interrupt-publish"
	makeBuckets(t, m, bucket)
	g := guard.New(s3store.New(serverstest.S3Client(m), bucket, nil), nil)
	old := map[string][]byte{"a": []byte("old")}
	files := map[string][]byte{"a": []byte("new"), "b": []byte("b"), "c/d": nil}
	dir := folderOf(t, files)
	for _, tt := range []struct {
		name string
		rule faultproxy.Rule
		exit int
		says string
		json string // on the line of the commit
		sent string // what the summary counts
		set  map[string][]byte
	}{
		{
			"looking", faultproxy.Rule{Method: http.MethodHead, Fault: faultproxy.Fault{Kind: faultproxy.Hold}},
			130, "s3fence: interrupted, nothing was committed to s3://interrupt-publish/looking: ", `"outcome":"failed"`, `"counts":{}`, old,
		},
		{
			"file", faultproxy.Rule{Method: http.MethodPut, Nth: 2, Fault: faultproxy.Fault{Kind: faultproxy.Hold}},
			130, "s3fence: interrupted, nothing was committed to s3://interrupt-publish/file: ", `"outcome":"failed"`, `"counts":{"created":1}`, old,
		},
		{
			"manifest", faultproxy.Rule{Method: http.MethodPut, Key: "manifest/manifest.json", Fault: faultproxy.Fault{Kind: faultproxy.Hold}},
			16, "may still land", `"reason":"outcome-unknown"`, `"counts":{"created":3}`, old,
		},
		{
			"committed", faultproxy.Rule{Method: http.MethodPut, Key: "committed/manifest.json", Fault: faultproxy.Fault{Kind: faultproxy.HoldAnswer}},
			130, "interrupted: the write was applied to s3://interrupt-publish/committed/manifest.json", `"outcome":"already-applied"`, `"counts":{"created":3}`, files,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			mustPublish(t, g, 47, tt.name, old)
			args := []string{"publish", "--concurrency", "1", dir, "s3://" + bucket + "/" + tt.name}
			exit, stdout, stderr := interrupted(t, m, tt.rule, "", args...)
			if exit != tt.exit || !strings.Contains(stderr, tt.says) {
				t.Errorf("exit code %d, said %q, want %d, %q", exit, stderr, tt.exit, tt.says)
			}
			commit, summary := "", ""
			for line := range strings.Lines(stdout) {
				switch {
				case strings.HasPrefix(line, `{"op":"publish",`):
					commit = line
				case strings.HasPrefix(line, `{"op":"publish-summary",`):
					summary = line
				}
			}
			if !strings.Contains(commit, tt.json) || !strings.Contains(summary, tt.sent) {
				t.Errorf("the commit: %swant %s\nthe summary: %swant %s", commit, tt.json, summary, tt.sent)
			}
			if got := published(t, g, tt.name); !maps.EqualFunc(got, tt.set, bytes.Equal) {
				t.Errorf("the set is %q, want %q", got, tt.set)
			}

			again := append(args, "--json", "--token", nthToken(t, 48).String())
			if id := writeIDHint.FindStringSubmatch(stderr); id != nil {
				again = append(again, "--write-id", id[1])
			} else if tt.name != "looking" {
				t.Fatalf("there is no hint of the write id: %s", stderr)
			}
			out, err := program(t, m, again...).CombinedOutput()
			if want := map[string]string{
				"looking": `"counts":{"created":3}`, "file": `"counts":{"already-applied":1,"created":2}`,
				"manifest": `"counts":{"already-applied":3}`, "committed": `"counts":{"already-applied":3}`,
			}[tt.name]; err != nil || !strings.Contains(string(out), want) {
				t.Errorf("again: %v: %s, want %s", err, out, want)
			}
			if got := published(t, g, tt.name); !maps.EqualFunc(got, files, bytes.Equal) {
				t.Errorf("again, the set is %q", got)
			}
		})
	}
}

// A file that goes, or changes, after the folder was read: nothing is committed,
// and when it is back the same publish completes.
func TestPublishFileChanges(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	const bucket = "publish-changes"
	makeBuckets(t, m, bucket)
	g := guard.New(s3store.New(serverstest.S3Client(m), bucket, nil), nil)
	old := map[string][]byte{"a": []byte("old")}
	for _, tt := range []struct {
		name   string
		change func(dir string) error // while the file b is on its way
		file   string
		reason string
		says   string
	}{
		{"gone", func(dir string) error { return os.Remove(filepath.Join(dir, "c")) }, "c", "no-such-file", `open "c": read the source: `},
		{
			"changed", func(dir string) error { return os.WriteFile(filepath.Join(dir, "b"), []byte("newer"), 0o600) },
			"b", "failed", "changed while it was read: publish when nobody writes there",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			files := map[string][]byte{"a": []byte("new"), "b": []byte("b"), "c": []byte("c")}
			mustPublish(t, g, 47, tt.name, old)
			dir := folderOf(t, files)
			args := []string{"publish", "--json", "--concurrency", "1", "--token", nthToken(t, 48).String(), dir, "s3://" + bucket + "/" + tt.name}
			p, err := faultproxy.New(m.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			held := p.Hold(faultproxy.Rule{Method: http.MethodPut, Nth: 2, Fault: faultproxy.Fault{Kind: faultproxy.HoldAnswer}})
			cmd := program(t, serverstest.At(m, p.URL()), args...)
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			<-held.Reached()
			if err := tt.change(dir); err != nil {
				t.Fatal(err)
			}
			held.Release()
			var exit *exec.ExitError
			if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Errorf("exited with %v", err)
			}
			t.Logf("%s%s", &stdout, &stderr)
			if !strings.Contains(stderr.String(), ": nothing was committed: ") || !strings.Contains(stderr.String(), tt.says) {
				t.Errorf("it doesn't say %q", tt.says)
			}
			failed := regexp.MustCompile(`(?m)^{"op":"publish-file","url":"s3://publish-changes/` + tt.name + `/data/[^"]*/` + tt.file +
				`","outcome":"failed","reason":"` + tt.reason + `",.*"file":"[^"]*` + tt.file + `"}$`)
			if !failed.Match(stdout.Bytes()) || !strings.Contains(stdout.String(), `"failed":1},`) {
				t.Errorf("it doesn't tell of the file: want %s", failed)
			}
			if got := published(t, g, tt.name); !maps.EqualFunc(got, old, bytes.Equal) {
				t.Errorf("the set is %q", got)
			}

			for name, body := range files {
				if err := os.WriteFile(filepath.Join(dir, name), body, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			again := program(t, m, args...)
			if id := writeIDHint.FindStringSubmatch(stderr.String()); id != nil {
				again.Args = append(again.Args, "--write-id", id[1])
			}
			if out, err := again.CombinedOutput(); err != nil || !strings.Contains(string(out), `"counts":{"already-applied":2,"created":1}`) {
				t.Errorf("again: %v: %s", err, out)
			}
			if got := published(t, g, tt.name); !maps.EqualFunc(got, files, bytes.Equal) {
				t.Errorf("again, the set is %q", got)
			}
		})
	}
}

// A writer with no more permissions than that role's policy publishes, and may not
// remove what is garbage. The administrator may.
func TestPublishGCDenied(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	const bucket = "publish-denied"
	makeBuckets(t, m, bucket)
	g := guard.New(s3store.New(serverstest.S3Client(m), bucket, nil), nil)
	docs, _, err := policy.Documents(policy.Config{
		Bucket: bucket, Table: "s3fence", Scopes: []string{"nightly/report"}, Admins: []string{"arn:aws:iam::111122223333:role/admin"}, Dialect: policy.MinIO,
	}, policy.Writer)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(docs[0])
	if err != nil {
		t.Fatal(err)
	}
	v := session(t, m, text)
	writer := func(args ...string) *exec.Cmd {
		cmd := program(t, m, args...)
		cmd.Env = append(cmd.Env, "AWS_ACCESS_KEY_ID="+v.AccessKeyID, "AWS_SECRET_ACCESS_KEY="+v.SecretAccessKey, "AWS_SESSION_TOKEN="+v.SessionToken)
		return cmd
	}

	mustPublish(t, g, 47, "ds", map[string][]byte{"a": nil, "b": nil})
	files := map[string][]byte{"a": []byte("new")}
	const url = "s3://" + bucket + "/ds"
	if out, err := writer("publish", "--token", nthToken(t, 48).String(), folderOf(t, files), url).CombinedOutput(); err != nil {
		t.Fatalf("publish: %v: %s", err, out)
	}
	cmd := writer("publish", "gc", "--json", "--keep", "0", url)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("exited with %v", err)
	}
	const hint = "access denied (s3:DeleteObject is not allowed)"
	if strings.Count(stderr.String(), hint) != 2 || strings.Count(stderr.String(), "leave deletes to the administrator") != 2 {
		t.Errorf("it said %s", &stderr)
	}
	for _, want := range []string{`"outcome":"failed","reason":"access-denied"`, `{"op":"publish-gc-summary",`, `"counts":{"failed":2},"bytes":0,`} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("there is no %s: %s", want, &stdout)
		}
	}
	if out, err := program(t, m, "publish", "gc", "--keep", "0", url).CombinedOutput(); err != nil || !strings.Contains(string(out), url+": removed 2, ") {
		t.Errorf("the administrator: %v: %s", err, out)
	}
	if got := published(t, g, "ds"); !maps.EqualFunc(got, files, bytes.Equal) {
		t.Errorf("the set is %q", got)
	}
}
