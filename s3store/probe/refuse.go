package probe

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/s3fence/s3fence/guard"
)

// wantRefused judges one write that must be refused.
func wantRefused(err error) (finding, error) {
	switch judge(err) {
	case took:
		return found(Fail, "taken: 200"), nil
	case refused, conflict:
		return found(Pass, "%s", words(err)), nil
	case unsupported, rejected:
		return found(Fail, "answered %s", words(err)), nil
	}
	return finding{}, err
}

func (p *probe) createExisting(ctx context.Context) (finding, error) {
	key, w, err := p.create(ctx, "existing")
	if err != nil {
		return finding{}, err
	}
	other := p.content("existing-late")
	err = p.put(ctx, key, guard.IfAbsent(), &other)
	f, perr := wantRefused(err)
	if f.verdict == Pass {
		perr = p.refusal(ctx, "If-None-Match:* over an object", key, w)
	}
	return f, perr
}

// wrongETag offers the ETag that the object had before, and one that it never had.
func (p *probe) wrongETag(ctx context.Context) (finding, error) {
	key, old, err := p.create(ctx, "wrong-etag")
	if err != nil {
		return finding{}, err
	}
	now := p.content("wrong-etag-second")
	if err := p.put(ctx, key, guard.IfMatch(old.etag), &now); err != nil {
		return finding{}, step("replace it with its own ETag", err)
	}
	var f finding
	for _, e := range []struct{ name, etag string }{
		{"the ETag it had before", old.etag}, {"an ETag it never had", neverETag(old.etag)},
	} {
		late := p.content("wrong-etag-late")
		err := p.put(ctx, key, guard.IfMatch(e.etag), &late)
		if f, err = wantRefused(err); err != nil {
			return f, err
		}
		f.got = e.name + ": " + f.got
		if f.verdict != Pass {
			return f, nil
		}
		if err := p.refusal(ctx, "If-Match with "+e.name, key, now); err != nil {
			return f, err
		}
	}
	f.got = "an older ETag, and one it never had: refused"
	return f, nil
}

// neverETag is another ETag of the same form.
func neverETag(etag string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case '0' <= r && r <= '8' || 'a' <= r && r <= 'e':
			return r + 1
		case r == '9':
			return '0'
		case r == 'f':
			return 'a'
		}
		return r
	}, etag)
}

func (p *probe) ifMatchMissing(ctx context.Context) (finding, error) {
	key, w, err := p.create(ctx, "if-match")
	if err != nil {
		return finding{}, err
	}
	missing := p.key("missing")
	keys := []struct{ name, key string }{{"a key that never was", missing}}
	note := ""
	// Where versions are kept, deleting leaves a marker: delete-marker's matter.
	if p.S3 != nil && !p.keepsVersions() {
		_, err := p.S3.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &p.Bucket, Key: &key}, once)
		switch {
		case denied(err):
			note = "; not tried on a deleted key, since deletes are not allowed"
		case err != nil:
			return finding{}, step("delete an object", err)
		default:
			keys = append(keys, struct{ name, key string }{"a key that was deleted", key})
		}
	}
	var f finding
	for _, k := range keys {
		late := p.content("missing-late")
		err := p.put(ctx, k.key, guard.IfMatch(w.etag), &late)
		if f, err = wantRefused(err); err != nil {
			return f, err
		}
		f.got = k.name + ": " + f.got
		if f.verdict != Pass {
			return f, nil
		}
		p.refusals++
		if _, err := p.Store.Head(ctx, k.key, guard.HeadOptions{}); err == nil {
			p.changed = append(p.changed, "If-Match with "+k.name+": it is there now")
		} else if !errors.Is(err, guard.ErrNotFound) {
			return f, err
		}
	}
	f.got += note
	return f, nil
}

func (p *probe) refusedUnchanged(context.Context) (finding, error) {
	switch {
	case len(p.changed) > 0:
		return found(Fail, "%s", strings.Join(p.changed, "; ")), nil
	case p.refusals == 0:
		return found(Skipped, "nothing was refused"), nil
	}
	return found(Pass, "as before after %d refusals", p.refusals), nil
}

// etagAsGiven hands back each ETag exactly as the store wrote it, by PUT, by
// HEAD and by GET: the forms may differ.
func (p *probe) etagAsGiven(ctx context.Context) (finding, error) {
	key, w, err := p.create(ctx, "etag")
	if err != nil {
		return finding{}, err
	}
	for i, from := range []string{"PUT", "HEAD", "GET"} {
		etag := w.etag
		var obj guard.Object
		switch from {
		case "HEAD":
			obj, err = p.Store.Head(ctx, key, guard.HeadOptions{})
		case "GET":
			obj, _, err = p.read(ctx, key)
		}
		if err != nil {
			return finding{}, step("observe the object", err)
		}
		if from != "PUT" {
			if etag = obj.ETag; bare(etag) != bare(w.etag) {
				return found(Fail, "PUT said %s, %s says %s", w.etag, from, etag), nil
			}
		}
		next := p.content("etag-%d", i)
		switch err := p.put(ctx, key, guard.IfMatch(etag), &next); judge(err) {
		case took:
			w = next
		case none, failed:
			return finding{}, err
		default:
			return found(Fail, "If-Match: %s, as %s gave it, answered %s", etag, from, words(err)), nil
		}
	}
	form := "quoted"
	if !strings.HasPrefix(w.etag, `"`) {
		form = "unquoted"
	}
	return found(Pass, "%s, the same each time, and taken", form), nil
}

func (p *probe) etagQuotes(ctx context.Context) (finding, error) {
	key, w, err := p.create(ctx, "quotes")
	if err != nil {
		return finding{}, err
	}
	taken := map[string]bool{}
	etag := w.etag
	for _, form := range []string{"quoted", "unquoted"} {
		match := bare(etag)
		if form == "quoted" {
			match = `"` + match + `"`
		}
		next := p.content("quotes-%s", form)
		out, err := p.S3.PutObject(ctx, next.input(p.Bucket, key, func(in *s3.PutObjectInput) { in.IfMatch = &match }), once)
		switch judge(err) {
		case took:
			taken[form], etag = true, aws.ToString(out.ETag)
		case none, failed:
			return finding{}, err
		}
	}
	switch {
	case taken["quoted"] && taken["unquoted"]:
		return found(Info, "both are taken in If-Match"), nil
	case taken["quoted"]:
		return found(Info, "only quoted ones are taken in If-Match"), nil
	case taken["unquoted"]:
		return found(Warn, "only unquoted ones are taken in If-Match, which clients that quote can't use"), nil
	}
	return found(Warn, "neither is taken in If-Match"), nil
}

// input is w as the SDK's own request.
func (w written) input(bucket, key string, set func(*s3.PutObjectInput)) *s3.PutObjectInput {
	in := &s3.PutObjectInput{
		Bucket: &bucket, Key: &key, Body: strings.NewReader(string(w.body)),
		ContentLength: aws.Int64(int64(len(w.body))), Metadata: maps.Clone(w.meta),
	}
	if set != nil {
		set(in)
	}
	return in
}

// metadataRoundTrip: the guard's own must come back to the letter; other
// people's is theirs to know of.
func (p *probe) metadataRoundTrip(ctx context.Context) (finding, error) {
	key := p.key("metadata")
	w := p.content("metadata")
	w.meta[tagKey] = "r1:0123456789abcdef:scope/of.some_Name-1:00000000000000000048:0000000001:" + strings.Repeat("0f", 16) + ":l:0123abcd"
	theirs := map[string]string{"under_score.dot-dash": "a", "mixed": `Aa !"#$%&'()*+,-./:;<=>?@[\]^_{|}~ zZ`}
	maps.Copy(w.meta, theirs)
	if err := p.put(ctx, key, guard.IfAbsent(), &w); err != nil {
		return finding{}, step("create an object", err)
	}
	head, err := p.Store.Head(ctx, key, guard.HeadOptions{})
	if err != nil {
		return finding{}, step("observe the object", err)
	}
	get, _, err := p.read(ctx, key)
	if err != nil {
		return finding{}, step("read the object", err)
	}
	f := found(Pass, "as sent, by HEAD and GET")
	for name, obj := range map[string]guard.Object{"HEAD": head, "GET": get} {
		if got, ok := obj.Metadata[tagKey]; !ok {
			return found(Fail, "%s gives none of it back", name), nil
		} else if got != w.meta[tagKey] {
			return found(Fail, "%s gives %q for %q", name, got, w.meta[tagKey]), nil
		}
		if !contains(obj.Metadata, theirs) {
			f = found(Warn, "the fence record as sent; other names or values changed: %v became %v", theirs, without(obj.Metadata, tagKey))
		}
	}
	return f, nil
}

func without(m map[string]string, key string) map[string]string {
	m = maps.Clone(m)
	delete(m, key)
	return m
}

func (p *probe) metadataReplaced(ctx context.Context) (finding, error) {
	key := p.key("merge")
	first, second := p.content("merge-first"), p.content("merge-second")
	first.meta["only-first"] = "1"
	second.meta["only-second"] = "2"
	if err := p.put(ctx, key, guard.IfAbsent(), &first); err != nil {
		return finding{}, step("create an object", err)
	}
	if err := p.put(ctx, key, guard.IfMatch(first.etag), &second); err != nil {
		return finding{}, step("replace it with its own ETag", err)
	}
	for _, from := range []string{"HEAD", "GET"} {
		obj, err := p.Store.Head(ctx, key, guard.HeadOptions{})
		if from == "GET" && err == nil {
			obj, _, err = p.read(ctx, key)
		}
		if err != nil {
			return finding{}, step("observe the object", err)
		}
		if _, merged := obj.Metadata["only-first"]; merged {
			return found(Fail, "the old metadata is still there: it is merged"), nil
		}
		if !contains(obj.Metadata, second.meta) {
			return found(Fail, "%s gives %v, not %v", from, obj.Metadata, second.meta), nil
		}
	}
	return found(Pass, "replaced"), nil
}

func (p *probe) metadataLimit(ctx context.Context) (finding, error) {
	const prefix = "x-amz-meta-"
	try := func(total int) (*written, error) {
		w := p.content("limit-%d", total)
		left := total - len(prefix+tagKey+w.tag) - len(prefix+"long")
		w.meta["long"] = strings.Repeat("0123456789", left/10+1)[:left]
		key := p.key("limit")
		if err := p.put(ctx, key, guard.IfAbsent(), &w); err != nil {
			return nil, err
		}
		obj, err := p.Store.Head(ctx, key, guard.HeadOptions{})
		if err == nil && !contains(obj.Metadata, w.meta) {
			return nil, nil
		}
		return &w, err
	}
	w, err := try(guard.MaxMetadata)
	switch a := judge(err); {
	case a == none, a == failed:
		return finding{}, err
	case err != nil:
		return limited(LimitMetadata2KB, "%d bytes are refused: %s", guard.MaxMetadata, words(err)), nil
	case w == nil:
		return found(Fail, "%d bytes are taken and don't come back", guard.MaxMetadata), nil
	}
	const more = 3000
	w, err = try(more)
	switch a := judge(err); {
	case a == none:
		return finding{}, err
	case err != nil:
		return found(Pass, "%d bytes come back; %d are refused: %s", guard.MaxMetadata, more, words(err)), nil
	case w == nil:
		return found(Warn, "%d bytes come back; %d are taken and don't", guard.MaxMetadata, more), nil
	}
	return found(Pass, "%d bytes come back, and so do %d", guard.MaxMetadata, more), nil
}

// etagKind writes the same bytes three times, twice to one key.
func (p *probe) etagKind(sse string) func(context.Context) (finding, error) {
	return func(ctx context.Context) (finding, error) {
		name := sse
		if name == "" {
			name = "none"
		}
		w := p.content("same-bytes-%s", name)
		one, two := p.key("kind"), p.key("kind")
		seen := map[string]bool{}
		var last string
		for i, key := range []string{one, two, one} {
			cond := guard.IfAbsent()
			if i == 2 {
				obj, err := p.Store.Head(ctx, key, guard.HeadOptions{})
				if err != nil {
					return finding{}, step("observe the object", err)
				}
				cond = guard.IfMatch(obj.ETag)
			}
			req := w.request(cond)
			req.SSE = sse
			res, err := p.Store.Put(ctx, key, req)
			switch a := judge(err); {
			case a == none, a == failed && sse == "":
				return finding{}, err
			case err != nil && sse != "":
				return found(Info, "not available: %s", words(err)), nil
			case err != nil:
				return finding{}, step("write an object", err)
			}
			seen[bare(res.ETag)] = true
			obj, err := p.Store.Head(ctx, key, guard.HeadOptions{})
			if err != nil {
				return finding{}, step("observe the object", err)
			}
			if last = obj.SSE; last == "" {
				last = res.SSE
			}
		}
		kind := guard.ETagUnique
		if len(seen) < 3 {
			kind = guard.ETagRepeatable
		}
		p.report.ETagKinds[name] = kind
		if sse != "" && last != sse {
			return found(Warn, "%s: the encryption is ignored, the store says %q", kind, last), nil
		}
		kms := strings.HasPrefix(last, "aws:kms")
		switch sse {
		case "":
			// What the bucket's default encryption gives, a change of the
			// default takes away: that is not the store's own doing.
			p.report.UniqueETags = kind == guard.ETagUnique && !kms
			if kms {
				return found(Info, "%s, by the bucket's default encryption %s", kind, last), nil
			}
		case "AES256":
			p.report.UniqueETags = p.report.UniqueETags && kind == guard.ETagUnique
		case "aws:kms":
			if kind != guard.ETagUnique {
				return found(Warn, "%s: --sse aws:kms does not make ETags unique here", kind), nil
			}
		}
		return found(Info, "%s", kind), nil
	}
}

func (p *probe) checksumKept(ctx context.Context) (finding, error) {
	key, w, err := p.create(ctx, "checksum")
	if err != nil {
		return finding{}, err
	}
	obj, err := p.Store.Head(ctx, key, guard.HeadOptions{Checksum: true})
	if err != nil {
		return finding{}, step("observe the object", err)
	}
	h := obj.Checksum.NewHash()
	if h == nil || obj.Checksum.Value == "" {
		return found(Info, "none is kept"), nil
	}
	_, _ = h.Write(w.body) // a hash takes everything
	if sum := base64Sum(h); sum != obj.Checksum.Value {
		return found(Warn, "%s is %s, not %s", obj.Checksum.Algorithm, obj.Checksum.Value, sum), nil
	}
	return found(Info, "%s", obj.Checksum.Algorithm), nil
}

// checksumRefused sends the CRC of other bytes.
func (p *probe) checksumRefused(ctx context.Context) (finding, error) {
	key := p.key("crc")
	w := p.content("crc")
	wrong := "AAAAAA=="
	_, err := p.S3.PutObject(ctx, w.input(p.Bucket, key, func(in *s3.PutObjectInput) {
		in.ChecksumCRC32C = &wrong
		in.IfNoneMatch = aws.String("*") // or a policy may refuse it for that
	}), once)
	switch judge(err) {
	case took:
		return found(Warn, "a wrong CRC-32C is taken: bytes that change on the way go unseen"), nil
	case none, failed:
		return finding{}, err
	case unsupported:
		return found(Warn, "answered %s", words(err)), nil
	}
	if _, err := p.Store.Head(ctx, key, guard.HeadOptions{}); !errors.Is(err, guard.ErrNotFound) {
		if err != nil {
			return finding{}, err
		}
		return found(Warn, "a wrong CRC-32C is answered %s, and the object is there", words(err)), nil
	}
	return found(Pass, "%s", words(err)), nil
}

func (p *probe) conditionalDelete(ctx context.Context) (finding, error) {
	key, w, err := p.create(ctx, "delete")
	if err != nil {
		return finding{}, err
	}
	wrong := neverETag(w.etag)
	_, err = p.S3.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &p.Bucket, Key: &key, IfMatch: &wrong}, once)
	switch {
	case denied(err):
		return found(Skipped, "not allowed to delete: %s", words(err)), nil
	case judge(err) == none:
		return finding{}, err
	}
	_, herr := p.Store.Head(ctx, key, guard.HeadOptions{})
	switch {
	case errors.Is(herr, guard.ErrNotFound):
		return found(Info, "ignored: a wrong If-Match deletes (%s)", words(err)), nil
	case herr != nil:
		return finding{}, herr
	case err == nil:
		return found(Info, "a wrong If-Match is answered 200 and does nothing"), nil
	}
	both, rounds, err := p.deleteRace(ctx)
	if err != nil {
		return finding{}, err
	}
	if both > 0 {
		return found(Info, "a wrong If-Match is refused; but a PUT and a DELETE with the same ETag both won in %d of %d rounds", both, rounds), nil
	}
	return found(Info, "honoured: a wrong If-Match is refused; one winner against a PUT in %d rounds", rounds), nil
}

func (p *probe) deleteRace(ctx context.Context) (both, rounds int, err error) {
	for range size(p, 20, 3) {
		key, w, err := p.create(ctx, "delete")
		if err != nil {
			return both, rounds, err
		}
		entries := race(2, func(i int) entry {
			if i == 0 {
				late := p.content("delete-late")
				return entry{late, p.put(ctx, key, guard.IfMatch(w.etag), &late)}
			}
			_, err := p.S3.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &p.Bucket, Key: &key, IfMatch: &w.etag}, once)
			return entry{err: err}
		})
		if err := ctx.Err(); err != nil {
			return both, rounds, err
		}
		rounds++
		if entries[0].err == nil && entries[1].err == nil {
			both++
		}
	}
	return both, rounds, nil
}

func (p *probe) conditionalCopy(ctx context.Context) (finding, error) {
	src, _, err := p.create(ctx, "copy-source")
	if err != nil {
		return finding{}, err
	}
	dst, w, err := p.create(ctx, "copy")
	if err != nil {
		return finding{}, err
	}
	var got []string
	for _, c := range []struct {
		name string
		set  func(*s3.CopyObjectInput)
	}{
		{"If-None-Match", func(in *s3.CopyObjectInput) { in.IfNoneMatch = aws.String("*") }},
		{"If-Match", func(in *s3.CopyObjectInput) { in.IfMatch = aws.String(neverETag(w.etag)) }},
	} {
		in := &s3.CopyObjectInput{Bucket: &p.Bucket, Key: &dst, CopySource: aws.String(p.Bucket + "/" + src)}
		c.set(in)
		_, err := p.S3.CopyObject(ctx, in, once)
		switch {
		case denied(err):
			return found(Skipped, "not allowed to copy: %s", words(err)), nil
		case judge(err) == none:
			return finding{}, err
		}
		word := "honoured"
		if err == nil {
			word = "ignored"
		} else if judge(err) != refused {
			word = "answered " + words(err)
		}
		got = append(got, fmt.Sprintf("%s %s", c.name, word))
	}
	return found(Info, "on the destination: %s", strings.Join(got, ", ")), nil
}
