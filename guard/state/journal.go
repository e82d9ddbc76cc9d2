package state

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/gofrs/flock"

	"github.com/s3fence/s3fence/guard"
)

// ErrNoRun says that there is no unfinished run to go on with.
var ErrNoRun = errors.New("no unfinished run")

// A Run is what tells one run of a command over many files from others. Only
// one with the same four is the same run.
type Run struct {
	// Op is the command, Source the folder, Target the URL that it writes to.
	Op, Source, Target string
	// Options is a fingerprint of what else decides what is written where.
	Options string
}

// A Journal says of each file of one run whether it was written, and what to
// write it with. A file that was being written when the run was cut short is
// written again with the same sequence and write id, so that the guard finds out
// whether it was applied. It is safe for concurrent use, but not for one key at
// once.
//
// What is noted last may be lost with the process, and that does no harm. Without
// the note that a file was written it is written again, and found to be applied.
// Without the note that its writing began, the same sequence and write id are
// worked out again, unless the file has changed since: that is why
// [Step.Begin] waits for the note. Only the end of the machine can lose that
// one, and then the changed file is refused as replayed, not written wrongly.
type Journal struct {
	f     *File
	lock  *flock.Flock
	run   Run
	id    string
	token guard.Token
}

// Begin begins the journal of run with token, and drops the one that is in the
// file, finished or not. A journal that is open, in another process or this one,
// is an error.
func (f *File) Begin(run Run, token guard.Token) (*Journal, error) {
	if token.IsZero() {
		return nil, f.failed("begin a journal in", guard.ErrMissingToken)
	}
	j, err := f.lockJournal()
	if err != nil {
		return nil, err
	}
	var id [16]byte
	rand.Read(id[:]) // never fails
	j.run, j.id, j.token = run, string(id[:]), token
	err = f.Flush() // what is on its way of the last one
	if err == nil {
		ctx := context.Background()
		err = f.failed("begin a journal in", f.write(ctx, func(tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, "DELETE FROM files; DELETE FROM run"); err != nil {
				return err
			}
			sum := run.sum(j.id, token.String(), 0)
			_, err := tx.ExecContext(ctx, "INSERT INTO run VALUES (1, ?, ?, ?, ?, ?, ?, 0, ?)",
				id[:], run.Op, run.Source, run.Target, run.Options, token.String(), sum[:])
			return err
		}))
	}
	if err != nil {
		j.lock.Close()
		return nil, err
	}
	return j, nil
}

// Resume opens the journal of run, which was begun and not finished. Where there
// is none it is [ErrNoRun]; that of another run, one that is open, and one that
// was damaged are other errors.
func (f *File) Resume(run Run) (*Journal, error) {
	j, err := f.lockJournal()
	if err != nil {
		return nil, err
	}
	if err := j.resume(run); err != nil {
		j.lock.Close()
		return nil, f.failed("resume the run in", err)
	}
	return j, nil
}

func (j *Journal) resume(run Run) error {
	var was Run
	var id, sum []byte
	var token string
	var finished int64
	err := j.f.r.QueryRow("SELECT id, op, source, target, options, token, finished, sum FROM run").
		Scan(&id, &was.Op, &was.Source, &was.Target, &was.Options, &token, &finished, &sum)
	if errors.Is(err, sql.ErrNoRows) {
		return ErrNoRun
	}
	if err != nil {
		return err
	}
	if s := was.sum(string(id), token, finished); string(sum) != string(s[:]) {
		return fmt.Errorf("%w: remove the file, and run it from the start", errDamaged)
	}
	if finished != 0 {
		return ErrNoRun
	}
	for _, d := range []struct{ what, was, is string }{
		{"the command", was.Op, run.Op},
		{"the source", was.Source, run.Source},
		{"the target", was.Target, run.Target},
	} {
		if d.was != d.is {
			return fmt.Errorf("%s was %q in the unfinished run, and is %q now: run that one again, or name another file", d.what, d.was, d.is)
		}
	}
	if was.Options != run.Options {
		return errors.New("the unfinished run had other options: give the same, or name another file")
	}
	if j.token, err = guard.ParseToken(token); err != nil {
		return err
	}
	j.run, j.id = run, string(id)
	return nil
}

func (r Run) sum(id, token string, finished int64) [16]byte {
	return digest("run", id, r.Op, r.Source, r.Target, r.Options, token, finished)
}

func (f *File) lockJournal() (*Journal, error) {
	j := &Journal{f: f, lock: flock.New(f.path+".lock", flock.SetPermissions(0o600))}
	got, err := j.lock.TryLock()
	if err == nil && !got {
		err = errors.New("another run has it open: wait for its end, or name another file")
	}
	if err != nil {
		j.lock.Close()
		return nil, f.failed("lock the journal of", err)
	}
	return j, nil
}

// Token is what the run writes with.
func (j *Journal) Token() guard.Token { return j.token }

// A fileRow is what is noted of one file.
type fileRow struct {
	size, mtime, sequence int64
	outcome               string
	sum                   [16]byte
}

func (j *Journal) sum(key string, r fileRow) [16]byte {
	return digest("file", j.id, key, r.size, r.mtime, r.sequence, r.outcome)
}

// A Step is what to do about one file.
type Step struct {
	// Outcome is what the writing of the file came to; empty when it is still to
	// be written, with the other two.
	Outcome  guard.Outcome
	Sequence int64
	WriteID  guard.WriteID

	j     *Journal
	key   string
	row   fileRow
	begun *batch
}

// Plan says what to do about the file that is written to key. size and mtime
// must be those of the very bytes: taken of the open file, before they are read.
// It does not wait for the note that the file's writing begins, so that files
// can be planned ahead.
//
// A damaged entry is an error, and one that can't be read or noted.
func (j *Journal) Plan(key string, size int64, mtime time.Time) (*Step, error) {
	s, inFile, err := j.plan(key, size, mtime)
	if err == nil && !inFile {
		s.begun, err = s.note()
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Peek is [Journal.Plan] of a file that won't be written: it notes nothing.
func (j *Journal) Peek(key string, size int64, mtime time.Time) (*Step, error) {
	s, _, err := j.plan(key, size, mtime)
	return s, err
}

// plan also reports whether the file has the note that the writing begins.
func (j *Journal) plan(key string, size int64, mtime time.Time) (s *Step, inFile bool, err error) {
	row, inFile, err := j.noted(key)
	if err != nil {
		return nil, false, j.f.failed("read", err)
	}
	if row.sequence == 0 || row.size != size || row.mtime != mtime.UnixNano() {
		row = fileRow{size: size, mtime: mtime.UnixNano(), sequence: row.sequence + 1}
		inFile = false
	}
	return &Step{
		Outcome: guard.Outcome(row.outcome), Sequence: row.sequence, WriteID: j.writeID(key, row),
		j: j, key: key, row: row,
	}, inFile, nil
}

// writeID is worked out, not kept: the same file of the same run has the same.
func (j *Journal) writeID(key string, r fileRow) guard.WriteID {
	id := guard.WriteID(digest("write id", j.id, key, r.size, r.mtime))
	if id.IsZero() {
		id[0] = 1
	}
	return id
}

// noted returns what is noted of key, with a sequence of 0 when nothing is, and
// whether that is in the file already.
func (j *Journal) noted(key string) (r fileRow, inFile bool, err error) {
	f := j.f
	f.mu.Lock()
	r, ok := pending(f, func(b *batch) map[string]fileRow { return b.files }, key)
	f.mu.Unlock()
	if ok {
		return r, false, nil
	}
	var sum []byte
	err = f.noted.QueryRow([]byte(key)).Scan(&r.size, &r.mtime, &r.sequence, &r.outcome, &sum)
	if errors.Is(err, sql.ErrNoRows) {
		return fileRow{}, false, nil
	}
	if err != nil {
		return fileRow{}, false, err
	}
	if r.sum = j.sum(key, r); string(sum) != string(r.sum[:]) {
		return fileRow{}, false, fmt.Errorf("%w, that of %q: remove the file, and run it from the start", errDamaged, key)
	}
	return r, true, nil
}

func (s *Step) note() (*batch, error) {
	s.row.sum = s.j.sum(s.key, s.row)
	return s.j.f.add(func(b *batch) { b.files[s.key] = s.row })
}

// Begin waits until the file has the note that the writing begins. It must be
// called before the first request, and its error heeded.
func (s *Step) Begin() error {
	if s.begun == nil {
		return nil
	}
	s.j.f.mu.Lock()
	s.begun.hasten()
	s.j.f.mu.Unlock()
	<-s.begun.done
	return s.begun.err
}

// Done notes what the writing came to, after its success. It does not wait.
func (s *Step) Done(o guard.Outcome) error {
	s.row.outcome = string(o)
	_, err := s.note()
	return err
}

// Finish notes that there is nothing left to do in this run, which can't be
// resumed then, and closes the journal.
func (j *Journal) Finish() error {
	err := j.f.Flush()
	if err == nil {
		ctx := context.Background()
		err = j.f.failed("write to", j.f.write(ctx, func(tx *sql.Tx) error {
			sum := j.run.sum(j.id, j.token.String(), 1)
			_, err := tx.ExecContext(ctx, "UPDATE run SET finished = 1, sum = ?", sum[:])
			return err
		}))
	}
	return errors.Join(err, j.lock.Close())
}

// Close closes the journal and leaves it to be resumed; all that was noted is in
// the file then. Closing twice is fine.
func (j *Journal) Close() error {
	return errors.Join(j.f.Flush(), j.lock.Close())
}
