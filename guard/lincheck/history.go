// Package lincheck checks that guarded writes to one key behave as one fenced
// register, whatever goes wrong on the way: a [Workload] lets many clients
// write and read, the [History] keeps what each was told and when, and
// [History.Check] looks for one order of all of them that the register allows.
//
// The register's state is a fence record and a content. A put that succeeded
// became the state, over nothing or over a lower fencing number. One that was
// refused saw the very state that it names and changed nothing. One whose
// outcome is unknown may become the state at any time from its start on, or
// never. A read returns the state.
package lincheck

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/s3fence/s3fence/guard"
)

// An Op is one call of one client and what it was told.
type Op struct {
	Client int
	// Call and Return order the ops among each other; they are no times.
	Call, Return int64
	// Kind is put, get or stat.
	Kind string
	Err  error

	// Of a put: the record that it carried, its content, what it came to and
	// over what.
	Offered  guard.Record
	Content  string // of a get, too
	Outcome  guard.Outcome
	Previous *guard.Record

	// Of a read.
	Found  bool
	Record *guard.Record
}

// A History is what clients were told. Its methods are safe for concurrent use.
type History struct {
	// LosesRecords says that the store under test may drop metadata: a read
	// without a record then only has to have the right content.
	LosesRecords bool
	// HidesAnswers says that something on the way may send a request twice and
	// pass on the second answer only. A 412 may then be the answer to a write
	// that was applied: a writer that was told stale, or that did not get to
	// look again, can't know.
	HidesAnswers bool

	mu    sync.Mutex
	ops   []*Op
	clock int64
}

// Ops returns the ops that have ended, in the order of their calls.
func (h *History) Ops() []*Op {
	h.mu.Lock()
	defer h.mu.Unlock()
	ops := slices.DeleteFunc(slices.Clone(h.ops), func(o *Op) bool { return o.Return == 0 })
	slices.SortFunc(ops, func(a, b *Op) int { return cmp.Compare(a.Call, b.Call) })
	return ops
}

// record runs one op and keeps it.
func (h *History) record(client int, kind string, run func(*Op)) *Op {
	op := &Op{Client: client, Kind: kind}
	h.mu.Lock()
	h.clock++
	op.Call = h.clock
	h.ops = append(h.ops, op)
	h.mu.Unlock()
	run(op)
	h.mu.Lock()
	h.clock++
	op.Return = h.clock
	h.mu.Unlock()
	return op
}

// The ways in which a call takes part in the history.
type effect string

const (
	wrote effect = "wrote" // it became the state
	was   effect = "was"   // it had become the state already, or did so now
	saw   effect = "saw"   // the state was what it names, and stays
	maybe effect = "maybe" // it became the state now, or never
	read  effect = "read"  // the state was what it returned, and stays
)

// A step is one effect of an op, as porcupine gets it: the input is the step,
// and there is no output.
type step struct {
	effect effect
	op     *Op
	held   guard.Record
	reason guard.Reason
}

// steps says what an op's answer means; none when it says that nothing
// happened and nothing was learned. forever is that maybe has no end.
func (h *History) steps(o *Op) (steps []step, forever bool) {
	switch {
	case o.Kind != "put":
		if o.Err == nil {
			steps = append(steps, step{effect: read, op: o})
		}
		return steps, false
	case o.Err == nil && o.Outcome == guard.AlreadyApplied:
		return []step{{effect: was, op: o}}, false
	case o.Err == nil:
		return []step{{effect: wrote, op: o}}, false
	}
	var r *guard.Refusal
	refused := errors.As(o.Err, &r)
	if h.HidesAnswers && (!refused || r.Reason == guard.ErrStale) || refused && (r.MayHaveApplied || r.Reason == guard.ErrOutcomeUnknown) {
		steps = append(steps, step{effect: maybe, op: o})
	}
	if !refused {
		return steps, h.HidesAnswers
	}
	if r.Reason == guard.ErrOutcomeUnknown {
		return steps, true
	}
	if r.Held != nil {
		steps = append(steps, step{effect: saw, op: o, held: *r.Held, reason: r.Reason})
	}
	return steps, false
}

// A state of the register.
type state struct {
	exists  bool
	record  guard.Record
	content string
}

// next is the register: whether s allows the step, and the state after it.
func (h *History) next(s state, st step) (bool, state) {
	o := st.op
	mine := state{true, o.Offered, o.Content}
	order := o.Offered.Fence().Compare(s.record.Fence())
	higher := !s.exists || order > 0
	switch st.effect {
	case wrote:
		ok := higher && s.exists == (o.Outcome == guard.Replaced) && (o.Previous == nil || *o.Previous == s.record)
		return ok, mine
	case was:
		return higher || s == mine, mine
	case maybe:
		// Never having become the state is the same as becoming it after
		// something higher. There is always such a place: right after what a
		// stale writer saw, or the end of all, up to which an op whose outcome
		// is unknown goes on.
		if higher {
			return true, mine
		}
		return true, s
	case saw:
		ok := s.exists && s.record == st.held
		switch st.reason {
		case guard.ErrStale:
			ok = ok && order < 0
		case guard.ErrReplayed:
			ok = ok && order == 0 && s != mine
		default: // exists, repeatable ETag
			ok = ok && order > 0
		}
		return ok, s
	case read:
		ok := s.exists == o.Found
		if o.Found && o.Kind == "get" {
			ok = ok && s.content == o.Content
		}
		if o.Record != nil || o.Found && !h.LosesRecords {
			ok = ok && o.Record != nil && *o.Record == s.record
		}
		return ok, s
	}
	panic("unknown effect " + st.effect)
}

func (h *History) model() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return state{} },
		Step: func(s, in, _ any) (bool, any) {
			ok, after := h.next(s.(state), in.(step))
			return ok, after
		},
		DescribeOperation: func(in, _ any) string { return in.(step).String() },
		DescribeState:     func(s any) string { return s.(state).String() },
	}
}

func (s state) String() string {
	if !s.exists {
		return "absent"
	}
	return fmt.Sprintf("%s %q", short(s.record), s.content)
}

// short names a record: its fence and the beginning of its write id.
func short(r guard.Record) string { return fmt.Sprintf("%s/%.6s", r.Fence(), r.WriteID) }

func (st step) String() string { return string(st.effect) + ": " + st.op.String() }

// String tells the op and its answer in one line.
func (o *Op) String() string {
	switch {
	case o.Kind == "put" && o.Err == nil:
		over := ""
		if o.Previous != nil {
			over = " over " + short(*o.Previous)
		}
		return fmt.Sprintf("put %s %q: %s%s", short(o.Offered), o.Content, o.Outcome, over)
	case o.Kind == "put":
		return fmt.Sprintf("put %s %q: %v", short(o.Offered), o.Content, o.Err)
	case o.Err != nil:
		return fmt.Sprintf("%s: %v", o.Kind, o.Err)
	case !o.Found:
		return o.Kind + ": absent"
	case o.Record == nil:
		return fmt.Sprintf("%s: %q without a record", o.Kind, o.Content)
	case o.Kind == "stat":
		return "stat: " + short(*o.Record)
	}
	return fmt.Sprintf("get: %s %q", short(*o.Record), o.Content)
}

// Written is one write that became the object, as the store tells it: a nil
// Record when it carries none that parses.
type Written struct {
	Record  *guard.Record
	Content string
}

// A Violation is a history that the register does not allow.
type Violation struct {
	// Calls says that what clients were told can't be brought in any order;
	// Objects what is wrong with what became the object, if anything.
	Calls   bool
	Objects error
	History *History
	Written []Written

	model porcupine.Model
}

// Error tells what is wrong and the whole history.
func (v *Violation) Error() string {
	var s string
	if v.Calls {
		s = "no order of these calls is one that a fenced register allows\n"
	}
	if v.Objects != nil {
		s += v.Objects.Error() + "\n"
	}
	s += "what clients were told (call-return, client):\n"
	for _, o := range v.History.Ops() {
		s += fmt.Sprintf("  %3d-%-3d  %d  %s\n", o.Call, o.Return, o.Client, o)
	}
	s += "what became the object:\n"
	for _, w := range v.Written {
		if w.Record == nil {
			s += fmt.Sprintf("  without a record: %q\n", w.Content)
		} else {
			s += fmt.Sprintf("  %s %q\n", short(*w.Record), w.Content)
		}
	}
	return s
}

// checkTime bounds one check. Histories of a Workload's size take milliseconds;
// one that takes this long is taken for a violation, to be looked at.
const checkTime = time.Minute

// Check looks for a violation, twice: porcupine looks at what clients were
// told, and what became the object is held against it with no search at all.
// written is every write that became the object, oldest first; nil when the
// store can't tell, and porcupine then looks alone.
func (h *History) Check(written []Written) *Violation {
	model, ops := h.model(), h.porcupine()
	v := &Violation{History: h, Written: written, model: model}
	if written != nil {
		v.Objects = h.checkWritten(written)
	}
	v.Calls = porcupine.CheckOperationsTimeout(model, ops, checkTime) != porcupine.Ok
	if !v.Calls && v.Objects == nil {
		return nil
	}
	return v
}

// porcupine returns the history as porcupine takes it. A step that goes on
// after its op, or beside another of it, gets a line of its own in the picture.
func (h *History) porcupine() []porcupine.Operation {
	var ops []porcupine.Operation
	line := 0
	for _, o := range h.Ops() {
		line = max(line, o.Client+1)
	}
	for _, o := range h.Ops() {
		steps, forever := h.steps(o)
		for _, st := range steps {
			p := porcupine.Operation{ClientId: o.Client, Input: st, Call: o.Call, Return: o.Return}
			if st.effect == maybe {
				p.ClientId = line
				line++
				if forever {
					p.Return = math.MaxInt64 - 1
				}
			}
			ops = append(ops, p)
		}
	}
	return ops
}

// checkWritten holds what became the object against what clients were told.
// What each write promises for itself is seen here without any search.
func (h *History) checkWritten(written []Written) error {
	var last guard.Fence
	applied := make(map[state]bool)
	for _, w := range written {
		if w.Record == nil {
			if h.LosesRecords {
				return nil // nothing more can be said
			}
			return fmt.Errorf("%q was written without a record", w.Content)
		}
		if w.Record.Fence().Compare(last) <= 0 {
			return fmt.Errorf("%s was written after %s", w.Record.Fence(), last)
		}
		last = w.Record.Fence()
		applied[state{true, *w.Record, w.Content}] = true
	}
	// The same write may be run twice, so that one run's denial says nothing
	// about the other's.
	mayHave := make(map[state]bool)
	ops := h.Ops()
	for _, o := range ops {
		mine := state{true, o.Offered, o.Content}
		steps, _ := h.steps(o)
		for _, st := range steps {
			mayHave[mine] = mayHave[mine] || st.effect == wrote || st.effect == was || st.effect == maybe
		}
		if o.Kind == "put" && o.Err == nil && !applied[mine] {
			return fmt.Errorf("%s never became the object: %s", short(o.Offered), o)
		}
	}
	for _, o := range ops {
		mine := state{true, o.Offered, o.Content}
		if o.Kind == "put" && o.Err != nil && !mayHave[mine] && applied[mine] {
			return fmt.Errorf("%s became the object, though nobody was told that it may have: %s", short(o.Offered), o)
		}
	}
	return nil
}

// Report fails the test with a violation: it tells the history, writes
// porcupine's picture of it to a temporary file, and says where that is and
// how to run it again.
func (v *Violation) Report(t testing.TB, seed uint64, command string) {
	t.Helper()
	t.Errorf("seed %d: %v%s\nrun it again: %s", seed, v, v.draw(seed), command)
}

func (v *Violation) draw(seed uint64) string {
	f, err := os.CreateTemp("", fmt.Sprintf("lincheck-seed-%d-*.html", seed))
	if err != nil {
		return "no picture: " + err.Error()
	}
	_, info := porcupine.CheckOperationsVerbose(v.model, v.History.porcupine(), checkTime)
	err = errors.Join(porcupine.Visualize(v.model, info, f), f.Close())
	if err != nil {
		return "no picture: " + err.Error()
	}
	return "picture: " + f.Name()
}
