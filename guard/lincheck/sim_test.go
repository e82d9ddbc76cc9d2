package lincheck_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/internal/mems3"
	"github.com/s3fence/s3fence/guard/lincheck"
)

// A fault is what can happen to one request.
type fault string

const (
	none        fault = "none"
	answerLost  fault = "answer lost"        // applied, and the client sees a reset
	requestLost fault = "request lost"       // not applied, and the client sees a reset
	late        fault = "late"               // the client sees a reset long before it arrives
	twice       fault = "twice"              // and a copy of it arrives later
	twiceLost   fault = "twice, answer lost" // the same, and the client sees a reset
	conflict    fault = "409"                // not applied
	err500      fault = "500"                // not applied
	did500      fault = "500 after applied"  // applied, but the answer says otherwise
	err503      fault = "503"                // not applied
	notSent     fault = "not sent"           // the connection was refused
	noRecord    fault = "metadata dropped"   // of a HEAD's answer or a PUT
	hidden      fault = "hidden retry"       // a proxy on the way sends it again, and passes on the second answer
)

var (
	errReset = errors.New("connection reset by peer")
	err5xx   = errors.New("500 InternalError")
)

// The weights of the faults. A third of the runs are calm, so that clients get
// far; a third are wild.
func weigh(level int, weights map[fault]int) []fault {
	var all []fault
	// A fixed order: that of a map would choose otherwise at each run.
	for _, f := range []fault{answerLost, requestLost, late, twice, twiceLost, conflict, err500, did500, err503, notSent, noRecord, hidden} {
		for range weights[f] * level {
			all = append(all, f)
		}
	}
	for len(all) < 100 {
		all = append(all, none)
	}
	return all
}

var (
	putFaults  = map[fault]int{answerLost: 4, requestLost: 3, late: 4, twice: 2, twiceLost: 2, conflict: 2, err500: 2, did500: 2, err503: 2, notSent: 1}
	headFaults = map[fault]int{requestLost: 3, err500: 3, notSent: 1}
)

// network is a Store a network away: every request and every answer takes its
// time, and by seed they get lost, come late, come twice. A client that stops
// waiting does not stop its request.
type network struct {
	guard.Store
	seed       uint64
	puts, gets []fault
	met        map[fault]int
	trace      func(format string, args ...any)
	mu         sync.Mutex // of met: two requests may be at one instant
}

func (n *network) draw(ctx context.Context, faults []fault) (string, fault, *rand.Rand) {
	q := lincheck.NextRequest(ctx)
	r := lincheck.Rand(n.seed, q.Client, q.Op, q.N)
	f := faults[r.IntN(len(faults))]
	n.mu.Lock()
	n.met[f]++
	n.mu.Unlock()
	return fmt.Sprintf("client %d op %d request %d", q.Client, q.Op, q.N), f, r
}

// An answer is what comes back over the wire.
type answer struct {
	obj  guard.Object
	body io.ReadCloser
	put  guard.PutResult
	err  error
}

// send runs do on the store's side, with do's own time on the way there and
// back, and returns when its answer is here or ctx ends.
func (n *network) send(ctx context.Context, f fault, r *rand.Rand, what string, do func() answer) answer {
	there, back, again := lincheck.Pause(r), lincheck.Pause(r), lincheck.Pause(r)
	reply := make(chan answer, 1)
	log := func(a answer) { n.trace("%s (%s): %v", what, f, a.err) }
	go func() {
		if f == late {
			time.Sleep(there)
			reply <- answer{err: errReset}
			time.Sleep(back + again)
			log(do())
			return
		}
		time.Sleep(there)
		var a answer
		switch f {
		case requestLost:
			a.err = errReset
		case conflict:
			a.err = guard.ErrConflict
		case err500, err503:
			a.err = err5xx
		case notSent:
			a.err = guard.ErrNotSent
		default:
			a = do()
		}
		log(a)
		if f == hidden {
			time.Sleep(again)
			a = do()
			log(a)
		}
		time.Sleep(back)
		switch f {
		case answerLost, twiceLost:
			a = answer{err: errReset}
		case did500:
			a = answer{err: err5xx}
		}
		reply <- a
		if f == twice || f == twiceLost {
			time.Sleep(again)
			log(do())
		}
	}()
	select {
	case a := <-reply:
		return a
	case <-ctx.Done():
		return answer{err: ctx.Err()}
	}
}

// Head implements [guard.Store].
func (n *network) Head(ctx context.Context, key string, opts guard.HeadOptions) (guard.Object, error) {
	what, f, r := n.draw(ctx, n.gets)
	a := n.send(ctx, f, r, what+" HEAD", func() (a answer) {
		a.obj, a.err = n.Store.Head(context.Background(), key, opts)
		return a
	})
	if f == noRecord {
		a.obj.Metadata = nil
	}
	return a.obj, a.err
}

// Get implements [guard.Store].
func (n *network) Get(ctx context.Context, key string, opts guard.ReadOptions) (guard.Object, io.ReadCloser, error) {
	what, f, r := n.draw(ctx, n.gets)
	a := n.send(ctx, f, r, what+" GET", func() (a answer) {
		a.obj, a.body, a.err = n.Store.Get(context.Background(), key, opts)
		return a
	})
	if f == noRecord {
		a.obj.Metadata = nil
	}
	return a.obj, a.body, a.err
}

// Put implements [guard.Store].
func (n *network) Put(ctx context.Context, key string, req guard.PutRequest) (guard.PutResult, error) {
	if err := ctx.Err(); err != nil {
		return guard.PutResult{}, errors.Join(guard.ErrNotSent, err)
	}
	body, err := io.ReadAll(req.Body.Reader()) // it may arrive when the caller is gone
	if err != nil {
		return guard.PutResult{}, err
	}
	req.Body = guard.ReaderAt(bytes.NewReader(body), int64(len(body)))
	req.Headers.Metadata = maps.Clone(req.Headers.Metadata)
	what, f, r := n.draw(ctx, n.puts)
	if f == noRecord {
		delete(req.Headers.Metadata, guard.RecordKey)
	}
	what = fmt.Sprintf("%s PUT %.6q if-match %q", what, body, req.Condition.ETag())
	a := n.send(ctx, f, r, what, func() (a answer) {
		a.put, a.err = n.Store.Put(context.Background(), key, req)
		return a
	})
	return a.put, a.err
}

// List implements [guard.Store].
func (n *network) List(context.Context, guard.ListOptions) iter.Seq2[guard.Listed, error] {
	panic("nobody deletes around the guard here")
}

// A run is one seed's.
type run struct {
	seed    uint64
	history *lincheck.History
	written []lincheck.Written
	met     map[fault]int
	trace   []string
}

// A subject is what is put to the test.
type subject struct {
	// writer makes one process's writer; nil for a Guard.
	writer func(s guard.Store, backoff func(int) time.Duration) lincheck.Writer
	// options has the last word on a write's options.
	options func(*rand.Rand, *guard.PutOptions)
	// puts and heads are faults beside the usual ones.
	puts, heads                map[fault]int
	losesRecords, hidesAnswers bool
}

// source draws write ids; several clients may at once.
type source struct {
	mu sync.Mutex
	r  *rand.ChaCha8
}

func (s *source) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.r.Read(p)
}

// tokens are a real issuer's: the number that a scope gave as its nth, taken
// when it is first asked for, and durably. Runs of one seed share a scope, so
// that a token costs its sync to the disk once.
type tokens struct {
	iss guard.Issuer
	mu  sync.Mutex
	m   map[uint64][]guard.Token
}

func (ts *tokens) nth(ctx context.Context, seed uint64, n int) (guard.Token, error) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for len(ts.m[seed]) <= n {
		tok, err := ts.iss.Issue(ctx, fmt.Sprintf("seed/%d", seed))
		if err != nil {
			return tok, err
		}
		ts.m[seed] = append(ts.m[seed], tok)
	}
	return ts.m[seed][n], nil
}

// outside lets those in a bubble take tokens from outside of it, where the
// issuer's own waiting is. The bubble's clock stands still meanwhile.
func (ts *tokens) outside(t *testing.T, seed uint64) (issue func(context.Context) (guard.Token, error), stop func()) {
	type issued struct {
		tok guard.Token
		err error
	}
	asked, got := make(chan struct{}), make(chan issued)
	go func() {
		n := 0
		for range asked {
			tok, err := ts.nth(t.Context(), seed, n)
			n++
			got <- issued{tok, err}
		}
	}()
	return func(context.Context) (guard.Token, error) {
		asked <- struct{}{}
		i := <-got
		return i.tok, i.err
	}, func() { close(asked) }
}

// simulate runs one seed in a bubble. Whoever waits, waits on the bubble's
// clock, for a time that the seed gives, down to the nanosecond: one thing
// happens at a time, and in the same order whenever the seed is run.
func simulate(t *testing.T, seed uint64, sub subject) *run {
	const key = "k"
	issue, stop := issued.outside(t, seed)
	defer stop()
	res := &run{seed: seed, met: make(map[fault]int)}
	synctest.Test(t, func(t *testing.T) {
		r := lincheck.Rand(seed)
		start := time.Now()
		mem := mems3.New()
		if r.IntN(2) == 0 {
			mem.Bucket.Versioning = guard.VersioningOn
		}
		mem.Bucket.DefaultSSE = []string{"", "", "AES256", "aws:kms"}[r.IntN(4)]
		level := r.IntN(3)
		with := func(a, b map[fault]int) map[fault]int {
			a = maps.Clone(a)
			maps.Copy(a, b)
			return a
		}
		var mu sync.Mutex
		net := &network{
			Store: mem, seed: seed, met: res.met,
			puts: weigh(level, with(putFaults, sub.puts)), gets: weigh(level, with(headFaults, sub.heads)),
			trace: func(format string, args ...any) {
				mu.Lock()
				defer mu.Unlock()
				res.trace = append(res.trace, fmt.Sprintf("%12v  ", time.Since(start))+fmt.Sprintf(format, args...))
			},
		}
		writers := make([]lincheck.Writer, 2+r.IntN(4))
		attempts := 2 + r.IntN(6)
		for i := range writers {
			delays := &source{r: rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16), byte(seed >> 24), byte(i), 1})}
			backoff := func(int) time.Duration {
				delays.mu.Lock()
				defer delays.mu.Unlock()
				return time.Duration(delays.r.Uint64() % uint64(30*time.Millisecond))
			}
			if sub.writer != nil {
				writers[i] = sub.writer(net, backoff)
				continue
			}
			ids := &source{r: rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16), byte(seed >> 24), byte(i), 2})}
			writers[i] = guard.New(net, &guard.Options{MaxAttempts: attempts, Backoff: backoff, Rand: ids, FenceMaxAge: guard.EveryWrite})
		}
		w := &lincheck.Workload{
			Seed: seed, Key: key, Writers: writers,
			Reader: guard.New(mem, nil), Readers: 2, Ops: 5,
			Issue:   issue,
			Sleep:   time.Sleep,
			Options: sub.options,
		}
		res.history = &lincheck.History{LosesRecords: sub.losesRecords, HidesAnswers: sub.hidesAnswers}
		if err := w.Run(t.Context(), res.history); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute) // whatever is still on its way arrives
		w.Read(t.Context(), res.history, len(writers)+w.Readers, 0, false)
		for _, v := range mem.Written(key) {
			got := lincheck.Written{Content: string(v.Body)}
			if rec, err := guard.ParseRecord(v.Metadata[guard.RecordKey]); err == nil {
				got.Record = &rec
			}
			res.written = append(res.written, got)
		}
	})
	return res
}
