package s3store_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"testing"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/s3store"
)

func prefixes(keys ...string) (s string) {
	for _, k := range keys {
		s += "<CommonPrefixes><Prefix>" + url.QueryEscape(k) + "</Prefix></CommonPrefixes>"
	}
	return s
}

// A version is an entry of a page of versions; marker makes it a delete marker.
func version(key, id, second string, latest, marker bool, inside string) string {
	kind := "Version"
	if marker {
		kind = "DeleteMarker"
	}
	return fmt.Sprintf(`<%s><Key>%s</Key><VersionId>%s</VersionId><IsLatest>%t</IsLatest><LastModified>2026-12-02T10:00:%sZ</LastModified>%s</%[1]s>`,
		kind, url.QueryEscape(key), id, latest, second, inside)
}

func versionPage(nextKey, nextID, entries string) string {
	more := ""
	if nextKey != "" {
		more = "<IsTruncated>true</IsTruncated><NextKeyMarker>" + url.QueryEscape(nextKey) + "</NextKeyMarker><NextVersionIdMarker>" + nextID + "</NextVersionIdMarker>"
	}
	return "<ListVersionsResult><Name>bucket</Name><EncodingType>url</EncodingType>" + more + entries + "</ListVersionsResult>"
}

func TestListOnTheWire(t *testing.T) {
	r := serve(t, func(w http.ResponseWriter, req *http.Request) {
		page := objectPage("n+/=", prefixes("d e/", "d+e/")+contents("<StorageClass>GLACIER</StorageClass><Size>7</Size>", "d", "d a", "d*"))
		if req.URL.Query().Get("continuation-token") == "n+/=" {
			page = objectPage("", contents("", "d/é\x01"))
		}
		_, _ = io.WriteString(w, page)
	})
	s := client{url: r.URL, opts: &s3store.Options{RequestPayer: true}}.aws(t)
	opts := guard.ListOptions{Prefix: "d", StartAfter: "d", Delimiter: "/"}
	var got []string
	for l, err := range s.List(t.Context(), opts) {
		if err != nil {
			t.Fatal(err)
		}
		if n, want := len(r.requests()), 1+len(got)/4; n != want {
			t.Errorf("%d requests for entry %d, want %d", n, len(got), want)
		}
		switch {
		case l.Prefix:
			got = append(got, "["+l.Key+"]")
			if l.Version != (guard.Version{}) || l.StorageClass != "" || l.Metadata != nil {
				t.Errorf("%+v", l)
			}
			continue
		case len(got) == 0 && (l.StorageClass != "GLACIER" || l.Size != 7):
			t.Errorf("%+v", l)
		}
		got = append(got, l.Key)
		if l.ETag != `"e"` || l.LastModified.IsZero() || l.ID != "" || l.Latest || l.Metadata != nil {
			t.Errorf("%+v", l)
		}
	}
	// d itself is what the listing starts after.
	if want := []string{"d a", "[d e/]", "d*", "[d+e/]", "d/é\x01"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	for i, token := range []string{"", "n+/="} {
		req := r.requests()[i]
		q := req.URL.Query()
		want := url.Values{
			"list-type": {"2"}, "prefix": {"d"}, "start-after": {"d"}, "delimiter": {"/"}, "encoding-type": {"url"},
			"continuation-token": {token},
		}
		if token == "" {
			want.Del("continuation-token")
		}
		if !maps.EqualFunc(q, want, slices.Equal) || req.Header.Get("x-amz-request-payer") != "requester" {
			t.Errorf("request %d: %v, payer %q, want %v", i, q, req.Header.Get("x-amz-request-payer"), want)
		}
	}
}

func TestListVersionsOnTheWire(t *testing.T) {
	pages := map[string]string{
		// Of a: a marker, a version, a marker; b and c have one of each, c the
		// two at one time.
		"k": versionPage("c", "2",
			version("a", "2", "02", false, false, "")+version("b x", "1", "03", true, false, "<StorageClass>GLACIER</StorageClass>")+version("c", "3", "03", true, false, "")+
				version("a", "3", "03", true, true, "")+version("a", "1", "01", false, true, "")+version("b x", "0", "02", false, true, "")+version("c", "2", "03", false, true, "")),
		"c": versionPage("", "", version("c", "1", "03", false, false, "")+version("d", "1", "01", true, true, "")),
	}
	r := serve(t, func(w http.ResponseWriter, req *http.Request) {
		q := req.URL.Query()
		page, ok := pages[q.Get("key-marker")]
		if !ok || q.Get("encoding-type") != "url" || q.Has("prefix") || (q.Get("version-id-marker") == "2") != (q.Get("key-marker") == "c") ||
			req.Header.Get("x-amz-request-payer") != "requester" {
			t.Errorf("query %v, payer %q", q, req.Header.Get("x-amz-request-payer"))
		}
		_, _ = io.WriteString(w, page)
	})
	s := client{url: r.URL, opts: &s3store.Options{RequestPayer: true}}.aws(t)
	pages["A"] = pages["k"]
	got, err := names(t, s, guard.ListOptions{StartAfter: "A", Versions: true})
	if want := []string{"a@3", "a@2", "a@1", "b x@1", "b x@0", "c@3", "c@2", "c@1", "d@1"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q %v, want %q", got, err, want)
	}
	// A store that takes the marker for the first to list.
	pages["a"] = pages["k"]
	got, err = names(t, s, guard.ListOptions{StartAfter: "a", Versions: true})
	if want := []string{"b x@1", "b x@0", "c@3", "c@2", "c@1", "d@1"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q %v, want %q", got, err, want)
	}
	for l, err := range s.List(t.Context(), guard.ListOptions{StartAfter: "A", Versions: true}) {
		if err != nil {
			t.Fatal(err)
		}
		if l.DeleteMarker != (l.Key == "a" && l.ID != "2" || l.Key+l.ID == "b x0" || l.Key+l.ID == "c2" || l.Key == "d") ||
			l.Latest != (l.Key+l.ID == "a3" || l.Key+l.ID == "b x1" || l.Key+l.ID == "c3" || l.Key == "d") ||
			(l.StorageClass == "GLACIER") != (l.Key+l.ID == "b x1") {
			t.Errorf("%+v", l)
		}
	}
}

func TestListOutOfOrder(t *testing.T) {
	for name, pages := range map[string][2]string{
		"in a page":     {objectPage("", contents("", "b", "a"))},
		"between pages": {objectPage("1", contents("", "b")), objectPage("", contents("", "a"))},
	} {
		t.Run(name, func(t *testing.T) {
			r := serve(t, func(w http.ResponseWriter, req *http.Request) {
				page := pages[0]
				if req.URL.Query().Has("continuation-token") {
					page = pages[1]
				}
				_, _ = io.WriteString(w, page)
			})
			got, err := names(t, client{url: r.URL}.aws(t), guard.ListOptions{})
			only(t, "list", err, nil)
			contains(t, err, "out of order", `"a" after "b"`)
			if !slices.Equal(got, []string{"b"}) {
				t.Errorf("%q", got)
			}
		})
	}
}

// A login page, for one, is no empty bucket.
func TestListOfNoStore(t *testing.T) {
	r := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<html><body>Log in</body></html>")
	})
	s := client{url: r.URL}.aws(t)
	for _, versions := range []bool{false, true} {
		got, err := names(t, s, guard.ListOptions{Versions: versions})
		if contains(t, err, "is the endpoint a store?"); len(got) > 0 {
			t.Errorf("%q", got)
		}
	}
	for _, err := range s.Uploads(t.Context(), "") {
		contains(t, err, "is the endpoint a store?")
	}
}

func TestListEndless(t *testing.T) {
	for name, page := range map[string]string{
		"no marker":   "<R><Name>bucket</Name><IsTruncated>true</IsTruncated></R>",
		"same marker": objectPage("1", contents("", "a")),
	} {
		t.Run(name, func(t *testing.T) {
			r := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, page) })
			for _, versions := range []bool{false, true} {
				got, err := names(t, client{url: r.URL}.aws(t), guard.ListOptions{Versions: versions})
				only(t, "list", err, nil)
				contains(t, err, "more and not where")
				if len(got) > 1 {
					t.Errorf("%q", got)
				}
			}
		})
	}
}

func TestListStartsOutsidePrefix(t *testing.T) {
	for _, versions := range []bool{false, true} {
		r := serve(t, func(w http.ResponseWriter, req *http.Request) {
			if q := req.URL.Query(); q.Has("start-after") || q.Has("key-marker") {
				t.Errorf("query %v", q)
			}
			if versions {
				_, _ = io.WriteString(w, versionPage("", "", version("b/1", "1", "01", true, false, "")))
				return
			}
			_, _ = io.WriteString(w, objectPage("", contents("", "b/1")))
		})
		s := client{url: r.URL}.aws(t)
		for after, want := range map[string]int{"a": 1, "b": 1, "b0": 0, "c": 0} {
			got, err := names(t, s, guard.ListOptions{Prefix: "b/", StartAfter: after, Versions: versions})
			if err != nil || len(got) != want {
				t.Errorf("after %q: %q %v, want %d", after, got, err, want)
			}
		}
		if n := len(r.requests()); n != 2 {
			t.Errorf("%d requests, want two: nothing under b/ comes after b0", n)
		}
	}
}

func TestListCancelled(t *testing.T) {
	for _, keys := range [][]string{{"a", "b"}, {"a"}} {
		ctx, cancel := context.WithCancel(t.Context())
		r := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, objectPage("1", contents("", keys...)))
		})
		n := 0
		for l, err := range (client{url: r.URL}).aws(t).List(ctx, guard.ListOptions{}) {
			if n++; n == 1 {
				cancel()
				continue
			}
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%+v %v", l, err)
			}
		}
		cancel()
		if n != 2 {
			t.Errorf("yielded %d times, want an entry and the error", n)
		}
		r.one(t)
	}
}

const (
	metadataFull = "<UserMetadata><X-Amz-Meta-Fence-Token>r1 &amp; &lt;</X-Amz-Meta-Fence-Token><x-amz-meta-Empty></x-amz-meta-Empty>" +
		"<content-type>text/plain</content-type></UserMetadata>"
	metadataNone   = "<Internal><K>1</K><M>0</M></Internal>"
	metadataBroken = "<UserMetadata><X-Amz-Meta-A!b>x</X-Amz-Meta-A!b></UserMetadata>"
)

func TestListMetadata(t *testing.T) {
	said := map[string]string{"fence-token": "r1 & <", "empty": ""}
	r := serve(t, func(w http.ResponseWriter, req *http.Request) {
		q := req.URL.Query()
		if q.Has("versions") {
			_, _ = io.WriteString(w, versionPage("", "", version("a b", "2", "02", true, false, metadataFull)+
				version("a b", "1", "01", false, false, metadataNone)+version("c", "1", "01", true, false, "")+version("d", "1", "01", true, true, metadataNone)))
			return
		}
		_, _ = io.WriteString(w, objectPage("", contents(metadataFull, "a b")+contents(metadataNone, "c")+contents("", "d")+prefixes("e/")))
	})
	s := client{url: r.URL}.aws(t)
	for _, c := range []struct {
		opts guard.ListOptions
		want map[string]map[string]string
	}{
		{guard.ListOptions{}, map[string]map[string]string{"a b ": nil, "c ": nil, "d ": nil, "e/ ": nil}},
		{guard.ListOptions{Metadata: true}, map[string]map[string]string{"a b ": said, "c ": {}, "d ": nil, "e/ ": nil}},
		{guard.ListOptions{Metadata: true, Versions: true}, map[string]map[string]string{"a b 2": said, "a b 1": {}, "c 1": nil, "d 1": nil}},
	} {
		got := map[string]map[string]string{}
		for l, err := range s.List(t.Context(), c.opts) {
			if err != nil {
				t.Fatal(err)
			}
			got[l.Key+" "+l.ID] = l.Metadata
		}
		if fmt.Sprintf("%#v", got) != fmt.Sprintf("%#v", c.want) {
			t.Errorf("%+v: %#v, want %#v", c.opts, got, c.want)
		}
		if q := r.requests()[len(r.requests())-1].URL.Query(); (q.Get("metadata") == "true") != c.opts.Metadata {
			t.Errorf("%+v: query %v", c.opts, q)
		}
	}
}

// Metadata is a wish: what stands in its way must not break the listing.
func TestListUnreadableMetadata(t *testing.T) {
	for _, c := range []struct {
		status int
		last   bool // there is metadata of the last page
	}{{200, true}, {400, false}, {501, false}} {
		t.Run(fmt.Sprint(c.status), func(t *testing.T) {
			pages := map[string]func(inside string) string{
				"":  func(string) string { return objectPage("1", contents(metadataFull, "a")) },
				"1": func(inside string) string { return objectPage("2", contents(inside, "b", "c")) },
				"2": func(string) string { return objectPage("", contents(metadataFull, "d")) },
			}
			r := serve(t, func(w http.ResponseWriter, req *http.Request) {
				q := req.URL.Query()
				page := pages[q.Get("continuation-token")]
				switch {
				case !q.Has("metadata"):
					_, _ = io.WriteString(w, page(""))
				case c.status != 200 && q.Get("continuation-token") == "1":
					w.WriteHeader(c.status)
					_, _ = io.WriteString(w, "<Error><Code>X</Code></Error>")
				default:
					_, _ = io.WriteString(w, page(metadataBroken))
				}
			})
			got := map[string]bool{}
			for l, err := range (client{url: r.URL}).aws(t).List(t.Context(), guard.ListOptions{Metadata: true}) {
				if err != nil {
					t.Fatal(err)
				}
				got[l.Key] = l.Metadata != nil
			}
			if want := map[string]bool{"a": true, "b": false, "c": false, "d": c.last}; !maps.Equal(got, want) {
				t.Errorf("%v, want %v", got, want)
			}
			var asked []string
			for _, req := range r.requests() {
				asked = append(asked, req.URL.Query().Get("continuation-token")+req.URL.Query().Get("metadata"))
			}
			want := []string{"true", "1true", "1", "2true"}
			if !c.last {
				want[3] = "2" // a store that refused it once is not asked again
			}
			if !slices.Equal(asked, want) {
				t.Errorf("requests %q, want %q", asked, want)
			}
		})
	}
}

// An answer that breaks off is none, with metadata or without: it is not asked for again.
func TestListCutShort(t *testing.T) {
	page := objectPage("", contents(metadataFull, "a", "b"))
	for _, metadata := range []bool{false, true} {
		r := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(page)))
			_, _ = io.WriteString(w, page[:len(page)-30])
		})
		got, err := names(t, client{url: r.URL, retries: 5}.aws(t), guard.ListOptions{Metadata: metadata})
		only(t, "list", err, nil)
		if len(got) != 0 {
			t.Errorf("%q", got)
		}
		r.one(t)
	}
}

func TestListRefusedLocally(t *testing.T) {
	r := serve(t, func(http.ResponseWriter, *http.Request) {})
	for _, sdk := range sdks {
		s := sdk.open(client{url: r.URL}, t)
		for name, opts := range map[string]guard.ListOptions{
			"prefix":                  {Prefix: "a\xff"},
			"start after":             {StartAfter: "a\x00"},
			"delimiter":               {Delimiter: "\xff"},
			"delimiter with versions": {Delimiter: "/", Versions: true},
		} {
			_, err := names(t, s, opts)
			only(t, sdk.name+" "+name, err, guard.ErrRejected)
		}
		only(t, sdk.name+" uploads", drain(s.Uploads(t.Context(), "\xff")), guard.ErrRejected)
	}
	if n := len(r.requests()); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

func TestTagsOnTheWire(t *testing.T) {
	r := serve(t, func(w http.ResponseWriter, req *http.Request) {
		switch q := req.URL.Query(); {
		case q.Get("versionId") == "marker":
			w.Header().Set("x-amz-delete-marker", "true")
			w.WriteHeader(http.StatusMethodNotAllowed)
			_, _ = io.WriteString(w, "<Error><Code>MethodNotAllowed</Code></Error>")
		case q.Get("versionId") == "bare":
			_, _ = io.WriteString(w, "<Tagging><TagSet></TagSet></Tagging>")
		default:
			_, _ = io.WriteString(w, "<Tagging><TagSet><Tag><Key>a b</Key><Value>1&amp;</Value></Tag><Tag><Key>e</Key><Value></Value></Tag></TagSet></Tagging>")
		}
	})
	s := client{url: r.URL, opts: &s3store.Options{RequestPayer: true}}.aws(t)
	for id, want := range map[string]map[string]string{"": {"a b": "1&", "e": ""}, "v1": {"a b": "1&", "e": ""}, "bare": {}} {
		got, err := s.Tags(t.Context(), "a b", id)
		if err != nil || got == nil || !maps.Equal(got, want) {
			t.Errorf("version %q: %v %v, want %v", id, got, err, want)
		}
		req := r.requests()[len(r.requests())-1]
		if q := req.URL.Query(); !q.Has("tagging") || q.Get("versionId") != id || q.Has("versionId") != (id != "") ||
			req.URL.EscapedPath() != "/bucket/a%20b" || req.Header.Get("x-amz-request-payer") != "requester" {
			t.Errorf("version %q: %s, payer %q", id, req.URL, req.Header.Get("x-amz-request-payer"))
		}
	}
	_, err := s.Tags(t.Context(), "k", "marker")
	only(t, "a delete marker's tags", err, guard.ErrNotFound)
}
