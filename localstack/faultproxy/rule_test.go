package faultproxy

import (
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"
)

var allFaults = []Fault{
	{Kind: Delay, Delay: 50 * time.Millisecond}, {Kind: Hold}, {Kind: HoldAnswer}, {Kind: DuplicateLater},
	{Kind: StripHeaders, Headers: "x-amz-meta-*,if-match"}, {Kind: Reset}, {Kind: DropAnswer},
	{Kind: TruncateAnswer}, {Kind: EmptyAnswer}, {Kind: Status, Status: 503}, {Kind: ErrorIn200},
}

func TestRulesRoundTrip(t *testing.T) {
	var rules Rules
	for i, f := range allFaults {
		rules = append(rules,
			Rule{Fault: f},
			Rule{Method: "PUT", Key: "a/b", Nth: i, Fault: f}.normal(),
			Rule{Method: "POST", Query: "uploadId", Times: Forever, Fault: f},
			Rule{Method: "PUT", Query: "!partNumber=2", Nth: 2, Times: 3, Fault: f},
			Rule{Method: "POST", Op: "UpdateItem", Fault: f})
	}
	for _, key := range []string{"a b", `a"b`, "//", `"`, "a=b=c", "tab\t", "line\n", "ü", "\xff", "#", "\u2028", "a\\b", "nth=2", " "} {
		rules = append(rules, Rule{Key: key, Fault: Fault{Kind: Reset}}, Rule{Prefix: key, Query: key, Fault: Fault{Kind: Hold}})
	}
	got, err := ParseRules(rules.String())
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, rules) {
		for i := range min(len(got), len(rules)) {
			if got[i] != rules[i] {
				t.Errorf("%+v became %+v by %s", rules[i], got[i], rules[i])
			}
		}
		t.Errorf("%d rules became %d", len(rules), len(got))
	}
}

func TestRuleText(t *testing.T) {
	rules, err := ParseRules("# a comment\n\n  PUT key=a/b nth=1 times=1 drop-answer \n* prefix=\"a b\"  strip-headers=X-Amz-Meta-*\n")
	want := "PUT key=a/b drop-answer\n* prefix=\"a b\" strip-headers=x-amz-meta-*\n"
	if err != nil || rules.String() != want {
		t.Errorf("%v\n%s", err, rules)
	}
	for _, text := range []string{
		"PUT", "drop-answer", "PUT drop", "PUT key= reset", "PUT key=a key=b reset", "PUT key=a prefix=b reset",
		"PUT nth=0 reset", "PUT nth=x reset", "PUT times=0 reset", "PUT times=-1 reset", "PUT reset key=a",
		"PUT color=red reset", "put reset", "PUT status=99", "PUT status", "PUT delay", "PUT delay=-1s", "PUT reset=1",
		"PUT strip-headers", "PUT strip-headers=", `PUT key="a reset`, `PUT key="a"b reset`, `PUT key=a"b reset`,
	} {
		if rule, err := ParseRule(text); err == nil {
			t.Errorf("%q parses as %+v", text, rule)
		}
	}
}

func FuzzParseRules(f *testing.F) {
	f.Add("PUT key=a/b nth=2 drop-answer\n* prefix=\"a b\" times=all strip-headers=x-*")
	f.Fuzz(func(t *testing.T, text string) {
		rules, err := ParseRules(text)
		if err != nil {
			return
		}
		again, err := ParseRules(rules.String())
		if err != nil || !reflect.DeepEqual(rules, again) {
			t.Errorf("%q: %v\n%#v\n%#v", rules, err, rules, again)
		}
	})
}

func TestMatches(t *testing.T) {
	q := &Request{Method: "PUT", Key: "dir/a b", Query: "partNumber=2&uploadId=x%2By&acl", Op: "UpdateItem"}
	for text, want := range map[string]bool{
		"* reset": true, "PUT reset": true, "GET reset": false,
		`* key="dir/a b" reset`: true, "* key=dir reset": false, "* prefix=dir/ reset": true, "* prefix=a reset": false,
		"* query=uploadId reset": true, "* query=uploadId=x+y reset": true, "* query=uploadId=x reset": false,
		"* query=acl reset": true, "* query=tagging reset": false, "* query=!tagging reset": true, "* query=!acl reset": false,
		"* query=!partNumber=1 reset": true, "* query=!partNumber=2 reset": false,
		"* op=UpdateItem reset": true, "* op=GetItem reset": false,
	} {
		rule, err := ParseRule(text)
		if err != nil {
			t.Fatal(err)
		}
		if rule.matches(q) != want {
			t.Errorf("%s: %v", text, !want)
		}
	}
}

func TestStrip(t *testing.T) {
	h := http.Header{"If-Match": {"a"}, "X-Amz-Meta-A": {"a"}, "X-Amz-Meta-B": {"b"}, "If-None-Match": {"*"}}
	strip(h, "x-amz-meta-*,if-match")
	if len(h) != 1 || h.Get("If-None-Match") != "*" {
		t.Errorf("left: %v", h)
	}
}

func TestRandomIsTheSameForTheSameSeed(t *testing.T) {
	weights := []Weight{{Weight: 7}, {2, Fault{Kind: DropAnswer}}, {1, Fault{Kind: Status, Status: 503}}}
	draw := func(seed uint64) string {
		c, err := Random(seed, weights...)
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		for n := range 200 {
			b.WriteString(c.Choose("PUT /b/k", n).String() + "\n")
		}
		return b.String()
	}
	one := draw(1)
	if one != draw(1) || one == draw(2) {
		t.Error("not the seed decides")
	}
	if n := strings.Count(one, "drop-answer"); n < 20 || n > 65 {
		t.Errorf("%d of 200 draws with weight 2 of 10", n)
	}
	for _, bad := range [][]Weight{nil, {{0, Fault{Kind: Reset}}}, {{1, Fault{Kind: Hold}}}, {{1, Fault{Kind: "no"}}}, {{-1, Fault{}}, {2, Fault{}}}} {
		if c, err := Random(1, bad...); err == nil {
			t.Errorf("%v makes %v", bad, c)
		}
	}
}
