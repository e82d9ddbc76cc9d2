package guard

// An offer is the write that wants to become the object.
type offer struct {
	record Record
	kind   kind
	// createOnly refuses to replace a live object, whatever its number.
	createOnly bool
	// evenAbsent lets a delete leave a tombstone where there is nothing to delete.
	evenAbsent bool
	// repeatableETag says that the bytes would get an ETag that the same bytes
	// get again, and that the caller has not accepted that.
	repeatableETag bool
	// from is the counter whose objects an adoption may take over.
	from IssuerID
	// recover lets an adoption take what was deleted or set back around the guard.
	recover bool
}

// A kind of write. All of them follow one rule; they differ in what they may
// find at the key.
type kind int

const (
	// putting wants nothing there, or an older fenced object.
	putting kind = iota
	// deleting wants an older fenced object that is live.
	deleting
	// adopting wants an object that is not fenced, or one of another counter.
	adopting
)

// A sighting is what was observed at the key.
type sighting struct {
	exists bool
	etag   string
	// record is the text of the fence record, "" when there is none.
	record string
	// lost is set when the object was deleted, or set back to an older version,
	// around the guard: the highest record that is known to have been there.
	lost *Record
	// differs says that the object is known to hold other bytes than the offer.
	differs bool
	// claim is the scope fence's record, where the scope is claimed.
	claim *Record
	// object is all that the store said, for the write that keeps it.
	object Object
}

type action int

const (
	refuse action = iota
	create
	replace
	applied
	// missing: there is nothing to do it to.
	missing
	// fenced: the object to adopt is under the guard already.
	fenced
)

// A verdict is what to do: refuse for a reason, write under a condition, or
// nothing, because there is nothing left to do.
type verdict struct {
	action action
	reason Reason  // of refuse
	etag   string  // that replace must match
	held   *Record // the object's record, where it has one
	claim  *Record // the scope fence, where that is what refuses
}

// decide is the write rule: given what was observed, what to do. It is the
// only place where fencing numbers are compared, for every kind of write.
func decide(o offer, s sighting) verdict {
	v := decideObject(o, s)
	if v.action != create && v.action != replace || s.claim == nil {
		return v
	}
	// Only a write that the object would take is left for the scope fence to
	// refuse: of one that was applied before the scope was claimed, that is true
	// for ever.
	switch c := s.claim; {
	case c.Issuer != o.record.Issuer:
		return verdict{action: refuse, reason: ErrIssuerMismatch, held: v.held, claim: c}
	case c.Number > o.record.Number:
		return verdict{action: refuse, reason: ErrStale, held: v.held, claim: c}
	}
	return v
}

func decideObject(o offer, s sighting) verdict {
	no := func(r Reason, held *Record) verdict { return verdict{action: refuse, reason: r, held: held} }
	// What stands unfenced over a fenced version was written around the guard. To
	// adopt it takes a number above that, whoever asks.
	rescue := o.kind == adopting && (o.recover || s.exists && s.record == "")
	switch {
	case s.lost != nil && !rescue:
		return no(ErrFenceLost, s.lost)
	case s.lost != nil:
		// Where nothing is, this creates.
		o.repeatableETag = o.repeatableETag && s.exists
		if v := decideFenced(o, s, *s.lost); v.action != replace {
			return v
		}
		if !s.exists {
			return verdict{action: create, held: s.lost}
		}
		return verdict{action: replace, etag: s.etag, held: s.lost}
	case !s.exists && (o.kind == adopting || o.kind == deleting && !o.evenAbsent):
		return verdict{action: missing}
	case !s.exists:
		return verdict{action: create}
	case s.record == "" && o.kind == adopting:
		return verdict{action: replace, etag: s.etag}
	case s.record == "":
		return no(ErrUnfenced, nil)
	}
	held, err := ParseRecord(s.record)
	if err != nil {
		return no(ErrCorruptRecord, nil)
	}
	return decideFenced(o, s, held)
}

// decideFenced compares the offer with a record of the key.
func decideFenced(o offer, s sighting, held Record) verdict {
	no := func(r Reason) verdict { return verdict{action: refuse, reason: r, held: &held} }
	order := o.record.Fence().Compare(held.Fence())
	foreign := held.Scope != o.record.Scope || held.Issuer != o.record.Issuer
	switch {
	case foreign && o.kind == adopting && held.Issuer == o.from:
		order = +1 // numbers of two counters can't be compared: that is what the caller vouches for
	case held.Scope != o.record.Scope:
		return no(ErrScopeMismatch)
	case held.Issuer != o.record.Issuer:
		return no(ErrIssuerMismatch)
	}
	switch {
	case order == 0 && held.WriteID == o.record.WriteID && held.State == o.record.State && !s.differs:
		return verdict{action: applied, held: &held}
	case o.kind == adopting && !foreign && s.lost == nil:
		return verdict{action: fenced, held: &held}
	case order < 0:
		return no(ErrStale)
	case order == 0:
		return no(ErrReplayed)
	case o.kind == deleting && held.State == Deleted && !o.evenAbsent:
		return verdict{action: missing, held: &held}
	case o.createOnly && held.State == Live:
		return no(ErrExists)
	case o.repeatableETag:
		return no(ErrRepeatableETag)
	}
	return verdict{action: replace, etag: s.etag, held: &held}
}

// outcome is what the write that v asks for comes to.
func (v verdict) outcome(k kind) Outcome {
	switch {
	case k == deleting:
		return Removed
	case k == adopting:
		return Adopted
	case v.action == replace:
		return Replaced
	}
	return Created
}
