package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/s3fence/s3fence/localstack/faultproxy"
	"github.com/s3fence/s3fence/localstack/servers"
)

// results are those of one workload.
type results struct {
	workload *workload
	runs     map[string][]measurement
	loads    map[string][]string // the load average after each run
	requests map[string]requests
	failed   map[string]error
}

func newResults(w *workload) *results {
	return &results{w, map[string][]measurement{}, map[string][]string{}, map[string]requests{}, map[string]error{}}
}

// note takes in a run, m nil if it was not measured. Another's program that
// fails is left out from then on; of ours, and of the floor, it is the end.
func (r *results) note(ctx context.Context, c contestant, m *measurement, err error, progress io.Writer) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil && (c.name == r.workload.floor || strings.HasPrefix(c.name, ours)):
		return fmt.Errorf("%s: %s: %w", r.workload.name, c.name, err)
	case err != nil:
		r.failed[c.name] = err
		fmt.Fprintf(progress, "%s: %s fails: %v\n", r.workload.name, c.name, err)
	case m != nil:
		r.runs[c.name] = append(r.runs[c.name], *m)
		r.loads[c.name] = append(r.loads[c.name], loadAverage())
	}
	return nil
}

// requests are those of one run.
type requests struct {
	objects int
	keys    int // to the objects themselves
	others  int // lists, settings, the scope fence
	methods map[string]int
}

func tally(seen []faultproxy.Request, prefix string, objects int) requests {
	t := requests{objects: objects, methods: map[string]int{}}
	for _, q := range seen {
		if strings.HasPrefix(q.Key, prefix) {
			t.keys++
			t.methods[q.Method]++
		} else {
			t.others++
		}
	}
	return t
}

// median returns the median of wall and CPU, each by itself, and the highest peak.
func (r *results) median(name string) measurement {
	of := func(field func(measurement) float64) []float64 {
		var all []float64
		for _, m := range r.runs[name] {
			all = append(all, field(m))
		}
		slices.Sort(all)
		return all
	}
	middle := func(all []float64) float64 {
		if len(all) == 0 {
			return 0
		}
		return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
	}
	m := measurement{
		Wall: middle(of(func(m measurement) float64 { return m.Wall })),
		CPU:  middle(of(func(m measurement) float64 { return m.CPU })),
	}
	if peaks := of(func(m measurement) float64 { return m.Peak }); len(peaks) > 0 {
		m.Peak = peaks[len(peaks)-1]
	}
	return m
}

func (r *results) write(out io.Writer) {
	w := r.workload
	fmt.Fprintf(out, "\n%s: %s", w.name, w.title)
	if w.sse != "" {
		fmt.Fprintf(out, "; all with SSE %s", w.sse)
	}
	fmt.Fprintln(out)
	floor := r.median(w.floor)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\twall s\tx floor\tCPU s\tx floor\tpeak MiB\trequests/object\tother requests\truns\t")
	for _, c := range w.contestants {
		if r.failed[c.name] != nil {
			fmt.Fprintf(t, "%s\tfailed\t\t\t\t\t\t\t\t\n", c.name)
			continue
		}
		m, q := r.median(c.name), r.requests[c.name]
		perObject, others := "-", "-"
		if q.objects > 0 {
			perObject, others = fmt.Sprintf("%.2f", float64(q.keys)/float64(q.objects)), fmt.Sprint(q.others)
		}
		name := c.name
		if name == w.floor {
			name += " (floor)"
		}
		fmt.Fprintf(t, "%s\t%.2f\t%.2f\t%.2f\t%.2f\t%.0f\t%s\t%s\t%d\t\n", name,
			m.Wall, m.Wall/floor.Wall, m.CPU, m.CPU/floor.CPU, m.Peak, perObject, others, len(r.runs[c.name]))
	}
	_ = t.Flush()
}

// writeGoals says what has to be reached, and whether it is.
func writeGoals(out io.Writer, all []*results) {
	fmt.Fprintln(out, "\nMust reach:")
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, r := range all {
		for _, g := range r.workload.goals {
			got, ok := g.met(r)
			verdict := "reached"
			switch {
			case strings.Contains(got, "NaN") || strings.Contains(got, "Inf"):
				verdict = "not measured"
			case !ok:
				verdict = "MISSED"
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", r.workload.name, g.text, got, verdict)
		}
	}
	_ = t.Flush()
}

func writeHeader(out io.Writer, r *runner) {
	fmt.Fprintf(out, "%s, %s/%s, %d cores, %s, %s\n", time.Now().UTC().Format(time.DateOnly), runtime.GOOS, runtime.GOARCH,
		runtime.NumCPU(), field("/proc/cpuinfo", "model name"), field("/proc/meminfo", "MemTotal"))
	fmt.Fprintf(out, "%s, MinIO %s\n", runtime.Version(), servers.MinIOVersion)
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			if slices.Contains([]string{
				"github.com/aws/aws-sdk-go-v2", "github.com/aws/aws-sdk-go-v2/service/s3", "github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager",
			}, d.Path) {
				fmt.Fprintf(out, "%s %s\n", strings.TrimPrefix(d.Path, "github.com/aws/"), d.Version)
			}
		}
	}
	for _, t := range r.tools {
		switch {
		case t.path == "":
			fmt.Fprintf(out, "%s: left out, it can't be had here\n", t.name)
		case t.module != "" && strings.Contains(t.path, t.version):
			fmt.Fprintf(out, "%s: %s, built from %s\n", t.name, t.says, t.version)
		default:
			fmt.Fprintf(out, "%s: %s, as installed\n", t.name, t.says)
		}
	}
	fmt.Fprintf(out, "%d runs, %d files at once. Medians; the peak is the highest.\n", r.runs, r.concurrency)
	fmt.Fprintf(out, "Load average at the start: %s\n", loadAverage())
	if r.label != "" {
		fmt.Fprintln(out, r.label)
	}
}

// writeRaw writes every single measurement, one JSON object a line.
func (r *runner) writeRaw(all []*results) {
	if r.raw == nil {
		return
	}
	_, _ = fmt.Fprint(r.raw, "\nEvery measurement, in order:\n")
	lines := json.NewEncoder(r.raw)
	for _, res := range all {
		for _, c := range res.workload.contestants {
			for i, m := range res.runs[c.name] {
				_ = lines.Encode(struct {
					Workload   string `json:"workload"`
					Contestant string `json:"contestant"`
					Run        int    `json:"run"`
					measurement
					Load string `json:"load"`
				}{res.workload.name, c.name, i + 1, m, res.loads[c.name][i]})
			}
			if q, ok := res.requests[c.name]; ok {
				_ = lines.Encode(map[string]any{
					"workload": res.workload.name, "contestant": c.name, "objects": q.objects,
					"requests_to_them": q.methods, "other_requests": q.others,
				})
			}
		}
	}
}

// field returns the first value of name in one of the kernel's files.
func field(path, name string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return "unknown " + name
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return "unknown " + name
}

func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(text))[:3], " ")
}
