package fabric

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"weir.dev/weir/netns"
	"weir.dev/weir/openflow"
	"weir.dev/weir/openflow/fake"
)

// identity is the directory of a switch's key.pem, cert.pem and ca.pem.
type identity string

// certify has a certificate made for datapath ids.
func (b *bed) certify(dpids []string, more ...string) identity {
	b.t.Helper()
	dir := b.t.TempDir()
	b.must(append(append([]string{"switch", "cert", "--out", dir}, dpids...), more...)...)
	return identity(dir)
}

// config presents the identity, or nothing if it is "".
func (i identity) config() (*tls.Config, error) {
	c := &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12} // as Open vSwitch 3.1, and so the answer to a certificate comes with the handshake
	if i == "" {
		return c, nil
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(string(i), "cert.pem"), filepath.Join(string(i), "key.pem"))
	c.Certificates = []tls.Certificate{pair}
	return c, err
}

// dialOpenFlow connects to the manager's port from where the switches are.
func (b *bed) dialOpenFlow() (c net.Conn, err error) {
	err = netns.Do(b.netns("ovs"), func() (err error) {
		c, err = net.DialTimeout("tcp", "100.64.0.1:6653", 5*time.Second)
		return err
	})
	return c, err
}

// dialTLS does the TLS handshake as well.
func (b *bed) dialTLS(i identity) (net.Conn, error) {
	config, err := i.config()
	if err != nil {
		return nil, err
	}
	c, err := b.dialOpenFlow()
	if err != nil {
		return nil, err
	}
	t := tls.Client(c, config)
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if err := t.Handshake(); err != nil {
		c.Close()
		return nil, fmt.Errorf("TLS: %w", err)
	}
	return t, c.SetDeadline(time.Time{})
}

// puppet is a switch in memory whose conversation with the router somebody else changes.
type puppet struct {
	nc   net.Conn
	stop func()
	mu   sync.Mutex    // of writing to nc: whole messages
	gone chan struct{} // closed when the router hung up
}

// puppet connects one; filter sees each message from the switch to the router (down) and back (up), and gives what goes on in its place.
func (b *bed) puppet(i identity, c fake.Config, filter func(up bool, m []byte) [][]byte) (*puppet, error) {
	nc, err := b.dialTLS(i)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(b.ctx)
	p := &puppet{nc: nc, gone: make(chan struct{})}
	own := fake.New(c).Pipe(ctx)
	if filter == nil {
		filter = func(_ bool, m []byte) [][]byte { return [][]byte{m} }
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer cancel()
		_ = relay(own, func(m []byte) error {
			for _, m := range filter(true, m) {
				if err := p.say(m); err != nil {
					return err
				}
			}
			return nil
		})
	})
	wg.Go(func() {
		defer close(p.gone)
		defer own.Close()
		_ = relay(nc, func(m []byte) error {
			for _, m := range filter(false, m) {
				if _, err := own.Write(m); err != nil {
					return err
				}
			}
			return nil
		})
	})
	p.stop = sync.OnceFunc(func() { cancel(); own.Close(); nc.Close(); wg.Wait() })
	return p, nil
}

// relay reads messages until the connection ends.
func relay(from net.Conn, to func([]byte) error) error {
	head := make([]byte, 8)
	for {
		if _, err := io.ReadFull(from, head); err != nil {
			return err
		}
		n := int(binary.BigEndian.Uint16(head[2:]))
		if n < 8 {
			return errors.New("short message")
		}
		m := make([]byte, n)
		copy(m, head)
		if _, err := io.ReadFull(from, m[8:]); err != nil {
			return err
		}
		if err := to(m); err != nil {
			return err
		}
	}
}

// say writes raw octets to the router, in no more than ten seconds.
func (p *puppet) say(m []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.nc.SetWriteDeadline(time.Now().Add(10 * time.Second))
	_, err := p.nc.Write(m)
	return err
}

// storm says messages until it has said n, some time is over, or the router hangs up.
func (p *puppet) storm(n int, at func(i int) openflow.Message) (said int, err error) {
	end := time.Now().Add(3 * time.Second)
	var b []byte
	for said < n && time.Now().Before(end) {
		b = b[:0]
		for k := range 64 {
			if b, err = openflow.Append(b, 0, at(said+k)); err != nil {
				return said, err
			}
		}
		if err := p.say(b); err != nil {
			return said, err
		}
		said += 64
	}
	return said, nil
}

// resident is a process's memory in bytes.
func resident(t *testing.T, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	var all, in int64
	if _, err := fmt.Sscan(string(text), &all, &in); err != nil {
		t.Fatal(err)
	}
	return in * int64(os.Getpagesize())
}
