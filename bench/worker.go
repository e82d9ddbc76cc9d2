package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"sync"
	"syscall"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager"
	tmtypes "github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/s3store"
)

// Both multipart uploaders get what guard has by default.
const (
	partSize    = guard.DefaultPartSize
	partsAtOnce = guard.DefaultConcurrency
)

// A worker uploads with one library, in a process of its own.
type worker struct {
	how         string // raw, conditional, transfermanager or s3fence
	mode        string // new, existing, own or state
	source      string // a folder, a file, or - for standard input
	bucket, key string // key is a prefix where the source is a folder
	sse         string
	token       string
	etagFile    string
	concurrency int
	cpuProfile  string
	heapProfile string

	client  *s3.Client
	manager *transfermanager.Client
	session *guard.Session
	guard   *guard.Guard

	mu    sync.Mutex
	etags map[string]string // by key, of a conditional loop's own objects
}

func workerMain(args []string) error {
	var w worker
	f := flag.NewFlagSet("bench worker", flag.ContinueOnError)
	f.StringVar(&w.how, "how", "raw", "raw, conditional, transfermanager or s3fence")
	f.StringVar(&w.mode, "mode", "new", "new, existing, own or state")
	f.StringVar(&w.source, "source", "", "a folder, a file, or - for standard input")
	f.StringVar(&w.bucket, "bucket", "", "the bucket")
	f.StringVar(&w.key, "key", "", "the key, or the prefix of a folder's keys")
	f.StringVar(&w.sse, "sse", "", "encryption to ask for")
	f.StringVar(&w.token, "token", "", "the token's text")
	f.StringVar(&w.etagFile, "etags", "", "where a conditional loop keeps the ETags of its objects from run to run")
	f.IntVar(&w.concurrency, "concurrency", 32, "how many files at once")
	f.StringVar(&w.cpuProfile, "cpuprofile", "", "where to write a CPU profile")
	f.StringVar(&w.heapProfile, "memprofile", "", "where to write a profile of all allocations")
	if err := f.Parse(args); err != nil {
		return err
	}
	if w.heapProfile != "" {
		runtime.MemProfileRate = 64 << 10
	}
	if w.cpuProfile != "" {
		out, err := os.Create(w.cpuProfile)
		if err != nil {
			return err
		}
		defer out.Close()
		if err := pprof.StartCPUProfile(out); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	if err := w.run(context.Background()); err != nil {
		return err
	}
	if w.heapProfile == "" {
		return nil
	}
	out, err := os.Create(w.heapProfile)
	if err != nil {
		return err
	}
	return errors.Join(pprof.Lookup("allocs").WriteTo(out, 0), out.Close())
}

func (w *worker) run(ctx context.Context) error {
	w.client = newClient(os.Getenv("AWS_ENDPOINT_URL"), os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY"), w.concurrency)
	w.manager = transfermanager.New(w.client, func(o *transfermanager.Options) {
		o.PartSizeBytes, o.Concurrency = partSize, partsAtOnce
	})
	if w.how == "s3fence" {
		tok, err := guard.ParseToken(w.token)
		if err != nil {
			return err
		}
		w.guard = guard.New(s3store.New(w.client, w.bucket, nil), nil)
		if w.session, err = w.guard.ResumeSession(ctx, tok, nil); err != nil {
			return err
		}
	}
	if w.source == "-" {
		return w.stream(ctx)
	}
	if err := w.loadETags(); err != nil {
		return err
	}
	files, err := list(w.source)
	if err != nil {
		return err
	}
	if err := w.all(ctx, files, w.mode); err != nil {
		return err
	}
	if w.mode != "own" {
		return w.saveETags()
	}
	// Only the second time counts: the parent says when to begin, and is told
	// what it took.
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return fmt.Errorf("wait for the parent: %w", err)
	}
	begun, used := time.Now(), cpu()
	if err := w.all(ctx, files, w.mode); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(measurement{Wall: time.Since(begun).Seconds(), CPU: cpu() - used})
}

func (w *worker) loadETags() error {
	w.etags = make(map[string]string)
	if w.etagFile == "" || w.mode != "state" {
		return nil
	}
	b, err := os.ReadFile(w.etagFile)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, &w.etags)
}

func (w *worker) saveETags() error {
	if w.etagFile == "" {
		return nil
	}
	b, err := json.Marshal(w.etags)
	if err != nil {
		return err
	}
	return os.WriteFile(w.etagFile, b, 0o600)
}

// newClient is the one that every worker has. The SDK's own keeps 10 idle
// connections to a host and would dial anew for the others all the time.
func newClient(endpoint, access, secret string, concurrency int) *s3.Client {
	return s3.New(s3.Options{
		Region: "us-east-1", BaseEndpoint: &endpoint, UsePathStyle: true,
		Credentials:                credentials.NewStaticCredentialsProvider(access, secret, ""),
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenSupported,
		HTTPClient: awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) {
			t.MaxIdleConnsPerHost = max(concurrency, 2*partsAtOnce)
		}),
	})
}

func cpu() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return seconds(&u)
}

type file struct {
	path, name string
	size       int64
}

// list returns the files under root, or root itself, with an empty name.
func list(root string) (files []file, err error) {
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if rel == "." {
			rel = ""
		}
		files = append(files, file{p, filepath.ToSlash(rel), info.Size()})
		return err
	})
	return files, err
}

func (w *worker) all(ctx context.Context, files []file, mode string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan file)
	var wg sync.WaitGroup
	for range min(w.concurrency, len(files)) {
		wg.Go(func() {
			for f := range next {
				if err := w.put(ctx, f, mode); err != nil {
					cancel(fmt.Errorf("%s: %w", f.name, err))
				}
			}
		})
	}
	for _, f := range files {
		if ctx.Err() != nil {
			break
		}
		next <- f
	}
	close(next)
	wg.Wait()
	return context.Cause(ctx)
}

func (w *worker) put(ctx context.Context, f file, mode string) error {
	source, err := os.Open(f.path)
	if err != nil {
		return err
	}
	defer source.Close()
	key := path.Join(w.key, f.name)
	switch w.how {
	case "s3fence":
		_, err = w.session.Put(ctx, key, guard.ReaderAt(source, f.size), &guard.PutOptions{
			SSE: w.sse, ExpectAbsent: mode != "existing",
		})
		return err
	case "transfermanager":
		return w.manage(ctx, key, source)
	case "raw", "conditional":
	default:
		return fmt.Errorf("no way to upload is called %q", w.how)
	}
	in := &s3.PutObjectInput{Bucket: &w.bucket, Key: &key, Body: source, ServerSideEncryption: types.ServerSideEncryption(w.sse)}
	switch {
	case mode == "existing":
		seen, err := w.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &w.bucket, Key: &key})
		if err != nil {
			return err
		}
		if w.how == "conditional" {
			in.IfMatch = seen.ETag
		}
	case w.how == "conditional":
		w.mu.Lock()
		etag := w.etags[key]
		w.mu.Unlock()
		if etag != "" {
			in.IfMatch = &etag
		} else {
			in.IfNoneMatch = aws.String("*")
		}
	}
	out, err := w.client.PutObject(ctx, in)
	if err == nil && w.how == "conditional" {
		w.mu.Lock()
		w.etags[key] = aws.ToString(out.ETag)
		w.mu.Unlock()
	}
	return err
}

func (w *worker) manage(ctx context.Context, key string, source io.Reader) error {
	_, err := w.manager.UploadObject(ctx, &transfermanager.UploadObjectInput{
		Bucket: &w.bucket, Key: &key, Body: source, ServerSideEncryption: tmtypes.ServerSideEncryption(w.sse),
	})
	return err
}

func (w *worker) stream(ctx context.Context) error {
	pipe := struct{ io.Reader }{os.Stdin} // a file would look seekable
	switch w.how {
	case "s3fence":
		_, err := w.guard.PutStream(ctx, w.session.Token(), w.key, pipe, &guard.PutOptions{SSE: w.sse, ExpectAbsent: true})
		return err
	case "transfermanager":
		return w.manage(ctx, w.key, pipe)
	}
	return fmt.Errorf("%s can't send a stream", w.how)
}
