package mems3_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/internal/mems3"
	"github.com/s3fence/s3fence/guard/storetest"
)

func TestConformance(t *testing.T) {
	for _, unique := range []bool{false, true} {
		t.Run(fmt.Sprintf("UniqueETags=%t", unique), func(t *testing.T) {
			open := func() *mems3.Store {
				s := mems3.New()
				s.Bucket.UniqueETags = unique
				s.ListsMetadata = unique
				s.ForgetRefused = unique
				return s
			}
			storetest.Run(t, storetest.Harness{
				Open: func(*testing.T) guard.Store { return open() },
				Versioned: func(*testing.T) (guard.Store, func(*testing.T, string)) {
					s := open()
					s.Bucket.Versioning = guard.VersioningOn
					return s, func(_ *testing.T, key string) { s.Remove(key) }
				},
				SSE: "aws:kms", UniqueETags: unique, ListsMetadata: unique, PageSize: 10,
			})
		})
	}
}

// upload begins an upload of key "k" with one part.
func upload(t *testing.T, s guard.Store, body string) (guard.Upload, []guard.Part) {
	t.Helper()
	up, err := s.CreateUpload(t.Context(), "k", guard.UploadRequest{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.UploadPart(t.Context(), up, 1, guard.Bytes([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	return up, []guard.Part{p}
}

// The ETag is S3's: a known one, of the parts "a" and "b".
func TestMultipartETag(t *testing.T) {
	s := mems3.New()
	s.SmallParts = true
	up, parts := upload(t, s, "a")
	p, err := s.UploadPart(t.Context(), up, 2, guard.Bytes([]byte("b")))
	if err != nil {
		t.Fatal(err)
	}
	res, err := s.CompleteUpload(t.Context(), up, guard.CompleteRequest{Condition: guard.IfAbsent(), Parts: append(parts, p)})
	const want = `"96e024ba2074fe77e8e965ba43a704be-2"`
	if err != nil || res.ETag != want || s.Body("k") != "ab" {
		t.Errorf("ETag %s %v, want %s; the object holds %q", res.ETag, err, want, s.Body("k"))
	}
}

func TestForgetRefused(t *testing.T) {
	for forget, want := range map[bool]error{false: nil, true: guard.ErrNoUpload} {
		s := mems3.New()
		s.ForgetRefused = forget
		up, parts := upload(t, s, "x")
		req := guard.CompleteRequest{Condition: guard.IfMatch(`"none"`), Parts: parts}
		if _, err := s.CompleteUpload(t.Context(), up, req); !errors.Is(err, guard.ErrNotFound) {
			t.Errorf("forget=%t: %v", forget, err)
		}
		req.Condition = guard.IfAbsent()
		if _, err := s.CompleteUpload(t.Context(), up, req); !errors.Is(err, want) {
			t.Errorf("forget=%t: then %v, want %v", forget, err, want)
		}
		if len(s.Conditions) != 2 || s.Conditions[1] != req.Condition {
			t.Errorf("forget=%t: conditions %v", forget, s.Conditions)
		}
	}
}

// Before stops a request; after After it has been made.
func TestHooks(t *testing.T) {
	s := mems3.New()
	var ops []string
	note := func(when string) func(op, key string) error {
		return func(op, key string) error {
			ops = append(ops, fmt.Sprint(when, " ", op, " ", key))
			return nil
		}
	}
	s.Before, s.After = note("before"), note("after")
	up, parts := upload(t, s, "x")
	lost := errors.New("lost")
	s.After = func(op, key string) error {
		_ = note("after")(op, key)
		return lost
	}
	if _, err := s.CompleteUpload(t.Context(), up, guard.CompleteRequest{Condition: guard.IfAbsent(), Parts: parts}); !errors.Is(err, lost) || s.Body("k") != "x" {
		t.Errorf("%v; the object holds %q", err, s.Body("k"))
	}
	if _, err := s.Tags(t.Context(), "k", ""); err != nil {
		t.Error(err)
	}
	for _, err := range s.List(t.Context(), guard.ListOptions{Prefix: "p"}) {
		t.Error(err)
	}
	for _, err := range s.Uploads(t.Context(), "p") {
		t.Error(err)
	}
	s.Before = func(op, key string) error {
		_ = note("before")(op, key)
		return lost
	}
	_, err := s.CopyPart(t.Context(), up, 1, guard.CopySource{Key: "k", ETag: "e"})
	if err2 := s.AbortUpload(t.Context(), up); !errors.Is(err, lost) || !errors.Is(err2, lost) {
		t.Errorf("%v, %v", err, err2)
	}
	want := []string{
		"before create-upload k", "after create-upload k", "before upload-part k", "after upload-part k",
		"before complete k", "after complete k", "before tags k", "before list p", "before uploads p",
		"before copy-part k", "before abort k",
	}
	if !slices.Equal(ops, want) {
		t.Errorf("hooks %q, want %q", ops, want)
	}
}
