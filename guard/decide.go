package guard

// An offer is the write that wants to become the object.
type offer struct {
	record Record
	// createOnly refuses to replace a live object, whatever its number.
	createOnly bool
	// repeatableETag says that the bytes would get an ETag that the same bytes
	// get again, and that the caller has not accepted that.
	repeatableETag bool
}

// A sighting is what was observed at the key.
type sighting struct {
	exists bool
	etag   string
	// record is the text of the fence record, "" when there is none.
	record string
	// lost is set when the newest version is a delete marker over this record.
	lost *Record
	// differs says that the object is known to hold other bytes than the offer.
	differs bool
}

type action int

const (
	refuse action = iota
	create
	replace
	applied
)

// A verdict is what to do: refuse for a reason, write under a condition, or
// nothing, because this very write is in the object already.
type verdict struct {
	action action
	reason Reason  // of refuse
	etag   string  // that replace must match
	held   *Record // the object's record, where it has one
}

// decide is the write rule: given what was observed, what to do. It is the
// only place where fencing numbers are compared, for every kind of write.
func decide(o offer, s sighting) verdict {
	no := func(r Reason, held *Record) verdict { return verdict{action: refuse, reason: r, held: held} }
	switch {
	case s.lost != nil:
		return no(ErrFenceLost, s.lost)
	case !s.exists:
		return verdict{action: create}
	case s.record == "":
		return no(ErrUnfenced, nil)
	}
	held, err := ParseRecord(s.record)
	if err != nil {
		return no(ErrCorruptRecord, nil)
	}
	order := o.record.Fence().Compare(held.Fence())
	switch {
	case held.Scope != o.record.Scope:
		return no(ErrScopeMismatch, &held)
	case held.Issuer != o.record.Issuer:
		return no(ErrIssuerMismatch, &held)
	case order < 0:
		return no(ErrStale, &held)
	case order == 0 && (held.WriteID != o.record.WriteID || held.State != o.record.State || s.differs):
		return no(ErrReplayed, &held)
	case order == 0:
		return verdict{action: applied, held: &held}
	case o.createOnly && held.State == Live:
		return no(ErrExists, &held)
	case o.repeatableETag:
		return no(ErrRepeatableETag, &held)
	}
	return verdict{action: replace, etag: s.etag, held: &held}
}

// outcome is what the write that v asks for comes to.
func (v verdict) outcome() Outcome {
	if v.action == replace {
		return Replaced
	}
	return Created
}
