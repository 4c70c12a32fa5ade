package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/miekg/dns"

	"weir.dev/weir/catalogue/names"
	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/nf/targets"
	"weir.dev/weir/catalogue/rig"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestMain(m *testing.M) { rig.Main(m) }

// start runs the function between the stations, which have IPv6, too, and waits until it forwards.
func start(t *testing.T, config string) (*rig.Rig, *rig.Process, string) {
	t.Helper()
	r := rig.New(t, false)
	p, dir := launch(t, r, config)
	for s, addr := range map[*rig.Station]string{r.Client: "2001:db8:77::1/64", r.Server: "2001:db8:77::2/64"} {
		for _, link := range []string{"lo", s.Link.Name} {
			r.Do(s.Netns, func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/"+link+"/disable_ipv6", []byte("0"), 0) })
		}
		for _, a := range []string{addr, strings.Replace(addr, "2001:db8:77", "fe80", 1)} {
			rig.Command(t, s, "ip", "-6", "addr", "add", a, "dev", s.Link.Name, "nodad")
		}
	}
	return r, p, dir
}

// launch the function in a rig.
func launch(t testing.TB, r *rig.Rig, config string) (p *rig.Process, dir string) {
	t.Helper()
	dir = t.TempDir()
	file := filepath.Join(dir, "config.json")
	write(t, file, config)
	p = r.Start(rig.Program(t), "-config", file, "-probe", rig.WriteProbe(t, dir), "-events", filepath.Join(dir, "events.sock"))
	p.Await("names in force")
	rig.Eventually(t, "frames pass", func() bool {
		r.Client.Send(rig.Probe(0))
		return r.Server.Receive(20*time.Millisecond) != nil
	})
	return p, dir
}

// resolver is a real server at a station. It knows other.example, and has something else to say about own.example.
func resolver(t *testing.T, r *rig.Rig) {
	t.Helper()
	c := exec.Command("dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--user=root", "--group=root", "--pid-file=", "--log-facility=-", "--log-queries",
		"--bind-interfaces", "--listen-address=10.77.0.2,2001:db8:77::2", "--except-interface=lo", "--local-ttl=7",
		"--address=/other.example/192.0.2.7", "--address=/other.example/2001:db8::7", "--address=/own.example/192.0.2.66", "--txt-record=other.example,"+strings.Repeat("long ", 40))
	var log strings.Builder
	c.Stdout, c.Stderr = &log, &log
	r.Do(r.Server.Netns, c.Start)
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		if t.Failed() {
			t.Logf("dnsmasq:\n%s", log.String())
		}
	})
	rig.Eventually(t, "dnsmasq answers", func() bool {
		out, _ := rig.Try(t, r.Server, "dig", "+tries=1", "+time=1", "@10.77.0.2", "other.example")
		return strings.Contains(out, "192.0.2.7")
	})
}

const own = `{"names": {"own.example": {"ttl": 5, "targets": [{"address": "10.77.0.11"}, {"address": "2001:db8:77::11"}]}, "*.wild.example": {"targets": [{"address": "10.77.0.12"}]}}}`

// Real clients, a real server, both families, both transports: own names are answered here, others there, as without us.
func TestRealClients(t *testing.T) {
	r, p, _ := start(t, own)
	resolver(t, r)
	for _, server := range []string{"10.77.0.2", "2001:db8:77::2"} {
		for _, transport := range []string{"+notcp", "+tcp"} {
			ask := func(s *rig.Station, args ...string) string {
				return strings.Join(strings.Fields(rig.Command(t, s, append([]string{"dig", "+tries=2", "+time=2", "+noall", "+comments", "+question", "+answer", "+authority", transport, "@" + server}, args...)...)), " ")
			}
			for args, want := range map[string]string{
				"oWn.Example A": "oWn.Example. 5 IN A 10.77.0.11", "own.example AAAA": "own.example. 5 IN AAAA 2001:db8:77::11", "a.b.wild.example A": "a.b.wild.example. 30 IN A 10.77.0.12",
				"own.example TXT": "own.example. 5 IN SOA", "own.example ANY": "own.example. 5 IN SOA", "+noedns own.example A": "IN A 10.77.0.11", "+cookie=0102030405060708 own.example A": "10.77.0.11",
				"+dnssec own.example A": "flags: do", "+bufsize=9999 own.example A": "10.77.0.11", "+edns=3 +noednsnegotiation own.example A": "BADVERS",
			} {
				if got := ask(r.Client, strings.Fields(args)...); !strings.Contains(got, want) {
					t.Errorf("%s %s: %s: %s: want %s", server, transport, args, got, want)
				}
			}
			for _, args := range []string{"other.example A", "other.example AAAA", "other.example TXT", "oTHer.example MX", "nowhere.invalid A", "+opcode=notify own.example SOA", "version.bind CH TXT"} {
				got, want := ask(r.Client, append(strings.Fields(args), "+qid=7")...), ask(r.Server, append(strings.Fields(args), "+qid=7")...)
				if got != want || !strings.Contains(got, "HEADER") {
					t.Errorf("%s %s: %s: %s\nwithout us: %s", server, transport, args, got, want)
				}
			}
		}
		for _, program := range []string{"dig", "kdig"} { // several on one connection
			out := rig.Command(t, r.Client, program, "+keepopen", "+tcp", "@"+server, "own.example", "other.example", "a.wild.example", "own.example", "AAAA")
			for _, want := range []string{"10.77.0.11", "192.0.2.7", "10.77.0.12", "2001:db8:77::11"} {
				if !strings.Contains(out, want) {
					t.Errorf("%s: %s: no %s", program, out, want)
				}
			}
		}
	}
	p.Signal(10) // SIGUSR1
	p.Await("msg=counter answered=")
}

// frame of UDP, from the client to the server; change may add or change layers.
func datagram(t testing.TB, data []byte, v6 bool, tags ...uint16) []byte {
	t.Helper()
	parts := []gopacket.SerializableLayer{&layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 7, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 7, 2}, EthernetType: layers.EthernetTypeIPv4}}
	kind := layers.EthernetTypeIPv4
	if v6 {
		kind = layers.EthernetTypeIPv6
	}
	for i, tag := range tags {
		next := layers.EthernetTypeDot1Q
		if i == len(tags)-1 {
			next = kind
		}
		parts = append(parts, &layers.Dot1Q{VLANIdentifier: tag, Priority: 3, Type: next})
	}
	first := parts[0].(*layers.Ethernet)
	first.EthernetType = kind
	if len(tags) == 1 {
		first.EthernetType = layers.EthernetTypeDot1Q
	} else if len(tags) == 2 {
		first.EthernetType = layers.EthernetTypeQinQ
	}
	udp := &layers.UDP{SrcPort: 4000, DstPort: 53}
	if v6 {
		ip := &layers.IPv6{Version: 6, HopLimit: 9, NextHeader: layers.IPProtocolUDP, SrcIP: net.ParseIP("2001:db8:77::1"), DstIP: net.ParseIP("2001:db8:77::2")}
		must(t, udp.SetNetworkLayerForChecksum(ip))
		parts = append(parts, ip)
	} else {
		ip := &layers.IPv4{Version: 4, TTL: 9, Protocol: layers.IPProtocolUDP, SrcIP: net.IPv4(10, 77, 0, 1), DstIP: net.IPv4(10, 77, 0, 2)}
		if len(tags) == 2 {
			ip.Options = []layers.IPv4Option{{OptionType: 1}, {OptionType: 1}, {OptionType: 1}, {OptionType: 0}}
		}
		must(t, udp.SetNetworkLayerForChecksum(ip))
		parts = append(parts, ip)
	}
	buf := gopacket.NewSerializeBuffer()
	must(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, append(parts, udp, gopacket.Payload(data))...))
	return buf.Bytes()
}

// Answers come as from the server that was asked: addresses, ports, VLAN tags. The server sees nothing of it.
func TestAnswersInPlaceOfTheServer(t *testing.T) {
	r, _, _ := start(t, own)
	for _, tags := range [][]uint16{nil, {42}, {7, 9}} {
		for _, v6 := range []bool{false, true} {
			query := datagram(t, ask("oWn.example.", dns.TypeA), v6, tags...)
			r.Client.Send(query)
			r.Client.Send(rig.Probe(5))
			rig.Eventually(t, "the probe behind the query comes", func() bool {
				f := r.Server.Receive(time.Second)
				if bytes.Contains(f, []byte("oWn")) {
					t.Errorf("%v %t: the query came to the server: % x", tags, v6, f)
				}
				return f != nil && bytes.Equal(f, rig.Probe(5))
			})
			var got []byte
			rig.Eventually(t, "the answer comes", func() bool { got = r.Client.Receive(time.Second); return bytes.Contains(got, []byte("oWn")) })
			q, a := nf.Decode(query), nf.Decode(got)
			if !bytes.Equal(got[:6], query[6:12]) || !bytes.Equal(got[6:12], query[:6]) || !bytes.Equal(got[12:a.Network], query[12:q.Network]) || a.TagCount != len(tags) ||
				a.Src != q.Dst || a.Dst != q.Src || a.SrcPort != q.DstPort || a.DstPort != q.SrcPort || a.Bad != "" || !a.Intact(got) {
				t.Errorf("%v %t: % x\nis answered by\n% x", tags, v6, query, got)
			}
			var m dns.Msg
			if err := m.Unpack(a.Data(got)); err != nil || strings.Join(addresses(&m), " ") != "10.77.0.11" {
				t.Errorf("%v %t: %v, %v", tags, v6, m, err)
			}
		}
	}
}

// What is not plainly a query for an own name passes unchanged, whatever it is.
func TestOtherFramesPassUnchanged(t *testing.T) {
	r, p, _ := start(t, own)
	query := datagram(t, ask("own.example.", dns.TypeA), false)
	with := func(f []byte, at int, b ...byte) []byte {
		f = bytes.Clone(f)
		copy(f[at:], b)
		return f
	}
	for name, f := range map[string][]byte{
		"another name": datagram(t, ask("other.example.", dns.TypeA), false), "another name, IPv6, tagged": datagram(t, ask("other.example.", dns.TypeA), true, 5),
		"the wrong checksum": with(query, 40, 1, 2), "the header's wrong checksum": with(query, 24, 1, 2), "more fragments": with(query, 20, 0x20, 0), "a later fragment": with(query, 20, 0, 9),
		"to a group of stations": with(query, 0, 1), "to all": with(query, 0, 255, 255, 255, 255, 255, 255), "another port": with(query, 36, 0, 54), "cut": query[:50],
		"three tags": append(append(bytes.Clone(query[:12]), 0x81, 0, 0, 1, 0x81, 0, 0, 2, 0x81, 0, 0, 3), query[12:]...),
	} {
		if !rig.Passes(r.Client, r.Server, f) {
			t.Errorf("%s did not pass: % x", name, f)
		}
	}
	if !rig.Passes(r.Server, r.Client, query) { // not from a client
		t.Error("a query from out did not pass")
	}
	answer := datagram(t, ask("other.example.", dns.TypeA, func(m *dns.Msg) { m.Response = true }), false)
	copy(answer[34:], []byte{0, 53, 0x0f, 0xa0})
	if !rig.Passes(r.Server, r.Client, answer) {
		t.Error("an answer for another name did not pass")
	}
	forged := datagram(t, ask("own.example.", dns.TypeA, func(m *dns.Msg) { m.Response = true }), false)
	copy(forged[34:], []byte{0, 53, 0x0f, 0xa0})
	for _, f := range [][]byte{forged, with(forged, 20, 0x20, 0), with(forged, 40, 9, 9)} { // as a fragment, with a wrong checksum
		if rig.Passes(r.Server, r.Client, f) {
			t.Errorf("a server's answer for an own name passed: % x", f)
		}
	}
	// Receivers read names in these, too: they take a length of 0 for the rest of the packet, or join fragments in which the name is cut.
	v6 := datagram(t, ask("own.example.", dns.TypeA, func(m *dns.Msg) { m.Response = true }), true)
	copy(v6[54:], []byte{0, 53, 0x0f, 0xa0, 0, 0})
	tiny := func(f []byte, end int) []byte {
		f = with(f[:end:end], 16, 0, byte(end-14), 0, 0, 0x20)
		return with(f, 24, checksumOf(with(f, 24, 0, 0)[14:34])...)
	}
	asked := datagram(t, ask("own.example.", dns.TypeA), true)
	for name, f := range map[string][]byte{"UDP length 0": v6, "only the ports in the first fragment": tiny(forged, 42), "half a name in the first fragment": tiny(forged, 58)} {
		if rig.Passes(r.Server, r.Client, f) {
			t.Errorf("%s: a server's answer for an own name passed: % x", name, f)
		}
	}
	for _, length := range []byte{0, 7} { // 0: it is answered
		f := with(asked, 58, 0, length)
		p := nf.Decode(f)
		p.Complete(f)
		if rig.Passes(r.Client, r.Server, f) {
			t.Errorf("a query with UDP length %d passed: % x", length, f)
		}
	}
	r.PassUnchanged(300, 60, []byte{8, 0, 0x45}, []byte{0x86, 0xdd, 0x60}, []byte{0x81, 0, 0, 42, 8, 0, 0x45}, []byte{8, 6}, []byte{0x88, 0xa8, 0, 1}, []byte{0x12, 0x34})
	p.Signal(15)
	must(t, p.End())
}

func checksumOf(header []byte) []byte {
	return binary.BigEndian.AppendUint16(nil, headerChecksum(header))
}

// balancerOf a configuration, without ports.
func balancerOf(t *testing.T, config string) *balancer {
	t.Helper()
	cfg, err := parseConfig([]byte(config))
	must(t, err)
	b := &balancer{}
	b.zone.Store(newZone(cfg, nil))
	b.proxy, err = newProxy(&b.zone, &b.count, func(nf.Dir, []byte) {})
	must(t, err)
	return b
}

// A million frames that were a query, an answer or TCP until somebody changed bytes: nothing crashes, every answer is one to what was asked, no query
// for an own name and no answer for one passes, and memory is bounded.
func TestAMillionFrames(t *testing.T) {
	b := balancerOf(t, own)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { b.proxy.run(ctx); close(ended) }()
	var asked []byte
	b.answer = func(d nf.Dir, f nf.Frame) {
		q, a := nf.Decode(asked), nf.Decode(f.Data)
		if d != nf.Down || a.Dst != q.Src || a.DstPort != q.SrcPort || !a.Intact(f.Data) || !checkAnswer(t, b.zone.Load(), q.Data(asked)) {
			t.Fatalf("% x\nis answered by\n% x", asked, f.Data)
		}
	}
	response := func(m *dns.Msg) { m.Response = true }
	var seeds [][]byte
	for _, v6 := range []bool{false, true} {
		for _, tags := range [][]uint16{nil, {42}, {7, 9}} {
			for _, msg := range [][]byte{ask("own.example.", dns.TypeA), ask("own.example.", dns.TypeA, response), ask("x.wild.example.", dns.TypeAAAA, func(m *dns.Msg) { m.SetEdns0(4096, true) }), ask("other.example.", dns.TypeA)} {
				f := datagram(t, msg, v6, tags...)
				back := bytes.Clone(f)
				p := nf.Decode(f)
				binary.BigEndian.PutUint32(back[p.Transport:], 53<<16|4000)
				tcp := bytes.Clone(f)
				tcp[p.Network+map[bool]int{false: 9, true: 6}[v6]] = nf.TCP
				seeds = append(seeds, f, back, tcp, tcp[:len(tcp):len(tcp)])
			}
		}
	}
	frames := 1_000_000
	if testing.Short() {
		frames = 100_000
	}
	random := rand.New(rand.NewPCG(3, 4))
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range frames {
		f := bytes.Clone(seeds[random.IntN(len(seeds))])
		for range random.IntN(6) {
			f[random.IntN(len(f))] = byte(random.Uint32())
		}
		f = f[:14+random.IntN(len(f)-13)]
		if random.IntN(4) > 0 {
			f = f[:cap(f)]
		}
		if p := nf.Decode(f); p.Bad == "" && p.Payload > 0 && random.IntN(2) == 0 {
			p.Complete(f)
		}
		asked = f
		for _, d := range []nf.Dir{nf.Up, nf.Down} {
			passed := b.handle(d, nf.NewFrame(f)) == nf.Pass
			p := nf.Decode(f)
			var q names.Question
			if !passed || p.Proto != nf.UDP || p.Part == nf.Later || !q.Read(p.Data(f)) {
				continue
			}
			if s, _ := b.zone.Load().find(&q); s == nil {
				continue
			}
			if d == nf.Down && q.Response && p.SrcPort == port || d == nf.Up && !q.Response && p.DstPort == port && p.Part == nf.Whole && single(&p, f) && p.Intact(f) {
				t.Fatalf("%v: passed: % x", d, f)
			}
		}
	}
	flows := len(b.proxy.flows)
	stop()
	<-ended
	runtime.GC()
	runtime.ReadMemStats(&after)
	t.Logf("%d frames: %d answered, %d foreign answers dropped, %d flows of TCP known, %d KB more memory", frames, b.count.answered.Load(), b.count.foreign.Load(), flows, (int64(after.HeapAlloc)-int64(before.HeapAlloc))>>10)
	if flows > maxFlows || after.HeapAlloc > before.HeapAlloc+32<<20 {
		t.Errorf("%d flows, %d bytes: want at most %d and 32 MB more than %d", flows, after.HeapAlloc, maxFlows, before.HeapAlloc)
	}
	if b.count.answered.Load() == 0 || b.count.foreign.Load() == 0 || flows == 0 {
		t.Error("the frames were too much changed: nothing was left to decide")
	}
}

func TestParseConfig(t *testing.T) {
	named := func(s string) string { return `{"names": {"a.example": ` + s + `}}` }
	const one = `"targets": [{"address": "192.0.2.1"}]`
	checked := func(check, health string) string {
		return `{"names": {"a.example": {` + one + `, "check": ` + check + `}}, "health": ` + health + `}`
	}
	for text, want := range map[string]string{
		``: "names: want at least one", `{}`: "want 1 to 1000", `{"names": {"a..example": {` + one + `}}}`: `label ""`, `{"names": {"a b": {` + one + `}}}`: "label", `{"names": {"*": {` + one + `}}}`: "label",
		`{"names": {"a.example": {` + one + `}, "A.example.": {` + one + `}}}`: "given twice", named(`{"targets": []}`): "want 1 to 64", named(`null`): "want at least one", named(`{"targets": [{"address": "x"}]}`): "unable to parse",
		named(`{"targets": [{}]}`): "want an IPv4 or IPv6 address", named(`{"targets": [{"address": "::ffff:1.2.3.4"}]}`): "want an IPv4", named(`{"targets": [{"address": "192.0.2.1"}, {"address": "192.0.2.1"}]}`): "given twice",
		named(`{"targets": [{"address": "192.0.2.1", "weight": 1001}]}`): "want 0 to 1000", named(`{` + one + `, "ttl": 86401}`): "want 0 to 86400", named(`{` + one + `, "ttl": -1}`): "ttl", named(`{` + one + `, "strategy": "x"}`): "want weighted",
		named(`{` + one + `, "answers": 65}`): "want 1 to 64", named(`{` + one + `, "all_down": "x"}`): "want serve", named(`{` + one + `, "all_down": "pass"}`): "without a check", named(`{` + one + `, "check": {"tcp": 80}}`): "want health.addresses",
		checked(`{}`, `{"addresses": ["192.0.2.9/24"]}`): "want one of", checked(`{"tcp": 80, "icmp": true}`, `{"addresses": ["192.0.2.9/24"]}`): "want one of", checked(`{"tcp": 80}`, `{"addresses": ["2001:db8::9/64"]}`): "none of this family",
		checked(`{"http": {"path": "x"}}`, `{"addresses": ["192.0.2.9/24"]}`): "want a path", checked(`{"tcp": 80}`, `{"addresses": []}`): "want at least one", checked(`{"tcp": 80}`, `{"addresses": ["192.0.2.9"]}`): "no '/'",
		checked(`{"tcp": 80}`, `{"addresses": ["192.0.2.9/24", "192.0.2.8/24"]}`): "at most one", checked(`{"tcp": 80}`, `{"addresses": ["192.0.2.9/24"], "gateways": ["192.0.3.1"]}`): "in the network",
		checked(`{"tcp": 80}`, `{"addresses": ["192.0.2.9/24"], "interval": "1ms"}`): "interval 1ms: want", checked(`{"tcp": 80}`, `{"addresses": ["192.0.2.9/24"], "interval": "1s", "timeout": "2s"}`): "timeout 2s: want",
		checked(`{"tcp": 80}`, `{"addresses": ["192.0.2.9/24"], "rise": 11}`): "want 1 to 10", `{"names": {}, "x": 1}`: "unknown field", named(`{`+one+`}`) + `{}`: "more than one", `{`: "unexpected",
	} {
		if _, err := parseConfig([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v: want %q", text, err, want)
		}
	}
	cfg, err := parseConfig([]byte(checked(`{"http": {}}`, `{"addresses": ["192.0.2.9/24"], "gateways": ["192.0.2.254"]}`)))
	must(t, err)
	s := cfg.Names["a.example"]
	if *s.TTL != 30 || s.Strategy != weighted || s.Answers != 1 || s.AllDown != serve || *s.Targets[0].Weight != 1 || s.Check.HTTP.Port != 80 || s.Check.HTTP.Path != "/" || cfg.Health.Rise != 2 || cfg.Health.Fall != 3 ||
		time.Duration(cfg.Health.Interval) != 5*time.Second || time.Duration(cfg.Health.Timeout) != time.Second || len(cfg.checks()) != 1 {
		t.Errorf("%+v %+v", s, cfg.Health)
	}
}

func write(t testing.TB, file, text string) {
	t.Helper()
	must(t, os.WriteFile(file, []byte(text), 0o644))
}

// Flows that are not DNS are settled, each direction by itself; nothing from or to port 53 is, nor what is for the function itself.
func TestAllButDNSIsSettled(t *testing.T) {
	cfg, err := parseConfig([]byte(`{"names": {"own.example": {"check": {"tcp": 80}, "targets": [{"address": "10.77.0.11"}]}}, "health": {"addresses": ["10.77.0.9/24"]}}`))
	must(t, err)
	w, err := targets.NewWatch(*cfg.Health, cfg.checks(), net.HardwareAddr{2, 0, 0, 0, 0, 9}, slog.New(slog.DiscardHandler), "")
	must(t, err)
	var got []string
	b := &balancer{watch: w, settle: func(d nf.Dir, frame []byte) {
		p := nf.Decode(frame)
		got = append(got, fmt.Sprintf("%s %d %d", d, p.SrcPort, p.DstPort))
	}}
	b.zone.Store(newZone(cfg, w.Up))
	b.proxy, err = newProxy(&b.zone, &b.count, func(nf.Dir, []byte) {})
	must(t, err)
	give := func(d nf.Dir, from, to uint16, change func([]byte)) {
		f := datagram(t, ask("other.example.", dns.TypeA), false)
		binary.BigEndian.PutUint16(f[34:], from)
		binary.BigEndian.PutUint16(f[36:], to)
		change(f)
		b.handle(d, nf.NewFrame(f))
	}
	same := func([]byte) {}
	for range 2 {
		give(nf.Up, 4000, 53, same)
		give(nf.Down, 53, 4000, same)
		give(nf.Up, 4000, 80, same)
		give(nf.Down, 80, 4000, same)
		give(nf.Up, 53, 4001, same)   // a request to a client at out, or forged: not an answer
		give(nf.Down, 4001, 53, same) // a query from out
		give(nf.Down, 80, 4002, func(f []byte) { copy(f[30:], []byte{10, 77, 0, 9}) })
	}
	want := []string{"up 4000 80", "down 80 4000", "up 53 4001", "down 4001 53"}
	if d := cmp.Diff(append(want, want...), got); d != "" {
		t.Error(d)
	}
}
