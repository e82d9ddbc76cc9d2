package faultproxy

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// A Kind names what a [Fault] does.
type Kind string

// These let the request go on, and later rules may add to them.
const (
	// Delay reads the request whole and forwards it after a while, whether
	// or not the client still waits.
	Delay Kind = "delay"
	// Hold reads the request whole and forwards it when it is released,
	// whether or not the client still waits: a packet that was long under way.
	Hold Kind = "hold"
	// HoldAnswer keeps the server's answer until it is released.
	HoldAnswer Kind = "hold-answer"
	// DuplicateLater keeps a copy that [Proxy.SendDuplicates] sends again.
	DuplicateLater Kind = "duplicate-later"
	// StripHeaders removes headers before forwarding. A server that checks
	// signatures refuses the request (403) when a signed header is gone,
	// which every x-amz- header is: this is for servers that don't check.
	StripHeaders Kind = "strip-headers"
)

// These decide the answer, so later rules aren't looked at.
const (
	// Reset resets the client's connection; the server sees nothing.
	Reset Kind = "reset"
	// DropAnswer forwards, reads the whole answer, and resets the client's
	// connection without a byte of it.
	DropAnswer Kind = "drop-answer"
	// TruncateAnswer forwards and ends the client's connection in the middle
	// of the answer's body, or of its headers when it has no body.
	TruncateAnswer Kind = "truncate-answer"
	// EmptyAnswer forwards and gives the answer's status and headers with an
	// empty body, well formed.
	EmptyAnswer Kind = "empty-answer"
	// Status answers with a status and an error body as S3 (or DynamoDB)
	// gives it; the server sees nothing.
	Status Kind = "status"
	// ErrorIn200 answers 200 with an error in its body, as
	// CompleteMultipartUpload and CopyObject may; the server sees nothing.
	ErrorIn200 Kind = "error-in-200"
)

// A Fault is one thing that can go wrong. Its text is the kind, followed for
// three of them by = and a value: delay=50ms, status=503,
// strip-headers=x-amz-meta-*,if-match.
type Fault struct {
	Kind   Kind
	Delay  time.Duration // of Delay
	Status int           // of Status
	// Headers, of StripHeaders, are names with commas between, in lower
	// case; one that ends in * stands for all that begin so.
	Headers string
}

// ParseFault reads what [Fault.String] writes.
func ParseFault(text string) (Fault, error) {
	kind, value, hasValue := strings.Cut(text, "=")
	f := Fault{Kind: Kind(kind)}
	var err error
	switch f.Kind {
	case Delay:
		f.Delay, err = time.ParseDuration(value)
	case Status:
		f.Status, err = strconv.Atoi(value)
	case StripHeaders:
		f.Headers = strings.ToLower(value)
	default:
		if hasValue {
			err = errors.New("it takes no value")
		}
	}
	if err == nil {
		err = f.check()
	}
	if err != nil {
		return Fault{}, fmt.Errorf("fault %q: %w", text, err)
	}
	return f, nil
}

// String returns the fault's text.
func (f Fault) String() string {
	switch f.Kind {
	case Delay:
		return string(f.Kind) + "=" + f.Delay.String()
	case Status:
		return string(f.Kind) + "=" + strconv.Itoa(f.Status)
	case StripHeaders:
		return string(f.Kind) + "=" + f.Headers
	}
	return string(f.Kind)
}

func (f Fault) check() error {
	if f != f.only() {
		return errors.New("it has another kind's value")
	}
	switch f.Kind {
	case Delay:
		if f.Delay <= 0 {
			return errors.New("a delay is more than nothing")
		}
	case Status:
		if f.Status < 200 || f.Status > 599 {
			return errors.New("a status is from 200 to 599")
		}
	case StripHeaders:
		if f.Headers == "" || f.Headers != strings.ToLower(f.Headers) || strings.ContainsFunc(f.Headers, unicode.IsSpace) {
			return errors.New("it needs header names in lower case with commas between")
		}
	case Hold, HoldAnswer, DuplicateLater, Reset, DropAnswer, TruncateAnswer, EmptyAnswer, ErrorIn200:
	default:
		return errors.New("no such kind")
	}
	return nil
}

// only returns f with the value of its kind and no other.
func (f Fault) only() Fault {
	g := Fault{Kind: f.Kind}
	switch f.Kind {
	case Delay:
		g.Delay = f.Delay
	case Status:
		g.Status = f.Status
	case StripHeaders:
		g.Headers = f.Headers
	}
	return g
}

// decides reports whether the fault settles the answer.
func (f Fault) decides() bool {
	switch f.Kind {
	case Delay, Hold, HoldAnswer, DuplicateLater, StripHeaders:
		return false
	}
	return true
}

// Forever as [Rule].Times is without end.
const Forever = -1

// A Rule says which requests meet a fault. Empty fields match everything. Its
// text is a line of the method (or *), conditions and the fault:
//
//	PUT key=a/b nth=2 drop-answer
//	POST query=uploadId times=all status=503
//	POST op=UpdateItem drop-answer
//	* prefix="with space/" delay=50ms
//
// A value in double quotes is read as Go reads it.
type Rule struct {
	Method string
	Key    string // exact, without the bucket and percent-decoded
	Prefix string // what the key begins with
	// Query is a parameter that is there (uploadId), has a value
	// (partNumber=2), or is not there (!uploadId).
	Query string
	Op    string // a DynamoDB operation, such as UpdateItem
	Nth   int    // the first request that meets it, of those that match: 1, the default, is the first
	Times int    // how many in a row meet it; default 1, or Forever
	Fault Fault
}

// Rules are looked at in order. Their text is one line each.
type Rules []Rule

// ParseRules reads rules, one a line. Empty lines and those that begin with #
// are passed over.
func ParseRules(text string) (Rules, error) {
	var rules Rules
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		rule, err := ParseRule(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

// String returns the rules' text, which ParseRules reads back.
func (rules Rules) String() string {
	var b strings.Builder
	for _, r := range rules {
		b.WriteString(r.String() + "\n")
	}
	return b.String()
}

// ParseRule reads what [Rule.String] writes. Numbers that are the default may
// be given.
func ParseRule(text string) (Rule, error) {
	fail := func(err error) (Rule, error) { return Rule{}, fmt.Errorf("rule %q: %w", text, err) }
	words, err := split(text)
	if err != nil {
		return fail(err)
	}
	if len(words) < 2 {
		return fail(errors.New("it needs a method (or *) and a fault"))
	}
	var r Rule
	if words[0] != "*" {
		r.Method = words[0]
	}
	last := len(words) - 1
	if r.Fault, err = ParseFault(words[last]); err != nil {
		return fail(err)
	}
	given := map[string]bool{}
	for _, word := range words[1:last] {
		name, value, ok := strings.Cut(word, "=")
		if !ok || value == "" || given[name] {
			return fail(fmt.Errorf("%q: a condition is name=value, each name once, and the fault comes last", word))
		}
		given[name] = true
		switch name {
		case "key":
			r.Key = value
		case "prefix":
			r.Prefix = value
		case "query":
			r.Query = value
		case "op":
			r.Op = value
		case "nth":
			if r.Nth, err = strconv.Atoi(value); err == nil && r.Nth < 1 {
				err = errors.New("nth counts from 1")
			}
		case "times":
			if value == "all" {
				r.Times = Forever
			} else if r.Times, err = strconv.Atoi(value); err == nil && r.Times < 1 {
				err = errors.New("times is 1 or more, or all")
			}
		default:
			err = fmt.Errorf("no condition is called %q", name)
		}
		if err != nil {
			return fail(err)
		}
	}
	if err := r.Check(); err != nil {
		return fail(err)
	}
	return r.normal(), nil
}

// String returns the rule's text, without what is the default.
func (r Rule) String() string {
	r = r.normal()
	words := []string{r.Method}
	if r.Method == "" {
		words[0] = "*"
	}
	for _, c := range []struct{ name, value string }{{"key", r.Key}, {"prefix", r.Prefix}, {"query", r.Query}, {"op", r.Op}} {
		if c.value != "" {
			words = append(words, c.name+"="+quote(c.value))
		}
	}
	if r.Nth != 0 {
		words = append(words, "nth="+strconv.Itoa(r.Nth))
	}
	switch r.Times {
	case 0:
	case Forever:
		words = append(words, "times=all")
	default:
		words = append(words, "times="+strconv.Itoa(r.Times))
	}
	return strings.Join(append(words, r.Fault.String()), " ")
}

// normal returns r with zero for each default.
func (r Rule) normal() Rule {
	if r.Nth == 1 {
		r.Nth = 0
	}
	if r.Times == 1 {
		r.Times = 0
	}
	return r
}

// Check returns why the rule makes no sense, or nil.
func (r Rule) Check() error {
	if r.Method == "*" || strings.ContainsFunc(r.Method, func(c rune) bool { return c < 'A' || c > 'Z' }) {
		return errors.New("a method is in capital letters")
	}
	if r.Key != "" && r.Prefix != "" {
		return errors.New("key and prefix together")
	}
	if r.Nth < 0 || r.Times < Forever {
		return errors.New("a negative count")
	}
	return r.Fault.check()
}

// split cuts text at spaces, outside of double quotes, and takes them away.
func split(text string) ([]string, error) {
	var words []string
	for {
		text = strings.TrimLeft(text, " \t")
		if text == "" {
			return words, nil
		}
		var word string
		end := strings.IndexAny(text, " \t\"")
		switch {
		case end < 0:
			word, text = text, ""
		case text[end] == '"' && end > 0 && text[end-1] == '=':
			quoted, err := strconv.QuotedPrefix(text[end:])
			if err != nil {
				return nil, errors.New("a quote has no end")
			}
			value, err := strconv.Unquote(quoted)
			if err != nil {
				return nil, err
			}
			word, text = text[:end]+value, text[end+len(quoted):]
			if text != "" && text[0] != ' ' && text[0] != '\t' {
				return nil, errors.New("no space after a quote")
			}
		case text[end] == '"':
			return nil, errors.New("a quote in the middle of a word")
		default:
			word, text = text[:end], text[end:]
		}
		words = append(words, word)
	}
}

// quote quotes a value that split would not give back as it is.
func quote(s string) string {
	odd := func(c rune) bool {
		return c == '"' || c == unicode.ReplacementChar || !unicode.IsPrint(c) || unicode.IsSpace(c)
	}
	if strings.ContainsFunc(s, odd) {
		return strconv.Quote(s)
	}
	return s
}

// matches looks at everything but the counts.
func (r Rule) matches(q *Request) bool {
	return (r.Method == "" || r.Method == q.Method) &&
		(r.Key == "" || r.Key == q.Key) &&
		strings.HasPrefix(q.Key, r.Prefix) &&
		(r.Op == "" || r.Op == q.Op) &&
		queryMatches(r.Query, q.Query)
}

func queryMatches(want, rawQuery string) bool {
	if want == "" {
		return true
	}
	want, absent := strings.CutPrefix(want, "!")
	wantName, wantValue, hasValue := strings.Cut(want, "=")
	for name, value := range parameters(rawQuery) {
		if name == wantName && (!hasValue || value == wantValue) {
			return !absent
		}
	}
	return absent
}

// parameters yields the decoded parameters of a raw query, in order. What
// doesn't decode is taken as it is.
func parameters(rawQuery string) func(yield func(name, value string) bool) {
	decode := func(s string) string {
		if d, err := url.QueryUnescape(s); err == nil {
			return d
		}
		return s
	}
	return func(yield func(name, value string) bool) {
		for p := range strings.SplitSeq(rawQuery, "&") {
			if p == "" {
				continue
			}
			name, value, _ := strings.Cut(p, "=")
			if !yield(decode(name), decode(value)) {
				return
			}
		}
	}
}

// strip removes what a StripHeaders fault names.
func strip(h http.Header, names string) {
	for pattern := range strings.SplitSeq(names, ",") {
		prefix, open := strings.CutSuffix(pattern, "*")
		for name := range h {
			low := strings.ToLower(name)
			if low == pattern || open && strings.HasPrefix(low, prefix) {
				delete(h, name)
			}
		}
	}
}
