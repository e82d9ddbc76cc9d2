package audit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/s3fence/s3fence/guard"
)

// maxScopes bounds the scopes that are remembered. Forgetting one costs a
// request more.
const maxScopes = 1 << 12

// A scopeState is what is known of a scope.
type scopeState struct {
	read   bool // the counter was read
	failed bool // it can't be
	issuer guard.IssuerID
	number int64

	highest    guard.Record // of all that came by
	key        string
	highestVer string
}

func (a *auditor) scope(name string) *scopeState {
	s := a.scopes[name]
	if s == nil {
		if len(a.scopes) >= maxScopes {
			for k := range a.scopes { // any one will do
				delete(a.scopes, k)
				break
			}
		}
		s = &scopeState{}
		a.scopes[name] = s
	}
	return s
}

// count holds a number against the scope's counter.
func (a *auditor) count(ctx context.Context, f *fenced, newest bool) error {
	r := f.record
	s := a.scope(r.Scope)
	if r.Number > s.highest.Number && !guard.IsOwn(a.key.key) {
		s.highest, s.key, s.highestVer = r, a.key.key, f.version
	}
	if a.o.Counter == nil || s.failed {
		return nil
	}
	// It moves meanwhile: a number is too high only if it is above what the
	// counter had after the number was seen.
	if !s.read || r.Issuer == s.issuer && r.Number > s.number && !f.above {
		var err error
		if s.issuer, s.number, err = a.o.Counter(ctx, r.Scope); err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("read the counter of scope %s: %w", r.Scope, ctx.Err())
			}
			s.failed = true
			t := a.about(f.version, NoCounter, Warning, "the numbers of scope %s can't be held against its counter: %v", r.Scope, err)
			t.Record = &r
			return a.found(t)
		}
		s.read = true
	}
	var t Finding
	switch {
	case r.Issuer != s.issuer && newest:
		t = a.about(f.version, MixedIssuer, Warning, "token %s is of issuer %s, and the counter of scope %s is issuer %s", r.Fence(), r.Issuer, r.Scope, s.issuer)
	case r.Issuer == s.issuer && r.Number > s.number && !f.above:
		f.above = true
		t = a.about(f.version, AboveCounter, Violation, "token %s is higher than the counter of scope %s ever gave: it is at %d", r.Fence(), r.Scope, s.number)
	default:
		return nil
	}
	t.Record = &r
	return a.found(t)
}

// fences holds the highest number of each scope against its fence.
func (a *auditor) fences(ctx context.Context) error {
	if a.o.Fence == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(a.scopes)) {
		s := a.scopes[name]
		if s.key == "" {
			continue
		}
		claim, err := a.o.Fence(ctx, name)
		var refusal *guard.Refusal
		switch {
		case errors.As(err, &refusal):
			if err := a.badFence(name, refusal); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		case claim == nil || claim.Issuer != s.highest.Issuer || claim.Number >= s.highest.Number:
			continue
		}
		err = a.found(Finding{
			Kind: AboveFence, Severity: Info, Key: s.key, VersionID: s.highestVer, Record: &s.highest, Other: claim,
			Detail: fmt.Sprintf("token %s was written without a claim: scope %s is claimed with %s", s.highest.Fence(), name, claim.Fence()),
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// badFence tells of a scope fence that is not one, unless the walk has.
func (a *auditor) badFence(scope string, r *guard.Refusal) error {
	if a.o.StartAfter == "" && strings.HasPrefix(r.URL, a.store.URL(a.o.Prefix)) {
		return nil
	}
	kinds := map[guard.Reason]Kind{guard.ErrFenceLost: FenceLost, guard.ErrUnfenced: Unfenced, guard.ErrCorruptRecord: CorruptRecord}
	kind, ok := kinds[r.Reason]
	if !ok {
		return r
	}
	return a.found(Finding{
		Kind: kind, Severity: Violation, Key: r.Key, URL: r.URL,
		Detail: fmt.Sprintf("the fence of scope %s: %s", scope, r.Detail),
	})
}
