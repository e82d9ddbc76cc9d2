// Package audit looks at what a bucket holds, and finds what the guard can't
// prevent: writes and deletes that went around it, numbers that went down,
// counters that were set back, uploads that were left behind.
//
// It reads listings and metadata, never bytes, and changes nothing unless it is
// told to abort uploads. However many objects there are, and versions of one
// object, it holds a bounded number of them.
package audit

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/s3fence/s3fence/guard"
)

// A Kind is what was found, in the word that JSON has for it.
type Kind string

// The kinds of findings. Where no severity is named, it is a violation.
const (
	// Unfenced: an object that has no fence record. Of an older version it is a
	// warning if fenced ones are older still, and else info: it was adopted.
	// So is one of s3fence's own that need none.
	Unfenced Kind = "unfenced"
	// CorruptRecord: a fence record that does not parse.
	CorruptRecord Kind = "corrupt-record"
	// WentDown: a version that has a lower number than an older one.
	WentDown Kind = "number-went-down"
	// SameNumber: two versions with one number and sequence, of different
	// writes. Of one and the same write it is a warning: it was copied.
	SameNumber Kind = "same-number"
	// MixedIssuer: versions of one key with numbers of different issuers, or a
	// newest one that is not of the counter that its scope now has. It is a
	// warning, since an adoption may do that, unless an issuer comes back that
	// had been replaced.
	MixedIssuer Kind = "mixed-issuer"
	// MixedScope is MixedIssuer of different scopes; also, as a violation, a
	// scope fence that is another scope's.
	MixedScope Kind = "mixed-scope"
	// AboveCounter: a number that the scope's counter has not given yet. Told
	// once for each key and counter, at the newest version.
	AboveCounter Kind = "above-counter"
	// NoCounter: a scope whose counter could not be read, so that no number
	// could be held against it. A warning, told once for each scope.
	NoCounter Kind = "no-counter"
	// FenceLost: a delete marker over a fenced version. It is a warning where
	// the key was written again since, and info over a file of a published set,
	// whose key is not written again ([guard.Guard.Discard]).
	FenceLost Kind = "fence-lost"
	// Unreadable: a version that the store lists and does not show, because it
	// takes a key of the customer's for one. A warning.
	Unreadable Kind = "unreadable"
	// Upload: a multipart upload that is older than Options.OlderThan. A warning.
	Upload Kind = "leftover-upload"
	// Tombstone: a guarded delete. Info.
	Tombstone Kind = "tombstone"
	// AboveFence: the highest number of a scope is above its scope fence, so it
	// was written without a claim. Info.
	AboveFence Kind = "above-scope-fence"
)

// Kinds returns all kinds, the worst first.
func Kinds() []Kind {
	return []Kind{
		WentDown, SameNumber, AboveCounter, FenceLost, CorruptRecord, MixedIssuer, MixedScope, Unfenced,
		Unreadable, NoCounter, Upload, AboveFence, Tombstone,
	}
}

// A Severity says how bad a finding is.
type Severity int

// The severities.
const (
	// Info is no fault.
	Info Severity = iota
	// Warning asks for somebody to look.
	Warning
	// Violation is a promise that does not hold, or can't.
	Violation
)

// String returns "info", "warning" or "violation".
func (s Severity) String() string {
	switch s {
	case Violation:
		return "violation"
	case Warning:
		return "warning"
	}
	return "info"
}

// A Finding is one thing that was found.
type Finding struct {
	Kind     Kind
	Severity Severity
	Key, URL string
	// VersionID is set where versions were listed.
	VersionID string
	// UploadID and Initiated are those of an Upload. Aborted says that it is gone.
	UploadID  string
	Initiated time.Time
	Aborted   bool
	// Record is that of the version, where it has one that parses.
	Record *guard.Record
	// Other is the record that it was held against: of the next older fenced
	// version, of the newer one of the same counter, of the scope fence.
	Other *guard.Record
	// Detail says in words what was found.
	Detail string

	keyless bool // it is in no History
}

// String returns the finding on a line.
func (f Finding) String() string {
	s := fmt.Sprintf("%s: %s: %s", f.Severity, f.Kind, f.URL)
	if f.VersionID != "" && f.VersionID != nullVersion {
		s += " (version " + f.VersionID + ")"
	}
	return s + ": " + f.Detail
}

// nullVersion is the id of a version in a bucket that keeps none.
const nullVersion = "null"

// Options say what to look at. The zero value of each field means its default.
type Options struct {
	// Prefix is what the keys begin with. Default: all keys.
	Prefix string
	// StartAfter leaves out this key and all before it, but no uploads.
	StartAfter string
	// NewestOnly leaves older versions out. Default: they are looked at where
	// the bucket keeps them.
	NewestOnly bool
	// Concurrency is how many versions are asked for at once, where the listing
	// leaves out what fence records they have. Default: 32.
	Concurrency int
	// Counter returns the issuer of a scope and the last number that it gave. It
	// is asked once for each scope, and again before a number is said to be too
	// high: counters move while the audit runs. Default: none, and no number is
	// held against one.
	Counter func(ctx context.Context, scope string) (guard.IssuerID, int64, error)
	// Fence returns the record of a scope's fence, nil where there is none, as
	// [guard.Guard.Claimed] does. Default: none is looked at.
	Fence func(ctx context.Context, scope string) (*guard.Record, error)
	// OlderThan is how old an upload must be to count as left behind, by this
	// machine's clock and the store's. Default: [DefaultOlderThan]. Negative:
	// every upload counts.
	OlderThan time.Duration
	// AbortUploads aborts those that count. S3 does not say whose they are.
	AbortUploads bool
	// NoUploads leaves uploads out.
	NoUploads bool
	// History gets each key when it is done, with what can be drawn of it.
	History func(History)
	// Progress is told after each key how many there were, and versions.
	Progress func(objects, versions int64)
	// Logger gets the requests that failed, at debug level. Default: none.
	Logger *slog.Logger
	// MaxAttempts bounds how often in a row a request may meet an error that
	// may pass. Default: 10.
	MaxAttempts int
	// Backoff returns how long to wait after the n-th such error, n from 1.
	// Default: a random time up to 50 ms doubled each time, at most 5 s.
	Backoff func(n int) time.Duration
}

const (
	// DefaultOlderThan is how old an upload must be to count as left behind.
	DefaultOlderThan   = 24 * time.Hour
	defaultConcurrency = 32
	defaultAttempts    = 10
)

// A Summary is what an audit came to.
type Summary struct {
	// Complete says that all was looked at. If not, LastKey is where to go on:
	// the last key that is done.
	Complete bool
	LastKey  string
	// Versions says whether older versions were looked at, and Note why not,
	// where nobody asked for that.
	WithVersions bool
	Note         string

	// Objects are keys, Versions all their versions and delete markers, Heads
	// the requests for those whose records the listing left out.
	Objects, Versions, Heads int64
	// Uploads under way that were seen, of any age, and those aborted.
	Uploads, Aborted int64

	// Findings by kind, and by severity.
	Findings                    map[Kind]int64
	Violations, Warnings, Infos int64

	Elapsed time.Duration
}

// Rate returns objects a second.
func (s Summary) Rate() float64 {
	if s.Elapsed <= 0 {
		return 0
	}
	return float64(s.Objects) / s.Elapsed.Seconds()
}

// Run looks at the keys under opts.Prefix in their order, and calls visit with
// each finding; those of one key come together. opts may be nil.
//
// An error of the store ends it, once it has come too often in a row; so does
// a done context, and an error of visit. The Summary then says how far it came.
// An object that is deleted while it is looked at is left out. An object that
// is written meanwhile is found as it was, or as it is.
func Run(ctx context.Context, store guard.Store, opts *Options, visit func(Finding) error) (Summary, error) {
	a := newAuditor(store, opts, visit)
	err := a.run(ctx)
	a.sum.Elapsed = time.Since(a.begun)
	a.sum.Complete = err == nil
	return a.sum, err
}

// An auditor is one Run.
type auditor struct {
	store guard.Store
	o     Options
	visit func(Finding) error
	begun time.Time
	sum   Summary

	keepsVersions guard.Versioning
	scopes        map[string]*scopeState
	key           *keyState // the key under way
}

func newAuditor(store guard.Store, opts *Options, visit func(Finding) error) *auditor {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Concurrency <= 0 {
		o.Concurrency = defaultConcurrency
	}
	if o.OlderThan == 0 {
		o.OlderThan = DefaultOlderThan
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.MaxAttempts <= 0 {
		o.MaxAttempts = defaultAttempts
	}
	if o.Backoff == nil {
		o.Backoff = jitter
	}
	return &auditor{
		store: store, o: o, visit: visit, begun: time.Now(),
		sum:    Summary{LastKey: o.StartAfter, Findings: make(map[Kind]int64)},
		scopes: make(map[string]*scopeState),
	}
}

func (a *auditor) run(ctx context.Context) error {
	if err := a.settings(ctx); err != nil {
		return err
	}
	if err := a.walk(ctx); err != nil {
		return err
	}
	if err := a.fences(ctx); err != nil {
		return err
	}
	if a.o.NoUploads {
		return nil
	}
	return a.uploads(ctx)
}

// settings finds out whether there are versions to look at.
func (a *auditor) settings(ctx context.Context) error {
	if a.o.NewestOnly {
		return nil
	}
	var s guard.Settings
	err := a.retry(ctx, func() (err error) {
		s, err = a.store.Settings(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("read the bucket's settings: %w", err)
	}
	a.keepsVersions = s.Versioning
	a.sum.WithVersions = s.Versioning != guard.VersioningOff
	return nil
}

// found counts a finding and hands it on.
func (a *auditor) found(f Finding) error {
	if f.URL == "" {
		f.URL = a.store.URL(f.Key)
	}
	a.sum.Findings[f.Kind]++
	switch f.Severity {
	case Violation:
		a.sum.Violations++
	case Warning:
		a.sum.Warnings++
	default:
		a.sum.Infos++
	}
	f.keyless = a.key == nil
	if a.key != nil {
		a.key.shown.found(f)
	}
	return a.visit(f)
}
