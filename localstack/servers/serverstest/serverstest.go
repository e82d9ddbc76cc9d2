// Package serverstest gives tests the real servers of package servers.
//
// Tests that need one run only where the environment variable S3FENCE_SERVERS
// names it ("all", or minio, dynalite and moto with commas between), as the
// script ./test does. Elsewhere they are skipped with a text that says so.
// Where it is asked for, a server that can't be had fails the test.
//
// A package that uses the shared servers has
//
//	func TestMain(m *testing.M) { os.Exit(serverstest.Main(m)) }
package serverstest

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/s3fence/s3fence/localstack/servers"
)

// Variable is the environment variable that names the servers to run.
const Variable = "S3FENCE_SERVERS"

var (
	mu      sync.Mutex
	inMain  bool
	leftOut = map[string]bool{}
	shared  = map[string]*sharedServer{}
)

type sharedServer struct {
	once   sync.Once
	server *servers.Server
	err    error
}

// MainOnly is [Main] for a package that has tests of servers and no others. Where
// no server is asked for it prints that tests, which are named, are left out.
func MainOnly(m *testing.M, tests string) int {
	if os.Getenv(Variable) == "" {
		// The first line is what makes go test add "[no tests to run]".
		fmt.Println("testing: warning: no tests to run")
		fmt.Printf("left out: %s; ./test runs it\n", tests)
		return 0
	}
	return Main(m)
}

// Main runs a package's tests, stops the shared servers and returns what to
// exit with. It prints a line that names the servers whose tests were left
// out; like all output of a package that passed, `go test` shows it with -v or
// when it is run in the package's own folder.
func Main(m *testing.M) int {
	mu.Lock()
	inMain = true
	mu.Unlock()
	code := m.Run()
	mu.Lock()
	defer mu.Unlock()
	for _, s := range shared {
		if s.server == nil {
			continue
		}
		if err := s.server.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	var names []string
	for _, name := range servers.Names() {
		if leftOut[name] {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		fmt.Fprintf(os.Stderr, "left out: tests that need %s; run ./test\n", strings.Join(names, ", "))
	}
	return code
}

// Require skips the test unless every one of the named servers is asked for.
// It starts none. A name that doesn't exist, in the variable as well, fails
// the test, so that a slip of the pen leaves nothing out.
func Require(t testing.TB, names ...string) {
	t.Helper()
	asked, err := askedFor(os.Getenv(Variable))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !slices.Contains(servers.Names(), name) {
			t.Fatalf("no server is called %q", name)
		}
		if !slices.Contains(asked, name) {
			mu.Lock()
			leftOut[name] = true
			mu.Unlock()
			t.Skipf("left out: needs %s; run ./test", name)
		}
	}
}

// askedFor reads the variable's text.
func askedFor(text string) ([]string, error) {
	if text == "all" {
		return servers.Names(), nil
	}
	var names []string
	for name := range strings.SplitSeq(text, ",") {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		if !slices.Contains(servers.Names(), name) {
			return nil, fmt.Errorf("%s: no server is called %q; there are %s, or all",
				Variable, name, strings.Join(servers.Names(), ", "))
		}
		names = append(names, name)
	}
	return names, nil
}

// MinIO starts a MinIO for this test alone, stopped when the test ends.
func MinIO(t testing.TB, opts *servers.MinIOOptions) *servers.Server {
	t.Helper()
	return own(t, "minio", func(ctx context.Context) (*servers.Server, error) { return servers.StartMinIO(ctx, opts) })
}

// Dynalite starts a dynalite for this test alone, stopped when the test ends.
func Dynalite(t testing.TB, opts *servers.DynaliteOptions) *servers.Server {
	t.Helper()
	return own(t, "dynalite", func(ctx context.Context) (*servers.Server, error) { return servers.StartDynalite(ctx, opts) })
}

// Moto starts a moto for this test alone, stopped when the test ends.
func Moto(t testing.TB, opts *servers.MotoOptions) *servers.Server {
	t.Helper()
	return own(t, "moto", func(ctx context.Context) (*servers.Server, error) { return servers.StartMoto(ctx, opts) })
}

// SharedMinIO returns the test binary's MinIO with default options, started
// on first use. Its tests use names (buckets) of their own and never stop it.
func SharedMinIO(t testing.TB) *servers.Server {
	t.Helper()
	return share(t, "minio", "minio", func(ctx context.Context) (*servers.Server, error) { return servers.StartMinIO(ctx, nil) })
}

// SharedMinIONoKMS is SharedMinIO of another one, with no key service.
func SharedMinIONoKMS(t testing.TB) *servers.Server {
	t.Helper()
	return share(t, "minio", "minio without KMS", func(ctx context.Context) (*servers.Server, error) {
		return servers.StartMinIO(ctx, &servers.MinIOOptions{NoKMS: true})
	})
}

// SharedMinIONoCompat is SharedMinIO of another one, with unique ETags.
func SharedMinIONoCompat(t testing.TB) *servers.Server {
	t.Helper()
	return share(t, "minio", "minio --no-compat", func(ctx context.Context) (*servers.Server, error) {
		return servers.StartMinIO(ctx, &servers.MinIOOptions{NoCompat: true})
	})
}

// SharedDynalite returns the test binary's dynalite, started on first use.
// Its tests use names (tables) of their own and never stop it.
func SharedDynalite(t testing.TB) *servers.Server {
	t.Helper()
	return share(t, "dynalite", "dynalite", func(ctx context.Context) (*servers.Server, error) { return servers.StartDynalite(ctx, nil) })
}

// SharedMoto returns the test binary's moto, started on first use. Its tests
// use names (buckets, tables) of their own and never stop it.
func SharedMoto(t testing.TB) *servers.Server {
	t.Helper()
	return share(t, "moto", "moto", func(ctx context.Context) (*servers.Server, error) { return servers.StartMoto(ctx, nil) })
}

// Name makes a name from the test's that is good for a bucket and a table and
// new at every call, so that tests on a shared server, and `go test -count`,
// never meet each other's.
func Name(t testing.TB) string {
	name := strings.Map(func(c rune) rune {
		switch {
		case 'a' <= c && c <= 'z' || '0' <= c && c <= '9':
			return c
		case 'A' <= c && c <= 'Z':
			return c - 'A' + 'a'
		}
		return '-'
	}, t.Name())
	name = name[:min(len(name), 40)]
	return "t" + strings.TrimPrefix(name, "t") + "-" + strings.ToLower(rand.Text()[:12])
}

func own(t testing.TB, name string, start func(context.Context) (*servers.Server, error)) *servers.Server {
	t.Helper()
	Require(t, name)
	s, err := start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func share(t testing.TB, name, kind string, start func(context.Context) (*servers.Server, error)) *servers.Server {
	t.Helper()
	Require(t, name)
	mu.Lock()
	if !inMain {
		mu.Unlock()
		t.Fatal("a shared server needs TestMain to call serverstest.Main, which stops it")
	}
	s := shared[kind]
	if s == nil {
		s = &sharedServer{}
		shared[kind] = s
	}
	mu.Unlock()
	// Not the test's context: one that ends early must not fail the others.
	s.once.Do(func() { s.server, s.err = start(context.Background()) })
	if s.err != nil {
		t.Fatal(s.err)
	}
	return s.server
}
