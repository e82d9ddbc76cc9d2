package probe

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/s3fence/s3fence/guard"
)

// A contest is what racing writers did, round by round.
type contest struct {
	rounds, several, most int
	conflicts, unanswered int
	wrong                 string // what a reader saw after a round
	empty                 int    // rounds that nobody won
	last                  error
}

// entry is one racer.
type entry struct {
	w   written
	err error
}

// run lets all writers go at once and waits for them.
func race(n int, write func(i int) entry) []entry {
	entries := make([]entry, n)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			entries[i] = write(i)
		})
	}
	close(start)
	wg.Wait()
	return entries
}

// round judges one round. It returns a finding when there is no need to go on.
func (p *probe) round(ctx context.Context, c *contest, key string, entries []entry) (*finding, error) {
	winners, unknown := 0, 0
	var won []written
	for _, e := range entries {
		switch a := judge(e.err); a {
		case took:
			winners++
			won = append(won, e.w)
		case refused:
		case conflict:
			c.conflicts++
		case unsupported, rejected:
			f := found(Fail, "answered %s", words(e.err))
			return &f, nil
		default:
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if errors.Is(e.err, guard.ErrDenied) || errors.Is(e.err, guard.ErrNoBucket) {
				return nil, e.err
			}
			unknown++
			c.last = e.err
		}
	}
	c.unanswered += unknown
	switch {
	case winners > 1:
		c.rounds++
		c.several++
		c.most = max(c.most, winners)
		return nil, nil
	case winners == 0 && unknown > 0:
		return nil, nil // one of them may have won: nothing to be told
	case winners == 0:
		c.empty++
		return nil, nil
	}
	c.rounds++
	diff, err := p.compare(ctx, key, won[0])
	if diff != "" && c.wrong == "" {
		c.wrong = "the winner was told 200, but " + diff
	}
	return nil, err
}

func (c *contest) finding(writers int) (finding, error) {
	if c.rounds == 0 && c.last != nil {
		return finding{}, fmt.Errorf("no round could be judged: %w", c.last)
	}
	note := ""
	if c.conflicts > 0 {
		note += fmt.Sprintf("; %d answered 409", c.conflicts)
	}
	if c.unanswered > 0 {
		note += fmt.Sprintf("; %d not answered", c.unanswered)
	}
	switch {
	case c.several > 0:
		return found(Fail, "several winners in %d of %d rounds, up to %d of %d writers%s", c.several, c.rounds, c.most, writers, note), nil
	case c.wrong != "":
		return found(Fail, "%s", c.wrong), nil
	case c.rounds == 0:
		return found(Fail, "nobody won in %d rounds of %d writers%s", c.empty, writers, note), nil
	}
	return found(Pass, "one winner in each of %d rounds of %d writers%s", c.rounds, writers, note), nil
}

func (p *probe) createRace(ctx context.Context) (finding, error) {
	var c contest
	writers := size(p, 32, 16)
	for r := range size(p, 20, 3) {
		key := p.key("create")
		entries := race(writers, func(i int) entry {
			w := p.content("create-%02d-%02d", r, i)
			err := p.put(ctx, key, guard.IfAbsent(), &w)
			return entry{w, err}
		})
		if f, err := p.round(ctx, &c, key, entries); f != nil || err != nil {
			return deref(f), err
		}
	}
	return c.finding(writers)
}

func deref(f *finding) finding {
	if f == nil {
		return finding{}
	}
	return *f
}

func (p *probe) replaceRace(ctx context.Context) (finding, error) {
	key, _, err := p.create(ctx, "replace")
	if err != nil {
		return finding{}, err
	}
	var c contest
	writers := size(p, 32, 16)
	for r := range size(p, 20, 3) {
		seen, err := p.Store.Head(ctx, key, guard.HeadOptions{})
		if err != nil {
			return finding{}, step("observe the object", err)
		}
		entries := race(writers, func(i int) entry {
			w := p.content("replace-%02d-%02d", r, i)
			err := p.put(ctx, key, guard.IfMatch(seen.ETag), &w)
			return entry{w, err}
		})
		if f, err := p.round(ctx, &c, key, entries); f != nil || err != nil {
			return deref(f), err
		}
	}
	return c.finding(writers)
}

// overlappedUploads sends a slow upload, and while its body is under way a
// fast one under the same condition. Who wins tells when the store decides.
func (p *probe) overlappedUploads(ctx context.Context) (finding, error) {
	key, base, err := p.create(ctx, "overlap")
	if err != nil {
		return finding{}, err
	}
	pace := size(p, 600*time.Millisecond, 200*time.Millisecond)
	slow, fast := p.content("slow"), p.content("fast")
	slow.body = append(slow.body, strings.Repeat("slow ", 64<<10/5)...)
	body := &slowBody{r: guard.Bytes(slow.body).Reader(), size: len(slow.body), pace: pace, began: make(chan struct{})}
	sctx, cancel := context.WithCancel(ctx)
	defer cancel()
	body.ctx = sctx
	if p.S3 == nil {
		body.sending.Store(true) // there are no headers to wait for
	}
	traced := httptrace.WithClientTrace(sctx, &httptrace.ClientTrace{WroteHeaders: func() { body.sending.Store(true) }})
	end := make(chan error, 1)
	go func() {
		req := slow.request(guard.IfMatch(base.etag))
		req.Body = guard.ReaderAt(body, int64(len(slow.body)))
		res, err := p.Store.Put(traced, key, req)
		slow.etag = res.ETag
		end <- err
	}()
	var slowErr error
	ended := false
	select {
	case <-body.began:
	case slowErr = <-end:
		ended = true
	}
	begin := time.Now()
	fastErr := p.put(ctx, key, guard.IfMatch(base.etag), &fast)
	waited := time.Since(begin)
	if !ended {
		slowErr = <-end
	}
	for _, err := range []error{slowErr, fastErr} {
		switch judge(err) {
		case took, refused, conflict:
		case unsupported, rejected:
			return found(Fail, "answered %s", words(err)), nil
		default:
			return finding{}, err
		}
	}
	winner := slow
	got := fmt.Sprintf("the slow one won, the fast one waited %d ms: decided when an upload begins", waited.Milliseconds())
	switch {
	case slowErr == nil && fastErr == nil:
		return found(Fail, "both were told 200"), nil
	case slowErr != nil && fastErr != nil:
		return found(Fail, "nobody won: %s and %s", words(slowErr), words(fastErr)), nil
	case fastErr == nil:
		winner = fast
		got = fmt.Sprintf("the fast one won after %d ms, the slow one was refused at its end: decided when an upload ends", waited.Milliseconds())
	case ended:
		got = "the slow one was taken before the fast one was sent: they did not overlap"
	case waited < pace/2:
		got = fmt.Sprintf("the slow one won, the fast one was refused after %d ms: decided when an upload begins", waited.Milliseconds())
	}
	diff, err := p.compare(ctx, key, winner)
	if diff != "" {
		return found(Fail, "the winner was told 200, but %s", diff), nil
	}
	return found(Pass, "%s", got), err
}

// slowBody hands out its bytes over the time pace, once they are being sent:
// the SDK reads a body before that, to sign it.
type slowBody struct {
	ctx context.Context
	r   interface {
		ReadAt([]byte, int64) (int, error)
	}
	size    int
	pace    time.Duration
	sending atomic.Bool
	once    sync.Once
	began   chan struct{} // closed when the first bytes were handed out
}

// ReadAt implements io.ReaderAt.
func (b *slowBody) ReadAt(buf []byte, off int64) (int, error) {
	n, err := b.r.ReadAt(buf, off)
	if !b.sending.Load() || n == 0 {
		return n, err
	}
	b.once.Do(func() { close(b.began) })
	t := time.NewTimer(b.pace * time.Duration(n) / time.Duration(b.size))
	defer t.Stop()
	select {
	case <-t.C:
		return n, err
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	}
}
