package probe_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/localstack"
	"github.com/s3fence/s3fence/s3store/probe"
)

// failing names the properties with a verdict.
func failing(r probe.Report, v probe.Verdict) []string {
	var names []string
	for _, c := range r.Checks {
		if c.Verdict == v {
			names = append(names, c.Property)
		}
	}
	return names
}

// full asks for full runs, printed as the tables of docs/stores.md.
var full = os.Getenv("S3FENCE_PROBE") == "full"

func show(t *testing.T, r probe.Report) {
	t.Helper()
	var b strings.Builder
	for _, c := range r.Checks {
		if full {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", c.Property, c.Verdict, c.Got)
		} else {
			fmt.Fprintf(&b, "%-8s %-26s %5d ms  %s\n", c.Verdict, c.Property, c.Duration.Milliseconds(), c.Got)
		}
	}
	t.Logf("%s in %d ms, limits %v, ETags %v unique %v\n%s", r.Verdict, r.Duration.Milliseconds(), r.Limits, r.ETagKinds, r.UniqueETags, &b)
}

// Each liar fails for its own reason. among is the property that names the
// lie; the others are those that it can't help but break too.
func TestLiars(t *testing.T) {
	for _, tt := range []struct {
		name  string
		lies  lies
		among string
		got   string
		only  bool
	}{
		{"check then write", lies{gap: 50 * time.Millisecond}, "create-race", "several winners", false},
		{"check then write", lies{gap: 50 * time.Millisecond}, "replace-race", "several winners", false},
		{"ignores conditions", lies{ignore: true}, "create-existing-refused", "taken: 200", false},
		{"ignores conditions", lies{ignore: true}, "wrong-etag-refused", "taken: 200", false},
		{"ignores conditions", lies{ignore: true}, "if-match-missing-refused", "taken: 200", false},
		{"ignores conditions", lies{ignore: true}, "create-race", "several winners", false},
		{"501", lies{unsupported: true}, "create-race", "not supported", false},
		{"if-match creates", lies{ifMatchCreates: true}, "if-match-missing-refused", "taken: 200", true},
		{"gives unquoted, takes quoted", lies{give: unquotedOnly, take: quotedOnly}, "etag-as-given", "precondition failed", false},
		{"gives quoted, takes unquoted", lies{take: unquotedOnly}, "etag-as-given", "precondition failed", false},
		{"torn HEAD", lies{tornHead: true}, "head-not-torn", "with the metadata of write", false},
		{"torn GET", lies{tornGet: true}, "get-not-torn", "with the", false},
		{"merges metadata", lies{merge: true}, "metadata-replaced", "merged", true},
		{"drops metadata", lies{drop: true}, "metadata-roundtrip", "none of it", false},
		{"cuts metadata", lies{short: 100}, "metadata-roundtrip", "for \"r1:", false},
		{"stale reads", lies{stale: 5 * time.Millisecond}, "read-after-write", "HEAD gives the ETag", false},
		{"writes what it refuses", lies{half: true}, "refused-unchanged", "its bytes are others", false},
	} {
		t.Run(tt.name+"/"+tt.among, func(t *testing.T) {
			t.Parallel()
			l := newLiar(tt.lies)
			r, err := probe.Run(t.Context(), probe.Target{Store: l, Remove: l.remove}, &probe.Options{Quick: true})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if t.Failed() {
					show(t, r)
				}
			}()
			fails := failing(r, probe.Fail)
			if r.Verdict != probe.Fail || !slices.Contains(fails, tt.among) {
				t.Errorf("%s, failed are %v, not %s among them", r.Verdict, fails, tt.among)
			}
			if tt.only && len(fails) != 1 {
				t.Errorf("failed are %v", fails)
			}
			for _, c := range r.Checks {
				if c.Property == tt.among && !strings.Contains(c.Got, tt.got) {
					t.Errorf("%s got %q, not %q", c.Property, c.Got, tt.got)
				}
			}
			if len(l.objects) > 0 {
				t.Errorf("%d objects are left", len(l.objects))
			}
		})
	}
}

// Stores that differ in what does not matter pass.
func TestHonest(t *testing.T) {
	for name, l := range map[string]lies{
		"quoted":                     {},
		"gives and takes quoted":     {take: quotedOnly},
		"gives and takes unquoted":   {give: unquotedOnly, take: unquotedOnly},
		"gives unquoted, takes both": {give: unquotedOnly},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newLiar(l)
			r, err := probe.Run(t.Context(), probe.Target{Store: s, Remove: s.remove}, &probe.Options{Quick: true})
			if err != nil {
				t.Fatal(err)
			}
			show(t, r)
			if r.Verdict != probe.Pass || len(r.Limits) > 0 || r.UniqueETags || r.ETagKinds["none"] != guard.ETagRepeatable {
				t.Error("not so")
			}
			if len(s.objects) > 0 {
				t.Errorf("%d objects are left", len(s.objects))
			}
		})
	}
}

func TestLimit(t *testing.T) {
	s := newLiar(lies{refuseLong: 1024})
	r, err := probe.Run(t.Context(), probe.Target{Store: s, Remove: s.remove}, &probe.Options{Quick: true})
	if err != nil || r.Verdict != probe.Pass || !slices.Equal(r.Limits, []string{probe.LimitMetadata2KB}) {
		t.Errorf("%s, limits %v, %v", r.Verdict, r.Limits, err)
	}
}

// A store that can't be reached is not a store that lies.
func TestErrorsAreNotVerdicts(t *testing.T) {
	gone := errors.New("connection reset by peer")
	for name, tt := range map[string]struct {
		err     error
		after   int
		nothing bool // was written
	}{
		"network from the start": {gone, 0, false},
		"network in the middle":  {gone, 90, false},
		"denied":                 {guard.ErrDenied, 0, true},
		"no bucket":              {guard.ErrNoBucket, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newLiar(lies{fails: tt.err, after: tt.after})
			r, err := probe.Run(t.Context(), probe.Target{Store: s, Remove: s.remove}, &probe.Options{Quick: true})
			if !errors.Is(err, tt.err) || r.Verdict != "" || len(failing(r, probe.Fail)) > 0 {
				t.Errorf("%q, %v, failed are %v", r.Verdict, err, failing(r, probe.Fail))
			}
			if len(s.objects) > 0 {
				t.Errorf("%d objects are left", len(s.objects))
			}
			if c := got(r, "cleanup"); tt.nothing && c.Verdict != "" {
				t.Errorf("nothing was written, and cleanup: %s, %s", c.Verdict, c.Got)
			}
		})
	}
}

// Interrupted in any check, it ends at once and leaves nothing.
func TestInterrupted(t *testing.T) {
	for _, at := range []string{"create-race", "replace-race", "wrong-etag-refused", "read-after-write", "head-not-torn", "overlapped-uploads"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			s := newLiar(lies{})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var began time.Time
			r, err := probe.Run(ctx, probe.Target{Store: s, Remove: s.remove}, &probe.Options{
				Quick: at == "overlapped-uploads",
				Progress: func(_, _ int, property string) {
					if property == at {
						began = time.Now()
						time.AfterFunc(100*time.Microsecond, cancel)
					}
				},
			})
			if !errors.Is(err, context.Canceled) || r.Verdict != "" || len(failing(r, probe.Fail)) > 0 {
				t.Errorf("%q, %v, failed are %v", r.Verdict, err, failing(r, probe.Fail))
			}
			if d := time.Since(began); d > 2*time.Second {
				t.Errorf("it took %s to end", d)
			}
			if len(s.objects) > 0 {
				t.Errorf("%d objects are left", len(s.objects))
			}
		})
	}
}

func TestEmbedded(t *testing.T) {
	for _, md5 := range []bool{false, true} {
		t.Run(fmt.Sprintf("md5=%v", md5), func(t *testing.T) {
			l, err := localstack.Open(t.TempDir(), &localstack.Options{MD5ETags: md5})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			s := l.Store("bucket")
			var calls, checked atomic.Int32
			r, err := probe.Run(t.Context(), probe.Target{Store: s, Remove: func(ctx context.Context, key string) error {
				return l.Remove(ctx, "bucket", key)
			}}, &probe.Options{Quick: !full, Prefix: "some/root", Progress: func(int, int, string) { calls.Add(1) },
				Checked: func(probe.Check) { checked.Add(1) }})
			if err != nil {
				t.Fatal(err)
			}
			show(t, r)
			if r.Verdict != probe.Pass || len(r.Limits) > 0 || r.UniqueETags == md5 {
				t.Error("not so")
			}
			if n := len(r.Checks); int(calls.Load()) != n || int(checked.Load()) != n {
				t.Errorf("%d calls of progress, %d of checked, %d checks", calls.Load(), checked.Load(), n)
			}
			for _, c := range r.Checks {
				if c.Property == "multipart-if-match" && c.Verdict != probe.Skipped {
					t.Errorf("%+v", c)
				}
				if c.Property == "cleanup" && c.Verdict != probe.Pass {
					t.Errorf("%+v", c)
				}
			}
		})
	}
}
