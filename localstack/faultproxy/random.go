package faultproxy

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
)

// A Weight is how often a fault comes, against the sum of all weights. The
// zero Fault is none.
type Weight struct {
	Weight int
	Fault  Fault
}

// A Chooser gives faults at random, and the same ones again for the same seed.
type Chooser struct {
	seed    uint64
	weights []Weight
	total   int
}

// Random returns a chooser. Holds can't be chosen, as nobody would release them.
func Random(seed uint64, weights ...Weight) (*Chooser, error) {
	c := &Chooser{seed: seed, weights: weights}
	for _, w := range weights {
		if w.Weight < 0 || w.Fault.Kind == Hold || w.Fault.Kind == HoldAnswer {
			return nil, fmt.Errorf("faultproxy: can't choose %d times %s", w.Weight, w.Fault)
		}
		if w.Fault != (Fault{}) {
			if err := w.Fault.check(); err != nil {
				return nil, fmt.Errorf("faultproxy: fault %s: %w", w.Fault, err)
			}
		}
		c.total += w.Weight
	}
	if c.total == 0 {
		return nil, fmt.Errorf("faultproxy: no weights")
	}
	return c, nil
}

// Choose returns the fault of the nth request (from 1) to one operation. It
// depends on nothing else: how requests to other keys are interleaved, which
// differs from run to run, doesn't change it.
func (c *Chooser) Choose(operation string, n int) Fault {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s", n, operation)
	k := rand.New(rand.NewPCG(c.seed, h.Sum64())).IntN(c.total)
	for _, w := range c.weights {
		if k -= w.Weight; k < 0 {
			return w.Fault
		}
	}
	panic("unreachable: k is below the sum of the weights")
}

// String says how to make this chooser again.
func (c *Chooser) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d:", c.seed)
	for _, w := range c.weights {
		name := w.Fault.String()
		if name == "" {
			name = "none"
		}
		fmt.Fprintf(&b, " %d %s", w.Weight, name)
	}
	return b.String()
}
