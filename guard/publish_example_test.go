package guard_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/localstack"
)

// memoryFile is a file to be published whose bytes are here already.
func memoryFile(name, text string) guard.PublishFile {
	return guard.PublishFile{Name: name, ContentType: "text/csv", Open: func() (guard.Body, func() error, error) {
		return guard.Bytes([]byte(text)), func() error { return nil }, nil
	}}
}

// Two owners publish a set each, the older one last.
func ExampleGuard_Publish() {
	dir, err := os.MkdirTemp("", "s3fence-example-*")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	local, err := localstack.Open(filepath.Join(dir, "store"), nil)
	if err != nil {
		panic(err)
	}
	defer local.Close()

	ctx := context.Background()
	g := guard.New(local.Store("bucket"), nil)
	paused, _ := local.Issue(ctx, "nightly/report")
	newer, _ := local.Issue(ctx, "nightly/report")

	set, err := g.Publish(ctx, newer, "reports", []guard.PublishFile{
		memoryFile("eu/sales.csv", "berlin,3\n"),
		memoryFile("us/sales.csv", "boston,4\n"),
	}, nil)
	fmt.Println(set.Outcome, len(set.Files), err)

	// Refused before anything is sent.
	_, err = g.Publish(ctx, paused, "reports", []guard.PublishFile{memoryFile("eu/sales.csv", "berlin,1\n")}, nil)
	fmt.Println(errors.Is(err, guard.ErrStale))

	// A reader resolves the set once, and reads all of it from there.
	m, err := g.Resolve(ctx, "reports", nil)
	if err != nil {
		panic(err)
	}
	for _, f := range m.Files {
		fmt.Println(f.Name, f.Size)
	}
	if err := g.DownloadSet(ctx, m, filepath.Join(dir, "copy"), nil); err != nil {
		panic(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "copy", "us", "sales.csv"))
	fmt.Printf("%s%v\n", text, err)
	// Output:
	// created 2 <nil>
	// true
	// eu/sales.csv 9
	// us/sales.csv 9
	// boston,4
	// <nil>
}

// Whatever runs nightly cleans up, and then publishes.
func ExampleGuard_Garbage() {
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
	g := guard.New(local.Store("bucket"), nil)
	for _, text := range []string{"berlin,3\n", "berlin,4\n"} {
		tok, _ := local.Issue(ctx, "nightly/report")
		if _, err := g.Publish(ctx, tok, "reports", []guard.PublishFile{memoryFile("sales.csv", text)}, nil); err != nil {
			panic(err)
		}
	}
	for f, err := range g.Garbage(ctx, "reports", nil) {
		if err != nil {
			panic(err)
		}
		if f.Kept > 0 { // for readers who have resolved the first set
			fmt.Println("of token", f.Number, "kept")
			continue
		}
		if _, err := g.Discard(ctx, f); err != nil {
			panic(err)
		}
	}
	// Output:
	// of token 1 kept
}
