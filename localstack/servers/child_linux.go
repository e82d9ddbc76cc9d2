package servers

import (
	"os/exec"
	"syscall"
)

// ownGroup puts the child in a process group of its own, so that Ctrl-C in a
// terminal reaches only this process, which then stops its servers in order,
// and ties its life to this process, which may be killed before it can.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
