package audit

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/s3fence/s3fence/guard"
)

// A text is a piece of what came from the store. Esc says that it stands for a
// character that can't be seen, or that changes how others are shown.
type text struct {
	Text string
	Esc  bool
}

// visible makes every character of s one that can be seen.
func visible(s string) []text {
	var out []text
	var b strings.Builder
	flush := func() {
		if b.Len() > 0 {
			out = append(out, text{Text: b.String()})
			b.Reset()
		}
	}
	for i, r := range s {
		if r == unicode.ReplacementChar && !strings.HasPrefix(s[i:], string(r)) {
			flush()
			out = append(out, text{fmt.Sprintf(`\x%02x`, s[i]), true})
			continue
		}
		if unicode.IsPrint(r) || r == ' ' {
			b.WriteRune(r)
			continue
		}
		flush()
		q := strconv.QuoteRuneToASCII(r)
		out = append(out, text{q[1 : len(q)-1], true})
	}
	flush()
	if len(out) == 0 {
		return []text{{`(empty)`, true}}
	}
	return out
}

// A line is a finding in words.
type line struct {
	Severity, Kind string
	Where          []text
	Words          []text
}

func newLine(f Finding, named bool) line {
	l := line{Severity: f.Severity.String(), Kind: string(f.Kind), Words: visible(f.Detail)}
	if named {
		l.Where = visible(f.URL)
	}
	return l
}

// A card is one key.
type card struct {
	Key      []text
	Severity string // of the worst that was found; clean
	Lines    []line
	More     string // how many lines are left out
	Count    string
	Cells    []cell // the oldest first
	Width    int
	Height   int
	Plain    bool // one version, and nothing to say about it
}

// A cell is one version in the timeline.
type cell struct {
	Kind    string // number, tombstone, unfenced, corrupt, deleted, unreadable
	Owner   string // the class of its colour
	Label   string
	Tags    []string // what was found here, in few words
	Bad     string   // the class of the worst of it
	Date    string   // where it is another one than before
	Clock   string
	Facts   []fact
	Name    string // for those who can't see it
	Skipped string // versions that are left out before this one
	Width   int
	Height  int
	X, Y    int
	Line    string // the path from the version before
	Down    bool   // the number went down
}

const (
	chartHeight = 108
	chartTop    = 30
	chartBottom = 92
	gapWidth    = 84
	owners      = 8 // colours
)

// A fact is a name and a value.
type fact struct {
	Name  string
	Value []text
}

func newCard(h History) card {
	c := card{Key: visible(h.Key), Severity: "clean", Count: plural(h.Total, "version"), Height: chartHeight}
	if len(h.Findings) > 0 {
		c.Severity = h.Worst.String()
	}
	for _, f := range h.Findings {
		c.Lines = append(c.Lines, newLine(f, false))
	}
	if h.MoreFindings > 0 {
		c.More = count(h.MoreFindings)
	}
	c.Plain = len(h.Findings) == 0 && len(h.Versions) == 1
	c.draw(narrow(h.Versions))
	return c
}

const (
	atOnce = 14 // cells that are still seen at a glance
	ends   = 6  // the newest of a longer history, where something was found
	around = 2  // versions on each side of one at which something was found
)

// narrow leaves out of a long history what lies between the newest versions and
// those at which something was found.
func narrow(versions []Version) []Version {
	if len(versions) <= atOnce || !slices.ContainsFunc(versions, func(v Version) bool { return len(v.Found) > 0 }) {
		return versions
	}
	keep := make([]bool, len(versions))
	for i, v := range versions {
		keep[i] = keep[i] || i < ends || i == len(versions)-1
		if len(v.Found) == 0 {
			continue
		}
		keep[i] = true
		for j := i; j > max(0, i-around) && versions[j].Skipped == 0; j-- {
			keep[j-1] = true
		}
		for j := i + 1; j <= min(i+around, len(versions)-1) && versions[j].Skipped == 0; j++ {
			keep[j] = true
		}
	}
	var out []Version
	skipped := int64(0)
	for i, v := range versions {
		v.Skipped += skipped
		if !keep[i] {
			skipped = v.Skipped + 1
			continue
		}
		skipped = 0
		out = append(out, v)
	}
	return out
}

// draw makes the cells: to the right the newer, upwards the higher numbers.
func (c *card) draw(versions []Version) {
	var fences []guard.Fence
	c.Width = 72
	for _, v := range versions {
		if v.Record != nil {
			fences = append(fences, v.Record.Fence())
			c.Width = max(c.Width, 9*len(v.Record.Fence().String())+14)
		}
		for _, m := range v.Found {
			c.Width = max(c.Width, 7*utf8.RuneCountInString(tags[m.Kind])+18)
		}
	}
	slices.SortFunc(fences, guard.Fence.Compare)
	fences = slices.Compact(fences)
	height := func(f guard.Fence) int {
		if len(fences) == 1 {
			return (chartTop + chartBottom) / 2
		}
		i, _ := slices.BinarySearchFunc(fences, f, guard.Fence.Compare)
		return chartBottom - i*(chartBottom-chartTop)/(len(fences)-1)
	}
	colours := map[counter]map[int64]int{}
	taken := 0
	colour := func(r *guard.Record) string {
		of := counter{r.Issuer, r.Scope}
		if colours[of] == nil {
			colours[of] = map[int64]int{}
		}
		n, ok := colours[of][r.Number]
		if !ok {
			n = taken % owners
			colours[of][r.Number] = n
			taken++
		}
		return "o" + strconv.Itoa(n)
	}
	var before *guard.Record // of the last version that had one
	beforeX, x, day := 0, 0, ""
	for i, v := range slices.Backward(versions) {
		d := cell{Kind: "unfenced", Label: "unfenced", Width: c.Width, Height: chartHeight, X: c.Width / 2, Y: chartBottom, Facts: facts(v)}
		if i+1 < len(versions) && versions[i+1].Skipped > 0 {
			d.Skipped = count(versions[i+1].Skipped)
			x += gapWidth
		}
		switch r := v.Record; {
		case v.DeleteMarker:
			d.Kind, d.Label = "deleted", "deleted"
		case v.Unreadable:
			d.Kind, d.Label = "unreadable", "not shown"
		case v.Corrupt:
			d.Kind, d.Label = "corrupt", "corrupt"
		case r != nil:
			d.Kind, d.Label, d.Y, d.Owner = "number", r.Fence().String(), height(r.Fence()), colour(r)
			if r.State == guard.Deleted {
				d.Kind = "tombstone"
			}
			if before != nil {
				d.Line = path(beforeX-x, height(before.Fence()), d.X, d.Y)
			}
			before, beforeX = r, x+d.X
		}
		worst := Info
		for _, m := range v.Found {
			tag := tags[m.Kind]
			if m.Kind == WentDown {
				d.Down = true
			}
			worst = max(worst, m.Severity)
			d.Tags = append(d.Tags, tag)
			d.Bad = worst.String()
		}
		if t := v.LastModified.UTC(); !v.LastModified.IsZero() {
			d.Clock = t.Format("15:04:05")
			if now := t.Format("2 Jan 2006"); now != day {
				d.Date, day = now, now
			}
		}
		d.Name = strings.Join(append([]string{d.what(v)}, d.Tags...), ", ")
		if slices.Contains(d.Tags, d.Label) {
			d.Label = ""
		}
		c.Cells = append(c.Cells, d)
		x += c.Width
	}
}

// Left and Top are the corner of the square that stands for what is no number.
func (d cell) Left() int { return d.X - 7 }

// Top is its upper side.
func (d cell) Top() int { return d.Y - 7 }

// TextY is the line that the label stands on: over its mark.
func (d cell) TextY() int { return d.Y - 14 }

// path is a line from one mark to the next, and touches neither.
func path(x1, y1, x2, y2 int) string {
	const apart = 11
	dx, dy := float64(x2-x1), float64(y2-y1)
	n := math.Hypot(dx, dy)
	dx, dy = dx/n*apart, dy/n*apart
	return fmt.Sprintf("M%.1f %.1fL%.1f %.1f", float64(x1)+dx, float64(y1)+dy, float64(x2)-dx, float64(y2)-dy)
}

// tags say what was found at a version, where there is little room.
var tags = map[Kind]string{
	Unfenced: "unfenced", CorruptRecord: "corrupt", WentDown: "▼ went down", SameNumber: "= same number",
	MixedIssuer: "issuer changed", MixedScope: "scope changed", AboveCounter: "▲ above counter", NoCounter: "no counter",
	FenceLost: "✕ number lost", Unreadable: "not shown", Tombstone: "tombstone",
}

// what a version is, in words.
func (d cell) what(v Version) string {
	var s string
	switch r := v.Record; {
	case d.Kind == "tombstone":
		s = fmt.Sprintf("deleted with token %s (scope %s)", r.Fence(), r.Scope)
	case r != nil:
		s = fmt.Sprintf("token %s (scope %s)", r.Fence(), r.Scope)
	case d.Kind == "deleted":
		s = "delete marker"
	case d.Kind == "corrupt":
		s = "corrupt record"
	case d.Kind == "unreadable":
		s = "not shown by the store"
	default:
		s = "unfenced"
	}
	if !v.LastModified.IsZero() {
		s += ", " + v.LastModified.UTC().Format("2006-01-02 15:04:05")
	}
	return s
}

// facts are all that is known of a version.
func facts(v Version) []fact {
	var fs []fact
	add := func(name, value string) {
		if value != "" {
			fs = append(fs, fact{name, visible(value)})
		}
	}
	if r := v.Record; r != nil {
		add("number", strconv.FormatInt(r.Number, 10))
		add("sequence", strconv.FormatInt(r.Sequence, 10))
		add("scope", r.Scope)
		add("issuer", r.Issuer.String())
		add("write id", r.WriteID.String())
		add("state", r.State.String())
	}
	if !v.LastModified.IsZero() {
		add("time", v.LastModified.UTC().Format("2006-01-02 15:04:05.000 MST"))
	}
	if !v.DeleteMarker {
		add("size", plural(v.Size, "byte"))
	}
	if v.ID != nullVersion {
		add("version", v.ID)
	}
	return fs
}

func plural(n int64, what string) string { return count(n) + " " + noun(n, what) }

func noun(n int64, what string) string {
	if n != 1 {
		what += "s"
	}
	return what
}

// count writes a number with its thousands apart.
func count(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
