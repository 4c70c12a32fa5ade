package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"weir.dev/weir/catalogue/rig"
	"weir.dev/weir/netns"
)

func TestParseClasses(t *testing.T) {
	one := `{"up": {"rate": "1Mbit"}, "classes": [{"name": "voice", "share": "10%%", "match": [%s]}]}`
	wide := strings.TrimSuffix(strings.Repeat(`"udp/1-65535",`, 9), ",") // 16 blocks of ports, two ends, two families
	for text, want := range map[string]string{
		`{"classes": [{"name": "voice", "share": "10%", "match": ["icmp"]}]}`: "neither up nor down has a rate",

		`{"up": {"rate": "1Mbit"}, "classes": [{"name": "Voice"}]}`:                                                                                 `1.: name "Voice": want 1 to 32 of a-z`,
		`{"up": {"rate": "1Mbit"}, "classes": [{"name": "rest", "share": "10%", "match": ["icmp"]}]}`:                                               `1.: name "rest": frames in no class`,
		`{"up": {"rate": "1Mbit"}, "classes": [{"name": "voice", "match": ["icmp"]}]}`:                                                              "voice: share 0%: want 1% to 95%",
		`{"up": {"rate": "1Mbit"}, "classes": [{"name": "voice", "share": "96%", "match": ["icmp"]}]}`:                                              "voice: share 96%: want 1% to 95%",
		`{"up": {"rate": "1Mbit"}, "classes": [{"name": "voice", "share": "10%"}]}`:                                                                 "voice: 0 matches: want 1 to 64",
		`{"up": {"rate": "1Mbit"}, "classes": [{"name": "voice", "share": "10%", "match": ["icmp"], "a": 1}]}`:                                      "unknown field",
		`{"up": {"rate": "1Mbit"}, "classes": [` + strings.TrimSuffix(strings.Repeat(`{"name": "a"},`, 8), ",") + `]}`:                              "8: want at most 7",
		`{"up": {"rate": "1Mbit"}, "classes": [{"name": "a", "share": "60%", "match": ["icmp"]}, {"name": "b", "share": "40%", "match": ["arp"]}]}`: "100% together: want at most 95%",
		`{"up": {"rate": "1Mbit"}, "classes": [{"name": "a", "share": "6%", "match": ["icmp"]}, {"name": "a", "share": "4%", "match": ["arp"]}]}`:   `2.: name "a": an earlier class has it`,
		`{"up": {"rate": "64kbit", "burst": "2MB"}}`:                                                                                                "want at most 800000, as the rate sends in 100 s",
		fmt.Sprintf(one, `5`):                                                     `match 5: want a service as "udp/5060"`,
		fmt.Sprintf(one, `{"port": 5}`):                                           "unknown field",
		fmt.Sprintf(one, `"icmp", {}`):                                            "voice: match 2: it says nothing",
		fmt.Sprintf(one, `"gre"`):                                                 `voice: match 1: service "gre": want ip, arp,`,
		fmt.Sprintf(one, `"icmp/8"`):                                              `service "icmp/8": want`,
		fmt.Sprintf(one, `"tcp/0"`):                                               "ports are 1 to 65535",
		fmt.Sprintf(one, `"tcp/90-80"`):                                           "the lower one first",
		fmt.Sprintf(one, `{"dscp": 64}`):                                          "dscp 64: want 0 to 63",
		fmt.Sprintf(one, `{"dscp": "af14"}`):                                      "dscp af14: want 0 to 63, ef",
		fmt.Sprintf(one, `{"dscp": [1]}`):                                         "dscp [1]: want",
		fmt.Sprintf(one, `{"clients": ["10.0.0.0/33"]}`):                          `clients: "10.0.0.0/33": want an address`,
		fmt.Sprintf(one, `{"servers": ["::ffff:10.0.0.1"]}`):                      `servers: "::ffff:10.0.0.1": want an address`,
		fmt.Sprintf(one, `{"servers": []}`):                                       "servers: an empty list",
		fmt.Sprintf(one, `{"clients": ["10.0.0.1"], "servers": ["2001:db8::1"]}`): "no address family in common",
		fmt.Sprintf(one, `{"service": "arp", "dscp": 1}`):                         "service arp: ARP has no dscp",
		fmt.Sprintf(one, wide):                                                    "need 576 filters in the kernel: want at most 256",
	} {
		if _, err := parseConfig([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v: want %q", text, err, want)
		}
	}
	for text, want := range map[string]int{`"ef"`: 46, `"EF"`: 46, `0`: 0, `"63"`: 63, `"cs6"`: 48, `"af11"`: 10, `"af43"`: 38} {
		cfg, err := parseConfig(fmt.Appendf(nil, one, `{"dscp": `+text+`}`))
		must(t, err)
		if got := cfg.Classes[0].Match[0].dscp; got != want {
			t.Errorf("dscp %s: %d: want %d", text, got, want)
		}
	}
}

func TestPortBlocks(t *testing.T) {
	for _, r := range [][2]uint16{{1, 1}, {1, 65535}, {1, 65534}, {2, 3}, {5000, 5999}, {5060, 5061}, {65535, 65535}, {3, 32770}} {
		blocks, in := portBlocks(r[0], r[1]), 0
		for port := range 65536 {
			hits := 0
			for _, b := range blocks {
				if uint16(port)&b.mask == b.first {
					hits++
				}
			}
			if want := port >= int(r[0]) && port <= int(r[1]); hits > 1 || hits == 1 != want {
				t.Fatalf("%d-%d: port %d is in %d of %x", r[0], r[1], port, hits, blocks)
			}
			in += hits
		}
		if len(blocks) > 30 || r[0] == 5000 && len(blocks) != 9 {
			t.Errorf("%d-%d: %d blocks", r[0], r[1], len(blocks))
		}
	}
}

// packet of a frame, from a client.
type packet struct {
	client, server string // addresses
	protocol       uint8
	ports          [2]uint16 // client, server
	dscp           uint8
	tags           int
	options        bool // of IPv4; of IPv6 an extension header
	fragment       uint16
}

// frame of a packet, from the client or, as of an answer, from the server.
func (p packet) frame(up bool) []byte {
	from, to := netip.MustParseAddr(p.client), netip.MustParseAddr(p.server)
	ports := p.ports
	if !up {
		from, to, ports[0], ports[1] = to, from, ports[1], ports[0]
	}
	f := []byte{2, 9, 9, 9, 9, 1, 2, 9, 9, 9, 9, 2}
	for i := range p.tags {
		f = append(f, 0x81, 0, 0, byte(40+i))
	}
	if from.Is4() {
		f = append(f, 8, 0, 0x45, p.dscp<<2|1, 0, 100, 0, 1, byte(p.fragment>>8), byte(p.fragment), 64, p.protocol, 0, 0)
		if p.options {
			f[len(f)-12]++
		}
		f = append(append(f, from.AsSlice()...), to.AsSlice()...)
		if p.options {
			f = append(f, 0x13, 0xc4, 0x13, 0xc4) // as ports, 5060
		}
	} else {
		f = append(f, 0x86, 0xdd, 0x60|p.dscp>>2, p.dscp<<6|0x10, 0, 0, 0, 60, p.protocol, 64)
		f = append(append(f, from.AsSlice()...), to.AsSlice()...)
		if p.options {
			f[len(f)-34] = 0
			f = append(f, p.protocol, 0, 1, 4, 0, 0, 0, 0)
		}
	}
	f = binary.BigEndian.AppendUint16(f, ports[0])
	f = binary.BigEndian.AppendUint16(f, ports[1])
	return append(f, bytes.Repeat([]byte{7}, 60)...)
}

// A frame is in the first class that takes it, in both directions.
func TestFramesGoToTheirClasses(t *testing.T) {
	const classes = `"classes": [
		{"name": "voice", "share": "10%", "match": [{"dscp": "ef"}, "udp/5060-5062"]},
		{"name": "work", "share": "20%", "match": [
			{"service": "tcp/443", "clients": ["10.1.16.0/20", "fd57:1:f0::/44"]},
			{"clients": ["10.1.0.9", "fd57:1::9"], "servers": ["10.2.0.1", "fd57:2::1"]}]},
		{"name": "ping", "share": "5%", "match": ["icmp", "arp", "sctp"]}]`
	const tcp, udp = 6, 17
	four := packet{client: "10.1.0.1", server: "10.2.0.1", protocol: tcp, ports: [2]uint16{4000, 80}}
	six := packet{client: "fd57:1::1", server: "fd57:2::1", protocol: tcp, ports: [2]uint16{4000, 80}}
	both := func(change func(*packet)) []packet {
		all := []packet{four, six}
		for i := range all {
			change(&all[i])
		}
		return all
	}
	one := func(p packet, change func(*packet)) []packet { change(&p); return []packet{p} }
	cases := []struct {
		name, want string
		packets    []packet
	}{
		{"nothing matches", rest, both(func(*packet) {})},
		{"DSCP EF", "voice", both(func(p *packet) { p.dscp = 46 })},
		{"DSCP next to EF", rest, both(func(p *packet) { p.dscp = 47 })},
		{"DSCP EF of a fragment with options", "voice", both(func(p *packet) { p.dscp, p.options, p.fragment = 46, true, 5 })},
		{"port of the server", "voice", both(func(p *packet) { p.protocol, p.ports[1] = udp, 5062 })},
		{"port of the client", "voice", both(func(p *packet) { p.protocol, p.ports[0] = udp, 5060 })},
		{"port behind the range", rest, both(func(p *packet) { p.protocol, p.ports[1] = udp, 5063 })},
		{"port of another protocol", rest, both(func(p *packet) { p.ports[1] = 5060 })},
		{"port behind options", rest, both(func(p *packet) { p.protocol, p.ports[1], p.options = udp, 5060, true })},
		{"port in a first fragment", rest, one(four, func(p *packet) { p.protocol, p.ports[1], p.fragment = udp, 5060, 0x2000 })},
		{"port in a later fragment", rest, one(four, func(p *packet) { p.protocol, p.ports[1], p.fragment = udp, 5060, 5 })},
		{"port behind a tag", "voice", both(func(p *packet) { p.protocol, p.ports[1], p.tags = udp, 5061, 1 })},
		{"port behind two tags", rest, both(func(p *packet) { p.protocol, p.ports[1], p.tags = udp, 5061, 2 })},
		{"client in its network, and port", "work", append(one(four, func(p *packet) { p.client, p.ports[1] = "10.1.31.255", 443 }), one(six, func(p *packet) { p.client, p.ports[1] = "fd57:1:ff::1", 443 })...)},
		{"client beside the network", rest, append(one(four, func(p *packet) { p.client, p.ports[1] = "10.1.32.0", 443 }), one(six, func(p *packet) { p.client, p.ports[1] = "fd57:1:100::1", 443 })...)},
		{"client and server", "work", append(one(four, func(p *packet) { p.client, p.tags = "10.1.0.9", 1 }), one(six, func(p *packet) { p.client = "fd57:1::9" })...)},
		{"client and another server", rest, append(one(four, func(p *packet) { p.client, p.server = "10.1.0.9", "10.2.0.2" }), one(six, func(p *packet) { p.client, p.server = "fd57:1::9", "fd57:2::2" })...)},
		{"the first class", "voice", one(four, func(p *packet) { p.client, p.dscp = "10.1.0.9", 46 })},
		{"ICMP", "ping", append(one(four, func(p *packet) { p.protocol = 1 }), one(six, func(p *packet) { p.protocol = 58 })...)},
		{"ICMP of the other family", rest, append(one(four, func(p *packet) { p.protocol = 58 }), one(six, func(p *packet) { p.protocol = 1 })...)},
		{"SCTP", "ping", both(func(p *packet) { p.protocol = 132 })},
	}
	for _, fair := range []bool{true, false} {
		t.Run(fmt.Sprint(fair), func(t *testing.T) {
			text := fmt.Sprintf(`{"up": {"rate": "100Mbit"}, "down": {"rate": "100Mbit"}, "fair": %t, %s}`, fair, classes)
			r, _, _ := start(t, text)
			cfg, err := parseConfig([]byte(text))
			must(t, err)
			var k *kernel
			r.Do(r.Netns, func() (err error) { k, err = newKernel("in", "out"); return err })
			defer k.h.Close()
			k.now = &cfg
			passes := func(name string, frame []byte, up bool, want string) {
				from, to, link := r.Client, r.Server, k.out
				if !up {
					from, to, link = r.Server, r.Client, k.in
				}
				_, before := k.sent(link)
				if !rig.Passes(from, to, frame) {
					t.Errorf("%s: it does not pass: %x", name, frame)
				}
				_, after := k.sent(link)
				for i, c := range after {
					if added := c.packets - before[i].packets; added > 0 != (c.name == want) {
						t.Errorf("%s, up %t: %d in class %s: want it in %s: %x", name, up, added, c.name, want, frame)
					}
				}
			}
			for _, c := range cases {
				for _, p := range c.packets {
					passes(c.name, p.frame(true), true, c.want)
					passes(c.name, p.frame(false), false, c.want)
				}
			}
			ether := []byte{2, 9, 9, 9, 9, 1, 2, 9, 9, 9, 9, 2}
			passes("ARP", append(append(slices.Clone(ether), 8, 6), make([]byte, 46)...), true, "ping")
			passes("ARP behind a tag", append(append(slices.Clone(ether), 0x81, 0, 0, 9, 8, 6), make([]byte, 46)...), false, "ping")
			passes("another ethertype", append(append(slices.Clone(ether), 0x12, 0x34), make([]byte, 46)...), true, rest)
			passes("a short header", append(append(slices.Clone(ether), 8, 0, 0x45), make([]byte, 3)...), true, rest)
		})
	}
}

// call is a small flow: a datagram of payload bytes every 10 ms, which is 1 Mbit/s. It measures the delay of each.
type call struct {
	mu     sync.Mutex
	delays map[uint64]time.Duration // by number
	sent   uint64
}

func dial(t *testing.T, r *rig.Rig, target string) (c *call, stop func()) {
	t.Helper()
	c = &call{delays: map[uint64]time.Duration{}}
	var l net.PacketConn
	r.Do(r.Server.Netns, func() (err error) { l, err = net.ListenPacket("udp4", target); return err })
	var to net.Conn
	must(t, netns.Do(r.Client.Netns, func() (err error) { to, err = net.Dial("udp4", target); return err }))
	begin, end := time.Now(), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		b := make([]byte, payload)
		for tick := time.NewTicker(10 * time.Millisecond); ; {
			select {
			case <-end:
				return
			case <-tick.C:
			}
			c.mu.Lock()
			binary.BigEndian.PutUint64(b, c.sent)
			c.sent++
			c.mu.Unlock()
			binary.BigEndian.PutUint64(b[8:], uint64(time.Since(begin)))
			_, _ = to.Write(b)
		}
	})
	wg.Go(func() {
		b := make([]byte, payload)
		for {
			if _, _, err := l.ReadFrom(b); err != nil {
				return
			}
			c.mu.Lock()
			c.delays[binary.BigEndian.Uint64(b)] = time.Since(begin) - time.Duration(binary.BigEndian.Uint64(b[8:]))
			c.mu.Unlock()
		}
	})
	return c, sync.OnceFunc(func() { close(end); to.Close(); l.Close(); wg.Wait() })
}

// since is the median delay of the datagrams from a number on, and how many are lost. Those of the last 200 ms may be under way.
func (c *call) since(first uint64) (median time.Duration, lost int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []time.Duration
	for n := first; n+20 < c.sent; n++ {
		if d, ok := c.delays[n]; ok {
			all = append(all, d)
		} else {
			lost++
		}
	}
	slices.Sort(all)
	if len(all) == 0 {
		return math.MaxInt64, lost
	}
	return all[len(all)/2], lost
}

func (c *call) next() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sent
}

// reload gives the shaper another configuration, and waits until it is in force.
func reload(t *testing.T, p *rig.Process, file, config string) {
	t.Helper()
	n := strings.Count(p.Output(), "limits in force")
	write(t, file, config)
	p.Signal(syscall.SIGHUP)
	rig.Eventually(t, "the new limits are in force", func() bool { return strings.Count(p.Output(), "limits in force") > n })
}

// On a full line a small flow of a high class keeps its rate and its delay, and the rest has what it leaves. Without its class it waits with the others. If classes
// want more than there is, the first has it, but for what is guaranteed.
func TestClassesShareALimit(t *testing.T) {
	const config = `{"up": {"rate": "20Mbit"}, "fair": %t, "classes": [
		{"name": "voice", "share": "10%%", "match": ["udp/%d"]}, {"name": "work", "share": "30%%", "match": ["udp/8"]}]}`
	r, p, file := start(t, fmt.Sprintf(config, true, 5060))
	bulk := listen(t, r.Server, "10.77.0.2:9", "")
	defer flood(t, r.Client, "10.77.0.1", "10.77.0.2:9")()
	c, stop := dial(t, r, "10.77.0.2:5060")
	defer stop()
	time.Sleep(300 * time.Millisecond) // the burst
	windows := func(what string, ok func(rate float64, median time.Duration, lost int) bool) {
		t.Helper()
		var seen []string
		for range 8 {
			first := c.next()
			rate, _ := bulk.rates(time.Second)
			median, lost := c.since(first)
			if ok(rate, median, lost) {
				return
			}
			seen = append(seen, fmt.Sprintf("the rest has %.3g bit/s, the call waits %v and loses %d", rate, median, lost))
		}
		t.Errorf("%s: %s", what, strings.Join(seen, "; "))
	}
	windows("with its class", func(rate float64, median time.Duration, lost int) bool {
		if rate > 19e6*1.05 {
			t.Errorf("the rest has %.3g bit/s beside 1 Mbit/s of 20", rate)
		}
		return rate > 19e6*0.95 && median < 5*time.Millisecond && lost == 0
	})
	reload(t, p, file, fmt.Sprintf(config, false, 5061))
	windows("in the rest, which is not fair", func(_ float64, median time.Duration, lost int) bool { return median > 20*time.Millisecond || lost > 10 })
	stop()

	reload(t, p, file, fmt.Sprintf(config, true, 5060))
	voice, work := listen(t, r.Server, "10.77.0.2:5060", ""), listen(t, r.Server, "10.77.0.2:8", "")
	defer flood(t, r.Client, "10.77.0.1", "10.77.0.2:5060")()
	defer flood(t, r.Client, "10.77.0.1", "10.77.0.2:8")()
	var seen []string
	for range 8 {
		a, b, d := voice.first.Load(), work.first.Load(), bulk.first.Load()
		begin := time.Now()
		time.Sleep(2 * time.Second)
		mbit := frame * 8 / time.Since(begin).Seconds() / 1e6
		high, middle, low := float64(voice.first.Load()-a)*mbit, float64(work.first.Load()-b)*mbit, float64(bulk.first.Load()-d)*mbit
		if high+middle+low > 21 {
			t.Errorf("%.3g, %.3g and %.3g Mbit/s of 20", high, middle, low)
		}
		if math.Abs(high-13) < 1 && math.Abs(middle-6) < 0.6 && math.Abs(low-1) < 0.2 {
			return
		}
		seen = append(seen, fmt.Sprintf("%.3g, %.3g and %.3g Mbit/s", high, middle, low))
	}
	t.Errorf("three floods: %s: want 13 (what is not guaranteed), 6 and 1", strings.Join(seen, "; "))
}

// Another rate, other shares, names and matches are put in force without a loss, also of what waits.
func TestClassesChangeWithoutLoss(t *testing.T) {
	const config = `{"up": {"rate": "%dMbit", "burst": "2KB"}, "classes": [{"name": "%s", "share": "%d%%", "match": ["udp/%d"]}]}`
	r, p, file := start(t, fmt.Sprintf(config, 5, "a", 10, 9))
	s := listen(t, r.Server, "10.77.0.2:9", "")
	var c net.Conn
	r.Do(r.Client.Netns, func() (err error) { c, err = net.Dial("udp4", "10.77.0.2:9"); return err })
	defer c.Close()
	b, want := make([]byte, payload), uint64(0)
	for i := range 12 {
		for range 40 { // 80 ms of 5 Mbit/s
			_, err := c.Write(b)
			must(t, err)
			want++
		}
		reload(t, p, file, fmt.Sprintf(config, 5+i%2, string(rune('b'+i)), 10+20*(i%3), 9+i%2))
		rig.Eventually(t, "the queue is short", func() bool { return s.first.Load()+20 >= want })
	}
	rig.Eventually(t, "all have come", func() bool { return s.first.Load() == want })
}

// What the README shows is good, for the schema and for the function. What the schema takes, the function takes, but for numbers and addresses.
func TestTheSchemaDescribesClasses(t *testing.T) {
	raw, err := os.ReadFile("schema.json")
	must(t, err)
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	must(t, err)
	c := jsonschema.NewCompiler()
	must(t, c.AddResource("schema.json", doc))
	schema := c.MustCompile("schema.json")
	takes := func(text []byte) error {
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		must(t, err)
		return schema.Validate(v)
	}
	page, err := os.ReadFile("README.md")
	must(t, err)
	blocks := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllSubmatch(page, -1)
	for _, b := range blocks {
		var file struct {
			Functions map[string]struct {
				Config any `yaml:"config"`
			} `yaml:"functions"`
		}
		must(t, yaml.Unmarshal(b[1], &file))
		for name, f := range file.Functions {
			text, err := json.Marshal(f.Config)
			must(t, err)
			if _, wrong := parseConfig(text); wrong != nil || takes(text) != nil {
				t.Errorf("README: %s: %s: %v, %v", name, text, wrong, takes(text))
			}
		}
	}
	if len(blocks) < 2 {
		t.Errorf("README: %d examples", len(blocks))
	}
	for match, good := range map[string]bool{
		`"ip"`: true, `"icmp"`: true, `"sctp/1-2"`: true, `{"dscp": 63}`: true, `{"dscp": "cs7"}`: true, `{"service": "arp"}`: true, `{"clients": ["10.0.0.1", "fd00::/8"]}`: true,
		`"gre"`: false, `"icmp/8"`: false, `"tcp/"`: false, `"udp/1-2-3"`: false, `{}`: false, `5`: false, `""`: false, `{"port": 1}`: false, `{"dscp": 64}`: false, `{"dscp": "af14"}`: false,
		`{"dscp": "cs8"}`: false, `{"clients": []}`: false, `{"servers": "10.0.0.1"}`: false,
	} {
		text := fmt.Appendf(nil, `{"up": {"rate": "1Mbit"}, "classes": [{"name": "a", "share": "10%%", "match": [%s]}]}`, match)
		_, wrong := parseConfig(text)
		if err := takes(text); (err == nil) != good || (wrong == nil) != good {
			t.Errorf("%s: schema: %v, function: %v: want both good: %t", match, err, wrong, good)
		}
	}
	for _, class := range []string{`{"name": "rest", "share": "10%", "match": ["ip"]}`, `{"name": "a", "match": ["ip"]}`, `{"name": "a", "share": "10%"}`, `{"name": "a", "share": 10, "match": ["ip"]}`, `{"name": "-a", "share": "10%", "match": ["ip"]}`} {
		text := fmt.Appendf(nil, `{"up": {"rate": "1Mbit"}, "classes": [%s]}`, class)
		if _, wrong := parseConfig(text); wrong == nil || takes(text) == nil {
			t.Errorf("%s: %v, %v: want it refused", class, wrong, takes(text))
		}
	}
}
