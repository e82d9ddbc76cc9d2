// Worker is a Lambda function for an SQS queue, run here on the embedded store
// and issuer, with no AWS account and no server:
//
//	go run ./examples/worker
//
// A queue delivers each message at least once. The example delivers one three
// times at once, an older one again after a newer one, and one again whose work
// comes to nothing the second time; and shows what each delivery came to and
// what the object holds after it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"

	"github.com/aws/aws-lambda-go/events"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/localstack"
	"github.com/s3fence/s3fence/worker"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "s3fence-worker-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	local, err := localstack.Open(dir, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, local.Close()) }()

	// On AWS these are s3store.New and issuer.OpenDynamoDB, and the last line is
	// lambda.Start(handler): docs/workers.md has it.
	g := guard.New(local.Store("reports"), nil)
	w := worker.New(g, local, "reports", &worker.Options{Logger: slog.New(slog.DiscardHandler)})
	const key = "today.txt"

	// The handler is all that a function has of its own: it makes a report of
	// what the message says.
	handler := w.SQS(func(ctx context.Context, job *worker.Job, m events.SQSMessage) error {
		res, err := job.Put(ctx, key, guard.Bytes([]byte(m.Body)), nil)
		if err == nil {
			fmt.Printf("  message %s, token %d: %s\n", m.MessageId, job.Token().Number(), res.Outcome)
		}
		return err
	})

	deliver := func(id, body string, times int) error {
		var wg sync.WaitGroup
		failed := make(chan error, times)
		for range times {
			wg.Go(func() {
				resp, err := handler(ctx, events.SQSEvent{Records: []events.SQSMessage{{MessageId: id, Body: body}}})
				if len(resp.BatchItemFailures) > 0 {
					err = fmt.Errorf("message %s failed", id)
				}
				if err != nil {
					failed <- err
				}
			})
		}
		wg.Wait()
		select {
		case err := <-failed:
			return err
		default:
		}
		_, r, err := g.Get(ctx, key, nil)
		if err != nil {
			return err
		}
		defer r.Close()
		holds, err := io.ReadAll(r)
		fmt.Printf("  %s holds %q\n\n", key, holds)
		return err
	}
	for _, step := range []struct {
		says, id, body string
		times          int
	}{
		{"Message A is delivered three times at once: one write.", "A", "report of Monday", 3},
		{"Message A again, and its work comes to nothing: the good report stays.", "A", "", 1},
		{"Message B is newer.", "B", "report of Tuesday", 1},
		{"Message A once more, late: B's report stays.", "A", "report of Monday", 1},
	} {
		fmt.Println(step.says)
		if err := deliver(step.id, step.body, step.times); err != nil {
			return err
		}
	}
	return nil
}
