package localstack_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/localstack"
)

func Example() {
	dir, err := os.MkdirTemp("", "s3fence")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	local, err := localstack.Open(dir, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer local.Close()

	ctx := context.Background()
	token, err := local.Issue(ctx, "nightly/report")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("token", token.Number(), "of", token.Scope())

	store := local.Store("reports")
	put := guard.PutRequest{Condition: guard.IfAbsent(), Body: guard.Bytes([]byte("all is well"))}
	if _, err := store.Put(ctx, "today", put); err != nil {
		log.Fatal(err)
	}
	_, err = store.Put(ctx, "today", put)
	fmt.Println(err)

	_, body, err := store.Get(ctx, "today", guard.ReadOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	fmt.Println(string(text), err)
	// Output:
	// token 1 of nightly/report
	// put s3://reports/today: precondition failed: the object exists
	// all is well <nil>
}
