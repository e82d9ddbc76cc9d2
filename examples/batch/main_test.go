package main

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
)

// example runs the command of the package's text, as a reader does.
func example(t *testing.T, args ...string) (stdout, stderr string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"run", "./examples/batch"}, args...)...)
	cmd.Dir = "../.."
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s%s", err, &out, &log)
	}
	return out.String(), log.String()
}

func TestRun(t *testing.T) {
	got, log := example(t)
	const want = `Monday: web1 makes the report.
  web1: holds the lease, with token 1
  web1: status.json created, token 1: monday, 0 of 2 parts
  web1: results/monday-north.csv created, token 1.2
  web1: status.json replaced, token 1.3: monday, 1 of 2 parts
  web1: results/monday-south.csv created, token 1.4
  web1: status.json replaced, token 1.5: monday, done

Tuesday: web1 is cut off from the issuer in the middle, and web2 takes over.
  web1: holds the lease, with token 2
  web1: status.json replaced, token 2: tuesday, 0 of 2 parts
  web1: results/tuesday-north.csv created, token 2.2
  (web1 is cut off; web2 waits until its lease has stood still for its TTL)
  web2: holds the lease, with token 3
  web2: status.json replaced, token 3: tuesday, 0 of 2 parts
  web2: results/tuesday-north.csv replaced, token 3.2
  web2: status.json replaced, token 3.3: tuesday, 1 of 2 parts
  web2: results/tuesday-south.csv created, token 3.4
  web2: results/monday-north.csv deleted, token 3.5
  web2: results/monday-south.csv deleted, token 3.6
  web2: status.json replaced, token 3.7: tuesday, done
  (web1 goes on)
  web1: stops: lease lost: scope nightly/report, token 2: no heartbeat was accepted for 2.7s: not sent: the line is cut
  web1: refused: stale token 2.3 for s3://reports/status.json: scope nightly/report is claimed with 3

status.json holds {"by":"web2","says":"tuesday, done"}
results/tuesday-north.csv has token 3.2
results/tuesday-south.csv has token 3.4
`
	if got != want {
		t.Errorf("it wrote\n%s\nwant\n%s", got, want)
	}
	for _, line := range []string{
		`level=WARN msg="heartbeat failed" machine=web1 `,
		`level=INFO msg=put machine=web1 outcome=refused reason=stale scope=nightly/report token=2 url=s3://reports/status.json `,
	} {
		if !strings.Contains(log, line) {
			t.Errorf("it logged\n%s\nwithout\n%s", log, line)
		}
	}
}

// A store that is kept is gone on with: the numbers, and what lies there.
func TestKept(t *testing.T) {
	dir := t.TempDir()
	example(t, "-dir", dir)
	got, _ := example(t, "-dir", dir)
	for _, line := range []string{
		"  web1: holds the lease, with token 4\n",
		"  web1: results/tuesday-south.csv deleted, token 4.6\n",
		`status.json holds {"by":"web2","says":"tuesday, done"}` + "\n",
		"results/tuesday-north.csv has token 6.2\n",
	} {
		if !strings.Contains(got, line) {
			t.Errorf("it wrote\n%s\nwithout\n%s", got, line)
		}
	}
}
