// Bench measures s3fence beside the raw SDK, transfermanager, mc, rclone,
// s5cmd and aws-cli on one MinIO that it starts, and prints tables of what each
// took and of its ratio to the floor. The script run builds and starts it;
// docs/benchmarks/README.md says what it measures and how.
//
// Every contestant runs as a process of its own, in turn with the others, and
// what it took is what the system says of that process when it has ended.
// Requests are counted apart from that, through a proxy.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/localstack/servers"
)

func main() {
	var err error
	switch {
	case len(os.Args) > 1 && os.Args[1] == "worker":
		err = workerMain(os.Args[2:])
	case len(os.Args) > 2 && os.Args[1] == "measure" && os.Args[2] == "--":
		err = measureMain(os.Args[3:])
	default:
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		err = benchMain(ctx, os.Args[1:])
		stop()
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

type settings struct {
	runs, concurrency        int
	small, medium            int
	big                      int64
	only, without            string
	out, dir, profile, label string
}

func benchMain(ctx context.Context, args []string) error {
	var s settings
	var quick bool
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.BoolVar(&quick, "quick", false, "small sizes and 2 runs, to see that it works; the ratios say little")
	f.IntVar(&s.runs, "runs", 0, "how often each contestant runs (default 5)")
	f.IntVar(&s.concurrency, "concurrency", 32, "how many files are sent at once")
	f.StringVar(&s.only, "only", "", "the workloads to run, by name, with commas between (default all)")
	f.StringVar(&s.without, "without", "", "the contestants to leave out, by name, with commas between")
	f.StringVar(&s.out, "out", "", "a `file` for the tables and every single measurement")
	f.StringVar(&s.dir, "dir", "", "a `folder` for the server's data and the files that are sent (default: the system's for temporary files)")
	f.StringVar(&s.profile, "profile", "", "a `folder` for CPU and allocation profiles of one more run of each library")
	f.StringVar(&s.label, "label", "", "a remark for the output, such as what else the machine was doing")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("what is %q? There are only flags: see -h", f.Arg(0))
	}
	runs := 5
	s.small, s.medium, s.big = 10_000, 2_000, 1<<30
	if quick {
		runs = 2
		s.small, s.medium, s.big = 1_000, 100, 64<<20
	}
	if s.runs == 0 {
		s.runs = runs
	}
	if s.runs < 1 || s.concurrency < 1 {
		return errors.New("-runs and -concurrency are 1 or more")
	}
	return bench(ctx, s)
}

func bench(ctx context.Context, s settings) (err error) {
	dir, err := os.MkdirTemp(s.dir, "s3fence-bench-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	r := &runner{settings: s, dir: dir, progress: os.Stderr, populated: map[string]bool{}}
	r.base = upload{bench: self, bucket: "bench", concurrency: s.concurrency}
	if r.tools, err = findTools(ctx, &r.base, self, os.Stderr); err != nil {
		return err
	}
	if r.issuer, err = guard.ParseIssuerID("8c1d0f2ab64e97d3"); err != nil {
		return err
	}
	chosen, err := choose(workloads(r.base, s.small, s.medium, s.big), s)
	if err != nil {
		return err
	}
	if err := servers.Install(ctx, os.Stderr, "minio"); err != nil {
		return err
	}
	if r.server, err = servers.StartMinIO(ctx, &servers.MinIOOptions{Dir: filepath.Join(dir, "minio")}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.server.Stop()) }()

	out := io.Writer(os.Stdout)
	if s.out != "" {
		file, err := os.Create(s.out)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		out = io.MultiWriter(os.Stdout, file)
		r.raw = file
	}
	writeHeader(out, r)
	all, err := r.run(ctx, chosen)
	if err != nil {
		return err
	}
	for _, res := range all {
		res.write(out)
	}
	writeGoals(out, all)
	fmt.Fprintf(out, "\nLoad average at the end: %s\n", loadAverage())
	r.writeRaw(all)
	return nil
}

// findTools fills in the paths of the programs to compare with. The command
// line of s3fence lies beside this program, if it could be built, and takes
// part once it can upload a folder.
func findTools(ctx context.Context, u *upload, self string, progress io.Writer) ([]*tool, error) {
	tools := pinnedTools()
	for _, t := range tools {
		if err := t.find(ctx, progress); err != nil {
			return nil, err
		}
	}
	u.mc, u.rclone, u.s5cmd, u.aws = tools[0].path, tools[1].path, tools[2].path, tools[3].path
	cli := filepath.Join(filepath.Dir(self), "s3fence")
	help, err := exec.CommandContext(ctx, cli, "put", "--help").CombinedOutput()
	switch {
	case err != nil:
		fmt.Fprintln(progress, "s3fence put is left out: there is none beside this program:", err)
	case !strings.Contains(string(help), "-r, --recursive"):
		fmt.Fprintln(progress, "s3fence put is left out: it can't upload a folder yet")
	default:
		u.cli = cli
	}
	return tools, nil
}

// choose returns the workloads and contestants that the flags name.
func choose(all []workload, s settings) ([]workload, error) {
	only, without := split(s.only), split(s.without)
	var chosen []workload
	for _, w := range all {
		if len(only) > 0 && !slices.Contains(only, w.name) {
			continue
		}
		w.contestants = slices.DeleteFunc(slices.Clone(w.contestants), func(c contestant) bool { return slices.Contains(without, c.name) })
		chosen = append(chosen, w)
	}
	for _, name := range only {
		if !slices.ContainsFunc(all, func(w workload) bool { return w.name == name }) {
			return nil, fmt.Errorf("no workload is called %q", name)
		}
	}
	return chosen, nil
}

func split(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' })
}
