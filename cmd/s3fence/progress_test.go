package main

import (
	"bytes"
	"strings"
	"sync"
	"testing"
)

func TestProgress(t *testing.T) {
	for _, tt := range []struct {
		name  string
		total int64
		unit  unit
		want  string
	}{
		{"objects counted", unknown, objects, "(3, "},
		{"objects of a known number", 10, objects, "(3/10, "},
		{"bytes of a known size", 4096, byteCount, "3 B/4.0 KiB"},
		{"bytes of an unknown size", unknown, byteCount, "3 B"},
		{"checks", 10, checks, "(3/10)"},
		{"nothing", 0, byteCount, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var term bytes.Buffer
			p := newProgress(&term, "doing it", tt.total, tt.unit)
			p.add(3)
			got := term.String()
			if !strings.Contains(got, tt.want) || tt.want != "" && !strings.Contains(got, "doing it") {
				t.Errorf("%q, want %q", got, tt.want)
			}
			if strings.Contains(got, "\x1b[") {
				t.Errorf("%q has colours", got)
			}
			p.end()
			end := term.Len()
			p.add(1)
			if term.Len() != end {
				t.Errorf("it is drawn after its end: %q", term.String()[end:])
			}
			if got != "" && !strings.HasSuffix(term.String(), " \r") {
				t.Errorf("%q leaves something on the line", term.String())
			}
		})
	}
}

// Lines and the bar share a terminal.
func TestProgressBetweenLines(t *testing.T) {
	var term bytes.Buffer
	a := &app{terminal: &term}
	out := screen{a, &term}
	p := a.progress("deleting", unknown, objects)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			p.add(1)
			if _, err := out.Write([]byte("line\n")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	p.end()
	for l := range strings.Lines(term.String()) {
		if strings.HasSuffix(l, "\n") && !strings.HasSuffix(l, "\rline\n") && l != "line\n" {
			t.Errorf("%q", l)
		}
	}
	if _, err := out.Write([]byte("last\n")); err != nil || !strings.HasSuffix(term.String(), "last\n") {
		t.Errorf("%v", err)
	}
}

// Parts are read in any order, and what is read again is not counted again.
func TestProgressOfReads(t *testing.T) {
	const size = 3<<20 + 5
	var term bytes.Buffer
	p := newProgress(&term, "sending", size, byteCount)
	r := p.readerAt(strings.NewReader(strings.Repeat("x", size)), size)
	for _, tt := range []struct{ off, n, want int64 }{
		{2 << 20, 10, 10},
		{2 << 20, 5, 10},
		{2<<20 + 5, 10, 15},
		{0, 1<<20 + 1, 1<<20 + 16},
		{0, size, size},
		{1, size - 1, size},
	} {
		if _, err := r.ReadAt(make([]byte, tt.n), tt.off); err != nil {
			t.Fatal(err)
		}
		if p.n != tt.want {
			t.Errorf("at %d after %d bytes from %d on, want %d", p.n, tt.n, tt.off, tt.want)
		}
	}
	p.end()
}

// Of many files both are told: how many, and how many bytes.
func TestProgressOfFiles(t *testing.T) {
	var term bytes.Buffer
	p := newProgress(&term, "sending", unknown, byteCount)
	p.object()
	p.add(1024)
	if got := p.filesText(); got != "sending, 1 file" {
		t.Errorf("%q", got)
	}
	p.expect(40, 4096)
	p.object()
	p.add(1024)
	if got := p.filesText(); got != "sending, 2 of 40 files" || p.bar.GetMax64() != 4096 || p.bar.State().CurrentBytes != 2048 {
		t.Errorf("%q, %+v", got, p.bar.State())
	}
	p.end()
}

func TestProgressIsForPeople(t *testing.T) {
	var term bytes.Buffer
	for _, a := range []*app{
		{},
		{terminal: &term, quiet: true},
		{terminal: &term, json: true},
	} {
		p := a.progress("doing it", 10, objects)
		p.add(1)
		p.at(2)
		p.describe("more")
		p.end()
		if p != nil || term.Len() > 0 {
			t.Errorf("shown: %q", &term)
		}
	}
	a := &app{stdout: &term, stderr: &term, getenv: func(string) string { return "" }}
	if a.watch(); a.terminal != nil {
		t.Error("a buffer is no terminal")
	}
}
