//go:build !unix

package servers

import "os/exec"

func ownGroup(*exec.Cmd) {}

// terminate kills: there is no signal that asks.
func terminate(cmd *exec.Cmd) { cmd.Process.Kill() }

func killGroup(cmd *exec.Cmd) { cmd.Process.Kill() }
