package localstack

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/issuer"
)

const leaseSchema = `
CREATE TABLE IF NOT EXISTS leases (
	scope  TEXT PRIMARY KEY,
	record TEXT NOT NULL -- JSON
) STRICT, WITHOUT ROWID;`

var _ issuer.LeaseStore = (*Local)(nil)

// Lease implements [issuer.LeaseStore]. A scope that has no counter has no
// lease, which is no error. A damaged one is [guard.ErrIssuerRefuses].
func (l *Local) Lease(ctx context.Context, scope string) (r issuer.LeaseRecord, err error) {
	if err = guard.CheckScope(scope); err == nil {
		err = l.enter()
	}
	if err == nil {
		defer l.calls.Done()
		r, err = readLease(ctx, l.r, scope)
	}
	if err != nil {
		return issuer.LeaseRecord{}, fmt.Errorf("read the lease of scope %q: %w", scope, err)
	}
	return r, nil
}

// SwapLease implements [issuer.LeaseStore] in one transaction. Errors are as
// for [Local.IssueAfter].
func (l *Local) SwapLease(ctx context.Context, scope string, over guard.WriteID, next issuer.LeaseRecord, claim guard.Record) (issuer.LeaseRecord, error) {
	var standing issuer.LeaseRecord
	take := next.Token.IsZero()
	err := l.count(ctx, scope, func(ctx context.Context, tx *sql.Conn, fresh guard.IssuerID) (err error) {
		if take {
			if err := l.behind(ctx, tx, scope, claim); err != nil {
				return err
			}
		}
		if standing, err = readLease(ctx, tx, scope); err != nil || standing.Version != over {
			return err
		}
		if standing = next; take {
			if standing.Token, err = takeNumber(ctx, tx, scope, fresh); err != nil {
				return err
			}
		}
		record, err := json.Marshal(standing)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "INSERT OR REPLACE INTO leases VALUES (?, ?)", scope, string(record))
		return err
	})
	if err != nil {
		return issuer.LeaseRecord{}, fmt.Errorf("write the lease of scope %q: %w", scope, err)
	}
	return standing, nil
}

func readLease(ctx context.Context, q interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}, scope string) (r issuer.LeaseRecord, err error) {
	var record string
	err = q.QueryRowContext(ctx, "SELECT record FROM leases WHERE scope = ?", scope).Scan(&record)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return r, nil
	case err != nil:
		return r, err
	}
	if err := json.Unmarshal([]byte(record), &r); err != nil {
		return r, fmt.Errorf("%w: the lease was tampered with: %w", guard.ErrIssuerRefuses, err)
	}
	return r, nil
}

// takeNumber takes the next number of scope, whose counter is made with the
// fresh issuer id if there is none.
func takeNumber(ctx context.Context, tx *sql.Conn, scope string, fresh guard.IssuerID) (guard.Token, error) {
	var id string
	var number int64
	err := tx.QueryRowContext(ctx, `INSERT INTO scopes (scope, issuer, number) VALUES (?, ?, 1)
		ON CONFLICT (scope) DO UPDATE SET number = number + 1 WHERE number < ?
		RETURNING issuer, number`, scope, fresh.String(), int64(math.MaxInt64)).Scan(&id, &number)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return guard.Token{}, fmt.Errorf("%w: the counter has reached %d, the last number: use another scope", guard.ErrIssuerRefuses, int64(math.MaxInt64))
	case err != nil:
		return guard.Token{}, err
	}
	return newToken(id, scope, number)
}
