package s3store

import (
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"io"
	"strconv"
	"strings"

	"github.com/minio/minio-go/v7"

	"github.com/s3fence/s3fence/guard"
)

// The checksums that a store may keep, the cheapest first.
var checksums = []string{"CRC32C", "CRC64NVME", "CRC32", "SHA1", "SHA256"}

// fullChecksum picks the first checksum of the whole object. One of a
// multipart upload may be a checksum of checksums: its type says COMPOSITE, or
// its value ends with the number of parts.
func fullChecksum(kind string, value func(name string) string) guard.Checksum {
	if strings.EqualFold(kind, "COMPOSITE") {
		return guard.Checksum{}
	}
	for _, name := range checksums {
		if v := value(name); v != "" && !strings.Contains(v, "-") {
			return guard.Checksum{Algorithm: name, Value: v}
		}
	}
	return guard.Checksum{}
}

// wholeChecksum is what an upload's completion says of the whole object: what
// is asked for, or else what the checksums of its parts come to, if every part
// has one and a size to combine it by.
func wholeChecksum(up guard.Upload, req guard.CompleteRequest) guard.Checksum {
	if up.Checksum == "" || up.Composite || req.Checksum.Value != "" {
		return req.Checksum
	}
	parts := make([]minio.ObjectPart, len(req.Parts))
	for i, p := range req.Parts {
		if p.Checksum.Algorithm != up.Checksum || p.Size == 0 && len(parts) > 1 {
			return guard.Checksum{}
		}
		parts[i] = minio.ObjectPart{
			PartNumber: p.Number, Size: p.Size,
			// The algorithm tells which of them counts.
			ChecksumCRC32: p.Checksum.Value, ChecksumCRC32C: p.Checksum.Value, ChecksumCRC64NVME: p.Checksum.Value,
		}
	}
	sum, err := map[string]minio.ChecksumType{
		"CRC32": minio.ChecksumCRC32, "CRC32C": minio.ChecksumCRC32C, "CRC64NVME": minio.ChecksumCRC64NVME,
	}[up.Checksum].FullObjectChecksum(parts)
	if err != nil {
		return guard.Checksum{} // a part's is none: the store will say so
	}
	return guard.Checksum{Algorithm: up.Checksum, Value: sum.Encoded()}
}

// rangeHeader asks for a part of the bytes.
func rangeHeader(o guard.ReadOptions) string {
	if o.Size == 0 {
		return fmt.Sprintf("bytes=%d-", o.Offset)
	}
	return fmt.Sprintf("bytes=%d-%d", o.Offset, o.Offset+o.Size-1)
}

// wholeSize reads the object's size off the Content-Range of a part of it, -1
// where it does not say.
func wholeSize(contentRange string) int64 {
	_, total, _ := strings.Cut(contentRange, "/")
	if n, err := strconv.ParseInt(total, 10, 64); err == nil {
		return n
	}
	return -1
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
	return &verifier{ReadCloser: body, left: size, sum: sum, hash: sum.NewHash()}
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
			err = errors.New("body is longer than its Content-Length")
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
