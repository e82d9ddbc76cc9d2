// Package faultproxy is a reverse proxy between an SDK and a server that makes
// things go wrong on purpose: answers are lost after the server applied the
// request, requests are late, come twice, or are answered by something else.
//
// Faults are data, with a text form that prints and parses, and each counts
// how often it was met, so that a test can assert that all of them were.
//
//	p, _ := faultproxy.New(server.URL)
//	defer p.Close()
//	lost := p.Add(faultproxy.Rule{Method: "PUT", Key: "a/b", Fault: faultproxy.Fault{Kind: faultproxy.DropAnswer}})
//	... use p.URL() as the endpoint ...
//	if lost.Fired() != 1 { ... }
//
// Where no rule applies it is as good as a wire, so signatures stay valid: the
// path and the query reach the server byte for byte, the Host header is the
// one that the client sent, and headers, body, chunks and trailers are those
// that came. Only what concerns a single connection (Connection, Keep-Alive)
// is its own. It never sends a request twice by itself, and when the server
// can't be reached or gives no answer, neither does it: the client's connection
// is reset, since a 502 would be an answer that no server gave.
package faultproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A Proxy stands before one server. Its methods may be called at any time
// from several goroutines.
type Proxy struct {
	target    *url.URL
	listener  net.Listener
	server    *http.Server
	transport *http.Transport
	ctx       context.Context // ends with Close
	cancel    context.CancelFunc
	working   sync.WaitGroup

	mu         sync.Mutex
	closed     bool
	injections []*Injection
	chooser    *Chooser
	counts     map[string]int // requests per operation, for the chooser
	log        []*Request
	duplicates []*outgoing
}

// A Request is what the proxy saw of one request.
type Request struct {
	Method      string
	Path, Query string // as they were on the wire
	Key         string // without the bucket, decoded; "" when the path has none
	Op          string // the DynamoDB operation, from X-Amz-Target
	// Header is as received, without Authorization and X-Amz-Security-Token.
	Header http.Header
	Faults []Fault // that it met
	// Upstream is the server's status; 0 when the server wasn't asked or gave no answer.
	Upstream int
	// Status is what the client got; 0 when it got no answer.
	Status    int
	Duplicate bool  // sent by SendDuplicates
	Err       error // why the server gave no answer
}

// New starts a proxy on a free port of 127.0.0.1. The target is a server's
// URL: http, host and port, nothing more.
func New(target string) (*Proxy, error) {
	u, err := url.Parse(target)
	if err != nil {
		return nil, fmt.Errorf("faultproxy: %w", err)
	}
	if u.Scheme != "http" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil {
		return nil, fmt.Errorf("faultproxy: target %s: it must be http://HOST:PORT", u.Redacted())
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("faultproxy: %w", err)
	}
	p := &Proxy{
		target:   u,
		listener: listener,
		transport: &http.Transport{
			// No connection is kept: on one that was used before, the
			// transport sends some requests again when the server hangs up.
			// DisableKeepAlives would do, too, but by "Connection: close",
			// and a Go server that reads this resets the connection after an
			// early answer, such as a 412, instead of reading the body first.
			MaxIdleConnsPerHost: -1,
			DisableCompression:  true, // or it would ask for gzip and undo it
			// The server's own 100 comes first: reading the body is what makes
			// this end send its 100. As long as Go's client would wait for it.
			ExpectContinueTimeout: time.Second,
		},
		counts: map[string]int{},
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.server = &http.Server{
		Handler:                      http.HandlerFunc(p.serve),
		BaseContext:                  func(net.Listener) context.Context { return p.ctx },
		ErrorLog:                     log.New(io.Discard, "", 0), // aborted answers are the point
		DisableGeneralOptionsHandler: true,
	}
	// For the same reason on the client's side: Go's client, under the SDK,
	// sends a GET again with no word when a connection that was used before is
	// reset, and an injected fault would never surface.
	p.server.SetKeepAlivesEnabled(false)
	p.working.Go(func() { _ = p.server.Serve(listener) }) // Close ends it
	return p, nil
}

// URL is the endpoint to give to clients.
func (p *Proxy) URL() string { return "http://" + p.listener.Addr().String() }

// Close ends the proxy. Requests under way are cut off, held ones are never
// forwarded. It returns when nothing of them runs any more.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	err := p.server.Close()
	p.working.Wait()
	return err
}

// An Injection is a rule in use.
type Injection struct {
	proxy   *Proxy
	rule    Rule
	seen    int // guarded by proxy.mu, as is fired
	fired   int
	reach   sync.Once
	reached chan struct{}
	free    sync.Once
	freed   chan struct{}
}

// Add puts a rule behind those that are there. Rules are looked at in order;
// a request that meets a fault which decides the answer isn't seen by later
// ones. It panics on a rule that doesn't pass [Rule.Check].
func (p *Proxy) Add(rule Rule) *Injection {
	if err := rule.Check(); err != nil {
		panic(fmt.Sprintf("faultproxy: rule %q: %v", rule.String(), err))
	}
	in := &Injection{proxy: p, rule: rule, reached: make(chan struct{}), freed: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.injections = append(p.injections, in)
	return in
}

// AddText adds the rules of a text, all or, on an error, none.
func (p *Proxy) AddText(text string) ([]*Injection, error) {
	rules, err := ParseRules(text)
	if err != nil {
		return nil, fmt.Errorf("faultproxy: %w", err)
	}
	var all []*Injection
	for _, rule := range rules {
		all = append(all, p.Add(rule))
	}
	return all, nil
}

// Hold adds a rule whose fault is Hold, or HoldAnswer if it says so.
func (p *Proxy) Hold(rule Rule) *Injection {
	if rule.Fault.Kind != HoldAnswer {
		rule.Fault = Fault{Kind: Hold}
	}
	return p.Add(rule)
}

// Randomly gives every request that no rule has decided the chooser's faults;
// nil ends it.
func (p *Proxy) Randomly(c *Chooser) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.chooser = c
	clear(p.counts)
}

// Unused returns the rules in use that no request has met.
func (p *Proxy) Unused() Rules {
	p.mu.Lock()
	defer p.mu.Unlock()
	var rules Rules
	for _, in := range p.injections {
		if in.fired == 0 {
			rules = append(rules, in.rule)
		}
	}
	return rules
}

// Rule returns the rule.
func (in *Injection) Rule() Rule { return in.rule }

// Fired is how many requests have met the fault so far.
func (in *Injection) Fired() int {
	in.proxy.mu.Lock()
	defer in.proxy.mu.Unlock()
	return in.fired
}

// Reached is closed when the fault first took effect: with Hold the request
// is here, whole, and the server has seen nothing of it; with HoldAnswer,
// DropAnswer, TruncateAnswer and EmptyAnswer the server has answered.
func (in *Injection) Reached() <-chan struct{} { return in.reached }

// Release lets all go that is held, now and later.
func (in *Injection) Release() { in.free.Do(func() { close(in.freed) }) }

// Remove takes the rule away, and releases what it holds.
func (in *Injection) Remove() {
	in.proxy.mu.Lock()
	in.proxy.injections = slices.DeleteFunc(in.proxy.injections, func(x *Injection) bool { return x == in })
	in.proxy.mu.Unlock()
	in.Release()
}

// Requests returns the log so far, in order of arrival.
func (p *Proxy) Requests() []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]Request, len(p.log))
	for i, q := range p.log {
		all[i] = *q
		all[i].Header = q.Header.Clone()
		all[i].Faults = slices.Clone(q.Faults)
	}
	return all
}

// ClearRequests empties the log.
func (p *Proxy) ClearRequests() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log = nil
}

// A met fault is one with the rule that asked for it, nil if a chooser did.
type met struct {
	Fault
	in *Injection
}

// takesEffect tells those who wait for it.
func (m met) takesEffect() {
	if m.in != nil {
		m.in.reach.Do(func() { close(m.in.reached) })
	}
}

// arrive logs a request and says which faults it meets.
func (p *Proxy) arrive(r *http.Request) (*Request, []met) {
	q := &Request{Method: r.Method, Header: r.Header.Clone()}
	q.Header.Del("Authorization")
	q.Header.Del("X-Amz-Security-Token")
	q.Path, q.Query, _ = strings.Cut(r.RequestURI, "?")
	_, q.Key, _ = strings.Cut(strings.TrimPrefix(q.Path, "/"), "/")
	if key, err := url.PathUnescape(q.Key); err == nil {
		q.Key = key
	}
	if _, op, ok := strings.Cut(r.Header.Get("X-Amz-Target"), "."); ok {
		q.Op = op
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	p.log = append(p.log, q)
	var faults []met
	decided := false
	for _, in := range p.injections {
		if !in.rule.matches(q) {
			continue
		}
		in.seen++
		nth, times := max(in.rule.Nth, 1), in.rule.Times
		if in.seen < nth || times != Forever && in.seen >= nth+max(times, 1) {
			continue
		}
		in.fired++
		faults = append(faults, met{in.rule.Fault, in})
		if decided = in.rule.Fault.decides(); decided {
			break
		}
	}
	if p.chooser != nil && !decided {
		op := operation(q)
		p.counts[op]++
		if f := p.chooser.Choose(op, p.counts[op]); f != (Fault{}) {
			faults = append(faults, met{f, nil})
		}
	}
	for _, f := range faults {
		q.Faults = append(q.Faults, f.Fault)
	}
	return q, faults
}

// operation names what a request does, without the values in its query: an
// upload's id differs from run to run.
func operation(q *Request) string {
	var names []string
	for name := range parameters(q.Query) {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(append([]string{q.Method, q.Path, q.Op}, names...), " ")
}

// note changes a log entry.
func (p *Proxy) note(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

var errClosed = errors.New("the proxy is closed")

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		reset(w)
		return
	}
	p.working.Add(1)
	p.mu.Unlock()
	defer p.working.Done()

	// An early answer must not make this end read the body behind the
	// transport's back.
	_ = http.NewResponseController(w).EnableFullDuplex()
	q, faults := p.arrive(r)
	out := newOutgoing(r)

	// What a fault promises holds whether or not the client still waits.
	// Without one, a client that hangs up hangs up on the server.
	ctx := r.Context()
	if len(faults) > 0 {
		ctx = p.ctx
	}
	var final met
	var held []met
	duplicate := false
	for _, f := range faults {
		switch f.Kind {
		case Delay, Hold:
			if err := out.buffer(); err != nil {
				p.note(func() { q.Err = err })
				reset(w)
				return
			}
			f.takesEffect()
			if !p.wait(f) {
				p.note(func() { q.Err = errClosed })
				reset(w)
				return
			}
		case DuplicateLater:
			if err := out.buffer(); err != nil {
				p.note(func() { q.Err = err })
				reset(w)
				return
			}
			f.takesEffect()
			duplicate = true
		case StripHeaders:
			strip(out.header, f.Headers)
			f.takesEffect()
		case HoldAnswer:
			held = append(held, f)
		default:
			final = f
		}
	}
	if duplicate {
		p.note(func() { p.duplicates = append(p.duplicates, out) })
	}

	switch final.Kind {
	case Reset:
		final.takesEffect()
		reset(w)
		return
	case Status, ErrorIn200:
		// A server would have read it, too; and a client that is still
		// sending might miss the answer.
		_ = out.buffer()
		status := final.Status
		if final.Kind == ErrorIn200 {
			status = http.StatusOK
		}
		a := errorAnswer(q, status)
		final.takesEffect()
		if !p.waitAll(held) {
			reset(w)
			return
		}
		p.note(func() { q.Status = status })
		a.write(w)
		return
	}

	resp, err := p.forward(ctx, out)
	if err != nil {
		p.note(func() { q.Err = err })
		reset(w)
		return
	}
	defer resp.Body.Close()
	p.note(func() { q.Upstream = resp.StatusCode })
	if len(held) == 0 && final.Kind == "" {
		p.note(func() { q.Status = resp.StatusCode })
		stream(w, resp)
		return
	}

	a := answer{status: resp.StatusCode, header: answerHeader(resp), head: r.Method == http.MethodHead}
	if a.body, err = io.ReadAll(resp.Body); err != nil {
		p.note(func() { q.Err = err })
		reset(w)
		return
	}
	if !p.waitAll(held) {
		reset(w)
		return
	}
	final.takesEffect()
	switch final.Kind {
	case DropAnswer:
		reset(w)
	case TruncateAnswer:
		a.writeTruncated(w)
	case EmptyAnswer:
		p.note(func() { q.Status = a.status })
		a.body, a.head = nil, false
		a.write(w)
	default:
		p.note(func() { q.Status = a.status })
		a.write(w)
	}
}

// wait waits out a delay or a hold; false says that the proxy was closed.
func (p *Proxy) wait(f met) bool {
	if f.Kind == Delay {
		timer := time.NewTimer(f.Delay)
		defer timer.Stop()
		select {
		case <-timer.C:
			return true
		case <-p.ctx.Done():
			return false
		}
	}
	select {
	case <-f.in.freed:
		return true
	case <-p.ctx.Done():
		return false
	}
}

func (p *Proxy) waitAll(held []met) bool {
	for _, f := range held {
		f.takesEffect()
		if !p.wait(f) {
			return false
		}
	}
	return true
}

// An outgoing request is one as it came, to be forwarded.
type outgoing struct {
	method, target, host string
	header, trailer      http.Header
	length               int64 // -1 when it came in chunks
	body                 io.ReadCloser
	buffered             []byte
	isBuffered           bool
}

func newOutgoing(r *http.Request) *outgoing {
	o := &outgoing{
		method: r.Method, target: r.RequestURI, host: r.Host,
		header: r.Header.Clone(), trailer: r.Trailer,
		length: r.ContentLength, body: r.Body,
	}
	delete(o.header, "Connection")
	delete(o.header, "Keep-Alive")
	if _, ok := o.header["User-Agent"]; !ok {
		o.header["User-Agent"] = []string{""} // or Go would add its own
	}
	return o
}

// buffer reads the body, so that the request no longer needs its client.
func (o *outgoing) buffer() error {
	if o.isBuffered {
		return nil
	}
	body, err := io.ReadAll(o.body)
	if err != nil {
		return fmt.Errorf("reading the client's request: %w", err)
	}
	o.buffered, o.isBuffered = body, true
	// The client has had its 100, and the body is here.
	delete(o.header, "Expect")
	return nil
}

// url gives the request target byte for byte. Opaque is written as it is,
// unless it begins with two slashes, which net/http would take for a host.
func (o *outgoing) url(host string) (*url.URL, error) {
	path, query, hasQuery := strings.Cut(o.target, "?")
	u := &url.URL{Scheme: "http", Host: host, Opaque: path, RawQuery: query, ForceQuery: hasQuery && query == ""}
	if strings.HasPrefix(path, "//") {
		decoded, err := url.PathUnescape(path)
		if err != nil {
			return nil, err
		}
		u.Opaque, u.Path, u.RawPath = "", decoded, path
	}
	if u.RequestURI() != o.target {
		return nil, fmt.Errorf("can't be forwarded byte for byte: %q", o.target)
	}
	return u, nil
}

func (p *Proxy) forward(ctx context.Context, o *outgoing) (*http.Response, error) {
	u, err := o.url(p.target.Host)
	if err != nil {
		return nil, err
	}
	req := (&http.Request{
		Method: o.method, URL: u, Host: o.host, Header: o.header.Clone(), Trailer: o.trailer,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		ContentLength: o.length, Body: o.body,
	}).WithContext(ctx)
	if o.isBuffered {
		req.Body = io.NopCloser(bytes.NewReader(o.buffered))
	}
	switch {
	case o.length < 0:
		req.TransferEncoding = []string{"chunked"}
	case o.length == 0:
		req.Body = http.NoBody
		if o.header.Get("Content-Length") != "" {
			req.TransferEncoding = []string{"identity"} // makes net/http send "Content-Length: 0" where it wouldn't
		}
	}
	return p.transport.RoundTrip(req)
}

// SendDuplicates sends the requests that DuplicateLater kept again, in order,
// each once, and returns the server's statuses. It stops at the first that
// gets no answer; those after it are kept. They are in the log as duplicates.
func (p *Proxy) SendDuplicates(ctx context.Context) ([]int, error) {
	var statuses []int
	for {
		p.mu.Lock()
		if len(p.duplicates) == 0 {
			p.mu.Unlock()
			return statuses, nil
		}
		if p.closed {
			p.mu.Unlock()
			return statuses, fmt.Errorf("faultproxy: %w", errClosed)
		}
		o := p.duplicates[0]
		p.duplicates = p.duplicates[1:]
		q := &Request{Method: o.method, Header: o.header.Clone(), Duplicate: true}
		q.Header.Del("Authorization")
		q.Header.Del("X-Amz-Security-Token")
		q.Path, q.Query, _ = strings.Cut(o.target, "?")
		p.log = append(p.log, q)
		p.mu.Unlock()
		resp, err := p.forward(ctx, o)
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		if err != nil {
			p.note(func() { q.Err = err })
			return statuses, fmt.Errorf("faultproxy: duplicate of %s %s: %w", o.method, q.Path, err)
		}
		p.note(func() { q.Upstream = resp.StatusCode })
		statuses = append(statuses, resp.StatusCode)
	}
}

// reset resets the client's connection. Without lingering, the system sends
// RST instead of an orderly end.
func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

func answerHeader(resp *http.Response) http.Header {
	h := resp.Header.Clone()
	delete(h, "Connection")
	delete(h, "Keep-Alive")
	// net/http adds these where they are missing; nil keeps it from that.
	for _, name := range []string{"Date", "Content-Type"} {
		if _, ok := h[name]; !ok {
			h[name] = nil
		}
	}
	return h
}

// stream passes the answer on as it comes. When the server breaks off, the
// client's connection breaks off.
func stream(w http.ResponseWriter, resp *http.Response) {
	maps.Copy(w.Header(), answerHeader(resp))
	for name := range resp.Trailer {
		w.Header().Add("Trailer", name)
	}
	w.WriteHeader(resp.StatusCode)
	control := http.NewResponseController(w)
	buf := make([]byte, 32<<10)
	for {
		n, err := resp.Body.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				panic(http.ErrAbortHandler)
			}
			_ = control.Flush()
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
	}
	maps.Copy(w.Header(), resp.Trailer)
}

// An answer is one that is here as a whole.
type answer struct {
	status int
	header http.Header
	body   []byte
	head   bool // to a HEAD: Content-Length speaks of a body that isn't there
}

func (a answer) write(w http.ResponseWriter) {
	maps.Copy(w.Header(), a.header)
	if !a.head && a.status != http.StatusNoContent && a.status != http.StatusNotModified {
		w.Header().Set("Content-Length", strconv.Itoa(len(a.body)))
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body)
}

// writeTruncated writes half of the body, or half of the headers of an answer
// without one, and ends the connection.
func (a answer) writeTruncated(w http.ResponseWriter) {
	var text bytes.Buffer
	fmt.Fprintf(&text, "HTTP/1.1 %d %s\r\n", a.status, http.StatusText(a.status))
	h := a.header.Clone()
	if !a.head {
		h.Set("Content-Length", strconv.Itoa(len(a.body)))
	}
	_ = h.Write(&text)
	cut := text.Len() / 2
	if len(a.body) > 0 {
		text.WriteString("\r\n")
		cut = text.Len() + len(a.body)/2
		text.Write(a.body)
	}
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	_, _ = conn.Write(text.Bytes()[:cut])
	_ = conn.Close() // in order, so that what was written arrives
}
