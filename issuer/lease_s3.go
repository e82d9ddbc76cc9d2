package issuer

import (
	"context"
	"encoding/json"
	"fmt"
	"math"

	"github.com/s3fence/s3fence/guard"
)

var _ LeaseStore = (*S3)(nil)

// leaseField is the lease in a counter's JSON.
const leaseField = "lease"

// Lease implements [LeaseStore] with one request.
func (s *S3) Lease(ctx context.Context, scope string) (LeaseRecord, error) {
	if err := guard.CheckScope(scope); err != nil {
		return LeaseRecord{}, err
	}
	failures := 0
	at, err := s.look(ctx, scope, &failures)
	if err != nil {
		return LeaseRecord{}, err
	}
	if err := s.whole(scope, at); err != nil {
		return LeaseRecord{}, err
	}
	return s.lease(at.state)
}

// SwapLease implements [LeaseStore] with one conditional write, and one read
// where the counter was changed by another process since this one wrote it. It
// refuses what [S3.Issue] refuses, and where it takes a number what
// [S3.IssueAfter] does.
func (s *S3) SwapLease(ctx context.Context, scope string, over guard.WriteID, next LeaseRecord, claim guard.Record) (LeaseRecord, error) {
	if err := guard.CheckScope(scope); err != nil {
		return LeaseRecord{}, err
	}
	take := next.Token.IsZero()
	if !take {
		claim = guard.Record{}
	}
	c := s.of(scope)
	if err := c.lock(ctx); err != nil {
		return LeaseRecord{}, err
	}
	// What this process wrote last may stand no longer: nothing may be refused
	// by it.
	if r, err := s.lease(c.last.state); err != nil || r.Version != over || s.behind(c.last.state, claim) != nil {
		c.last = glance{}
	}
	c.unlock()

	st, err := s.update(ctx, scope, func(st *counterState) error {
		if err := s.behind(*st, claim); err != nil {
			return err
		}
		r, err := s.lease(*st)
		if err != nil {
			return err
		}
		if r.Version != over {
			return errUnchanged
		}
		r = next
		if take {
			if st.Number == math.MaxInt64 {
				return s.refuse(scope, nil, "the counter gave the last number there is", "use another scope, for new keys")
			}
			st.Number++
			id, err := guard.ParseIssuerID(st.Issuer)
			if err != nil {
				return err
			}
			if r.Token, err = guard.NewToken(id, scope, st.Number); err != nil {
				return err
			}
		}
		b, err := json.Marshal(r)
		if err != nil {
			return err
		}
		if st.rest == nil {
			st.rest = make(map[string]json.RawMessage)
		}
		st.rest[leaseField] = b
		return nil
	})
	if err != nil {
		return LeaseRecord{}, fmt.Errorf("write the lease of scope %s: %w", scope, err)
	}
	return s.lease(st)
}

// lease reads the lease of a counter.
func (s *S3) lease(st counterState) (r LeaseRecord, err error) {
	text, ok := st.rest[leaseField]
	if !ok {
		return r, nil
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return LeaseRecord{}, s.refuse(st.Scope, err, "its lease is damaged", dropLease)
	}
	return r, nil
}
