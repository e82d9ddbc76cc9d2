package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// check looks for exactly the operations that the example makes.
func check(t *testing.T, text string) {
	t.Helper()
	var got []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "s3fence_operations_total{") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	slices.Sort(got)
	want := []string{
		`s3fence_operations_total{s3fence_operation="claim",s3fence_outcome="claimed",s3fence_scope="nightly/report"} 2`,
		`s3fence_operations_total{s3fence_operation="lease.acquire",s3fence_outcome="acquired",s3fence_scope="nightly/report"} 2`,
		`s3fence_operations_total{s3fence_operation="lease.release",s3fence_outcome="released",s3fence_scope="nightly/report"} 2`,
		`s3fence_operations_total{s3fence_operation="put",s3fence_outcome="created",s3fence_scope="nightly/report"} 1`,
		`s3fence_operations_total{s3fence_operation="put",s3fence_outcome="refused",s3fence_reason="stale",s3fence_scope="nightly/report"} 1`,
		`s3fence_operations_total{s3fence_operation="put",s3fence_outcome="replaced",s3fence_scope="nightly/report"} 1`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if strings.Contains(text, `"failed"`) {
		t.Errorf("something failed:\n%s", text)
	}
}

// The command of the package's text, as a reader runs it; and what
// docs/observability.md calls the metrics is what they are called.
func TestOnce(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "run", "-C", "examples/prometheus", ".", "-once")
	cmd.Dir = "../.."
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	check(t, string(out))

	doc, err := os.ReadFile("../../docs/observability.md")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`\bs3fence_\w+`).FindAllString(string(doc), -1)
	if len(names) == 0 {
		t.Error("the text names no metric")
	}
	for _, name := range names {
		if !regexp.MustCompile(`\b` + name + `\b`).Match(out) {
			t.Errorf("there is no %s in\n%s", name, out)
		}
	}
}

func TestServe(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := run(ctx, w, "127.0.0.1:0", false)
		w.CloseWithError(err)
		done <- err
	}()
	lines := bufio.NewScanner(r)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "http://") {
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, lines.Text(), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	check(t, string(text))
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
