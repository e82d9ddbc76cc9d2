package audit_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"image/png"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/audit"
	"github.com/s3fence/s3fence/guard/internal/mems3"
)

var keepPage = flag.String("audit.page", "", "keep the page of the test, and its picture, in this `folder`")

// hostile are keys that S3 takes.
var hostile = []string{
	`<script>document.title = "owned"</script>`,
	`"><img src=x onerror=alert(1)>`, `' onmouseover='alert(1)`, `</style><b>`, `{{.CSS}}`, `&amp;&lt;`,
	"rtl-\u202egpj.exe", "control-\x01\x1b[31m\r\n", "zero\u200bwidth", "bad-\xff-utf8", "\u00a0", "../up//x", strings.Repeat("long", 200),
}

// scene is a bucket with one of everything.
func scene(t testing.TB) *mems3.Store {
	m := bucket(guard.VersioningOn)
	seq := func(n, s int64) guard.Record {
		r := record(n)
		r.Sequence = s
		r.WriteID[0], r.WriteID[1] = byte(n), byte(s)
		return r
	}
	wait := func() { time.Sleep(7 * time.Minute) }
	fill := func(key string, rs ...guard.Record) {
		for _, r := range rs {
			plant(m, key, r)
			wait()
		}
	}
	fill("reports/2026-12-01.csv", seq(41, 1), seq(42, 1), seq(42, 2), seq(47, 1), seq(49, 1), seq(48, 1), seq(50, 1))
	for n := range int64(30) {
		fill("reports/busy.csv", seq(60+n/3, 1+n%3))
	}
	fill("reports/busy.csv", seq(62, 9))
	for n := range int64(200) {
		fill("reports/very-busy.csv", seq(100+n, 1))
		if n == 20 {
			fill("reports/very-busy.csv", seq(100, 3))
		}
	}
	fill("reports/deleted.csv", seq(51, 1), seq(52, 1))
	m.Remove("reports/deleted.csv")
	fill("reports/edited.csv", seq(53, 1))
	m.Overwrite("reports/edited.csv", "x", map[string]string{guard.RecordKey: "r1:<b>bold</b>"})
	wait()
	fill("reports/overwritten.csv", seq(54, 1), seq(55, 1))
	m.Overwrite("reports/overwritten.csv", "x", nil)
	m.Overwrite("plain.txt", "never fenced", nil)
	other := seq(1, 1)
	other.Issuer = second
	fill("reports/adopted.csv", seq(56, 1), seq(57, 1), other)
	grave := seq(59, 1)
	grave.State = guard.Deleted
	fill("reports/tombstone.csv", seq(58, 1), grave)
	fill("reports/made-up.csv", seq(9_000_000_000_000_000_001, 1))
	for i := range 12 {
		fill(fmt.Sprintf("reports/clean-%02d.csv", i), seq(int64(60+i), 1))
	}
	fill("reports/clean-long.csv", seq(60, 1), seq(61, 1), seq(62, 1))
	for _, key := range hostile {
		fill("hostile/"+key, seq(70, 1), seq(71, 1))
		m.Overwrite("hostile/"+key, "x", nil)
	}
	if _, err := m.CreateUpload(t.Context(), "reports/big.parquet", guard.UploadRequest{}); err != nil {
		t.Fatal(err)
	}
	return m
}

// draw audits m and returns the page.
func draw(t testing.TB, m guard.Store, o *audit.PageOptions) string {
	t.Helper()
	p := audit.NewPage("s3://mem/", o)
	c := newCounters()
	c[scope].n = 400
	sum, err := audit.Run(t.Context(), m, &audit.Options{OlderThan: -1, History: p.Add, Counter: c.counter}, func(f audit.Finding) error {
		p.Found(f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	sum.Elapsed = 1340 * time.Millisecond
	var b bytes.Buffer
	if err := p.Write(&b, sum); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// An element of a page.
type element struct {
	name     string
	attrs    map[string]string
	text     string // of its own and of all in it
	children []*element
}

// parse reads a page as strictly as XML is read.
func parse(t testing.TB, page string) *element {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(page))
	root := &element{}
	stack := []*element{root}
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("the page is not well-formed: %v", err)
		}
		switch tok := tok.(type) {
		case xml.StartElement:
			e := &element{name: tok.Name.Local, attrs: map[string]string{}}
			for _, a := range tok.Attr {
				e.attrs[a.Name.Local] = a.Value
			}
			top := stack[len(stack)-1]
			top.children = append(top.children, e)
			stack = append(stack, e)
		case xml.EndElement:
			stack = stack[:len(stack)-1]
		case xml.CharData:
			for _, e := range stack {
				e.text += string(tok)
			}
		}
	}
	return root
}

// all returns the elements in e of one name, with one class if it is not "".
func (e *element) all(name, class string) []*element {
	var found []*element
	for _, c := range e.children {
		if c.name == name && (class == "" || strings.Contains(" "+c.attrs["class"]+" ", " "+class+" ")) {
			found = append(found, c)
		}
		found = append(found, c.all(name, class)...)
	}
	return found
}

func TestPage(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		page := draw(t, scene(t), nil)
		root := parse(t, page)
		for _, name := range []string{"script", "img", "iframe", "link", "object", "form", "a", "base"} {
			if es := root.all(name, ""); len(es) > 0 {
				t.Errorf("the page has %d %s", len(es), name)
			}
		}
		var walk func(e *element)
		walk = func(e *element) {
			for a, v := range e.attrs {
				if strings.HasPrefix(a, "on") || a == "src" || a == "href" || a == "style" || strings.Contains(v, "://") {
					t.Errorf("<%s %s=%q>", e.name, a, v)
				}
			}
			for _, c := range e.children {
				walk(c)
			}
		}
		walk(root)
		for _, bad := range []string{"\u202e", "\u200b", "\x01", "\x1b", "\xff", "<script", "onerror=alert(1)>", "url(", "@import"} {
			if strings.Contains(page, bad) {
				t.Errorf("the page has %q", bad)
			}
		}
		if css := root.all("style", ""); len(css) != 1 {
			t.Errorf("%d styles", len(css))
		}
		cards := map[string]*element{}
		for _, c := range root.all("article", "") {
			cards[strings.TrimSpace(c.all("code", "")[0].text)] = c
		}
		for _, key := range []string{
			`hostile/<script>document.title = "owned"</script>`, `hostile/rtl-\u202egpj.exe`, `hostile/control-\x01\x1b[31m\r\n`,
			`hostile/zero\u200bwidth`, `hostile/bad-\xff-utf8`, `hostile/{{.CSS}}`, `hostile/&amp;&lt;`,
		} {
			if cards[key] == nil {
				t.Errorf("no card for %s", key)
			}
		}
		down := cards["reports/2026-12-01.csv"]
		vs := down.all("li", "v")
		if len(vs) != 7 || len(down.all("path", "down")) != 1 {
			t.Errorf("%d versions, %d lines down", len(vs), len(down.all("path", "down")))
		}
		bad := down.all("li", "is-violation")
		if len(bad) != 1 || !strings.Contains(bad[0].text, "▼ went down") || !strings.Contains(bad[0].text, "48") ||
			!strings.Contains(bad[0].attrs["aria-label"], "token 48 (scope nightly/report)") {
			t.Errorf("the regression: %+v", bad)
		}
		// One owner has one colour, and its neighbours others.
		owner := func(i int) string { return vs[i].attrs["class"][:len("v number o0")] }
		if owner(1) != owner(2) || owner(0) == owner(1) || owner(2) == owner(3) {
			t.Errorf("owners %q, %q, %q, %q", owner(0), owner(1), owner(2), owner(3))
		}
		busy := cards["reports/very-busy.csv"]
		if n := len(busy.all("li", "v")); n > 14 || len(busy.all("li", "gap")) != 2 || len(busy.all("li", "is-violation")) != 1 {
			t.Errorf("%d versions of a long history, %d gaps, %d violations", n, len(busy.all("li", "gap")), len(busy.all("li", "is-violation")))
		}
		var names []string
		for _, h := range root.all("h2", "") {
			names = append(names, strings.Fields(h.text)[0])
		}
		if fmt.Sprint(names) != "[Violations Warnings Notes Nothing Others]" {
			t.Errorf("sections %q", names)
		}
		if v := root.all("p", "verdict"); len(v) != 1 || !strings.HasSuffix(v[0].text, " violations") {
			t.Errorf("verdict %+v", v)
		}
		if !strings.Contains(root.text, "reports/big.parquet") {
			t.Error("the upload is not there")
		}
	})
}

// Violations push out what matters less, and all is counted.
func TestPageIsBounded(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		root := parse(t, draw(t, scene(t), &audit.PageOptions{MaxKeys: 22}))
		cards := root.all("article", "")
		if len(cards) != 22 {
			t.Errorf("%d cards", len(cards))
		}
		for i, c := range cards {
			want := i < 21 // so many keys have violations
			if got := strings.Contains(c.attrs["class"], "violation"); got != want {
				t.Errorf("card %d: %s", i, c.attrs["class"])
			}
		}
		if !strings.Contains(root.text, "14 keys are not drawn") {
			t.Error("it does not say how many are left out")
		}
	})
}

func TestPageOfNothing(t *testing.T) {
	root := parse(t, draw(t, mems3.New(), nil))
	if v := root.all("p", "verdict"); len(v) != 1 || v[0].text != "No violation" {
		t.Errorf("verdict %+v", v)
	}
	var b bytes.Buffer
	sum := audit.Summary{LastKey: "a\nb", Note: "<note>"}
	if err := audit.NewPage("s3://b/<i>", &audit.PageOptions{Time: time.Unix(1796190000, 0)}).Write(&b, sum); err != nil {
		t.Fatal(err)
	}
	text := parse(t, b.String()).text
	for _, want := range []string{"Not finished: no violation so far", `a\nb`, "<note>", "s3://b/<i>", "2 December 2026"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

func browser() string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "chrome-headless-shell"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// frames shows the page as wide as a desktop's window and as a phone's, light
// and dark, and writes down what a person would see.
const frames = `<!DOCTYPE html><html><body style="margin:0">
<iframe id="desktop" src="page.html" width="1280" height="900" style="border:0;color-scheme:light"></iframe>
<iframe id="phone" src="page.html" width="390" height="900" style="border:0;color-scheme:light"></iframe>
<iframe id="dark" src="page.html" width="1280" height="900" style="border:0;color-scheme:dark"></iframe>
<pre id="out"></pre>
<script>
const saw = {};
function look(name) {
  const w = document.getElementById(name).contentWindow, d = w.document, e = d.documentElement;
  const of = (el, what) => w.getComputedStyle(el)[what];
  const bad = d.querySelector(".v.is-violation"), ok = d.querySelector(".v.number:not(.is-violation)");
  const seen = bad.getBoundingClientRect(), top = e.scrollTop;
  const newest = d.querySelector(".card:not(.violation) .strip li:last-child").getBoundingClientRect();
  bad.focus();
  const tip = bad.querySelector(".tip"), r = tip.getBoundingClientRect();
  saw[name] = {
    Title: d.title, Dark: w.matchMedia("(prefers-color-scheme: dark)").matches, Width: e.clientWidth, Scroll: e.scrollWidth, Top: top,
    Loud: of(bad, "backgroundColor") != of(ok, "backgroundColor"), Ink: of(d.body, "color"), Back: of(d.body, "backgroundColor"),
    Tip: of(tip, "display"), TipLeft: r.left, TipRight: r.right, TipHeight: r.height,
    BadLeft: seen.left, BadRight: seen.right, NewestLeft: newest.left, NewestRight: newest.right,
    Cards: d.querySelectorAll(".card").length,
    Owners: new Set([...d.querySelectorAll(".v.number .owner")].map(o => of(o, "backgroundColor"))).size,
  };
}
window.onload = () => { ["desktop", "phone", "dark"].forEach(look); document.getElementById("out").textContent = JSON.stringify(saw); };
</script></body></html>`

// A real browser draws it: the styles are taken under the page's own policy,
// what is wrong stands out, details come up and stay on the screen, and nothing
// is wider than a phone.
func TestPageInBrowser(t *testing.T) {
	exe := browser()
	if exe == "" {
		t.Skip("left out: no Chromium or Chrome on PATH (Debian: apt-get install chromium)")
	}
	dir := t.TempDir()
	if *keepPage != "" {
		dir = *keepPage
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) {
		if err := os.WriteFile(file(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	inBubble(t, func(t *testing.T) { write("page.html", draw(t, scene(t), &audit.PageOptions{Time: time.Now()})) })
	write("frames.html", frames)
	profile := t.TempDir()
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), exe, append([]string{
			"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--allow-file-access-from-files",
			"--no-first-run", "--user-data-dir=" + profile, "--enable-logging=stderr", "--window-size=1280,900",
		}, args...)...)
		cmd.WaitDelay = 10 * time.Second
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v: %s", err, &errs)
		}
		if log := errs.String(); strings.Contains(log, "Content Security Policy") || strings.Contains(log, "CONSOLE") {
			t.Errorf("the browser complains: %s", log)
		}
		return out.String()
	}

	_, text, _ := strings.Cut(run("--dump-dom", "file://"+file("frames.html")), `<pre id="out">`)
	text, _, _ = strings.Cut(text, "</pre>")
	var all map[string]struct {
		Title, Ink, Back, Tip                      string
		Dark, Loud                                 bool
		Cards, Owners                              int
		Width, Scroll, Top                         float64
		TipLeft, TipRight, TipHeight               float64
		BadLeft, BadRight, NewestLeft, NewestRight float64
	}
	if err := json.Unmarshal([]byte(text), &all); err != nil || len(all) != 3 {
		t.Fatalf("%v: %.200s", err, text)
	}
	for name, saw := range all {
		t.Logf("%s: %+v", name, saw)
		switch {
		case saw.Title != "s3fence audit of s3://mem/":
			t.Errorf("%s: the title was changed", name)
		case saw.Dark != (name == "dark") || !saw.Loud || saw.Owners < 8 || saw.Cards < 20 || saw.Ink == saw.Back:
			t.Errorf("%s: the styles are not there", name)
		case saw.Scroll > saw.Width:
			t.Errorf("%s: the page is wider than the screen", name)
		case saw.Tip != "flex" || saw.TipLeft < 0 || saw.TipRight > saw.Width || saw.TipHeight < 20:
			t.Errorf("%s: the details are not on the screen", name)
		case saw.NewestLeft < 0 || saw.NewestRight > saw.Width || saw.BadLeft < 0 || saw.BadRight > saw.Width || saw.Top != 0:
			t.Errorf("%s: the newest version, or the one that is wrong, is not on the screen", name)
		}
	}
	if all["dark"].Back == all["desktop"].Back {
		t.Error("dark is as light as light")
	}

	run("--screenshot="+file("page.png"), "file://"+file("page.html"))
	f, err := os.Open(file("page.png"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, err := png.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	red := 0
	for y := range img.Bounds().Dy() {
		for x := range img.Bounds().Dx() {
			if r, g, b, _ := img.At(x, y).RGBA(); r > 0xb000 && r > 2*g && r > 2*b {
				red++
			}
		}
	}
	if red < 500 {
		t.Errorf("%d red pixels: the violations are not seen", red)
	}
}
