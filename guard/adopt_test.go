package guard_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/internal/mems3"
)

func mustAdopt(t *testing.T, g *guard.Guard, n int64, key string, opts *guard.AdoptOptions) guard.Result {
	t.Helper()
	res, err := g.Adopt(t.Context(), token(t, n), key, opts)
	if err != nil {
		t.Fatalf("adopt %d: %v", n, err)
	}
	return res
}

// theirs writes an object around the guard, with all that one can have.
func theirs(t *testing.T, m *mems3.Store, key, body string) guard.Object {
	t.Helper()
	_, err := m.Put(t.Context(), key, guard.PutRequest{
		Condition: guard.IfAbsent(), Body: guard.Bytes([]byte(body)), Tags: map[string]string{"team": "red"},
		Headers: guard.Headers{
			ContentType: "text/csv", ContentEncoding: "identity", ContentDisposition: "inline", ContentLanguage: "de",
			CacheControl: "no-cache", Expires: "Wed, 02 Dec 2026 00:00:00 GMT", StorageClass: "STANDARD_IA",
			Metadata: map[string]string{"owner": "somebody"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return stand(t, m, key)
}

func stand(t *testing.T, m *mems3.Store, key string) guard.Object {
	t.Helper()
	obj, err := m.Head(t.Context(), key, guard.HeadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return obj
}

// kept checks that only the fence record and the ETag are new.
func kept(t *testing.T, m *mems3.Store, key, body string, before guard.Object) {
	t.Helper()
	now := stand(t, m, key)
	if m.Body(key) != body {
		t.Errorf("%s holds %.20q, want %.20q", key, m.Body(key), body)
	}
	if now.ETag == before.ETag {
		t.Errorf("%s has the ETag that it had", key)
	}
	meta := maps.Clone(now.Metadata)
	if _, err := guard.ParseRecord(meta[guard.RecordKey]); err != nil {
		t.Error(err)
	}
	delete(meta, guard.RecordKey)
	was := maps.Clone(before.Metadata)
	delete(was, guard.RecordKey)
	h, b := now.Headers, before.Headers
	h.Metadata, b.Metadata = nil, nil
	if !maps.Equal(meta, was) || h.ContentType != b.ContentType || h.ContentEncoding != b.ContentEncoding ||
		h.ContentDisposition != b.ContentDisposition || h.ContentLanguage != b.ContentLanguage || h.CacheControl != b.CacheControl ||
		h.Expires != b.Expires || h.StorageClass != b.StorageClass {
		t.Errorf("%s: %+v became %+v", key, before, now)
	}
	tags, err := m.Tags(t.Context(), key, "")
	if err != nil || tags["team"] != "red" {
		t.Errorf("%s: tags %v, %v", key, tags, err)
	}
}

func TestAdopt(t *testing.T) {
	for name, body := range map[string]string{
		"empty": "", "small": "some bytes", "nearly salted": strings.Repeat("x", 6<<20-1),
		"salted": strings.Repeat("y", 6<<20), "large": strings.Repeat("z", 12<<20),
	} {
		m := mems3.New()
		before := theirs(t, m, "k", body)
		_, err := newGuard(m).Put(t.Context(), token(t, 5), "k", guard.Bytes(nil), kms)
		wantRefusal(t, err, guard.ErrUnfenced)
		if res := mustAdopt(t, newGuard(m), 5, "k", &guard.AdoptOptions{DryRun: true}); res.Outcome != guard.Adopted || stand(t, m, "k").ETag != before.ETag {
			t.Errorf("%s, dry run: %+v", name, res)
		}
		res := mustAdopt(t, newGuard(m), 5, "k", nil)
		if res.Outcome != guard.Adopted || res.Bytes != int64(len(body)) || res.Record.Number != 5 || (res.ETagKind == guard.ETagSalted) != (len(body) >= 6<<20) {
			t.Errorf("%s: %+v", name, res)
		}
		kept(t, m, "k", body, before)
		if res := mustAdopt(t, newGuard(m), 4, "k", nil); res.Outcome != guard.AlreadyFenced || res.Previous.Number != 5 {
			t.Errorf("%s, again: %+v", name, res)
		}
		// It is under the guard now.
		_, err = newGuard(m).Put(t.Context(), token(t, 4), "k", guard.Bytes(nil), kms)
		wantRefusal(t, err, guard.ErrStale)
		mustPut(t, newGuard(m), 6, "k", "six", kms)
	}
}

// Of an upload in one part, another one would have the same ETag.
func TestAdoptOfASmallUpload(t *testing.T) {
	m := mems3.New()
	up, err := m.CreateUpload(t.Context(), "k", guard.UploadRequest{
		Headers: guard.Headers{ContentType: "text/plain"}, Tags: map[string]string{"team": "red"},
	})
	if err != nil {
		t.Fatal(err)
	}
	p, err := m.UploadPart(t.Context(), up, 1, guard.Bytes([]byte("small")))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.CompleteUpload(t.Context(), up, guard.CompleteRequest{Condition: guard.IfAbsent(), Parts: []guard.Part{p}}); err != nil {
		t.Fatal(err)
	}
	before := stand(t, m, "k")
	if !strings.HasSuffix(strings.Trim(before.ETag, `"`), "-1") {
		t.Fatalf("ETag %s", before.ETag)
	}
	mustAdopt(t, newGuard(m), 5, "k", nil)
	kept(t, m, "k", "small", before)
}

func TestAdoptNothing(t *testing.T) {
	m := mems3.New()
	if _, err := newGuard(m).Adopt(t.Context(), token(t, 5), "k", nil); !errors.Is(err, guard.ErrNotFound) {
		t.Errorf("%v", err)
	}
}

// Moving an object from one counter to another replaces it, so the ETag rule holds.
func TestAdoptFromAnotherIssuer(t *testing.T) {
	old := guard.IssuerID{9}
	tok, err := guard.NewToken(old, "old/scope", 90)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		body   string
		sse    string
		reason guard.Reason
	}{{"small", "", guard.ErrRepeatableETag}, {"small", "aws:kms", ""}, {strings.Repeat("x", 6<<20), "", ""}} {
		m := mems3.New()
		if _, err := newGuard(m).Put(t.Context(), tok, "k", guard.Bytes([]byte(tt.body)), &guard.PutOptions{Tags: map[string]string{"team": "red"}}); err != nil {
			t.Fatal(err)
		}
		before := stand(t, m, "k")
		_, err := newGuard(m).Adopt(t.Context(), token(t, 5), "k", nil)
		wantRefusal(t, err, guard.ErrScopeMismatch)
		_, err = newGuard(m).Adopt(t.Context(), token(t, 5), "k", &guard.AdoptOptions{From: guard.IssuerID{8}})
		wantRefusal(t, err, guard.ErrScopeMismatch)
		_, err = newGuard(m).Adopt(t.Context(), token(t, 5), "k", &guard.AdoptOptions{From: old, SSE: tt.sse})
		if tt.reason != "" {
			wantRefusal(t, err, tt.reason)
			continue
		}
		if err != nil {
			t.Error(err)
			continue
		}
		kept(t, m, "k", tt.body, before)
		_, err = newGuard(m).Put(t.Context(), tok, "k", guard.Bytes(nil), kms)
		wantRefusal(t, err, guard.ErrScopeMismatch)
	}
}

// A writer that overtakes an adoption wins: what was copied is thrown away.
func TestAdoptOvertaken(t *testing.T) {
	for _, op := range []string{"create-upload", "copy-part", "complete"} {
		m := mems3.New()
		theirs(t, m, "k", "theirs")
		overtaken := false
		m.Before = func(o, key string) error {
			if o == op && !overtaken {
				overtaken = true
				m.Before = nil
				mustAdopt(t, newGuard(m), 7, "k", nil)
				mustPut(t, newGuard(m), 8, "k", "eight", kms)
			}
			return nil
		}
		res, err := newGuard(m).Adopt(t.Context(), token(t, 6), "k", nil)
		if err != nil || res.Outcome != guard.AlreadyFenced || res.Previous.Number != 8 || m.Body("k") != "eight" || !overtaken {
			t.Errorf("%s: %+v, %v, holds %q", op, res, err, m.Body("k"))
		}
		noUploads(t, m)
	}
}

func noUploads(t *testing.T, m *mems3.Store) {
	t.Helper()
	for up, err := range m.Uploads(t.Context(), "") {
		t.Errorf("upload %+v is left, %v", up, err)
	}
}

// Two adoptions at once: one wins, and neither loses the object.
func TestAdoptTwice(t *testing.T) {
	m := mems3.New()
	before := theirs(t, m, "k", "theirs")
	m.Before = func(o, key string) error {
		if o == "complete" {
			m.Before = nil
			mustAdopt(t, newGuard(m), 6, "k", nil)
		}
		return nil
	}
	res, err := newGuard(m).Adopt(t.Context(), token(t, 7), "k", nil)
	if err != nil || res.Outcome != guard.AlreadyFenced || res.Previous.Number != 6 {
		t.Errorf("%+v, %v", res, err)
	}
	kept(t, m, "k", "theirs", before)
	noUploads(t, m)
}

// Case 1 and case 5 for a completion.
func TestAdoptLostAnswers(t *testing.T) {
	for _, tt := range []struct {
		name  string
		hook  func(m *mems3.Store)
		check func(res guard.Result, err error) bool
	}{
		{"applied, its answer lost", func(m *mems3.Store) { m.After = once("complete", 1, errLost) }, func(res guard.Result, err error) bool {
			return err == nil && res.Outcome == guard.AlreadyApplied
		}},
		{"not applied", func(m *mems3.Store) { m.Before = once("complete", 1, errLost) }, func(res guard.Result, err error) bool {
			return err == nil && res.Outcome == guard.Adopted
		}},
		{"its upload gone", func(m *mems3.Store) { m.Before = once("complete", 1, guard.ErrNoUpload) }, func(res guard.Result, err error) bool {
			return err == nil && res.Outcome == guard.Adopted
		}},
		{"a part again", func(m *mems3.Store) { m.Before = once("copy-part", 1, errLost) }, func(res guard.Result, err error) bool {
			return err == nil && res.Outcome == guard.Adopted
		}},
		{"the upload again", func(m *mems3.Store) { m.Before = once("create-upload", 1, guard.ErrConflict) }, func(res guard.Result, err error) bool {
			return err == nil && res.Outcome == guard.Adopted
		}},
		{"no part for ever", func(m *mems3.Store) { m.Before = always("copy-part", errLost) }, func(_ guard.Result, err error) bool {
			return errors.Is(err, errLost) && guard.ReasonOf(err) == ""
		}},
		{"parts denied", func(m *mems3.Store) { m.Before = always("copy-part", guard.ErrDenied) }, func(_ guard.Result, err error) bool {
			return errors.Is(err, guard.ErrDenied) && guard.ReasonOf(err) == ""
		}},
		{"tags denied", func(m *mems3.Store) { m.Before = always("tags", guard.ErrDenied) }, func(_ guard.Result, err error) bool {
			return errors.Is(err, guard.ErrDenied) && guard.ReasonOf(err) == ""
		}},
		{"no completion for ever", func(m *mems3.Store) { m.Before = always("complete", errLost) }, func(_ guard.Result, err error) bool {
			return guard.ReasonOf(err) == guard.ErrOutcomeUnknown
		}},
	} {
		m := mems3.New()
		before := theirs(t, m, "k", "theirs")
		tt.hook(m)
		res, err := newGuard(m).Adopt(t.Context(), token(t, 5), "k", nil)
		if !tt.check(res, err) {
			t.Errorf("%s: %+v, %v", tt.name, res, err)
		}
		m.Before, m.After = nil, nil
		if err == nil {
			kept(t, m, "k", "theirs", before)
		} else if m.Body("k") != "theirs" || stand(t, m, "k").ETag != before.ETag {
			t.Errorf("%s: the object changed", tt.name)
		}
		if !strings.Contains(tt.name, "its upload gone") { // which the store only said
			noUploads(t, m)
		}
	}
}

// What was deleted around the guard comes back, above every number that was there.
func TestAdoptRecover(t *testing.T) {
	m := mems3.New()
	m.Bucket.Versioning = guard.VersioningOn
	mustPut(t, newGuard(m), 5, "k", "five", &guard.PutOptions{Tags: map[string]string{"team": "red"}})
	mustPut(t, newGuard(m), 7, "k", "seven", &guard.PutOptions{SSE: "aws:kms", Tags: map[string]string{"team": "red"}})
	m.Remove("k")
	back := &guard.AdoptOptions{Recover: true}
	_, err := newGuard(m).Adopt(t.Context(), token(t, 8), "k", nil)
	wantRefusal(t, err, guard.ErrFenceLost)
	for n, reason := range map[int64]guard.Reason{6: guard.ErrStale, 7: guard.ErrReplayed} {
		_, err := newGuard(m).Adopt(t.Context(), token(t, n), "k", back)
		wantRefusal(t, err, reason)
	}
	res := mustAdopt(t, newGuard(m), 8, "k", back)
	if res.Outcome != guard.Adopted || res.Previous.Number != 7 || m.Body("k") != "seven" {
		t.Errorf("%+v, %q", res, m.Body("k"))
	}
	mustPut(t, newGuard(m), 9, "k", "nine", kms)
	if res := mustAdopt(t, newGuard(m), 10, "k", back); res.Outcome != guard.AlreadyFenced {
		t.Errorf("nothing to recover: %+v", res)
	}

	// An older version brought back over a newer one.
	five := guard.Record{Issuer: testIssuer, Scope: testScope, Number: 5, Sequence: 1, WriteID: guard.WriteID{5}, State: guard.Live}
	m.Overwrite("k", "five", map[string]string{guard.RecordKey: five.String()})
	_, err = newGuard(m).Adopt(t.Context(), token(t, 8), "k", &guard.AdoptOptions{Recover: true, SSE: "aws:kms"})
	wantRefusal(t, err, guard.ErrStale)
	_, err = newGuard(m).Adopt(t.Context(), token(t, 10), "k", back)
	wantRefusal(t, err, guard.ErrRepeatableETag)
	if res := mustAdopt(t, newGuard(m), 10, "k", &guard.AdoptOptions{Recover: true, SSE: "aws:kms"}); res.Outcome != guard.Adopted || m.Body("k") != "five" {
		t.Errorf("%+v, %q", res, m.Body("k"))
	}
	_, err = newGuard(m).Put(t.Context(), token(t, 9), "k", guard.Bytes(nil), kms)
	wantRefusal(t, err, guard.ErrStale)
}

// A guard that has written the key notices what a fresh one can't.
func TestSetBackIsNoticed(t *testing.T) {
	m := mems3.New()
	m.Bucket.Versioning = guard.VersioningOn
	g := newGuard(m)
	mustPut(t, g, 5, "k", "five", nil)
	mustPut(t, g, 7, "k", "seven", kms)
	five := guard.Record{Issuer: testIssuer, Scope: testScope, Number: 5, Sequence: 1, WriteID: guard.WriteID{5}, State: guard.Live}
	m.Overwrite("k", "five", map[string]string{guard.RecordKey: five.String()})
	for _, n := range []int64{6, 8} {
		_, err := g.Put(t.Context(), token(t, n), "k", guard.Bytes(nil), kms)
		if r := wantRefusal(t, err, guard.ErrFenceLost); r.Held.Number != 7 {
			t.Errorf("%+v", r)
		}
	}
	m.Bucket.Versioning = guard.VersioningOff // nothing to look into: a higher number mends it
	g = newGuard(m)
	mustPut(t, g, 9, "o", "nine", kms)
	m.Overwrite("o", "five", map[string]string{guard.RecordKey: five.String()})
	_, err := g.Put(t.Context(), token(t, 8), "o", guard.Bytes(nil), kms)
	wantRefusal(t, err, guard.ErrFenceLost)
	mustPut(t, g, 10, "o", "ten", kms)
}

func TestAdoptMetadataTooLarge(t *testing.T) {
	m := mems3.New()
	m.Overwrite("k", "x", map[string]string{"big": strings.Repeat("x", 1990)})
	if _, err := newGuard(m).Adopt(t.Context(), token(t, 5), "k", nil); !errors.Is(err, guard.ErrInvalid) || m.Body("k") != "x" {
		t.Errorf("%v", err)
	}
}

// What was written around the guard over a fenced version is not adopted with a
// number that is not above it, where the bucket keeps versions to tell.
func TestAdoptOverFencedVersion(t *testing.T) {
	m := mems3.New()
	m.Bucket.Versioning = guard.VersioningOn
	mustPut(t, newGuard(m), 69, "k", "fenced", nil)
	m.Overwrite("k", "around", nil)
	if _, err := newGuard(m).Adopt(t.Context(), token(t, 68), "k", nil); !errors.Is(err, guard.ErrStale) {
		t.Errorf("with 68: %v", err)
	}
	if _, err := newGuard(m).Adopt(t.Context(), token(t, 69), "k", nil); !errors.Is(err, guard.ErrReplayed) {
		t.Errorf("with 69: %v", err)
	}
	// The same bytes may have been adopted before, with the same ETag.
	if _, err := newGuard(m).Adopt(t.Context(), token(t, 70), "k", nil); !errors.Is(err, guard.ErrRepeatableETag) {
		t.Errorf("with 70: %v", err)
	}
	if res, err := newGuard(m).Adopt(t.Context(), token(t, 70), "k", &guard.AdoptOptions{SSE: "aws:kms"}); err != nil || res.Outcome != guard.Adopted {
		t.Errorf("with 70: %+v, %v", res, err)
	}
}

// An object that can't be adopted says so at once: nothing was sent.
func TestAdoptInvalidIsFinal(t *testing.T) {
	m := mems3.New()
	m.Overwrite("k", "x", map[string]string{"long": strings.Repeat("x", 1950)})
	res, err := newGuard(m).Adopt(t.Context(), token(t, 1), "k", nil)
	if !errors.Is(err, guard.ErrInvalid) || errors.Is(err, guard.ErrOutcomeUnknown) || res.Requests > 4 {
		t.Errorf("%+v, %v", res, err)
	}
}

// A dry run refuses what the real one would, as far as reading tells.
func TestAdoptDryRun(t *testing.T) {
	limited := guard.Options{Profile: func(context.Context) (guard.Profile, error) {
		return guard.Profile{Pass: true, Limits: []string{"multipart-if-match"}}, nil
	}}
	metadata := func(v string) guard.Headers { return guard.Headers{Metadata: map[string]string{"owner": v}} }
	for name, tt := range map[string]struct {
		headers guard.Headers
		opts    guard.Options
		before  func(op, key string) error
		want    error
		says    string
	}{
		"disposition": {
			headers: guard.Headers{ContentDisposition: `attachment; filename="bücher.csv"`}, want: guard.ErrInvalid,
			says: `the object's content disposition can't be kept: character 'ü' at byte 23 is not printable ASCII; copy the object onto itself with another, then adopt it`,
		},
		"expires":          {headers: guard.Headers{Expires: "nächstes Jahr"}, want: guard.ErrInvalid, says: "the object's expires can't be kept: "},
		"space":            {headers: metadata("me "), want: guard.ErrInvalid, says: `the object's metadata "owner" can't be kept: a space`},
		"encoded metadata": {headers: metadata("=?UTF-8?Q?b=C3=BCcher?="), want: guard.ErrInvalid, says: `the object's metadata "owner" can't be kept: `},
		"much metadata":    {headers: metadata(strings.Repeat("x", 1990)), want: guard.ErrInvalid, says: "write it anew with less"},
		"tags denied":      {before: always("tags", guard.ErrDenied), want: guard.ErrDenied, says: "read the tags"},
		"no multipart":     {opts: limited, want: guard.ErrStoreUnsafe, says: "multipart-if-match"},
	} {
		m := mems3.New()
		if _, err := m.Put(t.Context(), "k", guard.PutRequest{Condition: guard.IfAbsent(), Body: guard.Bytes([]byte("x")), Headers: tt.headers}); err != nil {
			t.Fatal(err)
		}
		before := stand(t, m, "k")
		m.Before = func(op, key string) error {
			if op == "create-upload" || op == "put" {
				t.Errorf("%s: %s", name, op)
			}
			if tt.before == nil {
				return nil
			}
			return tt.before(op, key)
		}
		var texts []string
		for _, dry := range []bool{true, false} {
			_, err := guard.New(m, &tt.opts).Adopt(t.Context(), token(t, 5), "k", &guard.AdoptOptions{DryRun: dry})
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) {
				t.Fatalf("%s, dry run %t: %v", name, dry, err)
			}
			texts = append(texts, err.Error())
		}
		if texts[0] != texts[1] {
			t.Errorf("%s: a dry run said %q, the real one %q", name, texts[0], texts[1])
		}
		if stand(t, m, "k").ETag != before.ETag {
			t.Errorf("%s: the object changed", name)
		}
	}
}
