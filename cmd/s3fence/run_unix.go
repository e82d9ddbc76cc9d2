//go:build unix

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// forwarded are the signals that the command gets from us.
var forwarded = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.SIGCONT,
}

// A process is a command that leads a process group of its own.
type process struct {
	pid      int
	ended    <-chan int  // its exit code, once
	terminal atomic.Bool // the group has the terminal that was ours
}

// start starts the command. Where standard input is our terminal the command's
// group gets it: then Ctrl-C reaches the command by itself, and only once.
func start(cmd *exec.Cmd) (*process, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	ours := hasTerminal(syscall.Getpgrp())
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{pid: cmd.Process.Pid}
	if ours {
		p.giveTerminal() // one that was stopped before, as it read, wait goes on with
	}
	ended := make(chan int, 1)
	p.ended = ended
	go func() { ended <- p.wait() }()
	return p, nil
}

// wait returns the command's exit code.
func (p *process) wait() int {
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(p.pid, &status, syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 1
		case !status.Stopped():
			return exitStatus(status)
		default:
			p.stopped(status.StopSignal())
		}
	}
}

// stopped lets our group stop together with the command's, where that stopped
// for the terminal: by Ctrl-Z, or in the background, where it can't have it. The
// shell sees it then. Where there is no shell to go on with it, the system does
// not stop us.
func (p *process) stopped(by syscall.Signal) {
	switch {
	case by == syscall.SIGTSTP && p.terminal.Load():
		p.takeTerminal()
	case by != syscall.SIGTTIN && by != syscall.SIGTTOU:
		return
	case hasTerminal(p.pid), hasTerminal(syscall.Getpgrp()):
		p.resume() // it is in the foreground meanwhile
		return
	}
	_ = syscall.Kill(0, syscall.SIGTSTP) // until SIGCONT
}

func exitStatus(s syscall.WaitStatus) int {
	if s.Signaled() {
		return 128 + int(s.Signal())
	}
	return s.ExitStatus()
}

// signal passes a signal on to the group.
func (p *process) signal(s os.Signal) {
	switch s {
	case syscall.SIGCONT:
		if hasTerminal(syscall.Getpgrp()) {
			p.resume() // the shell has put us into the foreground
			return
		}
		p.terminal.Store(hasTerminal(p.pid))
	case syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT:
		p.end(s.(syscall.Signal))
		return
	}
	_ = syscall.Kill(-p.pid, s.(syscall.Signal))
}

func (p *process) terminate() { p.end(syscall.SIGTERM) }

// end asks all of the group to end, also those that are stopped.
func (p *process) end(s syscall.Signal) {
	_ = syscall.Kill(-p.pid, s)
	_ = syscall.Kill(-p.pid, syscall.SIGCONT)
}

func (p *process) kill() { _ = syscall.Kill(-p.pid, syscall.SIGKILL) }

// alive reports whether anybody of the group is left.
func (p *process) alive() bool { return !errors.Is(syscall.Kill(-p.pid, 0), syscall.ESRCH) }

func (p *process) close() {
	if p.terminal.Load() {
		p.takeTerminal()
	}
	signal.Reset(syscall.SIGTTOU)
}

// hasTerminal reports whether standard input is a terminal that a process group
// has.
func hasTerminal(group int) bool {
	g, err := unix.IoctlGetInt(unix.Stdin, unix.TIOCGPGRP)
	return err == nil && g == group
}

func (p *process) giveTerminal() {
	signal.Ignore(syscall.SIGTTOU) // or taking it back would stop us
	p.terminal.Store(true)
	_ = unix.IoctlSetPointerInt(unix.Stdin, unix.TIOCSPGRP, p.pid)
}

// resume gives the terminal to the group, which stopped, and goes on with it.
func (p *process) resume() {
	p.giveTerminal()
	_ = syscall.Kill(-p.pid, syscall.SIGCONT)
}

func (p *process) takeTerminal() {
	p.terminal.Store(false)
	_ = unix.IoctlSetPointerInt(unix.Stdin, unix.TIOCSPGRP, syscall.Getpgrp())
}

// reap is what run does as a container's first process: it runs itself with the
// same arguments, passes signals on, and collects what is left without a parent.
// It is a process of its own, since waiting for any child would take those that
// the AWS SDK waits for, such as a credential_process.
func reap(args []string) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 64)
	signal.Notify(signals, append(forwarded, syscall.SIGCHLD)...)
	defer signal.Stop(signals)
	cmd := exec.Command(exe, args...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	for s := range signals {
		if s != syscall.SIGCHLD {
			_ = cmd.Process.Signal(s)
			continue
		}
		for {
			var status syscall.WaitStatus
			pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
			if errors.Is(err, syscall.EINTR) {
				continue
			}
			if err != nil || pid <= 0 {
				break
			}
			if pid == cmd.Process.Pid {
				code := exitStatus(status)
				if code == 0 {
					return nil
				}
				return reportedError{&exitError{fmt.Errorf("exit code %d", code), code}}
			}
		}
	}
	return nil
}
