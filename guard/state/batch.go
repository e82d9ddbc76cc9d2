package state

import (
	"context"
	"database/sql"
	"time"
)

const (
	// batchEntries is how many entries make a full batch. Twice as many are held
	// at most: those of the batch that is being written, and of the next.
	batchEntries = 512
	// gather is how long a batch that is not full waits for more.
	gather = 200 * time.Millisecond
)

// A batch is what one transaction writes. It does not change once it is taken.
type batch struct {
	memory  map[place]memoryRow
	files   map[string]fileRow
	hurry   chan struct{} // closed when it shall not wait for more
	hurried bool
	done    chan struct{} // closed when it is written, or never will be
	err     error         // why it never will be
}

func newBatch() *batch {
	return &batch{
		memory: map[place]memoryRow{}, files: map[string]fileRow{},
		hurry: make(chan struct{}), done: make(chan struct{}),
	}
}

func (b *batch) len() int { return len(b.memory) + len(b.files) }

func (b *batch) hasten() {
	if !b.hurried {
		b.hurried = true
		close(b.hurry)
	}
}

// end tells those who wait for the batch.
func (b *batch) end(err error) {
	b.err = err
	close(b.done)
}

// add puts something into the next batch, which it returns, once there is room.
func (f *File) add(put func(*batch)) (*batch, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.broken == nil && f.next.len() >= batchEntries {
		f.room.Wait()
	}
	switch {
	case f.closed:
		return nil, f.failed("write to", errClosed)
	case f.broken != nil:
		return nil, f.broken
	}
	b := f.next
	put(b)
	if b.len() >= batchEntries {
		b.hasten()
	}
	if !f.writing && b.len() > 0 {
		f.writing = true
		go f.writeBatches()
	}
	return b, nil
}

// writeBatches writes batches until nothing is left.
func (f *File) writeBatches() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.next.len() > 0 {
		b := f.next
		f.mu.Unlock()
		select {
		case <-b.hurry:
		case <-time.After(gather):
		}
		f.mu.Lock()
		f.next, f.taken = newBatch(), b
		f.room.Broadcast()
		f.mu.Unlock()
		err := f.writeBatch(context.Background(), b)
		f.mu.Lock()
		f.taken = nil
		f.written++
		if err != nil {
			f.giveUp(f.failed("write to", err))
			// Not in the file, and so neither may be what came after it.
			f.next.end(f.broken)
			f.next = newBatch()
		}
		b.end(f.broken)
	}
	f.writing = false
}

func (f *File) writeBatch(ctx context.Context, b *batch) error {
	return f.write(ctx, func(tx *sql.Tx) error {
		remember, note := tx.StmtContext(ctx, f.remember), tx.StmtContext(ctx, f.note)
		defer func() { _, _ = remember.Close(), note.Close() }()
		for p, r := range b.memory {
			if _, err := remember.ExecContext(ctx, p.bucket, []byte(p.key), r.record, r.ETag, r.sum[:]); err != nil {
				return err
			}
		}
		for key, r := range b.files {
			if _, err := note.ExecContext(ctx, []byte(key), r.size, r.mtime, r.sequence, r.outcome, r.sum[:]); err != nil {
				return err
			}
		}
		return nil
	})
}

// giveUp ends all writing, after an error that the next entry would meet as
// well, but much later and once more: forgetting is safe. The lock is held.
func (f *File) giveUp(err error) {
	if f.broken == nil {
		f.broken = givenUpError{err}
		f.room.Broadcast()
	}
}

// complaint is why nothing is remembered any more, for the first who asks: one
// line in the log will do. The lock is held.
func (f *File) complaint() error {
	if f.told {
		return nil
	}
	f.told = true
	return f.broken
}

// Flush returns when all that was remembered and noted before is in the file.
// Its error says why the file is not written any more, if it is not: that is
// [ErrGivenUp].
func (f *File) Flush() error {
	f.mu.Lock()
	taken, next := f.taken, f.next
	waiting := next.len() > 0
	if waiting {
		next.hasten()
	}
	f.mu.Unlock()
	if taken != nil {
		<-taken.done
	}
	if waiting {
		<-next.done
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.broken
}

// pending looks something up in what is not in the file yet, the newest first.
func pending[K comparable, V any](f *File, of func(*batch) map[K]V, key K) (V, bool) {
	for _, b := range []*batch{f.next, f.taken} {
		if b != nil {
			if v, ok := of(b)[key]; ok {
				return v, true
			}
		}
	}
	var none V
	return none, false
}
