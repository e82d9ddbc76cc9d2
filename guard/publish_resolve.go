package guard

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// A Manifest is a published set, as it was when it was read.
type Manifest struct {
	Dataset string
	// Info is the manifest's own object. Its Record says who published it.
	Info
	// Files are sorted by their names.
	Files []SetFile
}

// Resolve reads the manifest of a dataset: the set that was published last. Its
// files are there, whole, for as long as they are not removed as [Guard.Garbage].
//
// Errors are those of [Guard.Get], a dataset that was never published, or was
// deleted, being ErrNotFound; [ErrUnfenced], of a manifest that was written around
// the guard; [ErrCorruptRecord], of what is no manifest. opts may be nil.
func (g *Guard) Resolve(ctx context.Context, dataset string, opts *GetOptions) (Manifest, error) {
	var o GetOptions
	if opts != nil {
		o = *opts
	}
	m, err := g.resolve(ctx, dataset, o.Floor)
	if err != nil {
		return m, naming("resolve", g.store.URL(dataset), err)
	}
	return m, nil
}

func (g *Guard) resolve(ctx context.Context, dataset string, floor Floor) (m Manifest, err error) {
	key := ManifestKey(dataset)
	m = Manifest{Dataset: dataset, Info: Info{Key: key, URL: g.store.URL(key)}}
	if err := checkDataset(dataset); err != nil {
		return m, err
	}
	c := &call{g: g}
	defer func() { m.Requests = c.requests }()
	for {
		body, err := c.get(ctx, key, floor, &m.Info)
		if err != nil {
			return m, err
		}
		b, err := readManifest(m.Size, body)
		if err == nil {
			err = m.read(b)
			return m, err
		}
		if err := c.pause(ctx, err); err != nil {
			return m, err
		}
	}
}

func (m *Manifest) read(b []byte) (err error) {
	if m.Record == nil {
		return &Refusal{
			Reason: ErrUnfenced, Key: m.Key, URL: m.URL, Detail: "the manifest was written around the guard",
			Cures: []string{"publish again, once it is out of the way; or, if it is right, bring it under the guard: s3fence adopt " + m.URL},
		}
	}
	if m.Files, err = parseManifest(m.Dataset, b); err != nil {
		return noManifest(m.Key, m.URL, err)
	}
	return nil
}

// readManifest reads and closes the body of a manifest, whose size may not be
// known.
func readManifest(size int64, body io.ReadCloser) ([]byte, error) {
	var b []byte
	var err error
	if size < MaxManifest {
		b, err = io.ReadAll(io.LimitReader(body, MaxManifest))
	}
	switch err = errors.Join(err, body.Close()); {
	case err != nil:
		return nil, err
	case size >= MaxManifest || len(b) == MaxManifest:
		return nil, fmt.Errorf("%w: it has %d bytes or more, which no manifest has", ErrRejected, max(size, MaxManifest))
	}
	return b, nil
}

// noManifest is the error about what is no manifest.
func noManifest(key, url string, err error) error {
	return &Refusal{
		Reason: ErrCorruptRecord, Key: key, URL: url, Err: err, Detail: "it is no manifest",
		Cures: []string{"publish the set again, or bring an older version of the manifest back and write it with a higher token"},
	}
}
