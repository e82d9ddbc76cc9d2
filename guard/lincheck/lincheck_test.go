package lincheck_test

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/lincheck"
	"github.com/s3fence/s3fence/localstack"
)

var (
	seedsFlag = flag.Int("lincheck.seeds", 250, "how many seeds to run, from 1 up")
	seedFlag  = flag.Uint64("lincheck.seed", 0, "run this one seed, and tell what happened in it")
)

// seeds are the ones that the flags ask for.
func seeds() []uint64 {
	if *seedFlag != 0 {
		return []uint64{*seedFlag}
	}
	all := make([]uint64, *seedsFlag)
	for i := range all {
		all[i] = uint64(i + 1)
	}
	return all
}

// issued is where tokens come from: the embedded issuer, real and durable.
var issued tokens

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "lincheck-issuer-*")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	l, err := localstack.Open(dir, nil)
	if err != nil {
		panic(err)
	}
	defer l.Close()
	issued = tokens{iss: l, m: make(map[uint64][]guard.Token)}
	return m.Run()
}

// command is what runs one seed of this test again.
func command(t *testing.T, seed uint64) string {
	return fmt.Sprintf("go test ./guard/lincheck -run '^%s$' -lincheck.seed %d -v",
		strings.ReplaceAll(t.Name(), "/", "$/^"), seed)
}

// TestGuard runs the guard itself over every seed, and wants no violation. It
// also wants that everything that can happen did: a run that never met a
// fault, or never gave an answer, would prove nothing about it.
func TestGuard(t *testing.T) {
	t.Parallel()
	met, told := make(map[fault]int), make(map[string]int)
	for _, seed := range seeds() {
		res := simulate(t, seed, subject{})
		if v := res.history.Check(res.written); v != nil {
			v.Report(t, seed, command(t, seed))
		}
		if *seedFlag != 0 {
			t.Log("what happened:\n" + strings.Join(res.trace, "\n"))
		}
		for f, n := range res.met {
			met[f] += n
		}
		for _, o := range res.history.Ops() {
			told[tell(o)]++
		}
	}
	for _, k := range slices.Sorted(maps.Keys(told)) {
		t.Logf("%6d  told: %s", told[k], k)
	}
	for _, k := range slices.Sorted(maps.Keys(met)) {
		t.Logf("%6d  met: %s", met[k], k)
	}
	if len(seeds()) < enough {
		return
	}
	for f := range putFaults {
		if met[f] == 0 {
			t.Errorf("no request met the fault %q", f)
		}
	}
	for _, k := range []string{
		"created", "replaced", "already-applied", "stale", "stale, may have applied", "replayed",
		"exists", "repeatable-etag", "outcome-unknown", "error", "read",
	} {
		if told[k] == 0 {
			t.Errorf("nobody was told %q", k)
		}
	}
}

// enough seeds for every fault and every answer to come up.
const enough = 200

// A seed is a whole run: what clients are told does not change when it is run again.
func TestSeedReplays(t *testing.T) {
	t.Parallel()
	for _, seed := range []uint64{1, 2, 3} {
		var runs [2]string
		for i := range runs {
			for _, o := range simulate(t, seed, subject{}).history.Ops() {
				runs[i] += fmt.Sprintf("%d-%d %d %s\n", o.Call, o.Return, o.Client, o)
			}
		}
		if runs[0] != runs[1] {
			t.Errorf("seed %d: first\n%sthen\n%s", seed, runs[0], runs[1])
		}
	}
}

// tell names what an op was told.
func tell(o *lincheck.Op) string {
	var r *guard.Refusal
	switch {
	case o.Kind != "put" && o.Err == nil:
		return "read"
	case o.Kind != "put":
		return "read failed"
	case o.Err == nil:
		return string(o.Outcome)
	case !errors.As(o.Err, &r):
		return "error"
	case r.MayHaveApplied:
		return string(r.Reason) + ", may have applied"
	}
	return string(r.Reason)
}
