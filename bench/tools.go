package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"
)

// A tool is another program to compare with.
type tool struct {
	name, module, version string
	path                  string // "" where it can't be had
	says                  string // its own words about its version
}

// buildTime bounds the build of one tool.
const buildTime = 10 * time.Minute

func pinnedTools() []*tool {
	return []*tool{
		{name: "mc", module: "github.com/minio/mc", version: "v0.0.0-20250313080218-cf909e1063a9"},
		{name: "rclone", module: "github.com/rclone/rclone", version: "v1.76.0"},
		{name: "s5cmd", module: "github.com/peak/s5cmd/v2", version: "v2.3.0"},
		{name: "aws"},
	}
}

// find builds the tool in its pinned version, in the cache folder that package
// servers has too, or finds it on PATH where it can't be built.
func (t *tool) find(ctx context.Context, progress io.Writer) error {
	var err error
	if t.module != "" {
		if t.path, err = t.build(ctx, progress); ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if t.path == "" {
		path, missing := exec.LookPath(t.name)
		if missing != nil {
			fmt.Fprintf(progress, "%s is left out: %v\n", t.name, errors.Join(err, missing))
			return nil
		}
		if err != nil {
			fmt.Fprintf(progress, "%s is the one on PATH: %v\n", t.name, err)
		}
		t.path = path
	}
	args := []string{"--version"}
	if t.name == "s5cmd" || t.name == "rclone" {
		args = []string{"version"}
	}
	out, err := exec.CommandContext(ctx, t.path, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", t.name, args[0], err, out)
	}
	t.says, _, _ = strings.Cut(strings.TrimSpace(string(out)), "\n")
	if t.name == "mc" && strings.Contains(t.says, "Midnight") {
		fmt.Fprintln(progress, "mc is left out: the one on PATH is the Midnight Commander")
		t.path = ""
	}
	return nil
}

func (t *tool) build(ctx context.Context, progress io.Writer) (string, error) {
	cache := os.Getenv("S3FENCE_CACHE")
	if cache == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("no cache folder (set S3FENCE_CACHE): %w", err)
		}
		cache = filepath.Join(user, "s3fence")
	}
	cache, err := filepath.Abs(cache)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, t.name+"-"+t.version)
	path := filepath.Join(dir, t.name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return "", err
	}
	lock := flock.New(dir + ".lock")
	if _, err := lock.TryLockContext(ctx, 100*time.Millisecond); err != nil {
		return "", fmt.Errorf("waiting for %s: %w", lock.Path(), err)
	}
	defer lock.Unlock()
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	tmp, err := os.MkdirTemp(cache, t.name+"-"+t.version+".tmp-*")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(tmp) }() // gone already when all went well
	fmt.Fprintf(progress, "%s: building %s; this takes some minutes\n", t.name, t.version)
	ctx, cancel := context.WithTimeout(ctx, buildTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "install", t.module+"@"+t.version)
	cmd.Dir = tmp
	cmd.Env = append(os.Environ(), "GOBIN="+tmp, "CGO_ENABLED=0", "GO111MODULE=on", "GOWORK=off", "GOFLAGS=-trimpath")
	if out, err := cmd.CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return "", fmt.Errorf("go install %s@%s: %w: %s", t.module, t.version, err, lines[len(lines)-1])
	}
	return path, os.Rename(tmp, dir)
}
