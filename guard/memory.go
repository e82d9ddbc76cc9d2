package guard

import (
	"context"
	"sync"
)

// A Memory keeps what was written last to the keys of one bucket: the ETag, so
// that writing a key again takes one request, and the number, so that an object
// that was deleted or set back around the guard is noticed. One that outlives
// the process keeps that from run to run; package guard/state has one.
//
// Forgetting is always safe, and so is remembering what is out of date: the
// store refuses the ETag, and the object is looked at. What is not safe is an
// ETag next to the record of another write; a Memory that can be damaged must
// find that out, and forget.
//
// Its methods are called at every write, from many goroutines. An error of
// theirs is logged and fails no write.
type Memory interface {
	// Recall returns what is remembered of key, the zero Remembered for nothing.
	Recall(key string) (Remembered, error)
	// Remember takes in r, for what was remembered of key before. It should keep
	// that when r is older ([Remembered.OlderThan]): two writes were made at once,
	// and the newer one's news came first.
	Remember(key string, r Remembered) error
}

// Remembered is what is known of a key that was written.
type Remembered struct {
	Record Record
	// ETag is what the next write may start from, as the store gave it; empty
	// when it could have become another write's.
	ETag string
}

// OlderThan reports whether r is of an older write than o. Of two counters
// neither is.
func (r Remembered) OlderThan(o Remembered) bool {
	return r.Record.sameCounter(o.Record) && r.Record.Fence().Compare(o.Record.Fence()) < 0
}

// known reports whether anything is remembered at all.
func (r Remembered) known() bool { return r.Record.Number > 0 }

// sighting is what a write starts from that relies on the ETag.
func (r Remembered) sighting() sighting {
	return sighting{exists: true, etag: r.ETag, record: r.Record.String()}
}

// recall returns what is remembered of the key, nothing when that can't be told.
func (w *write) recall(ctx context.Context) Remembered {
	r, err := w.g.memory.Recall(w.key)
	if err != nil {
		w.g.log.WarnContext(ctx, "what was written before can't be recalled, so the object is looked at", "url", w.res.URL, "error", err)
		return Remembered{}
	}
	return r
}

func (w *write) remember(ctx context.Context, r Remembered) {
	if err := w.g.memory.Remember(w.key, r); err != nil {
		w.g.log.WarnContext(ctx, "what was written is not remembered", "url", w.res.URL, "error", err)
	}
}

// forgetETag forgets the ETag. The number stays known.
func (w *write) forgetETag(ctx context.Context) {
	if r := w.recall(ctx); r.ETag != "" {
		r.ETag = ""
		w.remember(ctx, r)
	}
}

// processMemory is the Memory of one Guard, for as long as it is there.
type processMemory struct {
	mu sync.Mutex
	m  map[string]Remembered
}

const maxRemembered = 1 << 16

// Recall implements [Memory].
func (m *processMemory) Recall(key string) (Remembered, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.m[key], nil
}

// Remember implements [Memory].
func (m *processMemory) Remember(key string, r Remembered) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.m == nil {
		m.m = make(map[string]Remembered)
	}
	if _, ok := m.m[key]; !ok && len(m.m) >= maxRemembered {
		for k := range m.m { // any one will do
			delete(m.m, k)
			break
		}
	}
	if !r.OlderThan(m.m[key]) {
		m.m[key] = r
	}
	return nil
}
