package main

import (
	"errors"
	"os"
	"os/exec"
)

// forwarded are the signals that the command gets from us. It is in our console,
// and gets Ctrl-C by itself: ours is only not to end from it.
var forwarded = []os.Signal{os.Interrupt}

// A process is a command. What it starts is not followed.
type process struct {
	cmd   *exec.Cmd
	ended <-chan int // its exit code, once
}

func start(cmd *exec.Cmd) (*process, error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan int, 1)
	go func() {
		err := cmd.Wait()
		var exit *exec.ExitError
		switch {
		case errors.As(err, &exit):
			ended <- exit.ExitCode()
		case err != nil:
			ended <- 1
		default:
			ended <- 0
		}
	}()
	return &process{cmd, ended}, nil
}

func (p *process) signal(os.Signal) {}

// terminate kills: there is nothing gentler for a program without a window.
func (p *process) terminate() { p.kill() }

func (p *process) kill() { _ = p.cmd.Process.Kill() }

func (p *process) alive() bool { return false }

func (p *process) close() {}

func reap([]string) error { return errors.New("run: no container of this system has a first process") }
