package state

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/s3fence/s3fence/guard"
)

// Memory returns the [guard.Memory] of one bucket. endpoint tells buckets of one
// name apart: it is compared and not used, and must not be empty.
//
// What a Remember takes in is at once there for this File, and for others at most
// a second after it is in the file. When the file can't be read or written any more the first
// call to find out returns the error, and from then on nothing is remembered.
// An entry that was damaged is an error as well, until it is replaced.
func (f *File) Memory(endpoint, bucket string) (guard.Memory, error) {
	if endpoint == "" || bucket == "" {
		return nil, f.failed("use", fmt.Errorf("endpoint %q and bucket %q don't name a bucket", endpoint, bucket))
	}
	m := &memory{f: f, endpoint: endpoint, bucket: bucket}
	ctx := context.Background()
	err := f.write(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "INSERT OR IGNORE INTO buckets (endpoint, bucket) VALUES (?, ?)", endpoint, bucket); err != nil {
			return err
		}
		return tx.QueryRowContext(ctx, "SELECT id FROM buckets WHERE endpoint = ? AND bucket = ?", endpoint, bucket).Scan(&m.id)
	})
	if err != nil {
		return nil, f.failed("write to", err)
	}
	return m, nil
}

type memory struct {
	f                *File
	id               int64
	endpoint, bucket string
}

// A place is a key of a bucket.
type place struct {
	bucket int64
	key    string
}

type memoryRow struct {
	guard.Remembered
	record string
	sum    [16]byte
}

// sum is the check of a row. It names the bucket and the key, so that the row of
// one can't become that of another.
func (m *memory) sum(key, record, etag string) [16]byte {
	return digest("memory", m.endpoint, m.bucket, key, record, etag)
}

// Recall implements [guard.Memory].
func (m *memory) Recall(key string) (guard.Remembered, error) {
	f := m.f
	f.mu.Lock()
	if f.broken != nil {
		defer f.mu.Unlock()
		return guard.Remembered{}, f.complaint()
	}
	if r, ok := pending(f, func(b *batch) map[place]memoryRow { return b.memory }, place{m.id, key}); ok {
		f.mu.Unlock()
		return r.Remembered, nil
	}
	row, there, known := f.ahead.row(m.id, key)
	f.mu.Unlock()
	if !known {
		var err error
		if row, there, err = f.readAhead(m.id, key); err != nil {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.giveUp(f.failed("read", err))
			return guard.Remembered{}, f.complaint()
		}
	}
	if !there {
		return guard.Remembered{}, nil
	}
	if sum := m.sum(key, row.record, row.etag); string(row.sum) != string(sum[:]) {
		return guard.Remembered{}, f.failed("read", errDamaged)
	}
	record, err := guard.ParseRecord(row.record)
	if err != nil {
		return guard.Remembered{}, f.failed("read", err)
	}
	return guard.Remembered{Record: record, ETag: row.etag}, nil
}

// Remember implements [guard.Memory]. It waits while the file lags behind.
func (m *memory) Remember(key string, r guard.Remembered) error {
	f, p := m.f, place{m.id, key}
	row := memoryRow{Remembered: r, record: r.Record.String()}
	row.sum = m.sum(key, row.record, r.ETag)
	_, err := f.add(func(b *batch) {
		// Of one that came after an older one's time in the batches, only the ETag
		// is lost, and some of what would tell that the object was set back.
		if was, ok := pending(f, func(b *batch) map[place]memoryRow { return b.memory }, p); !ok || !r.OlderThan(was.Remembered) {
			b.memory[p] = row
			f.ahead.learn(p, row)
		}
	})
	if err == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.broken == nil {
		return err
	}
	return f.complaint()
}
