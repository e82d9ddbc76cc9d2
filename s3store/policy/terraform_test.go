package policy_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/s3fence/s3fence/s3store/policy"
)

// terraform runs the program, which needs no provider and no network for this.
func terraform(t *testing.T, dir, stdin string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath("terraform")
	if err != nil {
		t.Skip("left out: terraform is not on PATH")
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CHECKPOINT_DISABLE=1", "TF_IN_AUTOMATION=1", "TF_CLI_CONFIG_FILE="+os.DevNull)
	cmd.Stdin = strings.NewReader(stdin)
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		t.Fatalf("terraform %s: %v\n%s%s", args[0], err, &out, &problems)
	}
	return out.String()
}

// The HCL is laid out as terraform fmt does.
func TestTerraformLayout(t *testing.T) {
	for name, c := range configs() {
		t.Run(name, func(t *testing.T) {
			docs, notes := documents(t, c)
			terraform(t, t.TempDir(), string(policy.Terraform(c, docs, notes)), "fmt", "-check", "-diff", "-")
		})
	}
}

// What terraform makes of the HCL is the very JSON.
func TestTerraformValues(t *testing.T) {
	for name, c := range configs() {
		t.Run(name, func(t *testing.T) {
			docs, notes := documents(t, c)
			// Resources of a provider can't be evaluated without it, their
			// policies can.
			var locals strings.Builder
			locals.WriteString("locals {\n")
			n := 0
			for line := range strings.Lines(string(policy.Terraform(c, docs, notes))) {
				if strings.HasPrefix(line, "  policy = jsonencode({") {
					line = strings.Replace(line, "policy", fmt.Sprintf("p%d", n), 1)
					n++
				} else if !strings.HasPrefix(line, "    ") && !strings.HasPrefix(line, "  })") {
					continue
				}
				locals.WriteString(line)
			}
			locals.WriteString("}\n")
			if n != len(docs) {
				t.Fatalf("%d policies of %d documents", n, len(docs))
			}
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "main.tf"), []byte(locals.String()), 0o600); err != nil {
				t.Fatal(err)
			}
			var ask []string
			for i := range docs {
				ask = append(ask, fmt.Sprintf("base64encode(local.p%d)", i))
			}
			out := terraform(t, dir, `join(" ", [`+strings.Join(ask, ", ")+"])\n", "console")
			for i, word := range strings.Fields(strings.Trim(strings.TrimSpace(out), `"`)) {
				got, err := base64.StdEncoding.DecodeString(word)
				if err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				if a, b := canonical(t, got), canonical(t, docs[i].JSON()); a != b {
					t.Errorf("%s is\n%s\nwanted\n%s", docs[i].Name, a, b)
				}
				n--
			}
			if n != 0 {
				t.Errorf("%d policies missing: %s", n, out)
			}
		})
	}
}

// canonical sorts all keys.
func canonical(t *testing.T, text []byte) string {
	t.Helper()
	var v any
	decode(t, text, &v)
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
