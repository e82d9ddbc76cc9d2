package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"
)

const (
	// startTimeout bounds a start when the context doesn't. A loaded machine
	// under the race detector needs far more than the usual second.
	startTimeout = 60 * time.Second
	stopGrace    = 10 * time.Second
	pollEvery    = 20 * time.Millisecond
)

// A Server is a server process on 127.0.0.1 and what a client needs to use it.
// The fields never change, not by [Server.Restart] either. Its methods may be
// called from several goroutines.
type Server struct {
	URL                  string // http://127.0.0.1:PORT
	AccessKey, SecretKey string
	Region               string

	spec  spec
	dir   string // data lives below it
	temp  bool   // dir goes with Stop
	ports []port
	out   *ring

	mu      sync.Mutex
	child   *child       // nil when it never started
	inUse   *flock.Flock // held while the child lives
	stopped bool
}

// A spec says how one kind of server runs.
type spec struct {
	name  string
	ports int
	// command returns the process to start. Its Env is what to add to the
	// filtered environment.
	command func(s *Server) *exec.Cmd
	// ready returns nil when the server answers as the process that s
	// started, and an error when it doesn't yet.
	ready func(ctx context.Context, s *Server) error
}

// errPort is a start that failed because something else has the port.
var errPort = errors.New("port in use")

// newServer makes the data folder; "" makes a temporary one.
func newServer(sp spec, dir string) (*Server, error) {
	s := &Server{spec: sp, dir: dir, out: &ring{}}
	var err error
	if dir == "" {
		s.temp = true
		s.dir, err = os.MkdirTemp("", "s3fence-"+sp.name+"-")
	} else if s.dir, err = filepath.Abs(dir); err == nil {
		err = os.MkdirAll(s.dir, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("servers: %s: %w", sp.name, err)
	}
	return s, nil
}

// start picks ports and starts the server for the first time. When it fails
// nothing is left of it.
func (s *Server) start(ctx context.Context) (*Server, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	for range 5 {
		if err = s.pickPorts(ctx); err != nil {
			break
		}
		s.URL = "http://" + s.ports[0].address()
		if err = s.launch(ctx); err == nil {
			return s, nil
		}
		s.releasePorts()
		if !errors.Is(err, errPort) {
			break
		}
	}
	_ = s.removeTemp()
	return nil, fmt.Errorf("servers: %s: %w", s.spec.name, err)
}

func (s *Server) pickPorts(ctx context.Context) error {
	for range s.spec.ports {
		p, err := freePort(ctx)
		if err != nil {
			s.releasePorts()
			return err
		}
		s.ports = append(s.ports, p)
	}
	return nil
}

func (s *Server) releasePorts() {
	for _, p := range s.ports {
		p.release()
	}
	s.ports = nil
}

// launch starts the process and waits until it is ready. When it fails, the
// process is gone. s.mu is held.
func (s *Server) launch(ctx context.Context) (err error) {
	// Not every server locks its own folder: two MinIOs on one spoil it.
	s.inUse = flock.New(filepath.Join(s.dir, ".lock"))
	if locked, err := s.inUse.TryLock(); err != nil {
		return err
	} else if !locked {
		return fmt.Errorf("another process serves %s", s.dir)
	}
	defer func() {
		if err != nil {
			s.inUse.Unlock()
		}
	}()
	s.out = &ring{secrets: s.out.secrets}
	cmd := s.spec.command(s)
	cmd.Dir = s.dir
	cmd.Env = append(environment(), cmd.Env...)
	c, err := startChild(cmd, s.out)
	if err != nil {
		return err
	}
	s.child = c

	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		probe, cancel := context.WithTimeout(ctx, 5*time.Second)
		notReady := s.spec.ready(probe, s)
		cancel()
		if notReady == nil && c.alive() {
			return nil
		}
		select {
		case <-c.gone:
			return s.failed(fmt.Errorf("ended at once (%v)", c.cmd.ProcessState))
		case <-ctx.Done():
			c.kill()
			return s.failed(fmt.Errorf("not ready: %w (last: %w)", ctx.Err(), notReady))
		case <-tick.C:
		}
	}
}

// failed adds what the server printed.
func (s *Server) failed(err error) error {
	out := strings.TrimSpace(s.out.String())
	if low := strings.ToLower(out); strings.Contains(low, "in use") || strings.Contains(low, "eaddrinuse") {
		err = fmt.Errorf("%w: %w", errPort, err)
	}
	if out == "" {
		return fmt.Errorf("%w; it printed nothing", err)
	}
	return fmt.Errorf("%w; it printed:\n%s", err, out)
}

// Stop asks the server to end, kills it if it hasn't after ten seconds, and
// returns when the process is gone. It removes the data if no folder was
// given for it. Stopping a stopped server does nothing.
func (s *Server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	s.stopped = true
	s.child.stop(stopGrace)
	s.inUse.Unlock()
	s.releasePorts()
	if err := s.removeTemp(); err != nil {
		return fmt.Errorf("servers: %s: %w", s.spec.name, err)
	}
	return nil
}

// removeTemp removes the data unless the caller named its folder.
func (s *Server) removeTemp() error {
	if !s.temp {
		return nil
	}
	return os.RemoveAll(s.dir)
}

// Kill ends the server with no warning (SIGKILL), as a crash looks
// to its clients, and returns when the process is gone. Its
// data and its port are kept for [Server.Restart]. The machine itself doesn't
// crash, so what the server wrote and never synced is still there.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	s.child.kill()
	return s.inUse.Unlock()
}

// Restart starts the server again on the same data and port, with the same
// credentials, after it has ended it (as Stop does) if it still runs. It
// returns when the server answers. A server that was stopped stays so: that is
// an error. A failed Restart may be tried again. ctx bounds the start only.
func (s *Server) Restart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return fmt.Errorf("servers: %s: restart after Stop", s.spec.name)
	}
	s.child.stop(stopGrace)
	s.inUse.Unlock()
	tick := time.NewTicker(10 * pollEvery)
	defer tick.Stop()
	for {
		err := s.launch(ctx)
		if err == nil {
			return nil
		}
		// Something holds the port for now: a connection of a test that happens to use it.
		if !errors.Is(err, errPort) || ctx.Err() != nil {
			return fmt.Errorf("servers: %s: %w", s.spec.name, err)
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// Output returns the end of what the server has printed since its last start,
// with its secrets blanked.
func (s *Server) Output() string {
	s.mu.Lock()
	out := s.out
	s.mu.Unlock()
	return out.String()
}

// Name is minio, dynalite or moto.
func (s *Server) Name() string { return s.spec.name }

// String names the server, without its secrets, however it is printed.
func (s *Server) String() string { return s.spec.name + " at " + s.URL }

// GoString is String.
func (s *Server) GoString() string { return s.String() }

// environment is the caller's without what would change a server's behaviour
// or hand it credentials that aren't its own.
func environment() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !hasAnyPrefix(kv, "AWS_", "MINIO_", "_MINIO_", "MOTO_", "NODE_OPTIONS=") {
			env = append(env, kv)
		}
	}
	return env
}

func hasAnyPrefix(s string, prefixes ...string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}
