package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/spf13/cobra"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/localstack"
	"github.com/s3fence/s3fence/localstack/faultproxy"
	"github.com/s3fence/s3fence/s3store"
)

func (a *app) demoCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "demo [DST]",
		Short: "Tell the story of the paused writer, for real",
		Long: `Demo makes the paused-writer story happen on the embedded store, in a temporary
folder: an owner pauses in the middle of its write, a new owner writes, the old
one wakes. Beside it, the same writes are made as plain PUTs are: whoever comes
last wins.

With DST, s3://BUCKET/PREFIX, it happens at a server that --endpoint-url names, such
as a MinIO: the first owner's request is held on the wire, by a proxy on 127.0.0.1,
and arrives late. Two objects are made in a folder of their own under DST, and
removed in the end. The tokens are of a counter in a temporary folder.`,
		Example: `  # 1. nothing to start, no account
  s3fence demo

  # 2. on a server
  s3fence demo --endpoint-url http://127.0.0.1:9000 s3://bucket/demo`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return a.demo(c.Context(), args) },
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

// A stage is where the story happens.
type stage struct {
	key       string
	now, late *guard.Guard    // late's first write is held
	reached   <-chan struct{} // when it has come to where it is held
	release   func()
	held      string // where that is, in words
	// plainPut and plainGet are of an object that nothing guards.
	plainPut func(ctx context.Context, text string) error
	plainGet func(ctx context.Context) (string, error)
	clean    func() error
}

// embedded is a stage in a folder.
func embedded(l *localstack.Local, dir string) *stage {
	plain := filepath.Join(dir, "plain")
	paused := &pausedStore{Store: l.Store("demo"), reached: make(chan struct{}), release: make(chan struct{})}
	return &stage{
		key: "report.csv", now: guard.New(l.Store("demo"), nil), late: guard.New(paused, nil),
		reached: paused.reached, release: func() { close(paused.release) }, held: "its request has not left yet",
		plainPut: func(_ context.Context, text string) error { return os.WriteFile(plain, []byte(text), 0o600) },
		plainGet: func(context.Context) (string, error) {
			b, err := os.ReadFile(plain)
			return string(b), err
		},
		clean: func() error { return nil },
	}
}

// cleanTimeout bounds the removal of the demo's objects.
const cleanTimeout = 10 * time.Second

// served is a stage on a server, with a proxy before it.
func (a *app) served(ctx context.Context, url string) (*stage, error) {
	bucket, prefix, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	client, err := a.s3Client(ctx)
	if err != nil {
		return nil, err
	}
	base := aws.ToString(client.Options().BaseEndpoint)
	if base == "" {
		return nil, usagef("the proxy of the demo stands before a server that is named: give --endpoint-url http://HOST:PORT, such as a MinIO's")
	}
	proxy, err := faultproxy.New(base)
	if err != nil {
		return nil, err
	}
	a.closers = append(a.closers, proxy.Close)
	at := proxy.URL()
	through := s3.New(client.Options(), func(o *s3.Options) { o.BaseEndpoint, o.UsePathStyle = &at, true })
	if prefix != "" && !strings.HasSuffix(prefix, "/") {
		prefix += "/"
	}
	folder := prefix + "s3fence-demo-" + rand.Text() + "/"
	st := &stage{
		key: folder + "report.csv", now: guard.New(s3store.New(client, bucket, nil), nil), late: guard.New(s3store.New(through, bucket, nil), nil),
		held: "its request is on the wire",
	}
	held := proxy.Hold(faultproxy.Rule{Method: http.MethodPut, Key: st.key})
	st.reached, st.release = held.Reached(), held.Release
	plain := s3store.New(client, bucket, nil)
	plainKey := folder + "plain.csv"
	st.plainPut = func(ctx context.Context, text string) error {
		_, err := client.PutObject(ctx, &s3.PutObjectInput{Bucket: &bucket, Key: &plainKey, Body: strings.NewReader(text)})
		return err
	}
	st.plainGet = func(ctx context.Context) (string, error) {
		_, body, err := plain.Get(ctx, plainKey, guard.ReadOptions{})
		if err != nil {
			return "", err
		}
		defer body.Close()
		b, err := io.ReadAll(body)
		return string(b), err
	}
	st.clean = func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
		defer cancel()
		var errs []error
		for _, key := range []string{st.key, plainKey} {
			if _, err := client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &bucket, Key: &key}); err != nil {
				errs = append(errs, fmt.Errorf("remove s3://%s/%s, which the demo has made: %w", bucket, key, err))
			}
		}
		return errors.Join(errs...)
	}
	return st, nil
}

func (a *app) demo(ctx context.Context, args []string) (err error) {
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

	st := embedded(l, dir)
	if len(args) > 0 {
		if st, err = a.served(ctx, args[0]); err != nil {
			return err
		}
	}
	defer func() { err = errors.Join(err, st.clean()) }()

	const scope = "nightly/report"
	const oldData, newData = "totals of the OLD owner", "totals of the NEW owner"
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
	late := make(chan error, 1)
	go func() {
		_, err := st.late.Put(ctx, first, st.key, guard.Bytes([]byte(oldData)), nil)
		late <- err
	}()
	select {
	case <-st.reached:
	case err := <-late:
		return errors.Join(errors.New("the first owner could not begin its write"), err)
	}
	if err := show("It is paused in the middle of that write: garbage collection, a VM that moves, a slow disk. Its lease runs out.",
		st.held, st.held); err != nil {
		return err
	}

	second, err := l.Issue(ctx, scope)
	if err != nil {
		return err
	}
	if _, err := st.now.Put(ctx, second, st.key, guard.Bytes([]byte(newData)), nil); err != nil {
		return err
	}
	if err := st.plainPut(ctx, newData); err != nil {
		return err
	}
	if err := show("A new owner takes over and writes.",
		fmt.Sprintf("with token %d: %q is in the object", second.Number(), newData), fmt.Sprintf("%q is in the object", newData)); err != nil {
		return err
	}

	st.release()
	lateErr := <-late
	if err := st.plainPut(ctx, oldData); err != nil {
		return err
	}
	if !errors.Is(lateErr, guard.ErrStale) {
		return fmt.Errorf("the late write was not refused as stale: %w", lateErr)
	}
	if err := show("The first owner wakes up and finishes its write.", "refused: "+lateErr.Error(), "200 OK"); err != nil {
		return err
	}

	_, body, err := st.now.Get(ctx, st.key, nil)
	if err != nil {
		return err
	}
	defer body.Close()
	got, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	gotPlain, err := st.plainGet(ctx)
	if err != nil {
		return err
	}
	if string(got) != newData {
		return fmt.Errorf("the object holds %q, not the new owner's data", got)
	}
	return show("What a reader sees.", fmt.Sprintf("%q", got), fmt.Sprintf("%q: the new owner's work is gone, and nobody was told", gotPlain))
}
