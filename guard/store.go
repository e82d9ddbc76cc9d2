package guard

import (
	"context"
	"errors"
	"fmt"
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
	// ErrNoUpload: the multipart upload is not there: it was completed, or
	// aborted. This request changed nothing; an earlier completion may have.
	ErrNoUpload = errors.New("no such multipart upload")
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
	// the Body. A Read that ends with io.EOF delivered every byte asked for;
	// where the store keeps a checksum, those of a whole object have matched it.
	// The Object's Size is that of the whole, whatever was asked for. An object
	// whose ETag is not the one asked for is ErrPreconditionFailed, bytes beyond
	// its end are ErrRejected.
	Get(ctx context.Context, key string, opts ReadOptions) (Object, io.ReadCloser, error)

	// Put writes an object whole, data and metadata in one atomic step, if
	// req.Condition holds, which the store decides. It refuses a request
	// without a condition. An error that is none of the above means that the
	// outcome is unknown, if the Body was read to its end; if it was not, the
	// store can't have the object, since what is not read by the time that Put
	// returns can't be read any more.
	Put(ctx context.Context, key string, req PutRequest) (PutResult, error)

	// List yields what the bucket lists, in the order of the keys' bytes, page
	// by page as it is asked for more. An error ends it; so does a done context,
	// with an error.
	List(ctx context.Context, opts ListOptions) iter.Seq2[Listed, error]

	// Tags returns the tags of an object, of its newest version if versionID is "".
	Tags(ctx context.Context, key, versionID string) (map[string]string, error)

	// CreateUpload begins a multipart upload. It changes no object. An error
	// that is none of the above leaves it unknown whether an upload was begun.
	CreateUpload(ctx context.Context, key string, req UploadRequest) (Upload, error)

	// UploadPart sends one part. Sending one again, by its number, replaces it.
	UploadPart(ctx context.Context, up Upload, number int, body Body) (Part, error)

	// CopyPart makes a part of an object's bytes, on the store's side, if the
	// source still is what req says; if not, it is ErrPreconditionFailed.
	CopyPart(ctx context.Context, up Upload, number int, src CopySource) (Part, error)

	// CompleteUpload makes the upload the object, data and metadata in one
	// atomic step, if req.Condition holds, which the store decides. It refuses a
	// request without a condition. Errors are those of Put, and ErrNoUpload.
	// Where the store allows it, an upload whose completion was refused with
	// ErrPreconditionFailed can be completed again under another condition.
	CompleteUpload(ctx context.Context, up Upload, req CompleteRequest) (PutResult, error)

	// AbortUpload throws the upload and its parts away. One that is not there is
	// ErrNoUpload.
	AbortUpload(ctx context.Context, up Upload) error

	// Uploads yields the multipart uploads under way whose keys begin with prefix.
	Uploads(ctx context.Context, prefix string) iter.Seq2[Upload, error]

	// Delete removes an object, whoever wrote it and whatever it holds by now. Of
	// one that is not there, that is no error. Where versions are kept, it lies
	// under a delete marker then. It is for keys that nobody writes a second time
	// ([Guard.Garbage]); from any other it would take the high-water mark away.
	Delete(ctx context.Context, key string) error

	// Settings reads what the bucket itself is set to, as far as the caller
	// may see it. The guard asks at most once, and only when a decision hangs on it.
	Settings(ctx context.Context) (Settings, error)

	// URL names an object for people: s3://bucket/key.
	URL(key string) string
}

// ReadOptions refine a Get. The zero value reads the newest version whole.
type ReadOptions struct {
	// VersionID asks for this version instead of the newest.
	VersionID string
	// ETag, if set, is the one that the object must have.
	ETag string
	// Offset and Size ask for a part of the bytes. A Size of 0 is all that
	// follow Offset.
	Offset, Size int64
}

// Whole reports whether all the bytes are asked for.
func (o ReadOptions) Whole() bool { return o.Offset == 0 && o.Size == 0 }

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
	// SSE is the encryption that the store reports: "", AES256, aws:kms, aws:kms:dsse,
	// and SSEKMSKeyID the key of the kms ones.
	SSE, SSEKMSKeyID string
	// Checksum of the whole object, where known: from Head when asked for, from
	// Get of the whole.
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
	// Expires is the Expires header, in its own text.
	Expires string
	// WebsiteRedirect is where S3's website hosting sends readers instead.
	WebsiteRedirect string
	StorageClass    string
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

// ListOptions say what to list.
type ListOptions struct {
	Prefix string
	// StartAfter leaves out this key and all before it.
	StartAfter string
	// Delimiter, if set, rolls up the keys that have it after the prefix into
	// one Listed with Prefix set. Not together with Versions.
	Delimiter string
	// Versions lists every version and delete marker; of one key, newest first.
	// Where the bucket never kept any, each object is its one version.
	Versions bool
	// Metadata asks for user metadata in the listing. It is a wish: most stores
	// can't.
	Metadata bool
}

// A Listed is one entry of a listing.
type Listed struct {
	// Key is the object's key, or what several share.
	Key string
	// Prefix says that Key is a common prefix, and the rest is zero.
	Prefix bool
	// Version is the object, or with ListOptions.Versions this version of it.
	// Its ID and Latest are set only then.
	Version
	StorageClass string
	// Metadata is the user metadata, as in Headers; nil where the listing does
	// not say.
	Metadata map[string]string
}

// An UploadRequest is how a multipart upload begins: with all that the object
// shall have but its bytes.
type UploadRequest struct {
	Headers          Headers
	SSE, SSEKMSKeyID string
	Tags             map[string]string
	// Checksum is the algorithm of the full-object checksum that the parts and
	// the completion shall carry: CRC32, CRC32C or CRC64NVME, "" for none. It is
	// a wish: a client that is set to add no checksums begins an upload without.
	Checksum string
}

// An Upload is a multipart upload under way.
type Upload struct {
	Key, ID string
	// Checksum is that of the UploadRequest, or "" if the upload has none. It is
	// empty in a listing, and so are any fields that an implementation keeps for
	// itself.
	Checksum string
	// Composite: the store makes of the parts' checksums one of its own kind, so
	// the completion carries none of the whole object.
	Composite bool
	// Initiated is when it began, where a listing says so.
	Initiated time.Time
}

// A Part is one part that the store has.
type Part struct {
	Number int
	ETag   string
	Size   int64
	// Checksum of the part, where there is one.
	Checksum Checksum
}

// A CopySource is where CopyPart takes its bytes from, in the same bucket.
type CopySource struct {
	Key, VersionID string
	// ETag that the source must have. Required.
	ETag string
	// Offset and Size of the bytes to take. A Size of 0 is the whole object.
	Offset, Size int64
}

// A CompleteRequest ends a multipart upload.
type CompleteRequest struct {
	Condition Condition
	// Parts in the order of their numbers.
	Parts []Part
	// Checksum of the whole object, for the store to compare. Zero: what those
	// of the parts come to, where the upload has one that is not Composite.
	Checksum Checksum
}

// Versions yields the versions of one key, newest first, delete markers among
// them; at most the one object there is in a bucket that never kept any.
func Versions(ctx context.Context, s Store, key string) iter.Seq2[Version, error] {
	return func(yield func(Version, error) bool) {
		if err := CheckKey(key); err != nil {
			yield(Version{}, fmt.Errorf("list versions of %s: %w: %w", s.URL(key), ErrRejected, err))
			return
		}
		for l, err := range s.List(ctx, ListOptions{Prefix: key, Versions: true}) {
			switch {
			case err != nil:
				yield(Version{}, err)
				return
			case l.Key != key:
				return // past it: what has key as a prefix sorts after key itself
			case !yield(l.Version, nil):
				return
			}
		}
	}
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
