package lincheck_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/lincheck"
)

// writerWith makes naive writers with the mistakes that plant puts into them.
func writerWith(plant func(*naive)) func(guard.Store, func(int) time.Duration) lincheck.Writer {
	return func(s guard.Store, backoff func(int) time.Duration) lincheck.Writer {
		n := naive{store: s, backoff: backoff}
		plant(&n)
		return n
	}
}

// unique is the ETag rule kept by hand, as the naive writer has none.
func unique(_ *rand.Rand, o *guard.PutOptions) { o.SSE = "aws:kms" }

// plain gives every object the MD5 of its bytes as ETag.
func plain(_ *rand.Rand, o *guard.PutOptions) { o.SSE = "AES256" }

// drops loses the record of some objects on their way in or out.
var drops = map[fault]int{noRecord: 4}

// With no bug planted these have no violation, so that what is found below is
// the bug's, not that of the store or writer it is planted in.
func TestNothingPlanted(t *testing.T) {
	for name, sub := range map[string]subject{
		"naive writer":              {writer: writerWith(func(*naive) {}), options: unique},
		"naive writer, lossy store": {writer: writerWith(func(*naive) {}), options: unique, puts: drops, heads: drops, losesRecords: true},
		"guard, lossy store":        {puts: drops, heads: drops, losesRecords: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, seed := range seeds() {
				res := simulate(t, seed, sub)
				if v := res.history.Check(res.written); v != nil {
					v.Report(t, seed, command(t, seed))
				}
			}
		})
	}
}

// Each bug must be found. How many seeds find it is told with -v.
func TestPlantedBugs(t *testing.T) {
	for name, sub := range map[string]subject{
		"guard, ETag rule off": {options: func(_ *rand.Rand, o *guard.PutOptions) {
			o.SSE, o.AcceptRepeatableETag = "AES256", true
		}},
		"ETag rule off":                   {writer: writerWith(func(*naive) {}), options: plain},
		"412 taken as failure":            {writer: writerWith(func(n *naive) { n.failOn412 = true }), options: unique},
		"unknown reported as failed":      {writer: writerWith(func(n *naive) { n.failOnUnknown = true }), options: unique},
		"compare >=":                      {writer: writerWith(func(n *naive) { n.orEqual = true }), options: unique},
		"metadata lost and taken as zero": {writer: writerWith(func(n *naive) { n.lostIsZero = true }), options: unique, puts: drops, heads: drops, losesRecords: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls, objects, first uint64
			all := seeds()
			for _, seed := range all {
				res := simulate(t, seed, sub)
				v := res.history.Check(res.written)
				if v == nil {
					continue
				}
				if v.Objects != nil {
					objects++
				}
				if !v.Calls {
					continue
				}
				if calls++; first == 0 {
					first = seed
				}
				if *seedFlag != 0 {
					t.Log(v)
				}
			}
			t.Logf("%s: of %d seeds, porcupine finds it in %d (the first is %d), and a look at what became the object in %d",
				name, len(all), calls, first, objects)
			if calls == 0 && len(all) >= enough {
				t.Error("the bug was not found")
			}
		})
	}
}

// A proxy that sends a PUT again when its first answer is late, as nginx can,
// passes on the 412 of the second though the first was applied. The guard then
// recognises its write, unless a newer one has come over it meanwhile, or it
// can't look: what it then says (stale, or that it gave up) does not say that
// the write may have applied. All else that it promises holds.
func TestHiddenRetry(t *testing.T) {
	t.Parallel()
	told := 0
	for _, seed := range seeds() {
		sub := subject{puts: map[fault]int{hidden: 6}, hidesAnswers: true}
		res := simulate(t, seed, sub)
		if v := res.history.Check(res.written); v != nil {
			v.Report(t, seed, command(t, seed))
		}
		res.history.HidesAnswers = false
		if res.history.Check(res.written) != nil {
			told++
		}
	}
	t.Logf("in %d of %d seeds a writer was not told that its write may have applied", told, len(seeds()))
}
