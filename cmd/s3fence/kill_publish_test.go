package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/localstack"
	"github.com/s3fence/s3fence/localstack/faultproxy"
	"github.com/s3fence/s3fence/localstack/servers"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
	"github.com/s3fence/s3fence/s3store"
)

// published are the files of a set, by their names, as a reader downloads them;
// nil where there is no set.
func published(t *testing.T, g *guard.Guard, dataset string) map[string][]byte {
	t.Helper()
	m, err := g.Resolve(t.Context(), dataset, nil)
	if errors.Is(err, guard.ErrNotFound) {
		return nil
	}
	dir := t.TempDir()
	if err == nil {
		err = g.DownloadSet(t.Context(), m, dir, nil)
	}
	if err != nil {
		t.Fatalf("the set %s is not whole: %v", dataset, err)
	}
	files := map[string][]byte{}
	for _, f := range m.Files {
		if files[f.Name], err = os.ReadFile(filepath.Join(dir, filepath.FromSlash(f.Name))); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// mustPublish publishes files under the n-th token of the test's scope.
func mustPublish(t *testing.T, g *guard.Guard, n int64, dataset string, files map[string][]byte) {
	t.Helper()
	var all []guard.PublishFile
	for name, body := range files {
		all = append(all, guard.PublishFile{Name: name, Open: func() (guard.Body, func() error, error) {
			return guard.Bytes(body), func() error { return nil }, nil
		}})
	}
	if _, err := g.Publish(t.Context(), nthToken(t, n), dataset, all, nil); err != nil {
		t.Fatal(err)
	}
}

func nthToken(t *testing.T, n int64) guard.Token {
	t.Helper()
	id, err := guard.ParseIssuerID("8c1d0f2ab64e97d3")
	if err != nil {
		t.Fatal(err)
	}
	tok, err := guard.NewToken(id, "nightly/report", n)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// folderOf writes files to a new folder.
func folderOf(t *testing.T, files map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	for name, body := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, body, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// keysUnder are the keys with a prefix that hold something.
func keysUnder(t *testing.T, s guard.Store, prefix string) (keys []string) {
	t.Helper()
	for l, err := range s.List(t.Context(), guard.ListOptions{Prefix: prefix}) {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, l.Key)
	}
	return keys
}

// A publishKiller is what TestKillPublish needs of a store.
type publishKiller struct {
	store guard.Store
	// program is s3fence against the store.
	program func(args ...string) *exec.Cmd
	// kill runs s3fence and kills it somewhere. What was on its way then arrives
	// when arrive is called.
	kill func(rng *rand.Rand, dataset string, files int, args []string) (arrive func())
}

// kill -9 in the middle of publish, of small files and one in parts. Whatever was on
// its way arrives soon, late or never. The set is the old one or the new one, whole,
// at any time. The same publish completes it, or a newer owner passes over it; when
// that one has published and cleaned up, the files of its set are all there is.
func TestKillPublish(t *testing.T) {
	for name, open := range map[string]func(*testing.T) publishKiller{"minio": killOnMinIO, "local": killOnLocal} {
		t.Run(name, func(t *testing.T) { killPublish(t, open(t)) })
	}
}

func killPublish(t *testing.T, k publishKiller) {
	g := guard.New(k.store, nil)
	rng := rand.New(rand.NewPCG(*killSeed, 2))
	random := rand.NewChaCha8([32]byte{3})
	files, old, newest := map[string][]byte{}, map[string][]byte{"d0/f00": []byte("old"), "gone": nil}, map[string][]byte{"d0/f00": []byte("newest")}
	for i := range 12 {
		size := 100 + i
		if i == 7 {
			size = 17 << 20
		}
		body := make([]byte, size)
		_, _ = random.Read(body)
		files[fmt.Sprintf("d%d/f%02d", i%3, i)] = body
	}
	dir := folderOf(t, files)

	inTheMiddle, outcomes := 0, map[string]int{}
	for round := range *killRounds {
		dataset := fmt.Sprintf("r%d/ds", round)
		url := "s3://kill-publish/" + dataset
		var before map[string][]byte
		if rng.IntN(2) == 0 {
			before = old
			mustPublish(t, g, 47, dataset, old)
		}
		was := len(keysUnder(t, k.store, dataset+"/data/"))
		// is checks that the set is one of two.
		is := func(when string, a, b map[string][]byte) (isB bool) {
			t.Helper()
			got := published(t, g, dataset)
			isB = maps.EqualFunc(got, b, bytes.Equal)
			if !isB && !maps.EqualFunc(got, a, bytes.Equal) {
				t.Errorf("round %d: %s the set is neither: %q", round, when, slices.Sorted(maps.Keys(got)))
			}
			return isB
		}
		args := []string{
			"publish", "--json", "--token", nthToken(t, 48).String(), "--write-id", fmt.Sprintf("%032x", round+1),
			"--concurrency", "4", dir, url,
		}
		arrive := k.kill(rng, dataset, len(files), args)
		if !is("killed,", before, files) && len(keysUnder(t, k.store, dataset+"/data/")) > was {
			inTheMiddle++
		}
		arrives := []string{"soon", "late", "never"}[rng.IntN(3)]
		if arrives == "soon" {
			arrive()
			is("after what was on its way", before, files)
		}

		if rng.IntN(3) > 0 {
			out, err := k.program(args...).Output()
			var res struct{ Outcome string }
			for line := range bytes.Lines(out) {
				if bytes.HasPrefix(line, []byte(`{"op":"publish",`)) {
					err = errors.Join(err, json.Unmarshal(line, &res))
				}
			}
			if err != nil || !slices.Contains([]string{"created", "replaced", "already-applied"}, res.Outcome) {
				t.Errorf("round %d: again: %v: %s", round, err, out)
			}
			outcomes[res.Outcome]++
			is("again,", files, files)
			if arrives == "late" && rng.IntN(2) == 0 {
				arrive()
				is("after what was on its way", files, files)
			}
		}
		mustPublish(t, g, 49, dataset, newest)
		if arrives == "late" {
			arrive()
		}
		is("with a newer owner", newest, newest)
		if out, err := k.program("publish", "gc", "--keep", "0", url).CombinedOutput(); err != nil {
			t.Errorf("round %d: gc: %v: %s", round, err, out)
		}
		is("cleaned up,", newest, newest)
		if keys := keysUnder(t, k.store, dataset+"/"); len(keys) != 1+len(newest) {
			t.Errorf("round %d: left behind: %q", round, keys)
		}
	}
	t.Logf("seed %d: %d of %d killed in the middle; run again: %v", *killSeed, inTheMiddle, *killRounds, outcomes)
	if inTheMiddle == 0 {
		t.Error("none was killed in the middle")
	}
	if out, err := k.program("audit", "--abort-uploads", "--older-than", "0", "s3://kill-publish/r").CombinedOutput(); err != nil {
		t.Errorf("audit: %v: %s", err, out)
	}
	for up, err := range k.store.Uploads(t.Context(), "") {
		t.Errorf("left behind: %+v, %v", up, err)
	}
}

func killOnMinIO(t *testing.T) publishKiller {
	m := serverstest.SharedMinIO(t)
	makeBuckets(t, m, "kill-publish")
	return publishKiller{
		store:   s3store.New(serverstest.S3Client(m), "kill-publish", nil),
		program: func(args ...string) *exec.Cmd { return program(t, m, args...) },
		kill: func(rng *rand.Rand, dataset string, files int, args []string) func() {
			t.Helper()
			p, err := faultproxy.New(m.URL)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			})
			// A look, one for each file, some more for the large one, then two for the
			// manifest. What is seldom met among them is often chosen.
			at := faultproxy.Rule{
				Nth:   1 + rng.IntN(1+files),
				Fault: faultproxy.Fault{Kind: []faultproxy.Kind{faultproxy.Hold, faultproxy.HoldAnswer}[rng.IntN(2)]},
			}
			switch rng.IntN(4) {
			case 0:
				at.Method, at.Key, at.Nth = "PUT", guard.ManifestKey(dataset), 1
			case 1:
				at.Method, at.Query, at.Nth = "POST", "uploadId", 1
			}
			return killAt(t, m, p, p.Hold(at), rng, args)
		},
	}
}

func killOnLocal(t *testing.T) publishKiller {
	dir := filepath.Join(t.TempDir(), "store")
	local, err := localstack.Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := local.Close(); err != nil {
			t.Error(err)
		}
	})
	run := func(args ...string) *exec.Cmd {
		cmd := program(t, &servers.Server{}, args...)
		cmd.Env = append(cmd.Env, "S3FENCE_LOCAL="+dir)
		return cmd
	}
	return publishKiller{
		store:   local.Store("kill-publish"),
		program: run,
		kill: func(rng *rand.Rand, _ string, files int, args []string) func() {
			t.Helper()
			cmd := run(args...)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			// When so many files are there; with all of them, the manifest is on its way.
			lines, n := bufio.NewReader(out), files
			if rng.IntN(2) == 0 {
				n = rng.IntN(files)
			}
			for range n {
				if _, err := lines.ReadString('\n'); err != nil {
					t.Fatalf("%v: %s", err, &stderr)
				}
			}
			time.Sleep(time.Duration(rng.IntN(3000)) * time.Microsecond)
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // it was killed
			return func() {}
		},
	}
}
