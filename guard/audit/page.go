package audit

import (
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"html/template"
	"io"
	"iter"
	"slices"
	"strconv"
	"time"
)

// PageOptions refine a Page. The zero value of each field means its default.
type PageOptions struct {
	// MaxKeys bounds how many keys are drawn. Those with violations go first,
	// then those with warnings. Default: 1,000.
	MaxKeys int
	// Time is when the audit was made, if it shall be told.
	Time time.Time
}

// DefaultMaxKeys is how many keys a page draws.
const DefaultMaxKeys = 1000

// A Page draws an audit for people: what was found, and for each key the
// timeline of its owners and numbers. It is one HTML file that loads nothing
// and runs nothing. It holds a bounded number of keys. Use it from one
// goroutine.
type Page struct {
	o     PageOptions
	url   string
	keys  [Violation + 1][]History
	clean []History // nothing was found
	held  int
	left  int64
	rest  []Finding // those of no key
	more  int64     // left out of rest
}

// NewPage returns a page about what is under url. opts may be nil.
func NewPage(url string, opts *PageOptions) *Page {
	var o PageOptions
	if opts != nil {
		o = *opts
	}
	if o.MaxKeys <= 0 {
		o.MaxKeys = DefaultMaxKeys
	}
	return &Page{o: o, url: url}
}

// Add takes a key in: it is an Options.History.
func (p *Page) Add(h History) {
	if p.held == p.o.MaxKeys && !p.drop(h) {
		p.left++
		return
	}
	p.held++
	list := p.list(h)
	*list = append(*list, h)
}

func (p *Page) list(h History) *[]History {
	if len(h.Findings) == 0 {
		return &p.clean
	}
	return &p.keys[h.Worst]
}

// drop makes room for h, if something matters less.
func (p *Page) drop(h History) bool {
	for _, list := range []*[]History{&p.clean, &p.keys[Info], &p.keys[Warning]} {
		if list == p.list(h) {
			return false
		}
		if n := len(*list); n > 0 {
			(*list)[n-1] = History{}
			*list = (*list)[:n-1]
			p.held--
			p.left++
			return true
		}
	}
	return false
}

const maxRest = 200

// Found takes in each finding that Run visits. Those of a key come with it.
func (p *Page) Found(f Finding) {
	switch {
	case !f.keyless:
	case len(p.rest) < maxRest:
		p.rest = append(p.rest, f)
	default:
		p.more++
	}
}

//go:embed page.html
var pageHTML string

//go:embed page.css
var pageCSS string

// Write writes the page.
func (p *Page) Write(w io.Writer, sum Summary) error {
	t, err := template.New("audit").Parse(pageHTML)
	if err != nil {
		return err
	}
	// What is worst is read first.
	rank := func(h History) int {
		r := len(Kinds())
		for _, f := range h.Findings {
			if f.Severity == h.Worst {
				r = min(r, slices.Index(Kinds(), f.Kind))
			}
		}
		return r
	}
	for _, keys := range p.keys {
		slices.SortStableFunc(keys, func(a, b History) int { return cmp.Compare(rank(a), rank(b)) })
	}
	hash := sha256.Sum256([]byte(pageCSS))
	return t.Execute(w, view{
		Title: visible(p.url), CSS: template.CSS(pageCSS), //nolint:gosec // our own
		CSP:     "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "'; base-uri 'none'; form-action 'none'",
		Summary: sum, Time: p.o.Time, Left: p.left, Rest: p.rest, More: p.more,
		groups: []group{
			{"Violations", p.keys[Violation]}, {"Warnings", p.keys[Warning]}, {"Notes", p.keys[Info]},
			{"Nothing found", p.clean},
		},
	})
}

// A view is what the template draws.
type view struct {
	Title   []text
	CSS     template.CSS
	CSP     string
	Summary Summary
	Time    time.Time
	Left    int64
	Rest    []Finding
	More    int64
	groups  []group
}

type group struct {
	Name string
	keys []History
}

// Groups are the keys by the worst that was found.
func (v view) Groups() iter.Seq[group] {
	return func(yield func(group) bool) {
		for _, g := range v.groups {
			if len(g.keys) > 0 && !yield(g) {
				return
			}
		}
	}
}

// Count is how many there are.
func (g group) Count() string { return count(int64(len(g.keys))) }

// Cards are made one by one: together they are many times the keys.
func (g group) Cards() iter.Seq[card] {
	return func(yield func(card) bool) {
		for _, h := range g.keys {
			if !yield(newCard(h)) {
				return
			}
		}
	}
}

// Verdict is the page in a few words, and its class.
func (v view) Verdict() [2]string {
	s := v.Summary
	switch {
	case s.Violations > 0:
		return [2]string{"violation", plural(s.Violations, "violation")}
	case !s.Complete:
		return [2]string{"warning", "Not finished: no violation so far"}
	case s.Warnings > 0:
		return [2]string{"warning", "No violation, " + plural(s.Warnings, "warning")}
	}
	return [2]string{"clean", "No violation"}
}

// A tile is one number at the top.
type tile struct{ Name, Value, Class string }

// Tiles are what there was, in numbers.
func (v view) Tiles() []tile {
	s := v.Summary
	versions := tile{noun(s.Versions, "version"), count(s.Versions), ""}
	if !s.WithVersions {
		versions = tile{"versions", "newest only", ""}
	}
	class := func(n int64, name string) string {
		if n > 0 {
			return name
		}
		return ""
	}
	return []tile{
		{noun(s.Violations, "violation"), count(s.Violations), class(s.Violations, "violation")},
		{noun(s.Warnings, "warning"), count(s.Warnings), class(s.Warnings, "warning")},
		{noun(s.Infos, "note"), count(s.Infos), ""},
		{noun(s.Objects, "object"), count(s.Objects), ""},
		versions,
		{"seconds", strconv.FormatFloat(s.Elapsed.Seconds(), 'f', 1, 64), ""},
		{"objects a second", count(int64(s.Rate())), ""},
	}
}

// When is the time of the audit.
func (v view) When() string {
	if v.Time.IsZero() {
		return ""
	}
	return v.Time.UTC().Format("2 January 2006, 15:04 MST")
}

// LeftOut is how many keys are not drawn.
func (v view) LeftOut() string { return plural(v.Left, "key") }

// LastKey is where an audit that was stopped goes on.
func (v view) LastKey() []text { return visible(v.Summary.LastKey) }

// A kindRow is how often a kind was found, and what it means.
type kindRow struct{ Kind, Count, Means string }

var meanings = map[Kind]string{
	Unfenced:      "an object without a fence record: the guard did not write it",
	CorruptRecord: "a fence record that does not parse: it was edited or cut",
	WentDown:      "a lower number was written over a higher one: a late writer got through",
	SameNumber:    "two writes with one number: a token was used around the guard, or an object copied",
	MixedIssuer:   "numbers of two counters, which can't be compared",
	MixedScope:    "numbers of two scopes, which can't be compared",
	AboveCounter:  "a number that the counter has not given: it was set back, or the number is made up",
	NoCounter:     "a counter that could not be read, so its numbers were not checked",
	FenceLost:     "deleted around the guard: the number is gone with the object",
	Unreadable:    "the store lists it and does not show it",
	Upload:        "a multipart upload that nobody completed: its parts cost money",
	Tombstone:     "deleted through the guard",
	AboveFence:    "written without claiming the scope",
}

// Kinds are those that were found.
func (v view) Kinds() []kindRow {
	var rows []kindRow
	for _, k := range Kinds() {
		if n := v.Summary.Findings[k]; n > 0 {
			rows = append(rows, kindRow{string(k), count(n), meanings[k]})
		}
	}
	return rows
}

// Others are the findings that belong to no key that is drawn.
func (v view) Others() iter.Seq[line] {
	return func(yield func(line) bool) {
		for _, f := range v.Rest {
			if !yield(newLine(f, true)) {
				return
			}
		}
	}
}

// MoreOthers is how many Others are left out.
func (v view) MoreOthers() string {
	if v.More == 0 {
		return ""
	}
	return count(v.More)
}
