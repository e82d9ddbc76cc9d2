package guard_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/localstack"
)

// The paused writer: it took its token first, and comes to write last.
func Example() {
	dir, err := os.MkdirTemp("", "s3fence-example-*")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	local, err := localstack.Open(dir, nil)
	if err != nil {
		panic(err)
	}
	defer local.Close()

	ctx := context.Background()
	g := guard.New(local.Store("reports"), nil)
	paused, _ := local.Issue(ctx, "nightly/report") // the lease's holder, about to pause
	newer, _ := local.Issue(ctx, "nightly/report")  // whoever took over

	res, err := g.Put(ctx, newer, "today.csv", guard.Bytes([]byte("new")), nil)
	fmt.Println(res.Outcome, err)

	_, err = g.Put(ctx, paused, "today.csv", guard.Bytes([]byte("old")), nil)
	fmt.Println(errors.Is(err, guard.ErrStale))
	fmt.Println(err)
	// Output:
	// created <nil>
	// true
	// stale token 1 for s3://reports/today.csv: already written with 2 (scope nightly/report)
}
