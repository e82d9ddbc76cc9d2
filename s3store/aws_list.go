package s3store

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/url"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/s3fence/s3fence/guard"
)

// List yields what the store lists, as [guard.Store] says. A bucket that never
// kept versions lists each object as its one version, with the id "null". The
// SDK hands out versions and delete markers apart; where the store's clock
// can't tell one of each apart, the delete marker comes first unless the
// version is the latest. Versions of a key among themselves keep the store's
// order. A store that does not list its keys in their order gets an error, S3
// directory buckets for one.
//
// Metadata is MinIO's extension, of objects and of versions. Other stores
// leave it nil, and so does MinIO for what the caller may not read.
func (s *Store) List(ctx context.Context, opts guard.ListOptions) iter.Seq2[guard.Listed, error] {
	return func(yield func(guard.Listed, error) bool) {
		o := listing(opts)
		if err := s.checkList(ctx, opts); err != nil {
			yield(guard.Listed{}, err)
			return
		}
		opts, ok := startInPrefix(opts)
		if !ok {
			return
		}
		next := s.objectPages(opts)
		if opts.Versions {
			next = s.versionPages(opts)
		}
		metadata := opts.Metadata
		last := ""
		for more := true; more; {
			page, truncated, err := s.page(ctx, o, opts.Prefix, &metadata, next)
			if err != nil {
				yield(guard.Listed{}, err)
				return
			}
			for _, l := range page {
				if !l.Prefix && opts.StartAfter != "" && l.Key <= opts.StartAfter {
					continue
				}
				err := s.checkContext(ctx, o, opts.Prefix)
				if l.Key < last {
					err = fmt.Errorf("%s %s: the store lists keys out of order, %q after %q", o.verb, s.URL(opts.Prefix), l.Key, last)
				}
				if err != nil {
					yield(guard.Listed{}, err)
					return
				}
				if !yield(l, nil) {
					return
				}
				last = l.Key
			}
			more = truncated
		}
	}
}

// startInPrefix leaves out a StartAfter that says nothing under the prefix,
// since MinIO takes none outside it. It is false where nothing is left to list.
func startInPrefix(opts guard.ListOptions) (guard.ListOptions, bool) {
	if strings.HasPrefix(opts.StartAfter, opts.Prefix) {
		return opts, true
	}
	left := opts.StartAfter < opts.Prefix
	opts.StartAfter = ""
	return opts, left
}

// A pager fetches the page after the one that it fetched last, and says
// whether there are more. An error leaves it where it was.
type pager func(ctx context.Context, options ...func(*s3.Options)) (page []guard.Listed, more bool, err error)

// page fetches a page. Metadata is a wish: a page that came out unreadable for
// it is fetched again without, and a store that refuses it is not asked again.
func (s *Store) page(ctx context.Context, o op, prefix string, metadata *bool, next pager) ([]guard.Listed, bool, error) {
	f, tap := new(awsFlight), new(metadataTap)
	if !*metadata {
		page, more, err := next(ctx, f.options)
		if err != nil {
			_, err = s.fail(o, prefix, err, f, "")
		}
		return page, more, err
	}
	page, more, err := next(ctx, f.options, tap.options)
	if err == nil {
		tap.fill(page)
		return page, more, nil
	}
	_, err = s.fail(o, prefix, err, f, "")
	refused := errors.Is(err, guard.ErrRejected) || errors.Is(err, guard.ErrUnsupported)
	if !tap.broken && !refused {
		return nil, false, err
	}
	*metadata = !refused
	without := false
	return s.page(ctx, o, prefix, &without, next)
}

// errNoListing is about an answer of something that is no store: a login page,
// for one, reads like an empty listing.
var errNoListing = errors.New("the answer is not a listing of a bucket: is the endpoint a store?")

var errNoMarker = errors.New("the store says that there are more and not where")

func (s *Store) objectPages(opts guard.ListOptions) pager {
	// Keys come url-encoded since XML has no way to write some characters.
	in := &s3.ListObjectsV2Input{
		Bucket: &s.name, Prefix: optional(opts.Prefix), StartAfter: optional(opts.StartAfter),
		Delimiter: optional(opts.Delimiter), EncodingType: types.EncodingTypeUrl, RequestPayer: s.payer(),
	}
	return func(ctx context.Context, options ...func(*s3.Options)) ([]guard.Listed, bool, error) {
		out, err := s.client.ListObjectsV2(ctx, in, options...)
		if err != nil {
			return nil, false, err
		}
		if aws.ToString(out.Name) == "" {
			return nil, false, errNoListing
		}
		more := aws.ToBool(out.IsTruncated)
		if next := aws.ToString(out.NextContinuationToken); more && (next == "" || next == aws.ToString(in.ContinuationToken)) {
			return nil, false, errNoMarker
		}
		in.ContinuationToken = out.NextContinuationToken
		return objectsOf(out), more, nil
	}
}

func objectsOf(out *s3.ListObjectsV2Output) []guard.Listed {
	objects := make([]guard.Listed, len(out.Contents))
	for i, c := range out.Contents {
		objects[i] = guard.Listed{
			Key:          decodeKey(out.EncodingType, c.Key),
			Version:      guard.Version{ETag: aws.ToString(c.ETag), Size: size(c.Size), LastModified: aws.ToTime(c.LastModified)},
			StorageClass: string(c.StorageClass),
		}
	}
	prefixes := make([]guard.Listed, len(out.CommonPrefixes))
	for i, p := range out.CommonPrefixes {
		prefixes[i] = guard.Listed{Key: decodeKey(out.EncodingType, p.Prefix), Prefix: true}
	}
	return merge(objects, prefixes, func(o, p guard.Listed) bool { return o.Key < p.Key })
}

func (s *Store) versionPages(opts guard.ListOptions) pager {
	in := &s3.ListObjectVersionsInput{
		Bucket: &s.name, Prefix: optional(opts.Prefix), KeyMarker: optional(opts.StartAfter),
		EncodingType: types.EncodingTypeUrl, RequestPayer: s.payer(),
	}
	return func(ctx context.Context, options ...func(*s3.Options)) ([]guard.Listed, bool, error) {
		out, err := s.client.ListObjectVersions(ctx, in, options...)
		if err != nil {
			return nil, false, err
		}
		if aws.ToString(out.Name) == "" {
			return nil, false, errNoListing
		}
		more := aws.ToBool(out.IsTruncated)
		next := decodeKey(out.EncodingType, out.NextKeyMarker)
		if more && next == aws.ToString(in.KeyMarker) && aws.ToString(out.NextVersionIdMarker) == aws.ToString(in.VersionIdMarker) {
			return nil, false, errNoMarker
		}
		in.KeyMarker, in.VersionIdMarker = &next, out.NextVersionIdMarker
		return versionsOf(out), more, nil
	}
}

func versionsOf(out *s3.ListObjectVersionsOutput) []guard.Listed {
	versions := make([]guard.Listed, len(out.Versions))
	for i, v := range out.Versions {
		versions[i] = guard.Listed{
			Key: decodeKey(out.EncodingType, v.Key),
			Version: guard.Version{
				ID: aws.ToString(v.VersionId), ETag: aws.ToString(v.ETag), Latest: aws.ToBool(v.IsLatest),
				Size: size(v.Size), LastModified: aws.ToTime(v.LastModified),
			},
			StorageClass: string(v.StorageClass),
		}
	}
	markers := make([]guard.Listed, len(out.DeleteMarkers))
	for i, d := range out.DeleteMarkers {
		markers[i] = guard.Listed{
			Key: decodeKey(out.EncodingType, d.Key),
			Version: guard.Version{
				ID: aws.ToString(d.VersionId), DeleteMarker: true, Latest: aws.ToBool(d.IsLatest),
				LastModified: aws.ToTime(d.LastModified),
			},
		}
	}
	return merge(versions, markers, func(v, d guard.Listed) bool {
		if v.Key != d.Key {
			return v.Key < d.Key
		}
		return v.Latest || !d.Latest && v.LastModified.After(d.LastModified)
	})
}

// merge makes one of two halves of a page, each in order.
func merge(as, bs []guard.Listed, first func(a, b guard.Listed) bool) []guard.Listed {
	all := make([]guard.Listed, 0, len(as)+len(bs))
	for len(as) > 0 && len(bs) > 0 {
		if first(as[0], bs[0]) {
			all, as = append(all, as[0]), as[1:]
		} else {
			all, bs = append(all, bs[0]), bs[1:]
		}
	}
	return append(append(all, as...), bs...)
}

func decodeKey(encoding types.EncodingType, key *string) string {
	k := aws.ToString(key)
	if encoding == types.EncodingTypeUrl {
		if d, err := url.QueryUnescape(k); err == nil {
			return d
		}
	}
	return k
}

// A metadataTap asks for user metadata in a listing and reads it off the
// answer, on which the SDK drops what it does not know.
type metadataTap struct {
	entries []listedXML
	// broken says that the answer came whole and is not XML: MinIO makes
	// element names of the names of metadata, whatever is in them.
	broken bool
}

// A listedXML is an object or a version as MinIO lists it.
type listedXML struct {
	Key       string
	VersionID string       `xml:"VersionId"`
	Metadata  *metadataXML `xml:"UserMetadata"`
	Internal  *struct{}
}

type metadataXML struct {
	Items []struct {
		XMLName xml.Name
		Value   string `xml:",chardata"`
	} `xml:",any"`
}

// maxPage is more than 1,000 entries take, keys and metadata being of the
// greatest length and all of it escaped.
const maxPage = 64 << 20

func (m *metadataTap) options(o *s3.Options) {
	o.APIOptions = append(slices.Clip(o.APIOptions), func(stack *middleware.Stack) error {
		if err := stack.Build.Add(middleware.BuildMiddlewareFunc("s3fenceAskMetadata", ask), middleware.After); err != nil {
			return err
		}
		return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("s3fenceReadMetadata", m.answer), middleware.After)
	})
}

func ask(ctx context.Context, in middleware.BuildInput, next middleware.BuildHandler) (middleware.BuildOutput, middleware.Metadata, error) {
	if req, ok := in.Request.(*smithyhttp.Request); ok {
		req.URL.RawQuery = strings.TrimPrefix(req.URL.RawQuery+"&metadata=true", "&")
	}
	return next.HandleBuild(ctx, in)
}

func (m *metadataTap) answer(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler) (
	middleware.DeserializeOutput, middleware.Metadata, error,
) {
	out, md, err := next.HandleDeserialize(ctx, in)
	resp, ok := out.RawResponse.(*smithyhttp.Response)
	if err != nil || !ok || resp.StatusCode < 200 || resp.StatusCode > 299 {
		return out, md, err
	}
	page, rerr := io.ReadAll(io.LimitReader(resp.Body, maxPage))
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(page), rest{resp.Body, rerr}), resp.Body}
	if rerr == nil && len(page) < maxPage {
		m.read(page)
	}
	return out, md, nil
}

// rest is what is left of a body, of which err was read already.
type rest struct {
	io.Reader
	err error
}

func (r rest) Read(p []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	return r.Reader.Read(p)
}

func (m *metadataTap) read(page []byte) {
	var list struct {
		EncodingType string
		Contents     []listedXML
		Version      []listedXML
	}
	if err := xml.Unmarshal(page, &list); err != nil {
		m.broken = true
		return
	}
	m.entries = slices.Concat(list.Contents, list.Version)
	for i, e := range m.entries {
		m.entries[i].Key = decodeKey(types.EncodingType(list.EncodingType), &e.Key)
	}
}

// fill gives the entries of a page the metadata that the answer had of them.
func (m *metadataTap) fill(page []guard.Listed) {
	type id struct{ key, version string }
	known := make(map[id]map[string]string, len(m.entries))
	for _, e := range m.entries {
		if md, ok := e.metadata(); ok {
			known[id{e.Key, e.VersionID}] = md
		}
	}
	for i, l := range page {
		if !l.Prefix && !l.DeleteMarker {
			page[i].Metadata = known[id{l.Key, l.ID}]
		}
	}
}

// metadata is empty for an object that has none. MinIO then leaves the element
// out, but not the one for its own use that it sends along with it.
func (e listedXML) metadata() (md map[string]string, said bool) {
	if e.Metadata == nil {
		return map[string]string{}, e.Internal != nil
	}
	md = make(map[string]string, len(e.Metadata.Items))
	for _, item := range e.Metadata.Items {
		// Content-Type and the like are among them.
		if name, ok := strings.CutPrefix(strings.ToLower(item.XMLName.Local), "x-amz-meta-"); ok {
			md[name] = item.Value
		}
	}
	return md, true
}
