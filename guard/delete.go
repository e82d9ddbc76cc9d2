package guard

import "context"

// DeleteOptions refine a Delete. The zero value of each field means its default.
type DeleteOptions struct {
	// SSE, SSEKMSKeyID, Sequence and WriteID are those of [PutOptions].
	SSE, SSEKMSKeyID string
	Sequence         int64
	WriteID          WriteID
	// Absent leaves a tombstone also where there is no object, or a tombstone
	// already: an older owner that has yet to write the key is refused then.
	// Default: that is ErrNotFound.
	Absent bool
	// DryRun observes and decides, and does not write.
	DryRun bool
}

// Delete replaces the object at key with a tombstone, if tok's number is
// higher than the one the object holds. Readers who come through the guard
// find nothing there then; writers need a higher number still. A plain delete
// would take the high-water mark away with the object.
//
// The tombstone is a small JSON object that carries the write id, so the ETag
// rule holds on every store. In a bucket that keeps versions the older ones
// stay.
//
// Errors are those of [Guard.Put], and ErrNotFound where there is nothing to
// delete. An object that is not fenced is refused as [ErrUnfenced]: adopt it first.
func (g *Guard) Delete(ctx context.Context, tok Token, key string, opts *DeleteOptions) (Result, error) {
	var o DeleteOptions
	if opts != nil {
		o = *opts
	}
	return g.write(ctx, tok, key, "delete", &write{
		kind: deleting, own: true, evenAbsent: o.Absent,
		bytes: func(r Record) []byte { return ownBytes("s3fence_tombstone", r) },
		opts: PutOptions{
			Headers: Headers{ContentType: "application/json"},
			SSE:     o.SSE, SSEKMSKeyID: o.SSEKMSKeyID, Sequence: o.Sequence, WriteID: o.WriteID, DryRun: o.DryRun,
		},
	})
}
