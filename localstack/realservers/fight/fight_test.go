//go:build unix

// Package fight has processes fight over one lease: each is a process of its own
// that may be stopped for longer than its lease lasts, or killed, at any moment.
// It has one test, on MinIO and dynalite.
package fight

import (
	"bufio"
	"bytes"
	"context"
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
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/audit"
	"github.com/s3fence/s3fence/issuer"
	"github.com/s3fence/s3fence/localstack/faultproxy"
	"github.com/s3fence/s3fence/localstack/servers"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
	"github.com/s3fence/s3fence/s3store"
)

var (
	fightFor  = flag.Duration("lease.fight", 8*time.Second, "how long TestLeaseFight lets processes fight")
	fightSeed = flag.Uint64("lease.seed", 0, "what TestLeaseFight chooses by whom it stops and kills, and when (default: a random one)")
)

func TestMain(m *testing.M) {
	if text := os.Getenv(arenaVariable); text != "" {
		if err := fight(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(serverstest.MainOnly(m, "the fight over a lease, which needs MinIO and dynalite"))
}

const (
	fighters = 8
	keys     = 3
	scope    = "fight"
	ttl      = issuer.MinLeaseTTL
	// arenaVariable makes the test binary a fighter.
	arenaVariable = "S3FENCE_TEST_ARENA"
)

// An arena is what a fighter is told.
type arena struct {
	MinIO, Dynalite *servers.Server
	Bucket, Table   string
	Name, Log       string // its own
	Seed            uint64
}

// open opens what the fighters share.
func (a *arena) open(ctx context.Context) (*s3store.Store, *issuer.DynamoDB, error) {
	d, err := issuer.OpenDynamoDB(ctx, serverstest.DynamoDBClient(a.Dynalite), a.Table)
	return s3store.New(serverstest.S3Client(a.MinIO), a.Bucket, nil), d, err
}

// A report is a write that a fighter was told has been made, or that it was
// refused as stale.
type report struct {
	Key       string
	Number    int64
	Sequence  int64
	WriteID   string
	VersionID string
	Stale     bool
}

// What a fighter says to the one who stops it.
const (
	stopping = "stopping"
	awake    = "awake"
)

// A stumbler is a store that stops its own process just before some writes are
// sent, when all is decided: the moment that a fencing token is for.
type stumbler struct {
	guard.Store
	rng *rand.Rand
}

// Put implements guard.Store.
func (s stumbler) Put(ctx context.Context, key string, req guard.PutRequest) (guard.PutResult, error) {
	if s.rng.IntN(20) == 0 {
		fmt.Println(stopping)
		if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
			return guard.PutResult{}, fmt.Errorf("%w: %w", guard.ErrInvalid, err)
		}
		fmt.Println(awake)
	}
	return s.Store.Put(ctx, key, req)
}

// fight acquires the lease and writes, again and again, until it is killed. It
// writes on when the lease is lost, as a holder does that has not noticed yet:
// nothing but the tokens keeps it from doing harm.
func fight(text string) error {
	var a arena
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		return err
	}
	log, err := os.OpenFile(a.Log, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	ctx := context.Background()
	store, leases, err := a.open(ctx)
	if err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(a.Seed, 0))
	g := guard.New(stumbler{store, rng}, nil)
	for {
		lease, err := issuer.Acquire(ctx, leases, scope, issuer.LeaseOptions{Owner: a.Name, TTL: ttl, Wait: time.Hour, Claimed: g.Claimed})
		if err != nil {
			return err
		}
		if err := hold(ctx, g, lease, rng, log); err != nil && !errors.Is(err, guard.ErrStale) {
			return fmt.Errorf("with %s: %w", lease.Token(), err)
		}
		if err := lease.Release(ctx); err != nil {
			return err
		}
	}
}

// hold writes for a while and reports each write that was made before it does
// anything else.
func hold(ctx context.Context, g *guard.Guard, lease *issuer.Lease, rng *rand.Rand, log *os.File) error {
	// Most don't claim the scope: its fence refuses older owners as well, and would
	// hide an object that lets them through.
	session, err := g.ResumeSession(ctx, lease.Token(), &guard.SessionOptions{NoClaim: rng.IntN(4) > 0})
	if err != nil {
		return err
	}
	for range 1 + rng.IntN(40) {
		key := "k" + strconv.Itoa(rng.IntN(keys))
		res, err := session.Put(ctx, key, guard.Bytes([]byte(lease.Token().String())), &guard.PutOptions{SSE: "aws:kms"})
		if errors.Is(err, guard.ErrOutcomeUnknown) {
			return nil // it may be there or not: nobody was told that it is
		}
		stale := errors.Is(err, guard.ErrStale)
		if err != nil && !stale {
			return err
		}
		line, lerr := json.Marshal(report{key, res.Record.Number, res.Record.Sequence, res.Record.WriteID.String(), res.VersionID, stale})
		if lerr == nil {
			_, lerr = log.Write(append(line, '\n'))
		}
		if err := errors.Join(err, lerr, log.Sync()); err != nil {
			return err
		}
	}
	return nil
}

// Eight processes fight over one lease, and write the same few keys while they
// hold it, or believe to. They are stopped for longer than the lease lasts, in the
// middle of a write, too, woken up again, and killed. In all versions of the keys no
// number goes down, and every write that was told to have been made is there.
func TestLeaseFight(t *testing.T) {
	m, d := serverstest.SharedMinIO(t), serverstest.SharedDynalite(t)
	// Dynalite ends when a client is killed while it sends. Requests that are
	// delayed reach it whole or not at all.
	p, err := faultproxy.New(d.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	p.Add(faultproxy.Rule{Times: faultproxy.Forever, Fault: faultproxy.Fault{Kind: faultproxy.Delay, Delay: time.Millisecond}})
	seed := *fightSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d: -lease.seed %d -lease.fight %v", seed, seed, *fightFor)
	a := arena{
		MinIO: serverstest.At(m, m.URL), Dynalite: serverstest.At(d, p.URL()),
		Bucket: serverstest.Name(t), Table: serverstest.Name(t),
	}
	makeArena(t, &a)
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), *fightFor)
	defer cancel()
	var all tally
	var wg sync.WaitGroup
	for i := range fighters {
		r := ring{t: t, arena: a, dir: dir, number: i, rng: rand.New(rand.NewPCG(seed, uint64(i))), all: &all}
		wg.Go(func() {
			for ctx.Err() == nil && !t.Failed() {
				r.round(ctx)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.Logf("the servers printed:\n%s\n%s", m.Output(), d.Output())
	}
	reports := readReports(t, dir)
	made := slices.DeleteFunc(slices.Clone(reports), func(r report) bool { return r.Stale })
	t.Logf("%d writes made and %d refused as stale, by %d processes; stopped %d times, killed %d times",
		len(made), len(reports)-len(made), all.begun, all.stopped, all.killed)
	check(t, &a, made)
}

// makeArena makes a bucket that keeps versions, and the scope's counter.
func makeArena(t *testing.T, a *arena) {
	t.Helper()
	c := serverstest.S3Client(a.MinIO)
	if _, err := c.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &a.Bucket}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.PutBucketVersioning(t.Context(), &s3.PutBucketVersioningInput{
		Bucket: &a.Bucket, VersioningConfiguration: &types.VersioningConfiguration{Status: types.BucketVersioningStatusEnabled},
	}); err != nil {
		t.Fatal(err)
	}
	iss, _, err := issuer.InitDynamoDB(t.Context(), serverstest.DynamoDBClient(a.Dynalite), a.Table)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := iss.CreateScope(t.Context(), scope); err != nil {
		t.Fatal(err)
	}
}

// A tally counts what was done to all fighters.
type tally struct {
	mu                     sync.Mutex
	begun, stopped, killed int
}

func (a *tally) add(n *int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	*n++
}

// A ring is one fighter's place, in which another takes over from a killed one.
type ring struct {
	t      *testing.T
	arena  arena
	dir    string
	number int
	rng    *rand.Rand
	all    *tally
	rounds int
}

// round starts a fighter, stops it now and then, and kills it.
func (r *ring) round(ctx context.Context) {
	t := r.t
	a := r.arena
	a.Name = fmt.Sprintf("fighter-%d-%d", r.number, r.rounds)
	a.Log, a.Seed = filepath.Join(r.dir, a.Name), r.rng.Uint64()
	r.rounds++
	text, err := json.Marshal(a)
	if err != nil {
		t.Error(err)
		return
	}
	exe, err := os.Executable()
	if err != nil {
		t.Error(err)
		return
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), arenaVariable+"="+string(text))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Error(err)
		return
	}
	if err := cmd.Start(); err != nil {
		t.Error(err)
		return
	}
	r.all.add(&r.all.begun)
	says := make(chan string, 1) // closed when it has ended
	go func() {
		defer close(says)
		for s := bufio.NewScanner(out); s.Scan(); {
			says <- s.Text()
		}
	}()
	r.watch(ctx, cmd.Process, says)
	_ = cmd.Process.Kill() // or it has ended by itself, which its status tells
	for range says {
	}
	err = cmd.Wait()
	if s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || s.Signal() != syscall.SIGKILL {
		t.Errorf("%s ended by itself: %v\n%s", a.Name, err, &stderr)
	}
}

// watch stops the process now and then, for longer than its lease lasts or not,
// until it shall be killed or has ended by itself.
func (r *ring) watch(ctx context.Context, p *os.Process, says <-chan string) {
	for {
		stumbled := false
		select {
		case <-ctx.Done():
			return
		case _, ok := <-says:
			if !ok {
				return
			}
			stumbled = true
		case <-time.After(time.Duration(r.rng.Int64N(int64(3 * ttl)))):
			if r.rng.IntN(8) == 0 {
				r.all.add(&r.all.killed)
				return
			}
			if p.Signal(syscall.SIGSTOP) != nil {
				return
			}
		}
		r.all.add(&r.all.stopped)
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(r.rng.Int64N(int64(5 * ttl / 2)))):
		}
		if r.rng.IntN(4) == 0 {
			r.all.add(&r.all.killed)
			return
		}
		if p.Signal(syscall.SIGCONT) != nil {
			return
		}
		for stumbled { // it may not have stopped yet when it was woken up
			select {
			case s, ok := <-says:
				if !ok {
					return
				}
				stumbled = s != awake
			case <-time.After(50 * time.Millisecond):
				if p.Signal(syscall.SIGCONT) != nil {
					return
				}
			}
		}
	}
}

// readReports reads what all fighters were told. The last line of one that was
// killed may be cut.
func readReports(t *testing.T, dir string) (all []report) {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range logs {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		for in := bufio.NewReader(f); ; {
			line, err := in.ReadBytes('\n')
			if err == io.EOF {
				break
			}
			var r report
			if err = errors.Join(err, json.Unmarshal(line, &r)); err != nil {
				t.Fatalf("%s: %v: %s", name, err, line)
			}
			all = append(all, r)
		}
		f.Close()
	}
	return all
}

// check looks at all versions: the audit finds nothing, and what was reported is
// there.
func check(t *testing.T, a *arena, made []report) {
	t.Helper()
	store, iss, err := a.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sum, err := audit.Run(t.Context(), store, &audit.Options{
		Counter: iss.Peek, Fence: guard.New(store, nil).Claimed,
	}, func(f audit.Finding) error {
		if f.Severity == audit.Violation {
			t.Error(f)
		}
		return nil
	})
	if err != nil || !sum.WithVersions {
		t.Fatalf("audit: %+v, %v", sum, err)
	}
	there := make(map[report]bool)
	owners := make(map[int64]bool)
	for l, err := range store.List(t.Context(), guard.ListOptions{Prefix: "k", Versions: true}) {
		if err != nil {
			t.Fatal(err)
		}
		obj, err := store.Head(t.Context(), l.Key, guard.HeadOptions{VersionID: l.ID})
		if err != nil {
			t.Fatal(err)
		}
		rec, err := guard.ParseRecord(obj.Metadata[guard.RecordKey])
		if err != nil {
			t.Errorf("%s, version %s: %v", l.Key, l.ID, err)
			continue
		}
		there[report{Key: l.Key, Number: rec.Number, Sequence: rec.Sequence, WriteID: rec.WriteID.String(), VersionID: l.ID}] = true
		owners[rec.Number] = true
	}
	lost := slices.DeleteFunc(slices.Clone(made), func(r report) bool { return there[r] })
	for _, r := range lost {
		t.Errorf("lost: %+v", r)
	}
	t.Logf("%d versions by %d owners, %d writes lost", len(there), len(owners), len(lost))
	if len(made) == 0 || len(owners) < 2 {
		t.Error("nobody took over from anybody: nothing was shown")
	}
}
