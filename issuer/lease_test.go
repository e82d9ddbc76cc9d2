package issuer

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/s3fence/s3fence/guard"
)

// memLeases keeps the lease of one scope in memory. Its clock, like every
// other here, is synctest's.
type memLeases struct {
	mu     sync.Mutex
	rec    LeaseRecord
	number int64
	swaps  []LeaseRecord // that were applied
	claims []guard.Record
	reads  int
	// before and after are called around each swap, with how many there were
	// before. An error of before keeps it from being applied, one of after is an
	// answer that was lost.
	before, after func(ctx context.Context, n int) error
	readErr       func(n int) error
	n             int
}

func (m *memLeases) Lease(ctx context.Context, _ string) (LeaseRecord, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads++
	if m.readErr != nil {
		if err := m.readErr(m.reads - 1); err != nil {
			return LeaseRecord{}, err
		}
	}
	return m.rec, ctx.Err()
}

func (m *memLeases) SwapLease(ctx context.Context, scope string, over guard.WriteID, next LeaseRecord, claim guard.Record) (LeaseRecord, error) {
	m.mu.Lock()
	n, before, after := m.n, m.before, m.after
	m.n++
	m.mu.Unlock()
	if before != nil {
		if err := before(ctx, n); err != nil {
			return LeaseRecord{}, err
		}
	}
	m.mu.Lock()
	if next.Token.IsZero() {
		m.claims = append(m.claims, claim)
	} else if claim != (guard.Record{}) {
		panic("a claim where no number is taken")
	}
	if m.rec.Version == over {
		if next.Token.IsZero() {
			m.number++
			next.Token, _ = guard.NewToken(guard.IssuerID{1}, scope, m.number)
		}
		m.rec = next
		m.swaps = append(m.swaps, next)
	}
	standing := m.rec
	m.mu.Unlock()
	if after != nil {
		if err := after(ctx, n); err != nil {
			return LeaseRecord{}, err
		}
	}
	return standing, ctx.Err()
}

// heal lets swaps be from now on.
func (m *memLeases) heal() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.before, m.after = nil, nil
}

func (m *memLeases) record() LeaseRecord {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rec
}

const ttl = 30 * time.Second

func mustAcquire(t *testing.T, m *memLeases, o LeaseOptions) *Lease {
	t.Helper()
	if o.Owner == "" {
		o.Owner = "one"
	}
	o.TTL = ttl
	l, err := Acquire(t.Context(), m, "s", o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func mustRelease(t *testing.T, l *Lease) {
	t.Helper()
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// wantLost waits for the loss, and checks when it comes.
func wantLost(t *testing.T, l *Lease, since time.Time, after time.Duration, says string) {
	t.Helper()
	<-l.Context().Done()
	err := context.Cause(l.Context())
	if got := time.Since(since); got != after || !errors.Is(err, ErrLeaseLost) || !strings.Contains(err.Error(), says) {
		t.Errorf("lost after %v: %v; want after %v: %q", got, err, after, says)
	}
}

func TestLeaseHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memLeases{}
		l := mustAcquire(t, m, LeaseOptions{})
		time.Sleep(10*ttl + time.Second)
		synctest.Wait()
		if n := len(m.swaps); n != 31 || l.Context().Err() != nil {
			t.Errorf("%d writes in ten times the TTL, want 1 and 30; %v", n, context.Cause(l.Context()))
		}
		seen := make(map[guard.WriteID]bool)
		for _, r := range m.swaps {
			if seen[r.Version] || r.Token != l.Token() || r.Owner != "one" || r.Since != m.swaps[0].Since {
				t.Errorf("heartbeat %+v", r)
			}
			seen[r.Version] = true
		}
		mustRelease(t, l)
		if r := m.record(); !r.Released || seen[r.Version] || m.number != 1 {
			t.Errorf("released: %+v, number %d", r, m.number)
		}
		n := len(m.swaps)
		mustRelease(t, l)
		time.Sleep(10 * ttl)
		if len(m.swaps) != n {
			t.Error("a released lease is written again")
		}
		if err := context.Cause(l.Context()); errors.Is(err, ErrLeaseLost) || err == nil {
			t.Errorf("released: %v", err)
		}
	})
}

// The heartbeats outlive the context of Acquire: what winds down owns the scope.
func TestLeaseOutlivesItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memLeases{}
		ctx, cancel := context.WithCancel(t.Context())
		l, err := Acquire(ctx, m, "s", LeaseOptions{Owner: "one", TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		<-l.Context().Done()
		before := m.record().Version
		time.Sleep(ttl)
		synctest.Wait()
		if m.record().Version == before {
			t.Error("the heartbeats have ended")
		}
		mustRelease(t, l)
	})
}

// A waiter takes over when the version stood still for the TTL that is stored,
// whatever the clocks of the owner said, and not before.
func TestLeaseTakeOver(t *testing.T) {
	for name, beat := range map[string]time.Duration{"owner's clock behind": -100 * time.Hour, "ahead": 100 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &memLeases{number: 47}
				dead := LeaseRecord{Owner: "dead", Version: guard.WriteID{9}, TTL: 45 * time.Second, Since: time.Now().Add(beat), Beat: time.Now().Add(beat)}
				if _, err := m.SwapLease(t.Context(), "s", guard.WriteID{}, dead, guard.Record{}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(7 * time.Hour) // that it has stood still for before counts for nothing
				begun := time.Now()
				l := mustAcquire(t, m, LeaseOptions{Wait: time.Hour})
				if got := time.Since(begun); got != 45*time.Second || l.Token().Number() != 49 {
					t.Errorf("taken over after %v, token %s", got, l.Token())
				}
				mustRelease(t, l)
			})
		})
	}
}

// An owner who is gone is waited out however short Wait is, and with a negative
// one not at all. Who took its lease meanwhile lives.
func TestLeaseWaitsOutWhoIsGone(t *testing.T) {
	for name, tt := range map[string]struct {
		wait, moves time.Duration // moves: when another takes it
		want        time.Duration
		taken       bool
	}{
		"not waiting":              {wait: 0, want: ttl, taken: true},
		"waiting less":             {wait: ttl / 2, want: ttl, taken: true},
		"waiting as long":          {wait: ttl, want: ttl, taken: true},
		"looking once":             {wait: -1, want: 0},
		"taken by another":         {wait: 0, moves: ttl / 2, want: ttl / 2},
		"taken within the waiting": {wait: ttl / 2, moves: ttl / 3, want: ttl / 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &memLeases{}
				swap := func(owner string, version byte) LeaseRecord {
					r, err := m.SwapLease(t.Context(), "s", m.record().Version, LeaseRecord{Owner: owner, Version: guard.WriteID{version}, TTL: ttl}, guard.Record{})
					if err != nil {
						t.Error(err)
					}
					return r
				}
				swap("gone", 1)
				if tt.moves > 0 {
					time.AfterFunc(tt.moves, func() { swap("other", 2) })
				}
				begun := time.Now()
				l, err := Acquire(t.Context(), m, "s", LeaseOptions{Owner: "one", Wait: tt.wait})
				if got := time.Since(begun); got < tt.want || got > tt.want+2*time.Second || tt.taken && got != tt.want {
					t.Errorf("after %v, want %v", got, tt.want)
				}
				if tt.taken {
					if err != nil {
						t.Fatal(err)
					}
					mustRelease(t, l)
					return
				}
				var e *LeaseError
				if !errors.As(err, &e) || !errors.Is(err, ErrLeaseHeld) || e.Holder != m.record() {
					t.Errorf("got %v, want it to be held by %+v", err, m.record())
				}
				if cures := strings.Join(e.Cures, "\n"); strings.Contains(cures, "its owner lives") != (tt.moves > 0) {
					t.Errorf("cures:\n%s", cures)
				}
			})
		})
	}
	t.Run("while the store fails", func(t *testing.T) {
		for heals, want := range map[int]error{2 * maxLeaseFailures: nil, 1 << 30: errLost} {
			synctest.Test(t, func(t *testing.T) {
				m := &memLeases{rec: LeaseRecord{Owner: "gone", Version: guard.WriteID{1}, TTL: ttl}, readErr: func(n int) error {
					if n == 0 || n >= heals {
						return nil
					}
					return errLost
				}}
				l, err := Acquire(t.Context(), m, "s", LeaseOptions{Owner: "one"})
				if !errors.Is(err, want) || (err == nil) != (want == nil) {
					t.Fatalf("got %v, want %v", err, want)
				}
				if err == nil {
					mustRelease(t, l)
				}
			})
		}
	})
	t.Run("interrupted", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := &memLeases{rec: LeaseRecord{Owner: "gone", Version: guard.WriteID{1}, TTL: ttl}}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second/3)
			defer cancel()
			begun := time.Now()
			if _, err := Acquire(ctx, m, "s", LeaseOptions{Owner: "one"}); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != time.Second/3 {
				t.Errorf("%v, after %v", err, time.Since(begun))
			}
		})
	})
}

// A holder that is stopped wakes up after another took over (case 19): it finds
// that out by its own clock at once. Nobody holds the lease at the same time as
// anybody else, by the word of their contexts.
func TestLeaseHoldersDoNotOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stopped := make(chan struct{})
		m := &memLeases{}
		m.before = func(_ context.Context, n int) error {
			if n == 3 { // its third heartbeat never arrives, nor does any other
				<-stopped
			}
			return nil
		}
		one := mustAcquire(t, m, LeaseOptions{Owner: "one"})
		begun := time.Now()
		got := make(chan *Lease)
		go func() { got <- mustAcquire(t, m, LeaseOptions{Owner: "two", Wait: time.Hour}) }()
		// The last heartbeat that was accepted began after 20 s.
		wantLost(t, one, begun, 20*time.Second+27*time.Second, "no heartbeat was accepted for 27s")
		two := <-got
		if at := time.Since(begun); at < 50*time.Second {
			t.Errorf("taken over after %v", at)
		}
		close(stopped)
		mustRelease(t, one)
		if r := m.record(); r.Owner != "two" || r.Released {
			t.Errorf("the former holder changed the lease: %+v", r)
		}
		mustRelease(t, two)
	})
}

func TestLeaseWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memLeases{}
		one := mustAcquire(t, m, LeaseOptions{Owner: "web1:812"})
		for wait, after := range map[time.Duration]time.Duration{
			-1: 0, time.Minute: time.Minute, ttl / 2: ttl / 2,
			0: ttl / 3, ttl / 10: ttl / 3, // until the owner shows that it lives
		} {
			for v := m.record().Version; m.record().Version == v; { // right after a heartbeat
				time.Sleep(time.Millisecond)
			}
			begun := time.Now()
			_, err := Acquire(t.Context(), m, "s", LeaseOptions{Owner: "two", Wait: wait})
			var e *LeaseError
			if !errors.Is(err, ErrLeaseHeld) || !errors.As(err, &e) || e.Holder.Owner != "web1:812" || e.Holder.Token != one.Token() ||
				!strings.Contains(err.Error(), "scope s: by web1:812 with token 1 since 2000-01-01T00:00:00Z") {
				t.Errorf("wait %v: %v", wait, err)
			}
			if got := time.Since(begun); got < after-time.Millisecond || got > after+2*time.Second || wait > ttl/3 && got != wait {
				t.Errorf("wait %v: refused after %v, want %v", wait, got, after)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err := Acquire(ctx, m, "s", LeaseOptions{Owner: "two", Wait: time.Minute}); !errors.Is(err, context.DeadlineExceeded) ||
			errors.Is(err, ErrLeaseHeld) || !strings.Contains(err.Error(), "web1:812") {
			t.Errorf("interrupted: %v", err)
		}
		if m.number != 1 {
			t.Errorf("waiting took %d numbers", m.number-1)
		}
		// Who waits has it soon after it is released, long before the TTL is over.
		begun := time.Now()
		time.AfterFunc(time.Minute, func() { mustRelease(t, one) })
		two := mustAcquire(t, m, LeaseOptions{Owner: "two", Wait: time.Hour})
		if got := time.Since(begun); got < time.Minute || got > time.Minute+2*time.Second {
			t.Errorf("had it after %v", got)
		}
		mustRelease(t, two)
	})
}

var errLost = errors.New("connection reset")

// Answers that are lost: what was applied is ours, and no lease is valid for
// longer than its record says.
func TestLeaseLostAnswers(t *testing.T) {
	lose := func(which ...int) func(context.Context, int) error {
		return func(_ context.Context, n int) error {
			for _, w := range which {
				if n == w {
					return errLost
				}
			}
			return nil
		}
	}
	t.Run("of the acquisition", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := &memLeases{after: lose(0)}
			l := mustAcquire(t, m, LeaseOptions{})
			if l.Token().Number() != 1 || m.number != 1 || len(m.swaps) != 1 {
				t.Errorf("token %s, %d numbers", l.Token(), m.number)
			}
			mustRelease(t, l)
		})
	})
	// The answer is slow in getting lost: the time until it is recognised counts.
	t.Run("of the acquisition, late", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := &memLeases{after: func(_ context.Context, n int) error {
				if n == 0 {
					time.Sleep(ttl - time.Second)
					return errLost
				}
				return nil
			}}
			l := mustAcquire(t, m, LeaseOptions{})
			begun := time.Now()
			if l.Token().Number() != 2 || m.record().Token != l.Token() {
				t.Errorf("token %s, the lease is %+v", l.Token(), m.record())
			}
			time.Sleep(ttl)
			if l.Context().Err() != nil {
				t.Errorf("lost after %v: %v", time.Since(begun), context.Cause(l.Context()))
			}
			mustRelease(t, l)
		})
	})
	t.Run("of heartbeats", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := &memLeases{after: lose(1, 4)}
			l := mustAcquire(t, m, LeaseOptions{})
			time.Sleep(3 * ttl)
			if l.Context().Err() != nil || m.number != 1 {
				t.Error(context.Cause(l.Context()))
			}
			mustRelease(t, l)
		})
	})
	// It landed at 10 s, and no other did: valid until 37 s, and not from when
	// it was found out, since others count from when it landed.
	t.Run("of the last heartbeat", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := &memLeases{after: lose(1)}
			m.before = func(_ context.Context, n int) error {
				if n > 2 {
					return errLost
				}
				return nil
			}
			l := mustAcquire(t, m, LeaseOptions{})
			wantLost(t, l, time.Now(), 37*time.Second, "connection reset")
			m.heal()
			mustRelease(t, l)
			if !m.record().Released {
				t.Error("what was lost and is still ours was not given back")
			}
		})
	})
	t.Run("of the release", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := &memLeases{after: lose(1)}
			l := mustAcquire(t, m, LeaseOptions{})
			if err := l.Release(t.Context()); !errors.Is(err, errLost) || !m.record().Released {
				t.Errorf("%v, %+v", err, m.record())
			}
			mustRelease(t, l)
		})
	})
	t.Run("of a heartbeat before the release", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := &memLeases{after: lose(1)}
			l := mustAcquire(t, m, LeaseOptions{})
			time.Sleep(ttl/3 + time.Millisecond)
			mustRelease(t, l)
			if !m.record().Released {
				t.Errorf("left behind: %+v", m.record())
			}
		})
	})
	// Interrupted while the request is out: it is not left to expire.
	t.Run("of an acquisition that is given up", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			m := &memLeases{after: func(_ context.Context, n int) error {
				if n == 0 {
					cancel()
					return ctx.Err()
				}
				return nil
			}}
			if _, err := Acquire(ctx, m, "s", LeaseOptions{Owner: "one"}); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			if r := m.record(); !r.Released || r.Owner != "one" {
				t.Errorf("left behind: %+v", r)
			}
		})
	})
}

// A store that hangs does not keep the loss from being noticed.
func TestLeaseStoreHangs(t *testing.T) {
	for _, obeys := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			back := make(chan struct{})
			m := &memLeases{before: func(ctx context.Context, n int) error {
				switch {
				case n == 0:
				case obeys:
					<-ctx.Done()
					return ctx.Err()
				default:
					<-back
				}
				return nil
			}}
			l := mustAcquire(t, m, LeaseOptions{})
			wantLost(t, l, time.Now(), 27*time.Second, "no heartbeat was accepted for 27s")
			close(back)
			<-l.ended
			if obeys && m.n < 3 {
				t.Errorf("%d requests: one that hung left no time for another", m.n)
			}
			m.heal()
			mustRelease(t, l)
		})
	}
}

// Errors of the store are borne while there is time to wait, but not those
// that no waiting cures, nor any before the store was ever reached.
func TestLeaseStoreErrors(t *testing.T) {
	refused := &Error{Source: "dynamodb://fences", Scope: "s", Detail: "restored"}
	for name, tt := range map[string]struct {
		wait time.Duration
		read func(n int) error
		swap func(ctx context.Context, n int) error
		want error
	}{
		"first look": {time.Hour, func(int) error { return errLost }, nil, errLost},
		"refused":    {time.Hour, nil, func(context.Context, int) error { return refused }, guard.ErrIssuerRefuses},
		"swaps, waiting": {time.Hour, nil, func(_ context.Context, n int) error {
			return []error{errLost, errLost, errLost, errLost, nil}[min(n, 4)]
		}, nil},
		"swaps, no waiting": {0, nil, func(context.Context, int) error { return errLost }, errLost},
		"one, no waiting":   {0, nil, func(_ context.Context, n int) error { return []error{errLost, nil}[min(n, 1)] }, nil},
		"looks, waiting": {time.Hour, func(n int) error { return []error{nil, errLost, errLost, errLost, errLost, nil}[min(n, 5)] },
			func(_ context.Context, n int) error { return []error{errLost, nil}[min(n, 1)] }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &memLeases{readErr: tt.read, before: tt.swap}
				l, err := Acquire(t.Context(), m, "s", LeaseOptions{Owner: "one", Wait: tt.wait})
				if !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
					t.Fatalf("got %v, want %v", err, tt.want)
				}
				if err == nil {
					mustRelease(t, l)
				}
			})
		})
	}
}

// The scope's fence is read right before each try to take the lease, and not
// while another holds it.
func TestLeaseClaimed(t *testing.T) {
	type answer struct {
		claim *guard.Record
		err   error
	}
	claim := guard.Record{Issuer: guard.IssuerID{1}, Scope: "s", Number: 47, Sequence: 1}
	lost := &guard.Refusal{Reason: guard.ErrFenceLost, URL: "s3://b/.s3fence/scopes/s.json"}
	for name, tt := range map[string]struct {
		answers []answer
		want    error
		claims  []guard.Record // that the lease was taken with
	}{
		"claimed":           {[]answer{{&claim, nil}}, nil, []guard.Record{claim}},
		"never claimed":     {[]answer{{nil, nil}}, nil, []guard.Record{{}}},
		"the fence is lost": {[]answer{{nil, lost}}, guard.ErrFenceLost, nil},
		"not to be read":    {[]answer{{nil, errLost}, {nil, errLost}, {nil, errLost}, {nil, errLost}, {&claim, nil}}, nil, []guard.Record{claim}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &memLeases{}
				one := mustAcquire(t, m, LeaseOptions{})
				time.AfterFunc(time.Minute, func() { mustRelease(t, one) })
				asked := 0
				l, err := Acquire(t.Context(), m, "s", LeaseOptions{Owner: "two", Wait: time.Hour, Claimed: func(_ context.Context, scope string) (*guard.Record, error) {
					if r := m.record(); !r.Free() || scope != "s" || asked == len(tt.answers) {
						t.Fatalf("asked of %s, after %d times, while the lease is %+v", scope, asked, r)
					}
					asked++
					return tt.answers[asked-1].claim, tt.answers[asked-1].err
				}})
				if !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) || asked != len(tt.answers) {
					t.Fatalf("%v, asked %d times; want %v, %d", err, asked, tt.want, len(tt.answers))
				}
				if err == nil {
					mustRelease(t, l)
				}
				if want := append([]guard.Record{{}}, tt.claims...); !slices.Equal(m.claims, want) {
					t.Errorf("taken with the claims %v, want %v", m.claims, want)
				}
			})
		})
	}
}

// Without time to wait, a fence that can't be read is asked for once.
func TestLeaseClaimedFails(t *testing.T) {
	asked := 0
	_, err := Acquire(t.Context(), &memLeases{}, "s", LeaseOptions{Owner: "one", Claimed: func(context.Context, string) (*guard.Record, error) {
		asked++
		return nil, errLost
	}})
	if !errors.Is(err, errLost) || asked != 1 {
		t.Errorf("%v, asked %d times", err, asked)
	}
}

// The counter's item is made anew under the holder (case 21).
func TestLeaseRecordGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memLeases{}
		l := mustAcquire(t, m, LeaseOptions{})
		m.mu.Lock()
		m.rec = LeaseRecord{}
		m.mu.Unlock()
		wantLost(t, l, time.Now(), ttl/3, "its record is gone")
		mustRelease(t, l)
	})
}

func TestWatchLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memLeases{}
		watch := func(moves bool, after time.Duration) {
			t.Helper()
			begun := time.Now()
			r, got, err := WatchLease(t.Context(), m, "s")
			if err != nil || r.Version != m.record().Version || got != moves || time.Since(begun) > after {
				t.Errorf("%+v, moves %v, %v, after %v", r, got, err, time.Since(begun))
			}
		}
		watch(false, 0)
		l := mustAcquire(t, m, LeaseOptions{})
		watch(true, ttl/3+2*time.Second)
		gone := m.record()
		time.AfterFunc(time.Second, func() { mustRelease(t, l) })
		watch(false, 3*time.Second)
		watch(false, 0)
		m.rec = gone
		watch(false, ttl)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := WatchLease(ctx, m, "s"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

func TestLeaseOptions(t *testing.T) {
	for name, o := range map[string]LeaseOptions{
		"no owner":       {},
		"long owner":     {Owner: strings.Repeat("x", MaxLeaseOwner+1)},
		"short TTL":      {Owner: "x", TTL: MinLeaseTTL - 1},
		"long TTL":       {Owner: "x", TTL: MaxLeaseTTL + time.Second},
		"nothing random": {Owner: "x", Rand: strings.NewReader("")},
	} {
		m := &memLeases{}
		if l, err := Acquire(t.Context(), m, "s", o); err == nil || l != nil || len(m.swaps) > 0 || name != "nothing random" && !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Acquire(t.Context(), &memLeases{}, "a b", LeaseOptions{Owner: "x"}); !errors.Is(err, guard.ErrInvalid) {
		t.Error(err)
	}
}

func TestLeaseJSON(t *testing.T) {
	tok, err := guard.NewToken(guard.IssuerID{1}, "s", 48)
	if err != nil {
		t.Fatal(err)
	}
	whole := LeaseRecord{Owner: "a", Token: tok, Version: guard.WriteID{1}, TTL: ttl, Since: time.Unix(1, 5).UTC(), Beat: time.Unix(2, 0).UTC(), Released: true}
	text, err := json.Marshal(whole)
	if err != nil {
		t.Fatal(err)
	}
	var got LeaseRecord
	if err := json.Unmarshal(text, &got); err != nil || got != whole {
		t.Errorf("%s: %+v, %v", text, got, err)
	}
	for name, r := range map[string][2]string{
		"no token":      {`"token":"` + tok.String() + `"`, `"token":""`},
		"cut token":     {tok.String(), tok.String()[:40]},
		"no version":    {`"01000000000000000000000000000000"`, `"00000000000000000000000000000000"`},
		"cut version":   {`"01000000000000000000000000000000"`, `"01"`},
		"no TTL":        {`"ttl_ms":30000`, `"ttl_ms":0`},
		"not JSON":      {`{`, `[`},
		"TTL too long":  {`"ttl_ms":30000`, `"ttl_ms":3000000000000`},
		"not a time":    {`"since":"`, `"since":"x`},
		"TTL too large": {`"ttl_ms":30000`, `"ttl_ms":9223372036854775807`},
	} {
		bad := strings.Replace(string(text), r[0], r[1], 1)
		if bad == string(text) {
			t.Fatalf("%s: nothing replaced", name)
		}
		if err := json.Unmarshal([]byte(bad), &got); err == nil {
			t.Errorf("%s: %s was read as %+v", name, bad, got)
		}
	}
}
