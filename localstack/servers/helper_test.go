package servers

import (
	"context"
	"runtime"
)

// DiesWithParent says whether this system promises it.
const DiesWithParent = runtime.GOOS == "linux"

// StartHelper starts a helper server on dir and returns its process id.
func StartHelper(dir string) (int, error) {
	s, err := newServer(helperSpec(func() string { return "serve" }), dir)
	if err != nil {
		return 0, err
	}
	if s, err = s.start(context.Background()); err != nil {
		return 0, err
	}
	return s.child.cmd.Process.Pid, nil
}
