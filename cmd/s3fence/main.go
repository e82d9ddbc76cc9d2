// Command s3fence writes to object storage under fencing tokens, so that a
// writer that wakes up late can't overwrite a newer owner's work.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() { os.Exit(run()) }

func run() int {
	end := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // by nohup
		end = append(end, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), end...)
	defer stop()
	// A second signal finds the default action back in place and kills.
	context.AfterFunc(ctx, stop)
	// Writing to a pipe that nobody reads is an error then, and no sudden death that
	// leaves things behind. Ignoring it instead would be inherited by other programs.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv}
	return a.main(ctx, os.Args[1:])
}
