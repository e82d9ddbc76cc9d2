package lincheck

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/s3fence/s3fence/guard"
)

// A Writer is what is checked: a [*guard.Guard], or a writer that shall be
// found out.
type Writer interface {
	Put(ctx context.Context, tok guard.Token, key string, body guard.Body, opts *guard.PutOptions) (guard.Result, error)
}

// A Workload is some clients that write and read one key. What each does
// depends on the seed, on who it is and on how far it has come; what it is
// told depends on the others.
type Workload struct {
	Seed uint64
	Key  string
	// Writers are the processes: client i writes through Writers[i], and runs
	// a write of unknown outcome again through any of them.
	Writers []Writer
	// Reader and Readers: how many clients only read, and through what.
	Reader  *guard.Guard
	Readers int
	// Ops is how many each client does, and one more where an outcome was unknown.
	Ops int
	// Issue takes a token from the issuer.
	Issue func(context.Context) (guard.Token, error)
	// Sleep makes a client wait, for up to a second; most waits are a few
	// milliseconds.
	Sleep func(time.Duration)
	// Options, if set, has the last word on a write's options.
	Options func(*rand.Rand, *guard.PutOptions)
}

// Request says which client and which of its ops a context's request belongs
// to, and counts the requests of that op.
type Request struct{ Client, Op, N int }

type requestKey struct{}

// NextRequest returns who makes the request that ctx came with, for stores
// that put faults into it; the zero Request when it isn't a Workload's.
func NextRequest(ctx context.Context) Request {
	r, ok := ctx.Value(requestKey{}).(*Request)
	if !ok {
		return Request{}
	}
	r.N++
	return *r
}

// Rand returns the random numbers of one thing in one run: the same ones for
// the same seed, whatever else happens.
func Rand(seed uint64, who ...int) *rand.Rand {
	h := seed
	for _, n := range who {
		h = rand.NewPCG(h, uint64(n)).Uint64()
	}
	return rand.New(rand.NewPCG(seed, h))
}

// Pause draws a pause: mostly short, sometimes as long as that of a process
// that was stopped.
func Pause(r *rand.Rand) time.Duration {
	limit := 4 * time.Millisecond
	switch n := r.IntN(100); {
	case n >= 92:
		limit = time.Second
	case n >= 75:
		limit = 40 * time.Millisecond
	}
	return time.Duration(1 + r.Int64N(int64(limit)))
}

// contents repeat, and are of one length where they differ, so that neither
// bytes nor size tell two writes apart.
var contents = []string{"", "A", "B"}

// A write is all that makes one logical write.
type write struct {
	token   guard.Token
	content string
	opts    guard.PutOptions
}

// shared is what the clients of one run have between them.
type shared struct {
	mu   sync.Mutex
	last *write // the last write that anybody began
}

// Run runs the workload and returns what the clients were told. It ends when
// every client has; requests may still be under way then.
func (w *Workload) Run(ctx context.Context, h *History) error {
	var s shared
	var wg sync.WaitGroup
	errs := make([]error, len(w.Writers))
	for i := range w.Writers {
		wg.Go(func() { errs[i] = w.write(ctx, h, &s, i) })
	}
	for i := range w.Readers {
		wg.Go(func() {
			for op := range w.Ops {
				r := Rand(w.Seed, len(w.Writers)+i, op)
				w.Sleep(Pause(r))
				w.Read(ctx, h, len(w.Writers)+i, op, r.IntN(4) == 0)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// write is the life of one writer.
func (w *Workload) write(ctx context.Context, h *History, s *shared, client int) error {
	var own *write
	for op := range w.Ops {
		r := Rand(w.Seed, client, op)
		w.Sleep(Pause(r))
		next, err := w.choose(ctx, r, s, own)
		if err != nil {
			return err
		}
		own = next
		s.mu.Lock()
		s.last = own
		s.mu.Unlock()
		w.Sleep(Pause(r)) // an owner that is slow to begin
		for range 3 {
			done := w.put(ctx, h, r, client, op, own)
			// The id by which it is recognised, also where the guard drew it.
			s.mu.Lock()
			own.opts.WriteID = done.Offered.WriteID
			s.mu.Unlock()
			if guard.ReasonOf(done.Err) != guard.ErrOutcomeUnknown || r.IntN(3) == 0 {
				break
			}
			w.Sleep(Pause(r))
		}
	}
	return nil
}

// choose decides what a writer does next. Mostly what it should: take a token
// and write, or write once more under the one it has. Sometimes what people
// do: run a write twice, count wrong, share a token.
func (w *Workload) choose(ctx context.Context, r *rand.Rand, s *shared, own *write) (*write, error) {
	next := write{content: contents[r.IntN(len(contents))]}
	next.opts.Sequence = 1 + r.Int64N(2)
	if r.IntN(2) == 0 {
		var id [16]byte
		for i := range id {
			id[i] = byte(r.Uint32())
		}
		next.opts.WriteID = id
	}
	next.opts.ExpectAbsent = r.IntN(4) == 0
	next.opts.CreateOnly = r.IntN(20) == 0
	if r.IntN(5) > 0 {
		next.opts.SSE = "aws:kms"
	}
	if w.Options != nil {
		w.Options(r, &next.opts)
	}
	s.mu.Lock()
	other := s.last
	if other != nil {
		o := *other
		other = &o
	}
	s.mu.Unlock()
	switch n := r.IntN(100); {
	case own == nil || other == nil || n < 45:
		tok, err := w.Issue(ctx)
		next.token = tok
		return &next, err
	case n < 65: // the next write under its own token
		next.token, next.opts.Sequence = own.token, own.opts.Sequence+1
	case n < 72: // its own number again, for another write
		next.token, next.opts.Sequence = own.token, own.opts.Sequence
	case n < 80: // its own write again
		again := *own
		return &again, nil
	case n < 88: // somebody's last write again
		return other, nil
	case n < 94: // somebody's token, under a number of its own choice
		next.token = other.token
	default: // somebody's write again, with other bytes
		other.content = next.content
		return other, nil
	}
	return &next, nil
}

// put runs one write, through the client's own process or another, sometimes
// with little time.
func (w *Workload) put(ctx context.Context, h *History, r *rand.Rand, client, op int, wr *write) *Op {
	ctx = context.WithValue(ctx, requestKey{}, &Request{Client: client, Op: op})
	if r.IntN(6) == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, Pause(r))
		defer cancel()
	}
	writer := w.Writers[client]
	if r.IntN(4) == 0 {
		writer = w.Writers[r.IntN(len(w.Writers))]
	}
	opts := wr.opts
	return h.record(client, "put", func(o *Op) {
		o.Content = wr.content
		res, err := writer.Put(ctx, wr.token, w.Key, guard.Bytes([]byte(wr.content)), &opts)
		o.Offered, o.Outcome, o.Previous, o.Err = res.Record, res.Outcome, res.Previous, err
	})
}

// Read makes one read of the key a part of the history.
func (w *Workload) Read(ctx context.Context, h *History, client, op int, statOnly bool) {
	ctx = context.WithValue(ctx, requestKey{}, &Request{Client: client, Op: op})
	kind := "get"
	if statOnly {
		kind = "stat"
	}
	h.record(client, kind, func(o *Op) {
		var info guard.Info
		if statOnly {
			info, o.Err = w.Reader.Stat(ctx, w.Key)
		} else {
			var body io.ReadCloser
			if info, body, o.Err = w.Reader.Get(ctx, w.Key, nil); o.Err == nil {
				var b []byte
				b, o.Err = io.ReadAll(body)
				o.Err = errors.Join(o.Err, body.Close())
				o.Content = string(b)
			}
		}
		o.Record, o.Found = info.Record, o.Err == nil
		if errors.Is(o.Err, guard.ErrNotFound) {
			o.Err = nil
		}
	})
}
