package agent

import (
	"context"
	"strings"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
	"weir.dev/weir/netns"
)

// uplinkPort is the interface into the fabric as a port of the switch.
type uplinkPort struct {
	port flow.Port // 0: not in the switch
	err  string    // as logged
}

// configEvery is how often the configuration that all hosts have in common is asked for.
const configEvery = time.Minute

// syncUplink makes the uplink a port of the switch. It reports false if that needs another try.
func (a *Agent) syncUplink(ctx context.Context) bool {
	if a.Uplink == "" {
		return true
	}
	port, err := a.Switch.AddEndpoint(ctx, datapath.Endpoint{Name: "uplink/" + a.Uplink, Link: a.Uplink, Fabric: true})
	if err == nil {
		a.uplink = uplinkPort{port: port}
		return true
	}
	if a.uplink.err != err.Error() {
		a.uplink.err = err.Error()
		a.Log.Warn("uplink", "interface", a.Uplink, "error", err)
		a.report.Event(api.Event{Severity: api.Error, Reason: "UplinkFailed", Kind: api.KindHost, Object: a.Host, Message: err.Error()})
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
	if l, err := a.Kernel.Link("", a.Uplink); err == nil {
		s.MAC = flow.MAC(l.MAC).String()
		if l.Up && l.Carrier {
			s.State = api.LinkUp
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

// lldpKey signs link discovery frames; empty: not known yet.
func (a *Agent) lldpKey() []byte {
	c, _ := a.common.get()
	return c.LLDPKey
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

// watchLinks follows the host's interfaces until ctx ends: an uplink's state is news for the router, and a function or endpoint whose link
// went is looked at now.
func (a *Agent) watchLinks(ctx context.Context) {
	for {
		err := a.Kernel.WatchLinks(ctx, a.linkChanged)
		if ctx.Err() != nil {
			return
		}
		a.Log.Warn("watch links", "error", err)
		if !sleep(ctx, retryAfter) {
			return
		}
	}
}

func (a *Agent) linkChanged(e netns.LinkEvent) {
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
