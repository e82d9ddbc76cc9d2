package servers

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"
)

// The versions that are built where PATH has none.
const (
	MinIOVersion    = "v0.0.0-20260212201848-7aac2a2c5b7c"
	DynaliteVersion = "4.0.0" // pinned with all it needs by dynalite/package-lock.json
	MotoVersion     = "5.2.1"
)

var (
	//go:embed dynalite/package.json
	dynalitePackage []byte
	//go:embed dynalite/package-lock.json
	dynaliteLock []byte
)

// Names returns what [Install] knows.
func Names() []string { return []string{"minio", "dynalite", "moto"} }

// Install finds or builds the named servers, all of them if none is named, so
// that later starts are quick. It tells progress, which may be nil, what it
// found and what it builds. It tries them all; the error holds each failure.
// A cancelled context leaves nothing half-built in use.
func Install(ctx context.Context, progress io.Writer, names ...string) error {
	if progress == nil {
		progress = io.Discard
	}
	if len(names) == 0 {
		names = Names()
	}
	var errs []error
	for _, name := range names {
		var where string
		var err error
		switch name {
		case "minio":
			where, err = findMinIO(ctx, progress)
		case "dynalite":
			var argv []string
			if argv, err = findDynalite(ctx, progress); err == nil {
				where = argv[len(argv)-1]
			}
		case "moto":
			where, err = findMoto(ctx, progress)
		default:
			err = fmt.Errorf("servers: no server is called %q; there are %s", name, strings.Join(Names(), ", "))
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		fmt.Fprintf(progress, "%s: %s\n", name, where)
	}
	return errors.Join(errs...)
}

func findMinIO(ctx context.Context, progress io.Writer) (string, error) {
	if path, err := exec.LookPath("minio"); err == nil {
		return path, nil
	}
	dir, err := cached(ctx, "minio-"+MinIOVersion, func(tmp string) error {
		goTool, err := exec.LookPath("go")
		if err != nil {
			return errors.New("minio needs go on PATH, to build it, or minio itself")
		}
		fmt.Fprintf(progress, "minio: building %s; this takes some minutes\n", MinIOVersion)
		flags, err := goFlags(ctx, goTool, tmp)
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, goTool, "install", "github.com/minio/minio@"+MinIOVersion)
		// What the caller builds s3fence with must not change this build, and
		// go install refuses GOBIN for another system.
		cmd.Env = append(without(os.Environ(), "GOOS=", "GOARCH=", "GOFLAGS=", "GOEXPERIMENT="),
			"GOBIN="+tmp, "CGO_ENABLED=0", "GO111MODULE=on", "GOWORK=off", "GOFLAGS="+flags)
		return run(cmd, tmp, progress)
	})
	if err != nil {
		return "", fmt.Errorf("servers: minio: %w", err)
	}
	return filepath.Join(dir, executable("minio")), nil
}

// goFlags returns the caller's GOFLAGS without those that name a module's
// files or need cgo.
func goFlags(ctx context.Context, goTool, dir string) (string, error) {
	cmd := exec.CommandContext(ctx, goTool, "env", "GOFLAGS")
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go env GOFLAGS: %w", err)
	}
	flags := slices.DeleteFunc(strings.Fields(string(out)), func(f string) bool {
		return hasAnyPrefix(strings.TrimLeft(f, "-"), "mod=", "modfile=", "overlay=", "race", "msan", "asan", "cover")
	})
	// Never empty: then the go command would read it from its own settings again.
	return strings.Join(append(flags, "-trimpath"), " "), nil
}

// findDynalite returns the start of its command line.
func findDynalite(ctx context.Context, progress io.Writer) ([]string, error) {
	if path, err := exec.LookPath("dynalite"); err == nil {
		return []string{path}, nil
	}
	node, err := exec.LookPath("node")
	if err != nil {
		return nil, errors.New("servers: dynalite needs node and npm on PATH, version 20 or later, or dynalite itself")
	}
	dir, err := cached(ctx, "dynalite-"+DynaliteVersion, func(tmp string) error {
		npm, err := exec.LookPath("npm")
		if err != nil {
			return errors.New("dynalite needs node and npm on PATH, version 20 or later, or dynalite itself")
		}
		fmt.Fprintf(progress, "dynalite: installing %s\n", DynaliteVersion)
		if err := os.WriteFile(filepath.Join(tmp, "package.json"), dynalitePackage, 0o600); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(tmp, "package-lock.json"), dynaliteLock, 0o600); err != nil {
			return err
		}
		// Its one native module brings its binaries along, so no package's
		// script has to run here.
		return run(exec.CommandContext(ctx, npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"), tmp, progress)
	})
	if err != nil {
		return nil, fmt.Errorf("servers: dynalite: %w", err)
	}
	return []string{node, filepath.Join(dir, "node_modules", "dynalite", "cli.js")}, nil
}

// Python returns a python that has moto, and so boto3: the one that
// [StartMoto] uses.
func Python(ctx context.Context) (string, error) { return findMoto(ctx, io.Discard) }

// findMoto returns a python that has moto's server, in our version of it.
func findMoto(ctx context.Context, progress io.Writer) (string, error) {
	cache, err := cacheDir()
	if err == nil {
		err = os.MkdirAll(cache, 0o700)
	}
	if err != nil {
		return "", fmt.Errorf("servers: moto: %w", err)
	}
	var base string
	for _, name := range []string{"python3", "python"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		// The answer is the real interpreter: the one on PATH may be a shim
		// that starts slowly. Python imports from the current folder first,
		// so it must be one that only this user writes to.
		cmd := exec.CommandContext(ctx, path, "-c",
			"import sys, moto, moto.server; moto.__version__ == sys.argv[1] or sys.exit(1); print(sys.executable)", MotoVersion)
		cmd.Dir = cache
		if out, err := cmd.Output(); err == nil {
			return strings.TrimSpace(string(out)), nil
		}
		if base == "" {
			base = path
		}
	}
	if err := ctx.Err(); err != nil {
		return "", fmt.Errorf("servers: moto: %w", err)
	}
	python := filepath.Join("bin", "python")
	if runtime.GOOS == "windows" {
		python = filepath.Join("Scripts", "python.exe")
	}
	dir, err := cached(ctx, "moto-"+MotoVersion, func(tmp string) error {
		if base == "" {
			return errors.New("moto needs python3 on PATH")
		}
		fmt.Fprintf(progress, "moto: installing %s\n", MotoVersion)
		if err := run(exec.CommandContext(ctx, base, "-m", "venv", tmp), tmp, progress); err != nil {
			return fmt.Errorf("moto needs python3 with its venv module, or with moto[server]==%s: %w", MotoVersion, err)
		}
		// Started through the interpreter, never through the scripts beside
		// it: those hold the folder's name from before it is renamed.
		return run(exec.CommandContext(ctx, filepath.Join(tmp, python), "-m", "pip", "install",
			"--disable-pip-version-check", "--no-input", "moto[server]=="+MotoVersion), tmp, progress)
	})
	if err != nil {
		return "", fmt.Errorf("servers: moto: %w", err)
	}
	return filepath.Join(dir, python), nil
}

// cacheDir is where servers are built and ports are locked.
func cacheDir() (string, error) {
	if dir := os.Getenv("S3FENCE_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no cache folder (set S3FENCE_CACHE): %w", err)
	}
	return filepath.Join(dir, "s3fence"), nil
}

// cached returns the cache's folder for name, which build fills if there is
// none yet: in another folder that gets its name when all is done, so a
// half-built one is never used, and under a lock, so that the test binaries
// that `go test` runs side by side build once.
func cached(ctx context.Context, name string, build func(tmp string) error) (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, name)
	if isDir(dir) {
		return dir, nil
	}
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return "", err
	}
	lock := flock.New(dir + ".lock")
	if _, err := lock.TryLockContext(ctx, 100*time.Millisecond); err != nil {
		return "", fmt.Errorf("waiting for %s: %w", lock.Path(), err)
	}
	defer lock.Unlock()
	if isDir(dir) {
		return dir, nil
	}
	// Nobody else builds it now: what lies there is of one that was killed.
	left, _ := filepath.Glob(dir + ".tmp-*") // fails on a bad pattern only
	for _, tmp := range left {
		_ = os.RemoveAll(tmp)
	}
	tmp, err := os.MkdirTemp(cache, name+".tmp-*")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(tmp) }() // gone already when all went well
	if err := build(tmp); err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	return dir, os.Rename(tmp, dir)
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// run runs cmd in dir and shows what it prints if it fails.
func run(cmd *exec.Cmd, dir string, progress io.Writer) error {
	out := &ring{}
	both := io.MultiWriter(out, progress)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, both, both
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w; it printed:\n%s", filepath.Base(cmd.Path), err, strings.TrimSpace(out.String()))
	}
	return nil
}

func without(env []string, prefixes ...string) []string {
	return slices.DeleteFunc(env, func(kv string) bool { return hasAnyPrefix(kv, prefixes...) })
}

func executable(name string) string {
	if runtime.GOOS == "windows" {
		return name + ".exe"
	}
	return name
}
