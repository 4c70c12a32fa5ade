package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"weir.dev/weir/catalogue/names"
	"weir.dev/weir/catalogue/nf/targets"
)

var client = netip.MustParseAddr("10.77.0.1")

// testZone has targets 192.0.2.N and 2001:db8::N; those in down are down.
func testZone(t testing.TB, config string, down ...string) *zone {
	t.Helper()
	cfg, err := parseConfig([]byte(config))
	must(t, err)
	z := newZone(cfg, func(a netip.Addr, _ *targets.Check) bool { return !slices.Contains(down, a.String()) })
	z.any = rand.New(rand.NewPCG(1, 2)).Float64
	return z
}

func ask(name string, kind uint16, change ...func(*dns.Msg)) []byte {
	m := new(dns.Msg).SetQuestion(name, kind)
	m.Id = 0x1234
	for _, f := range change {
		f(m)
	}
	b, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return b
}

// reply to a message, decoded; nil if it was not answered.
func reply(t testing.TB, z *zone, msg []byte, limit int) *dns.Msg {
	t.Helper()
	b, fate := z.query(msg, client, limit)
	if fate != answered {
		return nil
	}
	var m dns.Msg
	if err := m.Unpack(b); err != nil {
		t.Fatalf("answer % x: %v", b, err)
	}
	if !m.Response || m.Id != 0x1234 {
		t.Fatalf("answer %v", m)
	}
	return &m
}

func addresses(m *dns.Msg) (all []string) {
	for _, r := range m.Answer {
		switch r := r.(type) {
		case *dns.A:
			all = append(all, r.A.String())
		case *dns.AAAA:
			all = append(all, r.AAAA.String())
		}
	}
	return all
}

const some = `{"names": {
	"App.example.": {"ttl": 7, "targets": [{"address": "192.0.2.1"}, {"address": "2001:db8::1"}]},
	"four.example": {"targets": [{"address": "192.0.2.4"}]},
	"*.wild.example": {"targets": [{"address": "192.0.2.5"}]},
	"own.wild.example": {"targets": [{"address": "192.0.2.6"}]}}}`

func TestWhoseANameIs(t *testing.T) {
	z := testZone(t, some)
	for _, c := range []struct {
		name string
		kind uint16
		want string // addresses, "nodata OWNER" or "passes"
	}{
		{"app.example.", dns.TypeA, "192.0.2.1"}, {"APP.exAMPLE.", dns.TypeA, "192.0.2.1"}, {"app.example.", dns.TypeAAAA, "2001:db8::1"},
		{"app.example.", dns.TypeTXT, "nodata app.example."}, {"aPP.example.", dns.TypeANY, "nodata aPP.example."}, {"app.example.", dns.TypeHTTPS, "nodata app.example."},
		{"app.example.", dns.TypeSOA, "nodata app.example."}, {"four.example.", dns.TypeAAAA, "nodata four.example."},
		{"www.app.example.", dns.TypeA, "passes"}, {"example.", dns.TypeA, "passes"}, {".", dns.TypeNS, "passes"}, {"app.example.org.", dns.TypeA, "passes"}, {"xapp.example.", dns.TypeA, "passes"},
		{"a.wild.example.", dns.TypeA, "192.0.2.5"}, {"a.b.WILD.example.", dns.TypeA, "192.0.2.5"}, {`\000\255.wild.example.`, dns.TypeA, "192.0.2.5"}, {"a.Wild.example.", dns.TypeMX, "nodata Wild.example."},
		{"wild.example.", dns.TypeA, "passes"}, {"own.wild.example.", dns.TypeA, "192.0.2.6"}, {"a.own.wild.example.", dns.TypeA, "passes"}, {`a\.app.example.`, dns.TypeA, "passes"}, {`app\.example.`, dns.TypeA, "passes"},
	} {
		got := "passes"
		if m := reply(t, z, ask(c.name, c.kind), 0); m != nil {
			got = strings.Join(addresses(m), " ")
			if len(m.Answer) == 0 && len(m.Ns) == 1 {
				got = "nodata " + m.Ns[0].Header().Name
			}
			if m.Question[0].Name != c.name || len(m.Answer) > 0 && m.Answer[0].Header().Name != c.name || !m.Authoritative || !m.RecursionAvailable || m.Rcode != 0 || m.Truncated {
				t.Errorf("%s: %v", c.name, m)
			}
		}
		if got != c.want {
			t.Errorf("%s %s: %s: want %s", c.name, dns.TypeToString[c.kind], got, c.want)
		}
	}
	if m := reply(t, z, ask("app.example.", dns.TypeA), 0); m.Answer[0].Header().Ttl != 7 {
		t.Errorf("TTL %v", m)
	}
	if m := reply(t, z, ask("app.example.", dns.TypeMX), 0); m.Ns[0].Header().Ttl != 7 || m.Ns[0].(*dns.SOA).Minttl != 7 {
		t.Errorf("TTL of no data %v", m)
	}
}

// Messages for own names that are no plain queries.
func TestOddMessages(t *testing.T) {
	z := testZone(t, some)
	opt := func(change func(*dns.OPT)) func(*dns.Msg) {
		return func(m *dns.Msg) {
			o := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
			o.SetUDPSize(4096)
			change(o)
			m.Extra = append(m.Extra, o)
		}
	}
	cookie := func(hex string) func(*dns.Msg) {
		return opt(func(o *dns.OPT) { o.Option = append(o.Option, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: hex}) })
	}
	client, server := strings.Repeat("c1", 8), strings.Repeat("5e", 16)
	for name, c := range map[string]struct {
		change func(*dns.Msg)
		want   string
	}{
		"plain":                  {func(*dns.Msg) {}, "NOERROR rd"},
		"no recursion":           {func(m *dns.Msg) { m.RecursionDesired = false }, "NOERROR"},
		"checking off":           {func(m *dns.Msg) { m.CheckingDisabled = true }, "NOERROR rd cd"},
		"EDNS":                   {opt(func(*dns.OPT) {}), "NOERROR rd edns 1232"},
		"DNSSEC":                 {opt(func(o *dns.OPT) { o.SetDo() }), "NOERROR rd edns 1232 do"},
		"version 1":              {opt(func(o *dns.OPT) { o.SetVersion(1) }), "BADVERS rd edns 1232"},
		"two OPT":                {func(m *dns.Msg) { opt(func(*dns.OPT) {})(m); opt(func(*dns.OPT) {})(m) }, "FORMERR rd"},
		"OPT not of the root":    {opt(func(o *dns.OPT) { o.Hdr.Name = "a." }), "FORMERR rd"},
		"client's cookie":        {cookie(client), "NOERROR rd edns 1232"},
		"both cookies":           {cookie(client + server), "NOERROR rd edns 1232 cookie " + client + server},
		"half a cookie":          {cookie(client[:6]), "FORMERR rd edns 1232"},
		"cookie between lengths": {cookie(client + "aa"), "FORMERR rd edns 1232"},
		"signed":                 {func(m *dns.Msg) { m.SetTsig("key.", dns.HmacSHA256, 300, 0) }, "REFUSED rd"},
		"an answer in a query": {func(m *dns.Msg) {
			m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: "a.", Rrtype: dns.TypeA, Class: 1}, A: []byte{1, 2, 3, 4}})
		}, "FORMERR rd"},
		"class CH":      {func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }, "passes"},
		"two questions": {func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) }, "passes"},
		"no question":   {func(m *dns.Msg) { m.Question = nil }, "passes"},
		"notify":        {func(m *dns.Msg) { m.Opcode = dns.OpcodeNotify }, "passes"},
		"update":        {func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate }, "passes"},
		"an answer":     {func(m *dns.Msg) { m.Response = true }, "passes"},
	} {
		got := "passes"
		if m := reply(t, z, ask("app.example.", dns.TypeA, c.change), 0); m != nil {
			got = dns.RcodeToString[m.Rcode]
			if m.Rcode == dns.RcodeBadVers {
				got = "BADVERS"
			}
			if m.RecursionDesired {
				got += " rd"
			}
			if m.CheckingDisabled {
				got += " cd"
			}
			if o := m.IsEdns0(); o != nil {
				got += fmt.Sprint(" edns ", o.UDPSize())
				if o.Do() {
					got += " do"
				}
				for _, o := range o.Option {
					got += " cookie " + o.(*dns.EDNS0_COOKIE).Cookie
				}
			}
			if m.Rcode != 0 && len(m.Answer)+len(m.Ns) > 0 {
				t.Errorf("%s: an error with records: %v", name, m)
			}
		}
		if got != c.want {
			t.Errorf("%s: %s: want %s", name, got, c.want)
		}
	}
	// What cannot be read behind the question is an error, and a server that has to be asked for it is not.
	whole := ask("app.example.", dns.TypeA, opt(func(*dns.OPT) {}))
	for _, msg := range [][]byte{whole[:len(whole)-3], append(bytes.Clone(whole), make([]byte, maxQuery)...)} {
		if m := reply(t, z, msg, 0); m == nil || m.Rcode != dns.RcodeFormatError || len(m.Question) != 1 || m.Question[0].Name != "app.example." || len(m.Extra) > 0 {
			t.Errorf("%d bytes: %v", len(msg), m)
		}
	}
	for n := range len(whole) - 11 - 1 { // cut within header and question: nothing to us
		if n < len(whole)-11 {
			if _, fate := z.query(whole[:n], client4(), 0); fate != passes {
				t.Errorf("%d bytes of a query: %v", n, fate)
			}
		}
	}
	// Names by pointers: to itself, forwards, into the header.
	for _, pointer := range []string{"\xc0\x0c", "\xc0\x20", "\xc0\x00", "\x03app\xc0\x0c", "\x40aaaa"} {
		msg := append([]byte{0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}, pointer+"\x00\x00\x01\x00\x01"...)
		if _, fate := z.query(msg, client4(), 0); fate != passes {
			t.Errorf("% x: %v", msg, fate)
		}
	}
}

func client4() netip.Addr { return client }

// What servers answer for own names does not reach clients.
func TestForeignAnswers(t *testing.T) {
	z := testZone(t, `{"names": {"app.example": {"targets": [{"address": "192.0.2.1"}]},
		"passed.example": {"targets": [{"address": "192.0.2.1"}], "check": {"tcp": 80}, "all_down": "pass"}}, "health": {"addresses": ["192.0.2.9/24"]}}`)
	response := func(m *dns.Msg) { m.Response = true }
	record := func(m *dns.Msg) {
		m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: "app.example.", Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.IPv4(192, 0, 2, 66)})
	}
	more := func(name string) func(*dns.Msg) {
		return func(m *dns.Msg) {
			m.Question = append(m.Question, dns.Question{Name: name, Qtype: dns.TypeA, Qclass: dns.ClassINET})
		}
	}
	none := func(m *dns.Msg) { m.Question = nil }
	opcode := func(code int) func(*dns.Msg) { return func(m *dns.Msg) { m.Opcode = code } }
	chaos := func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }
	// The name of the question is behind the question.
	pointer := append([]byte{0x12, 0x34, 0x80, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 18, 0, 1, 0, 1}, "\x03app\x07example\x00"...)
	for what, c := range map[string]struct {
		msg  []byte
		want bool
	}{
		"an own name":                 {ask("APP.example.", dns.TypeA, response), true},
		"of another type":             {ask("app.example.", dns.TypeMX, response), true},
		"of an odd operation":         {ask("app.example.", dns.TypeA, response, opcode(dns.OpcodeStatus)), true},
		"a query":                     {ask("app.example.", dns.TypeA), false},
		"another name":                {ask("other.example.", dns.TypeA, response), false},
		"the root":                    {ask(".", dns.TypeNS, response), false},
		"a dot in a label":            {ask(`a\.app.example.`, dns.TypeA, response), false},
		"a name that may pass":        {ask("passed.example.", dns.TypeA, response), false},
		"of another class":            {ask("app.example.", dns.TypeA, response, chaos), false},
		"of an update of a zone":      {ask("app.example.", dns.TypeSOA, response, opcode(dns.OpcodeUpdate)), false},
		"an own name and another":     {ask("app.example.", dns.TypeA, response, more("other.example.")), true},
		"another name and an own one": {ask("other.example.", dns.TypeA, response, more("app.example.")), true},
		"no question and a record":    {ask("app.example.", dns.TypeA, response, none, record), true},
		"no question and none":        {ask("app.example.", dns.TypeA, response, none), false},
		"a name by a pointer":         {pointer, true},
		"a question that is cut":      {ask("other.example.", dns.TypeA, response)[:20], true},
		"nothing":                     {nil, false},
		"less than a header":          {ask("app.example.", dns.TypeA, response)[:11], false},
	} {
		if got := z.foreign(c.msg); got != c.want {
			t.Errorf("%s: % x: %v: want %v", what, c.msg, got, c.want)
		}
	}
}

// The further messages of a zone transfer need no question. They pass if the client has asked for one, with the same id.
func TestTransfersGoOn(t *testing.T) {
	z := testZone(t, some)
	var at atomic.Pointer[zone]
	at.Store(z)
	x := &proxy{zone: &at, count: &counters{}}
	further := ask("zone.example.", dns.TypeAXFR, func(m *dns.Msg) {
		m.Response, m.Question = true, nil
		m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: "a.zone.example.", Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.IPv4(192, 0, 2, 66)})
	})
	for what, c := range map[string]struct {
		query []byte
		want  bool
	}{
		"a transfer":     {ask("zone.example.", dns.TypeAXFR), true},
		"another id":     {ask("zone.example.", dns.TypeAXFR, func(m *dns.Msg) { m.Id++ }), false},
		"another query":  {ask("zone.example.", dns.TypeA), false},
		"of an own name": {ask("four.example.", dns.TypeAXFR), false},
	} {
		var asked transfer
		var sent, told bytes.Buffer
		tell := func(msg []byte) error { _, err := told.Write(msg); return err }
		must(t, x.queries(bytes.NewReader(framed(c.query)), &sent, client, tell, &asked))
		told.Reset()
		must(t, x.answers(bytes.NewReader(framed(further)), tell, &asked))
		if got := bytes.Equal(told.Bytes(), framed(further)); got != c.want {
			t.Errorf("%s: it passes: %v, want %v", what, got, c.want)
		}
	}
}

func TestStrategies(t *testing.T) {
	const targets = `"targets": [{"address": "192.0.2.1", "weight": 3}, {"address": "192.0.2.2", "weight": 1}, {"address": "192.0.2.3", "weight": 0}]`
	const health = `, "health": {"addresses": ["192.0.2.9/24"]}`
	count := func(z *zone, clients int) map[string]int {
		seen := map[string]int{}
		var q = ask("app.example.", dns.TypeA)
		for i := range 4000 {
			b, fate := z.query(q, netip.AddrFrom4([4]byte{10, 0, byte(i % clients >> 8), byte(i % clients)}), 0)
			var m dns.Msg
			if fate != answered || m.Unpack(b) != nil {
				t.Fatalf("fate %v", fate)
			}
			seen[strings.Join(addresses(&m), " ")]++
		}
		return seen
	}
	near := func(got, want int) bool { return got > want-150 && got < want+150 } // five standard deviations
	seen := count(testZone(t, `{"names": {"app.example": {`+targets+`}}}`), 1)
	if !near(seen["192.0.2.1"], 3000) || !near(seen["192.0.2.2"], 1000) || len(seen) != 2 {
		t.Errorf("weighted: %v", seen)
	}
	seen = count(testZone(t, `{"names": {"app.example": {"answers": 3, `+targets+`}}}`), 1)
	if !near(seen["192.0.2.1 192.0.2.2 192.0.2.3"], 3000) || !near(seen["192.0.2.2 192.0.2.1 192.0.2.3"], 1000) || len(seen) != 2 {
		t.Errorf("weighted, all: %v", seen)
	}
	config := `{"names": {"app.example": {"strategy": "%s", "all_down": "%s", "check": {"tcp": 80}, ` + targets + `}}` + health + `}`
	seen = count(testZone(t, fmt.Sprintf(config, weighted, serve), "192.0.2.1"), 1)
	if seen["192.0.2.2"] != 4000 {
		t.Errorf("weighted, one is down: %v", seen)
	}
	seen = count(testZone(t, fmt.Sprintf(config, weighted, serve), "192.0.2.1", "192.0.2.2"), 1)
	if seen["192.0.2.3"] != 4000 {
		t.Errorf("weighted, only the one without weight is up: %v", seen)
	}
	// A client always gets the same; clients are spread by weight; one that goes changes only its own clients' answers.
	z := testZone(t, fmt.Sprintf(config, hash, serve))
	if seen = count(z, 4000); !near(seen["192.0.2.1"], 3000) || !near(seen["192.0.2.2"], 1000) || len(seen) != 2 {
		t.Errorf("hash: %v", seen)
	}
	if seen = count(z, 1); len(seen) != 1 {
		t.Errorf("hash, one client: %v", seen)
	}
	less, moved := testZone(t, fmt.Sprintf(config, hash, serve), "192.0.2.2"), 0
	q := ask("app.example.", dns.TypeA)
	for i := range 4000 {
		from := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		a, _ := z.query(q, from, 0)
		b, _ := less.query(q, from, 0)
		if !bytes.Equal(a, b) {
			moved++
			if !bytes.HasSuffix(a, []byte{192, 0, 2, 2}) {
				t.Fatalf("client %s moved without need", from)
			}
		}
	}
	if !near(moved, 1000) {
		t.Errorf("hash, one is down: %d of 4000 clients moved", moved)
	}
	same, _ := z.query(q, netip.MustParseAddr("2001:db8:1:2::1"), 0)
	for i := range 100 {
		if b, _ := z.query(q, netip.MustParseAddr(fmt.Sprintf("2001:db8:1:2::%x:1", i)), 0); !bytes.Equal(b, same) {
			t.Fatal("hash: hosts of one IPv6 network get different targets")
		}
	}
	for _, c := range []struct {
		down []string
		want string
	}{{nil, "192.0.2.1"}, {[]string{"192.0.2.1"}, "192.0.2.2"}, {[]string{"192.0.2.1", "192.0.2.2"}, "192.0.2.3"}, {[]string{"192.0.2.1", "192.0.2.2", "192.0.2.3"}, "192.0.2.1"}} {
		if seen = count(testZone(t, fmt.Sprintf(config, failover, serve), c.down...), 1); seen[c.want] != 4000 {
			t.Errorf("failover, %v down: %v: want %s", c.down, seen, c.want)
		}
	}
	all := []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"}
	if m := reply(t, testZone(t, fmt.Sprintf(config, weighted, servfail), all...), q, 0); m == nil || m.Rcode != dns.RcodeServerFailure || len(m.Answer)+len(m.Ns) > 0 {
		t.Errorf("all down, servfail: %v", m)
	}
	if m := reply(t, testZone(t, fmt.Sprintf(config, weighted, pass), all...), q, 0); m != nil {
		t.Errorf("all down, pass: %v", m)
	}
	// All of IPv4 are down, and there is no IPv6: that is no failure of IPv6.
	if m := reply(t, testZone(t, fmt.Sprintf(config, weighted, servfail), all...), ask("app.example.", dns.TypeAAAA), 0); m == nil || m.Rcode != 0 || len(m.Ns) != 1 {
		t.Errorf("all down, another family: %v", m)
	}
}

// An answer fits the size that the client and the path carry, or says that it does not.
func TestTruncation(t *testing.T) {
	var list []string
	for i := range maxTargets {
		list = append(list, fmt.Sprintf(`{"address": "2001:db8::%x"}`, i+1))
	}
	z := testZone(t, `{"names": {"app.example": {"answers": 64, "targets": [`+strings.Join(list, ",")+`]}}}`)
	for _, c := range []struct{ edns, limit, want int }{{0, 0, 0}, {512, 0, 0}, {4096, 0, 0}, {100, 0, 0}, {0, 65535, 64}, {4096, 65535, 64}} {
		msg := ask("app.example.", dns.TypeAAAA, func(m *dns.Msg) {
			if c.edns > 0 {
				m.SetEdns0(uint16(c.edns), false)
			}
		})
		b, _ := z.query(msg, client, c.limit)
		m := reply(t, z, msg, c.limit)
		if m == nil || len(m.Answer) != c.want || m.Truncated != (c.want == 0) || c.limit == 0 && len(b) > max(512, min(c.edns, maxUDP)) {
			t.Errorf("EDNS %d, limit %d: %d bytes, %v", c.edns, c.limit, len(b), m)
		}
	}
	few := testZone(t, `{"names": {"app.example": {"answers": 30, "targets": [`+strings.Join(list[:30], ",")+`]}}}`) // 30*28 bytes
	if m := reply(t, few, ask("app.example.", dns.TypeAAAA, func(m *dns.Msg) { m.SetEdns0(1232, false) }), 0); len(m.Answer) != 30 || m.Truncated {
		t.Errorf("it fits 1232 bytes: %v", m)
	}
}

// Whatever comes is survived, and an answer is one to what was asked.
func FuzzQuery(f *testing.F) {
	f.Add(ask("app.example.", dns.TypeA))
	f.Add(ask("a.wild.example.", dns.TypeTXT, func(m *dns.Msg) { m.SetEdns0(4096, true) }))
	z := testZone(f, some)
	f.Fuzz(func(t *testing.T, msg []byte) {
		checkAnswer(t, z, msg)
		z.foreign(msg)
	})
}

func checkAnswer(t *testing.T, z *zone, msg []byte) (is bool) {
	t.Helper()
	b, fate := z.query(msg, client, 0)
	if fate != answered {
		return false
	}
	var q names.Question
	if !q.Read(msg) || !bytes.HasPrefix(b, msg[:2]) || b[2]&0x80 == 0 || len(b) > maxUDP || !bytes.Equal(b[names.HeaderLength:names.HeaderLength+len(q.Text())+2+4], msg[names.HeaderLength:names.HeaderLength+len(q.Text())+2+4]) {
		t.Fatalf("% x\nis answered by\n% x", msg, b)
	}
	if err := new(dns.Msg).Unpack(b); err != nil {
		t.Fatalf("answer to % x: %v", msg, err)
	}
	return true
}
