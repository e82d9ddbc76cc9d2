package guard

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"
)

// What a [Store] answers. These are the only errors that tell the guard
// something; any other error of a Put means that its outcome is unknown.
// Wrap them, so that the store's own words stay reachable.
var (
	// ErrNotFound: no such object. From Put with IfMatch: it is gone; nothing changed.
	ErrNotFound = errors.New("not found")
	// ErrNoBucket: no such bucket; nothing changed.
	ErrNoBucket = errors.New("no such bucket")
	// ErrPreconditionFailed: the condition did not hold (412, or 304 to a
	// conditional write); this request changed nothing.
	ErrPreconditionFailed = errors.New("precondition failed")
	// ErrConflict: another request was under way (409); this one changed nothing.
	ErrConflict = errors.New("conflict")
	// ErrNotSent: nothing left this machine: connection refused for one. It
	// may be tried again, unless the error is one of the next four too.
	ErrNotSent = errors.New("not sent")
	// ErrDenied: the store forbids it (401, 403), or, with ErrNotSent, there
	// are no credentials to ask it with; nothing changed.
	ErrDenied = errors.New("access denied")
	// ErrUnsupported: the store lacks the feature (501, 405); nothing changed.
	ErrUnsupported = errors.New("not supported by the store")
	// ErrRejected: the store finds the request itself wrong (any other 4xx); nothing changed.
	ErrRejected = errors.New("rejected by the store")
)

// A Store is one bucket of an object store, as far as the protocol needs it.
// The package storetest holds the suite that every implementation must pass.
//
// Every method makes one attempt per request and never retries by itself: the
// guard must see each attempt's outcome. A method whose context is done
// returns promptly. All methods are safe for concurrent use.
type Store interface {
	// Head observes an object: its ETag and metadata as one write left them.
	// Absent is ErrNotFound; the returned Object still says DeleteMarker when
	// the newest version is one.
	Head(ctx context.Context, key string, opts HeadOptions) (Object, error)

	// Get is Head with the bytes, all three of one write. The caller closes
	// the Body. A Read that ends with io.EOF delivered every byte; where the
	// store keeps a checksum, the bytes have matched it.
	Get(ctx context.Context, key string) (Object, io.ReadCloser, error)

	// Put writes an object whole, data and metadata in one atomic step, if
	// req.Condition holds, which the store decides. It refuses a request
	// without a condition. An error that is none of the above means that the
	// outcome is unknown, if the Body was read to its end; if it was not, the
	// store can't have the object, since what is not read by the time that Put
	// returns can't be read any more.
	Put(ctx context.Context, key string, req PutRequest) (PutResult, error)

	// Versions yields the versions of one key, newest first, delete markers
	// among them; at most the one object there is in a bucket that never kept any.
	Versions(ctx context.Context, key string) iter.Seq2[Version, error]

	// Settings reads what the bucket itself is set to, as far as the caller
	// may see it. The guard asks at most once, and only when a decision hangs on it.
	Settings(ctx context.Context) (Settings, error)

	// URL names an object for people: s3://bucket/key.
	URL(key string) string
}

// HeadOptions refine a Head.
type HeadOptions struct {
	// VersionID asks for this version instead of the newest.
	VersionID string
	// Checksum asks for the object's checksum. It is separate because on
	// encrypted objects it needs a further permission (kms:Decrypt on AWS).
	Checksum bool
}

// An Object is what a store says of an object.
type Object struct {
	// ETag in the store's own form: opaque, to be handed back in a Condition.
	ETag         string
	Size         int64
	VersionID    string
	LastModified time.Time
	// DeleteMarker comes with ErrNotFound: the newest version is a delete marker.
	DeleteMarker bool
	// SSE is the encryption that the store reports: "", AES256, aws:kms, aws:kms:dsse.
	SSE string
	// Checksum of the whole object, when asked for and known.
	Checksum Checksum
	Headers
}

// Headers go with an object and come back with it.
type Headers struct {
	ContentType        string
	ContentEncoding    string
	ContentDisposition string
	ContentLanguage    string
	CacheControl       string
	StorageClass       string
	// Metadata is the user metadata: keys in lower case, without x-amz-meta-.
	Metadata map[string]string
}

// A Checksum is a named full-object checksum in the base64 form of S3's
// headers. The algorithm is CRC32, CRC32C, CRC64NVME, SHA1 or SHA256.
type Checksum struct {
	Algorithm, Value string
}

// A Condition is what must hold for a write. Its zero value is none, and a
// Store refuses to write with none.
type Condition struct {
	ifAbsent bool
	etag     string
}

// IfAbsent is the condition If-None-Match: *.
func IfAbsent() Condition { return Condition{ifAbsent: true} }

// IfMatch is the condition If-Match: etag, with an ETag as the store gave it.
func IfMatch(etag string) Condition { return Condition{etag: etag} }

// Absent reports whether the object must not exist.
func (c Condition) Absent() bool { return c.ifAbsent }

// ETag returns the ETag that the object must have, or "".
func (c Condition) ETag() string { return c.etag }

// Check reports the missing condition, for Stores to call first.
func (c Condition) Check() error {
	if !c.ifAbsent && c.etag == "" {
		return errors.Join(ErrRejected, errors.New("a write without a condition"))
	}
	return nil
}

// A PutRequest is one conditional write.
type PutRequest struct {
	Condition Condition
	Body      Body
	Headers   Headers
	// SSE asks for encryption: "" for the bucket's default, or AES256,
	// aws:kms, aws:kms:dsse, with SSEKMSKeyID for one key of one's own.
	SSE, SSEKMSKeyID string
	Tags             map[string]string
}

// A PutResult is the store's answer to a write that it made.
type PutResult struct {
	ETag      string
	VersionID string
	// SSE is the encryption that the answer reports, where it does.
	SSE string
}

// A Version is one version of a key.
type Version struct {
	ID           string
	ETag         string
	DeleteMarker bool
	Latest       bool
	Size         int64
	LastModified time.Time
}

// Versioning says whether a bucket keeps versions.
type Versioning int

// The zero value is unknown: the guard then does nothing that would be unsafe
// on a bucket that keeps versions.
const (
	VersioningUnknown Versioning = iota
	VersioningOff
	VersioningOn // enabled, or suspended after having been enabled
)

// Settings are facts about a bucket. Unknown ones are zero.
type Settings struct {
	Versioning Versioning
	// DefaultSSE is what the bucket encrypts with when a request says nothing.
	DefaultSSE string
	// UniqueETags says that every write gets an ETag of its own, whatever its
	// bytes, with no encryption asked for.
	UniqueETags bool
	// Requests that it took to find out.
	Requests int
}
