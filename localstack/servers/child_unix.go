//go:build unix && !linux

package servers

import (
	"os/exec"
	"syscall"
)

// ownGroup puts the child in a process group of its own, so that Ctrl-C in a
// terminal reaches only this process, which then stops its servers in order.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}
