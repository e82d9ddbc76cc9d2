package localstack

import (
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/s3fence/s3fence/guard"
)

func BenchmarkPut4KiB(b *testing.B) {
	body := guard.Bytes(make([]byte, 4<<10))
	b.Run("create", func(b *testing.B) {
		s := open(b, b.TempDir(), nil).Store("bucket")
		n := 0
		for b.Loop() {
			n++
			if _, err := s.Put(b.Context(), strconv.Itoa(n), guard.PutRequest{Condition: guard.IfAbsent(), Body: body}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("overwrite", func(b *testing.B) {
		s := open(b, b.TempDir(), nil).Store("bucket")
		c := guard.IfAbsent()
		for b.Loop() {
			res, err := s.Put(b.Context(), "key", guard.PutRequest{Condition: c, Body: body})
			if err != nil {
				b.Fatal(err)
			}
			c = guard.IfMatch(res.ETag)
		}
	})
	b.Run("create 16 at once", func(b *testing.B) {
		s := open(b, b.TempDir(), nil).Store("bucket")
		var n atomic.Int64
		b.SetParallelism(16)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := s.Put(b.Context(), strconv.FormatInt(n.Add(1), 10), guard.PutRequest{Condition: guard.IfAbsent(), Body: body}); err != nil {
					b.Error(err)
				}
			}
		})
	})
}

func BenchmarkIssue(b *testing.B) {
	l := open(b, b.TempDir(), nil)
	for b.Loop() {
		mustIssue(b, l, "scope")
	}
}

func BenchmarkHead(b *testing.B) {
	s := open(b, b.TempDir(), nil).Store("bucket")
	mustPut(b, s, "key", guard.IfAbsent(), "body")
	for b.Loop() {
		if _, err := s.Head(b.Context(), "key", guard.HeadOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}
