package realservers

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/storetest"
	"github.com/s3fence/s3fence/localstack/faultproxy"
	"github.com/s3fence/s3fence/localstack/servers"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
)

// behind returns s as it is reached through a proxy with these faults. The
// test fails if one of them was never met.
func behind(t *testing.T, s *servers.Server, faults string) (*servers.Server, *faultproxy.Proxy) {
	t.Helper()
	p, err := faultproxy.New(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if unused := p.Unused(); len(unused) > 0 {
			t.Errorf("faults that nothing met:\n%s", unused)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := p.AddText(faults); err != nil {
		t.Fatal(err)
	}
	return serverstest.At(s, p.URL()), p
}

// impatient does not wait between attempts.
var impatient = &guard.Options{Backoff: func(int) time.Duration { return time.Millisecond }}

// count returns how many requests of a method there were, and how many of
// them the server applied.
func count(p *faultproxy.Proxy, method string) (sent, applied int) {
	for _, r := range p.Requests() {
		if r.Method == method {
			sent++
			if r.Upstream == http.StatusOK {
				applied++
			}
		}
	}
	return sent, applied
}

// about counts the requests about one key.
func about(p *faultproxy.Proxy, key string) (n int) {
	for _, r := range p.Requests() {
		if r.Key == key {
			n++
		}
	}
	return n
}

// What goes wrong between an SDK and MinIO, and what must come of it. Each
// runs with both SDKs, on a key that is new and on one that is there.
func TestFaults(t *testing.T) {
	for _, tt := range []struct {
		name, faults  string
		outcome       guard.Outcome // "" when an error is right
		err           error
		puts, applied int
	}{
		{"case 1: answer lost", `PUT key=k drop-answer`, guard.AlreadyApplied, nil, 1, 1},
		{"case 1: answer lost, then 500 to the look", "PUT key=k drop-answer\nHEAD key=k nth=2 status=500", guard.AlreadyApplied, nil, 1, 1},
		{"answer cut", `PUT key=k truncate-answer`, guard.AlreadyApplied, nil, 1, 1},
		{"request lost", `PUT key=k reset`, "written", nil, 2, 1},
		{"case 12: 500 twice", `PUT key=k times=2 status=500`, "written", nil, 3, 1},
		{"503 once", `PUT key=k status=503`, "written", nil, 2, 1},
		{"case 7: 409 once", `PUT key=k status=409`, "written", nil, 2, 1},
		{"case 7: 409 for ever", `PUT key=k times=all status=409`, "", guard.ErrConflict, 10, 0},
		{"case 11: 304 once", `PUT key=k status=304`, "written", nil, 2, 1},
		{"case 9: 500 to every look", `HEAD key=k times=all status=500`, "", nil, 0, 0},
		{"case 9: 403 to the look", `HEAD key=k times=all status=403`, "", guard.ErrDenied, 0, 0},
		{"case 14: 501", `PUT key=k status=501`, "", guard.ErrStoreUnsafe, 1, 0},
		{"500 for ever", `PUT key=k times=all status=500`, "", guard.ErrOutcomeUnknown, 10, 0},
		{"case 6: 200 with an error", `PUT key=k times=all error-in-200`, "", guard.ErrOutcomeUnknown, 10, 0},
	} {
		for sdk, open := range sdks {
			for _, there := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/there=%v", tt.name, sdk, there), func(t *testing.T) {
					m := serverstest.SharedMinIO(t)
					bucket := newBucket(t, m)
					direct := guard.New(sdks["aws"](t, m, bucket), nil)
					toks := take(t, local(t), "faults", 2)
					want, before := guard.Created, "(absent)"
					if there {
						if _, err := direct.Put(t.Context(), toks[0], "k", guard.Bytes([]byte("old")), kms); err != nil {
							t.Fatal(err)
						}
						want, before = guard.Replaced, "old"
					}
					through, proxy := behind(t, m, tt.faults)
					res, err := guard.New(open(t, through, bucket), impatient).Put(t.Context(), toks[1], "k", guard.Bytes([]byte("new")), kms)
					switch {
					case tt.outcome == "" && (err == nil || tt.err != nil && !errors.Is(err, tt.err)):
						t.Errorf("got %+v, %v; want %v", res, err, tt.err)
					case tt.outcome == "written" && (err != nil || res.Outcome != want):
						t.Errorf("got %q, %v; want %q", res.Outcome, err, want)
					case tt.outcome == guard.AlreadyApplied && (err != nil || res.Outcome != guard.AlreadyApplied):
						t.Errorf("got %q, %v", res.Outcome, err)
					}
					if sent, applied := count(proxy, http.MethodPut); sent != tt.puts || applied != tt.applied {
						t.Errorf("%d PUTs sent and %d applied, want %d and %d", sent, applied, tt.puts, tt.applied)
					}
					if got := about(proxy, "k"); got != res.Requests {
						t.Errorf("%d requests on the wire, the result says %d", got, res.Requests)
					}
					if tt.applied > 0 {
						before = "new"
					}
					info, err := direct.Stat(t.Context(), "k")
					if before == "(absent)" {
						if !errors.Is(err, guard.ErrNotFound) {
							t.Errorf("the object is there: %v", err)
						}
						return
					}
					if got := string(read(t, direct, "k")); got != before {
						t.Errorf("the object holds %q, want %q", got, before)
					}
					if before == "new" && (err != nil || *info.Record != res.Record) {
						t.Errorf("the object's record is %v, ours %v, %v", info.Record, res.Record, err)
					}
				})
			}
		}
	}
}

// The exact conditions on the wire, with both SDKs.
func TestConditionsOnTheWire(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	for sdk, open := range sdks {
		t.Run(sdk, func(t *testing.T) {
			bucket := newBucket(t, m)
			through, proxy := behind(t, m, "")
			toks := take(t, local(t), "wire", 2)
			var etag string
			for i, tok := range toks {
				res, err := guard.New(open(t, through, bucket), nil).Put(t.Context(), tok, "k", guard.Bytes([]byte("x")), kms)
				if err != nil {
					t.Fatal(err)
				}
				var put faultproxy.Request
				for _, r := range proxy.Requests() {
					if r.Method == http.MethodPut {
						put = r
					}
				}
				wantNone, wantMatch := "*", ""
				if i > 0 {
					wantNone, wantMatch = "", `"`+etag+`"`
				}
				h := put.Header
				if h.Get("If-None-Match") != wantNone || h.Get("If-Match") != wantMatch {
					t.Errorf("%s: If-None-Match %q, If-Match %q; want %q, %q", tok, h.Get("If-None-Match"), h.Get("If-Match"), wantNone, wantMatch)
				}
				if got := h.Get("X-Amz-Meta-Fence-Token"); got != res.Record.String() {
					t.Errorf("fence record %q, want %q", got, res.Record)
				}
				etag = res.ETag
			}
		})
	}
}

// Case 3: the metadata is stripped on the way and the answer is lost. moto, as
// it does not check that what was signed has come.
func TestStrippedMetadata(t *testing.T) {
	m := serverstest.SharedMoto(t)
	for sdk, open := range sdks {
		t.Run(sdk, func(t *testing.T) {
			bucket := newBucket(t, m)
			through, _ := behind(t, m, "PUT key=k strip-headers=x-amz-meta-*\nPUT key=k drop-answer")
			toks := take(t, local(t), "strip", 1)
			_, err := guard.New(open(t, through, bucket), impatient).Put(t.Context(), toks[0], "k", guard.Bytes([]byte("x")), nil)
			if guard.ReasonOf(err) != guard.ErrOutcomeUnknown || !errors.Is(err, guard.ErrUnfenced) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// A write is held on the wire, a newer one lands, the late one arrives: it is
// refused by the object, and its writer is told.
func TestLateArrival(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	bucket := newBucket(t, m)
	toks := take(t, local(t), "late", 3)
	direct := guard.New(sdks["aws"](t, m, bucket), nil)
	if _, err := direct.Put(t.Context(), toks[0], "k", guard.Bytes([]byte("first")), kms); err != nil {
		t.Fatal(err)
	}
	through, proxy := behind(t, m, "")
	held := proxy.Hold(faultproxy.Rule{Method: http.MethodPut, Key: "k", Fault: faultproxy.Fault{Kind: faultproxy.Hold}})
	end := make(chan error, 1)
	go func() {
		_, err := guard.New(sdks["aws"](t, through, bucket), nil).Put(t.Context(), toks[1], "k", guard.Bytes([]byte("late")), kms)
		end <- err
	}()
	<-held.Reached()
	if _, err := direct.Put(t.Context(), toks[2], "k", guard.Bytes([]byte("newer")), kms); err != nil {
		t.Fatal(err)
	}
	held.Release()
	if err := <-end; guard.ReasonOf(err) != guard.ErrStale {
		t.Errorf("the late writer was told %v", err)
	}
	if got := string(read(t, direct, "k")); got != "newer" {
		t.Errorf("the object holds %q", got)
	}
}

// Case 8: the key is deleted around the guard between its look and its PUT:
// decided again, and created under a condition.
func TestDeletedBetweenLookAndPut(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	for sdk, open := range sdks {
		t.Run(sdk, func(t *testing.T) {
			bucket := newBucket(t, m)
			toks := take(t, local(t), "deleted", 2)
			store := open(t, m, bucket)
			if _, err := guard.New(store, nil).Put(t.Context(), toks[0], "k", guard.Bytes([]byte("old")), kms); err != nil {
				t.Fatal(err)
			}
			paused := storetest.Pause(store)
			type end struct {
				res guard.Result
				err error
			}
			ended := make(chan end, 1)
			go func() {
				res, err := guard.New(paused, nil).Put(t.Context(), toks[1], "k", guard.Bytes([]byte("new")), kms)
				ended <- end{res, err}
			}()
			<-paused.Reached()
			key := "k"
			if _, err := serverstest.S3Client(m).DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: &bucket, Key: &key}); err != nil {
				t.Fatal(err)
			}
			paused.Release()
			if e := <-ended; e.err != nil || e.res.Outcome != guard.Created || e.res.Requests != 4 {
				t.Errorf("%+v, %v", e.res, e.err)
			}
		})
	}
}

// Case 10: the first connection is refused: nothing was sent, and it is tried
// again without a word.
func TestFirstConnectionRefused(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	for sdk, open := range sdks {
		t.Run(sdk, func(t *testing.T) {
			var lc net.ListenConfig
			l, err := lc.Listen(t.Context(), "tcp4", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			address := l.Addr().String()
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			bucket := newBucket(t, m)
			waits := 0
			opts := &guard.Options{Backoff: func(n int) time.Duration {
				if waits++; n == 2 { // it opens only now
					forward(t, address, strings.TrimPrefix(m.URL, "http://"))
				}
				return 0
			}, RootStore: sdks["aws"](t, m, bucket)}
			g := guard.New(open(t, serverstest.At(m, "http://"+address), bucket), opts)
			res, err := g.Put(t.Context(), take(t, local(t), "refused", 1)[0], "k", guard.Bytes([]byte("x")), nil)
			if err != nil || res.Outcome != guard.Created || waits != 2 {
				t.Errorf("%+v, %v after %d waits", res, err, waits)
			}
		})
	}
}

// forward passes connections on until the test ends.
func forward(t *testing.T, from, to string) {
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp4", from)
	if err != nil {
		t.Error(err)
		return
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			var d net.Dialer
			out, err := d.DialContext(t.Context(), "tcp4", to)
			if err != nil {
				_ = in.Close()
				return
			}
			for _, c := range [][2]net.Conn{{in, out}, {out, in}} {
				go func() {
					_, _ = io.Copy(c[0], c[1])
					_ = c[0].Close()
				}()
			}
		}
	}()
}

// Case 22: the answer to the counter's update is lost. A number is skipped,
// none repeats.
func TestLostAnswerOfTheCounter(t *testing.T) {
	for name, start := range dynamoServers {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			table := newTable(t, s)
			through, _ := behind(t, s, "POST op=UpdateItem nth=2 drop-answer")
			d := openIssuer(t, through, table)
			if _, _, err := d.CreateScope(t.Context(), "s"); err != nil {
				t.Fatal(err)
			}
			for _, want := range []int64{1, 3, 4} {
				tok, err := d.Issue(t.Context(), "s")
				if err != nil || tok.Number() != want {
					t.Fatalf("got %s, %v; want number %d", tok, err, want)
				}
			}
		})
	}
}

// The answer to making the counter is lost: the client sends it again, and it
// is recognised as ours.
func TestLostAnswerOfInit(t *testing.T) {
	for name, start := range dynamoServers {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			table := newTable(t, s)
			through, _ := behind(t, s, "POST op=PutItem drop-answer")
			id, created, err := openIssuer(t, through, table).CreateScope(t.Context(), "s")
			if err != nil || !created {
				t.Fatalf("created %v, %v", created, err)
			}
			tok, err := openIssuer(t, s, table).Issue(t.Context(), "s")
			if err != nil || tok.Issuer() != id {
				t.Errorf("%s, %v; made with id %s", tok, err, id)
			}
		})
	}
}
