package fabric

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/netns"

	"weir.dev/weir/e2e/rig"
)

// What is flooded follows two trees, then one since a switch turns out not to be able to tell them or to be too small, and two again, while
// an odd and an even sender flood all the time: no frame comes to anybody twice or back to its sender, ever, and soon each comes to all again.
func TestFloodsGoFromTwoTreesToOneAndBack(t *testing.T) {
	t.Parallel()
	b := newBed(t, "ring.yaml", func(text string) string { // a middleman stands between a switch and the router
		return strings.Replace(text, "manager: {}", "manager: {openflow: plain}", 1)
	})
	names := []string{"h1", "h2", "h3", "h4"}
	for _, to := range names[1:] {
		b.reach("h1", b.station(to).Addr.String())
		b.reach(to, b.station("h1").Addr.String())
	}
	b.trees(2)
	b.floodsOnce(names)

	// More stations than fit into a table that shrinks: its switch says so when it connects again.
	s := newSender(t, b.netns("h1"), "eth0")
	b.await("s2 knows the stations", func() (bool, string) {
		n := strings.Count(strings.Join(b.flows("s2"), "\n"), "priority=900,")
		for i := n; i < 44; i++ {
			hello := whoHas(net.HardwareAddr{2, 0x77, 0, 0, 0, byte(i)}, netip.AddrFrom4([4]byte{10, 0, 0, byte(100 + i)}))
			if err := s.TrySend(hello); err != nil && !errors.Is(err, unix.ENOBUFS) { // then it is lost, and another one comes
				t.Fatal(err)
			}
		}
		return n >= 44, fmt.Sprintf("%d of them", n)
	})
	t.Run("a table that becomes too small", func(t *testing.T) {
		b := b.in(t)
		b.flooding(names, func() {
			b.vsctl("--", "--id=@t", "create", "flow_table", "flow_limit=30", "overflow_policy=refuse", "--", "set", "bridge", "s2", "flow_tables:1=@t", "protocols=OpenFlow13,OpenFlow14")
			b.tells("TableTooSmall", "s2")
			b.trees(1)
			b.floodsOnce(names)
		})
	})
	t.Run("and is large enough again", func(t *testing.T) {
		b := b.in(t)
		b.flooding(names, func() {
			b.vsctl("--", "clear", "bridge", "s2", "flow_tables", "--", "set", "bridge", "s2", "protocols=OpenFlow13")
			b.trees(2)
			b.floodsOnce(names)
		})
	})

	m := b.middleman()
	t.Run("a switch that takes entries one by one", func(t *testing.T) {
		b := b.in(t)
		b.flooding(names, func() {
			b.vsctl("set-controller", "s2", "tcp:"+m.address, "--", "set", "controller", "s2", "connection_mode=out-of-band", "max_backoff=1000")
			b.await("s2 is connected anew", func() (bool, string) { return m.connections.Load() > 0, "not yet" })
			b.trees(2)
			b.floodsOnce(names)
		})
	})
	t.Run("and refuses to look at a bit of a sender's MAC", func(t *testing.T) {
		b := b.in(t)
		b.flooding(names, func() {
			m.refuse.Store(true)
			b.must("--name", b.name, "testbed", "cut", "s3:1") // all trees change
			b.tells("OneFloodTree", "s2")
			b.trees(1)
			b.floodsOnce(names)
			b.must("--name", b.name, "testbed", "heal", "s3:1")
			b.floodsOnce(names)
			b.trees(1)
		})
		if m.refused.Load() == 0 {
			t.Error("nothing was refused: this proves nothing")
		}
	})
	t.Run("and does again, to a router that asks anew", func(t *testing.T) {
		b := b.in(t)
		b.flooding(names, func() {
			m.refuse.Store(false)
			b.kill("manager")
			b.again()
			b.trees(2)
			b.floodsOnce(names)
		})
	})
}

// tells waits for an event about a switch.
func (b *bed) tells(reason, name string) {
	b.t.Helper()
	b.await(reason+" of "+name, func() (bool, string) {
		var all []string
		for _, e := range b.events() {
			if e.Reason == reason && e.Object == name {
				return true, ""
			}
			all = append(all, e.Reason+" "+e.Object)
		}
		return false, strings.Join(all, ", ")
	})
}

// trees waits until the switches flood along so many trees.
func (b *bed) trees(want int) {
	b.t.Helper()
	b.await(fmt.Sprintf("floods follow %d trees", want), func() (bool, string) {
		differ, detail := false, ""
		for _, s := range []string{"s1", "s2", "s3", "s4"} {
			does := map[bool]string{} // by whether it is for odd senders
			for _, f := range b.flows(s) {
				if number(inTable, f) == 1 && number(ofPriority, f) <= 1 {
					does[strings.Contains(f, "dl_src=00:00:00:00:00:01/00:00:00:00:00:01")] = f[strings.Index(f, "actions=")+len("actions="):]
				}
			}
			if does[false] == "" {
				return false, s + " does not flood"
			}
			differ = differ || does[true] != "" && does[true] != does[false]
			detail += fmt.Sprintf("%s: all %s, odd %s; ", s, does[false], does[true])
		}
		return differ == (want == 2), detail
	})
}

const floodEvery = 5 * time.Millisecond

// flooding does something while an odd and an even sender flood frames, and judges what has come of these.
func (b *bed) flooding(names []string, do func()) {
	b.t.Helper()
	captures := map[string]*rig.Capture{}
	for _, n := range names {
		captures[n] = listen(b.t, b.netns(n), "eth0")
	}
	stop := make(chan struct{})
	changes := b.changes()
	sent := map[string]*atomic.Int64{}
	var sending sync.WaitGroup
	for _, from := range names[:2] {
		s, me, n := newSender(b.t, b.netns(from), "eth0"), b.station(from), &atomic.Int64{}
		sent[from] = n
		sending.Go(func() {
			tick := time.NewTicker(floodEvery)
			defer tick.Stop()
			for {
				select {
				case <-stop:
					return
				case <-tick.C:
					p := rig.Packet{Proto: unix.IPPROTO_UDP, Src: 1, Dst: 2, TTL: 64, Payload: fmt.Sprintf("<%s/%d>", from, n.Load())}
					err := s.TrySend(p.Bytes(me, rig.Station{MAC: net.HardwareAddr{255, 255, 255, 255, 255, 255}, Addr: netip.MustParseAddr("10.0.0.255")}))
					if errors.Is(err, unix.ENOBUFS) {
						continue // a queue of this machine was full: it is not sent
					}
					if err != nil {
						b.t.Errorf("send from %s: %v", from, err)
						return
					}
					n.Add(1)
				}
			}
		})
	}
	end := sync.OnceFunc(func() {
		close(stop)
		sending.Wait()
	})
	defer end() // also where do ends the test
	b.await("floods arrive", func() (bool, string) {
		for _, from := range names[:2] {
			if sent[from].Load() < 20 {
				return false, "just begun"
			}
		}
		return true, ""
	})
	do()
	end()
	b.await("the last floods arrive", func() (bool, string) {
		for _, from := range names[:2] {
			for _, to := range names {
				if last := fmt.Sprintf("<%s/%d>", from, sent[from].Load()-1); to != from && len(captures[to].Incoming(last)) == 0 {
					return false, to + " has not got " + last
				}
			}
		}
		return true, ""
	})
	changed := changes()
	defer func() {
		if b.t.Failed() { // the switches' entries as they came and went, and the copies that were too many
			b.t.Logf("%s", strings.Join(changed, "\n"))
		}
	}()
	for _, to := range names {
		got := map[string]int{}
		for _, f := range captures[to].Seen() {
			if p := rig.PayloadOf(f.Data); !f.Outgoing && p != "" {
				if got[p]++; got[p] == 2 {
					changed = append(changed, f.At.Format("15:04:05.000 ")+to+" gets "+p+" again")
				}
			}
		}
		for _, from := range names[:2] {
			lost, run, longest, twice := 0, 0, 0, 0
			for i := range sent[from].Load() {
				switch n := got[fmt.Sprintf("<%s/%d>", from, i)]; {
				case from == to && n > 0:
					b.t.Errorf("flood %d of %s comes back to it, %d times", i, from, n)
				case n > 1:
					twice++
					b.t.Errorf("flood %d of %s comes to %s %d times", i, from, to, n)
				case from != to && n == 0:
					lost++
					run++
				default:
					run = 0
				}
				if longest = max(longest, run); twice > 10 {
					b.t.Fatal("and so on")
				}
			}
			if from != to {
				b.t.Logf("%s to %s: %d of %d lost, %d in a row", from, to, lost, sent[from].Load(), longest)
				b.within(time.Duration(longest)*floodEvery, linkHeals)
			}
		}
	}
}

// whoHas is an ARP request by which a station makes itself known (RFC 826).
func whoHas(mac net.HardwareAddr, ip netip.Addr) []byte {
	b := slices.Concat(net.HardwareAddr{255, 255, 255, 255, 255, 255}, mac, []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 1}, mac, ip.AsSlice(), make([]byte, 6), ip.AsSlice())
	return append(b, make([]byte, 60-len(b))...)
}

// middleman stands between a switch and the router: a switch that knows no bundles, and refuses what it is told to.
type middleman struct {
	bed         *bed
	address     string // where it listens
	router      string
	connections atomic.Int32
	refuse      atomic.Bool // entries that look at a part of a sender's MAC
	refused     atomic.Int32
}

// Of OpenFlow 1.3.5 and the extension for bundles (EXT-230).
const (
	ofError, ofExperimenter, ofFlowMod = 1, 4, 14
	onfExperimenter, onfBundleControl  = 0x4f4e4600, 2300
	ofHeader                           = 8
)

func (b *bed) middleman() *middleman {
	b.t.Helper()
	m := &middleman{bed: b, router: net.JoinHostPort(b.node("manager").Address, "6653")}
	var l net.Listener
	err := netns.Do(b.netns("ovs"), func() (err error) {
		l, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	m.address = l.Addr().String()
	var open sync.WaitGroup
	var mu sync.Mutex
	all := []io.Closer{l}
	b.t.Cleanup(func() {
		mu.Lock()
		for _, c := range all {
			c.Close()
		}
		mu.Unlock()
		open.Wait()
	})
	open.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			mu.Lock()
			all = append(all, c)
			mu.Unlock()
			open.Go(func() { m.serve(c) })
		}
	})
	return m
}

// serve joins a switch with the router until either goes.
func (m *middleman) serve(sw net.Conn) {
	defer sw.Close()
	var router net.Conn
	err := netns.Do(m.bed.netns("ovs"), func() (err error) {
		router, err = net.DialTimeout("tcp", m.router, 5*time.Second)
		return err
	})
	if err != nil {
		return // the switch tries again
	}
	defer router.Close()
	m.connections.Add(1)
	var mu sync.Mutex // of what is written to the router
	toRouter := func(message []byte) error {
		mu.Lock()
		defer mu.Unlock()
		_, err := router.Write(message)
		return err
	}
	var both sync.WaitGroup
	both.Go(func() {
		defer router.Close()
		each(sw, toRouter)
	})
	each(router, func(message []byte) error {
		if kind, code := m.objects(message); kind != 0 {
			return toRouter(refusalOf(message, kind, code))
		}
		_, err := sw.Write(message)
		return err
	})
	sw.Close()
	both.Wait()
}

// each hands over the messages of a connection, one by one.
func each(from io.Reader, do func(message []byte) error) {
	for {
		head := make([]byte, ofHeader)
		if _, err := io.ReadFull(from, head); err != nil {
			return
		}
		rest := make([]byte, max(0, int(binary.BigEndian.Uint16(head[2:]))-ofHeader))
		if _, err := io.ReadFull(from, rest); err != nil || do(append(head, rest...)) != nil {
			return
		}
	}
}

// objects tells by which error a message is refused; 0 not at all.
func (m *middleman) objects(message []byte) (kind, code uint16) {
	const badRequest, badExperimenter, badMatch, badAddressMask = 1, 3, 4, 5
	switch {
	case message[1] == ofExperimenter && len(message) >= 16 && binary.BigEndian.Uint32(message[8:]) == onfExperimenter && binary.BigEndian.Uint32(message[12:]) == onfBundleControl:
		return badRequest, badExperimenter
	case message[1] == ofFlowMod && m.refuse.Load() && message[25] < 3 && bytes.Contains(message, []byte{0x80, 0x00, 4<<1 | 1, 12}): // adds or changes; OXM_OF_ETH_SRC_W
		m.refused.Add(1)
		return badMatch, badAddressMask
	}
	return 0, 0
}

// refusalOf is the error message about another one.
func refusalOf(message []byte, kind, code uint16) []byte {
	data := message[:min(64, len(message))]
	b := []byte{message[0], ofError}
	b = binary.BigEndian.AppendUint16(b, uint16(ofHeader+4+len(data)))
	b = append(b, message[4:8]...)
	b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, kind), code)
	return append(b, data...)
}
