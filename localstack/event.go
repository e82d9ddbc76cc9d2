package localstack

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/issuer"
)

const eventSchema = `
CREATE TABLE IF NOT EXISTS events (
	scope   TEXT NOT NULL,
	event   BLOB NOT NULL,
	token   TEXT NOT NULL,
	expires INTEGER NOT NULL, -- seconds since 1970
	PRIMARY KEY (scope, event)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS events_expires ON events (expires);`

var _ guard.EventIssuer = (*Local)(nil)

// IssueFor implements [guard.EventIssuer] in one transaction; an event that comes
// again takes no number. Its token is kept for [issuer.EventRetention] after its
// last delivery, by this machine's clock, and is good for as long as it is there.
// An event that comes again later than that is a new one.
//
// An event whose token came from a counter that was made anew or went back since
// is [guard.ErrIssuerRefuses], and so is one whose token was tampered with. An
// empty event is [guard.ErrInvalid]. Other errors are as for [Local.Issue].
func (l *Local) IssueFor(ctx context.Context, scope, event string) (guard.Token, error) {
	if err := issuer.CheckEvent(scope, event); err != nil {
		return guard.Token{}, err
	}
	var token guard.Token
	now := time.Now()
	err := l.count(ctx, scope, func(ctx context.Context, tx *sql.Conn, fresh guard.IssuerID) (err error) {
		token, err = recordedToken(ctx, tx, scope, event)
		if err == nil && token.IsZero() {
			token, err = takeNumber(ctx, tx, scope, fresh)
		}
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "INSERT OR REPLACE INTO events VALUES (?, ?, ?, ?)",
			scope, []byte(event), token.String(), now.Add(issuer.EventRetention).Unix()); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "DELETE FROM events WHERE expires < ?", now.Unix())
		return err
	})
	if err != nil {
		return guard.Token{}, fmt.Errorf("issue a token of scope %q for event %q: %w", scope, event, err)
	}
	return token, nil
}

// recordedToken returns the token of an event, the zero one if none is recorded.
func recordedToken(ctx context.Context, tx *sql.Conn, scope, event string) (guard.Token, error) {
	var recorded string
	var id sql.NullString
	var number sql.NullInt64
	err := tx.QueryRowContext(ctx, `SELECT token, issuer, number FROM events LEFT JOIN scopes USING (scope)
		WHERE scope = ? AND event = ?`, scope, []byte(event)).Scan(&recorded, &id, &number)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return guard.Token{}, nil
	case err != nil:
		return guard.Token{}, err
	case !id.Valid:
		return guard.Token{}, fmt.Errorf("%w: the counter that gave the event's token is gone", guard.ErrIssuerRefuses)
	}
	counter, err := newToken(id.String, scope, number.Int64)
	if err != nil {
		return guard.Token{}, err
	}
	token, err := guard.ParseToken(recorded)
	if err == nil {
		err = issuer.CheckEventToken(token, scope, counter.Issuer())
	}
	if err == nil && token.Number() > counter.Number() {
		err = fmt.Errorf("the counter went back: it is at %d and gave %d", counter.Number(), token.Number())
	}
	if err != nil {
		return guard.Token{}, fmt.Errorf("%w: the recorded token can't be used: %w", guard.ErrIssuerRefuses, err)
	}
	return token, nil
}
