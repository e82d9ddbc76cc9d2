package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// An object keeps the order of its fields, which maps don't. A value is a
// string, a list of strings, an object, or a list of objects.
type object []field

type field struct {
	name  string
	value any
}

// MarshalJSON implements json.Marshaler.
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, f := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		name, err := marshal(f.name)
		if err != nil {
			return nil, err
		}
		value, err := marshal(f.value)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "%s:%s", name, value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// marshal is json.Marshal that leaves &, < and > in keys as they are.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

func (s statement) object() object {
	o := object{{"Sid", s.sid}, {"Effect", s.effect}}
	switch {
	case len(s.principals) == 1 && s.principals[0] == "*":
		o = append(o, field{"Principal", "*"})
	case len(s.principals) > 0:
		o = append(o, field{"Principal", object{{"AWS", s.principals}}})
	}
	o = append(o, field{"Action", s.actions}, field{"Resource", s.resources})
	if len(s.condition) > 0 {
		o = append(o, field{"Condition", s.condition})
	}
	return o
}

func (d Document) object() object {
	var all []object
	for _, s := range d.statements {
		all = append(all, s.object())
	}
	// With the older version, ${*} would be text.
	return object{{"Version", "2012-10-17"}, {"Statement", all}}
}

// MarshalJSON implements json.Marshaler: the policy itself.
func (d Document) MarshalJSON() ([]byte, error) { return d.compact(), nil }

func (d Document) compact() []byte {
	b, err := marshal(d.object())
	if err != nil {
		panic(err) // strings, lists and objects: nothing in it can fail
	}
	return b
}

// JSON returns the policy, indented, with a line feed at its end.
func (d Document) JSON() []byte { return indented(d.compact()) }

// JSON returns a single document as [Document.JSON] does, and several as one
// object that holds them by their names.
func JSON(docs []Document) []byte {
	if len(docs) == 1 {
		return docs[0].JSON()
	}
	var all object
	for _, d := range docs {
		all = append(all, field{d.Name, d.object()})
	}
	b, err := marshal(all)
	if err != nil {
		panic(err) // as in compact
	}
	return indented(b)
}

func indented(compact []byte) []byte {
	var b bytes.Buffer
	if err := json.Indent(&b, compact, "", "  "); err != nil {
		panic(err) // it was made by marshal
	}
	b.WriteByte('\n')
	return b.Bytes()
}

// Terraform returns resources for docs, and the notes as comments, in the
// layout of terraform fmt. Policies of roles are managed policies, named
// s3fence-BUCKET-ROLE; attaching them is left to the configuration that has
// the roles.
func Terraform(c Config, docs []Document, notes []string) []byte {
	var b bytes.Buffer
	for _, n := range notes {
		fmt.Fprintf(&b, "# %s\n", strings.Join(strings.Fields(n), " "))
	}
	for i, d := range docs {
		if i > 0 || len(notes) > 0 {
			b.WriteByte('\n')
		}
		label := "s3fence_" + strings.ReplaceAll(d.Name, "-", "_")
		var kind string
		var attrs object
		switch {
		case d.On == "":
			kind, attrs = "aws_iam_policy", object{{"name", "s3fence-" + c.Bucket + "-" + d.Name}}
		case strings.HasPrefix(d.On, "arn:"):
			kind, label, attrs = "aws_dynamodb_resource_policy", "s3fence", object{{"resource_arn", d.On}}
		default:
			kind, attrs = "aws_s3_bucket_policy", object{{"bucket", d.On}}
		}
		fmt.Fprintf(&b, "resource %s %s {\n", quote(kind), quote(label))
		writeFields(&b, "  ", attrs)
		b.WriteString("  policy = jsonencode({\n")
		writeFields(&b, "    ", d.object())
		b.WriteString("  })\n}\n")
	}
	return b.Bytes()
}

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]*$`)

// writeFields writes an object's fields, a line each. The equals signs of
// neighbours that take one line stand below one another.
func writeFields(b *bytes.Buffer, indent string, o object) {
	for i := 0; i < len(o); {
		if !oneLine(o[i].value) {
			fmt.Fprintf(b, "%s%s = ", indent, fieldName(o[i]))
			writeValue(b, indent, o[i].value)
			b.WriteByte('\n')
			i++
			continue
		}
		end, width := i, 0
		for ; end < len(o) && oneLine(o[end].value); end++ {
			width = max(width, utf8.RuneCountInString(fieldName(o[end])))
		}
		for ; i < end; i++ {
			name := fieldName(o[i])
			fmt.Fprintf(b, "%s%s%s = ", indent, name, strings.Repeat(" ", width-utf8.RuneCountInString(name)))
			writeValue(b, indent, o[i].value)
			b.WriteByte('\n')
		}
	}
}

func fieldName(f field) string {
	if identifier.MatchString(f.name) {
		return f.name
	}
	return quote(f.name)
}

func oneLine(v any) bool {
	switch v := v.(type) {
	case string:
		return true
	case []string:
		return len(v) == 1
	}
	return false
}

func writeValue(b *bytes.Buffer, indent string, v any) {
	more := indent + "  "
	switch v := v.(type) {
	case string:
		b.WriteString(quote(v))
	case []string:
		if len(v) == 1 {
			b.WriteString("[" + quote(v[0]) + "]")
			return
		}
		b.WriteString("[\n")
		for _, s := range v {
			fmt.Fprintf(b, "%s%s,\n", more, quote(s))
		}
		b.WriteString(indent + "]")
	case object:
		b.WriteString("{\n")
		writeFields(b, more, v)
		b.WriteString(indent + "}")
	case []object:
		b.WriteString("[\n")
		for _, o := range v {
			b.WriteString(more + "{\n")
			writeFields(b, more+"  ", o)
			b.WriteString(more + "},\n")
		}
		b.WriteString(indent + "]")
	}
}

var hclQuoted = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "${", "$${", "%{", "%%{")

// quote writes a string of HCL. Control characters never come here.
func quote(s string) string { return `"` + hclQuoted.Replace(s) + `"` }
