package main

import (
	"context"
	"errors"
	"io/fs"
	"net"

	"github.com/s3fence/s3fence/guard"
)

// exitCodes is the one table of what the command exits with. The first that
// matches counts. Scripts depend on it: entries are added, never changed.
var exitCodes = []struct {
	err    error
	exit   int
	reason string // in JSON, where guard.Explain has no word for it
}{
	{guard.ErrOutcomeUnknown, 16, ""},
	{guard.ErrStale, 10, ""},
	{guard.ErrReplayed, 11, ""},
	{guard.ErrMissingToken, 12, ""},
	{guard.ErrMalformedToken, 12, ""},
	{guard.ErrFenceLost, 13, ""},
	{guard.ErrUnfenced, 13, ""},
	{guard.ErrCorruptRecord, 13, ""},
	{guard.ErrIssuerMismatch, 14, ""},
	{guard.ErrScopeMismatch, 14, ""},
	{guard.ErrStoreUnsafe, 15, ""},
	{guard.ErrRepeatableETag, 15, ""},
	{guard.ErrLeaseHeld, 17, ""},
	{guard.ErrLeaseLost, 17, ""},
	{guard.ErrIssuerRefuses, 18, ""},
	{guard.ErrExists, 1, ""},
	{guard.ErrInvalid, 2, ""},
	{errUsage, 2, "usage"},
	{errViolation, 1, "violation"},
	{context.Canceled, 130, ""},
}

var errUsage = errors.New("usage")

// Is lets the table find any usageError.
func (usageError) Is(target error) bool { return target == errUsage }

// outcomeOf returns what err is called in JSON, the exit code, and whether it is
// a refusal.
func outcomeOf(err error) (reason string, exit int, refused bool) {
	reason, refused = guard.Explain(err)
	for _, e := range exitCodes {
		if errors.Is(err, e.err) {
			if e.reason != "" {
				reason = e.reason
			}
			return reason, e.exit, refused
		}
	}
	switch dial := new(net.OpError); {
	case reason != guard.Unexplained:
	case errors.Is(err, fs.ErrNotExist):
		reason = "no-such-file"
	case errors.As(err, &dial) && dial.Op == "dial": // an issuer's
		reason, _ = guard.Explain(guard.ErrNotSent)
	}
	return reason, 1, refused
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
