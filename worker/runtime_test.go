package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-lambda-go/lambda"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/localstack"
	"github.com/s3fence/s3fence/worker"
)

// childEnv has the test binary be a Lambda function over the folder it names.
const childEnv = "S3FENCE_WORKER_CHILD"

// serve is that function: it writes a message's body, "KEY OUTPUT" or "fail",
// and says on standard output what came of it.
func serve(dir string) {
	l, err := localstack.Open(dir, nil)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	w := worker.New(guard.New(l.Store("bucket"), nil), l, "scope", nil)
	lambda.Start(w.SQS(func(ctx context.Context, j *worker.Job, m events.SQSMessage) error {
		key, output, ok := strings.Cut(m.Body, " ")
		if !ok {
			return fmt.Errorf("no work: %s", m.Body)
		}
		res, err := j.Put(ctx, key, guard.Bytes([]byte(output)), nil)
		fmt.Printf("%s\n", res.Outcome)
		return err
	}))
}

// A function is a process that runs serve, and the Runtime API that it asks for
// events.
type function struct {
	events  chan string
	answers chan string
	stdout  string // a file: what was written before the answer is in it by then
}

// startFunction starts one more instance of the function.
func startFunction(t *testing.T, dir string) *function {
	t.Helper()
	f := &function{make(chan string), make(chan string), filepath.Join(t.TempDir(), "stdout")}
	ended := make(chan struct{})
	const api = "/2018-06-01/runtime/invocation/"
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+api+"next", func(w http.ResponseWriter, r *http.Request) {
		select {
		case e := <-f.events:
			h := w.Header()
			h.Set("Lambda-Runtime-Aws-Request-Id", "request-1")
			h.Set("Lambda-Runtime-Deadline-Ms", fmt.Sprint(time.Now().Add(time.Minute).UnixMilli()))
			h.Set("Lambda-Runtime-Invoked-Function-Arn", "arn:aws:lambda:eu-central-1:111122223333:function:worker")
			_, _ = io.WriteString(w, e)
		case <-r.Context().Done():
		case <-ended:
		}
	})
	answer := func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusAccepted)
		select {
		case f.answers <- strings.TrimPrefix(r.URL.Path, api+"request-1/") + " " + string(b):
		case <-ended:
		}
	}
	mux.HandleFunc("POST "+api+"request-1/response", answer)
	mux.HandleFunc("POST "+api+"request-1/error", answer)
	server := httptest.NewServer(mux)

	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := os.Create(f.stdout)
	if err != nil {
		t.Fatal(err)
	}
	defer stdout.Close()
	var stderr bytes.Buffer
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"="+dir, "AWS_LAMBDA_RUNTIME_API="+strings.TrimPrefix(server.URL, "http://"))
	cmd.Stdout, cmd.Stderr = stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
		close(ended)
		server.Close()
		if t.Failed() {
			t.Logf("the function wrote:\n%s", stderr.String())
		}
	})
	return f
}

// message is an event as Lambda sends it.
func message(id, body string) string {
	text, _ := json.Marshal(body)
	return `{"Records":[{"messageId":"` + id + `","receiptHandle":"MessageReceiptHandle","body":` + string(text) + `,
		"attributes":{"ApproximateReceiveCount":"1","SentTimestamp":"1523232000000","SenderId":"123456789012","ApproximateFirstReceiveTimestamp":"1523232000001"},
		"messageAttributes":{},"md5OfBody":"7b270e59b47ff90a553787216d55d91d","eventSource":"aws:sqs",
		"eventSourceARN":"arn:aws:sqs:us-east-1:123456789012:MyQueue","awsRegion":"us-east-1"}]}`
}

// invoke delivers an event and returns the function's answer.
func (f *function) invoke(t *testing.T, event string) string {
	t.Helper()
	const enough = time.Minute
	select {
	case f.events <- event:
	case <-time.After(enough):
		t.Error("the function asked for no event")
		return ""
	}
	select {
	case a := <-f.answers:
		return a
	case <-time.After(enough):
		t.Error("the function did not answer")
		return ""
	}
}

const done = `response {"batchItemFailures":null}`

// Through Lambda's own runtime, in processes of their own: the same message to
// three instances at once, an older message after a newer one, a late retry with
// empty output, and one that fails.
func TestLambdaRuntime(t *testing.T) {
	dir := t.TempDir()
	instances := []*function{startFunction(t, dir), startFunction(t, dir), startFunction(t, dir)}
	all := func(event string) (answers [3]string) {
		var wg sync.WaitGroup
		for i, f := range instances {
			wg.Go(func() { answers[i] = f.invoke(t, event) })
		}
		wg.Wait()
		return answers
	}
	if got := all(message("A", "key of A")); got != [3]string{done, done, done} {
		t.Errorf("A at once: %q", got)
	}
	var said []string
	for _, f := range instances {
		b, err := os.ReadFile(f.stdout)
		if err != nil {
			t.Fatal(err)
		}
		said = append(said, strings.TrimSpace(string(b)))
	}
	slices.Sort(said)
	if !slices.Equal(said, []string{"already-applied", "already-applied", "created"}) {
		t.Errorf("A at once: %q", said)
	}

	l, err := localstack.Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	g := guard.New(l.Store("bucket"), nil)
	for _, step := range []struct{ id, body, answer, want string }{
		{"A", "key ", done, "of A"},
		{"B", "key of B", done, "of B"},
		{"A", "key of A", done, "of B"},
		{"C", "fail", `response {"batchItemFailures":[{"itemIdentifier":"C"}]}`, "of B"},
		{"C", "key of C", done, "of C"},
	} {
		if got := instances[0].invoke(t, message(step.id, step.body)); got != step.answer {
			t.Errorf("message %s, %q: %s, want %s", step.id, step.body, got, step.answer)
		}
		if got := read(t, g, "key"); got != step.want {
			t.Errorf("after message %s, %q the object holds %q, want %q", step.id, step.body, got, step.want)
		}
	}
}
