package main

import (
	"fmt"
	"slices"
	"strconv"
)

// The names of the contestants that others are held against.
const (
	rawLoop = "raw SDK loop"
	rawIf   = "raw, conditional"
	manager = "transfermanager"
	ours    = "s3fence"
	command = "s3fence put"
)

// A workload is uploaded by each of its contestants in turn.
type workload struct {
	name, title string
	mode        string // new, existing, own or state
	tree        string // the name of what is uploaded
	objects     int
	pipe        bool
	sse         string
	floor       string // the contestant that the ratios are to
	contestants []contestant
	goals       []goal
}

// A contestant uploads in a process of its own.
type contestant struct {
	name string
	// argv returns the command that uploads source, or standard input.
	argv func(u upload) []string
	// once: too slow to be run more than once.
	once bool
}

// An upload is one run of one contestant.
type upload struct {
	bench                       string // this program
	source, bucket, key, token  string
	mode, sse, state            string
	concurrency                 int
	cpuProfile, heapProfile     string
	cli, mc, rclone, s5cmd, aws string
	folder, pipe                bool
}

func library(how string) func(upload) []string {
	return func(u upload) []string {
		argv := []string{u.bench, "worker", "-how", how, "-mode", u.mode, "-source", u.source, "-bucket", u.bucket, "-key", u.key,
			"-sse", u.sse, "-token", u.token, "-concurrency", strconv.Itoa(u.concurrency)}
		if u.state != "" {
			argv = append(argv, "-etags", u.state)
		}
		if u.cpuProfile != "" {
			argv = append(argv, "-cpuprofile", u.cpuProfile, "-memprofile", u.heapProfile)
		}
		return argv
	}
}

func commandLine(u upload) []string {
	argv := []string{u.cli, "put", "-q", "--no-profile", "--token", u.token}
	if u.sse != "" {
		argv = append(argv, "--sse", u.sse)
	}
	if u.state != "" {
		argv = append(argv, "--state", u.state)
	}
	if u.folder {
		return append(argv, "-r", "--concurrency", strconv.Itoa(u.concurrency), u.source, u.url("s3://")+"/")
	}
	return append(argv, u.source, u.url("s3://"))
}

func (u upload) url(before string) string { return before + u.bucket + "/" + u.key }

func mcCommand(u upload) []string {
	argv := []string{u.mc, "--quiet"}
	if u.pipe {
		return append(argv, "pipe", u.url("bench/"))
	}
	argv = append(argv, "cp")
	if u.sse != "" {
		argv = append(argv, "--enc-kms", "bench/"+u.bucket+"=s3fence-key")
	}
	if u.folder {
		return append(argv, "-r", u.source+"/", u.url("bench/")+"/")
	}
	return append(argv, u.source, u.url("bench/"))
}

func rcloneCommand(u upload) []string {
	argv := []string{u.rclone, "--quiet", "--s3-no-check-bucket", "--transfers", strconv.Itoa(u.concurrency)}
	if u.sse != "" {
		argv = append(argv, "--s3-server-side-encryption", u.sse)
	}
	switch {
	case u.pipe:
		return append(argv, "rcat", u.url("bench:"))
	case u.folder:
		// What is there already is not to be left out.
		return append(argv, "--ignore-times", "copy", u.source, u.url("bench:"))
	}
	return append(argv, "copyto", u.source, u.url("bench:"))
}

func s5cmdCommand(u upload) []string {
	argv := []string{u.s5cmd, "--log", "error", "--numworkers", strconv.Itoa(u.concurrency)}
	if u.pipe {
		return append(argv, "pipe", u.url("s3://"))
	}
	argv = append(argv, "cp")
	if u.sse != "" {
		argv = append(argv, "--sse", u.sse)
	}
	if u.folder {
		return append(argv, u.source+"/", u.url("s3://")+"/")
	}
	return append(argv, u.source, u.url("s3://"))
}

func awsCommand(u upload) []string {
	argv := []string{u.aws, "s3", "cp", "--only-show-errors"}
	if u.sse != "" {
		argv = append(argv, "--sse", u.sse)
	}
	if u.folder {
		argv = append(argv, "--recursive")
	}
	return append(argv, u.source, u.url("s3://"))
}

// others are the programs that could be had.
func others(u upload) []contestant {
	var all []contestant
	for _, c := range []struct {
		path string
		contestant
	}{
		{u.cli, contestant{name: command, argv: commandLine}},
		{u.mc, contestant{name: "mc", argv: mcCommand}},
		{u.rclone, contestant{name: "rclone", argv: rcloneCommand}},
		{u.s5cmd, contestant{name: "s5cmd", argv: s5cmdCommand}},
		{u.aws, contestant{name: "aws-cli", argv: awsCommand, once: true}},
	} {
		if c.path != "" {
			all = append(all, c.contestant)
		}
	}
	return all
}

func named(all []contestant, name string) []contestant {
	return slices.DeleteFunc(all, func(c contestant) bool { return c.name != name })
}

// A goal is what has to be reached.
type goal struct {
	text string
	met  func(r *results) (got string, ok bool)
}

func wallRatio(who, to string, limit float64) goal {
	return goal{fmt.Sprintf("%s: wall at most %.2f x %s", who, limit, to), func(r *results) (string, bool) {
		ratio := r.median(who).Wall / r.median(to).Wall
		return fmt.Sprintf("%.2f", ratio), ratio <= limit
	}}
}

// cpuLimit is what CPU time may cost, times the floor.
const cpuLimit = 1.15

func cpuRatio(who, to string) goal {
	return goal{fmt.Sprintf("%s: CPU at most %.2f x %s", who, cpuLimit, to), func(r *results) (string, bool) {
		ratio := r.median(who).CPU / r.median(to).CPU
		return fmt.Sprintf("%.2f", ratio), ratio <= cpuLimit
	}}
}

func faster(than string) goal {
	return goal{ours + ": faster than " + than, func(r *results) (string, bool) {
		ratio := r.median(ours).Wall / r.median(than).Wall
		return fmt.Sprintf("%.2f x its wall", ratio), ratio < 1
	}}
}

func peakBelow(who string, limit float64) goal {
	return goal{fmt.Sprintf("%s: peak memory under %.0f MiB", who, limit), func(r *results) (string, bool) {
		return fmt.Sprintf("%.0f MiB", r.median(who).Peak), r.median(who).Peak < limit
	}}
}

func requestsAtMost(who string, limit float64) goal {
	return goal{fmt.Sprintf("%s: at most %.1f requests per object", who, limit), func(r *results) (string, bool) {
		n := float64(r.requests[who].keys) / float64(r.requests[who].objects)
		return fmt.Sprintf("%.2f", n), n <= limit
	}}
}

// workloads are all that there are. Where objects are replaced, every
// contestant asks for SSE-KMS: the guard needs ETags that can't come back, and
// the others shall not have less to do.
func workloads(u upload, small, medium int, big int64) []workload {
	raw := contestant{name: rawLoop, argv: library("raw")}
	conditional := contestant{name: rawIf, argv: library("conditional")}
	tm := contestant{name: manager, argv: library("transfermanager")}
	fence := contestant{name: ours, argv: library("s3fence")}
	most := append([]contestant{raw, conditional, tm, fence}, others(u)...)
	withoutTM := append([]contestant{raw, conditional, fence}, others(u)...)
	large := append([]contestant{raw, tm, fence}, others(u)...)
	piped := append([]contestant{tm, fence}, others(u)...)
	return []workload{
		{
			name: "new-4k", title: fmt.Sprintf("%d x 4 KiB, new keys", small), mode: "new", tree: "4k", objects: small,
			floor: rawLoop, contestants: most,
			goals: []goal{
				wallRatio(ours, rawLoop, 1.05), cpuRatio(ours, rawLoop), requestsAtMost(ours, 1),
				faster("mc"), faster("rclone"),
			},
		},
		{
			name: "existing-4k", title: fmt.Sprintf("%d x 4 KiB, existing keys, ETags unknown (raw: HEAD + PUT)", small),
			mode: "existing", tree: "4k", objects: small, sse: "aws:kms", floor: rawLoop, contestants: withoutTM,
			goals: []goal{wallRatio(ours, rawLoop, 1.05), cpuRatio(ours, rawLoop), requestsAtMost(ours, 2)},
		},
		{
			name: "own-4k", title: fmt.Sprintf("%d x 4 KiB, own keys again, in the same process", small),
			mode: "own", tree: "4k", objects: small, sse: "aws:kms", floor: rawLoop, contestants: []contestant{raw, conditional, fence},
			goals: []goal{wallRatio(ours, rawLoop, 1.05), cpuRatio(ours, rawLoop), requestsAtMost(ours, 1)},
		},
		{
			name: "state-4k", title: fmt.Sprintf("%d x 4 KiB, own keys again, in a later process, with --state", small),
			mode: "state", tree: "4k", objects: small, sse: "aws:kms", floor: rawLoop,
			contestants: append([]contestant{raw, conditional}, named(others(u), command)...),
			goals:       []goal{wallRatio(command, rawLoop, 1.05), cpuRatio(command, rawLoop), requestsAtMost(command, 1)},
		},
		{
			name: "new-256k", title: fmt.Sprintf("%d x 256 KiB, new keys", medium), mode: "new", tree: "256k", objects: medium,
			floor: rawLoop, contestants: most,
			goals: []goal{
				wallRatio(ours, rawLoop, 1.05), cpuRatio(ours, rawLoop), requestsAtMost(ours, 1),
				faster("mc"), faster("rclone"),
			},
		},
		{
			name: "file", title: fmt.Sprintf("a file of %d MiB", big>>20), mode: "new", tree: "big", objects: 1,
			floor: manager, contestants: large,
			goals: []goal{wallRatio(ours, manager, 1.05), cpuRatio(ours, rawLoop), peakBelow(ours, 150)},
		},
		{
			name: "pipe", title: fmt.Sprintf("%d MiB from a pipe", big>>20), mode: "new", tree: "big", objects: 1, pipe: true,
			floor: manager, contestants: piped,
			goals: []goal{wallRatio(ours, manager, 1.15), cpuRatio(ours, manager), peakBelow(ours, 150)},
		},
	}
}
