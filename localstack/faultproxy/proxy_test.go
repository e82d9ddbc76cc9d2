package faultproxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// A backend counts and remembers what reaches it.
type backend struct {
	*httptest.Server
	mu   sync.Mutex
	seen []string // method, request target, body
}

func newBackend(t *testing.T) *backend {
	b := &backend{}
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		b.mu.Lock()
		b.seen = append(b.seen, r.Method+" "+r.RequestURI+" "+string(body))
		b.mu.Unlock()
		w.Header().Set("Etag", `"e"`)
		w.Header().Set("X-Had", strings.Join(r.Header.Values("X-Amz-Meta-Fence-Token"), ","))
		if r.Method != http.MethodPut {
			fmt.Fprint(w, "the answer's body")
		}
	}))
	t.Cleanup(b.Close)
	return b
}

func (b *backend) requests() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.seen...)
}

func start(t *testing.T, target string) *Proxy {
	t.Helper()
	p, err := New(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func fault(t *testing.T, p *Proxy, text string) *Injection {
	t.Helper()
	all, err := p.AddText(text)
	if err != nil {
		t.Fatal(err)
	}
	return all[0]
}

// do sends a request, and returns the status and body or the error.
func do(ctx context.Context, method, url, body string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("X-Amz-Meta-Fence-Token", "r1")
	req.Header.Set("Authorization", "secret")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

func TestFaults(t *testing.T) {
	const reset = -1
	tests := []struct {
		rule, method string
		status       int // what the client gets
		body         string
		applied      int // requests that reach the server
		upstream     int
	}{
		{"GET key=other reset", "GET", 200, "the answer's body", 1, 200},
		{"PUT reset", "PUT", reset, "", 0, 0},
		{"GET reset", "GET", reset, "", 0, 0},
		{"PUT drop-answer", "PUT", reset, "", 1, 200},
		{"GET drop-answer", "GET", reset, "", 1, 200},
		{"PUT delay=1ms", "PUT", 200, "", 1, 200},
		{"PUT status=503", "PUT", 503, "<Code>SlowDown</Code>", 0, 0},
		{"PUT status=500", "PUT", 500, "<Code>InternalError</Code>", 0, 0},
		{"PUT status=409", "PUT", 409, "<Code>ConditionalRequestConflict</Code>", 0, 0},
		{"PUT status=412", "PUT", 412, "<Code>PreconditionFailed</Code>", 0, 0},
		{"PUT status=304", "PUT", 304, "", 0, 0},
		{"HEAD status=500", "HEAD", 500, "", 0, 0},
		{"POST error-in-200", "POST", 200, "<Error>", 0, 0},
		{"POST empty-answer", "POST", 200, "", 1, 200},
		{"PUT strip-headers=x-amz-meta-*", "PUT", 200, "", 1, 200},
		{"PUT duplicate-later", "PUT", 200, "", 1, 200},
	}
	for _, tt := range tests {
		t.Run(tt.rule, func(t *testing.T) {
			b := newBackend(t)
			p := start(t, b.URL)
			in := fault(t, p, tt.rule)
			fires := in.Rule().Key == ""
			status, body, err := do(t.Context(), tt.method, p.URL()+"/bucket/key", "data")
			if tt.status == reset {
				if !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("not reset: %d %q %v", status, body, err)
				}
			} else if err != nil || status != tt.status || !strings.Contains(body, tt.body) || tt.body == "" && body != "" {
				t.Errorf("the client got %d %q %v", status, body, err)
			}
			if got := len(b.requests()); got != tt.applied {
				t.Errorf("%d requests reached the server", got)
			}
			if (in.Fired() == 1) != fires || (len(p.Unused()) == 0) != fires {
				t.Errorf("fired %d times, unused: %v", in.Fired(), p.Unused())
			}
			log := p.Requests()
			if len(log) != 1 {
				t.Fatalf("%d requests in the log", len(log))
			}
			q := log[0]
			if q.Upstream != tt.upstream || q.Status != max(tt.status, 0) || q.Key != "key" || q.Header.Get("Authorization") != "" {
				t.Errorf("logged: %+v", q)
			}
			if fires && (len(q.Faults) != 1 || !strings.HasSuffix(tt.rule, q.Faults[0].String())) {
				t.Errorf("faults logged: %v", q.Faults)
			}
		})
	}
}

func TestTruncatedAnswer(t *testing.T) {
	b := newBackend(t)
	p := start(t, b.URL)
	fault(t, p, "* times=all truncate-answer")
	if status, body, err := do(t.Context(), "GET", p.URL()+"/bucket/key", ""); status != 200 || body != "the answ" || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("with a body: %d %q %v", status, body, err)
	}
	if status, _, err := do(t.Context(), "PUT", p.URL()+"/bucket/key", "data"); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("without one: %d %v", status, err)
	}
	if status, _, err := do(t.Context(), "HEAD", p.URL()+"/bucket/key", ""); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("HEAD: %d %v", status, err)
	}
	if n := len(b.requests()); n != 3 {
		t.Errorf("%d requests reached the server", n)
	}
}

func TestDynamoDBErrors(t *testing.T) {
	b := newBackend(t)
	p := start(t, b.URL)
	in := fault(t, p, "POST op=UpdateItem status=500")
	for _, op := range []string{"GetItem", "UpdateItem"} {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, p.URL()+"/", strings.NewReader("{}"))
		req.Header.Set("X-Amz-Target", "DynamoDB_20120810."+op)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if hit := op == "UpdateItem"; hit != strings.Contains(string(body), "#InternalServerError") || hit != (resp.StatusCode == http.StatusInternalServerError) {
			t.Errorf("%s: %d %s", op, resp.StatusCode, body)
		}
	}
	if in.Fired() != 1 {
		t.Errorf("fired %d times", in.Fired())
	}
}

func TestNthAndTimes(t *testing.T) {
	b := newBackend(t)
	p := start(t, b.URL)
	fault(t, p, "PUT nth=2 times=2 status=503\nPUT nth=2 status=409\nPUT nth=4 times=all status=500")
	var got []int
	for range 7 {
		status, _, err := do(t.Context(), "PUT", p.URL()+"/bucket/key", "")
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, status)
	}
	// The first rule takes the second and third request; the second rule
	// sees the first, fourth, ...; the third rule the first, fifth, ...
	if want := []int{200, 503, 503, 409, 200, 200, 500}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, not %v", got, want)
	}
}

func TestFaultsAddUp(t *testing.T) {
	b := newBackend(t)
	p := start(t, b.URL)
	all, err := p.AddText("PUT strip-headers=x-amz-meta-*\nPUT drop-answer\nPUT reset")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := do(t.Context(), "PUT", p.URL()+"/bucket/key", ""); !errors.Is(err, syscall.ECONNRESET) {
		t.Error(err)
	}
	if all[0].Fired() != 1 || all[1].Fired() != 1 || all[2].Fired() != 0 || len(b.requests()) != 1 {
		t.Errorf("fired %d %d %d, %d reached the server", all[0].Fired(), all[1].Fired(), all[2].Fired(), len(b.requests()))
	}
	if _, err := p.AddText("PUT reset\nPUT nonsense"); err == nil || len(p.Unused()) != 1 {
		t.Errorf("a bad text: %v, %v", err, p.Unused())
	}
}

func TestStrippedHeadersAreGone(t *testing.T) {
	arrived := make(chan http.Header, 1)
	b := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { arrived <- r.Header.Clone() }))
	defer b.Close()
	p := start(t, b.URL)
	fault(t, p, "PUT strip-headers=x-amz-meta-*")
	if _, _, err := do(t.Context(), "PUT", p.URL()+"/bucket/key", ""); err != nil {
		t.Fatal(err)
	}
	had := <-arrived
	if had.Get("X-Amz-Meta-Fence-Token") != "" || had.Get("Authorization") == "" {
		t.Errorf("the server saw %v", had)
	}
	if p.Requests()[0].Header.Get("X-Amz-Meta-Fence-Token") != "r1" {
		t.Error("the log doesn't have what came")
	}
}

func TestHoldOutlivesItsClient(t *testing.T) {
	b := newBackend(t)
	p := start(t, b.URL)
	h := p.Hold(Rule{Method: "PUT", Key: "slow"})
	ctx, cancel := context.WithCancel(t.Context())
	gaveUp := make(chan error)
	go func() {
		_, _, err := do(ctx, "PUT", p.URL()+"/bucket/slow", "old")
		gaveUp <- err
	}()
	<-h.Reached()
	cancel()
	if err := <-gaveUp; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if _, _, err := do(t.Context(), "PUT", p.URL()+"/bucket/slow", "new"); err != nil {
		t.Fatal(err)
	}
	if got := b.requests(); len(got) != 1 || got[0] != "PUT /bucket/slow new" {
		t.Fatalf("before Release the server saw %q", got)
	}
	h.Release()
	h.Release()
	waitFor(t, func() bool { return len(b.requests()) == 2 })
	if got := b.requests(); got[1] != "PUT /bucket/slow old" {
		t.Errorf("the server saw %q", got)
	}
}

func TestHoldAnswer(t *testing.T) {
	b := newBackend(t)
	p := start(t, b.URL)
	h := p.Hold(Rule{Method: "GET", Fault: Fault{Kind: HoldAnswer}})
	answered := make(chan string)
	go func() {
		_, body, err := do(t.Context(), "GET", p.URL()+"/bucket/key", "")
		if err != nil {
			t.Error(err)
		}
		answered <- body
	}()
	<-h.Reached()
	if len(b.requests()) != 1 {
		t.Error("the server hasn't seen it")
	}
	select {
	case <-answered:
		t.Error("the answer wasn't held")
	default:
	}
	h.Remove()
	if body := <-answered; body != "the answer's body" {
		t.Errorf("the answer: %q", body)
	}
}

func TestDuplicates(t *testing.T) {
	b := newBackend(t)
	p := start(t, b.URL)
	fault(t, p, "PUT times=2 duplicate-later")
	for _, body := range []string{"one", "two", "three"} {
		if _, _, err := do(t.Context(), "PUT", p.URL()+"/bucket/key?x=%2f", body); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second time there are none
		if _, err := p.SendDuplicates(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var want []string
	for _, body := range []string{"one", "two", "three", "one", "two"} {
		want = append(want, "PUT /bucket/key?x=%2f "+body)
	}
	if got := b.requests(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the server saw %q", got)
	}
	if log := p.Requests(); len(log) != 5 || !log[4].Duplicate || log[4].Upstream != 200 || log[4].Status != 0 || log[4].Header.Get("Authorization") != "" {
		t.Errorf("log: %+v", log)
	}
}

func TestRandomly(t *testing.T) {
	b := newBackend(t)
	p := start(t, b.URL)
	c, err := Random(7, Weight{1, Fault{}}, Weight{1, Fault{Kind: Status, Status: 503}})
	if err != nil {
		t.Fatal(err)
	}
	run := func() string {
		p.Randomly(c)
		var got []int
		for i := range 40 {
			status, _, err := do(t.Context(), "PUT", fmt.Sprintf("%s/bucket/key?uploadId=%d", p.URL(), i), "")
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, status)
		}
		return fmt.Sprint(got)
	}
	if one, two := run(), run(); one != two || !strings.Contains(one, "200") || !strings.Contains(one, "503") {
		t.Errorf("one run: %s\nthe other: %s", one, two)
	}
}

// TestByteForByte looks at what is on the wire on both sides.
func TestByteForByte(t *testing.T) {
	upstream, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer upstream.Close()
	p := start(t, "http://"+upstream.Addr().String())
	for _, target := range []string{
		"/bucket/a%20b/+%25%3F&%23%C3%BC//x", "/bucket//lead", "//lead", "/bucket/a/../b/./c", "/bucket/%2e%2E/%2F",
		"/bucket/^|\"{}", "/bucket/key?", "/bucket/key?a=%2F&a;b&=&c=+%20", "/bucket/key?uploads", "/bucket/\xc3\xbc", "/?x?y", "/bucket/a:b@c",
	} {
		line, header := make(chan string, 1), make(chan string, 1)
		go func() {
			conn, err := upstream.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			r := bufio.NewReader(conn)
			first, _ := r.ReadString('\n')
			line <- first
			var rest strings.Builder
			for {
				s, err := r.ReadString('\n')
				if err != nil || s == "\r\n" {
					break
				}
				rest.WriteString(s)
			}
			header <- rest.String()
			body, _ := io.ReadAll(io.LimitReader(r, 4))
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nX-Body: %s\r\nContent-Length: 0\r\n\r\n", body)
		}()
		conn, err := net.Dial("tcp", strings.TrimPrefix(p.URL(), "http://"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: bucket.example:1\r\nContent-Length: 4\r\nX-Amz-Content-Sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER\r\nContent-Encoding: aws-chunked\r\nIf-None-Match: *\r\n\r\nbody", target)
		answer, err := io.ReadAll(conn)
		conn.Close()
		if err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-line:
			if want := "PUT " + target + " HTTP/1.1\r\n"; got != want {
				t.Errorf("%q became %q", want, got)
			}
		default:
			t.Errorf("%q didn't reach the server: %+v", target, p.Requests())
			continue
		}
		got := <-header
		for _, want := range []string{"Host: bucket.example:1\r\n", "Content-Length: 4\r\n", "If-None-Match: *\r\n", "Content-Encoding: aws-chunked\r\n"} {
			if !strings.Contains(got, want) {
				t.Errorf("%q is missing from\n%s", want, got)
			}
		}
		for _, unwanted := range []string{"User-Agent", "Accept-Encoding", "X-Forwarded", "Transfer-Encoding", "Connection"} {
			if strings.Contains(got, unwanted) {
				t.Errorf("%s was added:\n%s", unwanted, got)
			}
		}
		for _, unwanted := range []string{"Date:", "Content-Type:"} {
			if strings.Contains(string(answer), unwanted) {
				t.Errorf("%s was added:\n%s", unwanted, answer)
			}
		}
		if !strings.Contains(string(answer), "X-Body: body\r\n") {
			t.Errorf("the answer:\n%s", answer)
		}
	}
}

func TestChunksAndTrailers(t *testing.T) {
	b := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Trailer", "X-Sum")
		fmt.Fprintf(w, "%d %v %s %s", r.ContentLength, r.TransferEncoding, body, r.Trailer.Get("X-Checksum"))
		w.Header().Set("X-Sum", "done")
	}))
	defer b.Close()
	p := start(t, b.URL)
	fault(t, p, "PUT nth=2 delay=1ms") // the second time it is kept whole first
	for range 2 {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPut, p.URL()+"/bucket/key", io.MultiReader(strings.NewReader("chunks")))
		req.Trailer = http.Header{"X-Checksum": {"crc"}}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(body) != "-1 [chunked] chunks crc" {
			t.Errorf("the server saw %q (%v)", body, err)
		}
		if resp.Trailer.Get("X-Sum") != "done" {
			t.Errorf("the answer's trailer: %v", resp.Trailer)
		}
	}
}

// The client sends its body only once the server has said 100; a server that
// says no never gets it.
func TestExpectContinue(t *testing.T) {
	b := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Expect") != "100-continue" {
			t.Error("no Expect reached the server")
		}
		if r.URL.Path == "/no" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		io.Copy(w, r.Body)
	}))
	defer b.Close()
	p := start(t, b.URL)
	for path, want := range map[string]struct {
		status int
		read   bool
	}{"/yes": {200, true}, "/no": {403, false}} {
		body := &countingReader{r: strings.NewReader("body")}
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPut, p.URL()+path, body)
		req.ContentLength = 4
		req.Header.Set("Expect", "100-continue")
		client := &http.Client{Transport: &http.Transport{ExpectContinueTimeout: time.Minute, DisableKeepAlives: true}}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want.status || (body.n.Load() > 0) != want.read {
			t.Errorf("%s: %d, %d bytes of the body sent", path, resp.StatusCode, body.n.Load())
		}
	}
}

type countingReader struct {
	r io.Reader
	n atomic.Int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// A server that hangs up with no answer is asked once, also for a GET, which
// Go's transports send again if they may.
func TestNoRetries(t *testing.T) {
	var asked atomic.Int32
	b := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if asked.Add(1) > 1 {
			panic(http.ErrAbortHandler)
		}
	}))
	defer b.Close()
	p := start(t, b.URL)
	if _, _, err := do(t.Context(), "GET", p.URL()+"/bucket/key", ""); err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get(p.URL() + "/bucket/key")
	if err == nil {
		resp.Body.Close()
	}
	if !errors.Is(err, syscall.ECONNRESET) || asked.Load() != 2 {
		t.Errorf("asked %d times: %v", asked.Load(), err)
	}
	if log := p.Requests(); len(log) != 2 || log[1].Err == nil || log[1].Status != 0 {
		t.Errorf("log: %+v", log)
	}
}

func TestServerDown(t *testing.T) {
	b := newBackend(t)
	p := start(t, b.URL)
	b.Close()
	if _, _, err := do(t.Context(), "PUT", p.URL()+"/bucket/key", "x"); !errors.Is(err, syscall.ECONNRESET) {
		t.Error(err)
	}
}

func TestServerBreaksOffInTheAnswer(t *testing.T) {
	b := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "10")
		io.WriteString(w, "half")
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer b.Close()
	p := start(t, b.URL)
	if _, body, err := do(t.Context(), "GET", p.URL()+"/bucket/key", ""); err == nil || body != "half" {
		t.Errorf("%q %v", body, err)
	}
}

// An answer that comes before the body was read must arrive.
func TestEarlyAnswerToALargeBody(t *testing.T) {
	b := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusPreconditionFailed) }))
	defer b.Close()
	p := start(t, b.URL)
	if status, _, err := do(t.Context(), "PUT", p.URL()+"/bucket/key", strings.Repeat("x", 200<<10)); err != nil || status != 412 {
		t.Errorf("%d %v", status, err)
	}
}

func TestCloseEndsEverything(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	b := newBackend(t)
	p, err := New(b.URL)
	if err != nil {
		t.Fatal(err)
	}
	h := p.Hold(Rule{Method: "PUT"})
	a := p.Hold(Rule{Method: "GET", Fault: Fault{Kind: HoldAnswer}})
	fault(t, p, "DELETE delay=1h")
	var wg sync.WaitGroup
	for _, method := range []string{"PUT", "GET", "DELETE"} {
		wg.Go(func() {
			if status, _, err := do(t.Context(), method, p.URL()+"/bucket/key", ""); err == nil {
				t.Errorf("%s: %d", method, status)
			}
		})
	}
	<-h.Reached()
	<-a.Reached()
	waitFor(t, func() bool { return len(p.Requests()) == 3 })
	for range 2 {
		p.Close()
	}
	wg.Wait()
	if got := b.requests(); len(got) != 1 {
		t.Errorf("the server saw %q", got)
	}
	b.Close()
	http.DefaultClient.CloseIdleConnections()
}

func TestNewRefusesWhatIsNoServer(t *testing.T) {
	for _, target := range []string{"", "127.0.0.1:1", "https://127.0.0.1:1", "http://127.0.0.1:1/path", "http://a:b@127.0.0.1:1", "http://127.0.0.1:1?x=1"} {
		if p, err := New(target); err == nil {
			p.Close()
			t.Errorf("%q is taken", target)
		}
	}
}

func waitFor(t *testing.T, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for tick := time.Tick(time.Millisecond); !done(); <-tick {
		if time.Now().After(deadline) {
			t.Fatal("it doesn't come")
		}
	}
}
