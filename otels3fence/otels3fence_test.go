package otels3fence_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/issuer"
	"github.com/s3fence/s3fence/localstack"
	"github.com/s3fence/s3fence/otels3fence"
)

const scope = "nightly/report"

// A telemetry keeps what an observer told.
type telemetry struct {
	guard.Observer
	spans  *tracetest.SpanRecorder
	reader *metric.ManualReader
}

func listen(t *testing.T, opts otels3fence.Options) *telemetry {
	t.Helper()
	tel := &telemetry{spans: tracetest.NewSpanRecorder(), reader: metric.NewManualReader()}
	opts.TracerProvider = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(tel.spans))
	opts.MeterProvider = metric.NewMeterProvider(metric.WithReader(tel.reader))
	var err error
	if tel.Observer, err = otels3fence.New(&opts); err != nil {
		t.Fatal(err)
	}
	return tel
}

// said returns the spans as text, without what is of one run only.
func (tel *telemetry) said() []string {
	var all []string
	for _, s := range tel.spans.Ended() {
		text := s.Name()
		for _, a := range s.Attributes() {
			v := a.Value.String()
			if a.Key == otels3fence.AttrURL {
				v = v[strings.LastIndex(v, "/")+1:]
			}
			text += fmt.Sprintf(" %s=%s", strings.TrimPrefix(string(a.Key), "s3fence."), v)
		}
		if s.Status().Code == codes.Error {
			text += " ERROR " + s.Status().Description
		}
		all = append(all, text)
	}
	return all
}

// counts returns the series of a metric and their values: of how long operations
// took how many there were.
func (tel *telemetry) counts(t *testing.T, name string) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := tel.reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	series := map[string]int64{}
	for _, sm := range all.ScopeMetrics {
		if sm.Scope.Name != otels3fence.ScopeName {
			t.Errorf("instrumentation scope %q", sm.Scope.Name)
		}
		for _, m := range sm.Metrics {
			if m.Name != name {
				continue
			}
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					series[p.Attributes.Encoded(attribute.DefaultEncoder())] = p.Value
				}
			case metricdata.Histogram[int64]:
				for _, p := range d.DataPoints {
					series[p.Attributes.Encoded(attribute.DefaultEncoder())] = p.Sum
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					series[p.Attributes.Encoded(attribute.DefaultEncoder())] = int64(p.Count)
				}
			default:
				t.Errorf("%s is a %T", name, d)
			}
		}
	}
	return series
}

func wantSeries(t *testing.T, got, want map[string]int64) {
	t.Helper()
	if maps.Equal(got, want) {
		return
	}
	for _, k := range slices.Sorted(maps.Keys(got)) {
		t.Errorf("got %s %d", k, got[k])
	}
	for _, k := range slices.Sorted(maps.Keys(want)) {
		t.Errorf("want %s %d", k, want[k])
	}
}

func wantSpans(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("spans\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func open(t *testing.T) *localstack.Local {
	t.Helper()
	l, err := localstack.Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

var errDown = errors.New("the network is down")

// down is a store that can't be reached.
type down struct{ guard.Store }

func (down) Head(context.Context, string, guard.HeadOptions) (guard.Object, error) {
	return guard.Object{}, errDown
}

func TestOperations(t *testing.T) {
	l, tel := open(t), listen(t, otels3fence.Options{})
	store := l.Store("bucket")
	opts := guard.Options{Observer: tel, MaxAttempts: 1, RootStore: store}
	g, unreachable := guard.New(store, &opts), guard.New(down{store}, &opts)
	late, err := g.OpenSession(t.Context(), l, scope, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := late.Put(t.Context(), "k", guard.Bytes([]byte("12345")), nil); err != nil {
		t.Fatal(err)
	}
	owner, err := g.OpenSession(t.Context(), l, scope, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := owner.Put(t.Context(), "k", guard.Bytes([]byte("123")), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := late.Put(t.Context(), "k", guard.Bytes(nil), nil); !errors.Is(err, guard.ErrStale) {
		t.Fatal(err)
	}
	if _, err := unreachable.Put(t.Context(), owner.Token(), "k", guard.Bytes(nil), &guard.PutOptions{Sequence: 9}); !errors.Is(err, errDown) {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := g.Put(gone, owner.Token(), "k", guard.Bytes(nil), &guard.PutOptions{Sequence: 2}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}

	fence := len(`{"s3fence_scope":1,"scope":"nightly/report","issuer":"0123456789abcdef","token":1,"sequence":1,"write_id":"0123456789abcdef0123456789abcdef"}` + "\n")
	wantSpans(t, tel.said(),
		"s3fence issue operation=issue scope=nightly/report outcome=issued requests=0 token=1",
		fmt.Sprintf("s3fence claim operation=claim scope=nightly/report url=report.json outcome=claimed requests=2 token=1 sequence=1 bytes=%d", fence),
		"s3fence put operation=put scope=nightly/report url=k outcome=created requests=2 token=1 sequence=1 bytes=5",
		"s3fence issue operation=issue scope=nightly/report outcome=issued requests=0 token=2",
		fmt.Sprintf("s3fence claim operation=claim scope=nightly/report url=report.json outcome=claimed requests=2 token=2 sequence=1 bytes=%d", fence),
		"s3fence put operation=put scope=nightly/report url=k outcome=replaced requests=2 token=2 sequence=1 bytes=3",
		"s3fence put operation=put scope=nightly/report url=k outcome=refused requests=1 reason=stale token=1 sequence=2 held.token=2",
		"s3fence put operation=put scope=nightly/report url=k outcome=failed requests=1 reason=failed token=2 sequence=9 ERROR put s3://bucket/k: observe the object: the network is down",
		"s3fence put operation=put scope=nightly/report url=k outcome=failed requests=0 reason=interrupted token=2 sequence=2 ERROR put s3://bucket/k: context canceled")

	const operation, outcome, reason = "s3fence.operation=", ",s3fence.outcome=", ",s3fence.reason="
	wantSeries(t, tel.counts(t, otels3fence.MetricOperations), map[string]int64{
		operation + "issue" + outcome + "issued":                        2,
		operation + "claim" + outcome + "claimed":                       2,
		operation + "put" + outcome + "created":                         1,
		operation + "put" + outcome + "replaced":                        1,
		operation + "put" + outcome + "refused" + reason + "stale":      1,
		operation + "put" + outcome + "failed" + reason + "failed":      1,
		operation + "put" + outcome + "failed" + reason + "interrupted": 1,
	})
	wantSeries(t, tel.counts(t, otels3fence.MetricDuration), map[string]int64{
		operation + "issue" + outcome + "issued":  2,
		operation + "claim" + outcome + "claimed": 2,
		operation + "put" + outcome + "created":   1,
		operation + "put" + outcome + "replaced":  1,
		operation + "put" + outcome + "refused":   1,
		operation + "put" + outcome + "failed":    2,
	})
	wantSeries(t, tel.counts(t, otels3fence.MetricRequests), map[string]int64{
		operation + "issue" + outcome + "issued":  0,
		operation + "claim" + outcome + "claimed": 4,
		operation + "put" + outcome + "created":   2,
		operation + "put" + outcome + "replaced":  2,
		operation + "put" + outcome + "refused":   1,
		operation + "put" + outcome + "failed":    1,
	})
	wantSeries(t, tel.counts(t, otels3fence.MetricWritten), map[string]int64{
		operation + "claim" + outcome + "claimed": int64(2 * fence),
		operation + "put" + outcome + "created":   5,
		operation + "put" + outcome + "replaced":  3,
	})
}

// taken is a lease store in which another owner takes the lease over after its
// first heartbeat.
type taken struct {
	issuer.LeaseStore
	swaps atomic.Int32
}

func (s *taken) SwapLease(ctx context.Context, scope string, over guard.WriteID, next issuer.LeaseRecord, claim guard.Record) (issuer.LeaseRecord, error) {
	if s.swaps.Add(1) == 3 {
		other := next
		other.Owner, other.Version = "two", guard.WriteID{7}
		if _, err := s.LeaseStore.SwapLease(ctx, scope, over, other, claim); err != nil {
			return issuer.LeaseRecord{}, err
		}
	}
	return s.LeaseStore.SwapLease(ctx, scope, over, next, claim)
}

func TestLeases(t *testing.T) {
	l, tel := open(t), listen(t, otels3fence.Options{ScopeInMetrics: true})
	opts := issuer.LeaseOptions{Owner: "one", TTL: 3 * time.Second, Observer: tel}
	lease, err := issuer.Acquire(t.Context(), &taken{LeaseStore: l}, scope, opts)
	if err != nil {
		t.Fatal(err)
	}
	opts.Wait = -1
	if _, err := issuer.Acquire(t.Context(), l, scope, opts); !errors.Is(err, issuer.ErrLeaseHeld) {
		t.Fatal(err)
	}
	<-lease.Context().Done()
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	lost := "lease lost: scope nightly/report, token 1: its record was changed by another program"
	wantSpans(t, tel.said(),
		"s3fence lease.acquire operation=lease.acquire scope=nightly/report outcome=acquired requests=0 token=1",
		"s3fence lease.acquire operation=lease.acquire scope=nightly/report outcome=refused requests=0 reason=lease-held",
		"s3fence lease.renew operation=lease.renew scope=nightly/report outcome=renewed requests=0 token=1",
		"s3fence lease.renew operation=lease.renew scope=nightly/report outcome=failed requests=0 reason=lease-lost token=1 ERROR "+lost,
		"s3fence lease.lost operation=lease.lost scope=nightly/report outcome=failed requests=0 reason=lease-lost token=1 ERROR "+lost,
		"s3fence lease.release operation=lease.release scope=nightly/report outcome=released requests=0 token=1")
	wantSeries(t, tel.counts(t, otels3fence.MetricOperations), map[string]int64{
		"s3fence.operation=lease.acquire,s3fence.outcome=acquired,s3fence.scope=nightly/report":                          1,
		"s3fence.operation=lease.acquire,s3fence.outcome=refused,s3fence.reason=lease-held,s3fence.scope=nightly/report": 1,
		"s3fence.operation=lease.renew,s3fence.outcome=renewed,s3fence.scope=nightly/report":                             1,
		"s3fence.operation=lease.renew,s3fence.outcome=failed,s3fence.reason=lease-lost,s3fence.scope=nightly/report":    1,
		"s3fence.operation=lease.lost,s3fence.outcome=failed,s3fence.reason=lease-lost,s3fence.scope=nightly/report":     1,
		"s3fence.operation=lease.release,s3fence.outcome=released,s3fence.scope=nightly/report":                          1,
	})
}

// traced is a store whose requests make spans, as the SDK's instrumentation does.
type traced struct {
	guard.Store
	tracer trace.Tracer
}

func (s traced) Put(ctx context.Context, key string, req guard.PutRequest) (guard.PutResult, error) {
	ctx, span := s.tracer.Start(ctx, "PutObject")
	defer span.End()
	return s.Store.Put(ctx, key, req)
}

// The requests of an operation are below its span, and that is below the
// caller's. No options: the global providers.
func TestSpansNest(t *testing.T) {
	l, spans := open(t), tracetest.NewSpanRecorder()
	global := otel.GetTracerProvider()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)))
	t.Cleanup(func() { otel.SetTracerProvider(global) })
	tracer := otel.Tracer("test")
	observer, err := otels3fence.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	g := guard.New(traced{l.Store("bucket"), tracer}, &guard.Options{Observer: observer, RootStore: l.Store("bucket")})
	tok, err := l.Issue(t.Context(), scope)
	if err != nil {
		t.Fatal(err)
	}
	ctx, caller := tracer.Start(t.Context(), "job")
	_, err = g.Put(ctx, tok, "k", guard.Bytes(nil), nil)
	caller.End()
	if err != nil {
		t.Fatal(err)
	}
	below := map[string]string{}
	for _, s := range spans.Ended() {
		for _, p := range spans.Ended() {
			if s.Parent().SpanID() == p.SpanContext().SpanID() {
				below[s.Name()] = p.Name()
			}
		}
	}
	if want := map[string]string{"PutObject": "s3fence put", "s3fence put": "job"}; !maps.Equal(below, want) {
		t.Errorf("%v, want %v", below, want)
	}
}

func TestConcurrent(t *testing.T) {
	l, tel := open(t), listen(t, otels3fence.Options{})
	s, err := guard.New(l.Store("bucket"), &guard.Options{Observer: tel}).OpenSession(t.Context(), l, scope, nil)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if _, err := s.Put(t.Context(), fmt.Sprint(i), guard.Bytes(nil), nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	wantSeries(t, tel.counts(t, otels3fence.MetricOperations), map[string]int64{
		"s3fence.operation=issue,s3fence.outcome=issued":  1,
		"s3fence.operation=claim,s3fence.outcome=claimed": 1,
		"s3fence.operation=put,s3fence.outcome=created":   20,
	})
}
