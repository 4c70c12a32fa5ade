package control

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
	"weir.dev/weir/manager/managertest"
	"weir.dev/weir/openflow"
	"weir.dev/weir/openflow/fake"
	"weir.dev/weir/store/mem"
)

// from is a connection of an address that tells when it was closed.
type from struct {
	net.Conn
	address string
	closed  bool
}

func (c *from) RemoteAddr() net.Addr {
	a, _ := net.ResolveTCPAddr("tcp", c.address)
	return a
}

func (c *from) Close() error {
	c.closed = true
	return nil
}

// One address cannot take the places of others, neither in handshake nor by how often it connects.
func TestTheDoorBoundsAnAddress(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	d := newDoor(func() time.Time { return now })
	var leaves []func()
	for i := range maxOpeningAddress {
		leave, err := d.enter(&from{address: fmt.Sprint("10.0.0.1:", i+1)})
		if err != nil {
			t.Fatal(err)
		}
		leaves = append(leaves, leave)
	}
	if _, err := d.enter(&from{address: "10.0.0.1:9999"}); err == nil {
		t.Error("an address takes more than its places")
	}
	if _, err := d.enter(&from{address: "10.0.0.2:1"}); err != nil {
		t.Errorf("another address: %v", err)
	}
	leaves[0]()
	leaves[0]() // safe to call twice
	if _, err := d.enter(&from{address: "10.0.0.1:9999"}); err != nil {
		t.Errorf("after one has left: %v", err)
	}

	d = newDoor(func() time.Time { return now })
	refused := 0
	for range 2 * acceptBurst {
		leave, err := d.enter(&from{address: "10.0.0.1:1"})
		if err != nil {
			refused++
			continue
		}
		leave()
	}
	if refused != acceptBurst {
		t.Errorf("%d of %d connections at once are refused: want %d", refused, 2*acceptBurst, acceptBurst)
	}
	now = now.Add(time.Second)
	if _, err := d.enter(&from{address: "10.0.0.1:1"}); err != nil {
		t.Errorf("a second later: %v", err)
	}
}

// When all places are taken from many addresses, the one that has most loses its oldest.
func TestAFullDoorTakesFromWhoHasMost(t *testing.T) {
	t.Parallel()
	d := newDoor(time.Now)
	var greedy []*from
	for i := range maxOpening {
		c := &from{address: fmt.Sprintf("10.0.%d.1:1", i)}
		if i < 10 {
			c.address = "10.9.9.9:1"
			greedy = append(greedy, c)
		}
		if _, err := d.enter(c); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.enter(&from{address: "10.8.8.8:1"}); err != nil {
		t.Fatal(err)
	}
	if !greedy[0].closed || greedy[1].closed {
		t.Errorf("closed: the oldest %t, the next %t", greedy[0].closed, greedy[1].closed)
	}
}

// One address without certificates does not take all places of switches, and a known switch comes back whatever others do.
func TestAKnownSwitchAlwaysFindsAPlace(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{MaxSwitches: 3, MaxPerAddress: 2, Names: map[uint64]string{1: "s1", 2: "s2", 3: "s3"}})
	s1, s2 := fake.New(fake.Config{DatapathID: 1}), fake.New(fake.Config{DatapathID: 2})
	r.dial(s1)
	r.waitSwitch("s1", "connected")
	r.dial(s2)
	r.waitSwitch("s2", "connected")
	r.dial(fake.New(fake.Config{DatapathID: 3}))
	r.waitEvent("SwitchRefused", "2 switches without a certificate come from")
	s1.Disconnect()
	r.waitEvent("SwitchLost", "s1")
	r.waitSwitch("s1", "connected")
}

func (r *rig) waitSwitch(name, state string) {
	r.t.Helper()
	eventually(r.t, name+" is "+state, func() string {
		if s := r.switches()[name].Status; string(s.State) != state {
			return fmt.Sprintf("%+v", s)
		}
		return ""
	})
}

// presents is a switch's certificate.
func presents(t *testing.T, c *api.Client, dpids ...string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	a, err := c.NewSwitchCertificate(context.Background(), api.SwitchCertificateRequest{DatapathIDs: dpids, Request: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))})
	if err != nil {
		t.Fatal(err)
	}
	b, _ := pem.Decode([]byte(a.Certificate))
	return tls.Certificate{Certificate: [][]byte{b.Bytes}, PrivateKey: key}
}

// A switch is the one that its certificate names. What has connected is disconnected when the certificate is revoked, and stays when the
// state cannot be read.
func TestASwitchIsWhatItsCertificateSays(t *testing.T) {
	t.Parallel()
	broken := make(chan struct{})
	m, err := manager.New(manager.Options{Store: mem.New()})
	if err != nil {
		t.Fatal(err)
	}
	config, err := m.Switches.ForSwitches(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, Options{TLS: config, Names: map[uint64]string{1: "s1"}, Certify: func(ctx context.Context, c *x509.Certificate) ([]uint64, error) {
		select {
		case <-broken:
			return nil, fmt.Errorf("%w: no quorum", ErrUndecided)
		default:
			return m.Switches.SwitchIDs(ctx, c)
		}
	}})
	dir := t.TempDir()
	managertest.Serve(t, m, manager.ServeOptions{Socket: dir + "/s"})
	ctx := t.Context()
	client, err := api.Dial(api.Options{Socket: dir + "/s"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)

	cert := presents(t, client, "1")
	first := switchOverTLS(t, r.address, cert, 1)
	r.waitSwitch("s1", "connected")
	if id := r.switches()["s1"].Status.Certificate; len(id) != 16 {
		t.Errorf("certificate %q", id)
	}
	other := switchOverTLS(t, r.address, presents(t, client, "2"), 1)
	r.waitEvent("SwitchRefused", "claims the datapath id 0000000000000001")
	<-other

	close(broken)
	select {
	case <-first:
		t.Fatal("a switch is disconnected because the state cannot be read")
	case <-time.After(2 * certifyEvery):
	}
	broken = make(chan struct{})
	list, err := client.SwitchCertificates(ctx)
	if err != nil || len(list) != 2 {
		t.Fatal(list, err)
	}
	for _, x := range list {
		if err := client.RevokeSwitchCertificate(ctx, x.ID); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-first:
	case <-time.After(patience):
		t.Fatal("a switch whose certificate is revoked stays connected")
	}
	r.waitEvent("SwitchRefused", "revoked")
	nc, err := tls.Dial("tcp", r.address, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{cert}, MaxVersion: tls.VersionTLS12})
	if err == nil {
		nc.Close()
		t.Error("a revoked certificate is accepted")
	}
}

// switchOverTLS connects a switch in memory; the channel is closed when the router hung up.
func switchOverTLS(t *testing.T, address string, cert tls.Certificate, dpid uint64) <-chan struct{} {
	t.Helper()
	nc, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{cert}, MaxVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	own := fake.New(fake.Config{DatapathID: dpid}).Pipe(ctx)
	gone, back := make(chan struct{}), make(chan struct{})
	copyAll := func(to, from net.Conn, ended chan struct{}) {
		defer close(ended)
		b := make([]byte, 1<<16)
		for {
			n, err := from.Read(b)
			if n > 0 {
				if _, err := to.Write(b[:n]); err != nil {
					break
				}
			}
			if err != nil {
				break
			}
		}
		to.Close()
	}
	go copyAll(own, nc, gone)
	go copyAll(nc, own, back)
	t.Cleanup(func() { cancel(); nc.Close(); own.Close(); <-gone; <-back })
	return gone
}

// A switch that tells of many changes of its ports has them read instead: each change would have the rules computed.
func TestAStormOfPortChangesIsBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{Names: map[uint64]string{1: "s1"}})
	s := fake.New(fake.Config{DatapathID: 1, Ports: ports(3)})
	r.dial(s)
	r.waitEdge("s1", 1)
	for i := range 4 * portBurst { // fewer than may wait in a connection's queue: a switch that sends more while nobody reads is disconnected
		s.SetLink(openflow.Port(2+i%2), i%4 < 2)
	}
	s.SetLink(2, false)
	s.SetLink(3, true)
	r.waitEvent("PortFlapping", "read once a second")
	eventually(t, "the ports are as they are at last", func() string {
		if a, b := r.port("s1", 2).State, r.port("s1", 3); a != "down" || b.State == "" {
			return fmt.Sprint(a, b)
		}
		return ""
	})
}
