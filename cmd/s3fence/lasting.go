package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/state"
)

// lastingFlags name the files that keep what a command knows from run to run.
type lastingFlags struct {
	state, resume string
}

func (l *lastingFlags) add(f *pflag.FlagSet) {
	f.StringVar(&l.state, "state", "", "keep what is known of the keys in `FILE`, so that the next run's writes take one request each")
	f.StringVar(&l.resume, "resume", "", "with -r: go on with the run that FILE says was cut short, if there is one; may be the `FILE` of --state")
}

// A lasting is a run that can be gone on with when it is cut short. A nil one
// can't.
type lasting struct {
	journal *state.File // of --resume, nil without
	dryRun  bool        // the journal is looked at, and left as it is

	*state.Journal // of this run
}

// openLasting opens the files. They are closed when the command ends.
func (a *app) openLasting(l lastingFlags) (*lasting, error) {
	open := func(path string, closed func(*state.File, error) error) (*state.File, error) {
		f, err := state.Open(path)
		if err == nil {
			a.closers = append(a.closers, func() error { return closed(f, f.Close()) })
		}
		return f, err
	}
	journal := func(_ *state.File, err error) error {
		if errors.Is(err, state.ErrGivenUp) {
			return nil // which the end of the run has said
		}
		return err
	}
	memory := func(f *state.File, err error) error {
		// It is only a memory: all that was to be written may be.
		if err != nil && !f.Told() {
			a.log.Warn("what was written is not remembered, so the next run takes more requests", "error", err)
		}
		return nil
	}
	var err error
	same := l.resume != "" && samePath(l.resume, l.state)
	if l.state != "" {
		if same {
			memory = journal
		}
		if a.remembered, err = open(l.state, memory); err != nil {
			return nil, err
		}
	}
	switch {
	case l.resume == "":
		return nil, nil
	case same:
		return &lasting{journal: a.remembered}, nil
	}
	f, err := open(l.resume, journal)
	return &lasting{journal: f}, err
}

// paths are the files that the flags name and what lies next to them while they are
// open, by their absolute paths.
func (l lastingFlags) paths() (all []string, err error) {
	for _, name := range []string{l.state, l.resume} {
		if name == "" {
			continue
		}
		abs, err := filepath.Abs(name)
		if err != nil {
			return nil, err
		}
		for _, ending := range []string{"", "-wal", "-shm", "-journal", ".lock"} {
			all = append(all, abs+ending)
		}
	}
	return all, nil
}

func samePath(a, b string) bool { return filepath.Clean(a) == filepath.Clean(b) }

// memoryOf is what is known of bucket from earlier runs; nil for nothing.
func (a *app) memoryOf(endpoint, bucket string) (guard.Memory, error) {
	if a.remembered == nil {
		return nil, nil
	}
	if endpoint == localEndpoint {
		dir, err := a.localDir()
		if err == nil {
			dir, err = filepath.Abs(dir)
		}
		if err != nil {
			return nil, err
		}
		endpoint += ":" + dir
	}
	return a.remembered.Memory(endpoint, bucket)
}

// begin opens the journal of a run, and returns the token to write with: that of
// the run which is gone on with, or what take returns. A run that has been given
// another token begins anew: what was written with the one before may be another
// owner's by now.
func (l *lasting) begin(ctx context.Context, a *app, run state.Run, take func() (guard.Token, bool, error)) (guard.Token, bool, error) {
	if l == nil {
		return take()
	}
	j, err := l.journal.Resume(run)
	switch {
	case errors.Is(err, state.ErrNoRun):
	case err != nil:
		return guard.Token{}, false, err
	default:
		same, err := a.wants(j.Token())
		if same && err == nil {
			l.Journal = j
			return j.Token(), false, nil
		}
		if err = errors.Join(err, j.Close()); err != nil {
			return guard.Token{}, false, err
		}
		a.log.WarnContext(ctx, "the run that was cut short had another token, so all is written again", "token", j.Token().Number(), "scope", j.Token().Scope())
	}
	tok, fresh, err := take()
	if err == nil && !l.dryRun {
		l.Journal, err = l.journal.Begin(run, tok)
	}
	return tok, fresh, err
}

// wants reports whether the token that is given is tok, or the scope tok's.
func (a *app) wants(tok guard.Token) (bool, error) {
	text, textFlag := a.setting("token")
	scope, scopeFlag := a.setting("scope")
	if text != "" && !scopeFlag || textFlag {
		given, err := readToken(text)
		return given == tok, err
	}
	return scope == tok.Scope(), nil
}

// put writes one file of the run as write does, unless it is written already.
func (l *lasting) put(key string, size int64, mtime time.Time, o guard.PutOptions, write func(guard.PutOptions) (guard.Result, error)) (guard.Result, error) {
	if l == nil || l.Journal == nil {
		return write(o)
	}
	plan := l.Plan
	if l.dryRun {
		plan = l.Peek
	}
	step, err := plan(key, size, mtime)
	if err != nil {
		return guard.Result{}, journalError(err)
	}
	o.Sequence, o.WriteID = max(o.Sequence, 1)+step.Sequence-1, step.WriteID
	if step.Outcome != "" {
		tok := l.Token()
		return guard.Result{Key: key, Outcome: guard.AlreadyApplied, Bytes: size, Record: guard.Record{
			Issuer: tok.Issuer(), Scope: tok.Scope(), Number: tok.Number(), Sequence: o.Sequence, WriteID: step.WriteID, State: guard.Live,
		}}, nil
	}
	if l.dryRun {
		return write(o)
	}
	if err := step.Begin(); err != nil {
		return guard.Result{}, journalError(err)
	}
	res, err := write(o)
	if err == nil {
		err = journalError(step.Done(res.Outcome))
	}
	return res, err
}

// journalError says what to do about a journal that can't be written any more.
func journalError(err error) error {
	if errors.Is(err, state.ErrGivenUp) {
		err = fmt.Errorf("%w: no more files are begun, since the run could not be gone on with: set that right, and start it again in the same way", err)
	}
	return err
}

// end closes the journal: there is nothing left to go on with if all went well.
func (l *lasting) end(well bool) error {
	switch {
	case l == nil || l.Journal == nil:
		return nil
	case well && !l.dryRun:
		return l.Finish()
	}
	return l.Close()
}
