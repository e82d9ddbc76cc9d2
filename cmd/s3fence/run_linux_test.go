package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// As the first process of a container: orphans of the command are collected,
// signals reach it, and its exit code is passed on.
func TestRunAsFirstProcess(t *testing.T) {
	ns := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if os.Geteuid() != 0 {
		ns.Cloneflags |= syscall.CLONE_NEWUSER
	}
	try := exec.CommandContext(t.Context(), "true")
	try.SysProcAttr = ns
	if err := try.Run(); errors.Is(err, syscall.EPERM) {
		t.Skip("left out: this machine gives no PID namespace")
	}
	env := []string{"S3FENCE_LOCAL=" + t.TempDir()}
	run := func(script string) *running {
		return begin(t, ns, env, "run", "--scope", "s", "--", "sh", "-c", script)
	}
	// kill -0 finds a process until it is collected.
	r := run(`
		orphan=$(sh -c 'sleep 0.2 >/dev/null & echo $!')
		i=0
		while kill -0 $orphan; do
			i=$((i+1))
			[ $i -gt 600 ] && exit 9
			sleep 0.05
		done
		exit 5`)
	r.end(5)

	r = run(`trap 'exit 7' TERM; echo ready $PPID; while :; do sleep 0.05; done`)
	if r.line("ready") == "1" {
		t.Error("run is the first process itself")
	}
	r.send(syscall.SIGTERM)
	r.end(7)

	run(`kill -9 $$`).end(128 + 9)
	run(`exit 0`).end(0)
}

// A shell is an interactive one at a terminal of its own.
type shell struct {
	*exec.Cmd
	t        *testing.T
	terminal *os.File
	said     string // what nobody has waited for yet
}

func openShell(t *testing.T, env ...string) *shell {
	t.Helper()
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { terminal.Close() }) // which hangs up on the shell
	if err := terminal.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	var n int
	conn, err := terminal.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if cerr := conn.Control(func(fd uintptr) {
		if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err == nil {
			n, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	}); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	ours, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	s := &shell{exec.CommandContext(t.Context(), "bash", "--norc", "--noprofile", "--noediting", "-i"), t, terminal, ""}
	s.Env = environment(t, append(env, "HISTFILE=", "PS1=prompt ", "LC_ALL=C", "TERM=dumb")...)
	s.Stdin, s.Stdout, s.Stderr = ours, ours, ours
	s.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	s.waitFor("prompt ")
	s.enter("stty -echo; echo ready")
	s.waitFor("\nready\r\n")
	return s
}

func (s *shell) send(text string) {
	s.t.Helper()
	if _, err := io.WriteString(s.terminal, text); err != nil {
		s.t.Fatal(err)
	}
}

func (s *shell) enter(line string) { s.t.Helper(); s.send(line + "\n") }

// waitFor waits until the terminal shows text, and returns what is before it.
func (s *shell) waitFor(text string) string {
	s.t.Helper()
	b := make([]byte, 4096)
	for {
		if before, after, ok := strings.Cut(s.said, text); ok {
			s.said = after
			return before
		}
		n, err := s.terminal.Read(b)
		s.said += string(b[:n])
		if err != nil {
			s.t.Fatalf("%v while waiting for %q; the terminal shows %q", err, text, s.said)
		}
	}
}

// number waits for the number after word.
func (s *shell) number(word string) int {
	s.t.Helper()
	s.waitFor(word + " ")
	return number(s.t, s.waitFor("\r\n"))
}

// Job control: run stops with its command, and the shell's fg gives both the
// terminal.
func TestRunJobControl(t *testing.T) {
	const ctrlC, ctrlZ = "\x03", "\x1a"
	// start runs the script in the background, and returns run's process.
	start := func(s *shell, script string) int {
		s.enter("s3fence run -q --ttl 1h --scope s -- sh -c '" + script + "' & echo job $!")
		return s.number("job")
	}
	t.Run("stopped in the background", func(t *testing.T) {
		s := openShell(t, "S3FENCE_LOCAL="+t.TempDir())
		run := start(s, "exec cat")
		wantStopped(t, run) // as cat wants to read
		s.enter("fg")
		s.enter("hello")
		s.waitFor("hello")
		s.send(ctrlZ)
		wantStopped(t, run)
		s.enter("fg")
		s.enter("again")
		s.waitFor("again")
		s.send(ctrlC)
		s.waitFor("prompt ")
		s.enter("echo code $?")
		if got := s.number("code"); got != 130 {
			t.Errorf("exit code %d", got)
		}
	})
	t.Run("in the foreground before it reads", func(t *testing.T) {
		dir := t.TempDir()
		s := openShell(t, "S3FENCE_LOCAL="+dir)
		start(s, "while ! [ -e "+filepath.Join(dir, "go")+" ]; do sleep 0.05; done; exec cat")
		s.enter("fg")
		s.waitFor("s3fence run")
		if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		s.enter("hello")
		s.waitFor("hello")
		s.send(ctrlC)
		s.waitFor("prompt ")
		s.enter("echo code $?")
		if got := s.number("code"); got != 130 {
			t.Errorf("exit code %d", got)
		}
	})
	// The terminal is the shell's again, and what ends must not take it back.
	t.Run("ends in the background", func(t *testing.T) {
		dir := t.TempDir()
		end := filepath.Join(dir, "end")
		if err := syscall.Mkfifo(end, 0o600); err != nil {
			t.Fatal(err)
		}
		s := openShell(t, "S3FENCE_LOCAL="+dir)
		// It starts nothing: a shell does not stop while what it has forked has, before it is another program.
		s.enter("s3fence run -q --ttl 1h --scope s -- sh -c 'echo run $PPID; read x < " + end + "'")
		run := s.number("run")
		s.send(ctrlZ)
		wantStopped(t, run)
		s.enter("bg; echo > " + end + "; wait; echo over")
		s.waitFor("over")
		s.enter("echo here")
		s.waitFor("here")
	})
}
