package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// The command of the package's text, as a reader runs it.
func TestRun(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "run", "./examples/worker")
	cmd.Dir = "../.."
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	lines := strings.Split(string(out), "\n")
	if len(lines) > 4 {
		slices.Sort(lines[1:4]) // the three at once end in any order
	}
	const want = `Message A is delivered three times at once: one write.
  message A, token 1: already-applied
  message A, token 1: already-applied
  message A, token 1: created
  today.txt holds "report of Monday"

Message A again, and its work comes to nothing: the good report stays.
  message A, token 1: kept
  today.txt holds "report of Monday"

Message B is newer.
  message B, token 2: replaced
  today.txt holds "report of Tuesday"

Message A once more, late: B's report stays.
  message A, token 1: superseded
  today.txt holds "report of Tuesday"

`
	if got := strings.Join(lines, "\n"); got != want {
		t.Errorf("it wrote\n%s\nwant\n%s", got, want)
	}
}
