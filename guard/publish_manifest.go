package guard

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"strings"
	"unicode/utf8"
)

// Limits of a published set. Its manifest is held in memory whole.
const (
	// MaxSetFiles is how many files a set may have.
	MaxSetFiles = 100_000
	// MaxManifest is the largest manifest, in bytes.
	MaxManifest = 32 << 20
)

// A SetFile is one file of a published set.
type SetFile struct {
	// Name below the set, with slashes.
	Name string
	// Folder below <dataset>/data/ that the file is in, <number>-<write id> of the
	// publish that sent it.
	Folder string
	Size   int64
	// Checksum of the bytes, always CRC32C.
	Checksum    Checksum
	ContentType string
}

// ManifestKey returns the key of a dataset's manifest.
func ManifestKey(dataset string) string { return dataset + "/manifest.json" }

func dataPrefix(dataset string) string { return dataset + "/data/" }

// Key returns the key of the file.
func (f SetFile) Key(dataset string) string { return dataPrefix(dataset) + f.Folder + "/" + f.Name }

// setFolder is the folder that a publish sends its files to.
func setFolder(number int64, id WriteID) string {
	return fmt.Sprintf("%0*d-%s", numberDigits, number, id)
}

// parseFolder reads what setFolder writes.
func parseFolder(s string) (number int64, id WriteID, err error) {
	digits, hex, _ := strings.Cut(s, "-")
	if number, err = parseDigits(digits, numberDigits); err == nil {
		id, err = ParseWriteID(hex)
	}
	return number, id, err
}

// DataKey reads the number and the write id off the key of a file that was
// published. ok is false for any other key.
func DataKey(key string) (number int64, id WriteID, ok bool) {
	for rest := key; ; {
		if _, rest, ok = strings.Cut(rest, "/data/"); !ok {
			return 0, WriteID{}, false
		}
		folder, name, _ := strings.Cut(rest, "/")
		if number, id, err := parseFolder(folder); err == nil && name != "" {
			return number, id, true
		}
	}
}

// checkDataset reports why a dataset can't be named so.
func checkDataset(dataset string) error {
	switch {
	case dataset == "":
		return invalid("the dataset has no name: it takes a prefix of its own, not a bucket alone")
	case strings.HasPrefix(dataset, "/") || strings.HasSuffix(dataset, "/"):
		return invalid("dataset %q: leave out the slash at its start or end", dataset)
	case IsOwn(ManifestKey(dataset)):
		return invalid("dataset %q: what lies under %s is s3fence's own", dataset, OwnPrefix)
	}
	return CheckKey(ManifestKey(dataset))
}

// checkSet reports why files can't be a set: too many, or names that are no
// files' or are not files' together.
func checkSet(dataset string, files []SetFile) error {
	if len(files) > MaxSetFiles {
		return invalid("the set has %d files; it takes at most %d", len(files), MaxSetFiles)
	}
	names := make(map[string]bool, len(files))
	for _, f := range files {
		switch {
		case !fs.ValidPath(f.Name) || f.Name == ".":
			return invalid("%q can't be the name of a file: names are relative, with single slashes between parts that are not . or ..", f.Name)
		case names[f.Name]:
			return invalid("the file %q is there twice", f.Name)
		}
		if err := CheckKey(f.Key(dataset)); err != nil {
			return fmt.Errorf("file %q: %w", f.Name, err)
		}
		names[f.Name] = true
	}
	for _, f := range files {
		for i, c := range f.Name {
			if c == '/' && names[f.Name[:i]] {
				return invalid("%q can't be a file and the folder of %q", f.Name[:i], f.Name)
			}
		}
	}
	return nil
}

// The manifest's text, as docs/protocol.md has it.
type manifestJSON struct {
	Format int `json:"s3fence_manifest"`
	ownJSON
	Files []setFileJSON `json:"files"`
}

type setFileJSON struct {
	Name   string `json:"name"`
	Folder string `json:"folder"`
	Size   int64  `json:"size"`
	CRC32C string `json:"crc32c"`
	Type   string `json:"content_type,omitempty"`
}

const manifestFormat = 1

// formatManifest returns the text of a manifest of files, which are sorted by
// their names.
func formatManifest(r Record, files []SetFile) ([]byte, error) {
	m := manifestJSON{Format: manifestFormat, ownJSON: newOwnJSON(r), Files: make([]setFileJSON, len(files))}
	for i, f := range files {
		m.Files[i] = setFileJSON{f.Name, f.Folder, f.Size, f.Checksum.Value, f.ContentType}
	}
	b, err := json.Marshal(m)
	if err == nil && len(b) >= MaxManifest {
		err = invalid("the manifest of %d files has %d bytes; it takes less than %d", len(files), len(b), MaxManifest)
	}
	return append(b, '\n'), err
}

// check refuses what newOwnJSON would not have written.
func (o ownJSON) check() (err error) {
	r := Record{Scope: o.Scope, Number: o.Token, Sequence: o.Sequence, State: Live}
	if r.Issuer, err = ParseIssuerID(o.Issuer); err != nil {
		return fmt.Errorf("issuer: %w", err)
	}
	if r.WriteID, err = ParseWriteID(o.WriteID); err != nil {
		return fmt.Errorf("write id: %w", err)
	}
	_, err = parseRecord(r.String()) // which knows the rest
	return err
}

// parseManifest reads a manifest, which anybody may have written: what a writer
// would not have written is refused. What it says of its writer is true of the
// object's record, too, unless it was adopted since.
func parseManifest(dataset string, b []byte) ([]SetFile, error) {
	if !utf8.Valid(b) {
		return nil, errors.New("it is not UTF-8")
	}
	var m manifestJSON
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields() // of a format that is not known, they might matter
	if err := d.Decode(&m); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("something follows it")
	}
	if m.Format != manifestFormat {
		return nil, fmt.Errorf("its format is %d, not %d: a newer s3fence may read it", m.Format, manifestFormat)
	}
	if err := m.check(); err != nil {
		return nil, err
	}
	files := make([]SetFile, len(m.Files))
	for i, f := range m.Files {
		if _, _, err := parseFolder(f.Folder); err != nil {
			return nil, fmt.Errorf("file %q: folder %q: %w", f.Name, f.Folder, err)
		}
		sum, err := base64.StdEncoding.Strict().DecodeString(f.CRC32C)
		switch {
		case err != nil || len(sum) != crc32.Size || strings.ContainsAny(f.CRC32C, "\r\n"):
			return nil, fmt.Errorf("file %q: crc32c %q is not 4 bytes in base64", f.Name, f.CRC32C)
		case f.Size < 0 || f.Size > MaxObject:
			return nil, fmt.Errorf("file %q: %d bytes", f.Name, f.Size)
		case i > 0 && f.Name <= m.Files[i-1].Name:
			return nil, fmt.Errorf("file %q is not in the order of names", f.Name)
		}
		files[i] = SetFile{f.Name, f.Folder, f.Size, Checksum{"CRC32C", f.CRC32C}, f.Type}
	}
	return files, checkSet(dataset, files)
}
