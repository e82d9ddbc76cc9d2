package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
)

// onWrite runs a function once something was written.
type onWrite struct {
	bytes.Buffer
	do func()
}

func (w *onWrite) Write(p []byte) (int, error) {
	defer w.do()
	return w.Buffer.Write(p)
}

// A question ends with the context, whoever does not answer.
func TestAskInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	in, silent := io.Pipe()
	defer silent.Close()
	out := &onWrite{do: cancel}
	err := ask(ctx, in, out, "would do this\n")
	if exitCode(err) != 130 || !strings.Contains(err.Error(), "nothing was changed") {
		t.Errorf("exit code %d, %v", exitCode(err), err)
	}
	if got := out.String(); got != "would do this\nDo it? [y/N] \n" {
		t.Errorf("asked %q", got)
	}
}

func TestAsk(t *testing.T) {
	for in, want := range map[string]int{"y\n": 0, " YES \n": 0, "y": 0, "n\n": 1, "\n": 1, "yesterday\n": 1, "": 2} {
		if err := ask(t.Context(), strings.NewReader(in), io.Discard, ""); exitCode(err) != want {
			t.Errorf("%q: exit code %d, want %d: %v", in, exitCode(err), want, err)
		}
	}
	if err := ask(t.Context(), strings.NewReader("n\n"), io.Discard, ""); errors.Is(err, errUsage) {
		t.Errorf("a no is no wrong call: %v", err)
	}
}
