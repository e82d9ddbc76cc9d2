package main

import (
	"fmt"
	"strconv"
	"strings"

	humanize "github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/s3fence/s3fence/guard"
)

// A parsed flag is read as what it means, so that a wrong text is a wrong call.
type parsed[T any] struct {
	value *T
	parse func(string) (T, error)
	kind  string
	text  string
}

// Set implements pflag.Value.
func (p *parsed[T]) Set(s string) error {
	v, err := p.parse(s)
	if err == nil {
		*p.value, p.text = v, s
	}
	return err
}

// String implements pflag.Value.
func (p *parsed[T]) String() string { return p.text }

// Type implements pflag.Value.
func (p *parsed[T]) Type() string { return p.kind }

func writeIDFlag(f *pflag.FlagSet, id *guard.WriteID) {
	f.Var(&parsed[guard.WriteID]{value: id, kind: "hex", parse: func(s string) (guard.WriteID, error) {
		id, err := guard.ParseWriteID(s)
		if err == nil && id.IsZero() {
			err = fmt.Errorf("all digits are zero, which is no id")
		}
		return id, err
	}}, "write-id", "name of this write, 32 `hex` digits: run again with it, the write is recognised")
}

func sequenceFlag(f *pflag.FlagSet, n *int64) {
	f.Var(&parsed[int64]{value: n, kind: "int", text: "1", parse: func(s string) (int64, error) {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < 1 || n > guard.MaxSequence {
			return 0, fmt.Errorf("writes are numbered from 1 to %d", int64(guard.MaxSequence))
		}
		return n, nil
	}}, "sequence", "number of this write under the token")
}

func dryRunFlag(f *pflag.FlagSet, dry *bool) {
	f.BoolVar(dry, "dryrun", false, "say what would be done; nothing is written, and no number taken")
}

func sseFlags(c *cobra.Command, sse, key *string) {
	f := c.Flags()
	f.StringVar(sse, "sse", "", "encryption: AES256, aws:kms or aws:kms:dsse (default: the bucket's)")
	f.StringVar(key, "sse-kms-key-id", "", "KMS key for --sse aws:kms")
	fixed(c, "sse", "AES256", "aws:kms", "aws:kms:dsse")
}

// fixed offers the values of a flag to the shell's completion.
func fixed(c *cobra.Command, flag string, values ...string) {
	if err := c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // there is no such flag
	}
}

// manyFlags are those of a command that goes over many objects with -r.
type manyFlags struct {
	recursive   bool
	concurrency int
	failFast    bool
}

const (
	defaultConcurrency = 16
	// maxConcurrency keeps a slip of the hand from using up all sockets.
	maxConcurrency = 1024
)

func (m *manyFlags) add(f *pflag.FlagSet) {
	f.BoolVarP(&m.recursive, "recursive", "r", false, "the object and all that lies under URL/")
	f.IntVar(&m.concurrency, "concurrency", defaultConcurrency, "with -r: how many objects at once")
	f.BoolVar(&m.failFast, "fail-fast", false, "with -r: begin no more objects after the first that is refused or fails")
}

// check refuses what makes no sense. only are the flags that go with -r; by
// default those of add.
func (m *manyFlags) check(f *pflag.FlagSet, only ...string) error {
	if m.concurrency < 1 || m.concurrency > maxConcurrency {
		return usagef("--concurrency %d is not from 1 to %d", m.concurrency, maxConcurrency)
	}
	if len(only) == 0 {
		only = []string{"concurrency", "fail-fast"}
	}
	for _, name := range only {
		if !m.recursive && f.Changed(name) {
			return usagef("--%s goes with -r", name)
		}
	}
	return nil
}

// leastRead is the least --part-size of a download: each part is a request.
const leastRead = 1 << 20

// partSizeFlag adds --part-size: bytes, with or without a unit.
func partSizeFlag(f *pflag.FlagSet, n *int64, least uint64, usage, byDefault string) {
	limits := fmt.Sprintf("%s to 5GiB", strings.ReplaceAll(humanize.IBytes(least), ".0 ", ""))
	f.Var(&parsed[int64]{value: n, kind: "size", parse: func(s string) (int64, error) {
		n, err := humanize.ParseBytes(s)
		if err != nil {
			return 0, fmt.Errorf("%q is not a size such as 64MiB", s)
		}
		if n < least || n > guard.MaxSinglePart {
			return 0, fmt.Errorf("it is not from %s", limits)
		}
		return int64(n), nil
	}}, "part-size", fmt.Sprintf("%s, %s (default %s)", usage, limits, byDefault))
}
