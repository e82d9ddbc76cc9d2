package state

import "time"

const (
	// leastAhead and mostAhead bound how many keys are read at once.
	leastAhead, mostAhead = 4, 256
	// aheadAge is how long what was read is good for: another process may have
	// the file open.
	aheadAge = time.Second
)

// A stretch is what the file holds of the keys from one on, read at once: uploads
// go through their keys in order, and a reading takes more than its rows do. It
// also knows which keys are not there. The File's lock is held for all of it.
type stretch struct {
	bucket     int64
	from, to   string // both included
	rows       map[string]aheadRow
	at         time.Time
	size, hits int
}

// An aheadRow is a row as it is in the file, not checked yet.
type aheadRow struct {
	record, etag string
	sum          []byte
}

func (s *stretch) covers(bucket int64, key string) bool {
	return s.rows != nil && s.bucket == bucket && s.from <= key && key <= s.to
}

// row returns the row of a key. known says that the stretch tells whether there
// is one.
func (s *stretch) row(bucket int64, key string) (r aheadRow, there, known bool) {
	if !s.covers(bucket, key) || time.Since(s.at) > aheadAge {
		return r, false, false
	}
	s.hits++
	r, there = s.rows[key]
	return r, there, true
}

// learn takes in what will be in the file.
func (s *stretch) learn(p place, r memoryRow) {
	if s.covers(p.bucket, p.key) {
		s.rows[p.key] = aheadRow{r.record, r.ETag, r.sum[:]}
	}
}

// next is how many keys the next reading shall take: more while they are asked
// for, fewer when they are not.
func (s *stretch) next() int {
	if s.hits >= s.size/2 {
		return min(max(2*s.size, leastAhead), mostAhead)
	}
	return max(s.size/2, leastAhead)
}

// readAhead reads the row of a key and some that come after it.
func (f *File) readAhead(bucket int64, key string) (row aheadRow, there bool, err error) {
	f.reading.Lock()
	defer f.reading.Unlock()
	f.mu.Lock()
	if row, there, known := f.ahead.row(bucket, key); known { // read while we waited
		f.mu.Unlock()
		return row, there, nil
	}
	written, size := f.written, f.ahead.next()
	f.mu.Unlock()

	got := stretch{bucket: bucket, from: key, to: key, rows: make(map[string]aheadRow, size), at: time.Now(), size: size}
	rows, err := f.recall.Query(bucket, []byte(key), size)
	if err != nil {
		return row, false, err
	}
	defer rows.Close()
	for rows.Next() {
		var k []byte
		var r aheadRow
		if err := rows.Scan(&k, &r.record, &r.etag, &r.sum); err != nil {
			return row, false, err
		}
		got.to = string(k)
		got.rows[got.to] = r
	}
	if err := rows.Err(); err != nil {
		return row, false, err
	}
	row, there = got.rows[key]
	if len(got.rows) < size {
		got.to = "\xff" // above every key, since they are UTF-8
	}

	f.mu.Lock()
	defer f.mu.Unlock()
	if f.written != written {
		return row, there, nil // what was written meanwhile may be in it or not
	}
	f.ahead = got
	for _, b := range []*batch{f.taken, f.next} {
		if b != nil {
			for p, r := range b.memory {
				f.ahead.learn(p, r)
			}
		}
	}
	return row, there, nil
}
