package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

// A measurement is what one process took.
type measurement struct {
	Wall float64 `json:"wall_s"`
	CPU  float64 `json:"cpu_s"` // user and system, of its children too
	Peak float64 `json:"peak_mib"`
}

func seconds(u *syscall.Rusage) float64 {
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

func mebibytes(u *syscall.Rusage) float64 {
	if runtime.GOOS == "darwin" {
		return float64(u.Maxrss) / (1 << 20)
	}
	return float64(u.Maxrss) / (1 << 10)
}

// measureMain runs a command and writes what it took to file 3, as JSON. It is
// a small process of its own because Linux counts the memory of the process
// that starts another as the other one's peak.
func measureMain(argv []string) error {
	if len(argv) == 0 {
		return errors.New("measure needs a command")
	}
	// The command gets an interrupt, too, and ends first. Not ignored: it would inherit that.
	signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	begun := time.Now()
	err := cmd.Run()
	m := measurement{Wall: time.Since(begun).Seconds()}
	if err != nil {
		return err
	}
	u, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return errors.New("this system does not say what a process took")
	}
	m.CPU, m.Peak = seconds(u), mebibytes(u)
	out := os.NewFile(3, "measurement")
	return errors.Join(json.NewEncoder(out).Encode(m), out.Close())
}
