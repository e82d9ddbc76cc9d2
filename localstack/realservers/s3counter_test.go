package realservers

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/issuer"
	"github.com/s3fence/s3fence/issuer/issuertest"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
)

// The S3 counter holds what every issuer must, kill -9 of the store included.
func TestS3CounterConformance(t *testing.T) {
	for sdk, open := range sdks {
		t.Run(sdk, func(t *testing.T) {
			m := serverstest.MinIO(t, nil) // one of its own: it is killed
			bucket := newBucket(t, m)
			issuertest.Run(t, issuertest.Harness{
				Open:    func(t *testing.T) issuertest.Issuer { return issuer.NewS3(open(t, m, bucket), "team") },
				Callers: 64, Each: 50,
				Crash: func(t *testing.T) {
					if err := errors.Join(m.Kill(), m.Restart(t.Context())); err != nil {
						t.Fatal(err)
					}
				},
			})
		})
	}
}

// What goes wrong between an SDK and MinIO while numbers are taken: none comes
// twice, and none is lost for a reason that the counter could have found out.
func TestS3CounterFaults(t *testing.T) {
	const key = ".s3fence/counters/s.json"
	for _, tt := range []struct {
		name, faults  string
		first, second int64 // 0 when an error is right
		err           error
		puts, applied int // for the first
	}{
		{"nothing", "", 1, 2, nil, 1, 1},
		{"answer lost", "PUT key=" + key + " drop-answer", 1, 2, nil, 1, 1},
		{"answer lost, then 500 to the look", "PUT key=" + key + " drop-answer\nGET key=" + key + " nth=2 status=500", 1, 2, nil, 1, 1},
		{"answer cut", "PUT key=" + key + " truncate-answer", 1, 2, nil, 1, 1},
		{"request lost", "PUT key=" + key + " reset", 1, 2, nil, 2, 1},
		{"503 once", "PUT key=" + key + " status=503", 1, 2, nil, 2, 1},
		{"409 once", "PUT key=" + key + " status=409", 1, 2, nil, 2, 1},
		{"412 that nobody caused", "PUT key=" + key + " status=412", 1, 2, nil, 2, 1},
		{"409 for ever", "PUT key=" + key + " times=all status=409", 0, 0, guard.ErrConflict, 10, 0},
		{"412 for ever", "PUT key=" + key + " times=all status=412", 0, 0, guard.ErrPreconditionFailed, 11, 0},
		{"501", "PUT key=" + key + " status=501", 0, 1, guard.ErrStoreUnsafe, 1, 0},
		{"403", "PUT key=" + key + " status=403", 0, 1, guard.ErrDenied, 1, 0},
		{"403 to the look", "GET key=" + key + " status=403", 0, 1, guard.ErrDenied, 0, 0},
		{"500 to every look", "GET key=" + key + " times=all status=500", 0, 0, nil, 0, 0},
	} {
		for sdk, open := range sdks {
			t.Run(tt.name+"/"+sdk, func(t *testing.T) {
				m := serverstest.SharedMinIO(t)
				bucket := newBucket(t, m)
				if _, _, err := issuer.NewS3(open(t, m, bucket), "").CreateScope(t.Context(), "s"); err != nil {
					t.Fatal(err)
				}
				through, proxy := behind(t, m, tt.faults)
				iss := issuer.NewS3(open(t, through, bucket), "")
				tok, err := iss.Issue(t.Context(), "s")
				if tok.Number() != tt.first || (err == nil) != (tt.first > 0) || tt.err != nil && !errors.Is(err, tt.err) {
					t.Errorf("got %s, %v; want %d, %v", tok, err, tt.first, tt.err)
				}
				if sent, applied := count(proxy, http.MethodPut); sent != tt.puts || applied != tt.applied {
					t.Errorf("%d PUTs sent and %d applied, want %d and %d", sent, applied, tt.puts, tt.applied)
				}
				if tok, err := iss.Issue(t.Context(), "s"); tok.Number() != tt.second || (err == nil) != (tt.second > 0) {
					t.Errorf("then %s, %v; want %d", tok, err, tt.second)
				}
			})
		}
	}
}

// Many processes take numbers while answers and requests are lost at random.
func TestS3CounterUnderFaults(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	for sdk, open := range sdks {
		t.Run(sdk, func(t *testing.T) {
			bucket := newBucket(t, m)
			if _, _, err := issuer.NewS3(open(t, m, bucket), "").CreateScope(t.Context(), "s"); err != nil {
				t.Fatal(err)
			}
			const key = "key=.s3fence/counters/s.json"
			through, _ := behind(t, m, fmt.Sprintf("PUT %[1]s nth=3 times=5 drop-answer\nPUT %[1]s nth=12 times=5 reset\nPUT %[1]s nth=20 times=5 duplicate-later\nPUT %[1]s nth=26 times=5 truncate-answer", key))
			var mu sync.Mutex
			seen := make(map[int64]bool)
			var wg sync.WaitGroup
			for range 4 {
				iss := issuer.NewS3(open(t, through, bucket), "")
				for range 2 {
					wg.Go(func() {
						last := int64(0)
						for range 20 {
							tok, err := iss.Issue(t.Context(), "s")
							if err != nil {
								t.Error(err)
								return
							}
							mu.Lock()
							if seen[tok.Number()] || tok.Number() <= last {
								t.Errorf("%d came twice, or after %d", tok.Number(), last)
							}
							seen[tok.Number()] = true
							mu.Unlock()
							last = tok.Number()
						}
					})
				}
			}
			wg.Wait()
			if len(seen) != 160 {
				t.Errorf("%d numbers, want 160", len(seen))
			}
		})
	}
}

// A counter that was deleted around the guard in a bucket that keeps versions.
func TestS3CounterDeleted(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	c := serverstest.S3Client(m)
	for sdk, open := range sdks {
		t.Run(sdk, func(t *testing.T) {
			bucket, key := newBucket(t, m), ".s3fence/counters/s.json"
			if _, err := c.PutBucketVersioning(t.Context(), &s3.PutBucketVersioningInput{
				Bucket: &bucket, VersioningConfiguration: &types.VersioningConfiguration{Status: types.BucketVersioningStatusEnabled},
			}); err != nil {
				t.Fatal(err)
			}
			old := issuer.NewS3(open(t, m, bucket), "")
			id, _, err := old.CreateScope(t.Context(), "s")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := old.Issue(t.Context(), "s"); err != nil {
				t.Fatal(err)
			}
			if _, err := c.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: &bucket, Key: &key}); err != nil {
				t.Fatal(err)
			}
			for _, iss := range []*issuer.S3{old, issuer.NewS3(open(t, m, bucket), "")} {
				if tok, err := iss.Issue(t.Context(), "s"); !errors.Is(err, guard.ErrIssuerRefuses) {
					t.Errorf("issue: %s, %v", tok, err)
				}
				if _, _, err := iss.CreateScope(t.Context(), "s"); !errors.Is(err, guard.ErrIssuerRefuses) {
					t.Errorf("create: %v", err)
				}
			}
			if r, err := old.Reconcile(t.Context(), "s", issuer.ReconcileOptions{AtLeast: 1, Issuer: id}); err != nil || !r.Changed || r.Before != nil {
				t.Errorf("reconcile: %+v, %v", r, err)
			}
			if tok, err := old.Issue(t.Context(), "s"); err != nil || tok.Number() != 2 || tok.Issuer() != id {
				t.Errorf("then: %s, %v", tok, err)
			}
		})
	}
}
