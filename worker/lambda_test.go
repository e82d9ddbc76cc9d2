package worker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/issuer"
	"github.com/s3fence/s3fence/worker"
)

var errHandler = errors.New("the handler failed")

// A recorder is a handler that writes the record's text to out/TEXT.
type recorder struct {
	fail     map[string]bool // by text
	began    []string
	outcomes []guard.Outcome
}

func (r *recorder) handle(ctx context.Context, j *worker.Job, text string) error {
	r.began = append(r.began, text)
	if r.fail[text] {
		return errHandler
	}
	res, err := j.Put(ctx, "out/"+text, guard.Bytes([]byte(text)), nil)
	r.outcomes = append(r.outcomes, res.Outcome)
	return err
}

func sqsBatch(arn string, texts ...string) events.SQSEvent {
	var e events.SQSEvent
	for _, text := range texts {
		e.Records = append(e.Records, events.SQSMessage{MessageId: "id-" + text, Body: text, EventSourceARN: arn})
	}
	return e
}

func TestSQSPartialBatch(t *testing.T) {
	const queue, fifo = "arn:aws:sqs:eu-central-1:111122223333:jobs", "arn:aws:sqs:eu-central-1:111122223333:jobs.fifo"
	for name, tt := range map[string]struct {
		arn           string
		fail          []string
		began, failed []string
	}{
		"none":           {queue, nil, []string{"1", "2", "3"}, nil},
		"one":            {queue, []string{"2"}, []string{"1", "2", "3"}, []string{"id-2"}},
		"all":            {queue, []string{"1", "2", "3"}, []string{"1", "2", "3"}, []string{"id-1", "id-2", "id-3"}},
		"FIFO, none":     {fifo, nil, []string{"1", "2", "3"}, nil},
		"FIFO, second":   {fifo, []string{"2"}, []string{"1", "2"}, []string{"id-2", "id-3"}},
		"FIFO, the last": {fifo, []string{"3"}, []string{"1", "2", "3"}, []string{"id-3"}},
	} {
		t.Run(name, func(t *testing.T) {
			w, _, _ := open(t)
			r := &recorder{fail: map[string]bool{}}
			for _, f := range tt.fail {
				r.fail[f] = true
			}
			h := w.SQS(func(ctx context.Context, j *worker.Job, m events.SQSMessage) error { return r.handle(ctx, j, m.Body) })
			deliver := func(texts ...string) (failed []string) {
				resp, err := h(t.Context(), sqsBatch(tt.arn, texts...))
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range resp.BatchItemFailures {
					failed = append(failed, f.ItemIdentifier)
				}
				return failed
			}
			if failed := deliver("1", "2", "3"); !slices.Equal(failed, tt.failed) || !slices.Equal(r.began, tt.began) {
				t.Errorf("began %q, reported %q; want %q and %q", r.began, failed, tt.began, tt.failed)
			}
			if len(tt.failed) == 0 {
				return
			}
			// Only these come again, and this time they work.
			clear(r.fail)
			r.outcomes = nil
			var again []string
			for _, id := range tt.failed {
				again = append(again, strings.TrimPrefix(id, "id-"))
			}
			if failed := deliver(again...); len(failed) > 0 {
				t.Errorf("delivered again: reported %q", failed)
			}
			if !slices.Equal(r.outcomes, slices.Repeat([]guard.Outcome{guard.Created}, len(again))) {
				t.Errorf("delivered again: %q", r.outcomes)
			}
		})
	}
}

// What is applied, superseded or kept is done: its message must not come again.
func TestSQSOutcomesAreDone(t *testing.T) {
	w, g, _ := open(t)
	var text string // the output, whatever the message says
	h := w.SQS(func(ctx context.Context, j *worker.Job, m events.SQSMessage) error {
		_, err := j.Put(ctx, "key", guard.Bytes([]byte(text)), nil)
		return err
	})
	for _, step := range []struct{ id, output, want string }{
		{"A", "good", "good"},
		{"A", "good", "good"}, // already applied
		{"A", "", "good"},     // kept
		{"B", "better", "better"},
		{"A", "good", "better"}, // superseded
	} {
		text = step.output
		resp, err := h(t.Context(), sqsBatch("", step.id))
		if err != nil || len(resp.BatchItemFailures) > 0 {
			t.Errorf("message %s with %q: reported %v, %v", step.id, step.output, resp.BatchItemFailures, err)
		}
		if got := read(t, g, "key"); got != step.want {
			t.Errorf("after message %s with %q the object holds %q, want %q", step.id, step.output, got, step.want)
		}
	}
}

// A message whose token can't be had comes again; and why is in the log, as
// Lambda is not told.
func TestSQSFailuresAreLogged(t *testing.T) {
	var log bytes.Buffer
	_, g, _ := open(t)
	down := errors.New("the counter is down")
	w := worker.New(g, issuerFunc(func(string) (guard.Token, error) { return guard.Token{}, down }), "scope",
		&worker.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	h := w.SQS(func(context.Context, *worker.Job, events.SQSMessage) error {
		t.Error("the handler was run")
		return nil
	})
	resp, err := h(t.Context(), sqsBatch("", "1"))
	if err != nil || len(resp.BatchItemFailures) != 1 || resp.BatchItemFailures[0].ItemIdentifier != "id-1" {
		t.Errorf("reported %v, %v", resp.BatchItemFailures, err)
	}
	for _, want := range []string{"level=ERROR", "id-1", down.Error()} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q: %s", want, &log)
		}
	}
}

func kinesisBatch(texts ...string) events.KinesisEvent {
	var e events.KinesisEvent
	for _, text := range texts {
		e.Records = append(e.Records, events.KinesisEventRecord{
			EventID: "shardId-000000000000:49590" + text, EventSourceArn: "arn:stream",
			Kinesis: events.KinesisRecord{Data: []byte(text), SequenceNumber: "49590" + text},
		})
	}
	return e
}

// Records of a shard are in order: those after a failed one wait for it.
func TestKinesisStopsAtTheFirst(t *testing.T) {
	w, _, _ := open(t)
	r := &recorder{fail: map[string]bool{"2": true}}
	h := w.Kinesis(func(ctx context.Context, j *worker.Job, e events.KinesisEventRecord) error {
		return r.handle(ctx, j, string(e.Kinesis.Data))
	})
	resp, err := h(t.Context(), kinesisBatch("1", "2", "3"))
	if err != nil || len(resp.BatchItemFailures) != 1 || resp.BatchItemFailures[0].ItemIdentifier != "495902" || !slices.Equal(r.began, []string{"1", "2"}) {
		t.Errorf("began %q, reported %v, %v", r.began, resp.BatchItemFailures, err)
	}
	clear(r.fail)
	// Lambda may come back with the whole batch.
	r.outcomes = nil
	resp, err = h(t.Context(), kinesisBatch("1", "2", "3"))
	if err != nil || len(resp.BatchItemFailures) > 0 || !slices.Equal(r.outcomes, []guard.Outcome{guard.AlreadyApplied, guard.Created, guard.Created}) {
		t.Errorf("again: %q, reported %v, %v", r.outcomes, resp.BatchItemFailures, err)
	}
}

func kafkaBatch(offsets map[int64][]int64) events.KafkaEvent {
	e := events.KafkaEvent{EventSourceARN: "arn:cluster", Records: map[string][]events.KafkaRecord{}}
	for partition, os := range offsets {
		for _, o := range os {
			key := fmt.Sprintf("orders-%d", partition)
			e.Records[key] = append(e.Records[key], events.KafkaRecord{
				Topic: "orders", Partition: partition, Offset: o, Value: fmt.Sprintf("%d.%d", partition, o),
			})
		}
	}
	return e
}

func TestKafka(t *testing.T) {
	pos := issuer.NewPosition("cluster", "orders", "")
	for name, token := range map[string]func(events.KafkaRecord) (guard.Token, error){
		"from the issuer": nil,
		"positions": func(r events.KafkaRecord) (guard.Token, error) {
			return pos.Token(fmt.Sprintf("%s/%d", r.Topic, r.Partition), r.Offset)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, g, _ := open(t)
			if token != nil {
				w = worker.New(g, nil, "", quiet)
			}
			r := &recorder{fail: map[string]bool{"0.6": true}}
			h := w.Kafka(token, func(ctx context.Context, j *worker.Job, rec events.KafkaRecord) error {
				return r.handle(ctx, j, rec.Value)
			})
			batch := kafkaBatch(map[int64][]int64{0: {5, 6, 7}, 1: {5, 9}})
			err := h(t.Context(), batch)
			if !errors.Is(err, errHandler) || !strings.Contains(err.Error(), "record 6 of orders-0") || !slices.Equal(r.began, []string{"0.5", "0.6", "1.5", "1.9"}) {
				t.Errorf("began %q, %v", r.began, err)
			}
			clear(r.fail)
			r.outcomes = nil
			if err := h(t.Context(), batch); err != nil {
				t.Errorf("again: %v", err)
			}
			if !slices.Equal(r.outcomes, []guard.Outcome{guard.AlreadyApplied, guard.Created, guard.Created, guard.AlreadyApplied, guard.AlreadyApplied}) {
				t.Errorf("again: %q", r.outcomes)
			}
			if token == nil {
				return
			}
			info, err := g.Stat(t.Context(), "out/1.9")
			if err != nil || info.Record.Number != 10 || info.Record.Scope != "orders/1" || info.Record.Issuer != pos.Issuer {
				t.Errorf("the object's record is %v, %v", info.Record, err)
			}
			r.began = nil
			if err := h(t.Context(), kafkaBatch(map[int64][]int64{0: {-1}})); !errors.Is(err, guard.ErrInvalid) || len(r.began) > 0 {
				t.Errorf("a record with no place: began %q, %v", r.began, err)
			}
		})
	}
}

// The error of one record does not keep the others from being worked on.
func TestS3AndEventBridge(t *testing.T) {
	w, _, _ := open(t)
	r := &recorder{fail: map[string]bool{"1": true}}
	s3 := w.S3(func(ctx context.Context, j *worker.Job, e events.S3EventRecord) error {
		return r.handle(ctx, j, e.S3.Object.Key)
	})
	e := events.S3Event{Records: []events.S3EventRecord{s3Record(func(r *events.S3EventRecord) { r.S3.Object.Key = "1" }), s3Record(func(r *events.S3EventRecord) { r.S3.Object.Key = "2" })}}
	if err := s3(t.Context(), e); !errors.Is(err, errHandler) || !slices.Equal(r.began, []string{"1", "2"}) {
		t.Errorf("began %q, %v", r.began, err)
	}
	clear(r.fail)
	if err := s3(t.Context(), e); err != nil || !slices.Equal(r.outcomes, []guard.Outcome{guard.Created, guard.Created, guard.AlreadyApplied}) {
		t.Errorf("again: %q, %v", r.outcomes, err)
	}

	r = &recorder{fail: map[string]bool{"3": true}}
	bus := w.EventBridge(func(ctx context.Context, j *worker.Job, e events.EventBridgeEvent) error {
		return r.handle(ctx, j, e.DetailType)
	})
	for _, want := range []error{errHandler, nil, nil} {
		if err := bus(t.Context(), events.EventBridgeEvent{ID: "e-3", DetailType: "3"}); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
		clear(r.fail)
	}
	if !slices.Equal(r.outcomes, []guard.Outcome{guard.Created, guard.AlreadyApplied}) {
		t.Errorf("outcomes %q", r.outcomes)
	}
}

func s3Record(change func(*events.S3EventRecord)) events.S3EventRecord {
	r := events.S3EventRecord{EventName: "ObjectCreated:Put", EventTime: time.UnixMilli(1_780_000_000_000), ResponseElements: map[string]string{"x-amz-request-id": "R1"}}
	r.S3.Bucket.Name, r.S3.Object.Key, r.S3.Object.VersionID, r.S3.Object.Sequencer = "in", "a+b", "v1", "0055AED6DCD90281E5"
	change(&r)
	return r
}

// ids records the events that a handler asked tokens for.
func ids(t *testing.T, deliver func(w *worker.Worker)) (asked []string) {
	_, g, l := open(t)
	w := worker.New(g, issuerFunc(func(event string) (guard.Token, error) {
		asked = append(asked, event)
		return l.IssueFor(t.Context(), "scope", event)
	}), "scope", quiet)
	deliver(w)
	return asked
}

// Ids are stored, so those of events that are the same must not change from one
// release to the next; those of other events are others.
func TestEventIDs(t *testing.T) {
	type record = events.S3EventRecord
	s3 := func(change func(*record)) func(*worker.Worker) {
		return func(w *worker.Worker) {
			_ = w.S3(func(context.Context, *worker.Job, record) error { return nil })(t.Context(), events.S3Event{Records: []record{s3Record(change)}})
		}
	}
	sqs := func(id string) func(*worker.Worker) {
		return func(w *worker.Worker) {
			_, _ = w.SQS(func(context.Context, *worker.Job, events.SQSMessage) error { return nil })(t.Context(), events.SQSEvent{Records: []events.SQSMessage{{MessageId: id}}})
		}
	}
	kinesis := func(arn, id string) func(*worker.Worker) {
		return func(w *worker.Worker) {
			e := events.KinesisEvent{Records: []events.KinesisEventRecord{{EventID: id, EventSourceArn: arn}}}
			_, _ = w.Kinesis(func(context.Context, *worker.Job, events.KinesisEventRecord) error { return nil })(t.Context(), e)
		}
	}
	kafka := func(arn, servers string, r events.KafkaRecord) func(*worker.Worker) {
		return func(w *worker.Worker) {
			e := events.KafkaEvent{EventSourceARN: arn, BootstrapServers: servers, Records: map[string][]events.KafkaRecord{"p": {r}}}
			_ = w.Kafka(nil, func(context.Context, *worker.Job, events.KafkaRecord) error { return nil })(t.Context(), e)
		}
	}
	at := events.MilliSecondsEpochTime{Time: time.UnixMilli(1_780_000_000_000)}
	bus := func(id string) func(*worker.Worker) {
		return func(w *worker.Worker) {
			_ = w.EventBridge(func(context.Context, *worker.Job, events.EventBridgeEvent) error { return nil })(t.Context(), events.EventBridgeEvent{ID: id})
		}
	}
	seen := map[string]bool{}
	for _, tt := range []struct {
		deliver func(*worker.Worker)
		want    string
	}{
		{sqs("m1"), `sqs "m1"`},
		{sqs(""), ""},
		{bus("m1"), `eventbridge "m1"`},
		{bus(""), ""},
		{kinesis("arn:s", "shardId-000000000006:49590"), `kinesis "shardId-000000000006:49590" "arn:s"`},
		{kinesis("arn:s", ""), ""},
		{kafka("arn:c", "b1,b2", events.KafkaRecord{Topic: "t", Partition: 3, Offset: 41, Timestamp: at}), `kafka "t" "arn:c" "3" "41" "1780000000000"`},
		{kafka("", "b1,b2", events.KafkaRecord{Topic: "t", Partition: 3, Offset: 41, Timestamp: at}), `kafka "t" "b1,b2" "3" "41" "1780000000000"`},
		{kafka("arn:c", "", events.KafkaRecord{}), ""},
		{s3(func(*record) {}), `s3 "0055AED6DCD90281E5" "in" "a+b" "v1"`},
		{s3(func(r *record) { r.S3.Object.VersionID = "" }), `s3 "0055AED6DCD90281E5" "in" "a+b" ""`},
		{s3(func(r *record) { r.S3.Object.Sequencer = "" }), `s3 "R1" "in" "a+b" "v1" "ObjectCreated:Put" "2026-05-28T20:26:40Z"`},
		{s3(func(r *record) { r.S3.Object.Sequencer, r.ResponseElements = "", nil }), ""},
	} {
		got := ids(t, tt.deliver)
		if len(got) != 1 || got[0] != tt.want || tt.want != "" && seen[tt.want] {
			t.Errorf("asked for %q, want %q", got, tt.want)
		}
		seen[tt.want] = true
	}
}
