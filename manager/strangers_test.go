package manager_test

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"weir.dev/weir/manager"
)

// Whoever connects to the agents' listener without a certificate takes no agent's place: neither that of one who is there, nor of one who comes, from the
// same address even. Idle connections are bounded in number, before a handshake and after one.
func TestStrangersLockNoAgentOut(t *testing.T) {
	const many, most = 600, 256
	w := joinWorld(t, manager.Options{})
	c, id := w.member(t, "h1")
	must(c.Beat(ctx(t), "h1", time.Now()))(t)
	var idle []net.Conn
	for i := range many {
		x := must(net.Dial("tcp", w.addr))(t)
		t.Cleanup(func() { x.Close() })
		if i%20 == 0 {
			strange := tls.Client(x, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}) //nolint:gosec // it is nobody's agent
			if err := strange.HandshakeContext(ctx(t)); err != nil {
				t.Fatal(err)
			}
		}
		idle = append(idle, x)
	}
	began := time.Now()
	must(c.Beat(ctx(t), "h1", time.Now()))(t)
	must(w.dial(t, id.Client(time.Now, "h2", "http/1.1")).Beat(ctx(t), "h1", time.Now()))(t)
	newcomer, _ := w.member(t, "h2")
	must(newcomer.Beat(ctx(t), "h2", time.Now()))(t)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("agents were held up for %v", took)
	}
	open := 0
	for _, x := range idle {
		if err := x.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		for {
			_, err := x.Read(make([]byte, 4096)) // a session ticket, maybe
			if errors.Is(err, os.ErrDeadlineExceeded) {
				open++
			}
			if err != nil {
				break
			}
		}
	}
	if open == 0 || open > most {
		t.Errorf("%d of %d idle connections are open: want 1 to %d", open, many, most)
	}
}
