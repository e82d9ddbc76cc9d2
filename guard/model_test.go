package guard

// An exhaustive model of the protocol. Writers run the real engine of put.go
// (and so the real decide and settle) against a store and a network that do
// everything that they may do, in every order. docs/model.md says what is
// modelled and what is not.

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var modelLong = flag.Bool("model.long", false, "explore the model of the protocol with more faults: some minutes and some GB")

// A modelWrite is one call of the guard: a write of one key under one fence.
type modelWrite struct {
	key              int // 0 the object, 1 the scope fence
	number, sequence int64
	id               byte // of the write; two calls with one id are one write, run again
	content          byte // 1 to 4; 0 is bytes that carry the write id, as the guard makes them
	deletes          bool // the record's state is d: a tombstone
	kms              bool // asks for SSE-KMS: a unique ETag
	accept           bool // gives up the ETag rule
	createOnly       bool
	expectAbsent     bool
	readsFence       bool // reads the scope fence before each PUT
	onlyUnsettled    bool // runs only if the call before it, of the same process, was left unknown
}

// A modelConfig is one small world to explore.
type modelConfig struct {
	writes []modelWrite
	// procs are the processes: each makes its writes in turn, through one Guard.
	procs [][]int
	// uniqueETags is the store that gives every write its own ETag.
	uniqueETags bool
	// How often, in all: an answer is lost, a request arrives once more, the
	// store answers 409, 403 or (to HEAD) 500, a context ends.
	lost, copies, errors, cancels uint8
	// repeats is a proxy that sends a request again by itself, and passes on
	// whichever answer comes last.
	repeats bool
	// claim is the index of the write that claims the scope, plus 1.
	claim int
	bug   modelBug
}

// A modelBug is a mistake that the model must find.
type modelBug int

const (
	noBug           modelBug = iota
	bugEqualPasses           // a fence equal to the one held is taken for a higher one
	bug412Failed             // 412 is a failure, without a look at the object
	bug412Success            // 412 is success, without a look at the object
	bugFreshID               // each attempt of one write has a write id of its own
	bugUnknownFails          // an unknown outcome is reported as a failure
	bugTornHead              // HEAD may give the ETag of the object and the record of the one before
	bugFenceStale            // a higher scope fence after a lost answer is reported as stale, may have been applied
)

// What one process asks the world, and what it is told.

type modelOpKind byte

const (
	opDone modelOpKind = iota
	opHead
	opFence
	opPut
)

// A modelRequest is a PUT, as it is under way.
type modelRequest struct {
	call, attempt uint8
	etag          uint8 // If-Match, or 0 for If-None-Match: *
}

type modelOp struct {
	kind modelOpKind
	call uint8
	req  modelRequest // of opPut
}

type modelAnswerKind byte

const (
	ansSeen modelAnswerKind = iota
	ansOK
	ansPrecondition
	ansConflict
	ansDenied
	ansLost
	ansFailed
	ansCanceled
)

type modelAnswer struct {
	kind          modelAnswerKind
	call, attempt uint8 // of ansSeen: whose object it is, plus 1; 0 is none
	etag          uint8
}

type modelToldKind byte

const (
	toldSkipped    modelToldKind = iota
	toldSuccess                  // it was the object
	toldNo                       // this call changed nothing and never will
	toldSuperseded               // stale, may have been applied: it will not be any more
	toldUnknown
)

type modelTold struct {
	kind modelToldKind
	text string
}

// A modelNode is where a process stands: a function of the answers it got.
type modelNode struct {
	answers []modelAnswer
	op      modelOp
	first   bool        // op is the first of its call
	told    []modelTold // of its calls so far
}

// A modelProcess is the tree of everything that one process can do.
type modelProcess struct {
	cfg   *modelConfig
	calls []int
	nodes []modelNode
	next  map[modelStep]uint16
	same  map[string]uint16
	split bool // keep nodes with equal futures apart
}

type modelStep struct {
	node   uint16
	answer modelAnswer
}

func newModelProcess(cfg *modelConfig, calls []int, split bool) *modelProcess {
	p := &modelProcess{cfg: cfg, calls: calls, next: map[modelStep]uint16{}, same: map[string]uint16{}, split: split}
	p.add(nil)
	return p
}

// step is where the process at node goes on after the answer.
func (p *modelProcess) step(node uint16, a modelAnswer) uint16 {
	s := modelStep{node, a}
	n, ok := p.next[s]
	if !ok {
		n = p.add(append(slices.Clip(p.nodes[node].answers), a))
		p.next[s] = n
	}
	return n
}

func (p *modelProcess) add(answers []modelAnswer) uint16 {
	n, signature := p.run(answers)
	if p.split {
		signature = fmt.Sprint(answers)
	}
	if id, ok := p.same[signature]; ok {
		return id
	}
	id := uint16(len(p.nodes))
	if int(id) != len(p.nodes) {
		panic("too many nodes")
	}
	p.nodes, p.same[signature] = append(p.nodes, n), id
	return id
}

// modelAsks stops the engine where the script has no more answers.
type modelAsks modelOp

// modelEnds stops the engine where a planted bug ends the call.
type modelEnds modelTold

// run plays the process from its start through the engine, with these answers.
// The signature holds all that what follows can depend on.
func (p *modelProcess) run(answers []modelAnswer) (modelNode, string) {
	store := &modelStore{cfg: p.cfg, script: answers}
	store.g = New(store, &Options{MaxAttempts: 3, FenceMaxAge: EveryWrite, Backoff: func(int) time.Duration { return 0 }})
	n := modelNode{answers: answers}
	for i, call := range p.calls {
		told, ended := store.play(call, p.cfg.writes[call].onlyUnsettled && n.told[i-1].kind != toldUnknown)
		if !ended {
			n.op, n.first = store.asked, store.asks == 1
			w := store.w
			var looked modelAnswer // what the write that follows goes by
			if n.op.kind == opFence {
				looked = store.looked
			}
			return n, fmt.Sprint(looked, n.op, n.first, n.told, w.lost != nil, w.failures, store.sent, store.answered, w.g.memory.(*processMemory).m)
		}
		n.told = append(n.told, told)
	}
	return n, fmt.Sprint(n.told)
}

// A modelStore plays the script to the engine.
type modelStore struct {
	Store
	cfg    *modelConfig
	script []modelAnswer
	g      *Guard
	asked  modelOp

	call     int
	asks     int
	w        *write
	cancel   context.CancelFunc
	attempt  uint8
	sent     modelRequest
	looked   modelAnswer // at the object, last
	answered modelAnswerKind
}

// play runs one call. It did not end if the script was too short.
func (s *modelStore) play(call int, skip bool) (told modelTold, ended bool) {
	if skip {
		return modelTold{toldSkipped, "not run"}, true
	}
	c := s.cfg.writes[call]
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s.call, s.asks, s.cancel, s.attempt, s.sent, s.answered = call, 0, cancel, 0, modelRequest{}, 0
	s.looked = modelAnswer{}
	o := PutOptions{Sequence: c.sequence, CreateOnly: c.createOnly, ExpectAbsent: c.expectAbsent, AcceptRepeatableETag: c.accept}
	if c.kms {
		o.SSE = "aws:kms"
	}
	res := Result{Record: s.cfg.record(call, 0)}
	s.w = &write{
		call: callOf(s.g), key: modelKey(c.key), body: Bytes([]byte{c.content}), opts: o, res: &res, sender: &upload{},
		own:      c.content == 0, // bytes that carry the write id
		internal: !c.readsFence,
	}
	if c.deletes {
		s.w.kind, s.w.evenAbsent = deleting, true
	}
	defer func() {
		switch r := recover().(type) {
		case nil:
		case modelAsks:
			s.asked = modelOp(r)
		case modelEnds:
			told, ended = modelTold(r), true
		default:
			panic(r)
		}
	}()
	if err := s.w.check(); err != nil {
		panic(err)
	}
	return s.told(s.w.run(ctx)), true
}

func callOf(g *Guard) call { return call{g: g} }

const modelScopeName = "s"

func modelKey(k int) string {
	if k == 1 {
		return ScopeFenceKey("", modelScopeName)
	}
	return "key" + strconv.Itoa(k)
}

// told is what the caller of the guard makes of err, by its documentation.
func (s *modelStore) told(err error) modelTold {
	var r *Refusal
	switch {
	case err == nil:
		return modelTold{toldSuccess, string(s.w.res.Outcome)}
	case !errors.As(err, &r):
		for _, known := range []error{ErrConflict, ErrDenied, ErrRejected, context.Canceled} {
			if errors.Is(err, known) {
				return modelTold{toldNo, "failed: " + known.Error()}
			}
		}
		return modelTold{toldNo, "failed: no answer"}
	case r.Reason == ErrOutcomeUnknown && s.cfg.bug == bugFenceStale && refusedByClaim(r.Err):
		return modelTold{toldSuperseded, "stale by the scope fence, may have been applied"}
	case r.Reason == ErrOutcomeUnknown && s.cfg.bug == bugUnknownFails:
		return modelTold{toldNo, "failed"}
	case r.Reason == ErrOutcomeUnknown:
		return modelTold{toldUnknown, r.Reason.Error()}
	case r.Claim != nil:
		return modelTold{toldNo, r.Reason.Error() + " of the scope"}
	case r.MayHaveApplied:
		return modelTold{toldSuperseded, r.Reason.Error() + ", may have been applied"}
	}
	return modelTold{toldNo, r.Reason.Error()}
}

func refusedByClaim(err error) bool {
	var r *Refusal
	return errors.As(err, &r) && r.Claim != nil
}

func (s *modelStore) ask(op modelOp) modelAnswer {
	s.asks++
	if len(s.script) == 0 {
		panic(modelAsks(op))
	}
	a := s.script[0]
	s.script = s.script[1:]
	return a
}

func (s *modelStore) URL(key string) string { return key }

func (s *modelStore) Settings(context.Context) (Settings, error) {
	return Settings{Versioning: VersioningOff, UniqueETags: s.cfg.uniqueETags}, nil
}

func (s *modelStore) Head(ctx context.Context, key string, _ HeadOptions) (Object, error) {
	op := modelOp{kind: opHead, call: uint8(s.call)}
	if key != s.w.key {
		op.kind = opFence
	}
	a := s.ask(op)
	if op.kind == opHead {
		s.looked = a
	}
	switch {
	case a.kind == ansCanceled:
		s.cancel()
		return Object{}, ctx.Err()
	case a.kind == ansFailed:
		return Object{}, errors.New("500")
	case a.call == 0:
		return Object{}, ErrNotFound
	}
	r := s.cfg.record(int(a.call)-1, a.attempt)
	if mine := s.w.res.Record; s.cfg.bug == bugEqualPasses && r.Fence() == mine.Fence() && r.WriteID != mine.WriteID {
		r.Number-- // to decide, that is the same as <= instead of <
	}
	return Object{ETag: modelETag(a.etag), Headers: Headers{Metadata: map[string]string{RecordKey: r.String()}}}, nil
}

func (s *modelStore) Put(ctx context.Context, _ string, req PutRequest) (PutResult, error) {
	// What is not read is not sent, and the engine goes by that.
	if _, err := io.Copy(io.Discard, req.Body.Reader()); err != nil {
		return PutResult{}, err
	}
	s.sent = modelRequest{call: uint8(s.call), attempt: s.attempt}
	if !req.Condition.Absent() {
		s.sent.etag = modelETagID(req.Condition.ETag())
	}
	a := s.ask(modelOp{kind: opPut, call: uint8(s.call), req: s.sent})
	s.answered = a.kind
	if s.cfg.bug == bugFreshID && a.kind != ansOK {
		s.attempt++
		s.w.res.Record = s.cfg.record(s.call, s.attempt)
	}
	switch a.kind {
	case ansOK:
		return PutResult{ETag: modelETag(a.etag)}, nil
	case ansPrecondition:
		switch s.cfg.bug {
		case bug412Failed:
			panic(modelEnds{toldNo, "failed: 412"})
		case bug412Success:
			panic(modelEnds{toldSuccess, "created"})
		}
		return PutResult{}, ErrPreconditionFailed
	case ansConflict:
		return PutResult{}, ErrConflict
	case ansDenied:
		return PutResult{}, ErrDenied
	case ansCanceled:
		s.cancel()
		return PutResult{}, ctx.Err()
	}
	return PutResult{}, errors.New("no answer")
}

func modelETag(id uint8) string { return `"e` + strconv.Itoa(int(id)) + `"` }

func modelETagID(s string) uint8 {
	n, err := strconv.ParseUint(strings.Trim(s, `"e`), 10, 8)
	if err != nil {
		panic(err)
	}
	return uint8(n)
}

// ETags: 1 to 4 are the MD5 of those contents, 5 and up of the bytes that
// carry a write id, and from firstUnique on they are of one landing only.
const firstUnique = 16

func (cfg *modelConfig) etagOf(call int, landing uint8) uint8 {
	c := cfg.writes[call]
	switch {
	case cfg.uniqueETags || c.kms:
		return firstUnique + uint8(call)*4 + landing
	case c.content == 0:
		return 5 + uint8(call)
	}
	return c.content
}

func (cfg *modelConfig) record(call int, attempt uint8) Record {
	c := cfg.writes[call]
	r := Record{
		Issuer: IssuerID{1}, Scope: modelScopeName, Number: c.number, Sequence: c.sequence,
		WriteID: WriteID{c.id, attempt}, State: Live,
	}
	if c.deletes {
		r.State = Deleted
	}
	return r
}

// The world.

const (
	modelMaxWrites = 6
	modelMaxProcs  = 4
	modelMaxLate   = 4
)

type modelState struct {
	obj    [2]modelObject
	before modelObject // what obj[0] was before, for bugTornHead only
	landed [modelMaxWrites]uint8
	procs  [modelMaxProcs]modelProcState
	left   [4]uint8 // faults: lost, copies, errors, cancels
	begun  uint8    // bit c: call c began after the claim was told to be made
}

type modelObject struct {
	call, attempt, etag uint8 // call plus 1
}

type modelProcState struct {
	node uint16
	late [modelMaxLate]uint8 // requests under way that nobody waits for, sorted, 0 for none
}

// The ways in which a world can go wrong.
const (
	badOrder      = "a lower or equal fence became the object"
	badSuccess    = "told success, and never became the object"
	badRefused    = "told that nothing changed, and it did"
	badSuperseded = "told that it was superseded, and it landed after that"
	badReader     = "told success, and a reader sees something older"
	badClaim      = "it began after the claim of a newer owner, and landed"
	// claimLimit is no mistake but the documented limit of the scope fence.
	claimLimit = "paused between reading the scope fence and its PUT, it landed after the claim of a newer owner"
)

// A modelExplorer goes through every state of one world, breadth first, so
// that the first way it finds to a violation is a shortest one.
type modelExplorer struct {
	cfg      *modelConfig
	procs    []*modelProcess
	owner    []int // the process of each call,
	place    []int // and its place among that process's calls
	requests []modelRequest

	states  []modelState
	parents []uint32
	table   []uint64 // open addressing: half of the hash, and the index plus 1
	seed    maphash.Seed

	steps int
	found map[string]string // violation -> shortest story
	depth map[string]int    // and its length
	told  map[string]int    // what callers were told -> in how many steps

	trace bool // describe each step
	at    int
	emit  func(next modelState, bad, what string)
}

// modelProcesses are shared by worlds that differ in nothing that a process can see.
type modelProcesses map[string]*modelProcess

func (c modelProcesses) get(cfg *modelConfig, calls []int) *modelProcess {
	seen := *cfg
	seen.writes = slices.Clone(cfg.writes)
	for i := range seen.writes {
		seen.writes[i].content = min(1, seen.writes[i].content)
	}
	key := fmt.Sprint(calls, seen.writes, seen.uniqueETags, seen.bug)
	p, ok := c[key]
	if !ok {
		p = newModelProcess(&seen, calls, false)
		c[key] = p
	}
	return p
}

func newModelExplorer(cfg modelConfig, get func(*modelConfig, []int) *modelProcess) *modelExplorer {
	if cfg.procs == nil {
		for i := range cfg.writes {
			cfg.procs = append(cfg.procs, []int{i})
		}
	}
	cfg.writes = slices.Clone(cfg.writes)
	for i := range cfg.writes {
		w := &cfg.writes[i]
		w.sequence = cmp.Or(w.sequence, 1)
		w.id = cmp.Or(w.id, byte(i+1))
	}
	if len(cfg.writes) > modelMaxWrites || len(cfg.procs) > modelMaxProcs {
		panic("too large a world")
	}
	x := &modelExplorer{
		cfg: &cfg, owner: make([]int, len(cfg.writes)), place: make([]int, len(cfg.writes)),
		table: make([]uint64, 1<<12), seed: maphash.MakeSeed(),
		found: map[string]string{}, depth: map[string]int{}, told: map[string]int{},
	}
	for i, calls := range cfg.procs {
		x.procs = append(x.procs, get(&cfg, calls))
		for j, c := range calls {
			x.owner[c], x.place[c] = i, j
		}
	}
	return x
}

// explore returns when every state was seen, or the first violation if first is set.
func (x *modelExplorer) explore(first bool) {
	depths := []uint16{0}
	x.emit = func(next modelState, bad, what string) {
		x.steps++
		if bad != "" && x.found[bad] == "" {
			x.depth[bad] = int(depths[x.at]) + 1
			x.found[bad] = "-" // found; told below, when the search is over for this state
			x.found[bad] = x.story(x.at, next, bad)
		}
		if bad == "" || bad == claimLimit {
			if x.add(next) {
				x.parents = append(x.parents, uint32(x.at))
				depths = append(depths, depths[x.at]+1)
			}
		}
	}
	x.add(modelState{left: [4]uint8{x.cfg.lost, x.cfg.copies, x.cfg.errors, x.cfg.cancels}})
	x.parents = append(x.parents, 0)
	for ; x.at < len(x.states); x.at++ {
		x.expand(x.states[x.at])
		if first && len(x.found) > 0 {
			return
		}
	}
}

// add reports whether s is new.
func (x *modelExplorer) add(s modelState) bool {
	if 4*len(x.states) > 3*len(x.table) {
		x.table = make([]uint64, 2*len(x.table))
		for i := range x.states {
			slot, tag := x.slot(&x.states[i])
			x.table[slot] = tag | uint64(i+1)
		}
	}
	slot, tag := x.slot(&s)
	if x.table[slot] != 0 {
		return false
	}
	x.states = append(x.states, s)
	x.table[slot] = tag | uint64(len(x.states))
	return true
}

// slot is where s stands in the table, or would.
func (x *modelExplorer) slot(s *modelState) (slot, tag uint64) {
	hash := maphash.Comparable(x.seed, *s)
	mask := uint64(len(x.table) - 1)
	slot, tag = hash&mask, hash&^(1<<32-1)
	for {
		e := x.table[slot]
		// The whole states are compared: no two are ever taken for one.
		if e == 0 || e&^(1<<32-1) == tag && x.states[uint32(e)-1] == *s {
			return slot, tag
		}
		slot = (slot + 1) & mask
	}
}

// expand emits everything that can happen next.
func (x *modelExplorer) expand(s modelState) {
	const lost, copies, errs, cancels = 0, 1, 2, 3
	use := func(s modelState, fault int) modelState { s.left[fault]--; return s }
	for p := range x.procs {
		op := x.procs[p].nodes[s.procs[p].node].op
		switch op.kind {
		case opHead:
			key := x.cfg.writes[op.call].key
			x.deliver(s, p, seen(s.obj[key]), "")
			if x.cfg.bug == bugTornHead && s.before.call != 0 && key == 0 {
				torn := seen(s.before)
				torn.etag = s.obj[0].etag
				x.deliver(s, p, torn, "")
			}
			if s.left[errs] > 0 {
				x.deliver(use(s, errs), p, modelAnswer{kind: ansFailed}, "")
			}
			if s.left[cancels] > 0 {
				x.deliver(use(s, cancels), p, modelAnswer{kind: ansCanceled}, "")
			}
		case opFence:
			x.deliver(s, p, seen(s.obj[1]), "")
		case opPut:
			after, ok, bad := x.land(s, op.req)
			answer := modelAnswer{kind: ansPrecondition}
			if ok {
				answer = modelAnswer{kind: ansOK, etag: after.obj[x.cfg.writes[op.call].key].etag}
			}
			x.deliver(after, p, answer, bad)
			if s.left[copies] > 0 {
				x.deliver(x.under(use(after, copies), p, op.req), p, answer, bad)
			}
			// What nobody waits for any more may still land, at any later
			// time or never: that is a lost request, a lost answer and a late
			// request in one.
			if s.left[lost] > 0 {
				x.deliver(x.under(use(s, lost), p, op.req), p, modelAnswer{kind: ansLost}, "")
			}
			if s.left[cancels] > 0 {
				x.deliver(x.under(use(s, cancels), p, op.req), p, modelAnswer{kind: ansCanceled}, "")
			}
			if s.left[errs] > 0 {
				x.deliver(use(s, errs), p, modelAnswer{kind: ansConflict}, "")
				x.deliver(use(s, errs), p, modelAnswer{kind: ansDenied}, "")
			}
			if x.cfg.repeats && s.left[copies] > 0 {
				x.next(x.under(use(s, copies), p, op.req), "", func() string {
					return "a proxy sends the request of " + x.name(int(op.call)) + " once more"
				})
			}
		}
		for i, id := range s.procs[p].late {
			if id == 0 || i > 0 && id == s.procs[p].late[i-1] {
				continue
			}
			req := x.requests[id-1]
			after, ok, bad := x.land(s, req)
			if !ok {
				continue // it changes nothing, and nobody hears of it
			}
			what := func() string {
				return "a late request of " + x.name(int(req.call)) + " arrives: " + x.landing(req, after)
			}
			if s.left[copies] > 0 {
				x.next(use(after, copies), bad, what)
			}
			late := &after.procs[p].late
			copy(late[i:], late[i+1:])
			late[modelMaxLate-1] = 0
			x.next(after, bad, what)
		}
	}
}

func seen(o modelObject) modelAnswer {
	return modelAnswer{kind: ansSeen, call: o.call, attempt: o.attempt, etag: o.etag}
}

// under adds a request that is under way with nobody waiting for it.
func (x *modelExplorer) under(s modelState, p int, req modelRequest) modelState {
	i := slices.Index(x.requests, req)
	if i < 0 {
		i = len(x.requests)
		x.requests = append(x.requests, req)
	}
	late := &s.procs[p].late
	if late[modelMaxLate-1] != 0 {
		panic("too many late requests")
	}
	late[modelMaxLate-1] = uint8(i + 1)
	slices.SortFunc(late[:], func(a, b uint8) int { return cmp.Compare(a-1, b-1) }) // 0 is last
	return s
}

// holds reports whether the store would take the request, and whether it could ever again.
func (x *modelExplorer) holds(s *modelState, req modelRequest) (now, ever bool) {
	o := s.obj[x.cfg.writes[req.call].key]
	if req.etag == 0 {
		return o.call == 0, o.call == 0
	}
	now = o.call != 0 && o.etag == req.etag
	return now, now || req.etag < firstUnique
}

// land is the store: the request becomes the object, if its condition holds.
func (x *modelExplorer) land(s modelState, req modelRequest) (after modelState, ok bool, bad string) {
	if ok, _ := x.holds(&s, req); !ok {
		return s, false, ""
	}
	me := &x.cfg.writes[req.call]
	for c, n := range s.landed[:len(x.cfg.writes)] {
		if w := &x.cfg.writes[c]; n > 0 && w.key == me.key && fenceOf(me).Compare(fenceOf(w)) <= 0 {
			bad = badOrder
		}
	}
	switch x.toldOf(&s, int(req.call)) {
	case toldNo:
		bad = cmp.Or(bad, badRefused)
	case toldSuperseded:
		bad = cmp.Or(bad, badSuperseded)
	}
	if c := x.cfg.claim - 1; c >= 0 && me.key == 0 && me.number < x.cfg.writes[c].number && x.toldOf(&s, c) == toldSuccess {
		if s.begun>>req.call&1 != 0 {
			bad = cmp.Or(bad, badClaim)
		} else {
			bad = cmp.Or(bad, claimLimit)
		}
	}
	if me.key == 0 && x.cfg.bug == bugTornHead {
		s.before = s.obj[0]
	}
	s.obj[me.key] = modelObject{req.call + 1, req.attempt, x.cfg.etagOf(int(req.call), s.landed[req.call])}
	s.landed[req.call]++
	return s, true, bad
}

func fenceOf(w *modelWrite) Fence { return Fence{w.number, w.sequence} }

// toldOf is what the caller of this call was told; toldSkipped is nothing so far.
func (x *modelExplorer) toldOf(s *modelState, call int) modelToldKind {
	p := x.owner[call]
	told := x.procs[p].nodes[s.procs[p].node].told
	if i := x.place[call]; i < len(told) {
		return told[i].kind
	}
	return toldSkipped
}

// deliver gives process p its answer, and checks what its callers are told then.
func (x *modelExplorer) deliver(s modelState, p int, a modelAnswer, bad string) {
	proc := x.procs[p]
	node := s.procs[p].node
	s.procs[p].node = proc.step(node, a)
	was, is := &proc.nodes[node], &proc.nodes[s.procs[p].node]
	for i := len(was.told); i < len(is.told); i++ {
		x.told[is.told[i].text]++
		bad = cmp.Or(bad, x.check(&s, proc.calls[i], is.told[i].kind))
	}
	if c := x.cfg.claim - 1; c >= 0 && was.first && x.toldOf(&s, c) == toldSuccess {
		s.begun |= 1 << was.op.call
	}
	x.next(s, bad, func() string {
		what := x.exchange(&s, was.op, a)
		for i := len(was.told); i < len(is.told); i++ {
			what += fmt.Sprintf("; %s is told: %s", x.name(proc.calls[i]), is.told[i].text)
		}
		return what
	})
}

// check compares what a caller is told with what happened to its write.
func (x *modelExplorer) check(s *modelState, call int, told modelToldKind) string {
	me := &x.cfg.writes[call]
	switch told {
	case toldNo:
		if s.landed[call] > 0 {
			return badRefused
		}
	case toldSuccess:
		var was bool
		for c, n := range s.landed[:len(x.cfg.writes)] {
			was = was || n > 0 && x.cfg.writes[c].id == me.id // it may have been run more than once
		}
		if !was {
			return badSuccess
		}
		// badOrder keeps this true afterwards.
		o := s.obj[me.key]
		if o.call == 0 || fenceOf(&x.cfg.writes[o.call-1]).Compare(fenceOf(me)) < 0 {
			return badReader
		}
	}
	return ""
}

// next emits a step to s, without the late requests that can't land any more.
func (x *modelExplorer) next(s modelState, bad string, what func() string) {
	for p := range x.procs {
		late := &s.procs[p].late
		n := 0
		for _, id := range late {
			if id == 0 {
				break
			}
			if _, ever := x.holds(&s, x.requests[id-1]); ever {
				late[n] = id
				n++
			}
		}
		clear(late[n:])
	}
	text := ""
	if x.trace {
		text = what()
	}
	x.emit(s, bad, text)
}

// The story: how it came to a state.

func (x *modelExplorer) story(at int, last modelState, bad string) string {
	emit := x.emit
	path := []modelState{last}
	for i := at; i != 0; i = int(x.parents[i]) {
		path = append(path, x.states[i])
	}
	from := x.states[0]
	slices.Reverse(path)
	var b strings.Builder
	x.trace = true
	for i, to := range path {
		line := ""
		x.emit = func(next modelState, how, what string) {
			if line == "" && next == to && (i < len(path)-1 || how == bad) {
				line = what
			}
		}
		x.expand(from)
		fmt.Fprintf(&b, "%3d. %s\n", i+1, line)
		from = to
	}
	x.trace, x.emit = false, emit
	fmt.Fprintf(&b, "     => %s\n", bad)
	return b.String()
}

func (x *modelExplorer) name(call int) string {
	w := &x.cfg.writes[call]
	name := "writer " + fenceOf(w).String()
	if w.key == 1 {
		name = "the claim of " + strconv.FormatInt(w.number, 10)
	}
	for c := range call {
		if x.cfg.writes[c].key == w.key && fenceOf(&x.cfg.writes[c]) == fenceOf(w) {
			name += " again"
		}
	}
	return name
}

func (x *modelExplorer) bytes(call int) string {
	switch w := &x.cfg.writes[call]; {
	case w.key == 1:
		return "a claim's bytes"
	case w.deletes:
		return "a tombstone"
	case w.content == 0:
		return "bytes with its write id"
	default:
		return "bytes " + string(rune('A'+w.content-1))
	}
}

func (x *modelExplorer) etag(id uint8) string {
	switch {
	case id < 5:
		return "md5(" + string(rune('A'+id-1)) + ")"
	case id < firstUnique:
		return "md5(" + x.bytes(int(id)-5) + " of " + x.name(int(id)-5) + ")"
	}
	return fmt.Sprintf("unique-%d", id-firstUnique)
}

func (x *modelExplorer) object(o modelObject) string {
	if o.call == 0 {
		return "nothing there"
	}
	c := int(o.call) - 1
	return fmt.Sprintf("fence %s, %s, ETag %s", fenceOf(&x.cfg.writes[c]), x.bytes(c), x.etag(o.etag))
}

func (x *modelExplorer) put(req modelRequest) string {
	if req.etag == 0 {
		return "PUT If-None-Match: *"
	}
	return "PUT If-Match: " + x.etag(req.etag)
}

func (x *modelExplorer) landing(req modelRequest, after modelState) string {
	return x.put(req) + " -> 200; now " + x.object(after.obj[x.cfg.writes[req.call].key])
}

// exchange describes what a process asked and was answered.
func (x *modelExplorer) exchange(after *modelState, op modelOp, a modelAnswer) string {
	who := x.name(int(op.call))
	switch {
	case a.kind == ansCanceled:
		return who + ": its context ends"
	case op.kind == opHead && a.kind == ansFailed:
		return who + " looks: 500"
	case op.kind == opHead:
		return who + " looks: " + x.object(modelObject{a.call, a.attempt, a.etag})
	case op.kind == opFence:
		return who + " reads the scope fence: " + x.object(modelObject{a.call, a.attempt, a.etag})
	case a.kind == ansOK:
		return who + ": " + x.landing(op.req, *after)
	}
	return fmt.Sprintf("%s (%s): %s -> %s", who, x.bytes(int(op.call)), x.put(op.req), map[modelAnswerKind]string{
		ansPrecondition: "412", ansConflict: "409", ansDenied: "403", ansLost: "no answer; the request may still arrive",
	}[a.kind])
}

// modelTexts are the told texts that the worlds together must lead to, so that
// no part of the engine is left out unseen.
var modelTexts = []string{
	"created", "replaced", "deleted", "already-applied",
	"stale token", "stale token, may have been applied", "outcome unknown",
	"replayed token", "object exists", "repeatable ETag",
	"failed: conflict", "failed: access denied", "failed: context canceled", "failed: no answer",
}

// partitions yields every way in which n writers can have equal contents.
func partitions(n int) [][]byte {
	all := [][]byte{{}}
	for range n {
		var longer [][]byte
		for _, p := range all {
			for c := byte(1); c <= slices.Max(append([]byte{0}, p...))+1; c++ {
				longer = append(longer, append(slices.Clip(p), c))
			}
		}
		all = longer
	}
	return all
}

func contentsText(contents []byte) string {
	b := slices.Clone(contents)
	for i := range b {
		b[i] += 'A' - 1
	}
	return string(b)
}

// modelWriters are writers with the numbers from 5 up and these contents.
func modelWriters(contents []byte, change func(i int, w *modelWrite)) []modelWrite {
	ws := make([]modelWrite, len(contents))
	for i, c := range contents {
		ws[i] = modelWrite{number: 5 + int64(i), content: c}
		if change != nil {
			change(i, &ws[i])
		}
	}
	return ws
}

// modelTotals add up what was explored.
type modelTotals struct {
	worlds, states, steps int
	told                  map[string]int
	found                 map[string]string
	depth                 map[string]int
	processes             modelProcesses
}

func newModelTotals() *modelTotals {
	return &modelTotals{told: map[string]int{}, found: map[string]string{}, depth: map[string]int{}, processes: modelProcesses{}}
}

func (m *modelTotals) run(cfg modelConfig, first bool) *modelExplorer {
	x := newModelExplorer(cfg, m.processes.get)
	x.explore(first)
	m.worlds++
	m.states += len(x.states)
	m.steps += x.steps
	for k, n := range x.told {
		m.told[k] += n
	}
	for k, story := range x.found {
		if m.found[k] == "" || x.depth[k] < m.depth[k] {
			m.found[k], m.depth[k] = story, x.depth[k]
		}
	}
	return x
}

func (m *modelTotals) String() string {
	return fmt.Sprintf("%d worlds, %d states, %d steps", m.worlds, m.states, m.steps)
}

// modelLevel is how much to explore: 0 under the race detector, which finds
// nothing in one goroutine and takes ten times as long, 2 with -model.long.
func modelLevel() int {
	if *modelLong {
		return 2
	}
	info, _ := debug.ReadBuildInfo()
	if info != nil && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		return 0
	}
	return 1
}

// modelFewest is how many states TestModel visits at least, so that it can't
// come to explore next to nothing unseen.
var modelFewest = [3]int{400_000, 2_500_000, 20_000_000}

// modelWorlds are all worlds in which the rules are kept.
func modelWorlds(level int) map[string][]modelConfig {
	pick := func(race, short, long uint8) uint8 { return [3]uint8{race, short, long}[level] }
	worlds := map[string][]modelConfig{}
	add := func(family string, c modelConfig) { worlds[family] = append(worlds[family], c) }
	same := func(n int) []byte { return slices.Repeat([]byte{1}, n) }
	kms := func(set int) func(int, *modelWrite) { return func(i int, w *modelWrite) { w.kms = set>>i&1 != 0 } }

	// Contents play no part where every write has its own ETag.
	add("unique ETags", modelConfig{
		uniqueETags: true, writes: modelWriters(same(4), nil),
		lost: pick(1, 2, 3), copies: 1, errors: pick(0, 0, 1), cancels: pick(0, 1, 1),
	})
	add("unique ETags", modelConfig{
		uniqueETags: true, writes: modelWriters(same(3), nil),
		lost: pick(1, 3, 4), copies: pick(1, 2, 3), errors: pick(1, 1, 3), cancels: 1,
	})
	add("unique ETags", modelConfig{
		uniqueETags: true, writes: modelWriters(same(2), nil),
		lost: 4, copies: 3, errors: 3, cancels: 1,
	})
	for _, c := range partitions(4) {
		add("MD5 ETags", modelConfig{writes: modelWriters(c, nil), lost: pick(1, 1, 2), copies: 1, errors: pick(0, 1, 2), cancels: pick(0, 0, 1)})
		for set := range 16 {
			add("some writers with KMS", modelConfig{writes: modelWriters(c, kms(set)), lost: pick(0, 1, 2), copies: pick(0, 0, 1)})
		}
	}
	for _, c := range partitions(3) {
		for set := range 8 {
			add("some writers with KMS", modelConfig{writes: modelWriters(c, kms(set)), lost: pick(1, 1, 2), copies: pick(1, 1, 2), errors: pick(0, 1, 1), cancels: pick(0, 0, 1)})
			// The others delete, or create only, or go straight to their PUT.
			for others := range 8 {
				add("tombstones", modelConfig{
					writes: modelWriters(c, func(i int, w *modelWrite) {
						w.kms = set>>i&1 != 0
						if others>>i&1 != 0 {
							w.deletes, w.content = true, 0
						}
					}), lost: pick(0, 1, 2), copies: pick(0, 1, 2),
				})
			}
			add("create only", modelConfig{
				writes: modelWriters(c, func(i int, w *modelWrite) {
					w.createOnly = set>>i&1 != 0
					if i == 1 && !w.createOnly {
						w.deletes, w.content = true, 0
					}
				}), uniqueETags: true, lost: 1, copies: 1,
			})
			add("straight to the PUT", modelConfig{
				writes: modelWriters(c, func(i int, w *modelWrite) { w.kms = set>>i&1 != 0; w.expectAbsent = true }),
				lost:   1, copies: 1,
			})
		}
	}
	for _, unique := range []bool{true, false} {
		sequences := []modelWrite{
			{number: 5, content: 1}, {number: 6, sequence: 1, content: 1, expectAbsent: true},
			{number: 6, sequence: 2, content: 1}, {number: 7, content: 1, kms: true},
		}
		for _, procs := range [][][]int{{{0}, {1, 2}, {3}}, {{0}, {1}, {2}, {3}}, {{0, 1}, {2, 3}}} {
			add("sequences", modelConfig{uniqueETags: unique, writes: sequences, procs: procs, lost: pick(1, 1, 2), copies: pick(1, 1, 2), errors: pick(0, 1, 2)})
		}
		again := []modelWrite{
			{number: 5, content: 1}, {number: 6, content: 1, id: 9},
			{number: 6, content: 1, id: 9, onlyUnsettled: true}, {number: 7, content: 1, kms: true},
		}
		add("run again", modelConfig{
			uniqueETags: unique, writes: again, procs: [][]int{{0}, {1, 2}, {3}},
			lost: 2, copies: 1, cancels: 1,
		})
		again = slices.Clone(again)
		again[2].onlyUnsettled = false
		add("run again", modelConfig{uniqueETags: unique, writes: again, lost: 1, copies: 1})
		replayed := slices.Clone(again)
		replayed[1].id, replayed[2].id = 0, 0
		add("one fence, two writes", modelConfig{uniqueETags: unique, writes: replayed, lost: 1, copies: 1})
	}
	return worlds
}

func TestModel(t *testing.T) {
	all := newModelTotals()
	level := modelLevel()
	worlds := modelWorlds(level)
	for _, family := range slices.Sorted(maps.Keys(worlds)) {
		start := time.Now()
		m := newModelTotals()
		for _, c := range worlds[family] {
			m.run(c, false)
		}
		for _, story := range m.found {
			t.Errorf("%s: the protocol fails:\n%s", family, story)
		}
		t.Logf("%-24s %s in %v", family, m, time.Since(start).Round(time.Millisecond))
		all.worlds += m.worlds
		all.states += m.states
		all.steps += m.steps
		for k, n := range m.told {
			all.told[k] += n
		}
	}
	t.Logf("%-24s %s", "in all", all)
	for _, text := range modelTexts {
		if all.told[text] == 0 {
			t.Errorf("nobody was ever told %q", text)
		}
	}
	if all.states < modelFewest[level] {
		t.Errorf("only %d states, want at least %d", all.states, modelFewest[level])
	}
}

// TestModelETagRuleOff shows that the rule is needed: without it the same
// bytes let a stale write land.
func TestModelETagRuleOff(t *testing.T) {
	m := newModelTotals()
	accept := func(_ int, w *modelWrite) { w.accept = true }
	for _, network := range []struct {
		name         string
		lost, copies uint8
		safe         []string
	}{
		{"a network without faults", 0, 0, []string{"AABB", "AABC", "ABBC", "ABCC", "ABCD"}},
		{"lost answers and copies", 1, 1, []string{"ABCD"}}, // where no ETag comes twice
	} {
		var safe, broken []string
		for _, c := range partitions(4) {
			x := m.run(modelConfig{writes: modelWriters(c, accept), lost: network.lost, copies: network.copies}, false)
			if x.found[badOrder] == "" {
				safe = append(safe, contentsText(c))
			} else {
				broken = append(broken, contentsText(c))
			}
			if network.lost == 0 && contentsText(c) == "AAAA" {
				t.Logf("the shortest way:\n%s", x.found[badOrder])
				if x.depth[badOrder] != 6 {
					t.Errorf("it takes %d steps, want the 6 of docs/model.md", x.depth[badOrder])
				}
			}
		}
		t.Logf("%s: broken for the contents %v, not for %v", network.name, broken, safe)
		if !slices.Equal(safe, network.safe) {
			t.Errorf("%s: not broken for %v, want %v", network.name, safe, network.safe)
		}
	}
	t.Log(m)
}

// TestModelFindsPlantedMistakes proves the model itself.
func TestModelFindsPlantedMistakes(t *testing.T) {
	three := modelWriters([]byte{1, 2, 3}, nil)
	session := modelScope(true)
	session.bug, session.lost = bugFenceStale, 1
	planted := map[string]struct {
		cfg  modelConfig
		want string
	}{
		"<= instead of <": {
			modelConfig{bug: bugEqualPasses, uniqueETags: true, writes: []modelWrite{{number: 5, content: 1}, {number: 5, content: 2}}},
			badOrder,
		},
		"412 is a failure": {
			modelConfig{bug: bug412Failed, uniqueETags: true, writes: three, lost: 1}, badRefused,
		},
		"412 is success": {
			modelConfig{bug: bug412Success, uniqueETags: true, writes: three}, badSuccess,
		},
		"a fresh write id for each attempt": {
			modelConfig{bug: bugFreshID, uniqueETags: true, writes: three, lost: 1}, badRefused,
		},
		"unknown is reported as failed": {
			modelConfig{bug: bugUnknownFails, uniqueETags: true, writes: three, cancels: 1}, badRefused,
		},
		"torn HEAD": {
			modelConfig{bug: bugTornHead, uniqueETags: true, writes: three}, badOrder,
		},
		"stale by the scope fence after a lost answer": {session, badSuperseded},
	}
	for _, name := range slices.Sorted(maps.Keys(planted)) {
		tt := planted[name]
		t.Run(name, func(t *testing.T) {
			m := newModelTotals()
			m.run(tt.cfg, false)
			t.Logf("\n%s", m.found[tt.want])
			if m.found[tt.want] == "" {
				t.Errorf("not found: %s", tt.want)
			}
		})
	}
}

// modelScope is a world with a scope fence: an old owner with number 5 and a
// new one with number 6, who claims the scope and never touches the old one's key.
func modelScope(fence bool) modelConfig {
	return modelConfig{
		writes: []modelWrite{
			{key: 1, number: 5}, {key: 0, number: 5, content: 1, readsFence: fence},
			{key: 0, number: 5, sequence: 2, content: 1, readsFence: fence},
			{key: 1, number: 6},
		},
		procs:       [][]int{{0, 1, 2}, {3}},
		claim:       4,
		uniqueETags: true,
	}
}

// TestModelScopeFence shows what the scope fence stops, and what it can't.
func TestModelScopeFence(t *testing.T) {
	m := newModelTotals()
	cfg := modelScope(true)
	cfg.lost, cfg.copies, cfg.errors, cfg.cancels = 2, 2, 1, 1
	m.run(cfg, false)
	t.Log(m)
	for v, story := range m.found {
		if v != claimLimit {
			t.Errorf("the scope fence fails:\n%s", story)
		}
	}
	if m.found[claimLimit] == "" {
		t.Error("its documented limit was not found: is it modelled still?")
	}

	m = newModelTotals()
	m.run(modelScope(true), false)
	t.Logf("its limit:\n%s", m.found[claimLimit])

	m = newModelTotals()
	m.run(modelScope(false), false)
	t.Logf("without it:\n%s", m.found[badClaim])
	if m.found[badClaim] == "" {
		t.Error("without a scope fence no old owner was found to write after the claim")
	}
}

// TestModelRepeatingProxy shows what is left behind a proxy that sends
// requests again by itself: objects keep their promise, but what a caller is
// told of its own write is the answer to one of several requests.
func TestModelRepeatingProxy(t *testing.T) {
	// With errors, the story is one of a 403; without, of a 412 that hides the
	// 200 to the same request.
	for _, errs := range []uint8{0, 1} {
		m := newModelTotals()
		for _, unique := range []bool{true, false} {
			m.run(modelConfig{
				uniqueETags: unique, writes: modelWriters([]byte{1, 1, 1}, func(i int, w *modelWrite) { w.kms = i > 0 }),
				lost: 1, copies: 2, errors: errs, repeats: true,
			}, false)
		}
		t.Logf("%s:\n%s", m, m.found[badRefused])
		if m.found[badRefused] == "" {
			t.Error("docs/model.md says that a caller can be told wrong; that was not found")
		}
		for v, story := range m.found {
			if v != badRefused {
				t.Errorf("behind a repeating proxy:\n%s", story)
			}
		}
	}
}

// TestModelMerges checks what makes the model small: a process that got
// different answers but can't behave differently any more is taken for one.
func TestModelMerges(t *testing.T) {
	for _, cfg := range []modelConfig{
		{uniqueETags: true, writes: modelWriters([]byte{1, 1}, nil), lost: 2, copies: 2, errors: 2, cancels: 1},
		{writes: modelWriters([]byte{1, 1, 1}, func(_ int, w *modelWrite) { w.accept = true }), lost: 1, copies: 1},
	} {
		merged := newModelExplorer(cfg, modelProcesses{}.get)
		merged.explore(false)
		split := newModelExplorer(cfg, func(cfg *modelConfig, calls []int) *modelProcess { return newModelProcess(cfg, calls, true) })
		split.explore(false)
		t.Logf("%d states, %d without merging", len(merged.states), len(split.states))
		if !maps.Equal(merged.depth, split.depth) {
			t.Errorf("found %v, %v without merging", merged.depth, split.depth)
		}
		a, b := slices.Sorted(maps.Keys(merged.told)), slices.Sorted(maps.Keys(split.told))
		if !slices.Equal(a, b) {
			t.Errorf("told %v, %v without merging", a, b)
		}
	}
}
