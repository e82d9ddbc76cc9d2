// Package localstack is the embedded object store and issuer: a [guard.Store]
// and a [guard.Issuer] straight over one folder, with no server and no network.
// It is for first steps, tests, and machines that have no object store.
//
// What is written is durable when the call returns: a body is a file, synced
// before the row that names it is committed, and the rows (metadata,
// conditions, counters) are in SQLite with full syncing. Any number of
// processes of one machine may use a folder at once. A process that is killed
// leaves nothing behind that the next [Open] does not clear up.
//
// The folder must be on a local disk: SQLite's log and the locks used here
// don't work over network file systems.
package localstack

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"
	"modernc.org/sqlite"
)

const (
	// format is the version of the folder's layout and tables, kept in the
	// database's user_version. An older folder is brought up to it at Open.
	format = 4
	// lockWait is how long to wait for another process: for its transaction,
	// or for its Open.
	lockWait = 30 * time.Second
	// flushAt bounds how many rows of unlinked bodies wait for their removal.
	flushAt = 256

	databaseFile = "s3fence.db"
	openLock     = "open.lock"
	procsDir     = "procs"
)

// schema makes the tables; each step leads to the next format. A key is a BLOB
// so that it is kept and compared byte by byte.
var schema = [format]string{`
CREATE TABLE objects (
	bucket   TEXT NOT NULL,
	key      BLOB NOT NULL,
	etag     TEXT NOT NULL,
	blob     TEXT NOT NULL UNIQUE,
	size     INTEGER NOT NULL,
	crc32c   INTEGER NOT NULL,
	modified INTEGER NOT NULL, -- nanoseconds since 1970
	headers  TEXT NOT NULL,    -- JSON
	tags     TEXT NOT NULL,    -- JSON
	PRIMARY KEY (bucket, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE garbage (blob TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;
CREATE TABLE scopes (
	scope  TEXT PRIMARY KEY,
	issuer TEXT NOT NULL,
	number INTEGER NOT NULL
) STRICT, WITHOUT ROWID;`, `
CREATE TABLE IF NOT EXISTS uploads (
	bucket    TEXT NOT NULL,
	key       BLOB NOT NULL,
	id        TEXT NOT NULL UNIQUE,
	checksum  TEXT NOT NULL,    -- an algorithm, or empty
	initiated INTEGER NOT NULL, -- nanoseconds since 1970
	headers   TEXT NOT NULL,    -- JSON
	tags      TEXT NOT NULL,    -- JSON
	PRIMARY KEY (bucket, key, id)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS parts (
	upload TEXT NOT NULL,
	number INTEGER NOT NULL,
	etag   TEXT NOT NULL,
	blob   TEXT NOT NULL UNIQUE,
	size   INTEGER NOT NULL,
	crc32c INTEGER NOT NULL,
	PRIMARY KEY (upload, number)
) STRICT, WITHOUT ROWID;`, leaseSchema, eventSchema}

var errClosed = errors.New("the embedded store is closed")

// A commitError is the failure of a COMMIT: whether the transaction took
// effect isn't known.
type commitError struct{ err error }

func (e *commitError) Error() string { return "commit: " + e.err.Error() }
func (e *commitError) Unwrap() error { return e.err }

// Options of [Open]. The zero value is what everyone but a test or a
// demonstration wants.
type Options struct {
	// MD5ETags gives each object the MD5 of its bytes as ETag, in hex, as S3
	// does for plain objects: the same bytes get the same ETag again. The
	// default is false: every write gets an ETag of its own.
	MD5ETags bool
}

// A Local is the embedded store and issuer of one folder. It is safe for
// concurrent use, by several processes too.
type Local struct {
	dir   string
	opts  Options
	id    string // of this Local, in procs and at the head of its bodies' names
	alive *flock.Flock
	// One connection writes, so that writers of this process queue here, in
	// Go, and only those of different processes meet in SQLite's busy wait.
	w, r  *sql.DB
	blobs blobs

	mu      sync.Mutex
	closed  bool
	removed []string // bodies unlinked, whose garbage rows still stand
	calls   sync.WaitGroup
}

// Open opens the embedded store and issuer in dir; it makes dir, for its owner
// alone, on first use. It also clears up after processes that died: bodies
// that were written and never committed go, committed ones stay, and so do
// multipart uploads with their parts. A folder that an older s3fence made is
// brought up to date, after which that s3fence can't open it any more. opts may
// be nil.
//
// It fails when dir is a file, can't be written, or was made by a newer
// s3fence, and when another process has been opening dir for 30 seconds.
func Open(dir string, opts *Options) (*Local, error) {
	l := &Local{}
	if opts != nil {
		l.opts = *opts
	}
	if err := l.open(dir); err != nil {
		_ = l.Close()
		if errors.Is(err, fs.ErrPermission) {
			return nil, fmt.Errorf("open local store %s: can't write there: choose another folder or change its permissions: %w", dir, err)
		}
		return nil, fmt.Errorf("open local store %s: %w", dir, err)
	}
	return l, nil
}

func (l *Local) open(dir string) error {
	if dir == "" {
		return errors.New("no folder given")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if st, err := os.Stat(dir); err == nil && !st.IsDir() {
		return errors.New("it is a file, not a folder: choose another name")
	}
	l.dir, l.blobs = dir, blobs{dir}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}

	// One Open at a time: the folder is made once, and no process can be
	// between its start and its lock in procs while another looks for the dead.
	ctx, cancel := context.WithTimeout(context.Background(), lockWait)
	defer cancel()
	opening := flock.New(filepath.Join(dir, openLock), flock.SetPermissions(0o600))
	if _, err := opening.TryLockContext(ctx, 5*time.Millisecond); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("another process has been opening it for %v: end that process and try again", lockWait)
		}
		return err
	}
	defer opening.Close()

	if err := l.openDatabase(context.Background()); err != nil {
		return err
	}
	if err := l.register(); err != nil {
		return err
	}
	return l.sweep(context.Background())
}

func (l *Local) openDatabase(ctx context.Context) error {
	path := filepath.ToSlash(filepath.Join(l.dir, databaseFile))
	if !strings.HasPrefix(path, "/") {
		path = "/" + path // C:/... on Windows
	}
	source := func(pragmas ...string) string {
		q := url.Values{"_busy_timeout": {fmt.Sprint(lockWait.Milliseconds())}, "_pragma": pragmas}
		return "file://" + (&url.URL{Path: path}).EscapedPath() + "?" + q.Encode()
	}
	var err error
	if l.w, err = sql.Open("sqlite", source("journal_mode(WAL)", "synchronous(FULL)", "fullfsync(1)", "checkpoint_fullfsync(1)")); err != nil {
		return err
	}
	l.w.SetMaxOpenConns(1)
	if l.r, err = sql.Open("sqlite", source("query_only(1)")); err != nil {
		return err
	}
	l.r.SetMaxOpenConns(8)
	l.r.SetMaxIdleConns(8)

	var version int
	if err := l.w.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return fmt.Errorf("read %s: %w", databaseFile, err)
	}
	switch {
	case version < 0 || version > format:
		return fmt.Errorf("it has format %d and this s3fence knows up to %d: use a newer s3fence or another folder", version, format)
	case version == format:
		return nil
	}
	// The folders are on disk before the database says that they are there.
	if err := l.blobs.makeFolders(); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(l.dir, procsDir), 0o700); err != nil {
		return err
	}
	for _, d := range []string{l.dir, filepath.Dir(l.dir)} {
		// The parent may be a folder that we may not even read.
		if err := syncDir(d); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	return l.write(ctx, func(ctx context.Context, tx *sql.Conn) error {
		_, err := tx.ExecContext(ctx, strings.Join(schema[version:], "")+fmt.Sprintf("PRAGMA user_version = %d;", format))
		return err
	})
}

// register makes it known that this Local lives, for as long as the process
// does: the system gives up the lock of a process that dies.
func (l *Local) register() error {
	l.id = randomHex(procIDLen / 2)
	l.alive = flock.New(l.lockPath(l.id), flock.SetPermissions(0o600))
	ok, err := l.alive.TryLock()
	if err == nil && !ok {
		err = fmt.Errorf("%s is locked by another process", l.alive.Path())
	}
	return err
}

func (l *Local) lockPath(id string) string {
	return filepath.Join(l.dir, procsDir, id+".lock")
}

// sweep clears up after dead processes. Only Open calls it, under openLock.
//
// Nothing is unlinked here before a committed garbage row says so: a COMMIT
// whose failure left its outcome open is settled by the next transaction that
// commits, this one at the latest.
func (l *Local) sweep(ctx context.Context) error {
	living := map[string]bool{l.id: true}
	locks, err := os.ReadDir(filepath.Join(l.dir, procsDir))
	if err != nil {
		return err
	}
	for _, e := range locks {
		id, ok := strings.CutSuffix(e.Name(), ".lock")
		if !ok || living[id] {
			continue
		}
		lock := flock.New(l.lockPath(id))
		if got, err := lock.TryLock(); err != nil || !got {
			living[id] = true
			continue
		}
		// Its lock file goes last. Should the sweep fail before, the next one
		// finds the dead by the names of their bodies.
		defer func() {
			_ = lock.Close()
			_ = os.Remove(lock.Path())
		}()
	}

	// Listed after the locks: a process that was found dead writes no more.
	arrived, err := l.blobs.listIncoming()
	if err != nil {
		return err
	}
	var committed, garbage []string
	err = l.write(ctx, func(ctx context.Context, tx *sql.Conn) error {
		for _, name := range arrived {
			if living[name[:procIDLen]] {
				continue
			}
			var named bool
			if err := tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM objects WHERE blob = ?1) OR EXISTS (SELECT 1 FROM parts WHERE blob = ?1)", name).Scan(&named); err != nil {
				return err
			}
			if named {
				committed = append(committed, name)
			} else if _, err := tx.ExecContext(ctx, "INSERT OR IGNORE INTO garbage VALUES (?)", name); err != nil {
				return err
			}
		}
		rows, err := tx.QueryContext(ctx, "SELECT blob FROM garbage")
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var name string
			if err := rows.Scan(&name); err != nil {
				return err
			}
			garbage = append(garbage, name)
		}
		return rows.Err()
	})
	if err != nil {
		return err
	}
	for _, name := range committed {
		if err := l.blobs.settle(name); err != nil {
			return err
		}
	}
	for _, name := range garbage {
		if err := l.blobs.remove(name); err != nil {
			return err
		}
	}
	return l.forget(ctx, garbage)
}

// discard unlinks bodies that the last transaction put into garbage. Readers
// that have one open keep it. The rows go in batches, since each batch must
// sync first; one that is never reached goes at the next Open.
func (l *Local) discard(ctx context.Context, names ...string) {
	// Where one can't be unlinked its row stands, and the next Open tries again.
	names = slices.DeleteFunc(names, func(name string) bool { return l.blobs.remove(name) != nil })
	l.mu.Lock()
	l.removed = append(l.removed, names...)
	var batch []string
	if len(l.removed) >= flushAt {
		batch, l.removed = l.removed, nil
	}
	l.mu.Unlock()
	_ = l.forget(ctx, batch)
}

// forget deletes the garbage rows of bodies that were unlinked.
func (l *Local) forget(ctx context.Context, names []string) error {
	if len(names) == 0 {
		return nil
	}
	if err := l.blobs.syncRemoved(names); err != nil {
		return err
	}
	return l.write(ctx, func(ctx context.Context, tx *sql.Conn) error {
		for _, name := range names {
			if _, err := tx.ExecContext(ctx, "DELETE FROM garbage WHERE blob = ?", name); err != nil {
				return err
			}
		}
		return nil
	})
}

// write runs fn in a transaction that no other writer shares. ctx ends the
// wait for it and, at the latest, stops it before its COMMIT; fn gets a context
// that can't be cancelled. Unless the error is a [commitError], nothing changed.
func (l *Local) write(ctx context.Context, fn func(ctx context.Context, tx *sql.Conn) error) error {
	conn, err := l.w.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	steady := context.WithoutCancel(ctx)
	_, err = conn.ExecContext(ctx, "BEGIN IMMEDIATE")
	if err == nil {
		err = fn(steady, conn)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		if _, err = conn.ExecContext(steady, "COMMIT"); err == nil {
			return nil
		}
		err = &commitError{err}
	}
	// Also after a failed BEGIN: one that was cancelled may have begun. A
	// connection that can't roll back is closed, which does.
	if _, rollback := conn.ExecContext(steady, "ROLLBACK"); rollback != nil {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	}
	return err
}

// enter begins a call, which Close then waits for.
func (l *Local) enter() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return fmt.Errorf("%w: %s", errClosed, l.dir)
	}
	l.calls.Add(1)
	return nil
}

// Close waits for the calls under way and closes the store and the issuer;
// every later call fails. Bodies that Get handed out stay readable. Closing
// twice is fine.
func (l *Local) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	l.mu.Unlock()
	l.calls.Wait()

	// Best effort: the next Open does what fails here.
	if len(l.removed) > 0 {
		_ = l.forget(context.Background(), l.removed)
	}
	var errs []error
	for _, db := range []*sql.DB{l.r, l.w} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	if l.alive != nil {
		errs = append(errs, l.alive.Close())
		_ = os.Remove(l.alive.Path())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close local store %s: %w", l.dir, err)
	}
	return nil
}

// isBusy reports that SQLite gave up waiting for another process.
func isBusy(err error) bool {
	const busy = 5
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && e.Code()&0xff == busy
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
