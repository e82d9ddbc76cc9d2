package servers

import (
	"os/exec"
	"runtime"
	"time"
)

// A child is a process that this one started.
type child struct {
	cmd  *exec.Cmd
	gone chan struct{} // closed when the process is gone and its output read
}

// startChild starts cmd with its output going to out.
func startChild(cmd *exec.Cmd, out *ring) (*child, error) {
	cmd.Stdout, cmd.Stderr = out, out
	// A grandchild may hold the pipe open after the child is gone.
	cmd.WaitDelay = 5 * time.Second
	ownGroup(cmd)
	c := &child{cmd: cmd, gone: make(chan struct{})}
	started := make(chan error)
	go func() {
		// Linux sends the parent-death signal (see ownGroup) when the thread
		// that forked the child ends, not when the process does, and the Go
		// runtime ends idle threads. So this goroutine keeps its thread to
		// itself until the child is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // a server's exit status says nothing that its output doesn't
			close(c.gone)
		}
	}()
	return c, <-started
}

func (c *child) alive() bool {
	select {
	case <-c.gone:
		return false
	default:
		return true
	}
}

// kill ends the process and what it started, and waits for it.
func (c *child) kill() {
	if c.alive() {
		killGroup(c.cmd)
	}
	<-c.gone
}

// stop asks the process to end, kills it after grace, and waits for it.
func (c *child) stop(grace time.Duration) {
	if c.alive() {
		terminate(c.cmd)
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-c.gone:
	case <-timer.C:
		c.kill()
	}
}
