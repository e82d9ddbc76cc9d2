package worker_test

import (
	"context"
	"log"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/issuer"
	"github.com/s3fence/s3fence/s3store"
	"github.com/s3fence/s3fence/worker"
)

// A Lambda function for an SQS queue. All but the handler is made once, when the
// process starts.
func ExampleWorker_SQS() {
	ctx := context.Background()
	cfg, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		log.Fatal(err)
	}
	iss, err := issuer.OpenDynamoDB(ctx, dynamodb.NewFromConfig(cfg), "s3fence")
	if err != nil {
		log.Fatal(err)
	}
	g := guard.New(s3store.New(s3.NewFromConfig(cfg), "reports", nil), nil)
	w := worker.New(g, iss, "reports", nil)

	lambda.Start(w.SQS(func(ctx context.Context, job *worker.Job, m events.SQSMessage) error {
		report := []byte("made from " + m.Body)
		_, err := job.Put(ctx, "today.txt", guard.Bytes(report), &guard.PutOptions{SSE: "aws:kms"})
		return err
	}))
}
