package s3store_test

import (
	"fmt"
	"maps"
	"os"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/storetest"
	"github.com/s3fence/s3fence/localstack/servers"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
	"github.com/s3fence/s3fence/s3store"
)

func TestMain(m *testing.M) { os.Exit(serverstest.Main(m)) }

var buckets atomic.Int64

func newBucket(t *testing.T, c *s3.Client, versioned bool) string {
	t.Helper()
	name := fmt.Sprintf("s3fence-test-%d", buckets.Add(1))
	if _, err := c.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &name}); err != nil {
		t.Fatal(err)
	}
	if versioned {
		if _, err := c.PutBucketVersioning(t.Context(), &s3.PutBucketVersioningInput{
			Bucket: &name, VersioningConfiguration: &types.VersioningConfiguration{Status: types.BucketVersioningStatusEnabled},
		}); err != nil {
			t.Fatal(err)
		}
	}
	return name
}

// conformance runs the suite on one server through both SDKs.
// known is what the server fails with either, and knownMinIOGo with minio-go only.
func conformance(t *testing.T, s *servers.Server, h storetest.Harness, known, knownMinIOGo map[string]string) {
	opts := &s3store.Options{UniqueETags: h.UniqueETags}
	admin := serverstest.S3Client(s)
	for _, sdk := range []struct {
		name string
		open func(t *testing.T, bucket string) guard.Store
	}{
		{"aws", func(t *testing.T, bucket string) guard.Store {
			return s3store.New(serverstest.S3Client(s), bucket, opts)
		}},
		{"minio-go", func(t *testing.T, bucket string) guard.Store {
			return s3store.NewMinIO(serverstest.MinIOClient(t, s), bucket, opts)
		}},
	} {
		h.Open = func(t *testing.T) guard.Store { return sdk.open(t, newBucket(t, admin, false)) }
		h.Versioned = func(t *testing.T) (guard.Store, func(*testing.T, string)) {
			b := newBucket(t, admin, true)
			return sdk.open(t, b), func(t *testing.T, key string) {
				t.Helper()
				if _, err := admin.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: &b, Key: &key}); err != nil {
					t.Fatal(err)
				}
			}
		}
		h.Known = maps.Clone(known)
		if sdk.name == "minio-go" {
			maps.Copy(h.Known, knownMinIOGo)
		}
		t.Run(sdk.name, func(t *testing.T) { storetest.Run(t, h) })
	}
}

// MinIO takes /lead for lead, so the two keys name one object. Its fence
// record is one too: nothing is lost, but ls shows a key that nobody wrote.
var minioKnown = map[string]string{
	"Keys/lead":     "minio drops leading slashes: /lead and lead are one object",
	"Keys/lead-two": "minio drops leading slashes: //foo and foo are one object",

	"List/below-a-key":         "minio lists nothing below a key that is an object itself",
	"MultipartAbort/again":     "minio answers 204 to the abort of an upload that is not there",
	"MultipartAbort/completed": "minio answers 204 to the abort of an upload that is not there",
	"MultipartMissing/abort":   "minio answers 204 to the abort of an upload that is not there",
	"CopyPart/key-folder":      "minio takes no multipart upload of a key with a slash at its end, and copies no parts of one",
}

var motoKnown = map[string]string{
	"Metadata/punctuated-key": "moto makes dashes of underscores in metadata keys",
	"Keys/control":            "moto lists keys unencoded, in broken XML",
	"Keys/newline":            "moto answers 404 to a key with a newline",

	"List/versions-start-after": "moto leaves out the version after a key marker that is no key",
	"ListVersions/start-after":  "moto leaves out the version after a key marker that is no key",

	"Multipart/again":                      "moto answers 200 to a completion that comes again",
	"Multipart/versioned":                  motoIfMatch,
	"MultipartConditions/if-match":         motoIfMatch,
	"MultipartConditions/if-match-missing": motoIfMatch,
	"MultipartRace/replacers":              motoIfMatch,
	"MultipartRace/one-upload":             "moto answers 200 to a completion that comes again",
	"MultipartAgainstPut/replacers":        motoIfMatch,
	"GuardSameBytesInParts":                motoIfMatch + ": its profile says so, and a guard that reads it sends nothing in parts",
	"MultipartAbort/new":                   motoMissing,
	"MultipartAbort/replacing":             motoMissing,
	"MultipartMissing/made-up":             motoMissing,
	"MultipartMissing/other-key":           motoMissing,
	"MultipartMissing/abort":               motoMissing,
	"MultipartChecksum/CRC32-wrong":        motoChecksum,
	"MultipartChecksum/CRC32C-wrong":       motoChecksum,
	"MultipartChecksum/CRC64NVME-wrong":    motoChecksum,
	"MultipartChecksum/CRC32C":             motoCRC32,
	"MultipartChecksum/CRC32C-of-parts":    motoCRC32,
	"MultipartChecksum/CRC64NVME":          motoCRC32,
	"MultipartChecksum/CRC64NVME-of-parts": motoCRC32,
	"CopyPart/past-the-end":                "moto copies what there is of a range",
	"CopyPart/source":                      "moto ignores the condition on the source of a copy",
	"CopyPart/versions":                    "moto ignores the condition on the source of a copy",
}

const (
	motoIfMatch  = "moto ignores If-Match at a completion"
	motoMissing  = "moto answers 500 to an upload that is not there, and looks for it by its id alone"
	motoChecksum = "moto compares no checksum"
	motoCRC32    = "moto gives the CRC32 of a multipart object, whatever it calls it"
)

var motoKnownMinIOGo = map[string]string{
	"Settings":      "moto's root element of a versioning configuration is not S3's, and minio-go looks at it",
	"VersionedList": "moto lists all delete markers after all versions",
	"ListVersions":  "moto lists all delete markers after all versions",
	"Tags/unicode":  "minio-go refuses to read tags that are not ASCII",
}

func TestConformanceMinIO(t *testing.T) {
	conformance(t, serverstest.SharedMinIO(t), storetest.Harness{SSE: "aws:kms", PageSize: 1000}, minioKnown, nil)
}

func TestConformanceMinIONoKMS(t *testing.T) {
	conformance(t, serverstest.SharedMinIONoKMS(t), storetest.Harness{}, minioKnown, nil)
}

func TestConformanceMinIONoCompat(t *testing.T) {
	h := storetest.Harness{SSE: "aws:kms", UniqueETags: true}
	conformance(t, serverstest.SharedMinIONoCompat(t), h, minioKnown, nil)
}

func TestConformanceMoto(t *testing.T) {
	conformance(t, serverstest.SharedMoto(t), storetest.Harness{}, motoKnown, motoKnownMinIOGo)
}
