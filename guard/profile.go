package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// A Profile says what was proven of one bucket at one endpoint, so that a
// guard need not believe a store that it has never seen. The probe
// (s3store/probe, the command doctor) finds it out, [Guard.SaveProfile] keeps
// it in the store, [StoredProfile] reads it back.
type Profile struct {
	// Endpoint is the host that the store was reached at, with its port if it
	// has one. Bucket is the bucket that was proven.
	Endpoint, Bucket string
	// Pass says that everything holds which plain guarded PUTs need.
	Pass bool
	// Failed are the properties that do not hold, when Pass is false.
	Failed []string
	// Limits name capabilities that are unsafe although Pass is true, such as
	// multipart-if-match.
	Limits []string
	// UniqueETags: every write gets an ETag of its own, whatever its bytes,
	// with no encryption asked for. It lifts the ETag rule from replacements.
	UniqueETags bool
	// ETagKinds per encryption: none, AES256, aws:kms. Those that the store
	// does not have are absent.
	ETagKinds map[string]ETagKind
	// Probe is the version of the probe, Quick whether it made a quick run.
	Probe int
	Quick bool
	// Proven is when, for people to read; nothing is decided by it.
	Proven time.Time
	// WriteID is that of the write that saved it. It makes its bytes unique,
	// so that the profile can be replaced on every store.
	WriteID WriteID
}

// profileText is the JSON of a Profile. Format rises when a reader of the old
// one would get it wrong.
type profileText struct {
	Format      int                 `json:"s3fence_profile"`
	Endpoint    string              `json:"endpoint"`
	Bucket      string              `json:"bucket"`
	Verdict     string              `json:"verdict"`
	Failed      []string            `json:"failed,omitempty"`
	Limits      []string            `json:"limits,omitempty"`
	UniqueETags bool                `json:"unique_etags"`
	ETagKinds   map[string]ETagKind `json:"etag_kinds,omitempty"`
	Probe       int                 `json:"probe"`
	Quick       bool                `json:"quick,omitempty"`
	Proven      time.Time           `json:"proven,omitzero"`
	WriteID     string              `json:"write_id"`
}

const profileFormat = 1

// MarshalText implements encoding.TextMarshaler: indented JSON.
func (p Profile) MarshalText() ([]byte, error) {
	t := profileText{
		Format: profileFormat, Endpoint: p.Endpoint, Bucket: p.Bucket, Verdict: "fail", Failed: p.Failed, Limits: p.Limits,
		UniqueETags: p.UniqueETags, ETagKinds: p.ETagKinds, Probe: p.Probe, Quick: p.Quick, Proven: p.Proven,
		WriteID: p.WriteID.String(),
	}
	if p.Pass {
		t.Verdict = "pass"
	}
	b, err := json.MarshalIndent(t, "", "  ")
	return append(b, '\n'), err
}

// ParseProfile reads a profile's text. Fields that it does not know are left
// out; anything else that is not a whole profile is an error.
func ParseProfile(b []byte) (Profile, error) {
	var t profileText
	if err := json.Unmarshal(b, &t); err != nil {
		return Profile{}, fmt.Errorf("not a store profile: %w", err)
	}
	p := Profile{
		Endpoint: t.Endpoint, Bucket: t.Bucket, Pass: t.Verdict == "pass", Failed: t.Failed, Limits: t.Limits,
		UniqueETags: t.UniqueETags, ETagKinds: t.ETagKinds, Probe: t.Probe, Quick: t.Quick, Proven: t.Proven,
	}
	var err error
	p.WriteID, err = ParseWriteID(t.WriteID)
	switch {
	case t.Format != profileFormat:
		return Profile{}, fmt.Errorf("not a store profile of format %d but %d", profileFormat, t.Format)
	case t.Verdict != "pass" && t.Verdict != "fail":
		return Profile{}, fmt.Errorf("store profile: verdict %q is neither pass nor fail", t.Verdict)
	case t.Endpoint == "" || t.Bucket == "":
		return Profile{}, errors.New("store profile: it names no endpoint or no bucket")
	case t.Probe < 1:
		return Profile{}, errors.New("store profile: it names no version of the probe")
	case err != nil:
		return Profile{}, fmt.Errorf("store profile: write id: %w", err)
	}
	return p, nil
}

// Check returns why the profile does not allow to write to bucket at endpoint,
// a host with its port: it is of another store, or the store failed. The error
// is a [*Refusal] with [ErrStoreUnsafe], or nil.
func (p Profile) Check(endpoint, bucket string) error {
	switch {
	case !strings.EqualFold(p.Endpoint, endpoint):
		return unproven(bucket, fmt.Sprintf("its profile was made at the endpoint %s, this one is %s", p.Endpoint, endpoint))
	case p.Bucket != bucket:
		return unproven(bucket, fmt.Sprintf("its profile is of the bucket %s", p.Bucket))
	}
	return p.passed()
}

func (p Profile) passed() error {
	if p.Pass {
		return nil
	}
	return unproven(p.Bucket, "its profile says that it fails: "+strings.Join(p.Failed, ", "))
}

func unproven(bucket, detail string) *Refusal {
	url := "s3://" + bucket
	return &Refusal{Reason: ErrStoreUnsafe, URL: url, Detail: detail, Cures: proofs(url)}
}

// proofs are the ways to have the store of url proven, which is its bucket, with
// --root before it where that is elsewhere.
func proofs(url string) []string {
	return []string{
		"prove it, once: s3fence doctor --save " + url + " (init --scope SCOPE " + url + " does that too)",
		"or vouch for it yourself: --no-profile, S3FENCE_NO_PROFILE=1; a bucket with a default retention takes that, when another bucket of the same store is proven",
	}
}

// ProfileScope is the scope of the tokens that profiles are saved with.
const ProfileScope = "s3fence/profile"

const profileName = "profile.json"

// maxProfile bounds what is read of an object that should be a profile.
const maxProfile = 64 << 10

// A ProfileSource finds out what was proven of a store. A store that is not
// proven, or not the one that was, is an error: a [*Refusal] with
// [ErrStoreUnsafe]. Other errors may pass, and are asked again as those of a
// request.
type ProfileSource func(context.Context) (Profile, error)

// StoredProfile reads the profile that was saved under root, a prefix in
// store, and checks that it is of bucket at endpoint and passes.
func StoredProfile(store Store, root, endpoint, bucket string) ProfileSource {
	return func(ctx context.Context) (Profile, error) {
		p, err := readProfile(ctx, store, root, bucket)
		if err == nil {
			err = p.Check(endpoint, bucket)
		}
		at, url := strings.TrimSuffix(store.URL(root), "/"), "s3://"+bucket
		if r := new(Refusal); at != url && errors.As(err, &r) {
			r.Cures = proofs("--root " + at + " " + url)
		}
		return p, err
	}
}

func readProfile(ctx context.Context, store Store, root, bucket string) (Profile, error) {
	key := RootKey(root, profileName)
	_, r, err := store.Get(ctx, key, ReadOptions{})
	if errors.Is(err, ErrNotFound) {
		return Profile{}, unproven(bucket, "nobody has proven that it honours conditional writes: there is no "+store.URL(key))
	}
	if err != nil {
		return Profile{}, fmt.Errorf("read the store's profile: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(r, maxProfile))
	if err = errors.Join(err, r.Close()); err != nil {
		return Profile{}, fmt.Errorf("read the store's profile: %w", err)
	}
	p, err := ParseProfile(text)
	if err != nil {
		return Profile{}, unproven(bucket, fmt.Sprintf("%s: %v", store.URL(key), err))
	}
	return p, nil
}

// SaveProfile writes p to <root>/.s3fence/profile.json, a guarded object like
// any other, with a token of [ProfileScope]. It needs no passing profile, and
// no settings for unique ETags: its bytes carry its write id, so no ETag of
// its can come back. Errors are those of [Guard.Put].
func (g *Guard) SaveProfile(ctx context.Context, tok Token, root string, p Profile) (Result, error) {
	id, err := NewWriteID(g.rand)
	if err != nil {
		return Result{}, fmt.Errorf("save the store's profile: %w", err)
	}
	p.WriteID = id
	p.Limits = slices.Sorted(slices.Values(p.Limits))
	p.ETagKinds = maps.Clone(p.ETagKinds)
	text, err := p.MarshalText()
	if err != nil {
		return Result{}, fmt.Errorf("save the store's profile: %w", err)
	}
	return g.write(ctx, tok, RootKey(root, profileName), "put", &write{
		opts: PutOptions{Headers: Headers{ContentType: "application/json"}, WriteID: id},
		body: Bytes(text), own: true, internal: true,
	})
}

// provenUnique is uniqueSSE, unless the store was seen to take the encryption
// and give the same bytes the same ETag all the same.
func (g *Guard) provenUnique(sse string) bool {
	p := g.profile.known.Load()
	return uniqueSSE(sse) && (p == nil || p.ETagKinds["aws:kms"] != ETagRepeatable)
}

// proven asks the profile source, once: before the first write, and again only
// if it refused, since somebody may have proven the store since.
func (g *Guard) proven(ctx context.Context, c *call) error {
	if g.source == nil {
		return nil
	}
	_, err := g.profile.get(ctx, c, func(ctx context.Context) (Profile, error) {
		p, err := g.source(ctx)
		if err == nil {
			err = p.passed()
		}
		return p, err
	})
	return err
}
