package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/catalogue/http-filter/inspect"
	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/rig"
)

func TestMain(m *testing.M) { rig.Main(m) }

// silentPort is that of a client who sends data, and never a SYN.
const silentPort = 4999

// conversation is a connection with much that may come in it, by both families, and data of one that nobody has opened.
func conversation(t *testing.T) (all [][]byte) {
	b := newBench(t, "")
	const allowed, forbidden, fine = "GET /public HTTP/1.1\r\nHost: good.example\r\n\r\n", "GET /secret HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"
	for _, six := range []bool{false, true} {
		b.six = six
		for _, s := range []segment{
			{inspect.Client, 1000, 0, nf.SYN, ""}, {inspect.Server, 2000, 1001, nf.SYN | nf.ACK, ""}, {inspect.Client, 1001, 2001, nf.ACK, ""}, {inspect.Client, 1001, 2001, nf.ACK | nf.PSH, allowed},
			{inspect.Server, 2001, 1001 + uint32(len(allowed)), nf.ACK | nf.PSH, fine}, {inspect.Client, 1001, 2001, nf.ACK, forbidden}, {inspect.Client, 1001 + uint32(len(allowed)), 2001, nf.ACK, forbidden},
			{inspect.Client, 1001, 2001, nf.ACK, forbidden[:8]}, {inspect.Client, 1009, 2001, nf.ACK, forbidden[8:]}, {inspect.Server, 2001, 1001, nf.ACK, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nforb\r\n5\r\nidden\r\n"},
			{inspect.Client, 1001 + uint32(len(allowed)), 2001, nf.ACK | nf.FIN, ""}, {inspect.Server, 2001, 1001, nf.ACK | nf.FIN, ""}, {inspect.Client, 1001, 0, nf.RST, ""}, {inspect.Server, 2001, 1001, nf.RST | nf.ACK, ""},
		} {
			all = append(all, b.frame(s))
		}
		f := b.frame(segment{inspect.Client, 1001, 2001, nf.ACK | nf.PSH, forbidden})
		binary.BigEndian.PutUint16(f[nf.Decode(f).Transport:], silentPort)
		all = append(all, f, slices.Insert(bytes.Clone(f), 12, 0x81, 0, 0, 0, 0x81, 0, 0, 0, 0x81, 0, 0, 0))
		if six { // a payload length of 0 without the option of jumbograms: Linux takes all that is there
			f = slices.Insert(bytes.Clone(f), 54, unix.IPPROTO_TCP, 0, 1, 4, 0, 0, 0, 0)
			f[18], f[19], f[20] = 0, 0, unix.IPPROTO_HOPOPTS
			all = append(all, f)
		}
	}
	return all
}

// improper says why a frame must not pass, whatever connection it is of: its receiver may read it otherwise than the filter, or it is of none.
func improper(up bool, f []byte) string {
	r := rig.Read(f)
	src, dst := r.Ports()
	looked := func(port int) bool { return port == 80 || port == 8080 || port == 443 }
	if !r.Proper || r.Proto != unix.IPPROTO_TCP || !looked(src) && !looked(dst) {
		return ""
	}
	if r.Size < 20 {
		return "cut in the header of TCP"
	}
	flags, data := r.Upper[13], r.Data()
	switch {
	case r.More:
		return "a first fragment of TCP"
	case len(r.VLANs) > 2 || r.Headers > 8:
		return "behind more than is looked at"
	case flags&nf.SYN != 0 && (flags&(nf.FIN|nf.RST) != 0 || len(data) > 0), flags&(nf.SYN|nf.RST|nf.ACK) == 0:
		return "with flags that are read in several ways"
	case up && src == silentPort && flags&(nf.SYN|nf.RST) == 0 && len(data) > 0:
		return "data of a connection that nobody has opened"
	}
	return ""
}

// Hostile frames by both ports: 500,000, since each of TCP may be one of a connection, and is followed. What is of no connection does not pass. Then what is forbidden is
// found in connections of real stations, and what is allowed passes, as ever.
func TestHostileFrames(t *testing.T) {
	r := rig.New(t, false)
	dir := t.TempDir()
	file := filepath.Join(dir, "config.json")
	must(t, os.WriteFile(file, []byte(rules+"}"), 0o644))
	p := r.Start(rig.Program(t), "-config", file, "-probe", rig.WriteProbe(t, dir), "-events", filepath.Join(dir, "events.sock"))
	p.Await("rules in force")
	rig.Eventually(t, "probes pass", func() bool {
		r.Client.Send(rig.Probe(0))
		return r.Server.Receive(20*time.Millisecond) != nil
	})
	rig.Hostile{
		Frames: 500_000, MTU: 9000, MemoryKB: 96 << 10, Pass: 0.1, Seeds: conversation(t), Denied: improper,
		Changed: func(f []byte) bool { // the filter's own: a reset, or a page of the server's port
			p := nf.Decode(f)
			return p.Proto == nf.TCP && p.Bad == "" && (p.Flags&nf.RST != 0 || p.SrcPort == 80 || p.SrcPort == 8080 || p.SrcPort == 443)
		},
	}.Send(r, p.PID())
	p.Signal(syscall.SIGUSR1)
	p.Await("msg=counters")
	t.Log(p.Output()[strings.LastIndex(p.Output(), "msg=counters"):])
	r.Server.Serve(t, "10.77.0.2:80", func(c net.Conn) {
		_ = c.SetDeadline(time.Now().Add(rig.Patience))
		q, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		text := "what is allowed"
		if q.URL.Path == "/word" {
			text = "what is forbidden"
		}
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(text), text)
	})
	get := func(path, host string) string {
		c, err := r.Client.Dial(t.Context(), "tcp4", "10.77.0.2:80")
		if err != nil {
			return err.Error()
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(rig.Patience))
		request := "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n"
		for _, part := range []string{request[:6], request[6:]} { // in two segments
			if _, err := io.WriteString(c, part); err != nil {
				return err.Error()
			}
		}
		text, err := io.ReadAll(c)
		return fmt.Sprintf("%s %v", text, err)
	}
	for _, x := range []struct{ path, host, want string }{
		{"/public", "good.example", "what is allowed"}, {"/secret", "good.example", "HTTP/1.1 403"}, {"/public", "bad.example", "HTTP/1.1 403"}, {"/word", "good.example", "reset"},
	} {
		if got := get(x.path, x.host); !strings.Contains(got, x.want) || strings.Contains(got, "what is forbidden") {
			t.Errorf("%s at %s: %q: want %q", x.path, x.host, got, x.want)
		}
	}
	p.Signal(syscall.SIGTERM)
	must(t, p.End())
}
