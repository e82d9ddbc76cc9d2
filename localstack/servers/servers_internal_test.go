package servers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
)

// Helper is the variable that makes the test binary a process of another
// kind; TestMain, which is in the other test package, looks at it.
const Helper = "S3FENCE_TEST_HELPER"

// helperSpec runs the test binary as a small HTTP server.
func helperSpec(mode func() string) spec {
	return spec{
		name:  "helper",
		ports: 1,
		command: func(s *Server) *exec.Cmd {
			cmd := exec.Command(os.Args[0])
			cmd.Env = []string{Helper + "=" + mode(), "HELPER_ADDRESS=" + s.ports[0].address()}
			return cmd
		},
		ready: func(ctx context.Context, s *Server) error {
			if !strings.Contains(s.out.String(), "helper is listening") {
				return errors.New("not yet")
			}
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, nil)
			if err != nil {
				return err
			}
			return answers200(req)
		},
	}
}

func TestLifeOfAServer(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	t.Setenv("S3FENCE_CACHE", t.TempDir())
	s, err := newServer(helperSpec(func() string { return "serve" }), "")
	if err != nil {
		t.Fatal(err)
	}
	s.out.secrets = []string{"hunter2"}
	if s, err = s.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	url, dir := s.URL, s.dir
	get := func() error {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		return answers200(req)
	}
	if !strings.Contains(s.Output(), "password ***") || strings.Contains(s.Output(), "hunter2") {
		t.Errorf("the output shows a secret:\n%s", s.Output())
	}
	for _, end := range []func() error{s.Kill, func() error { return nil }} {
		first := s.child
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if err := s.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if first.alive() || s.child == first {
			t.Error("the first process is still there")
		}
		if err := get(); err != nil || s.URL != url {
			t.Errorf("after restart at %s: %v", s.URL, err)
		}
	}
	for range 2 {
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	if s.child.alive() || get() == nil {
		t.Error("it runs after Stop")
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the temporary folder is left: %v", err)
	}
	if err := s.Restart(t.Context()); err == nil {
		t.Error("a stopped server restarted")
	}
	if err := s.Kill(); err != nil {
		t.Errorf("Kill after Stop: %v", err)
	}
}

func TestAnotherPortWhenOneIsTaken(t *testing.T) {
	t.Setenv("S3FENCE_CACHE", t.TempDir())
	var starts int
	s, err := newServer(helperSpec(func() string {
		if starts++; starts < 3 {
			return "port-in-use"
		}
		return "serve"
	}), "")
	if err != nil {
		t.Fatal(err)
	}
	if s, err = s.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	if starts != 3 {
		t.Errorf("%d starts", starts)
	}
}

func TestFailedStartShowsOutputAndLeavesNothing(t *testing.T) {
	t.Setenv("S3FENCE_CACHE", t.TempDir())
	s, err := newServer(helperSpec(func() string { return "fail" }), "")
	if err != nil {
		t.Fatal(err)
	}
	s.out.secrets = []string{"hunter2"}
	if _, err := s.start(t.Context()); err == nil || !strings.Contains(err.Error(), "helper: no luck") || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("error: %v", err)
	}
	if _, err := os.Stat(s.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the temporary folder is left: %v", err)
	}
	if len(s.ports) != 0 || s.child.alive() {
		t.Error("port or process is left")
	}
}

func TestStartStopsWaitingWithItsContext(t *testing.T) {
	t.Setenv("S3FENCE_CACHE", t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	sp := helperSpec(func() string { return "serve" })
	sp.ready = func(context.Context, *Server) error { cancel(); return errors.New("never") }
	s, err := newServer(sp, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.start(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error: %v", err)
	}
	if s.child.alive() {
		t.Error("the process is left")
	}
}

func TestFolderServesOneProcess(t *testing.T) {
	t.Setenv("S3FENCE_CACHE", t.TempDir())
	dir := t.TempDir()
	start := func() (*Server, error) {
		s, err := newServer(helperSpec(func() string { return "serve" }), dir)
		if err != nil {
			t.Fatal(err)
		}
		return s.start(t.Context())
	}
	first, err := start()
	if err != nil {
		t.Fatal(err)
	}
	defer first.Stop()
	if _, err := start(); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("a second server on the folder: %v", err)
	}
	if err := first.Kill(); err != nil {
		t.Fatal(err)
	}
	second, err := start()
	if err != nil {
		t.Fatalf("after Kill: %v", err)
	}
	if err := second.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("a folder that was given is gone: %v", err)
	}
}

func TestCacheBuildsOnceAndNeverHalf(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("S3FENCE_CACHE", cache)
	failed := errors.New("no disk")
	if _, err := cached(t.Context(), "tool-1", func(tmp string) error {
		os.WriteFile(filepath.Join(tmp, "half"), nil, 0o600)
		return failed
	}); !errors.Is(err, failed) {
		t.Errorf("error: %v", err)
	}
	killed := filepath.Join(cache, "tool-1.tmp-123")
	if err := os.Mkdir(killed, 0o700); err != nil {
		t.Fatal(err)
	}
	var builds atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			dir, err := cached(t.Context(), "tool-1", func(tmp string) error {
				builds.Add(1)
				return os.WriteFile(filepath.Join(tmp, "tool"), nil, 0o600)
			})
			if err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(filepath.Join(dir, "tool")); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(filepath.Join(dir, "half")); err == nil {
				t.Error("a half-built folder is in use")
			}
		})
	}
	wg.Wait()
	if builds.Load() != 1 {
		t.Errorf("%d builds", builds.Load())
	}
	if _, err := os.Stat(killed); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what a killed build left is still there: %v", err)
	}
}

func TestCacheWaitsNoLongerThanItsContext(t *testing.T) {
	t.Setenv("S3FENCE_CACHE", t.TempDir())
	building, done := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = cached(context.Background(), "tool-1", func(string) error { close(building); <-done; return nil })
	})
	<-building
	defer wg.Wait() // it writes to the folder that goes with the test
	defer close(done)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := cached(ctx, "tool-1", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("error: %v", err)
	}
}

func TestMissingToolIsNamedWithItsCure(t *testing.T) {
	t.Setenv("S3FENCE_CACHE", t.TempDir())
	t.Setenv("PATH", t.TempDir())
	err := Install(t.Context(), nil)
	for _, want := range []string{"minio needs go on PATH", "dynalite needs node and npm on PATH", "moto needs python3 on PATH"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in: %v", want, err)
		}
	}
	if _, err := StartMinIO(t.Context(), nil); err == nil {
		t.Error("StartMinIO without a tool")
	}
	if err := Install(t.Context(), nil, "mino"); err == nil || !strings.Contains(err.Error(), "mino") {
		t.Errorf("an unknown name: %v", err)
	}
}

func TestLockFileNamesNoRegistry(t *testing.T) {
	for _, s := range []string{`"resolved"`, "http:", "//registry"} {
		if strings.Contains(string(dynaliteLock), s) {
			t.Errorf("package-lock.json contains %s", s)
		}
	}
	if !strings.Contains(string(dynalitePackage), `"dynalite": "`+DynaliteVersion+`"`) {
		t.Errorf("package.json doesn't ask for dynalite %s", DynaliteVersion)
	}
}

func TestRing(t *testing.T) {
	var all strings.Builder
	r := &ring{}
	for i := range 20000 {
		line := strconv.Itoa(i) + "\n"
		fmt.Fprint(r, line)
		all.WriteString(line)
		if i%997 == 0 || i == 19999 {
			if got := r.String(); len(got) > ringSize || !strings.HasSuffix(all.String(), got) {
				t.Fatalf("after line %d the ring isn't the end of what was written", i)
			}
		}
	}
	long := strings.Repeat("x", ringSize) + strings.Repeat("y", ringSize)
	r.Write([]byte(long))
	if got := r.String(); got != long[ringSize:] {
		t.Error("one long write")
	}
}

func TestEnvironmentKeepsCredentialsOut(t *testing.T) {
	t.Setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
	t.Setenv("MINIO_CONFIG", "elsewhere")
	for _, kv := range environment() {
		if strings.HasPrefix(kv, "AWS_") || strings.HasPrefix(kv, "MINIO_") {
			t.Error(kv)
		}
	}
}

func TestServerPrintsNoSecret(t *testing.T) {
	s := &Server{URL: "http://127.0.0.1:1", SecretKey: "hunter2", spec: spec{name: "minio"}}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		if got := fmt.Sprintf(verb, s); strings.Contains(got, "hunter2") || !strings.Contains(got, s.URL) {
			t.Errorf("%s: %s", verb, got)
		}
	}
}

func TestMinIOKeysBelongToTheFolder(t *testing.T) {
	dir := t.TempDir()
	all := make([]minioKeys, 8)
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() {
			var err error
			if all[i], err = loadMinIOKeys(dir); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, k := range all {
		if k != all[0] || k.SecretKey == "" {
			t.Fatal("the keys differ")
		}
	}
	if other, err := loadMinIOKeys(t.TempDir()); err != nil || other.SecretKey == all[0].SecretKey {
		t.Errorf("another folder: same keys, or %v", err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Errorf("%d files, %v", len(files), err)
	}
	if info, err := files[0].Info(); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}
