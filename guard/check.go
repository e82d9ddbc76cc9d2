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
	for _, k := range slices.Sorted(maps.Keys(h.Metadata)) {
		switch {
		case k == RecordKey:
			return invalid("metadata %q is the guard's own", k)
		case k == "" || strings.ContainsFunc(k, func(r rune) bool { return !nameRune(r) }):
			return invalid("metadata name %q: use a-z 0-9 - _ . only", k)
		}
	}
	for _, f := range fields(h) {
		if why := f.lost(); why != "" {
			return invalid("%s: %s; encode it (base64, percent) first", f.name, why)
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

// A field is a header's value, under a name for people.
type field struct {
	name, value string
	metadata    bool
}

// fields are all that h has.
func fields(h Headers) []field {
	all := []field{
		{name: "content type", value: h.ContentType}, {name: "content encoding", value: h.ContentEncoding},
		{name: "content disposition", value: h.ContentDisposition}, {name: "content language", value: h.ContentLanguage},
		{name: "cache control", value: h.CacheControl}, {name: "expires", value: h.Expires},
		{name: "website redirect", value: h.WebsiteRedirect}, {name: "storage class", value: h.StorageClass},
	}
	for _, k := range slices.Sorted(maps.Keys(h.Metadata)) {
		all = append(all, field{fmt.Sprintf("metadata %q", k), h.Metadata[k], true})
	}
	return all
}

// lost says why the value would not come back as it went in, "" if it would.
// That takes printable ASCII with no space at either end: stores encode, mangle
// or trim everything else, each in its own way.
func (f field) lost() string {
	for i, r := range f.value {
		if r < ' ' || r > '~' {
			return fmt.Sprintf("character %q at byte %d is not printable ASCII", r, i)
		}
	}
	switch {
	case f.value != strings.TrimSpace(f.value):
		return "a space at its start or end would be lost on the way"
	case f.metadata && strings.HasPrefix(f.value, "=?"):
		return "clients decode what begins with =?"
	}
	return ""
}
