package ipfix

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// message with sets, each an id and a length.
func message(sets ...[2]uint16) []byte {
	b := make([]byte, messageHeader)
	binary.BigEndian.PutUint16(b, version)
	for _, s := range sets {
		b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, s[0]), s[1])
		b = append(b, make([]byte, s[1]-setHeader)...)
	}
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	return b
}

func TestCheck(t *testing.T) {
	change := func(b []byte, at int, to byte) []byte { b[at] = to; return b }
	for name, x := range map[string]struct {
		b   []byte
		err string
	}{
		"templates and records":    {message([2]uint16{2, 20}, [2]uint16{256, 100}, [2]uint16{65535, 4}), ""},
		"templates of options":     {message([2]uint16{3, 20}), ""},
		"no sets":                  {message(), ""},
		"as long as it may be":     {message([2]uint16{256, MaxMessage - messageHeader}), ""},
		"longer":                   {message([2]uint16{256, MaxMessage - messageHeader + 1}), "more than 1400 bytes"},
		"nothing":                  {nil, "0 bytes"},
		"NetFlow":                  {change(message(), 1, 9), "version 9"},
		"two messages":             {append(message(), message()...), "length 16 in a message of 32"},
		"half a set":               {change(append(message(), 0, 2), 3, 18), "cut short"},
		"a set that is too long":   {change(message([2]uint16{256, 20}), 19, 21), "a set of 21 bytes where 20 are left"},
		"a set that is too short":  {change(message([2]uint16{256, 20}), 19, 3), "a set of 3 bytes"},
		"a set that is not there":  {message([2]uint16{255, 8}), "set id 255"},
		"a set of NetFlow version": {message([2]uint16{0, 8}), "set id 0"},
	} {
		if err := Check(x.b); (err == nil) != (x.err == "") || err != nil && !strings.Contains(err.Error(), x.err) {
			t.Errorf("%s: %v, want %q", name, err, x.err)
		}
	}
}

func FuzzCheck(f *testing.F) {
	f.Add(message([2]uint16{2, 20}, [2]uint16{256, 100}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if Check(b) == nil && (len(b) > MaxMessage || len(b) < messageHeader) {
			t.Errorf("% x", b)
		}
	})
}

// collector hears datagrams.
func collector(t *testing.T) (*net.UDPConn, netip.AddrPort) {
	t.Helper()
	l, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, l.LocalAddr().(*net.UDPAddr).AddrPort()
}

func relay(t *testing.T, to netip.AddrPort, log *slog.Logger) (*Relay, net.Conn, string) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "ipfix.sock")
	r, err := Serve(filepath.Join(dir, "fresh"), path, to, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	c, err := net.Dial("unixgram", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return r, c, path
}

// Messages come to the collector as they are, each in a datagram; what is none does not, and does not end the relay.
func TestMessagesAreHandedOn(t *testing.T) {
	l, to := collector(t)
	var log bytes.Buffer
	r, c, path := relay(t, to, slog.New(slog.NewTextHandler(&log, nil)))
	want := message([2]uint16{2, 20}, [2]uint16{256, 100})
	for _, b := range [][]byte{[]byte("GET / HTTP/1.1"), make([]byte, 4000), want} {
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	b := make([]byte, 2000)
	_ = l.SetReadDeadline(time.Now().Add(20 * time.Second))
	if n, err := l.Read(b); err != nil || !bytes.Equal(b[:n], want) {
		t.Errorf("% x, %v", b[:n], err)
	}
	r.Close()
	if text := log.String(); strings.Count(text, "no IPFIX message") != 1 || !strings.Contains(text, "go to the collector") && strings.Contains(text, "are lost") {
		t.Error(text)
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("the socket is left")
	}
	if _, err := c.Write(want); err == nil {
		t.Error("a message is taken after the end")
	}
}

// A function that sends too fast waits; a collector that is not there holds nobody up.
func TestWhatAFunctionSendsIsBounded(t *testing.T) {
	l, to := collector(t)
	l.Close() // nobody is there now
	_, c, _ := relay(t, to, slog.New(slog.DiscardHandler))
	b, begun := message([2]uint16{256, 100}), time.Now()
	for range burst + perSecond/2 {
		_ = c.SetWriteDeadline(time.Now().Add(20 * time.Second))
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(begun); took < 400*time.Millisecond {
		t.Errorf("%d messages were taken in %s", burst+perSecond/2, took)
	}
	_ = c.SetWriteDeadline(time.Now().Add(time.Millisecond))
	for range 1000 {
		if _, err := c.Write(b); err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error(err)
			}
			return
		}
	}
	t.Error("a flood is taken")
}
