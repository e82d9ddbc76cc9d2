package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/s3fence/s3fence/guard"
)

// SQS returns a Lambda handler for messages of a queue, which runs handle for
// each in turn. A message that failed is reported to be delivered again, alone;
// in a FIFO queue those after it are, too. All others are done with.
//
// The event source mapping must have ReportBatchItemFailures among its function
// response types: without, Lambda deletes the messages that failed.
//
// The event is the message, by its id. What a producer sent twice are two
// messages, and so is one that was moved back out of a dead-letter queue.
func (w *Worker) SQS(handle func(context.Context, *Job, events.SQSMessage) error) func(context.Context, events.SQSEvent) (events.SQSEventResponse, error) {
	return func(ctx context.Context, e events.SQSEvent) (events.SQSEventResponse, error) {
		var resp events.SQSEventResponse
		stop := false
		for _, m := range e.Records {
			if !stop && w.issued(ctx, sqsID(m), func(j *Job) error { return handle(ctx, j, m) }) == nil {
				continue
			}
			stop = stop || strings.HasSuffix(m.EventSourceARN, ".fifo")
			resp.BatchItemFailures = append(resp.BatchItemFailures, events.SQSBatchItemFailure{ItemIdentifier: m.MessageId})
		}
		return resp, nil
	}
}

// Kinesis returns a Lambda handler for records of a stream, which runs handle
// for each in turn. The first that failed is reported, and is delivered again
// with all after it.
//
// The event source mapping must have ReportBatchItemFailures among its function
// response types: without, Lambda goes on after the records that failed.
//
// The event is the record, by its stream, shard and sequence number.
func (w *Worker) Kinesis(handle func(context.Context, *Job, events.KinesisEventRecord) error) func(context.Context, events.KinesisEvent) (events.KinesisEventResponse, error) {
	return func(ctx context.Context, e events.KinesisEvent) (events.KinesisEventResponse, error) {
		for _, r := range e.Records {
			if w.issued(ctx, kinesisID(r), func(j *Job) error { return handle(ctx, j, r) }) == nil {
				continue
			}
			failed := []events.KinesisBatchItemFailure{{ItemIdentifier: r.Kinesis.SequenceNumber}}
			return events.KinesisEventResponse{BatchItemFailures: failed}, nil
		}
		return events.KinesisEventResponse{}, nil
	}
}

// Kafka returns a Lambda handler for records of topics, which runs handle for
// each in turn. After one that failed no other of its partition is tried, and
// the error has Lambda deliver the batch again.
//
// token gives a record's token from its place in the log (issuer.Position); nil
// takes tokens from the worker's issuer. The event is the record, by its topic,
// partition, offset and timestamp.
func (w *Worker) Kafka(token func(events.KafkaRecord) (guard.Token, error), handle func(context.Context, *Job, events.KafkaRecord) error) func(context.Context, events.KafkaEvent) error {
	return func(ctx context.Context, e events.KafkaEvent) error {
		var errs []error
		for _, partition := range slices.Sorted(maps.Keys(e.Records)) {
			for _, r := range e.Records[partition] {
				id := kafkaID(e, r)
				begin := func() (*Job, error) {
					if token == nil {
						return w.Begin(ctx, id)
					}
					tok, err := token(r)
					return w.BeginWith(tok, id), err
				}
				if err := w.run(ctx, id, begin, func(j *Job) error { return handle(ctx, j, r) }); err != nil {
					errs = append(errs, fmt.Errorf("record %d of %s: %w", r.Offset, partition, err))
					break
				}
			}
		}
		return errors.Join(errs...)
	}
}

// S3 returns a Lambda handler for a bucket's notifications, which runs handle
// for each in turn. The error of one that failed has Lambda deliver all of them
// again. The event is what [S3ID] says.
func (w *Worker) S3(handle func(context.Context, *Job, events.S3EventRecord) error) func(context.Context, events.S3Event) error {
	return func(ctx context.Context, e events.S3Event) error {
		var errs []error
		for _, r := range e.Records {
			errs = append(errs, w.issued(ctx, S3ID(r), func(j *Job) error { return handle(ctx, j, r) }))
		}
		return errors.Join(errs...)
	}
}

// EventBridge returns a Lambda handler for events of a bus, by their ids.
func (w *Worker) EventBridge(handle func(context.Context, *Job, events.EventBridgeEvent) error) func(context.Context, events.EventBridgeEvent) error {
	return func(ctx context.Context, e events.EventBridgeEvent) error {
		return w.issued(ctx, eventBridgeID(e), func(j *Job) error { return handle(ctx, j, e) })
	}
}

// issued is run with a token from the issuer.
func (w *Worker) issued(ctx context.Context, event string, handle func(*Job) error) error {
	return w.run(ctx, event, func() (*Job, error) { return w.Begin(ctx, event) }, handle)
}

// The ids below are "" where what they are made of is missing, which no issuer
// takes: an id that two events shared would have the second one's output kept
// out.

func sqsID(m events.SQSMessage) string { return eventID("sqs", m.MessageId) }

// Two streams may have a shard of the same name.
func kinesisID(r events.KinesisEventRecord) string {
	return eventID("kinesis", r.EventID, r.EventSourceArn) // EventID is shard:sequence number
}

// kafkaID has the timestamp, too: a topic that is made anew gives its offsets
// again.
func kafkaID(e events.KafkaEvent, r events.KafkaRecord) string {
	cluster := e.EventSourceARN
	if cluster == "" { // one that AWS does not run
		cluster = e.BootstrapServers
	}
	return eventID("kafka", r.Topic, cluster, fmt.Sprint(r.Partition), fmt.Sprint(r.Offset), fmt.Sprint(r.Timestamp.UnixMilli()))
}

func eventBridgeID(e events.EventBridgeEvent) string { return eventID("eventbridge", e.ID) }

// S3ID returns the id of an S3 notification: bucket, key, version and sequencer,
// or time and request id where S3 gives no sequencer, as for tags. It is for
// notifications that come through SQS or SNS, where S3 may send one event in
// two messages: [Worker.Begin] with it takes them for one.
func S3ID(r events.S3EventRecord) string {
	o := r.S3.Object
	if o.Sequencer != "" {
		return eventID("s3", o.Sequencer, r.S3.Bucket.Name, o.Key, o.VersionID)
	}
	return eventID("s3", r.ResponseElements["x-amz-request-id"], r.S3.Bucket.Name, o.Key, o.VersionID,
		r.EventName, r.EventTime.UTC().Format(time.RFC3339Nano))
}

// eventID joins the parts of an id; essential is the one that must be there.
func eventID(source, essential string, more ...string) string {
	if essential == "" {
		return ""
	}
	// Quoted, so that it is plain where a part ends.
	id := fmt.Sprintf("%s %q", source, essential)
	for _, part := range more {
		id += fmt.Sprintf(" %q", part)
	}
	return id
}
