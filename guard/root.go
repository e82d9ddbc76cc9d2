package guard

import "strings"

// RootKey returns the key of one of s3fence's own objects under a root:
// <prefix>/.s3fence/<name>. The prefix's own slash at its end is not doubled;
// an empty prefix is the top of the bucket.
func RootKey(prefix, name string) string {
	if prefix != "" && !strings.HasSuffix(prefix, "/") {
		prefix += "/"
	}
	return prefix + ".s3fence/" + name
}
