package servers

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/gofrs/flock"
)

// Ports are taken from below the range that systems give to outgoing
// connections and to listeners that ask for any port, so that nobody gets a
// server's port while it is down between Kill and Restart.
const (
	firstPort = 23000
	ports     = 4000
)

// A port is a free port on 127.0.0.1 that no other user of this package takes
// until it is released. The lock matters: MinIO sets SO_REUSEPORT, so two of
// them may share one port with no error, each answering some of the requests.
type port struct {
	number int
	lock   *flock.Flock
}

func (p port) address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.number)) }

func (p port) release() { p.lock.Unlock() }

func freePort(ctx context.Context) (port, error) {
	cache, err := cacheDir()
	if err != nil {
		return port{}, err
	}
	dir := filepath.Join(cache, "ports")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return port{}, err
	}
	for range 200 {
		if err := ctx.Err(); err != nil {
			return port{}, err
		}
		n := firstPort + rand.IntN(ports)
		p := port{n, flock.New(filepath.Join(dir, strconv.Itoa(n)+".lock"))}
		locked, err := p.lock.TryLock()
		if err != nil {
			return port{}, err
		}
		if !locked {
			continue
		}
		l, err := net.Listen("tcp4", p.address())
		if err == nil {
			l.Close()
			return p, nil
		}
		p.release()
	}
	return port{}, errors.New("no free port on 127.0.0.1")
}
