package guard

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// Limits of S3 that are checked before anything is sent.
const (
	// MaxKey is the longest key, in bytes of UTF-8.
	MaxKey = 1024
	// MaxMetadata is how many bytes all user metadata may take, the fence
	// record included, counting names with their x-amz-meta- prefix as the
	// strictest stores do.
	MaxMetadata = 2048
	// MaxSinglePart is the largest body of one PUT, in bytes.
	MaxSinglePart = 5 << 30
)

const metadataPrefix = "x-amz-meta-"

// CheckKey reports why key can't name an object: empty, over 1,024 bytes, not
// UTF-8, or with a NUL byte. The error carries [ErrInvalid]. Anything else is
// taken as it is: no slash, dot or space is ever cleaned away.
func CheckKey(key string) error {
	switch {
	case key == "":
		return invalid("the key is empty")
	case len(key) > MaxKey:
		return invalid("the key is %d bytes long; S3 takes %d", len(key), MaxKey)
	case !utf8.ValidString(key):
		return invalid("the key %q is not UTF-8", key)
	case strings.ContainsRune(key, 0):
		return invalid("the key %q has a NUL byte", key)
	}
	return nil
}

// checkHeaders reports headers that would not come back as they went in.
func checkHeaders(h Headers, record Record) error {
	for _, f := range []struct{ name, value string }{
		{"content type", h.ContentType}, {"content encoding", h.ContentEncoding},
		{"content disposition", h.ContentDisposition}, {"content language", h.ContentLanguage},
		{"cache control", h.CacheControl}, {"storage class", h.StorageClass},
	} {
		if err := checkValue(f.name, f.value); err != nil {
			return err
		}
	}
	for _, k := range slices.Sorted(maps.Keys(h.Metadata)) {
		v := h.Metadata[k]
		switch {
		case k == RecordKey:
			return invalid("metadata %q is the guard's own", k)
		case k == "" || strings.ContainsFunc(k, func(r rune) bool { return !nameRune(r) }):
			return invalid("metadata name %q: use a-z 0-9 - _ . only", k)
		}
		if err := checkValue(fmt.Sprintf("metadata %q", k), v); err != nil {
			return err
		}
	}
	if size, left := metadataSize(h.Metadata, record); size > MaxMetadata {
		return invalid("metadata takes %d bytes with the fence record; S3 takes %d, which leaves %d for yours (each name counts with its %s prefix) and they take %d",
			size, MaxMetadata, left, metadataPrefix, size-(MaxMetadata-left))
	}
	return nil
}

// metadataSize returns what all user metadata takes, the fence record with it,
// and what the record alone leaves.
func metadataSize(m map[string]string, record Record) (size, left int) {
	size = len(metadataPrefix) + len(RecordKey) + len(record.String())
	left = MaxMetadata - size
	for k, v := range m {
		size += len(metadataPrefix) + len(k) + len(v)
	}
	return size, left
}

// nameRune allows what every store and proxy passes on unchanged. Upper case
// is refused because it comes back in lower case.
func nameRune(r rune) bool {
	return 'a' <= r && r <= 'z' || '0' <= r && r <= '9' || r == '-' || r == '_' || r == '.'
}

// checkValue allows printable ASCII with no space at either end: stores
// encode, mangle or trim everything else, each in its own way.
func checkValue(name, v string) error {
	for i, r := range v {
		if r < ' ' || r > '~' {
			return invalid("%s: character %q at byte %d is not printable ASCII; encode it (base64, percent) first", name, r, i)
		}
	}
	if v != strings.TrimSpace(v) {
		return invalid("%s: a space at its start or end would be lost on the way", name)
	}
	return nil
}
