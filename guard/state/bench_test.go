//go:build unix

package state

import (
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/s3fence/s3fence/guard"
)

const benchKeys = 10_000

// cpu is the processor time that this process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// benchRounds runs round over all keys in each iteration and reports the cost
// of one, the file's included.
func benchRounds(b *testing.B, f *File, round func(n int, key string)) {
	keys := make([]string, benchKeys)
	for i := range keys {
		keys[i] = fmt.Sprintf("backup/2026/dir-%03d/file-%05d.parquet", i/100, i)
	}
	b.ReportAllocs()
	begun, n := cpu(), 0
	for b.Loop() {
		n++
		for _, key := range keys {
			round(n, key)
		}
		if err := f.Flush(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64((cpu()-begun).Nanoseconds())/float64(n*benchKeys), "cpu-ns/key")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n*benchKeys), "ns/key")
}

func BenchmarkMemory(b *testing.B) {
	f := open(b, filepath.Join(b.TempDir(), "state"))
	m := memoryOf(b, f, "bucket")
	benchRounds(b, f, func(n int, key string) {
		r, err := m.Recall(key)
		if err == nil && r.Record.Number != int64(n-1) {
			b.Fatalf("%s: %v, in round %d", key, r, n)
		}
		if err == nil {
			err = m.Remember(key, guard.Remembered{Record: record(int64(n), 1), ETag: `"9b2cf535f27731c974343645a3985328"`})
		}
		if err != nil {
			b.Fatal(err)
		}
	})
}

func BenchmarkJournal(b *testing.B) {
	for _, ahead := range []bool{true, false} {
		b.Run(fmt.Sprintf("ahead=%v", ahead), func(b *testing.B) {
			f := open(b, filepath.Join(b.TempDir(), "state"))
			j := begin(b, f, Run{Op: "put"})
			defer j.Close()
			benchRounds(b, f, func(n int, key string) {
				s, err := j.Plan(key, 4096, time.Unix(int64(n), 0))
				if err == nil && s.Sequence != int64(n) {
					b.Fatalf("%s: sequence %d, in round %d", key, s.Sequence, n)
				}
				if err == nil && !ahead {
					err = s.Begin()
				}
				if err == nil {
					err = s.Done(guard.Created)
				}
				if err != nil {
					b.Fatal(err)
				}
			})
		})
	}
}
