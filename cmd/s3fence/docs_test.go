package main

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/s3fence/s3fence/guard"
)

func readDocs(t *testing.T, names ...string) string {
	t.Helper()
	var all strings.Builder
	for _, name := range names {
		b, err := os.ReadFile(filepath.Join("..", "..", name))
		if err != nil {
			t.Fatal(err)
		}
		all.Write(b)
	}
	return all.String()
}

// jsonFields are the names of all fields that this command prints.
func jsonFields(t *testing.T) map[string]bool {
	t.Helper()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	fields := make(map[string]bool)
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			field, ok := n.(*ast.Field)
			if !ok || field.Tag == nil {
				return true
			}
			tag, err := strconv.Unquote(field.Tag.Value)
			if err != nil {
				t.Fatal(err)
			}
			if name, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ","); name != "" && name != "-" {
				fields[name] = true
			}
			return true
		})
	}
	return fields
}

// What is printed is documented, and what is documented is printed.
func TestDocumentedJSON(t *testing.T) {
	docs := readDocs(t, "docs/json.md", "docs/audit.md", "docs/policy.md")
	fields := jsonFields(t)
	for name := range fields {
		if !strings.Contains(docs, "`"+name+"`") {
			t.Errorf("no page says what %q is", name)
		}
	}
	byOthers := map[string]bool{"counts": true, "findings": true, "etag_kinds": true, "documents": true, "metadata": true} // the names in them are values
	examples := 0
	for _, block := range regexp.MustCompile("(?s)```json\n(.*?)```").FindAllStringSubmatch(readDocs(t, "docs/json.md", "docs/audit.md"), -1) {
		for line := range strings.Lines(block[1]) {
			var v any
			if err := json.Unmarshal([]byte(line), &v); err != nil {
				t.Errorf("%s: %v", line, err)
			}
			examples++
			var look func(v any)
			look = func(v any) {
				switch v := v.(type) {
				case []any:
					for _, e := range v {
						look(e)
					}
				case map[string]any:
					for name, e := range v {
						if !fields[name] {
							t.Errorf("nothing prints %q of %s", name, line)
						}
						if !byOthers[name] {
							look(e)
						}
					}
				}
			}
			look(v)
		}
	}
	if examples < 10 {
		t.Errorf("only %d examples were found", examples)
	}
}

// The tables of the docs are those of the code.
func TestDocumentedReasons(t *testing.T) {
	exits := make(map[string]int)
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]*) \\| (\\d+) \\|$").FindAllStringSubmatch(readDocs(t, "docs/json.md"), -1) {
		exit, err := strconv.Atoi(row[2])
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range regexp.MustCompile("`([^`]*)`").FindAllStringSubmatch(row[1], -1) {
			exits[word[1]] = exit
		}
	}
	readme := readDocs(t, "README.md")
	for _, e := range exitCodes {
		word, exit, _ := outcomeOf(e.err)
		if got, ok := exits[word]; !ok || got != exit {
			t.Errorf("%s exits with %d; docs/json.md says %d (%t)", word, exit, got, ok)
		}
		if !strings.Contains(readme, "| "+strconv.Itoa(exit)+" |") {
			t.Errorf("README.md has no exit code %d", exit)
		}
	}
	for _, err := range []error{
		guard.ErrNoBucket, guard.ErrNotFound, guard.ErrDenied, guard.ErrConflict, guard.ErrUnsupported, guard.ErrRejected, guard.ErrNotSent,
		os.ErrNotExist, os.ErrDeadlineExceeded,
	} {
		if word, exit, _ := outcomeOf(err); exits[word] != exit {
			t.Errorf("%s (%v) exits with %d; docs/json.md says %d", word, err, exit, exits[word])
		}
	}
}
