package main

import (
	"context"
	"errors"
	"io/fs"
	"net"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/issuer"
)

// outcomes is the one table of what an error is called in JSON, which code the
// command exits with, and whether it is a refusal. The first that matches
// counts. Scripts depend on it: entries are added, never changed.
var outcomes = []struct {
	err     error
	reason  string // in JSON
	exit    int
	refused bool
}{
	{guard.ErrOutcomeUnknown, string(guard.ErrOutcomeUnknown), 16, false},
	{guard.ErrStale, string(guard.ErrStale), 10, true},
	{guard.ErrReplayed, string(guard.ErrReplayed), 11, true},
	{guard.ErrMissingToken, string(guard.ErrMissingToken), 12, true},
	{guard.ErrMalformedToken, string(guard.ErrMalformedToken), 12, true},
	{guard.ErrFenceLost, string(guard.ErrFenceLost), 13, true},
	{guard.ErrUnfenced, string(guard.ErrUnfenced), 13, true},
	{guard.ErrCorruptRecord, string(guard.ErrCorruptRecord), 13, true},
	{guard.ErrIssuerMismatch, string(guard.ErrIssuerMismatch), 14, true},
	{guard.ErrScopeMismatch, string(guard.ErrScopeMismatch), 14, true},
	{guard.ErrStoreUnsafe, string(guard.ErrStoreUnsafe), 15, true},
	{guard.ErrRepeatableETag, string(guard.ErrRepeatableETag), 15, true},
	{issuer.ErrLeaseHeld, "lease-held", 17, true},
	{issuer.ErrLeaseLost, "lease-lost", 17, false},
	{guard.ErrIssuerRefuses, string(guard.ErrIssuerRefuses), 18, true},
	{guard.ErrExists, string(guard.ErrExists), 1, true},
	{guard.ErrInvalid, string(guard.ErrInvalid), 2, false},
	{errUsage, "usage", 2, false},
	{errViolation, "violation", 1, false},
	{context.Canceled, "interrupted", 130, false},
	{context.DeadlineExceeded, "timeout", 1, false},
	{guard.ErrNoBucket, "no-bucket", 1, false},
	{guard.ErrNotFound, "not-found", 1, false},
	{fs.ErrNotExist, "no-such-file", 1, false},
	{guard.ErrDenied, "access-denied", 1, false},
	{guard.ErrConflict, "conflict", 1, false},
	{guard.ErrUnsupported, "unsupported", 1, false},
	{guard.ErrRejected, "rejected", 1, false},
	{guard.ErrNotSent, notSent, 1, false},
}

const notSent = "not-sent"

var errUsage = errors.New("usage")

// Is lets the table find any usageError.
func (usageError) Is(target error) bool { return target == errUsage }

// outcomeOf returns the error's row. One that is not in the table has failed.
func outcomeOf(err error) (reason string, exit int, refused bool) {
	for _, o := range outcomes {
		if errors.Is(err, o.err) {
			return o.reason, o.exit, o.refused
		}
	}
	if dial := new(net.OpError); errors.As(err, &dial) && dial.Op == "dial" { // an issuer's
		return notSent, 1, false
	}
	return "failed", 1, false
}

func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if e := new(exitError); errors.As(err, &e) {
		return e.code
	}
	_, exit, _ := outcomeOf(err)
	return exit
}

// An exitError has the exit code of another program, or says why it has none.
type exitError struct {
	error
	code int
}

func (e *exitError) Unwrap() error { return e.error }

// badness orders the errors of several objects: the exit code is that of one
// of unknown outcome, else of a stale one, else of the first.
func badness(err error) int {
	switch {
	case err == nil:
		return 0
	case exitCode(err) == exitCode(guard.ErrOutcomeUnknown):
		return 3
	case exitCode(err) == exitCode(guard.ErrStale):
		return 2
	}
	return 1
}

// A reportedError is one that standard error has got already.
type reportedError struct{ error }

func (e reportedError) Unwrap() error { return e.error }

func refused(err error) bool {
	_, _, r := outcomeOf(err)
	return r
}

// failure is the part of every command's JSON that says how it failed.
type failure struct {
	Outcome string `json:"outcome"` // refused or failed; each command has its own words for success
	Reason  string `json:"reason,omitempty"`
	Error   string `json:"error,omitempty"`
}

func newFailure(err error) failure {
	reason, _, isRefusal := outcomeOf(err)
	f := failure{Outcome: "failed", Reason: reason, Error: oneLine(err.Error())}
	if isRefusal {
		f.Outcome = "refused"
	}
	return f
}

// failureJSON is all there is to say when a command failed at once.
type failureJSON struct {
	Op string `json:"op"`
	failure
}

// fenceJSON is the part of a command's JSON that says what a fence record holds.
type fenceJSON struct {
	Token    int64  `json:"token,omitempty"`
	Sequence int64  `json:"sequence,omitempty"`
	Scope    string `json:"scope,omitempty"`
	Issuer   string `json:"issuer,omitempty"`
	WriteID  string `json:"write_id,omitempty"`
}

func newFenceJSON(r *guard.Record) fenceJSON {
	if r == nil || r.Number == 0 {
		return fenceJSON{}
	}
	return fenceJSON{r.Number, r.Sequence, r.Scope, r.Issuer.String(), r.WriteID.String()}
}
