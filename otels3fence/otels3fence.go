// Package otels3fence tells OpenTelemetry what s3fence does: a span and some
// metrics for each operation. It is a module of its own, so that s3fence does
// not bring OpenTelemetry along where nobody wants it.
//
//	o, err := otels3fence.New(nil)
//	g := guard.New(store, &guard.Options{Observer: o})
//
// Each operation is a span "s3fence put", "s3fence issue" and so on, around
// those of the SDK's own instrumentation. A late writer that was refused is an
// outcome: its span has no error status, and no metric counts it as a failure.
// docs/observability.md has all the names.
package otels3fence

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/s3fence/s3fence/guard"
)

// ScopeName is the instrumentation scope of all spans and metrics.
const ScopeName = "github.com/s3fence/s3fence/otels3fence"

// The metrics. Dashboards depend on the names: some may be added, none changes.
const (
	// MetricOperations counts operations by operation, outcome and reason.
	MetricOperations = "s3fence.operations"
	// MetricDuration is a histogram of the seconds that they took, by operation
	// and outcome, as are the next two.
	MetricDuration = "s3fence.operation.duration"
	// MetricRequests is a histogram of the requests that each made.
	MetricRequests = "s3fence.operation.requests"
	// MetricWritten counts the bytes that were written and became objects.
	MetricWritten = "s3fence.written"
)

// The attributes of spans and metrics, and those of spans alone.
const (
	AttrOperation = attribute.Key("s3fence.operation")
	AttrOutcome   = attribute.Key("s3fence.outcome")
	AttrReason    = attribute.Key("s3fence.reason")
	// AttrScope is one of metrics only with Options.ScopeInMetrics.
	AttrScope = attribute.Key("s3fence.scope")

	AttrURL       = attribute.Key("s3fence.url")
	AttrToken     = attribute.Key("s3fence.token")
	AttrSequence  = attribute.Key("s3fence.sequence")
	AttrHeldToken = attribute.Key("s3fence.held.token")
	AttrRequests  = attribute.Key("s3fence.requests")
	AttrBytes     = attribute.Key("s3fence.bytes")
)

// Options of New. The zero value of each field means its default.
type Options struct {
	// TracerProvider and MeterProvider are where spans and metrics go. Default:
	// the global ones.
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
	// ScopeInMetrics adds the scope to the metrics. Each scope then has series of
	// its own, so it is for programs that use few. Default: only spans have it.
	ScopeInMetrics bool
}

type observer struct {
	tracer   trace.Tracer
	ops      metric.Int64Counter
	duration metric.Float64Histogram
	requests metric.Int64Histogram
	written  metric.Int64Counter
	scoped   bool
}

// New returns an observer for [guard.Options] and for the leases of package
// issuer. opts may be nil. Errors are those of making the instruments.
func New(opts *Options) (guard.Observer, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.TracerProvider == nil {
		o.TracerProvider = otel.GetTracerProvider()
	}
	if o.MeterProvider == nil {
		o.MeterProvider = otel.GetMeterProvider()
	}
	meter := o.MeterProvider.Meter(ScopeName)
	ops, err1 := meter.Int64Counter(MetricOperations, metric.WithUnit("{operation}"),
		metric.WithDescription("Operations by what they came to. Refused ones are none that failed."))
	duration, err2 := meter.Float64Histogram(MetricDuration, metric.WithUnit("s"),
		metric.WithDescription("What operations took, all their requests together."),
		metric.WithExplicitBucketBoundaries(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800))
	requests, err3 := meter.Int64Histogram(MetricRequests, metric.WithUnit("{request}"),
		metric.WithDescription("Requests that operations made, failed ones included."),
		metric.WithExplicitBucketBoundaries(1, 2, 3, 4, 6, 10, 20, 100, 1000, 10000))
	written, err4 := meter.Int64Counter(MetricWritten, metric.WithUnit("By"),
		metric.WithDescription("Bytes that were written and became objects."))
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, err
	}
	return &observer{
		tracer: o.TracerProvider.Tracer(ScopeName), ops: ops, duration: duration,
		requests: requests, written: written, scoped: o.ScopeInMetrics,
	}, nil
}

// Begin implements guard.Observer.
func (o *observer) Begin(ctx context.Context, op guard.Operation) (context.Context, func(guard.Completion)) {
	begun := time.Now()
	attrs := []attribute.KeyValue{AttrOperation.String(string(op.Op)), AttrScope.String(op.Scope)}
	if op.URL != "" {
		attrs = append(attrs, AttrURL.String(op.URL))
	}
	ctx, span := o.tracer.Start(ctx, "s3fence "+string(op.Op), trace.WithAttributes(attrs...))
	return ctx, func(c guard.Completion) {
		o.measure(ctx, op, c, time.Since(begun))
		describe(span, c)
		span.End()
	}
}

func describe(span trace.Span, c guard.Completion) {
	span.SetAttributes(AttrOutcome.String(string(c.Outcome)), AttrRequests.Int(c.Requests))
	if c.Reason != "" {
		span.SetAttributes(AttrReason.String(c.Reason))
	}
	if !c.Token.IsZero() {
		span.SetAttributes(AttrToken.Int64(c.Token.Number()))
	}
	if s := c.Result.Record.Sequence; s > 0 {
		span.SetAttributes(AttrSequence.Int64(s))
	}
	if c.Held != nil {
		span.SetAttributes(AttrHeldToken.Int64(c.Held.Number))
	}
	if wrote(c) {
		span.SetAttributes(AttrBytes.Int64(c.Result.Bytes))
	}
	if c.Outcome == guard.Failed {
		span.SetStatus(codes.Error, fmt.Sprint(c.Err))
	}
}

func (o *observer) measure(ctx context.Context, op guard.Operation, c guard.Completion, took time.Duration) {
	attrs := []attribute.KeyValue{AttrOperation.String(string(op.Op)), AttrOutcome.String(string(c.Outcome))}
	if o.scoped {
		attrs = append(attrs, AttrScope.String(op.Scope))
	}
	what := metric.WithAttributes(attrs...)
	o.duration.Record(ctx, took.Seconds(), what)
	o.requests.Record(ctx, int64(c.Requests), what)
	if wrote(c) {
		o.written.Add(ctx, c.Result.Bytes, what)
	}
	if c.Reason != "" {
		what = metric.WithAttributes(append(attrs, AttrReason.String(c.Reason))...)
	}
	o.ops.Add(ctx, 1, what)
}

// wrote reports whether the operation sent the bytes that are the object now.
// Those that an earlier call sent, and those that the store copied, don't count.
func wrote(c guard.Completion) bool {
	switch c.Outcome {
	case guard.Created, guard.Replaced, guard.Removed, guard.Claimed:
		return true
	}
	return false
}
