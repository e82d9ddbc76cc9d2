package probe

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"

	"github.com/s3fence/s3fence/guard"
)

// An answer is what a store said to a write.
type answer int

const (
	took answer = iota
	// refused: the condition did not hold: 412, 304, or 404 to If-Match.
	refused
	// conflict: 409, nothing changed.
	conflict
	// unsupported: 501, 405.
	unsupported
	// rejected: another 4xx.
	rejected
	// failed: 5xx.
	failed
	// none: no answer, or one that is not about the write: the network,
	// permissions, a missing bucket.
	none
)

// judge reads an error of a guard.Store, or of the SDK itself.
func judge(err error) answer {
	if err == nil {
		return took
	}
	for _, m := range []struct {
		is error
		a  answer
	}{
		{context.Canceled, none}, {context.DeadlineExceeded, none},
		{guard.ErrNotSent, none}, {guard.ErrDenied, none}, {guard.ErrNoBucket, none},
		{guard.ErrPreconditionFailed, refused}, {guard.ErrNotFound, refused}, {guard.ErrConflict, conflict},
		{guard.ErrUnsupported, unsupported}, {guard.ErrRejected, rejected},
	} {
		if errors.Is(err, m.is) {
			return m.a
		}
	}
	status, code := statusOf(err)
	switch {
	case code == "NoSuchBucket", code == "AccessDenied", status == http.StatusForbidden, status == http.StatusUnauthorized:
		return none
	// An answer of 200 may carry an error in its body: the code decides first.
	case code == "PreconditionFailed", status == http.StatusPreconditionFailed, status == http.StatusNotModified, status == http.StatusNotFound:
		return refused
	case code == "ConditionalRequestConflict", status == http.StatusConflict:
		return conflict
	case code == "NotImplemented", status == http.StatusNotImplemented, status == http.StatusMethodNotAllowed:
		return unsupported
	case status >= 500:
		return failed
	case status >= 400:
		return rejected
	}
	return none
}

// statusOf returns the answer's status and S3's code, where err holds them.
func statusOf(err error) (status int, code string) {
	if a, ok := errors.AsType[interface {
		error
		HTTPStatusCode() int
	}](err); ok {
		status = a.HTTPStatusCode()
	}
	if a, ok := errors.AsType[smithy.APIError](err); ok {
		code = a.ErrorCode()
	}
	return status, code
}

// denied reports whether the store did not allow a request. A policy that
// leaves no way around a guard allows no deletes and no copies, which the
// guard never makes and the probe can do without.
func denied(err error) bool {
	status, _ := statusOf(err)
	return errors.Is(err, guard.ErrDenied) || status == http.StatusForbidden
}

// meaning gives an error of the SDK's own the sentinel that a guard.Store
// would have given it.
func meaning(err error) error {
	status, code := statusOf(err)
	switch {
	case errors.Is(err, guard.ErrNoBucket), errors.Is(err, guard.ErrDenied):
	case code == "NoSuchBucket":
		return fmt.Errorf("%w: %w", guard.ErrNoBucket, err)
	case status == http.StatusForbidden, status == http.StatusUnauthorized:
		return fmt.Errorf("%w: %w", guard.ErrDenied, err)
	}
	return err
}

// words says an answer in few words: "412", "501 NotImplemented".
func words(err error) string {
	if err == nil {
		return "200"
	}
	status, code := statusOf(err)
	switch {
	case status == http.StatusPreconditionFailed || status == http.StatusNotFound && (code == "NotFound" || code == "NoSuchKey"):
		return fmt.Sprint(status)
	case status != 0 && code != "" && code != http.StatusText(status):
		return fmt.Sprintf("%d %s", status, code)
	case status != 0:
		return fmt.Sprint(status)
	}
	for _, s := range []error{
		guard.ErrPreconditionFailed, guard.ErrNotFound, guard.ErrConflict, guard.ErrUnsupported, guard.ErrRejected,
	} {
		if errors.Is(err, s) {
			return s.Error()
		}
	}
	return strings.Join(strings.Fields(err.Error()), " ")
}

// A stepError is a step on the way to a check that the store answered with
// something else than was needed to go on.
type stepError struct {
	step string
	err  error
}

func (e *stepError) Error() string { return e.step + ": " + words(e.err) }
func (e *stepError) Unwrap() error { return e.err }

// step names what failed. An error that is no answer stays one of the probe's.
func step(name string, err error) error {
	if err == nil {
		return nil
	}
	if a := judge(err); a == none || a == failed {
		return fmt.Errorf("%s: %w", name, err)
	}
	return &stepError{name, err}
}

// once makes a call of the SDK one attempt, as guard.Store's are.
func once(o *s3.Options) { o.Retryer = aws.NopRetryer{} }

// plain is once without the SDK's own checksums: an upload names its algorithm
// at every step or at none, and stores differ in how they mind.
func plain(o *s3.Options) {
	once(o)
	o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
}
