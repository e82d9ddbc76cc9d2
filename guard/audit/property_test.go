package audit_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/audit"
	"github.com/s3fence/s3fence/guard/internal/mems3"
)

// A world is a bucket that several owners write through the guard.
type world struct {
	m      *mems3.Store
	issuer guard.IssuerID // of the one counter
	number int64
	tokens []guard.Token // of this issuer, the newest last
}

func (w *world) counter(context.Context, string) (guard.IssuerID, int64, error) {
	return w.issuer, w.number, nil
}

func (w *world) issue(t *rapid.T) {
	w.number += rapid.Int64Range(1, 5).Draw(t, "gap")
	tok, err := guard.NewToken(w.issuer, scope, w.number)
	if err != nil {
		t.Fatal(err)
	}
	w.tokens = append(w.tokens, tok)
}

// step makes one call, which may well be refused.
func (w *world) step(t *rapid.T, ctx context.Context) {
	g := guard.New(w.m, &guard.Options{Backoff: func(int) time.Duration { return 0 }, FenceMaxAge: guard.EveryWrite})
	key := rapid.SampledFrom([]string{"a", "a/b", "c"}).Draw(t, "key")
	tok := w.tokens[max(0, len(w.tokens)-rapid.IntRange(1, 3).Draw(t, "age"))]
	seq := rapid.Int64Range(1, 3).Draw(t, "sequence")
	var err error
	switch op := rapid.SampledFrom([]string{"issue", "put", "put", "put", "delete", "adopt", "claim", "another issuer"}).Draw(t, "op"); op {
	case "issue":
		w.issue(t)
	case "put":
		_, err = g.Put(ctx, tok, key, guard.Bytes([]byte(op)), &guard.PutOptions{SSE: "aws:kms", Sequence: seq})
	case "delete":
		_, err = g.Delete(ctx, tok, key, &guard.DeleteOptions{SSE: "aws:kms", Sequence: seq, Absent: seq > 1})
	case "adopt":
		if w.m.Body(key) == "(absent)" && w.m.Bucket.Versioning == guard.VersioningOff {
			w.m.Overwrite(key, "theirs", nil)
		}
		_, err = g.Adopt(ctx, tok, key, nil)
		if err != nil { // it is nobody's: take it away again
			w.m.Remove(key)
		}
	case "claim":
		if seq == 1 && w.m.Bucket.Versioning == guard.VersioningOn {
			_, err = g.Claim(ctx, tok, nil)
		}
	case "another issuer":
		if claim, err := g.Claimed(ctx, scope); claim != nil || err != nil {
			return // the scope is the old one's
		}
		old := w.issuer
		w.issuer[7]++
		w.number, w.tokens = 0, nil
		w.issue(t)
		for _, key := range []string{"a", "a/b", "c"} {
			if _, err := guard.New(w.m, nil).Adopt(ctx, w.tokens[0], key, &guard.AdoptOptions{From: old, SSE: "aws:kms"}); err != nil && !errors.Is(err, guard.ErrNotFound) {
				t.Fatalf("adopt %s from %s: %v", key, old, err)
			}
		}
	}
	if err != nil && guard.ReasonOf(err) == "" && !errors.Is(err, guard.ErrNotFound) {
		t.Fatal(err)
	}
}

func audited(t *rapid.T, w *world) (audit.Summary, []audit.Finding) {
	var fs []audit.Finding
	g := guard.New(w.m, nil)
	sum, err := audit.Run(context.Background(), w.m, &audit.Options{Counter: w.counter, Fence: g.Claimed}, func(f audit.Finding) error {
		fs = append(fs, f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return sum, fs
}

// What is written through the guard is never called a violation. What goes
// around it then is, as what it is, and as nothing else.
func TestHistories(t *testing.T) {
	planted := map[audit.Kind]int{}
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		w := &world{m: bucket(rapid.SampledFrom([]guard.Versioning{guard.VersioningOn, guard.VersioningOff}).Draw(t, "versioning")), issuer: issuer}
		w.m.ListsMetadata = rapid.Bool().Draw(t, "lists metadata")
		w.issue(t)
		for range rapid.IntRange(0, 25).Draw(t, "steps") {
			w.step(t, ctx)
		}
		if sum, fs := audited(t, w); sum.Violations != 0 {
			t.Fatalf("found %v", fs)
		}

		// A key of its own is never without a version.
		const key = "b"
		g := guard.New(w.m, &guard.Options{FenceMaxAge: guard.EveryWrite})
		w.issue(t)
		w.issue(t)
		for _, tok := range w.tokens[len(w.tokens)-2:] {
			if _, err := g.Put(ctx, tok, key, guard.Bytes(nil), &guard.PutOptions{SSE: "aws:kms", Sequence: 3}); err != nil {
				t.Fatal(err)
			}
		}
		r := guard.Record{
			Issuer: w.issuer, Scope: scope, Number: w.number, Sequence: 3,
			WriteID: guard.WriteID(bytes.Repeat([]byte{7}, 16)), State: guard.Live,
		}
		kind := rapid.SampledFrom([]audit.Kind{
			audit.WentDown, audit.SameNumber, audit.AboveCounter, audit.Unfenced, audit.CorruptRecord, audit.FenceLost, audit.MixedIssuer,
		}).Draw(t, "planted")
		versions := w.m.Bucket.Versioning == guard.VersioningOn
		seen := versions
		switch kind {
		case audit.WentDown:
			if r.Sequence--; rapid.Bool().Draw(t, "number") {
				r.Number, r.Sequence = r.Number-1, 9
			}
			plant(w.m, key, r)
		case audit.SameNumber:
			plant(w.m, key, r)
		case audit.AboveCounter:
			r.Number++
			plant(w.m, key, r)
			seen = true
		case audit.Unfenced:
			w.m.Overwrite(key, "x", nil)
			seen = true
		case audit.CorruptRecord:
			text := []byte(r.String())
			text[rapid.IntRange(0, len(text)-1).Draw(t, "byte")] ^= 1
			w.m.Overwrite(key, "x", map[string]string{guard.RecordKey: string(text)})
			seen = true
		case audit.FenceLost:
			w.m.Remove(key)
		case audit.MixedIssuer:
			other := r
			other.Issuer, other.Number = guard.IssuerID{0: 0xee}, 1
			plant(w.m, key, other)
			r.Sequence++
			plant(w.m, key, r)
		}
		planted[kind]++
		sum, fs := audited(t, w)
		var bad []audit.Finding
		for _, f := range fs {
			if f.Severity == audit.Violation {
				bad = append(bad, f)
			}
		}
		switch {
		case !seen && sum.Violations == 0:
		case !seen || len(bad) != 1 || bad[0].Kind != kind || bad[0].Key != key:
			t.Fatalf("planted %s, found %v", kind, fs)
		}
	})
	if len(planted) != 7 {
		t.Errorf("not everything was planted: %v", planted)
	}
	t.Log(fmt.Sprint(planted))
}
