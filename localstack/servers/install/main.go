// Install finds or builds the servers that the tests run against, all of them
// or those it is given by name, and says on standard error where they are.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/s3fence/s3fence/localstack/servers"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := servers.Install(ctx, os.Stderr, os.Args[1:]...)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
