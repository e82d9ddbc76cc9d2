package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/s3fence/s3fence/guard"
)

// minPart is the smallest part that is not the last.
const minPart = 5 << 20

// A session is a multipart upload whose parts are sent: all but Complete.
type session struct {
	upload
	parts []types.CompletedPart
	w     written
}

// begin sends an upload of one small part, or, with big, of two.
func (p *probe) begin(ctx context.Context, key, tag string, big bool) (*session, error) {
	s := &session{w: p.content("%s", tag)}
	out, err := p.S3.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{
		Bucket: &p.Bucket, Key: &key, Metadata: s.w.meta,
	}, plain)
	if err != nil {
		return nil, step("begin a multipart upload", err)
	}
	s.upload = upload{key, aws.ToString(out.UploadId)}
	bodies := [][]byte{s.w.body}
	if big {
		if p.bigBuffer == nil {
			p.bigBuffer = make([]byte, minPart)
		}
		bodies = [][]byte{p.bigBuffer, s.w.body}
	}
	for i, b := range bodies {
		n := int32(i + 1)
		part, err := p.S3.UploadPart(ctx, &s3.UploadPartInput{
			Bucket: &p.Bucket, Key: &key, UploadId: &s.id, PartNumber: &n,
			Body: bytes.NewReader(b), ContentLength: aws.Int64(int64(len(b))),
		}, plain)
		if err != nil {
			return nil, step("send a part", err)
		}
		s.parts = append(s.parts, types.CompletedPart{ETag: part.ETag, PartNumber: &n})
	}
	return s, nil
}

// complete completes s under a condition.
func (p *probe) complete(ctx context.Context, s *session, c guard.Condition) (string, error) {
	in := &s3.CompleteMultipartUploadInput{
		Bucket: &p.Bucket, Key: &s.key, UploadId: &s.id,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: s.parts},
	}
	if c.Absent() {
		in.IfNoneMatch = aws.String("*")
	} else {
		in.IfMatch = aws.String(c.ETag())
	}
	out, err := p.S3.CompleteMultipartUpload(ctx, in, plain)
	if err != nil {
		return "", err
	}
	return aws.ToString(out.ETag), nil
}

// refusedComplete judges a Complete that must be refused over w at key.
func (p *probe) refusedComplete(ctx context.Context, what, limit string, err error, key string, w written) (finding, error) {
	switch a := judge(err); a {
	case took:
		return limited(limit, "%s: ignored, 200", what), nil
	case refused, conflict:
	case unsupported, rejected:
		return limited(limit, "%s: answered %s", what, words(err)), nil
	default:
		return finding{}, err
	}
	diff, cerr := p.compare(ctx, key, w)
	if diff != "" {
		return limited(limit, "%s: answered %s, but %s", what, words(err), diff), nil
	}
	return found(Pass, "%s: %s", what, words(err)), cerr
}

func (p *probe) multipartIfNoneMatch(ctx context.Context) (finding, error) {
	key, w, err := p.create(ctx, "multipart")
	if err != nil {
		return finding{}, err
	}
	s, err := p.begin(ctx, key, "multipart-late", !p.opts.Quick)
	if err != nil {
		return p.noMultipart(err)
	}
	_, err = p.complete(ctx, s, guard.IfAbsent())
	return p.refusedComplete(ctx, "If-None-Match:* over an object", LimitMultipartIfNoneMatch, err, key, w)
}

// noMultipart: a store that takes no multipart uploads is limited, not skipped.
func (p *probe) noMultipart(err error) (finding, error) {
	if se, ok := errors.AsType[*stepError](err); ok {
		return limited(LimitMultipart, "%v", se), nil
	}
	return finding{}, err
}

func (p *probe) multipartIfMatch(ctx context.Context) (finding, error) {
	key, old, err := p.create(ctx, "multipart")
	if err != nil {
		return finding{}, err
	}
	w := p.content("multipart-second")
	if err := p.put(ctx, key, guard.IfMatch(old.etag), &w); err != nil {
		return finding{}, step("replace it with its own ETag", err)
	}
	missing := p.key("missing")
	for _, c := range []struct{ what, key, etag string }{
		{"an older ETag", key, old.etag}, {"a missing key", missing, w.etag},
	} {
		s, err := p.begin(ctx, c.key, "multipart-late", false)
		if err != nil {
			return p.noMultipart(err)
		}
		_, err = p.complete(ctx, s, guard.IfMatch(c.etag))
		if c.key == key {
			f, err := p.refusedComplete(ctx, c.what, LimitMultipartIfMatch, err, key, w)
			if f.verdict != Pass || err != nil {
				return f, err
			}
			continue
		}
		switch judge(err) {
		case took:
			return limited(LimitMultipartIfMatch, "If-Match on a missing key creates it"), nil
		case unsupported, rejected:
			return limited(LimitMultipartIfMatch, "%s: answered %s", c.what, words(err)), nil
		case none, failed:
			return finding{}, err
		}
	}
	s, err := p.begin(ctx, key, "multipart-right", !p.opts.Quick)
	if err != nil {
		return p.noMultipart(err)
	}
	switch _, err := p.complete(ctx, s, guard.IfMatch(w.etag)); judge(err) {
	case took:
		return found(Pass, "an older ETag and a missing key are refused, the right ETag is taken"), nil
	case none, failed:
		return finding{}, err
	default:
		return limited(LimitMultipartIfMatch, "the right ETag: answered %s", words(err)), nil
	}
}

func (p *probe) multipartMetadata(ctx context.Context) (finding, error) {
	key := p.key("multipart")
	s, err := p.begin(ctx, key, "multipart-metadata", false)
	if err != nil {
		return p.noMultipart(err)
	}
	if s.w.etag, err = p.complete(ctx, s, guard.IfAbsent()); err != nil {
		if a := judge(err); a == none || a == failed {
			return finding{}, err
		}
		return limited(LimitMultipartIfNoneMatch, "If-None-Match:* on a new key: answered %s", words(err)), nil
	}
	diff, err := p.compare(ctx, key, s.w)
	if diff != "" {
		return limited(LimitMultipartMetadata, "after Complete %s", diff), nil
	}
	return found(Pass, "as sent"), err
}

func (p *probe) multipartAfterRefusal(ctx context.Context) (finding, error) {
	key, w, err := p.create(ctx, "multipart")
	if err != nil {
		return finding{}, err
	}
	s, err := p.begin(ctx, key, "multipart-again", false)
	if err != nil {
		return p.noMultipart(err)
	}
	switch _, err := p.complete(ctx, s, guard.IfAbsent()); judge(err) {
	case took:
		return found(Skipped, "If-None-Match:* is ignored: there was no refusal"), nil
	case none, failed:
		return finding{}, err
	}
	switch _, err := p.complete(ctx, s, guard.IfMatch(w.etag)); judge(err) {
	case took:
		return found(Pass, "completed after a refusal"), nil
	case none, failed:
		return finding{}, err
	default:
		return found(Info, "not usable any more: %s; the parts must be sent again", words(err)), nil
	}
}

func (p *probe) multipartTwice(ctx context.Context) (finding, error) {
	s, err := p.begin(ctx, p.key("multipart"), "multipart-twice", false)
	if err != nil {
		return p.noMultipart(err)
	}
	var said [2]string
	for i := range said {
		_, err := p.complete(ctx, s, guard.IfAbsent())
		if judge(err) == none {
			return finding{}, err
		}
		said[i] = words(err)
	}
	return found(Info, "the same Complete with If-None-Match:* twice: %s, then %s", said[0], said[1]), nil
}

// multipartPutRace completes an upload and sends a PUT at once, under the same
// condition, on new keys and over objects by turns.
func (p *probe) multipartPutRace(ctx context.Context) (finding, error) {
	both, nobody, rounds := 0, 0, 0
	var wrong string
	for r := range size(p, 20, 2) {
		key, cond := p.key("multipart-race"), guard.IfAbsent()
		if r%2 == 1 {
			w := p.content("multipart-race-first")
			if err := p.put(ctx, key, cond, &w); err != nil {
				return finding{}, step("create an object", err)
			}
			cond = guard.IfMatch(w.etag)
		}
		s, err := p.begin(ctx, key, fmt.Sprintf("multipart-race-%02d", r), false)
		if err != nil {
			return p.noMultipart(err)
		}
		entries := race(2, func(i int) entry {
			if i == 0 {
				etag, err := p.complete(ctx, s, cond)
				w := s.w
				w.etag = etag
				return entry{w, err}
			}
			w := p.content("put-race-%02d", r)
			return entry{w, p.put(ctx, key, cond, &w)}
		})
		for i := range entries {
			if a := judge(entries[i].err); a == none || a == failed {
				return finding{}, entries[i].err
			}
		}
		rounds++
		var winner written
		switch {
		case entries[0].err == nil && entries[1].err == nil:
			both++
			continue
		case entries[0].err == nil:
			winner = entries[0].w
		case entries[1].err == nil:
			winner = entries[1].w
		default:
			nobody++
			continue
		}
		diff, err := p.compare(ctx, key, winner)
		if err != nil {
			return finding{}, err
		}
		if diff != "" {
			wrong = "the winner was told 200, but " + diff
		}
	}
	switch {
	case both > 0:
		return limited(LimitMultipartRace, "both won in %d of %d rounds", both, rounds), nil
	case wrong != "":
		return limited(LimitMultipartRace, "%s", wrong), nil
	case nobody == rounds:
		return limited(LimitMultipartRace, "nobody won in %d rounds", rounds), nil
	}
	return found(Pass, "one winner in %d rounds", rounds-nobody), nil
}
