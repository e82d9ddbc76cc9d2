package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"

	"github.com/s3fence/s3fence/guard"
)

// A written is one write of the probe's: its tag is in its bytes and in its
// metadata, so that a reader can tell which write it sees of each.
type written struct {
	tag  string
	body []byte
	meta map[string]string
	etag string
	sse  string
}

const tagKey = guard.RecordKey // where the fence record will be

func (p *probe) content(format string, args ...any) written {
	tag := fmt.Sprintf(format, args...) + "-" + p.run
	return written{tag: tag, body: []byte("s3fence probe " + tag + "\n"), meta: map[string]string{tagKey: tag}}
}

func (w written) request(c guard.Condition) guard.PutRequest {
	return guard.PutRequest{Condition: c, Body: guard.Bytes(w.body), Headers: guard.Headers{Metadata: maps.Clone(w.meta)}}
}

// put writes w and fills its ETag.
func (p *probe) put(ctx context.Context, key string, c guard.Condition, w *written) error {
	res, err := p.Store.Put(ctx, key, w.request(c))
	w.etag, w.sse = res.ETag, res.SSE
	return err
}

// create puts an object where there is none, as a step of a check.
func (p *probe) create(ctx context.Context, name string) (string, written, error) {
	key := p.key(name)
	w := p.content("%s-first", name)
	return key, w, step("create an object", p.put(ctx, key, guard.IfAbsent(), &w))
}

// read gets an object whole. One too long for anything of the probe's small
// objects is cut.
func (p *probe) read(ctx context.Context, key string) (guard.Object, []byte, error) {
	obj, r, err := p.Store.Get(ctx, key, guard.ReadOptions{})
	if err != nil {
		return obj, nil, err
	}
	body, err := io.ReadAll(io.LimitReader(r, 1<<20))
	return obj, body, errors.Join(err, r.Close())
}

// compare says how the object at key differs from w, through HEAD and GET; ""
// if it does not.
func (p *probe) compare(ctx context.Context, key string, w written) (string, error) {
	head, err := p.Store.Head(ctx, key, guard.HeadOptions{})
	if errors.Is(err, guard.ErrNotFound) {
		return "it is gone", nil
	}
	if err != nil {
		return "", err
	}
	get, body, err := p.read(ctx, key)
	if errors.Is(err, guard.ErrNotFound) {
		return "it is gone", nil
	}
	if err != nil {
		return "", err
	}
	for _, o := range []struct {
		name string
		obj  guard.Object
	}{{"HEAD", head}, {"GET", get}} {
		switch {
		case bare(o.obj.ETag) != bare(w.etag):
			return fmt.Sprintf("%s gives the ETag %s, not %s", o.name, o.obj.ETag, w.etag), nil
		case !contains(o.obj.Metadata, w.meta):
			return fmt.Sprintf("%s gives the metadata %v, not %v", o.name, o.obj.Metadata, w.meta), nil
		case o.obj.Size != int64(len(w.body)):
			return fmt.Sprintf("%s gives %d bytes, not %d", o.name, o.obj.Size, len(w.body)), nil
		}
	}
	if !bytes.Equal(body, w.body) {
		return "its bytes are others", nil
	}
	return "", nil
}

// refusal checks after a refused write that w is still what stands at key.
func (p *probe) refusal(ctx context.Context, what, key string, w written) error {
	p.refusals++
	diff, err := p.compare(ctx, key, w)
	if diff != "" {
		p.changed = append(p.changed, what+": "+diff)
	}
	return err
}

func bare(etag string) string { return strings.Trim(etag, `"`) }

func contains(all, some map[string]string) bool {
	for k, v := range some {
		if got, ok := all[k]; !ok || got != v {
			return false
		}
	}
	return true
}
