package guard_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/internal/mems3"
)

func testProfile() guard.Profile {
	return guard.Profile{
		Endpoint: "127.0.0.1:9000", Bucket: "mem", Pass: true, Limits: []string{"multipart-if-match"},
		ETagKinds: map[string]guard.ETagKind{"none": guard.ETagRepeatable, "aws:kms": guard.ETagUnique},
		Probe:     1, Quick: true, Proven: time.Date(2026, 12, 2, 3, 4, 5, 0, time.UTC), WriteID: guard.WriteID{15: 7},
	}
}

func profileToken(t *testing.T, n int64) guard.Token {
	t.Helper()
	tok, err := guard.NewToken(guard.IssuerID{1}, guard.ProfileScope, n)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestProfileText(t *testing.T) {
	want := testProfile()
	text, err := want.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	got, err := guard.ParseProfile(text)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	for n := range len(text) - 2 { // the last are a brace and a newline
		if p, err := guard.ParseProfile(text[:n]); err == nil {
			t.Fatalf("the first %d bytes parse, as %+v", n, p)
		}
	}
	for old, with := range map[string]string{
		`"s3fence_profile": 1`:     `"s3fence_profile": 2`,
		`"verdict": "pass"`:        `"verdict": "perhaps"`,
		`"endpoint": "127`:         `"endpoint": "", "was": "127`,
		`"bucket": "mem"`:          `"bucket": ""`,
		`"probe": 1`:               `"probe": 0`,
		`00000007"`:                `7"`,
		`"proven": "2026-12-02T03`: `"proven": "today`,
	} {
		if p, err := guard.ParseProfile(bytes.Replace(text, []byte(old), []byte(with), 1)); err == nil {
			t.Errorf("with %s it parses, as %+v", with, p)
		}
	}
	more := bytes.Replace(text, []byte(`"probe": 1`), []byte(`"probe": 1, "new": true`), 1)
	if _, err := guard.ParseProfile(more); err != nil {
		t.Errorf("a new field: %v", err)
	}
}

// A guard that was told where the profile is writes only to a store that it
// vouches for, and asks once.
func TestProfileGate(t *testing.T) {
	for name, tt := range map[string]struct {
		p    func(*guard.Profile)
		says string
	}{
		"missing":          {nil, "nobody has proven"},
		"passes":           {func(*guard.Profile) {}, ""},
		"fails":            {func(p *guard.Profile) { p.Pass, p.Failed = false, []string{"head-not-torn"} }, "head-not-torn"},
		"another bucket":   {func(p *guard.Profile) { p.Bucket = "other" }, "of the bucket other"},
		"another endpoint": {func(p *guard.Profile) { p.Endpoint = "minio:9000" }, "made at the endpoint minio:9000"},
	} {
		t.Run(name, func(t *testing.T) {
			s := mems3.New()
			if tt.p != nil {
				p := testProfile()
				tt.p(&p)
				if _, err := newGuard(s).SaveProfile(t.Context(), profileToken(t, 1), "root", p); err != nil {
					t.Fatal(err)
				}
			}
			asked := 0
			stored := guard.StoredProfile(s, "root", "127.0.0.1:9000", "mem")
			g := guard.New(s, &guard.Options{Profile: func(ctx context.Context) (guard.Profile, error) {
				asked++
				return stored(ctx)
			}})
			if asked != 0 {
				t.Error("asked before the first write")
			}
			_, err := g.Put(t.Context(), token(t, 5), "k", guard.Bytes([]byte("a")), nil)
			if tt.says == "" {
				if err != nil {
					t.Fatal(err)
				}
				mustPut(t, g, 6, "k2", "b", nil)
				if asked != 1 {
					t.Errorf("asked %d times", asked)
				}
				return
			}
			r := wantRefusal(t, err, guard.ErrStoreUnsafe)
			if !strings.Contains(r.Error(), tt.says) || r.URL != "s3://mem/k" || r.Offered.Number != 5 {
				t.Errorf("%v", r)
			}
			if cures := strings.Join(r.Cures, "\n"); !strings.Contains(cures, "doctor --save --root s3://mem/root s3://mem ") || !strings.Contains(cures, "--no-profile") || !strings.Contains(cures, "default retention") {
				t.Errorf("cures: %s", cures)
			}
			if got := s.Body("k"); got != "(absent)" {
				t.Errorf("the object holds %q", got)
			}
			_, err = g.Claim(t.Context(), token(t, 5), nil)
			r = wantRefusal(t, err, guard.ErrStoreUnsafe)
			if fence := guard.ScopeFenceKey("", r.Offered.Scope); r.Key != fence || s.Body(fence) != "(absent)" {
				t.Errorf("claim: %+v; the scope fence holds %q", r, s.Body(fence))
			}
		})
	}
}

// Somebody proves the store while a guard is at work: the next write goes on.
func TestProfileComesLater(t *testing.T) {
	s := mems3.New()
	g := guard.New(s, &guard.Options{Profile: guard.StoredProfile(s, "", "127.0.0.1:9000", "mem")})
	_, err := g.Put(t.Context(), token(t, 1), "k", guard.Bytes(nil), nil)
	if r := wantRefusal(t, err, guard.ErrStoreUnsafe); !strings.Contains(r.Cures[0], "doctor --save s3://mem ") {
		t.Errorf("cures: %q", r.Cures)
	}
	if _, err := g.SaveProfile(t.Context(), profileToken(t, 1), "", testProfile()); err != nil {
		t.Fatal(err)
	}
	mustPut(t, g, 2, "k", "a", nil)
}

// A profile that can't be read is no refusal, and nothing was written.
func TestProfileUnreadable(t *testing.T) {
	s := mems3.New()
	asked := 0
	g := guard.New(s, &guard.Options{
		Backoff: func(int) time.Duration { return 0 },
		Profile: func(context.Context) (guard.Profile, error) {
			if asked++; asked < 3 {
				return guard.Profile{}, errLost
			}
			return testProfile(), nil
		},
	})
	mustPut(t, g, 1, "k", "a", nil) // it passed
	g = guard.New(s, &guard.Options{
		Backoff: func(int) time.Duration { return 0 },
		Profile: func(context.Context) (guard.Profile, error) { return guard.Profile{}, errLost },
	})
	_, err := g.Put(t.Context(), token(t, 2), "k", guard.Bytes(nil), nil)
	if !errors.Is(err, errLost) || guard.ReasonOf(err) != "" {
		t.Errorf("%v", err)
	}
}

// A profile is saved over an older one on a store of MD5 ETags, with no
// settings, no profile, and no warning: its bytes are unique.
func TestSaveProfile(t *testing.T) {
	s := mems3.New()
	var logged bytes.Buffer
	g := guard.New(s, &guard.Options{
		Logger:  slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Profile: func(context.Context) (guard.Profile, error) { t.Error("asked"); return guard.Profile{}, nil },
	})
	texts := map[string]bool{}
	for n := int64(1); n <= 3; n++ {
		res, err := g.SaveProfile(t.Context(), profileToken(t, n), "", testProfile())
		if err != nil || res.ETagKind != guard.ETagUnique {
			t.Fatalf("%+v, %v", res, err)
		}
		texts[s.Body(".s3fence/profile.json")] = true
	}
	if len(texts) != 3 || logged.Len() > 0 {
		t.Errorf("%d texts, logged %s", len(texts), &logged)
	}
	_, err := g.SaveProfile(t.Context(), profileToken(t, 2), "", testProfile())
	wantRefusal(t, err, guard.ErrStale)
}

// A profile that says so lifts the ETag rule.
func TestProfileUniqueETags(t *testing.T) {
	for _, unique := range []bool{false, true} {
		p := testProfile()
		p.UniqueETags = unique
		g := guard.New(mems3.New(), &guard.Options{Profile: func(context.Context) (guard.Profile, error) { return p, nil }})
		mustPut(t, g, 1, "k", "a", nil)
		_, err := g.Put(t.Context(), token(t, 2), "k", guard.Bytes([]byte("b")), nil)
		if (err == nil) != unique {
			t.Errorf("unique %v: %v", unique, err)
		}
	}
}

// A store that takes aws:kms and gives MD5 ETags all the same is not believed.
func TestProfileRepeatableKMS(t *testing.T) {
	p := testProfile()
	p.ETagKinds["aws:kms"] = guard.ETagRepeatable
	g := guard.New(mems3.New(), &guard.Options{Profile: func(context.Context) (guard.Profile, error) { return p, nil }})
	mustPut(t, g, 1, "k", "a", kms)
	_, err := g.Put(t.Context(), token(t, 2), "k", guard.Bytes([]byte("b")), kms)
	if r := wantRefusal(t, err, guard.ErrRepeatableETag); !strings.Contains(r.Detail, "by its profile") || strings.Contains(strings.Join(r.Cures, "\n"), "--sse") {
		t.Errorf("%+v", r)
	}
	delete(p.ETagKinds, "aws:kms") // no KMS
	_, err = g.Put(t.Context(), token(t, 2), "k", guard.Bytes([]byte("b")), nil)
	if r := wantRefusal(t, err, guard.ErrRepeatableETag); !strings.Contains(r.Cures[0], "give the store a KMS") {
		t.Errorf("%+v", r)
	}
}
