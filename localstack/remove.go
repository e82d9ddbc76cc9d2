package localstack

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/s3fence/s3fence/guard"
)

// Delete implements [guard.Store].
func (s *store) Delete(ctx context.Context, key string) error {
	if err := s.remove(ctx, key); !errors.Is(err, guard.ErrNotFound) {
		return s.failWrite(ctx, "delete", key, err)
	}
	return nil
}

// Remove deletes an object around the guard, and its high-water mark with it:
// it is for what was never guarded, such as the probe's own objects. An object
// that is not there is [guard.ErrNotFound].
func (l *Local) Remove(ctx context.Context, bucket, key string) error {
	s := &store{l, bucket}
	return s.fail(ctx, "remove", key, s.remove(ctx, key))
}

func (s *store) remove(ctx context.Context, key string) error {
	if err := s.enter(ctx, key); err != nil {
		return err
	}
	defer s.l.calls.Done()
	var blob string
	err := s.l.write(ctx, func(ctx context.Context, tx *sql.Conn) error {
		w, err := s.lookup(ctx, tx, key)
		if err != nil {
			return err
		}
		blob = w.blob
		if _, err := tx.ExecContext(ctx, "INSERT INTO garbage VALUES (?)", blob); err != nil {
			return fmt.Errorf("keep the name of its file: %w", err)
		}
		_, err = tx.ExecContext(ctx, "DELETE FROM objects WHERE bucket = ? AND key = ?", s.bucket, []byte(key))
		return err
	})
	if err != nil {
		return err
	}
	s.l.discard(ctx, blob)
	return nil
}
