package issuer

import (
	"crypto/sha256"
	"fmt"
	"math"

	"github.com/s3fence/s3fence/guard"
)

// A Position makes tokens from places in a log that gives each partition's
// records rising, durable numbers of its own, as Kafka's offsets are. There is
// no counter, and so no request: the same record has the same token always.
//
// Where the log is cut or made anew its offsets are given again, which nobody
// can see in them. So a topic that was deleted and made again needs an id of its
// own ([NewPosition] with its creation id). Where an unclean leader election or
// a restored backup took records off the end of a log, so that others got their
// offsets, these are refused as replayed or stale until the offsets are above
// what was written. Gaps, as compaction, retention and transactions leave them,
// are fine.
type Position struct {
	// Issuer names the log. Everyone who reads it must use the same.
	Issuer guard.IssuerID
}

// NewPosition returns the Position of a topic, with an issuer id made from its
// names by hashing. A copy of the topic in another cluster has another id, and
// its numbers are never compared with this one's.
//
// cluster is Kafka's cluster id, topic the topic's name. creation tells this
// topic from earlier ones of its name: best the topic id that Kafka has given
// out since 2.8. It may be empty where topics are never deleted.
func NewPosition(cluster, topic, creation string) Position {
	var p Position
	// Each length makes plain where a name ends.
	sum := sha256.Sum256(fmt.Appendf(nil, "s3fence position %d:%s %d:%s %d:%s",
		len(cluster), cluster, len(topic), topic, len(creation), creation))
	copy(p.Issuer[:], sum[:])
	return p
}

// Token returns the token of the record at offset: its number is the offset plus
// one. scope is the partition's, orders/3 for one: each partition must have a
// scope of its own, since offsets of two can't be compared. A key is then written
// from one partition only. Where partitions are added and keys move, writes to
// the moved ones are refused as [guard.ErrScopeMismatch].
//
// The token of a write that is made of several records is that of the last one.
//
// An offset that is not from 0 to 2^63-2, a scope that can't be one, and a
// Position that names no log are [guard.ErrInvalid].
func (p Position) Token(scope string, offset int64) (guard.Token, error) {
	if p.Issuer == (guard.IssuerID{}) {
		return guard.Token{}, fmt.Errorf("%w: the Position names no log: make it with issuer.NewPosition", guard.ErrInvalid)
	}
	if offset < 0 || offset == math.MaxInt64 {
		return guard.Token{}, fmt.Errorf("%w: offset %d of scope %q is not from 0 to %d", guard.ErrInvalid, offset, scope, int64(math.MaxInt64-1))
	}
	return guard.NewToken(p.Issuer, scope, offset+1)
}
