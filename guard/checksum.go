package guard

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"io"
)

// crc64nvme is the reversed polynomial of CRC-64/NVME, which S3 uses by default.
var crc64nvme = crc64.MakeTable(0x9a6c9329ac4bc9b5)

// uploadChecksum is that of multipart uploads. Of those that make one of the
// parts', it costs the least: processors have an instruction for it.
const uploadChecksum = "CRC32C"

// NewHash returns the hash of the checksum's algorithm, nil when it is not
// known. Its Sum is what [Checksum.Value] holds in base64.
func (c Checksum) NewHash() hash.Hash {
	switch c.Algorithm {
	case "CRC32":
		return crc32.NewIEEE()
	case "CRC32C":
		return crc32.New(castagnoli)
	case "CRC64NVME":
		return crc64.New(crc64nvme)
	case "SHA1":
		return sha1.New()
	case "SHA256":
		return sha256.New()
	}
	return nil
}

// matches reports whether body has the checksum; known is false when the
// checksum is absent or of an unknown algorithm.
func (c Checksum) matches(ctx context.Context, body Body) (same, known bool, err error) {
	if c.NewHash() == nil || c.Value == "" {
		return false, false, nil
	}
	got, err := c.of(ctx, body)
	if err != nil {
		return false, false, err
	}
	return got == c, true, nil
}

// of returns the checksum of body, by the same algorithm, which must be a known
// one.
func (c Checksum) of(ctx context.Context, body Body) (Checksum, error) {
	h := c.NewHash()
	if err := hashBody(ctx, h, body); err != nil {
		return Checksum{}, err
	}
	c.Value = base64.StdEncoding.EncodeToString(h.Sum(nil))
	return c, nil
}

// hashBody writes the whole body to h, unless the context ends.
func hashBody(ctx context.Context, h hash.Hash, body Body) error {
	b := copyBuffers.Get().(*[256 << 10]byte)
	defer copyBuffers.Put(b)
	for r := body.Reader(); ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := r.Read(b[:])
		h.Write(b[:n])
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
