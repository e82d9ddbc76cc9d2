package guard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
)

// A PublishFile is a file to be published.
type PublishFile struct {
	// Name below the set, with slashes: relative, and with no part that is empty,
	// . or ...
	Name        string
	ContentType string
	// Open returns the bytes, which must not change, and what ends their use; its
	// error fails the publish. It is called when the file's turn comes.
	Open func() (body Body, done func() error, err error)
}

// PublishOptions refine a Publish. The zero value of each field means its
// default.
type PublishOptions struct {
	// Append keeps the files of the set that is there, but for those whose names
	// are published again. Default: the new set replaces it.
	Append bool
	// SSE, SSEKMSKeyID, Sequence and WriteID are those of [PutOptions], for all
	// files and the manifest. With the WriteID and files of before, a publish that
	// was cut short sends only what is not there yet.
	SSE, SSEKMSKeyID string
	Sequence         int64
	WriteID          WriteID
	// PartSize is that of [PutOptions].
	PartSize int64
	// Concurrency is how many files are sent at once. Default: 16.
	Concurrency int
	// Sent is told of each file that is there, and of the one whose error ends the
	// publish. It is called by many goroutines at once.
	Sent func(f SetFile, res Result, err error)
	// DryRun observes and decides, and does not write.
	DryRun bool
}

const defaultPublishers = 16

// A Published is what a publish came to.
type Published struct {
	// Result is the manifest's; its Requests are all that were made.
	Result
	// Files of the set as it is now, sorted by their names. Next to an error, and of
	// a dry run, there are none.
	Files []SetFile
}

// Publish makes files the set of a dataset, at once: whoever resolves it
// ([Guard.Resolve]) gets the set that was there before, or this one, never a mix.
//
// The files are sent first, to keys that nobody else writes,
// <dataset>/data/<number>-<write id>/<name>. Nothing refers to them until the
// manifest, <dataset>/manifest.json, is replaced by one guarded write. So an older
// owner that comes late is refused with its manifest, wherever it was held up, and
// what it had sent is never seen. The manifest carries the write id, so the ETag
// rule holds on every store. That it would be refused is found out before anything
// is sent, as far as it can be.
//
// A file that fails ends it, and nothing is committed. What was sent stays until
// the same publish is run again with its WriteID, or until it is [Guard.Garbage].
// An append that meets another manifest than the one that it has read reads again.
//
// A set has at most [MaxSetFiles] files and its manifest less than [MaxManifest]
// bytes. Errors are those of [Guard.Put]. [ErrOutcomeUnknown] is about the
// manifest, never about a file. The same WriteID with other files is [ErrReplayed].
func (g *Guard) Publish(ctx context.Context, tok Token, dataset string, files []PublishFile, opts *PublishOptions) (Published, error) {
	p := publication{g: g, tok: tok, dataset: dataset, files: files}
	if opts != nil {
		p.o = *opts
	}
	if p.o.Concurrency <= 0 {
		p.o.Concurrency = defaultPublishers
	}
	set, err := p.run(ctx)
	if err != nil {
		err = naming("publish", g.store.URL(dataset), err)
	}
	if !p.told && !p.o.DryRun {
		_, ended := Observe(ctx, g.observer, g.log, Operation{Op: OpPublish, Scope: tok.scope, URL: g.store.URL(ManifestKey(dataset)), Token: tok})
		ended(Completion{Outcome: set.Outcome, Result: set.Result, Held: refusedBy(err), Requests: set.Requests, Err: err})
	}
	set.Requests += int(p.requests.Load())
	return set, err
}

// A publication is one publish.
type publication struct {
	g       *Guard
	tok     Token
	dataset string
	files   []PublishFile
	o       PublishOptions
	again   bool // perhaps: the write id is the caller's
	told    bool // the observer is, by the manifest's write

	// set are the files as the manifest tells of them. What is not known before a
	// file is sent has room there.
	set      []SetFile
	requests atomic.Int64 // beside those of the manifest's write
}

func (p *publication) run(ctx context.Context) (Published, error) {
	if err := checkDataset(p.dataset); err != nil {
		return Published{}, err
	}
	p.again = !p.o.WriteID.IsZero()
	if !p.again {
		var err error
		if p.o.WriteID, err = NewWriteID(p.g.rand); err != nil {
			return Published{}, err
		}
	}
	p.set = make([]SetFile, len(p.files))
	for i, f := range p.files {
		p.set[i] = SetFile{f.Name, setFolder(p.tok.number, p.o.WriteID), MaxObject, noChecksum, f.ContentType}
	}
	if err := checkSet(p.dataset, p.set); err != nil {
		return Published{}, err
	}
	for {
		early, err := p.commit(ctx, true)
		early.Files = nil
		switch {
		case err != nil:
			return early, err
		case early.Outcome == AlreadyApplied:
			same, err := p.same(ctx, &early)
			if same {
				return early, nil
			}
			early.Outcome = "" // that of these files is not known, or another's came since
			if err != nil {
				return early, err
			}
			p.requests.Add(int64(early.Requests))
			continue
		}
		outcome := early.Outcome
		early.Outcome = ""
		if err := p.send(ctx); err != nil {
			return early, err
		}
		if p.o.DryRun {
			early.Outcome = outcome
			return early, nil
		}
		p.requests.Add(int64(early.Requests))
		return p.commit(ctx, false)
	}
}

// noChecksum is that of no bytes, as long as any.
var noChecksum = Checksum{"CRC32C", "AAAAAA=="}

// commit writes the manifest, or finds out whether it would.
func (p *publication) commit(ctx context.Context, dry bool) (Published, error) {
	m := &manifest{p: p}
	p.told = !dry
	res, err := p.g.write(ctx, p.tok, ManifestKey(p.dataset), "publish", &write{
		own: true, op: OpPublish, sender: m,
		opts: PutOptions{
			Headers: Headers{ContentType: "application/json"},
			SSE:     p.o.SSE, SSEKMSKeyID: p.o.SSEKMSKeyID, Sequence: p.o.Sequence, WriteID: p.o.WriteID, DryRun: dry,
		},
	})
	if err != nil {
		return Published{Result: res}, err
	}
	return Published{res, m.files}, nil
}

// A manifest is the sender of one. Its bytes depend on the one that it replaces.
type manifest struct {
	p     *publication
	files []SetFile
}

func (*manifest) salts(*write, sighting) bool   { return false }
func (*manifest) salted() bool                  { return false }
func (*manifest) close(context.Context, *write) {}

func (m *manifest) prepare(context.Context, *write, verdict, sighting) (bool, error) {
	return false, nil
}

func (m *manifest) rehearse(ctx context.Context, w *write, v verdict, seen sighting) error {
	return m.make(ctx, w, v, seen)
}

func (m *manifest) send(ctx context.Context, w *write, v verdict, seen sighting) (PutResult, error) {
	if err := m.make(ctx, w, v, seen); err != nil {
		return PutResult{}, err
	}
	return w.putOnce(ctx, v.condition(), w.body, w.opts.Headers, nil, w.opts.SSE, w.opts.SSEKMSKeyID)
}

// make makes the manifest that replaces seen.
func (m *manifest) make(ctx context.Context, w *write, v verdict, seen sighting) (err error) {
	m.files = slices.Clone(m.p.set)
	if m.p.o.Append && v.action == replace && v.held.State == Live {
		base, err := m.base(ctx, w, seen)
		if err != nil {
			return err
		}
		m.files = merge(base, m.p.set)
	}
	slices.SortFunc(m.files, func(a, b SetFile) int { return strings.Compare(a.Name, b.Name) })
	if err := checkSet(m.p.dataset, m.files); err != nil {
		return err
	}
	b, err := formatManifest(w.res.Record, m.files)
	w.body, w.res.Bytes = Bytes(b), int64(len(b))
	return err
}

// base reads the files of the very manifest that was seen.
func (m *manifest) base(ctx context.Context, w *write, seen sighting) ([]SetFile, error) {
	w.requests++
	obj, body, err := w.g.store.Get(ctx, w.key, ReadOptions{ETag: seen.etag})
	if err != nil {
		return nil, notYet("read the manifest", err)
	}
	if obj.ETag != seen.etag {
		return nil, errors.Join(fmt.Errorf("%w: the manifest changed while it was read", ErrPreconditionFailed), body.Close())
	}
	b, err := readManifest(obj.Size, body)
	if err != nil {
		return nil, notYet("read the manifest", err)
	}
	files, err := parseManifest(m.p.dataset, b)
	if err != nil {
		return nil, noManifest(w.key, w.res.URL, err)
	}
	return files, nil
}

// merge is base with files in it, those of the same names replaced.
func merge(base, files []SetFile) []SetFile {
	names := make(map[string]bool, len(files))
	for _, f := range files {
		names[f.Name] = true
	}
	kept := slices.DeleteFunc(slices.Clone(base), func(f SetFile) bool { return names[f.Name] })
	return append(kept, files...)
}

// send sends the files.
func (p *publication) send(ctx context.Context) error {
	var failed atomic.Bool
	next := 0
	err := inParallel(ctx, p.o.Concurrency, func(context.Context) (func(context.Context) error, error) {
		if next == len(p.files) {
			return nil, io.EOF
		}
		i := next
		next++
		return func(ctx context.Context) error {
			res, err := p.put(ctx, i)
			p.requests.Add(int64(res.Requests))
			switch {
			case p.o.Sent == nil:
			case err == nil, ctx.Err() == nil && failed.CompareAndSwap(false, true):
				p.o.Sent(p.set[i], res, err)
			}
			return err
		}, nil
	})
	if err != nil {
		return fmt.Errorf("nothing was committed: %w", err)
	}
	return nil
}

// put sends the i-th file.
func (p *publication) put(ctx context.Context, i int) (res Result, err error) {
	body, done, err := p.open(ctx, i)
	if err != nil {
		return res, err
	}
	defer func() {
		if derr := done(); derr != nil {
			res.Outcome, err = "", errors.Join(err, derr) // what is there is not the file
		}
	}()
	res, err = p.g.Put(ctx, p.tok, p.set[i].Key(p.dataset), body, &PutOptions{
		Headers: Headers{ContentType: p.set[i].ContentType},
		SSE:     p.o.SSE, SSEKMSKeyID: p.o.SSEKMSKeyID, Sequence: p.o.Sequence, WriteID: p.o.WriteID,
		CreateOnly: true, ExpectAbsent: !p.again, PartSize: p.o.PartSize, DryRun: p.o.DryRun,
	})
	var r *Refusal
	switch {
	case errors.Is(err, ErrOutcomeUnknown):
		// Of the set it is known: nothing refers to the file.
		err = errors.Join(ctx.Err(), errors.New(err.Error()))
	case errors.As(err, &r) && r.Reason == ErrReplayed:
		r.Detail, r.Cures = otherFiles, otherFilesCures
	}
	return res, err
}

const otherFiles = "a publish with this write id had other files, or other bytes in them"

var otherFilesCures = []string{"publish with a fresh write id, and the next sequence where this one is committed already"}

// open opens the i-th file, and finds out what the manifest tells of it.
func (p *publication) open(ctx context.Context, i int) (body Body, done func() error, err error) {
	f := &p.set[i]
	body, done, err = p.files[i].Open()
	if err != nil {
		return body, nil, fmt.Errorf("open %q: %w", f.Name, err)
	}
	sum, err := f.Checksum.of(ctx, body)
	if err != nil {
		return body, nil, errors.Join(fmt.Errorf("read %q: %w", f.Name, err), done())
	}
	f.Size, f.Checksum = body.Size(), sum
	return body, done, nil
}

// same finds out whether the publish that set is of, which is applied already,
// had the very files. It is false where another one has come since.
func (p *publication) same(ctx context.Context, set *Published) (bool, error) {
	now, err := p.g.resolve(ctx, p.dataset, Floor{})
	p.requests.Add(int64(now.Requests))
	switch {
	case now.Record != nil && *now.Record != set.Record:
		return false, nil
	case err != nil:
		return false, err
	}
	held := make(map[string]SetFile)
	for _, f := range now.Files {
		if f.Folder == setFolder(p.tok.number, p.o.WriteID) {
			held[f.Name] = f
		}
	}
	r := &Refusal{
		Reason: ErrReplayed, Key: set.Key, URL: set.URL, Offered: set.Record, Held: now.Record,
		Detail: otherFiles, Cures: otherFilesCures,
	}
	if len(held) != len(p.files) || !p.o.Append && len(now.Files) != len(p.files) {
		return false, r
	}
	for i := range p.files {
		_, done, err := p.open(ctx, i)
		if err == nil {
			err = done()
		}
		if err != nil {
			return false, err
		}
		f := p.set[i]
		f.ContentType = held[f.Name].ContentType
		if held[f.Name] != f {
			return false, r
		}
	}
	set.Files, set.Bytes = now.Files, now.Size
	if p.o.Sent != nil {
		for _, f := range p.set {
			p.o.Sent(f, Result{Key: f.Key(p.dataset), URL: p.g.store.URL(f.Key(p.dataset)), Outcome: AlreadyApplied, Record: set.Record, Bytes: f.Size}, nil)
		}
	}
	return true, nil
}

// Publish is [Guard.Publish] with the session's token and its next sequence; opts
// must not name another.
func (s *Session) Publish(ctx context.Context, dataset string, files []PublishFile, opts *PublishOptions) (Published, error) {
	var o PublishOptions
	if opts != nil {
		o = *opts
	}
	var set Published
	err := s.next(ctx, ManifestKey(dataset), &o.Sequence, func() (err error) {
		set, err = s.g.Publish(ctx, s.tok, dataset, files, &o)
		return err
	})
	return set, err
}
