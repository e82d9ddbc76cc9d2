package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/localstack/faultproxy"
	"github.com/s3fence/s3fence/localstack/servers"
)

type runner struct {
	settings
	dir       string // all that is made on disk
	progress  io.Writer
	raw       io.Writer // for single measurements; may be nil
	base      upload
	tools     []*tool
	server    *servers.Server
	client    *s3.Client
	issuer    guard.IssuerID
	number    int64
	populated map[string]bool // the prefixes that hold what existing needs
}

// The part of the keys that a pass which only counts uploads to.
const countTrees = "count-"

// run makes the files and the bucket, counts requests, and measures.
func (r *runner) run(ctx context.Context, chosen []workload) ([]*results, error) {
	r.client = newClient(r.server.URL, r.server.AccessKey, r.server.SecretKey, r.concurrency)
	if _, err := r.client.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: &r.base.bucket}); err != nil {
		return nil, err
	}
	for _, t := range []struct {
		name  string
		files int
		size  int64
	}{
		{"4k", r.small, 4 << 10},
		{countTrees + "4k", min(r.small, 1000), 4 << 10},
		{"256k", r.medium, 256 << 10},
		{countTrees + "256k", min(r.medium, 200), 256 << 10},
		{"big", 1, r.big},
	} {
		if err := makeTree(filepath.Join(r.dir, t.name), t.files, t.size); err != nil {
			return nil, err
		}
	}
	var all []*results
	for i := range chosen {
		all = append(all, newResults(&chosen[i]))
	}
	for _, res := range all {
		if err := r.count(ctx, res); err != nil {
			return nil, err
		}
	}
	if r.profile != "" {
		for _, res := range all {
			if err := r.profiles(ctx, res); err != nil {
				return nil, err
			}
		}
	}
	for round := range r.runs {
		for _, res := range all {
			if err := r.round(ctx, res, round); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// round measures each contestant once, in an order that differs from round to
// round, so that none is always the one that comes first.
func (r *runner) round(ctx context.Context, res *results, round int) error {
	w := res.workload
	n := len(w.contestants)
	for i := range w.contestants {
		c := w.contestants[(i+round)%n]
		if c.once && round > 0 || res.failed[c.name] != nil {
			continue
		}
		place := fmt.Sprintf("round%d", round+1)
		m, err := r.once(ctx, w, c, place, r.server.URL, nil, nil)
		if err == nil {
			err = r.stored(ctx, w, r.upload(w, c, place).key, w.objects, round > 0)
		}
		if err := res.note(ctx, c, m, err, r.progress); err != nil {
			return err
		}
		if err == nil {
			fmt.Fprintf(r.progress, "%s, run %d, %s: %.2f s\n", w.name, round+1, c.name, m.Wall)
		}
		if w.tree != "4k" {
			if err := r.remove(ctx, r.upload(w, c, place).key); err != nil {
				return err
			}
		}
	}
	return nil
}

// count lets each contestant upload once through a proxy that counts.
func (r *runner) count(ctx context.Context, res *results) error {
	w := *res.workload
	if w.tree != "big" {
		w.objects = min(w.objects, map[string]int{"4k": 1000, "256k": 200}[w.tree])
		w.tree = countTrees + w.tree
	}
	for _, c := range w.contestants {
		if c.once && w.tree == "big" {
			continue
		}
		proxy, err := faultproxy.New(r.server.URL)
		if err != nil {
			return err
		}
		_, err = r.once(ctx, &w, c, "count", proxy.URL(), proxy.ClearRequests, func(*upload) { proxy.ClearRequests() })
		seen := proxy.Requests()
		if err = errors.Join(err, proxy.Close()); err == nil {
			err = r.stored(ctx, &w, r.upload(&w, c, "count").key, w.objects, false)
		}
		if err := res.note(ctx, c, nil, err, r.progress); err != nil {
			return err
		}
		res.requests[c.name] = tally(seen, r.upload(&w, c, "count").key, w.objects)
		if w.tree == "big" {
			if err := r.remove(ctx, r.upload(&w, c, "count").key); err != nil {
				return err
			}
		}
	}
	return nil
}

// profiles lets each library upload once more, profiled.
func (r *runner) profiles(ctx context.Context, res *results) error {
	w := res.workload
	if err := os.MkdirAll(r.profile, 0o755); err != nil {
		return err
	}
	for _, c := range w.contestants {
		if !slices.Contains([]string{rawLoop, manager, ours, rawIf}, c.name) {
			continue
		}
		name := filepath.Join(r.profile, w.name+"-"+strings.NewReplacer(" ", "-", ",", "").Replace(c.name))
		_, err := r.once(ctx, w, c, "profile", r.server.URL, nil, func(u *upload) {
			u.cpuProfile, u.heapProfile = name+".cpu.prof", name+".allocs.prof"
		})
		if err := res.note(ctx, c, nil, err, r.progress); err != nil {
			return err
		}
		if w.tree != "4k" {
			if err := r.remove(ctx, r.upload(w, c, "profile").key); err != nil {
				return err
			}
		}
	}
	return nil
}

// upload says what a contestant uploads in one run, and where to.
func (r *runner) upload(w *workload, c contestant, place string) upload {
	u := r.base
	u.mode, u.sse, u.pipe, u.folder = w.mode, w.sse, w.pipe, !strings.HasSuffix(w.tree, "big")
	u.source = filepath.Join(r.dir, w.tree)
	u.key = place + "/" + w.tree + "/" + strings.NewReplacer(" ", "-", ",", "").Replace(c.name)
	switch {
	case w.mode == "own":
		u.key += "-own"
	case w.mode == "state":
		u.key += "-state"
		if c.name == command || c.name == rawIf {
			u.state = filepath.Join(r.dir, strings.ReplaceAll(u.key, "/", "-")+".db")
		}
	case w.pipe:
		u.source, u.key = "-", u.key+"-pipe.bin"
	case !u.folder:
		u.source, u.key = filepath.Join(u.source, bigFile), u.key+".bin"
	}
	return u
}

// once runs one contestant and returns what it took. again is called before
// the part of a run that counts, where that is not the whole.
func (r *runner) once(
	ctx context.Context, w *workload, c contestant, place, endpoint string, again func(), change func(*upload),
) (*measurement, error) {
	u := r.upload(w, c, place)
	if w.mode == "existing" || w.mode == "state" {
		if err := r.populate(ctx, w, c, u, endpoint); err != nil {
			return nil, err
		}
	}
	if w.mode == "new" {
		r.populated[u.key] = true
	}
	if change != nil {
		change(&u)
	}
	if err := r.newToken(&u); err != nil {
		return nil, err
	}
	syscall.Sync() // what the one before left to be written is not this one's
	var stdin io.Reader
	if w.pipe {
		source, err := os.Open(filepath.Join(r.dir, w.tree, bigFile))
		if err != nil {
			return nil, err
		}
		defer source.Close()
		stdin = source
	}
	return r.process(ctx, c.argv(u), endpoint, stdin, w.mode == "own", again)
}

// populate makes the objects that are then replaced, where the workload of new
// keys has not done so in this round. What is remembered of a key is remembered
// of an endpoint, so it is the one that is used then.
func (r *runner) populate(ctx context.Context, w *workload, c contestant, u upload, endpoint string) error {
	if r.populated[u.key] {
		return nil
	}
	u.mode = "new"
	if w.mode != "state" {
		u.sse = ""
	}
	if err := r.newToken(&u); err != nil {
		return err
	}
	how := library("raw")
	switch {
	case u.state != "":
		how = c.argv
	case c.name == ours || c.name == command:
		how = library("s3fence")
	}
	_, err := r.process(ctx, how(u), endpoint, nil, false, nil)
	r.populated[u.key] = err == nil
	return err
}

func (r *runner) newToken(u *upload) error {
	r.number++
	tok, err := guard.NewToken(r.issuer, "bench", r.number)
	u.token = tok.String()
	return err
}

// process runs argv under measure. A source goes to it through a pipe.
func (r *runner) process(ctx context.Context, argv []string, endpoint string, source io.Reader, twice bool, again func()) (*measurement, error) {
	numbers, numbersEnd, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer numbers.Close()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, r.base.bench, append([]string{"measure", "--"}, argv...)...)
	cmd.Env, cmd.Stderr, cmd.ExtraFiles = r.environment(endpoint), &stderr, []*os.File{numbersEnd}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	var in io.WriteCloser
	var out io.Reader = strings.NewReader("")
	if source != nil {
		producer := exec.CommandContext(ctx, "cat")
		producer.Stdin = source
		pipe, err := producer.StdoutPipe()
		if err != nil {
			return nil, err
		}
		cmd.Stdin = pipe
		if err := producer.Start(); err != nil {
			return nil, err
		}
		defer func() { _ = producer.Wait() }() // the end of a pipe that was not read is no news
		defer pipe.Close()
	}
	if twice {
		if in, err = cmd.StdinPipe(); err == nil {
			out, err = cmd.StdoutPipe()
		}
		if err != nil {
			return nil, err
		}
	}
	err = cmd.Start()
	_ = numbersEnd.Close()
	if err != nil {
		return nil, err
	}
	var second *measurement
	if twice {
		second, err = talk(in, out, again)
	}
	var m measurement
	wrong := json.NewDecoder(numbers).Decode(&m)
	if failed := cmd.Wait(); failed != nil {
		said := strings.TrimSpace(stderr.String())
		return nil, fmt.Errorf("%w: %s", failed, said[max(0, len(said)-2000):])
	}
	if err = errors.Join(err, wrong); err != nil {
		return nil, err
	}
	if second != nil {
		second.Peak = m.Peak
		m = *second
	}
	return &m, nil
}

// talk tells a worker when to upload its files for the second time.
func talk(in io.WriteCloser, out io.Reader, again func()) (*measurement, error) {
	defer in.Close()
	lines := bufio.NewReader(out)
	if _, err := lines.ReadString('\n'); err != nil {
		return nil, err
	}
	if again != nil {
		again()
	}
	if _, err := fmt.Fprintln(in, "go"); err != nil {
		return nil, err
	}
	var m measurement
	err := json.NewDecoder(lines).Decode(&m)
	return &m, err
}

// environment is the caller's, with the server in it for every program.
func (r *runner) environment(endpoint string) []string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return slices.ContainsFunc([]string{"AWS_", "MC_", "RCLONE_", "S3FENCE_", "S3_"}, func(p string) bool { return strings.HasPrefix(kv, p) })
	})
	s := r.server
	awsConfig := filepath.Join(r.dir, "aws-config")
	text := fmt.Sprintf("[default]\nregion = %s\ns3 =\n  max_concurrent_requests = %d\n", s.Region, r.concurrency)
	_ = os.WriteFile(awsConfig, []byte(text), 0o600) // without it the program has its defaults
	return append(env,
		"AWS_ENDPOINT_URL="+endpoint, "AWS_ACCESS_KEY_ID="+s.AccessKey, "AWS_SECRET_ACCESS_KEY="+s.SecretKey,
		"AWS_REGION="+s.Region, "AWS_DEFAULT_REGION="+s.Region, "AWS_CONFIG_FILE="+awsConfig, "S3_ENDPOINT_URL="+endpoint,
		"MC_HOST_bench="+strings.Replace(endpoint, "://", "://"+s.AccessKey+":"+s.SecretKey+"@", 1),
		"MC_CONFIG_DIR="+filepath.Join(r.dir, "mc"),
		"RCLONE_CONFIG="+filepath.Join(r.dir, "rclone.conf"), "RCLONE_CONFIG_BENCH_TYPE=s3", "RCLONE_CONFIG_BENCH_PROVIDER=Minio",
		"RCLONE_CONFIG_BENCH_ENDPOINT="+endpoint, "RCLONE_CONFIG_BENCH_REGION="+s.Region,
		"RCLONE_CONFIG_BENCH_ACCESS_KEY_ID="+s.AccessKey, "RCLONE_CONFIG_BENCH_SECRET_ACCESS_KEY="+s.SecretKey,
	)
}

// stored checks that all objects are there: in the first round of a folder by
// their list, which takes a while, and else by one of them.
func (r *runner) stored(ctx context.Context, w *workload, prefix string, objects int, oneOnly bool) error {
	if !strings.HasSuffix(w.tree, "big") {
		prefix += "/"
	}
	in := &s3.ListObjectsV2Input{Bucket: &r.base.bucket, Prefix: &prefix}
	if oneOnly {
		in.MaxKeys, objects = aws.Int32(1), 1
	}
	found := 0
	for pages := s3.NewListObjectsV2Paginator(r.client, in); pages.HasMorePages() && (!oneOnly || found == 0); {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return err
		}
		found += len(page.Contents)
	}
	if found != objects {
		return fmt.Errorf("%d of %d objects are there", found, objects)
	}
	return nil
}

// remove deletes all that begins with prefix.
func (r *runner) remove(ctx context.Context, prefix string) error {
	for pages := s3.NewListObjectsV2Paginator(r.client, &s3.ListObjectsV2Input{Bucket: &r.base.bucket, Prefix: &prefix}); pages.HasMorePages(); {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return err
		}
		if len(page.Contents) == 0 {
			return nil
		}
		var keys []types.ObjectIdentifier
		for _, o := range page.Contents {
			keys = append(keys, types.ObjectIdentifier{Key: o.Key})
		}
		if _, err := r.client.DeleteObjects(ctx, &s3.DeleteObjectsInput{
			Bucket: &r.base.bucket, Delete: &types.Delete{Objects: keys, Quiet: aws.Bool(true)},
		}); err != nil {
			return err
		}
	}
	return nil
}

const bigFile = "big.bin"

// makeTree makes so many files of random bytes, 100 in a folder.
func makeTree(dir string, files int, size int64) error {
	random := rand.NewChaCha8([32]byte{1})
	for i := range files {
		path := filepath.Join(dir, fmt.Sprintf("d%03d", i/100), fmt.Sprintf("f%05d.bin", i))
		if files == 1 {
			path = filepath.Join(dir, bigFile)
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		f, err := os.Create(path)
		if err != nil {
			return err
		}
		_, err = io.CopyN(f, random, size)
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}
