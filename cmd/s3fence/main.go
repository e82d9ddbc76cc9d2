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
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second signal finds the default action back in place and kills.
	context.AfterFunc(ctx, stop)
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv}
	return a.main(ctx, os.Args[1:])
}
