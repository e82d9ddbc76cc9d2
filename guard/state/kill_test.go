package state

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/s3fence/s3fence/guard"
)

// workers write in the child, each its own keys, one after another.
const workers = 8

// writeUntilKilled goes on with the run in the file, or begins one. It tells on
// standard output what is in the file by then: "begun KEY SEQUENCE WRITE-ID" of
// each step, and "flushed KEY" of what was done and remembered.
func writeUntilKilled(path string) error {
	f, err := Open(path)
	if err != nil {
		return err
	}
	j, err := f.Resume(put)
	if errors.Is(err, ErrNoRun) {
		var tok guard.Token
		if tok, err = guard.NewToken(testIssuer, "nightly", 48); err == nil {
			j, err = f.Begin(put, tok)
		}
	}
	if err != nil {
		return err
	}
	m, err := f.Memory("e", "b")
	if err != nil {
		return err
	}
	var out sync.Mutex
	say := func(format string, args ...any) {
		out.Lock()
		defer out.Unlock()
		fmt.Printf(format+"\n", args...)
	}
	ends := make(chan error)
	for w := range workers {
		go func() {
			ends <- func() error {
				for i := 0; ; i++ {
					key := fmt.Sprintf("%d/%d", w, i)
					s, err := j.Plan(key, int64(i), mtime)
					if err != nil {
						return err
					}
					if s.Outcome != "" {
						continue
					}
					if err := s.Begin(); err != nil {
						return err
					}
					say("begun %s %d %s", key, s.Sequence, s.WriteID)
					if err := m.Remember(key, guard.Remembered{Record: record(48, int64(i+1)), ETag: key}); err != nil {
						return err
					}
					if err := s.Done(guard.Created); err != nil {
						return err
					}
					if i%20 == w {
						if err := f.Flush(); err != nil {
							return err
						}
						say("flushed %s", key)
					}
				}
			}()
		}()
	}
	return <-ends
}

// A process that is killed at any moment leaves a file that opens, with all in
// it that it was said to have, and a run that goes on as it would have.
func TestKill(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := path(t)
	begun, flushed := map[string]string{}, map[string]bool{}
	for round := range 10 {
		var stderr bytes.Buffer
		child := exec.Command(self)
		child.Env = append(os.Environ(), childEnv+"="+path)
		child.Stderr = &stderr
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		left := 1 + rand.IntN(200)
		for lines.Scan() { // what was written before the kill is read to the end
			what, rest, _ := strings.Cut(lines.Text(), " ")
			key, ids, _ := strings.Cut(rest, " ")
			switch what {
			case "begun":
				if was, ok := begun[key]; ok && was != ids {
					t.Errorf("%s was begun with %s and then with %s", key, was, ids)
				}
				begun[key] = ids
			case "flushed":
				flushed[key] = true
			}
			if left--; left == 0 {
				if err := child.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := child.Wait(); err == nil || stderr.Len() > 0 {
			t.Fatalf("round %d: the child ended by itself: %v, %s", round, err, &stderr)
		}

		f := open(t, path)
		m, err := f.Memory("e", "b")
		if err != nil {
			t.Fatal(err)
		}
		j := resume(t, f, put)
		for key := range begun {
			var w, i int
			if _, err := fmt.Sscanf(key, "%d/%d", &w, &i); err != nil {
				t.Fatal(err)
			}
			s := plan(t, j, key, int64(i), mtime)
			if s.begun != nil {
				t.Errorf("the note that %s was begun is gone", key)
			}
			if got := fmt.Sprintf("%d %s", s.Sequence, s.WriteID); got != begun[key] {
				t.Errorf("%s: was %s, is %s", key, begun[key], got)
			}
			if !flushed[key] {
				continue
			}
			if want := (guard.Remembered{Record: record(48, int64(i+1)), ETag: key}); s.Outcome != guard.Created || recall(t, m, key) != want {
				t.Errorf("%s was flushed: %+v, %+v", key, s, recall(t, m, key))
			}
		}
		closeAll(t, j, f)
	}
	if len(begun) < 10 || len(flushed) == 0 {
		t.Errorf("%d begun, %d flushed: that shows nothing", len(begun), len(flushed))
	}
	t.Logf("%d begun, %d flushed", len(begun), len(flushed))
}
