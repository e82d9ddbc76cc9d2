//go:build unix

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
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
	ended    <-chan int // its exit code, once
	terminal bool       // the group has the terminal that was ours
}

// start starts the command. Where standard input is our terminal the command's
// group gets it: then Ctrl-C reaches the command by itself, and only once.
func start(cmd *exec.Cmd) (*process, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p := &process{terminal: hasTerminal()}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p.pid = cmd.Process.Pid
	if p.terminal {
		p.giveTerminal()
		signal.Ignore(syscall.SIGTTOU) // or taking it back would stop us
	}
	ended := make(chan int, 1)
	p.ended = ended
	go func() { ended <- p.wait() }()
	return p, nil
}

// wait returns the command's exit code. Ctrl-Z stops us together with it.
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
		case p.terminal && status.StopSignal() == syscall.SIGTSTP:
			p.takeTerminal()
			_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) // until SIGCONT
		}
	}
}

func exitStatus(s syscall.WaitStatus) int {
	if s.Signaled() {
		return 128 + int(s.Signal())
	}
	return s.ExitStatus()
}

// signal passes a signal on to the group.
func (p *process) signal(s os.Signal) {
	if s == syscall.SIGCONT && p.terminal && hasTerminal() {
		p.giveTerminal() // the shell has put us into the foreground
		return
	}
	_ = syscall.Kill(-p.pid, s.(syscall.Signal))
}

// terminate asks all of the group to end, also those that are stopped.
func (p *process) terminate() {
	_ = syscall.Kill(-p.pid, syscall.SIGTERM)
	_ = syscall.Kill(-p.pid, syscall.SIGCONT)
}

func (p *process) kill() { _ = syscall.Kill(-p.pid, syscall.SIGKILL) }

// alive reports whether anybody of the group is left.
func (p *process) alive() bool { return !errors.Is(syscall.Kill(-p.pid, 0), syscall.ESRCH) }

func (p *process) close() {
	if p.terminal {
		p.takeTerminal()
		signal.Reset(syscall.SIGTTOU)
	}
}

// hasTerminal reports whether standard input is a terminal that is ours.
func hasTerminal() bool {
	group, err := unix.IoctlGetInt(unix.Stdin, unix.TIOCGPGRP)
	return err == nil && group == syscall.Getpgrp()
}

func (p *process) giveTerminal() {
	_ = unix.IoctlSetPointerInt(unix.Stdin, unix.TIOCSPGRP, p.pid)
	// It may have been stopped when it read before.
	_ = syscall.Kill(-p.pid, syscall.SIGCONT)
}

func (p *process) takeTerminal() {
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
