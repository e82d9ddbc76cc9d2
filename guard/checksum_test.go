package guard_test

import (
	"fmt"
	"testing"

	"github.com/s3fence/s3fence/guard"
)

// The check values of the catalogues: each algorithm over "123456789".
func TestChecksums(t *testing.T) {
	for name, want := range map[string]string{
		"CRC32": "cbf43926", "CRC32C": "e3069283", "CRC64NVME": "ae8b14860a799888",
		"SHA1":   "f7c3bc1d808e04732adf679965ccc34ca7ae3441",
		"SHA256": "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225",
	} {
		h := guard.Checksum{Algorithm: name}.NewHash()
		h.Write([]byte("123456789"))
		if got := fmt.Sprintf("%x", h.Sum(nil)); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if (guard.Checksum{Algorithm: "ROT13"}).NewHash() != nil {
		t.Error("an unknown algorithm has a hash")
	}
}
