// Package guard makes late writers to object storage harmless.
//
// A lock or a lease stops two writers at once. It does not stop one that used
// to hold it: paused in the middle of a write, it wakes after a new owner has
// written, and finishes over the newer data. A fencing token closes the hole.
// Before it touches a resource, an owner takes a number from an [Issuer];
// every write carries it; and the object refuses any number that is not higher
// than the last it saw.
//
// The guard keeps the number in the object's own metadata, as a fence
// [Record], and writes with conditional requests: If-None-Match where nothing
// was seen, If-Match on the ETag where something was. So bytes and number
// change together in one request, and the high-water mark can't be lost apart
// from the data.
//
//	store := s3store.New(client, "bucket", nil)
//	g := guard.New(store, nil)
//	tok, err := issuer.Issue(ctx, "nightly/report")
//	...
//	res, err := g.Put(ctx, tok, "report.csv", guard.Bytes(data), nil)
//	switch {
//	case err == nil:                         // res.Outcome: created, replaced, already applied
//	case errors.Is(err, guard.ErrStale):     // a newer owner has written: stop
//	case errors.Is(err, guard.ErrOutcomeUnknown): // sent, and nobody could say; run it again with the same write id
//	}
//
// # What is promised
//
// For one key: once a write with number N is in the object, no write with a
// number of N or less ever becomes the object, whatever pauses, retries,
// restarts, duplicated requests or lost answers happen, as long as every
// writer goes through the guard and the store honours conditional writes.
//
// # What is not
//
// Writers and deletes that go around the guard, a bucket restored or copied
// and then written on both sides, and a store that ignores conditions: no
// guard of this kind can see those before the harm is done.
//
// # The ETag rule
//
// On most stores the ETag of a plain object is the MD5 of its bytes, without
// the metadata. A writer that is paused after it observed the object would
// then pass its If-Match if others wrote in between and the bytes are the same
// again: an empty marker file, a report that did not change. So a write that
// replaces an object must get an ETag that can't come back, or it is refused
// with [ErrRepeatableETag]. A write that creates a key may have any.
package guard
