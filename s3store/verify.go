package s3store

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"strings"

	"github.com/minio/crc64nvme"

	"github.com/s3fence/s3fence/guard"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// The checksums that a store may keep, the cheapest first.
var checksums = []struct {
	name string
	new  func() hash.Hash
}{
	{"CRC32C", func() hash.Hash { return crc32.New(castagnoli) }},
	{"CRC64NVME", func() hash.Hash { return crc64nvme.New() }},
	{"CRC32", func() hash.Hash { return crc32.NewIEEE() }},
	{"SHA1", sha1.New},
	{"SHA256", sha256.New},
}

// fullChecksum picks the first checksum of the whole object. One of a
// multipart upload may be a checksum of checksums: its type says COMPOSITE, or
// its value ends with the number of parts.
func fullChecksum(kind string, value func(name string) string) guard.Checksum {
	if strings.EqualFold(kind, "COMPOSITE") {
		return guard.Checksum{}
	}
	for _, c := range checksums {
		if v := value(c.name); v != "" && !strings.Contains(v, "-") {
			return guard.Checksum{Algorithm: c.name, Value: v}
		}
	}
	return guard.Checksum{}
}

// A verifier is a body that ends with io.EOF only when it was size bytes long
// (unless size is negative) and matched its checksum (if there is one).
type verifier struct {
	io.ReadCloser
	left int64
	sum  guard.Checksum
	hash hash.Hash
	err  error
}

func verify(body io.ReadCloser, size int64, sum guard.Checksum) io.ReadCloser {
	v := &verifier{ReadCloser: body, left: size, sum: sum}
	for _, c := range checksums {
		if c.name == sum.Algorithm {
			v.hash = c.new()
		}
	}
	return v
}

func (v *verifier) Read(p []byte) (int, error) {
	if v.err != nil {
		return 0, v.err
	}
	n, err := v.ReadCloser.Read(p)
	if v.hash != nil {
		v.hash.Write(p[:n])
	}
	if v.left >= 0 {
		if v.left -= int64(n); v.left < 0 {
			err = fmt.Errorf("body is longer than its Content-Length")
		}
	}
	if err == io.EOF {
		err = v.end()
	}
	v.err = err
	return n, err
}

func (v *verifier) end() error {
	if v.left > 0 {
		return fmt.Errorf("body ends %d bytes early: %w", v.left, io.ErrUnexpectedEOF)
	}
	if v.hash != nil {
		if got := base64.StdEncoding.EncodeToString(v.hash.Sum(nil)); got != v.sum.Value {
			return fmt.Errorf("body is not what was stored: its %s is %s, not %s", v.sum.Algorithm, got, v.sum.Value)
		}
	}
	return io.EOF
}
