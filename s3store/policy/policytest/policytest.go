// Package policytest evaluates policies as IAM does, and stands in front of a
// real server with a bucket's policy in force: few servers know the conditions
// of S3 on If-Match and If-None-Match. It knows what package policy writes, and
// refuses what it does not know.
package policytest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// A Request is one action that somebody asks for.
type Request struct {
	// Principal is an ARN, in the context as aws:PrincipalArn; "" is nobody
	// known, or a service.
	Principal string
	// Action and Resource, such as s3:PutObject and arn:aws:s3:::b/k.
	Action, Resource string
	// Context holds the condition keys that the request has.
	Context map[string][]string
}

// A Policy is a parsed document.
type Policy struct{ statements []statement }

type statement struct {
	Sid       string
	Effect    string
	Principal json.RawMessage
	Action    []string
	Resource  []string
	Condition map[string]map[string]list
}

// A list is one string or several.
type list []string

// UnmarshalJSON implements json.Unmarshaler.
func (l *list) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*l = list{one}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(l))
}

// Parse reads a policy's JSON. It refuses elements and operators that it does
// not know.
func Parse(text []byte) (*Policy, error) {
	var doc struct {
		Version   string
		Statement []statement
	}
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(&doc); err != nil {
		return nil, fmt.Errorf("policytest: %w", err)
	}
	if doc.Version != "2012-10-17" || len(doc.Statement) == 0 {
		return nil, fmt.Errorf("policytest: version %q, %d statements", doc.Version, len(doc.Statement))
	}
	for _, s := range doc.Statement {
		if s.Effect != "Allow" && s.Effect != "Deny" {
			return nil, fmt.Errorf("policytest: statement %s: effect %q", s.Sid, s.Effect)
		}
		for op := range s.Condition {
			if _, _, _, err := operator(op); err != nil {
				return nil, fmt.Errorf("policytest: statement %s: %w", s.Sid, err)
			}
		}
	}
	return &Policy{doc.Statement}, nil
}

// A Decision is what policies come to.
type Decision string

// The decisions. Implicit is neither allowed nor denied, so not allowed.
const (
	Allowed  Decision = "allowed"
	Denied   Decision = "denied"
	Implicit Decision = "not allowed"
)

// Decide evaluates a request against all policies that apply to it, and names
// the statement that decided: a denial beats every permission.
func Decide(r Request, policies ...*Policy) (d Decision, sid string) {
	d = Implicit
	for _, p := range policies {
		for _, s := range p.statements {
			if !s.applies(r) {
				continue
			}
			if s.Effect == "Deny" {
				return Denied, s.Sid
			}
			d, sid = Allowed, s.Sid
		}
	}
	return d, sid
}

func (s statement) applies(r Request) bool {
	if !s.principal(r.Principal) || !anyMatch(s.Action, r.Action) || !anyMatch(s.Resource, r.Resource) {
		return false
	}
	for op, keys := range s.Condition {
		for key, values := range keys {
			if !holds(op, r.values(key), values) {
				return false
			}
		}
	}
	return true
}

// values are the request's of a key, whose name has no case.
func (r Request) values(key string) []string {
	if strings.EqualFold(key, "aws:PrincipalArn") && r.Principal != "" {
		return []string{r.Principal}
	}
	for k, v := range r.Context {
		if strings.EqualFold(k, key) {
			return v
		}
	}
	return nil
}

// principal: a policy of a role's names none.
func (s statement) principal(who string) bool {
	var named struct{ AWS list }
	switch {
	case len(s.Principal) == 0, string(s.Principal) == `"*"`:
		return true
	case json.Unmarshal(s.Principal, &named) != nil:
		return false
	}
	return slices.Contains(named.AWS, who)
}

func anyMatch(patterns []string, s string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return match(p, s) })
}

// operator splits an operator's name: its qualifier, itself, and IfExists.
func operator(name string) (set, op string, ifExists bool, err error) {
	if before, after, ok := strings.Cut(name, ":"); ok {
		set, name = before, after
	}
	op, ifExists = strings.CutSuffix(name, "IfExists")
	switch set {
	case "", "ForAllValues", "ForAnyValue":
	default:
		return "", "", false, fmt.Errorf("qualifier %q is not known", set)
	}
	switch op {
	case "Null", "Bool", "StringEquals", "StringNotEquals", "StringLike", "StringNotLike", "ArnLike", "ArnNotLike":
		return set, op, ifExists, nil
	}
	return "", "", false, fmt.Errorf("operator %q is not known", name)
}

// holds evaluates one operator with one key. Of a key that the request does
// not have, only the negated operators hold.
func holds(name string, have, want []string) bool {
	set, op, ifExists, err := operator(name)
	if err != nil {
		return false // Parse let none through
	}
	if op == "Null" {
		return (len(have) == 0) == (want[0] == "true")
	}
	plain, negated := strings.Replace(op, "Not", "", 1), strings.Contains(op, "Not")
	one := func(v string) bool {
		for _, w := range want {
			switch plain {
			case "StringEquals":
				if v == w {
					return !negated
				}
			case "Bool":
				if strings.EqualFold(v, w) {
					return true
				}
			default:
				if match(w, v) {
					return !negated
				}
			}
		}
		return negated
	}
	if len(have) == 0 {
		return ifExists || set == "ForAllValues" || negated && set == ""
	}
	some, all := false, true
	for _, v := range have {
		some, all = some || one(v), all && one(v)
	}
	if set == "ForAnyValue" {
		return some
	}
	return all
}

// match compares with a pattern of * and ?, which ${*}, ${?} and ${$} write as
// themselves.
func match(pattern, s string) bool {
	for pattern != "" {
		switch {
		case pattern[0] == '*':
			for i := range len(s) + 1 {
				if match(pattern[1:], s[i:]) {
					return true
				}
			}
			return false
		case s == "":
			return false
		case len(pattern) >= 4 && pattern[:2] == "${" && pattern[3] == '}':
			if s[0] != pattern[2] {
				return false
			}
			pattern, s = pattern[4:], s[1:]
		case pattern[0] == '?' || pattern[0] == s[0]:
			pattern, s = pattern[1:], s[1:]
		default:
			return false
		}
	}
	return s == ""
}
