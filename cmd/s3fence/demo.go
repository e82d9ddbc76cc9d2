package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/spf13/cobra"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/localstack"
)

func (a *app) demoCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Tell the story of the paused writer, for real, on the embedded store",
		Long: `Demo makes the paused-writer story happen on the embedded store, in a temporary
folder: an owner pauses in the middle of its write, a new owner writes, the old
one wakes. Beside it, the same writes are made as plain PUTs are: whoever comes
last wins.`,
		Example: `  # 1. nothing to start, no account
  s3fence demo`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.demo(c.Context()) },
	}
}

// stepJSON is one step of the demo.
type stepJSON struct {
	Op      string `json:"op"`
	Step    int    `json:"step"`
	What    string `json:"what"`
	Guarded string `json:"guarded"`
	Plain   string `json:"plain"`
}

// pausedStore holds every Put until it is released: the writer has observed
// the object, decided, and is stopped just before its request leaves.
type pausedStore struct {
	guard.Store
	reached, release chan struct{}
	once             sync.Once
}

func (s *pausedStore) Put(ctx context.Context, key string, req guard.PutRequest) (guard.PutResult, error) {
	s.once.Do(func() { close(s.reached) })
	select {
	case <-s.release:
	case <-ctx.Done():
		return guard.PutResult{}, errors.Join(guard.ErrNotSent, ctx.Err())
	}
	return s.Store.Put(ctx, key, req)
}

func (a *app) demo(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "s3fence-demo-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	l, err := localstack.Open(filepath.Join(dir, "store"), nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()

	const scope, key = "nightly/report", "report.csv"
	const oldData, newData = "totals of the OLD owner", "totals of the NEW owner"
	plain := filepath.Join(dir, "plain") // a plain PUT takes whatever comes last
	step := 0
	show := func(what, guarded, plain string) error {
		step++
		return a.say(stepJSON{"demo", step, what, guarded, plain},
			fmt.Sprintf("%d. %s\n     with s3fence:  %s\n     plain PUTs:    %s", step, what, guarded, plain))
	}

	first, err := l.Issue(ctx, scope)
	if err != nil {
		return err
	}
	if err := show("The first owner holds the lease and begins to write.",
		fmt.Sprintf("it took token %d before it began", first.Number()), "it has no number"); err != nil {
		return err
	}
	paused := &pausedStore{Store: l.Store("demo"), reached: make(chan struct{}), release: make(chan struct{})}
	late := make(chan error, 1)
	go func() {
		_, err := guard.New(paused, nil).Put(ctx, first, key, guard.Bytes([]byte(oldData)), nil)
		late <- err
	}()
	select {
	case <-paused.reached:
	case err := <-late:
		return errors.Join(errors.New("the first owner could not begin its write"), err)
	}
	if err := show("It is paused in the middle of that write: garbage collection, a VM that moves, a slow disk. Its lease runs out.",
		"its request has not left yet", "its request has not left yet"); err != nil {
		return err
	}

	second, err := l.Issue(ctx, scope)
	if err != nil {
		return err
	}
	g := guard.New(l.Store("demo"), nil)
	if _, err := g.Put(ctx, second, key, guard.Bytes([]byte(newData)), nil); err != nil {
		return err
	}
	if err := os.WriteFile(plain, []byte(newData), 0o600); err != nil {
		return err
	}
	if err := show("A new owner takes over and writes.",
		fmt.Sprintf("with token %d: %q is in the object", second.Number(), newData), fmt.Sprintf("%q is in the object", newData)); err != nil {
		return err
	}

	close(paused.release)
	lateErr := <-late
	if err := os.WriteFile(plain, []byte(oldData), 0o600); err != nil {
		return err
	}
	if !errors.Is(lateErr, guard.ErrStale) {
		return fmt.Errorf("the late write was not refused as stale: %w", lateErr)
	}
	if err := show("The first owner wakes up and finishes its write.", "refused: "+lateErr.Error(), "200 OK"); err != nil {
		return err
	}

	_, body, err := g.Get(ctx, key, nil)
	if err != nil {
		return err
	}
	defer body.Close()
	got, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	gotPlain, err := os.ReadFile(plain)
	if err != nil {
		return err
	}
	if string(got) != newData {
		return fmt.Errorf("the object holds %q, not the new owner's data", got)
	}
	return show("What a reader sees.", fmt.Sprintf("%q", got), fmt.Sprintf("%q: the new owner's work is gone, and nobody was told", gotPlain))
}
