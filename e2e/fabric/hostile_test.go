package fabric

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/openflow"
	"weir.dev/weir/openflow/fake"
)

// Bounds of what a hostile switch may do to others.
const (
	hostileApply  = 20 * time.Second // a change of a policy on the other switches, on a busy machine
	hostileMemory = 600 << 20        // of the manager, at any time
	hostileDPID   = "66"
)

// attempt is one thing that a hostile switch tries; it says what stopped it.
type attempt struct {
	name string
	do   func(h *hostile) string
}

// hostile is a switch that its owner gave a certificate for one datapath id, and that has turned against the network.
type hostile struct {
	*bed
	id  identity // for hostileDPID
	end []func() // of the attempt
}

// A switch turns hostile: with and without a certificate, in the handshake and as an admitted switch. The other switches' policy stays in
// force, a change of it comes into force within bounds, and the manager's memory stays bounded.
func TestAHostileSwitchHurtsNoOther(t *testing.T) {
	t.Parallel()
	b := newBed(t, "fig2.yaml", nil)
	b.reach("vm1", "10.0.0.2")
	documents := []string{b.example("fig2-policy.yaml"), strings.Replace(b.example("fig2-policy.yaml"), "match: [ip]", "match: [icmp, tcp]", 1)}
	b.apply(documents[0])
	b.reach("vm1", "10.0.0.2")
	h := &hostile{bed: b, id: b.certify([]string{hostileDPID})}
	pid := b.node("manager").PIDs[0]
	var table bytes.Buffer
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ATTEMPT\tSTOPPED BY\tA CHANGE TOOK\tMEMORY")
	for i, x := range hostileAttempts() {
		t.Run(x.name, func(t *testing.T) {
			b := b.in(t)
			h := &hostile{bed: b, id: h.id}
			defer func() {
				for _, f := range h.end {
					f()
				}
			}()
			stopped := x.do(h)
			begin := time.Now()
			b.apply(documents[(i+1)%2])
			took := time.Since(begin)
			if took > hostileApply {
				t.Errorf("a change of the policy took %v: want at most %v", took, hostileApply)
			}
			b.steered()
			if p := b.policy("vm1-through-nf"); !p.Status.InForce {
				t.Errorf("the policy is not in force: %+v", p.Status)
			}
			for _, name := range []string{"s1", "s2"} {
				if s := b.fabricSwitch(name); s.Status.State != "connected" || s.Status.DatapathID != "000000000000000"+name[1:] {
					t.Errorf("%s: %+v", name, s.Status)
				}
			}
			rss := resident(t, pid)
			if rss > hostileMemory {
				t.Errorf("the manager has %d MB: want at most %d", rss>>20, hostileMemory>>20)
			}
			fmt.Fprintf(w, "%s\t%s\t%v\t%d MB\n", x.name, stopped, took.Round(time.Millisecond), rss>>20)
		})
	}
	w.Flush()
	t.Logf("\n%s", &table)
}

// steered pings, and wants requests and replies to have met the function.
func (b *bed) steered() {
	b.t.Helper()
	b.await("vm1's pings and the replies pass the function", func() (bool, string) {
		before := b.passed("nf")
		out, err := b.exec("vm1", "ping", "-q", "-n", "-c", "3", "-i", "0.05", "-W", "2", "10.0.0.2")
		n := b.passed("nf") - before
		return err == nil && strings.Contains(out, "3 received") && n >= 6, fmt.Sprintf("%d frames at the function, %v %s", n, err, out)
	})
}

func (b *bed) fabricSwitch(name string) api.Switch {
	b.t.Helper()
	var s api.Switch
	b.get(&s, "switch", name)
	return s
}

// hostileAttempts in the order of the conversation.
func hostileAttempts() []attempt {
	arp := func(i int) []byte {
		mac := []byte{2, 0x66, byte(i >> 24), byte(i >> 16), byte(i >> 8), byte(i)}
		return whoHas(mac, netip.AddrFrom4([4]byte{10, 66, byte(i >> 8), byte(i)}))
	}
	return []attempt{
		{"plain TCP", func(h *hostile) string { return h.refused(h.plainHello(), "does not speak TLS") }},
		{"no certificate", func(h *hostile) string { return h.refusedTLS("", "certificate") }},
		{"a certificate of another authority", func(h *hostile) string { return h.refusedTLS(h.foreign(), "not a certificate of this Weir") }},
		{"a host's certificate", func(h *hostile) string { return h.refusedTLS(h.hosts(), "not a certificate of this Weir's switches") }},
		{"the datapath id of another switch", func(h *hostile) string {
			p := h.connect(fake.Config{DatapathID: 1}, nil)
			h.hungUp(p)
			return h.saw("SwitchRefused", "claims the datapath id 0000000000000001")
		}},
		{"an expired certificate", (*hostile).expired},
		{"a revoked certificate", (*hostile).revoked},
		{"a second connection of its datapath id", func(h *hostile) string {
			h.admitted(nil)
			h.hungUp(h.connect(fake.Config{DatapathID: 0x66}, nil))
			return h.saw("SwitchRefused", "has the datapath id 0000000000000066")
		}},
		{"endless handshakes", (*hostile).endless},
		{"a message of 7 octets", func(h *hostile) string { return h.raw([]byte{4, 0, 0, 7, 0, 0, 0, 0}) }},
		{"garbage", func(h *hostile) string {
			return h.raw(bytes.Repeat([]byte{4, 10, 0, 16, 0xff, 0xff, 0xff, 0xff}, 4096))
		}},
		{"a large message that does not end", func(h *hostile) string { return h.raw([]byte{4, 10, 0xff, 0xff, 0, 0, 0, 0, 1, 2, 3}) }},
		{"a list of entries that does not end", (*hostile).endlessList},
		{"a storm of packet-ins", func(h *hostile) string {
			return h.storm(400_000, func(i int) openflow.Message { return packetIn(1, arp(i)) }, "500 a second are looked at")
		}},
		{"forged link discovery", func(h *hostile) string {
			lldp := append([]byte{0x01, 0x80, 0xc2, 0, 0, 0x0e, 2, 2, 3, 4, 5, 6, 0x88, 0xcc, 2, 18, 4}, "weir:dp:0000000000000001"[:17]...)
			return h.storm(20_000, func(i int) openflow.Message { return packetIn(1, append(lldp, 4, 2, 7, '1', 6, 2, 0, 120, 0, 0)) }, "it is not signed")
		}},
		{"a station of others", func(h *hostile) string {
			p := h.admitted(nil)
			if _, err := p.storm(2000, func(int) openflow.Message {
				return packetIn(1, whoHas([]byte{2, 0x57, 0, 0, 0, 1}, netip.AddrFrom4([4]byte{10, 0, 0, 1})))
			}); err != nil {
				h.t.Error(err)
			}
			return "the policy's ends stay where they are"
		}},
		{"a storm of port changes", func(h *hostile) string {
			return h.storm(400_000, func(i int) openflow.Message {
				return &openflow.PortStatus{Reason: openflow.PortReason(i % 3), Desc: openflow.PortDesc{Port: openflow.Port(i%3000 + 1), MAC: openflow.MAC{2, 1, 1, 1, 1, byte(i)}, Name: fmt.Sprint("p", i%3000)}}
			}, "20 a second are followed, then the ports are read")
		}},
		{"a storm of errors", func(h *hostile) string {
			return h.storm(400_000, func(i int) openflow.Message {
				return &openflow.Error{Code: openflow.ErrorCode(i % 7), Data: make([]byte, 64)}
			}, "10,000 messages a second are read, few are logged")
		}},
		{"a flood of echo requests", func(h *hostile) string {
			return h.storm(100_000, func(int) openflow.Message { return &openflow.EchoRequest{Data: make([]byte, 16<<10)} }, "64 MiB a second are read")
		}},
		{"lies about its tables", func(h *hostile) string {
			p := h.connect(fake.Config{DatapathID: 0x66, Ports: []openflow.Port{1, 2}, TableSize: 1, TellFields: true, NoMask: []openflow.Field{openflow.FieldEthSrc}}, nil)
			h.isConnected(p)
			return "its own table is short, the others' are full"
		}},
		{"another role", func(h *hostile) string {
			h.admitted(nil)
			p := h.admittedAgain(func(up bool, m []byte) [][]byte {
				if up && openflow.Type(m[1]) == openflow.TypeRoleReply && len(m) >= 12 {
					m[11] = 3 // slave
				}
				return [][]byte{m}
			})
			_ = p
			return "its role is its own"
		}},
		{"refused barriers", func(h *hostile) string {
			h.admitted(func(up bool, m []byte) [][]byte {
				if up && openflow.Type(m[1]) == openflow.TypeBarrierReply {
					e, _ := openflow.Append(nil, xid(m), &openflow.Error{Code: 1 << 16, Data: m})
					return [][]byte{e}
				}
				return [][]byte{m}
			})
			return "nobody else waits"
		}},
		{"no answers", func(h *hostile) string {
			began := time.Now()
			h.admitted(func(up bool, m []byte) [][]byte {
				if up && time.Since(began) > 2*time.Second && openflow.Type(m[1]) != openflow.TypeEchoReply {
					return nil
				}
				return [][]byte{m}
			})
			h.await("it is silent", func() (bool, string) { return time.Since(began) > 2*time.Second, "" })
			return "others wait 3 s at most"
		}},
	}
}

func xid(m []byte) uint32 {
	return uint32(m[4])<<24 | uint32(m[5])<<16 | uint32(m[6])<<8 | uint32(m[7])
}

func packetIn(port openflow.Port, frame []byte) openflow.Message {
	return &openflow.PacketIn{TotalLen: uint16(len(frame)), Match: openflow.Match{openflow.InPort(port)}, Data: frame}
}

// connect connects the hostile switch.
func (h *hostile) connect(c fake.Config, filter func(bool, []byte) [][]byte) *puppet {
	h.t.Helper()
	p, err := h.puppet(h.id, c, filter)
	if err != nil {
		h.t.Fatal(err)
	}
	h.end = append(h.end, p.stop)
	return p
}

// admitted connects it with its own datapath id, and waits until it is taken.
func (h *hostile) admitted(filter func(bool, []byte) [][]byte) *puppet {
	h.t.Helper()
	p := h.connect(fake.Config{DatapathID: 0x66, Ports: []openflow.Port{1, 2}}, filter)
	h.isConnected(p)
	return p
}

func (h *hostile) admittedAgain(filter func(bool, []byte) [][]byte) *puppet {
	h.t.Helper()
	for _, f := range h.end {
		f()
	}
	return h.admitted(filter)
}

func (h *hostile) isConnected(p *puppet) {
	h.t.Helper()
	h.await("the hostile switch is connected", func() (bool, string) {
		select {
		case <-p.gone:
			return false, "the router hung up"
		default:
		}
		s, err := h.client.Switches().Get(h.ctx, "of-0000000000000066")
		return err == nil && s.Status.State == "connected" && s.Status.Address == p.nc.LocalAddr().String(), fmt.Sprint(s.Status.State, s.Status.Address, err)
	})
}

func (h *hostile) hungUp(p *puppet) {
	h.t.Helper()
	h.await("the router hangs up", func() (bool, string) {
		select {
		case <-p.gone:
			return true, ""
		default:
			return false, "it does not"
		}
	})
}

// saw waits for an event.
func (h *hostile) saw(reason string, words ...string) string {
	h.t.Helper()
	h.told(append([]string{reason}, words...)...)
	return "event " + reason + ": " + words[0]
}

func (h *hostile) plainHello() error {
	c, err := h.dialOpenFlow()
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = openflow.Switch(h.ctx, c, openflow.FeaturesReply{DatapathID: 0x66}, openflow.Options{Handshake: 10 * time.Second})
	return err
}

func (h *hostile) refused(err error, words string) string {
	h.t.Helper()
	if err == nil {
		h.t.Error("it was let in")
	}
	return h.saw("SwitchRefused", words)
}

func (h *hostile) refusedTLS(i identity, words string) string {
	h.t.Helper()
	c, err := h.dialTLS(i)
	if err == nil {
		c.Close()
		h.t.Error("the handshake succeeds")
	}
	// Of one address an event comes once a minute: what is refused is refused in any case.
	return "TLS: " + words
}

// foreign is a certificate by an authority of somebody else's for the right datapath id.
func (h *hostile) foreign() identity {
	h.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		h.t.Fatal(err)
	}
	t := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "switch:0000000000000001", Organization: []string{"weir:switch"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		URIs: []*url.URL{{Scheme: "weir", Opaque: "datapath/0000000000000001"}}}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		h.t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		h.t.Fatal(err)
	}
	return h.files(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
}

func (h *hostile) files(cert, key []byte) identity {
	h.t.Helper()
	dir := h.t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "cert.pem"), cert, 0o600), os.WriteFile(filepath.Join(dir, "key.pem"), key, 0o600)); err != nil {
		h.t.Fatal(err)
	}
	return identity(dir)
}

// hosts is the certificate of an agent that has joined.
func (h *hostile) hosts() identity {
	h.t.Helper()
	text, err := os.ReadFile("/var/lib/weir-testbed/" + h.name + "/nfv1/agent.pem")
	if err != nil {
		h.t.Fatal(err)
	}
	return h.files(text, text)
}

func (h *hostile) expired() string {
	h.t.Helper()
	i := h.certify([]string{hostileDPID}, "--life", "1s")
	h.await("the certificate has expired", func() (bool, string) {
		c, err := h.dialTLS(i)
		if err == nil {
			c.Close()
		}
		return err != nil, "it is accepted"
	})
	return "TLS: certificate expired"
}

// revoked ends the connection that uses the certificate, and refuses the next.
func (h *hostile) revoked() string {
	h.t.Helper()
	i := h.certify([]string{"67"})
	p, err := h.puppet(i, fake.Config{DatapathID: 0x67}, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	h.end = append(h.end, p.stop)
	h.await("it is connected", func() (bool, string) {
		s, err := h.client.Switches().Get(h.ctx, "of-0000000000000067")
		return err == nil && s.Status.State == "connected", fmt.Sprint(err)
	})
	h.must("switch", "revoke", "67")
	h.hungUp(p)
	if c, err := h.dialTLS(i); err == nil {
		c.Close()
		h.t.Error("a revoked certificate is accepted again")
	}
	return h.saw("SwitchRefused", "certificate was revoked")
}

// endless opens connections that say nothing, in plain and after TLS, while a real switch has to come back.
func (h *hostile) endless() string {
	h.t.Helper()
	var held []net.Conn
	defer func() {
		for _, c := range held {
			c.Close()
		}
	}()
	for range 400 {
		if c, err := h.dialOpenFlow(); err == nil {
			held = append(held, c)
		}
	}
	for range 30 {
		if c, err := h.dialTLS(h.id); err == nil {
			held = append(held, c)
		}
	}
	before := h.fabricSwitch("s1").Status.Address
	h.vsctl("set", "controller", "s1", "inactivity_probe=5001") // nothing new: it only shows that the switch can be configured
	h.vsctl("del-controller", "s1")
	h.vsctl("set-controller", "s1", "ssl:100.64.0.1:6653", "--", "set", "controller", "s1", "connection_mode=out-of-band", "max_backoff=1000", "inactivity_probe=5000")
	h.await("s1 connects beside 400 silent connections from its own address", func() (bool, string) {
		s := h.fabricSwitch("s1").Status
		return s.State == "connected" && s.Address != before, string(s.State) + " " + s.Address
	})
	return "places and rate by address, 5 s for TLS, 10 s for OpenFlow"
}

// raw says octets as an admitted switch, which is then no switch any more.
func (h *hostile) raw(b []byte) string {
	h.t.Helper()
	p := h.admitted(nil)
	_ = p.say(b)
	h.hungUp(p)
	return "it is disconnected"
}

// endlessList answers the question for its entries without an end.
func (h *hostile) endlessList() string {
	h.t.Helper()
	p := h.connect(fake.Config{DatapathID: 0x66, Ports: []openflow.Port{1}}, func(up bool, m []byte) [][]byte {
		if !up || openflow.Type(m[1]) != openflow.TypeMultipartReply || m[9] != 1 {
			return [][]byte{m}
		}
		list := openflow.FlowStatsReply{}
		for i := range 600 {
			list = append(list, openflow.FlowStats{Priority: uint16(i), Cookie: 0x5700 << 48, Match: openflow.Match{openflow.InPort(1)}})
		}
		part, err := openflow.Append(nil, xid(m), &openflow.MultipartReply{More: true, Body: list})
		if err != nil {
			return nil
		}
		out := make([][]byte, 2048)
		for i := range out {
			out[i] = part
		}
		return out
	})
	h.hungUp(p)
	return "32 MiB of one answer are read"
}

// storm says many messages as an admitted switch; it goes on while the others' policy is changed.
func (h *hostile) storm(n int, at func(int) openflow.Message, stopped string) string {
	h.t.Helper()
	p := h.admitted(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = p.storm(n, at)
	}()
	h.end = append([]func(){func() { p.stop(); <-done }}, h.end...)
	return stopped
}
