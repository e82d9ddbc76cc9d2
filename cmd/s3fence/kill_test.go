package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/localstack/faultproxy"
	"github.com/s3fence/s3fence/localstack/servers"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
	"github.com/s3fence/s3fence/s3store"
)

var (
	killRounds = flag.Int("kill.rounds", 6, "how many uploads or publishes TestKill, TestKillMany and TestKillPublish kill each")
	killSeed   = flag.Uint64("kill.seed", 1, "what TestKill and TestKillPublish choose by where they kill them")
)

// program is s3fence against s, as a process of its own: the test binary is
// s3fence when it is called so.
func program(t *testing.T, s *servers.Server, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, args...)
	cmd.Args[0] = "s3fence"
	cmd.Env = append(os.Environ(), "S3FENCE_TEST_MAIN=1", "S3FENCE_LOCAL=", "S3FENCE_NO_PROFILE=1")
	for k, v := range serverEnv(s, s) {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	return cmd
}

// onItsWay reports whether a request that was held is still on its way.
func onItsWay(p *faultproxy.Proxy) bool {
	return slices.ContainsFunc(p.Requests(), func(r faultproxy.Request) bool {
		return len(r.Faults) > 0 && r.Upstream == 0 && r.Err == nil
	})
}

// letArrive lets go of what is held, and waits for what the server makes of it.
func letArrive(p *faultproxy.Proxy, held *faultproxy.Injection) {
	held.Release()
	for onItsWay(p) {
		time.Sleep(5 * time.Millisecond)
	}
}

// killAt runs s3fence behind the proxy and kills it soon after held is reached,
// which arrives when arrive is called.
func killAt(t *testing.T, s *servers.Server, p *faultproxy.Proxy, held *faultproxy.Injection, rng *rand.Rand, args []string) (arrive func()) {
	t.Helper()
	cmd := program(t, serverstest.At(s, p.URL()), args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-held.Reached():
	case err := <-ended:
		t.Fatalf("%q: it ended before: %v\n%s", args, err, &stderr)
	}
	time.Sleep(time.Duration(rng.IntN(100)) * time.Millisecond) // the others go on
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-ended
	return func() { letArrive(p, held) }
}

// nothingLeft fails the test for each multipart upload in the bucket. MinIO
// sometimes goes on listing one that is gone.
func nothingLeft(t *testing.T, s *servers.Server, bucket string) {
	t.Helper()
	client := serverstest.S3Client(s)
	for up, err := range s3store.New(client, bucket, nil).Uploads(t.Context(), "") {
		if err == nil {
			_, err = client.ListParts(t.Context(), &s3.ListPartsInput{Bucket: &bucket, Key: &up.Key, UploadId: &up.ID})
			if e, ok := errors.AsType[smithy.APIError](err); ok && e.ErrorCode() == "NoSuchUpload" {
				continue
			}
		}
		t.Errorf("left behind: %+v, %v", up, err)
	}
}

// kill -9 in the middle of an upload in parts: while a request is on its way to
// the server, or its answer on its way back, whichever of them it is, or at any
// time. A request that was on its way arrives when the process is gone: soon, or
// after the upload was run again, or never. What is at the key is the old object
// or the whole new one at any time, running it again completes it, and no upload
// is left after an audit.
func TestKill(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	const bucket, size, token = "kill", 64 << 20, "f1:8c1d0f2ab64e97d3:nightly/report:00000000000000000048:422d5fde"
	makeBuckets(t, m, bucket)
	store := s3store.New(serverstest.S3Client(m), bucket, nil)
	g := guard.New(store, nil)
	tok, err := guard.ParseToken(token)
	if err != nil {
		t.Fatal(err)
	}
	older, err := guard.NewToken(tok.Issuer(), tok.Scope(), tok.Number()-1)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	body := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(body)
	if err := os.WriteFile(file, body, 0o600); err != nil {
		t.Fatal(err)
	}
	whole, old := sha256.Sum256(body), sha256.Sum256([]byte("old"))

	// holds returns what is at the key: "", "old" or "new".
	holds := func(key string) string {
		t.Helper()
		_, r, err := g.Get(t.Context(), key, nil)
		if errors.Is(err, guard.ErrNotFound) {
			return ""
		}
		if err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		defer r.Close()
		h := sha256.New()
		n, err := io.Copy(h, r)
		switch {
		case err != nil:
			t.Fatalf("%s: %v", key, err)
		case bytes.Equal(h.Sum(nil), whole[:]):
			return "new"
		case !bytes.Equal(h.Sum(nil), old[:]):
			t.Fatalf("%s holds %d bytes that are neither the old object nor the new one", key, n)
		}
		return "old"
	}

	rng := rand.New(rand.NewPCG(*killSeed, 0))
	outcomes := map[string]int{}
	for round := range *killRounds {
		// The requests are the look at the object, the scope fence, the upload's
		// creation, eight parts or nine, another look and the completion.
		at := faultproxy.Rule{Nth: 1 + rng.IntN(13), Fault: faultproxy.Fault{Kind: faultproxy.Hold}}
		if rng.IntN(2) == 0 {
			at.Fault.Kind = faultproxy.HoldAnswer
		}
		if rng.IntN(3) == 0 { // otherwise it is seldom met
			at.Method, at.Query, at.Nth = "POST", "uploadId", 1
		}
		arrives := []string{"soon", "late", "never"}[rng.IntN(3)]
		name := fmt.Sprintf("round %d: %q, arrives %s", round, at, arrives)
		key, id, before := "k"+strconv.Itoa(round), fmt.Sprintf("%032x", round+1), ""
		if rng.IntN(2) == 0 {
			before = "old"
			if _, err := g.Put(t.Context(), older, key, guard.Bytes([]byte("old")), nil); err != nil {
				t.Fatal(err)
			}
		}
		args := []string{"put", "--json", "--token", token, "--write-id", id, file, "s3://" + bucket + "/" + key}

		p, err := faultproxy.New(m.URL)
		if err != nil {
			t.Fatal(err)
		}
		reached := make(<-chan struct{})
		release := func() {}
		var anyTime <-chan time.Time
		if rng.IntN(4) == 0 {
			name = fmt.Sprintf("round %d: any time", round)
			anyTime = time.After(time.Duration(rng.IntN(700)) * time.Millisecond)
		} else {
			held := p.Hold(at)
			reached, release = held.Reached(), func() { letArrive(p, held) }
		}
		cmd := program(t, serverstest.At(m, p.URL()), args...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case <-reached:
		case <-anyTime:
		case err := <-ended:
			if anyTime == nil || err != nil {
				t.Fatalf("%s: it ended before: %v\n%s", name, err, &stderr)
			}
			ended <- nil
		}
		if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Fatal(err)
		}
		<-ended
		if got := holds(key); got != before && got != "new" {
			t.Errorf("%s: it held %q and holds %q", name, before, got)
		}
		if arrives == "soon" {
			release()
			if got := holds(key); got != before && got != "new" {
				t.Errorf("%s: it held %q and holds %q after what was under way", name, before, got)
			}
		}

		out, err := program(t, m, args...).Output()
		var res struct{ Outcome string }
		if err := errors.Join(err, json.Unmarshal(out, &res)); err != nil {
			t.Errorf("%s: again: %v: %s", name, err, out)
		}
		outcomes[res.Outcome]++
		want := []string{"created", "already-applied"}
		if before != "" {
			want[0] = "replaced"
		}
		if !slices.Contains(want, res.Outcome) || holds(key) != "new" {
			t.Errorf("%s: again: %s", name, out)
		}
		if arrives == "late" {
			release()
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if holds(key) != "new" {
			t.Errorf("%s: after all it is gone", name)
		}
	}
	t.Logf("seed %d: run again: %v", *killSeed, outcomes)

	left := 0
	for _, err := range store.Uploads(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		left++
	}
	if left == 0 {
		t.Error("no upload was left behind: nothing was killed in the middle of one")
	}
	out, err := program(t, m, "audit", "--json", "--abort-uploads", "--older-than", "0", "s3://"+bucket+"/k").Output()
	if err != nil || !strings.Contains(string(out), fmt.Sprintf(`"aborted_uploads":%d,`, left)) {
		t.Errorf("%d uploads, the audit: %v: %s", left, err, out)
	}
	nothingLeft(t, m, bucket)
}
