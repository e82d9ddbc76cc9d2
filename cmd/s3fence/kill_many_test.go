package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/localstack/faultproxy"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
	"github.com/s3fence/s3fence/s3store"
)

// kill -9 in the middle of put -r, of small files and one in parts: each object
// is there whole or not at all, --resume completes the rest, and what was done is
// not written again: every object has one version in the end.
func TestKillMany(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	const bucket, token = "kill-many", "f1:8c1d0f2ab64e97d3:nightly/report:00000000000000000048:422d5fde"
	makeBuckets(t, m, bucket)
	client := serverstest.S3Client(m)
	if _, err := client.PutBucketVersioning(t.Context(), &s3.PutBucketVersioningInput{
		Bucket: aws.String(bucket), VersioningConfiguration: &types.VersioningConfiguration{Status: types.BucketVersioningStatusEnabled},
	}); err != nil {
		t.Fatal(err)
	}
	store := s3store.New(client, bucket, nil)
	g := guard.New(store, nil)

	rng := rand.New(rand.NewPCG(*killSeed, 1))
	random := rand.NewChaCha8([32]byte{2})
	dir := t.TempDir()
	files := map[string][]byte{}
	for i := range 41 {
		name, size := fmt.Sprintf("d%d/f%02d", i%5, i), 100+i
		if i == 20 {
			size = 17 << 20
		}
		files[name] = make([]byte, size)
		_, _ = random.Read(files[name])
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, files[name], 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	// there counts the objects; each must be whole.
	there := func(prefix string) (n int) {
		t.Helper()
		for name, want := range files {
			var got bytes.Buffer
			_, r, err := g.Get(t.Context(), prefix+name, nil)
			if errors.Is(err, guard.ErrNotFound) {
				continue
			}
			if err == nil {
				_, err = got.ReadFrom(r)
				err = errors.Join(err, r.Close())
			}
			if err != nil || !bytes.Equal(got.Bytes(), want) {
				t.Errorf("%s%s: %d bytes, %v", prefix, name, got.Len(), err)
			}
			n++
		}
		return n
	}

	inTheMiddle := 0
	for round := range *killRounds {
		prefix := fmt.Sprintf("r%d/", round)
		args := []string{
			"put", "-r", "-q", "--token", token, "--concurrency", "8",
			"--resume", filepath.Join(t.TempDir(), "state"), dir, "s3://" + bucket + "/" + prefix,
		}
		p, err := faultproxy.New(m.URL)
		if err != nil {
			t.Fatal(err)
		}
		// Each file takes a look and a PUT, the large one seven requests. One of
		// them, or its answer, is held, so that the process is killed there.
		held := p.Hold(faultproxy.Rule{
			Nth:   1 + rng.IntN(2*len(files)),
			Fault: faultproxy.Fault{Kind: []faultproxy.Kind{faultproxy.Hold, faultproxy.HoldAnswer}[rng.IntN(2)]},
		})
		arrive := killAt(t, m, p, held, rng, args)
		if rng.IntN(2) == 0 {
			arrive()
		}
		if n := there(prefix); n > 0 && n < len(files) {
			inTheMiddle++
		}

		out, err := program(t, m, append(args, "--json")...).CombinedOutput()
		if err != nil {
			t.Errorf("round %d: again: %v: %s", round, err, out)
		}
		arrive()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if n := there(prefix); n != len(files) {
			t.Errorf("round %d: %d of %d objects: %s", round, n, len(files), out)
		}
		versions := map[string]int{}
		for l, err := range store.List(t.Context(), guard.ListOptions{Prefix: prefix, Versions: true}) {
			if err != nil {
				t.Fatal(err)
			}
			versions[strings.TrimPrefix(l.Key, prefix)]++
		}
		for name := range files {
			if versions[name] != 1 {
				t.Errorf("round %d: %s was written %d times", round, name, versions[name])
			}
		}
		if len(versions) != len(files) {
			t.Errorf("round %d: %d keys", round, len(versions))
		}
	}
	if inTheMiddle < *killRounds/2 {
		t.Errorf("only %d of %d runs were killed in the middle", inTheMiddle, *killRounds)
	}
	if out, err := program(t, m, "audit", "--abort-uploads", "--older-than", "0", "s3://"+bucket+"/r").CombinedOutput(); err != nil {
		t.Errorf("audit: %v: %s", err, out)
	}
	nothingLeft(t, m, bucket)
}
