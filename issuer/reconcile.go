package issuer

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/s3fence/s3fence/guard"
)

// A Reconciler is an issuer whose counters can be put right after they went
// back: restored from a backup, copied, deleted or made anew.
type Reconciler interface {
	// Reconcile sees to it that scope's counter gives only numbers above
	// o.AtLeast, and is trusted where it is now, with one conditional write. It
	// never lowers a number, whoever else takes some meanwhile.
	//
	// A counter that it can't put right is ErrIssuerRefuses.
	Reconcile(ctx context.Context, scope string, o ReconcileOptions) (Reconciled, error)
}

var (
	_ Reconciler          = (*DynamoDB)(nil)
	_ Reconciler          = (*S3)(nil)
	_ guard.ClaimedIssuer = (*DynamoDB)(nil)
	_ guard.ClaimedIssuer = (*S3)(nil)
)

// ReconcileOptions say what a counter shall be.
type ReconcileOptions struct {
	// AtLeast is the highest number that is known to have been given: from 0 to
	// 2^63-2.
	AtLeast int64
	// Issuer is the id that the counter shall have: that of the objects which
	// shall take its numbers. A counter that is gone is made again with it.
	// Default: the counter keeps its own.
	Issuer guard.IssuerID
	// DryRun says what would be done, and does not write.
	DryRun bool
}

// A Counter is what a scope's counter holds.
type Counter struct {
	// Issuer is zero where the id is damaged.
	Issuer guard.IssuerID
	// Number is the last one that was given, 0 for none.
	Number int64
}

// Reconciled is what a Reconcile found and left.
type Reconciled struct {
	// Before is nil where there was no counter.
	Before *Counter
	After  Counter
	// Moved says that the counter was made somewhere else, and so gave no
	// numbers here.
	Moved bool
	// Changed says that something was written, or would be.
	Changed bool
}

// Check refuses what no counter can be.
func (o ReconcileOptions) Check(scope string) error {
	if err := guard.CheckScope(scope); err != nil {
		return err
	}
	if o.AtLeast < 0 || o.AtLeast == math.MaxInt64 {
		return fmt.Errorf("%w: no counter can be raised above %d: numbers are 1 to %d", guard.ErrInvalid, o.AtLeast, int64(math.MaxInt64))
	}
	return nil
}

// Plan says what shall become of a counter; nil is none.
func (o ReconcileOptions) Plan(before *Counter, moved bool) (Reconciled, error) {
	r := Reconciled{Before: before, Moved: moved}
	if before != nil {
		r.After = *before
	}
	if o.Issuer != (guard.IssuerID{}) {
		r.After.Issuer = o.Issuer
	}
	r.After.Number = max(r.After.Number, o.AtLeast)
	r.Changed = before == nil || moved || r.After != *before
	switch {
	case r.After.Issuer != (guard.IssuerID{}):
		return r, nil
	case before == nil:
		return r, errors.New("it has no counter, and it is not known which issuer id it had")
	}
	return r, errors.New("the counter's issuer id is damaged, and it is not known what it was")
}

// plan is Plan of an issuer that has seen numbers of the counter itself.
func (o ReconcileOptions) plan(before *Counter, moved bool, known counter) (Reconciled, error) {
	r, err := o.Plan(before, moved)
	if err == nil && known.issuer == r.After.Issuer {
		o.AtLeast = max(o.AtLeast, known.last)
		return o.Plan(before, moved)
	}
	return r, err
}

// unknownCounter is what can be done where nothing tells which issuer id a
// counter had; away says how to take away what is left of it, "" for nothing.
func unknownCounter(scope, away string) []string {
	fresh := "for a scope that never wrote anything, "
	if away != "" {
		fresh += away + ", then "
	}
	return []string{
		"if the scope wrote anything, take the id from its objects" + byReconcile(scope),
		fresh + "make a fresh one: s3fence init --scope " + scope,
	}
}

// byReconcile ends a cure: the command that puts the counter of scope right.
func byReconcile(scope string) string {
	return ", with a --scan for each place that the scope writes to: s3fence token reconcile --scope " + scope + " --scan s3://BUCKET/PREFIX"
}

func wentBack(n, last int64) string {
	return fmt.Sprintf("the counter went back: it stands at %d, and had given %d", n, last)
}

// Behind is the refusal of a counter that stands at number, below a claim.
func Behind(source string, number int64, claim guard.Record) *Error {
	return &Error{
		Source: source, Scope: claim.Scope, Cures: []string{raise(claim.Scope)},
		Detail: fmt.Sprintf("the counter went back: it stands at %d, and %s was given and claimed before", number, claim.Fence()),
	}
}

// raise is the cure of a counter that may have gone back.
func raise(scope string) string {
	return "raise the counter above every number that it gave" + byReconcile(scope)
}

// giveBack is the cure of a counter whose issuer id is not what it was.
func giveBack(scope string) string {
	return "if it was made anew, and the counter before it is gone for good, " + mend(scope)
}

// mend is the cure of a counter whose issuer id is damaged.
func mend(scope string) string {
	return "give it back its issuer id, above every number that it gave" + byReconcile(scope)
}

// makeAgain is the cure of a counter that is gone.
func makeAgain(scope string) string {
	return "if the scope was in use, and its counter is nowhere else, make it again above its numbers" + byReconcile(scope)
}
