package main

import (
	"fmt"

	"github.com/gobwas/glob"
	"github.com/spf13/pflag"
)

// globs are --include and --exclude, in the order in which they were given.
type globs []rule

type rule struct {
	pattern *glob.Pattern
	include bool
}

func (g *globs) add(f *pflag.FlagSet) {
	for _, r := range []struct {
		name, usage string
		include     bool
	}{
		{"include", "with -r: take names that match `GLOB`; of several that match, the last one counts", true},
		{"exclude", "with -r: leave out names that match `GLOB`", false},
	} {
		f.Var(&parsed[globs]{value: g, kind: "glob", parse: func(s string) (globs, error) {
			p, err := glob.Compile(s)
			if err != nil {
				return nil, fmt.Errorf("not a pattern: %w", err)
			}
			return append(*g, rule{p, r.include}), nil
		}}, r.name, r.usage)
	}
}

// take reports whether a name, with slashes, is to be taken. Of the globs that
// match it the last one counts. One that none matches is taken, unless the
// first is an --include.
func (g globs) take(name string) bool {
	for i := len(g) - 1; i >= 0; i-- {
		if g[i].pattern.Match(name) {
			return g[i].include
		}
	}
	return len(g) == 0 || !g[0].include
}
