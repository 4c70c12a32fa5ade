package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
	"weir.dev/weir/netns"
	"weir.dev/weir/openflow/lldp"
)

// uplink is an interface into the fabric.
type uplink struct {
	port flow.Port // 0: not in the switch
	err  string    // as logged
}

// Timings of link discovery (IEEE 802.1AB-2016, 9.2.5: fast).
const (
	lldpEvery   = time.Second
	lldpTTL     = 3 // seconds
	configEvery = time.Minute
	// The router takes frames of a host that it does not know for forged: the manager's word has to reach it first, if it can.
	introduced  = 100 * time.Millisecond
	introduceIn = 3 * time.Second
)

// syncUplink makes the uplink a port of the switch. It reports false if that needs another try.
func (a *Agent) syncUplink(ctx context.Context) bool {
	if a.Uplink == "" {
		return true
	}
	port, err := a.Switch.AddEndpoint(ctx, datapath.Endpoint{Name: "uplink/" + a.Uplink, Link: a.Uplink, Fabric: true})
	if err == nil {
		a.uplink = uplink{port: port}
		return true
	}
	if a.uplink.err != err.Error() {
		a.uplink.err = err.Error()
		a.Log.Warn("uplink", "interface", a.Uplink, "error", err)
		a.report.event(api.Event{Severity: api.Error, Reason: "UplinkFailed", Kind: api.KindHost, Object: a.Host, Message: err.Error()})
	}
	return false
}

// fabricPort reads the switch's name of a port into the fabric: "endpoint/uplink/eth1" is ("uplink", "eth1").
func fabricPort(object string) (kind, name string, ok bool) {
	rest, isEndpoint := strings.CutPrefix(object, "endpoint/")
	kind, name, cut := strings.Cut(rest, "/")
	return kind, name, isEndpoint && cut && (kind == "uplink" || kind == "tunnel")
}

// uplinkState is for the host's status.
func (a *Agent) uplinkState() []api.Uplink {
	if a.Uplink == "" {
		return nil
	}
	s := api.Uplink{Interface: a.Uplink, State: "down"}
	if host, err := netns.At(""); err == nil {
		defer host.Close()
		if l, err := host.Link(a.Uplink); err == nil {
			s.MAC = flow.MAC(l.MAC).String()
			if l.Up && l.Carrier {
				s.State = api.LinkUp
			}
		}
	}
	return []api.Uplink{s}
}

// common keeps what all hosts have in common, as the manager last told it.
type common struct {
	mu     sync.Mutex
	config api.AgentConfig
	skew   time.Duration // this host's clock minus the manager's
}

func (c *common) get() (api.AgentConfig, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.config, c.skew
}

// followConfig asks for the common configuration until ctx ends; without a manager the last answer holds.
func (a *Agent) followConfig(ctx context.Context) {
	wait, told := time.Duration(0), false
	for sleep(ctx, wait) {
		quick, cancel := context.WithTimeout(ctx, 5*time.Second)
		before := a.Now()
		c, err := a.Config(quick)
		cancel()
		if err != nil {
			if !told && ctx.Err() == nil {
				told = true
				a.Log.Warn("configuration of agents", "error", err)
			}
			wait = min(max(2*wait, 100*time.Millisecond), 5*time.Second)
			continue
		}
		wait, told = configEvery, false
		a.common.mu.Lock()
		a.common.config = c
		if !c.Time.IsZero() {
			a.common.skew = before.Add(a.Now().Sub(before) / 2).Sub(c.Time)
		}
		a.common.mu.Unlock()
		a.linkNews()
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// discover sends signed LLDP frames out of the uplink until ctx ends, so that the router finds this host.
func (a *Agent) discover(ctx context.Context) {
	var sequence lldp.Sequence
	out, err := openPacketSocket()
	if err != nil {
		a.Log.Error("link discovery", "error", err)
		return
	}
	defer out.Close()
	host, err := netns.At("")
	if err != nil {
		a.Log.Error("link discovery", "error", err)
		return
	}
	defer host.Close()
	select {
	case <-a.report.hostTold:
	case <-time.After(introduceIn):
	case <-ctx.Done():
		return
	}
	if !sleep(ctx, introduced) {
		return
	}
	failed := ""
	tick := time.NewTicker(lldpEvery)
	defer tick.Stop()
	for wait := false; ; wait = true {
		if wait {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			case <-a.hurry: // the link came up, or the key arrived
			}
		}
		config, _ := a.common.get()
		if len(config.LLDPKey) == 0 {
			continue
		}
		text := ""
		if err := a.sayHello(host, out, config.LLDPKey, sequence.Next(a.Now())); err != nil {
			if text = err.Error(); text != failed {
				a.Log.Warn("link discovery", "interface", a.Uplink, "error", err)
			}
		}
		failed = text
	}
}

func (a *Agent) sayHello(host *netns.Space, out *os.File, key []byte, sequence uint64) error {
	l, err := host.Link(a.Uplink)
	if err != nil {
		return err
	}
	if !l.Up || !l.Carrier {
		return nil
	}
	frame, err := lldp.Encode(lldp.Frame{Source: l.MAC, Chassis: lldp.HostChassis(a.Host), Port: a.Uplink, TTL: lldpTTL, Sequence: sequence}, key)
	if err != nil {
		return err
	}
	return sendFrame(out, l.Index, frame)
}

// openPacketSocket gives a socket that sends frames past qdiscs and tc programs, and receives nothing.
func openPacketSocket() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("packet socket: bypass qdiscs: %w", err)
	}
	return os.NewFile(uintptr(fd), "link discovery"), nil
}

func sendFrame(f *os.File, index int, frame []byte) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = c.Control(func(fd uintptr) {
		sent = unix.Sendto(int(fd), frame, 0, &unix.SockaddrLinklayer{Ifindex: index})
	})
	if errors.Is(sent, unix.ENOBUFS) || errors.Is(sent, unix.EAGAIN) { // the device is busy: the next one is near
		sent = nil
	}
	return errors.Join(err, sent)
}

// watchLinks follows the host's interfaces until ctx ends: an uplink's state is news for the router, and a function or endpoint whose link
// went is looked at now.
func (a *Agent) watchLinks(ctx context.Context) {
	for {
		err := a.watchLinksOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		a.Log.Warn("watch links", "error", err)
		if !sleep(ctx, retryAfter) {
			return
		}
	}
}

func (a *Agent) watchLinksOnce(ctx context.Context) error {
	host, err := netns.At("")
	if err != nil {
		return err
	}
	defer host.Close()
	return host.WatchLinks(ctx, func(e netns.LinkEvent) {
		if e.Lost {
			a.suspectAll()
			a.linkNews()
			return
		}
		if e.Name == a.Uplink {
			a.linkNews()
		}
		if e.Gone {
			a.wireGone(e.Name)
		}
		if e.Gone || !e.Up || !e.Carrier {
			a.suspectLink(e.Name, e.Gone)
		}
	})
}

// linkNews asks for the host's status now, and for link discovery frames.
func (a *Agent) linkNews() {
	a.news.Store(true)
	a.poke()
	select {
	case a.hurry <- struct{}{}:
	default:
	}
}

// suspectLink has the function looked at whose link this is.
func (a *Agent) suspectLink(name string, gone bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range a.functions {
		if f.hasLink(name) {
			if gone {
				f.unsure.Store(true)
			}
			f.suspected()
			return
		}
	}
}

func (a *Agent) suspectAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range a.functions {
		f.unsure.Store(true)
		f.suspected()
	}
}
