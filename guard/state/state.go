// Package state is what lasts of a command from run to run, in one SQLite file:
// a [guard.Memory] of what was written to any number of buckets, so that writing
// the same keys again takes one request each, and the [Journal] of one run over
// many files, so that a run that was cut short can go on.
//
// It is only a memory. Without the file, or with an old one, everything takes
// more requests, and a run begins anew; nothing else changes. So what is written
// to it is gathered, and is in the file some milliseconds later: the end of the
// process loses what was not, the end of the machine some more.
//
// The file must be on a local disk, as SQLite's log and the locks used here
// don't work over network file systems. Next to it are, while it is open, two
// more of SQLite's, and one that locks the journal.
package state

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"modernc.org/sqlite"
)

const (
	// application marks the file as ours, in SQLite's application_id: "s3fn".
	application = 0x7333666e
	// format is the version of the tables, kept in user_version.
	format = 1
	// lockWait is how long to wait for another process that writes.
	lockWait = 5 * time.Second
	// readers is how many look something up at once.
	readers = 4
)

// A key is a BLOB so that it is kept and compared byte by byte. Each row has a
// check over all that it means: SQLite keeps none of its pages.
const schema = `
CREATE TABLE buckets (
	id       INTEGER PRIMARY KEY,
	endpoint TEXT NOT NULL,
	bucket   TEXT NOT NULL,
	UNIQUE (endpoint, bucket)
) STRICT;
CREATE TABLE memory (
	bucket   INTEGER NOT NULL,
	key      BLOB NOT NULL,
	record   TEXT NOT NULL,
	etag     TEXT NOT NULL, -- empty when it can't be relied on
	sum      BLOB NOT NULL,
	PRIMARY KEY (bucket, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE run (
	one      INTEGER PRIMARY KEY CHECK (one = 1),
	id       BLOB NOT NULL,
	op       TEXT NOT NULL,
	source   TEXT NOT NULL,
	target   TEXT NOT NULL,
	options  TEXT NOT NULL,
	token    TEXT NOT NULL,
	finished INTEGER NOT NULL,
	sum      BLOB NOT NULL
) STRICT;
CREATE TABLE files (
	key      BLOB PRIMARY KEY,
	size     INTEGER NOT NULL,
	mtime    INTEGER NOT NULL, -- nanoseconds since 1970
	sequence INTEGER NOT NULL,
	outcome  TEXT NOT NULL,    -- empty until it is written
	sum      BLOB NOT NULL
) STRICT, WITHOUT ROWID;`

// ErrGivenUp is of a [File] that can't be read or written any more. Whatever is
// tried next, the error is the same.
var ErrGivenUp = errors.New("the state file is given up")

// A givenUpError is ErrGivenUp in the words of what led to it.
type givenUpError struct{ error }

func (e givenUpError) Unwrap() error { return e.error }

// Is implements what errors.Is looks for.
func (e givenUpError) Is(target error) bool { return target == ErrGivenUp }

var (
	errClosed  = errors.New("it is closed")
	errDamaged = errors.New("an entry is damaged")
)

// A File is an open state file. It is safe for concurrent use, and several
// processes may have one open; the journal in it is one process's at a time.
type File struct {
	path string
	w, r *sql.DB // one connection writes
	recall, noted,
	remember, note *sql.Stmt // closed with them

	reading sync.Mutex // ahead
	mu      sync.Mutex
	room    *sync.Cond // in next
	next    *batch     // being gathered
	taken   *batch     // being written
	writing bool       // a goroutine is at it
	broken  error      // why nothing is written any more
	told    bool       // somebody, of broken
	closed  bool
	written int     // batches
	ahead   stretch // what was read last
}

// Open opens the state file at path, and makes it, for its owner alone, when
// there is none. It fails, and changes nothing, when path is anything but a
// state file that this s3fence knows.
func Open(path string) (*File, error) {
	f := &File{path: path, next: newBatch()}
	f.room = sync.NewCond(&f.mu)
	if err := f.open(context.Background()); err != nil {
		_ = f.closeDatabase()
		return nil, f.failed("open", err)
	}
	return f, nil
}

func (f *File) open(ctx context.Context) error {
	if f.path == "" {
		return errors.New("no file given")
	}
	path, err := filepath.Abs(f.path)
	if err != nil {
		return err
	}
	f.path = path
	if err := makeFile(path); err != nil {
		return err
	}
	// Looked at before the first write, which switching to WAL is.
	if f.r, err = sql.Open("sqlite", f.source("query_only(1)")); err != nil {
		return err
	}
	f.r.SetMaxOpenConns(readers)
	f.r.SetMaxIdleConns(readers)
	if err := waiting(func() error {
		_, err := isNew(ctx, f.r)
		return err
	}); err != nil {
		return err
	}
	// NORMAL: a commit survives the process, and after the end of the machine the
	// file is whole, without the last commits at worst.
	if f.w, err = sql.Open("sqlite", f.source("journal_mode(WAL)", "synchronous(NORMAL)")+"&_txlock=immediate"); err != nil {
		return err
	}
	f.w.SetMaxOpenConns(1)
	if err := waiting(func() error {
		return f.write(ctx, func(tx *sql.Tx) error {
			fresh, err := isNew(ctx, tx)
			if err == nil && fresh {
				_, err = tx.ExecContext(ctx, schema+fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = %d;", application, format))
			}
			return err
		})
	}); err != nil {
		return err
	}
	var errs [4]error
	f.recall, errs[0] = f.r.PrepareContext(ctx, "SELECT key, record, etag, sum FROM memory WHERE bucket = ? AND key >= ? ORDER BY key LIMIT ?")
	f.noted, errs[1] = f.r.PrepareContext(ctx, "SELECT size, mtime, sequence, outcome, sum FROM files WHERE key = ?")
	f.remember, errs[2] = f.w.PrepareContext(ctx, "INSERT OR REPLACE INTO memory VALUES (?, ?, ?, ?, ?)")
	f.note, errs[3] = f.w.PrepareContext(ctx, "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)")
	return errors.Join(errs[:]...)
}

// waiting runs a step of opening again while another process opens the file as
// well: SQLite waits for a lock by itself, but not where it switches to WAL.
func waiting(step func() error) error {
	for begun := time.Now(); ; {
		err := step()
		if !isBusy(err) || time.Since(begun) > lockWait {
			return err
		}
		time.Sleep(time.Millisecond + rand.N(20*time.Millisecond))
	}
}

// making is held while files are made: to close one that SQLite has open in this
// process would take SQLite's locks away.
var making sync.Mutex

// makeFile makes an empty file, for its owner alone, unless one is there.
func makeFile(path string) error {
	making.Lock()
	defer making.Unlock()
	switch st, err := os.Stat(path); {
	case err == nil && st.IsDir():
		return errors.New("it is a folder: name a file in it")
	case err == nil && !st.Mode().IsRegular():
		return errors.New("it is not a regular file: choose another name")
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	made, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil // another process was quicker
	}
	if err == nil {
		err = made.Close()
	}
	return err
}

// source names the database to the driver.
func (f *File) source(pragmas ...string) string {
	path := filepath.ToSlash(f.path)
	if !strings.HasPrefix(path, "/") {
		path = "/" + path // C:/... on Windows
	}
	q := url.Values{"_busy_timeout": {fmt.Sprint(lockWait.Milliseconds())}, "_pragma": pragmas}
	return "file://" + (&url.URL{Path: path}).EscapedPath() + "?" + q.Encode()
}

// isNew reports whether the database has nothing in it. One that has must be ours.
func isNew(ctx context.Context, db interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}) (bool, error) {
	var app, version, tables int
	if err := db.QueryRowContext(ctx, "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema) FROM pragma_application_id, pragma_user_version").
		Scan(&app, &version, &tables); err != nil {
		return false, err
	}
	switch {
	case app == 0 && version == 0 && tables == 0:
		return true, nil
	case app != application:
		return false, errors.New("it is the database of another program: choose another name")
	case version != format:
		return false, fmt.Errorf("it has format %d and this s3fence knows format %d: use a newer s3fence, or remove the file, which is only a memory", version, format)
	}
	return false, nil
}

// write runs fn in a transaction that no other writer shares.
func (f *File) write(ctx context.Context, fn func(*sql.Tx) error) error {
	tx, err := f.w.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // of what is not committed
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// busy is SQLite's code for a lock that another process has.
const busy = 5

func isBusy(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && e.Code()&0xff == busy
}

// failed names the file in err, and the cure where there is one.
func (f *File) failed(doing string, err error) error {
	if err == nil {
		return nil
	}
	const readOnly, corrupt, full, notDatabase = 8, 11, 13, 26
	cure := ""
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		switch e.Code() & 0xff {
		case busy:
			cure = fmt.Sprintf("another process has been writing to it for %v: ", lockWait)
		case readOnly:
			cure = "it can't be written: change its permissions: "
		case corrupt:
			cure = "it is damaged: remove it, with its -wal and -shm, since it is only a memory: "
		case full:
			cure = "the disk is full: "
		case notDatabase:
			cure = "it is no state file, or damaged: choose another name, or remove it: "
		}
	}
	return fmt.Errorf("%s state file %s: %s%w", doing, f.path, cure, err)
}

// Told reports whether a [guard.Memory] of the file has returned why nothing is
// remembered any more, which it does once.
func (f *File) Told() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.told
}

// Close writes what was gathered and closes the file, for all that came of it;
// a journal is closed before. Its error is that of [File.Flush]. Closing twice
// is fine.
func (f *File) Close() error {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return nil
	}
	f.closed = true
	f.mu.Unlock()
	return errors.Join(f.Flush(), f.failed("close", f.closeDatabase()))
}

func (f *File) closeDatabase() error {
	var errs []error
	for _, db := range []*sql.DB{f.r, f.w} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	return errors.Join(errs...)
}

// digest is a hash of fields, of which none can pass for part of another.
func digest(fields ...any) [16]byte {
	b := make([]byte, 0, 512)
	for _, f := range fields {
		switch f := f.(type) {
		case string:
			b = binary.AppendUvarint(b, uint64(len(f)))
			b = append(b, f...)
		case int64:
			b = binary.BigEndian.AppendUint64(b, uint64(f))
		default:
			panic(fmt.Sprintf("digest of a %T", f))
		}
	}
	sum := sha256.Sum256(b)
	return [16]byte(sum[:16])
}
