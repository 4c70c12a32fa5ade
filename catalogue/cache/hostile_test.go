package main

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/rig"
)

// testHostile: clients and servers that speak no HTTP, or broken HTTP, or stop in the middle, do no harm to others; memory is bounded.
func testHostile(t *testing.T, root string) {
	r, p := start(t, root, `{"ports": [80, 81, 82, 83, 84]}`)
	serveSite(t, r, "80")
	random := rand.New(rand.NewPCG(7, 7))
	noise := make([]byte, 8<<10)
	for i := range noise {
		noise[i] = byte(random.Uint32())
	}
	bad := map[string]string{
		"noise":             string(noise),
		"two lengths":       "POST /keep/x HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: 40\r\n\r\nword",
		"length and chunks": "POST /keep/x HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n",
		"a long line":       "GET /" + strings.Repeat("a", 200<<10) + " HTTP/1.1\r\nHost: x\r\n\r\n",
		"a long head":       "GET / HTTP/1.1\r\nHost: x\r\n" + strings.Repeat("X: "+strings.Repeat("a", 1000)+"\r\n", 300) + "\r\n",
		"CONNECT":           "CONNECT 10.77.0.2:22 HTTP/1.1\r\nHost: x\r\n\r\n",
		"no host":           "GET / HTTP/1.1\r\n\r\n",
		"no version":        "GET /\r\n",
		"a bad chunk":       "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
		"preface cut":       "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + string(noise[:100]),
		"nothing":           "",
	}
	for name, text := range bad {
		c := dial(t, r, server4+":80")
		fmt.Fprint(c, text)
		_ = c.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		answer := make([]byte, 12)
		n, _ := c.Read(answer)
		if strings.HasPrefix(string(answer[:n]), "HTTP/1.1 200") {
			t.Errorf("%s: taken for a request", name)
		}
	}
	// A server that answers nonsense.
	servers := map[string]string{
		"81": "HTTP/1.1 200 OK\r\nContent-Length: 100\r\nCache-Control: max-age=60\r\n\r\ncut", "82": string(noise),
		"83": "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\nCache-Control: max-age=60\r\n\r\nword!", "84": "",
	}
	for port, text := range servers {
		r.Server.Serve(t, server4+":"+port, func(c net.Conn) {
			_ = c.SetDeadline(time.Now().Add(rig.Patience))
			b := make([]byte, 4096)
			_, _ = c.Read(b)
			_, _ = c.Write([]byte(text))
		})
		for range 3 {
			if out, _ := rig.Try(t, r.Client, "curl", "-sS", "-D", "-", "--max-time", "3", "http://"+server4+":"+port+"/keep"); strings.Contains(out, "X-Cache: HIT") {
				t.Errorf("server at %s: a broken answer was kept: %q", port, out)
			}
		}
	}
	// Hostile frames by both ports: 20,000, since each SYN among them is a connection to nginx. What is of TCP may be led to nginx, and be answered by it.
	speaks := r.Speaks()
	rig.Hostile{
		Frames: 20_000, MemoryKB: 96 << 10, Pass: 0.1, Seeds: framesTCP(random),
		Changed: func(f []byte) bool {
			x := nf.Decode(f)
			return speaks(f) || x.Proto == nf.TCP && (x.SrcPort >= 80 && x.SrcPort <= 84 || x.DstPort >= 80 && x.DstPort <= 84)
		},
	}.Send(r, p.PID())
	// Connections that come and say nothing, as many as the client has ports for.
	var open sync.WaitGroup
	for range 200 {
		c := dial(t, r, server4+":80")
		open.Go(func() { c.Close() })
	}
	open.Wait()
	for range 3 {
		if got := curl(t, r, "http://"+server4+"/keep/still"); !strings.HasPrefix(got, "HTTP/1.1 200") {
			t.Errorf("afterwards: %s", got)
		}
	}
	for _, pid := range append(children(t, p.PID()), p.PID()) {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		must(t, err)
		kb := 0
		for line := range strings.Lines(string(raw)) {
			if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
				_, err := fmt.Sscan(rest, &kb)
				must(t, err)
			}
		}
		t.Logf("process %d: %d KB", pid, kb)
		if kb > 128<<10 {
			t.Errorf("process %d has %d KB", pid, kb)
		}
	}
}

// framesTCP are some of frameTCP: from here on they change in other ways.
func framesTCP(random *rand.Rand) (all [][]byte) {
	for range 32 {
		all = append(all, frameTCP(random))
	}
	return all
}

// frameTCP is a frame of TCP over IPv4 to port 80, with random flags and numbers; half of them ask for a connection.
func frameTCP(random *rand.Rand) []byte {
	const total = 40
	flags := byte(random.Uint32())
	if random.IntN(2) == 0 {
		flags = nf.SYN
	}
	f := []byte{2, 9, 9, 9, 9, 1, 2, 9, 9, 9, 9, 2, 8, 0, 0x45, 0, 0, total, 0, 0, 0, 0, 64, 6, 0, 0, 10, 77, 0, byte(3 + random.IntN(8)), 10, 77, 0, byte(3 + random.IntN(8))}
	return append(f, byte(random.IntN(256)), byte(random.IntN(256)), 0, 80, byte(random.Uint32()), 0, 0, 1, 0, 0, 0, 1, 5<<4, flags, 1, 0, 0, 0, 0, 0)
}
