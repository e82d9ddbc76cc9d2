package main

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
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
