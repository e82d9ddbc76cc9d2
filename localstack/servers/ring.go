package servers

import (
	"strings"
	"sync"
)

// ringSize is enough for the lines that say why a start failed.
const ringSize = 32 << 10

// A ring keeps the end of what was written to it, whatever the amount, so
// that a server that logs for hours costs no more than one that fails at once.
type ring struct {
	secrets []string // shown as ***

	mu   sync.Mutex
	buf  []byte
	next int // where the oldest byte is, once buf is full
}

// Write never fails.
func (r *ring) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(p)
	if len(p) > ringSize {
		p = p[len(p)-ringSize:]
	}
	if room := ringSize - len(r.buf); room > 0 {
		k := min(room, len(p))
		r.buf = append(r.buf, p[:k]...)
		p = p[k:]
	}
	for len(p) > 0 {
		k := copy(r.buf[r.next:], p)
		r.next = (r.next + k) % ringSize
		p = p[k:]
	}
	return n, nil
}

// String returns what is kept, oldest first.
func (r *ring) String() string {
	r.mu.Lock()
	s := string(r.buf[r.next:]) + string(r.buf[:r.next])
	r.mu.Unlock()
	for _, secret := range r.secrets {
		if secret != "" {
			s = strings.ReplaceAll(s, secret, "***")
		}
	}
	return s
}
