// Prometheus shows the metrics of s3fence as Prometheus gets them. It runs on the
// embedded store and issuer, with no AWS account and no server:
//
//	go run -C examples/prometheus . -once
//
// A job takes the lease of its scope and writes an object, a second one takes
// over, and the first one comes late and is refused. Without -once the metrics are served until Ctrl-C, at the
// address that it prints; -listen 127.0.0.1:9464 chooses one.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/issuer"
	"github.com/s3fence/s3fence/localstack"
	"github.com/s3fence/s3fence/otels3fence"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "where to serve /metrics")
	once := flag.Bool("once", false, "print the metrics and end")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Stdout, *listen, *once)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, listen string, once bool) (err error) {
	registry := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(registry), exporter.WithoutScopeInfo())
	if err != nil {
		return err
	}
	meters := metric.NewMeterProvider(metric.WithReader(reader))
	defer func() { err = errors.Join(err, meters.Shutdown(context.WithoutCancel(ctx))) }()
	observer, err := otels3fence.New(&otels3fence.Options{MeterProvider: meters, ScopeInMetrics: true})
	if err != nil {
		return err
	}
	if err := work(ctx, out, observer); err != nil {
		return err
	}
	metrics := promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	if once {
		answer := httptest.NewRecorder()
		metrics.ServeHTTP(answer, httptest.NewRequestWithContext(ctx, http.MethodGet, "/metrics", nil))
		_, err := io.Copy(out, answer.Body)
		return err
	}
	return serve(ctx, out, listen, metrics)
}

// work is two jobs of one scope. The first one writes again when the second one
// has taken over.
func work(ctx context.Context, out io.Writer, observer guard.Observer) (err error) {
	dir, err := os.MkdirTemp("", "s3fence-prometheus-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	local, err := localstack.Open(dir, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, local.Close()) }()

	// The same observer for the guard and for leases.
	g := guard.New(local.Store("reports"), &guard.Options{Observer: observer})
	const scope, key = "nightly/report", "today.csv"
	job := func(owner string) (*guard.Session, error) {
		lease, err := issuer.Acquire(ctx, local, scope, issuer.LeaseOptions{Owner: owner, Observer: observer})
		if err != nil {
			return nil, err
		}
		s, err := g.ResumeSession(lease.Context(), lease.Token(), nil)
		if err == nil {
			_, err = s.Put(lease.Context(), key, guard.Bytes([]byte("by the "+owner+" job\n")), nil)
		}
		return s, errors.Join(err, lease.Release(ctx))
	}
	first, err := job("first")
	if err != nil {
		return err
	}
	if _, err := job("second"); err != nil {
		return err
	}
	if _, err = first.Put(ctx, key, guard.Bytes([]byte("late\n")), nil); !errors.Is(err, guard.ErrStale) {
		return fmt.Errorf("the late write was not refused: %w", err)
	}
	_, err = fmt.Fprintf(out, "# %v\n", err)
	return err
}

func serve(ctx context.Context, out io.Writer, listen string, metrics http.Handler) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = server.Shutdown(ctx)
	})
	defer stop()
	if _, err := fmt.Fprintf(out, "http://%s/metrics\n", l.Addr()); err != nil {
		return err
	}
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
