package localstack

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/issuer"
)

var (
	_ guard.ClaimedIssuer = (*Local)(nil)
	_ issuer.Reconciler   = (*Local)(nil)
)

// Issue implements [guard.Issuer]: it takes the next number of scope, durably.
// A scope that has no counter gets one, with a fresh issuer id.
//
// A counter that has reached 2^63-1 or was tampered with is
// [guard.ErrIssuerRefuses]; a scope that can't be one is [guard.ErrInvalid]. After
// any other error, a cancelled context's too, at most a gap remains.
func (l *Local) Issue(ctx context.Context, scope string) (guard.Token, error) {
	return l.issue(ctx, scope, guard.Record{})
}

// IssueAfter implements [guard.ClaimedIssuer].
func (l *Local) IssueAfter(ctx context.Context, claim guard.Record) (guard.Token, error) {
	return l.issue(ctx, claim.Scope, claim)
}

func (l *Local) issue(ctx context.Context, scope string, claim guard.Record) (guard.Token, error) {
	var token guard.Token
	err := l.count(ctx, scope, func(ctx context.Context, tx *sql.Conn, fresh guard.IssuerID) (err error) {
		if err := l.behind(ctx, tx, scope, claim); err != nil {
			return err
		}
		token, err = takeNumber(ctx, tx, scope, fresh)
		return err
	})
	if err != nil {
		return guard.Token{}, fmt.Errorf("issue a token of scope %q: %w", scope, err)
	}
	return token, nil
}

// behind refuses a counter that stands below a claim of its own.
func (l *Local) behind(ctx context.Context, tx *sql.Conn, scope string, claim guard.Record) error {
	if claim.Number == 0 {
		return nil
	}
	var number int64
	err := tx.QueryRowContext(ctx, "SELECT number FROM scopes WHERE scope = ? AND issuer = ? AND number < ?",
		scope, claim.Issuer.String(), claim.Number).Scan(&number)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return err
	}
	return issuer.Behind("local:"+l.dir, number, claim)
}

func newToken(id, scope string, number int64) (guard.Token, error) {
	iss, err := guard.ParseIssuerID(id)
	if err != nil {
		return guard.Token{}, fmt.Errorf("%w: the counter was tampered with: issuer id: %w", guard.ErrIssuerRefuses, err)
	}
	token, err := guard.NewToken(iss, scope, number)
	if err != nil {
		return guard.Token{}, fmt.Errorf("%w: the counter was tampered with: its number is %d", guard.ErrIssuerRefuses, number)
	}
	return token, nil
}

// CreateScope makes the counter of scope, unless it is there: it never resets
// one. It returns the counter's issuer id and whether this call made it. Errors
// are as for [Local.Issue].
func (l *Local) CreateScope(ctx context.Context, scope string) (id guard.IssuerID, created bool, err error) {
	var text string
	err = l.count(ctx, scope, func(ctx context.Context, tx *sql.Conn, fresh guard.IssuerID) error {
		if _, err := tx.ExecContext(ctx, "INSERT OR IGNORE INTO scopes (scope, issuer, number) VALUES (?, ?, 0)", scope, fresh.String()); err != nil {
			return err
		}
		err := tx.QueryRowContext(ctx, "SELECT issuer FROM scopes WHERE scope = ?", scope).Scan(&text)
		created = text == fresh.String()
		return err
	})
	if err == nil {
		if id, err = guard.ParseIssuerID(text); err != nil {
			err = fmt.Errorf("%w: the counter was tampered with: issuer id: %w", guard.ErrIssuerRefuses, err)
		}
	}
	if err != nil {
		return guard.IssuerID{}, false, fmt.Errorf("create scope %q: %w", scope, err)
	}
	return id, created, nil
}

// Peek returns the issuer id of the scope's counter and the last number that it
// gave, 0 for none. It takes no number and makes no counter: a scope that has
// none is [guard.ErrIssuerRefuses]. Other errors are as for [Local.Issue].
func (l *Local) Peek(ctx context.Context, scope string) (guard.IssuerID, int64, error) {
	id, number, err := l.peek(ctx, scope)
	if err != nil {
		return guard.IssuerID{}, 0, fmt.Errorf("read the counter of scope %q: %w", scope, err)
	}
	return id, number, nil
}

func (l *Local) peek(ctx context.Context, scope string) (id guard.IssuerID, number int64, err error) {
	if err := guard.CheckScope(scope); err != nil {
		return id, 0, err
	}
	if err := l.enter(); err != nil {
		return id, 0, err
	}
	defer l.calls.Done()
	var text string
	err = l.r.QueryRowContext(ctx, "SELECT issuer, number FROM scopes WHERE scope = ?", scope).Scan(&text, &number)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return id, 0, fmt.Errorf("%w: it has no counter", guard.ErrIssuerRefuses)
	case err != nil:
		return id, 0, err
	case number < 0:
		return id, 0, fmt.Errorf("%w: the counter was tampered with: its number is %d", guard.ErrIssuerRefuses, number)
	}
	if id, err = guard.ParseIssuerID(text); err != nil {
		return id, 0, fmt.Errorf("%w: the counter was tampered with: issuer id: %w", guard.ErrIssuerRefuses, err)
	}
	return id, number, nil
}

// Reconcile implements [issuer.Reconciler]. A folder that was copied is not told
// from the one that it was copied from, so that Moved is never set.
//
// A counter that is gone, or whose issuer id was tampered with, is
// [guard.ErrIssuerRefuses] where o names no id; so is one whose number was
// tampered with. Other errors are as for [Local.Issue].
func (l *Local) Reconcile(ctx context.Context, scope string, o issuer.ReconcileOptions) (r issuer.Reconciled, err error) {
	if err := o.Check(scope); err != nil {
		return r, err
	}
	err = l.count(ctx, scope, func(ctx context.Context, tx *sql.Conn, _ guard.IssuerID) error {
		var text string
		before := new(issuer.Counter)
		err := tx.QueryRowContext(ctx, "SELECT issuer, number FROM scopes WHERE scope = ?", scope).Scan(&text, &before.Number)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			before = nil
		case err != nil:
			return err
		case before.Number < 0:
			return fmt.Errorf("%w: the counter was tampered with: its number is %d: use another scope, for new keys", guard.ErrIssuerRefuses, before.Number)
		default:
			if id, err := guard.ParseIssuerID(text); err == nil {
				before.Issuer = id
			}
		}
		if r, err = o.Plan(before, false); err != nil {
			return fmt.Errorf("%w: %w", guard.ErrIssuerRefuses, err)
		}
		if !r.Changed || o.DryRun {
			return nil
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO scopes (scope, issuer, number) VALUES (?, ?, ?)
			ON CONFLICT (scope) DO UPDATE SET issuer = excluded.issuer, number = excluded.number`, scope, r.After.Issuer.String(), r.After.Number)
		return err
	})
	if err != nil {
		return issuer.Reconciled{}, fmt.Errorf("reconcile the counter of scope %q: %w", scope, err)
	}
	return r, nil
}

// count runs fn in a transaction, with an issuer id for the counter that it may make.
func (l *Local) count(ctx context.Context, scope string, fn func(context.Context, *sql.Conn, guard.IssuerID) error) error {
	if err := guard.CheckScope(scope); err != nil {
		return err
	}
	if err := l.enter(); err != nil {
		return err
	}
	defer l.calls.Done()
	fresh, err := guard.NewIssuerID(rand.Reader)
	if err != nil {
		return err
	}
	err = l.write(ctx, func(ctx context.Context, tx *sql.Conn) error { return fn(ctx, tx, fresh) })
	if isBusy(err) {
		err = fmt.Errorf("another process holds the folder %s: %w", l.dir, err)
	}
	return err
}
