package names

import (
	"crypto/tls"
	"io"
	"net"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// hello is the first segment of a client of Go.
func hello(t *testing.T, name string) []byte {
	t.Helper()
	client, server := net.Pipe()
	defer client.Close()
	go func() { _ = tls.Client(client, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake() }() //nolint:gosec // nobody is there
	_ = server.SetDeadline(time.Now().Add(10 * time.Second))
	b := make([]byte, 16<<10)
	n, err := server.Read(b)
	if err != nil && err != io.EOF {
		t.Fatal(err)
	}
	server.Close()
	return b[:n]
}

func TestServerName(t *testing.T) {
	whole := hello(t, "www.example.com")
	found := 0
	for n := range len(whole) + 1 { // however it is cut: the name, or none
		switch got := ServerName(whole[:n]); got {
		case "www.example.com":
			found++
		case "":
		default:
			t.Fatalf("%d bytes: %q", n, got)
		}
	}
	if ServerName(whole) != "www.example.com" || found < 100 {
		t.Errorf("whole: %q; found in %d cuts", ServerName(whole), found)
	}
	if got := ServerName(hello(t, "")); got != "" {
		t.Errorf("without a name: %q", got)
	}
}

func TestQuestion(t *testing.T) {
	m := new(dns.Msg)
	m.SetQuestion("WWW.Example.com.", dns.TypeAAAA)
	raw, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	var q Question
	if !q.Read(raw) || string(q.Text()) != "www.example.com" || q.Kind != dns.TypeAAAA || q.Response {
		t.Errorf("%q %+v", q.Text(), q)
	}
	for n := range len(raw) {
		if q.Read(raw[:n]) {
			t.Errorf("cut to %d bytes it is a question", n)
		}
	}
}

func FuzzServerName(f *testing.F) {
	f.Add([]byte{22, 3, 1, 0, 5, 1, 0, 0, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		if n := len(ServerName(b)); n > maxServerName {
			t.Errorf("%d bytes", n)
		}
	})
}
