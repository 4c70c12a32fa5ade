package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"weir.dev/weir/catalogue/nf"
)

// Bounds of what alerts cause, however many there are.
const (
	packEvery   = 10 * time.Second // one event of a rule
	maxTallies  = 1000             // rules remembered at a time
	eventsAtIt  = 10               // events raised at a time; further rules share one
	linesEach   = 100              // lines of log a second
	maxText     = 200              // bytes of a rule's message
	lossesEvery = 30 * time.Second
)

// eve is a line of Suricata's.
type eve struct {
	Type    string `json:"event_type"`
	Time    string `json:"timestamp"` // of the packet
	Link    string `json:"in_iface"`  // where it came
	Source  string `json:"src_ip"`
	SPort   int    `json:"src_port"`
	Target  string `json:"dest_ip"`
	DPort   int    `json:"dest_port"`
	Proto   string `json:"proto"`
	App     string `json:"app_proto"`
	VLAN    []int  `json:"vlan"`
	FlowID  uint64 `json:"flow_id"`
	Alert   alert  `json:"alert"`
	Numbers *stats `json:"stats"`
	Verdict struct {
		Action string `json:"action"` // what becomes of the packet: alert, pass or drop
	} `json:"verdict"`
}

type alert struct {
	Action    string `json:"action"` // allowed or blocked
	SID       int64  `json:"signature_id"`
	GID       int64  `json:"gid"`
	Rev       int64  `json:"rev"`
	Signature string `json:"signature"`
	Category  string `json:"category"`
	Severity  int    `json:"severity"` // 1 is the worst
}

// stats are Suricata's counters since its start.
type stats struct {
	Capture struct {
		Packets int64 `json:"kernel_packets"`
		Drops   int64 `json:"kernel_drops"`
	} `json:"capture"`
	IPS struct {
		Accepted int64 `json:"accepted"`
		Blocked  int64 `json:"blocked"`
		Reasons  struct {
			Unread int64 `json:"applayer_error"` // a connection's packet, on which a parser gave up; what follows has another reason
		} `json:"drop_reason"`
	} `json:"ips"`
	Detect struct {
		Alert int64 `json:"alert"`
	} `json:"detect"`
	FlowBypassed struct {
		Packets int64 `json:"local_pkts"`
	} `json:"flow_bypassed"`
}

// event is what is raised.
type event struct{ severity, reason, message string }

// tally of a rule.
type tally struct {
	last   eve
	more   int       // alerts that no event told yet
	raised time.Time // when the last event was
}

// alerts packs alerts into events: the first of a rule at once, those that follow as one each packEvery.
type alerts struct {
	log    *slog.Logger
	settle func(eve) // takes the alerts of settleRules; nil: there are none

	mu       sync.Mutex
	tallies  map[string]*tally
	others   int // of rules beyond maxTallies
	garbled  int // lines that could not be read
	second   int64
	lines    int
	unlogged int
	stats    stats
	lost     int64 // told losses
	losses   time.Time
	unread   int64 // told connections
	unreadAt time.Time
	wake     chan struct{} // something waits to be raised
}

func newAlerts(log *slog.Logger) *alerts {
	return &alerts{log: log, tallies: map[string]*tally{}, wake: make(chan struct{}, 1)}
}

// take a line of Suricata's.
func (a *alerts) take(line []byte) {
	var e eve
	err := json.Unmarshal(line, &e)
	if a.settle != nil && err == nil && e.Type == "alert" && e.Alert.ours() {
		a.settle(e)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case err != nil:
		a.garbled++
	case e.Type == "stats" && e.Numbers != nil:
		a.stats = *e.Numbers
	case e.Type == "alert":
		a.count(e, time.Now())
	}
}

func (a *alerts) count(e eve, now time.Time) {
	if len(e.Alert.Signature) > maxText {
		e.Alert.Signature = strings.ToValidUTF8(e.Alert.Signature[:maxText], "") + "..."
	}
	a.write(e, now)
	key := fmt.Sprintf("%d:%d %s", e.Alert.GID, e.Alert.SID, e.Alert.Action)
	t := a.tallies[key]
	if t == nil {
		if len(a.tallies) >= maxTallies {
			a.others++
			return
		}
		t = &tally{}
		a.tallies[key] = t
	}
	t.last = e
	t.more++
	if now.Sub(t.raised) >= packEvery {
		select {
		case a.wake <- struct{}{}:
		default:
		}
	}
}

// write an alert to the log, at a bounded rate.
func (a *alerts) write(e eve, now time.Time) {
	if s := now.Unix(); s != a.second {
		a.second, a.lines = s, 0
	}
	if a.lines++; a.lines > linesEach {
		a.unlogged++
		return
	}
	a.log.Info("alert", "sid", e.Alert.SID, "rule", e.Alert.Signature, "severity", e.Alert.Severity, "action", e.Alert.Action, "proto", e.Proto, "src", e.src(), "dst", e.dst(),
		"app", e.App, "vlan", e.VLAN, "flow", e.FlowID)
}

func (e eve) src() string { return address(e.Source, e.SPort) }
func (e eve) dst() string { return address(e.Target, e.DPort) }

func address(ip string, port int) string {
	if addr := net.ParseIP(ip); addr != nil {
		ip = addr.String() // Suricata writes all zeros of IPv6
	}
	if port == 0 {
		return ip
	}
	return net.JoinHostPort(ip, strconv.Itoa(port))
}

// due are the events to raise now. A rule that was quiet for packEvery is forgotten.
func (a *alerts) due(now time.Time) (out []event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var ready []string
	for _, key := range slices.Sorted(maps.Keys(a.tallies)) {
		switch t := a.tallies[key]; {
		case now.Sub(t.raised) < packEvery:
		case t.more == 0:
			delete(a.tallies, key)
		default:
			ready = append(ready, key)
		}
	}
	slices.SortStableFunc(ready, func(x, y string) int { // the worst first
		return cmp.Compare(a.tallies[x].last.severity(), a.tallies[y].last.severity())
	})
	packed, rules := 0, 0
	for i, key := range ready {
		t := a.tallies[key]
		if i < eventsAtIt {
			out = append(out, t.event())
		} else {
			packed += t.more
			rules++
		}
		t.more, t.raised = 0, now
	}
	if packed += a.others; packed > 0 {
		out = append(out, event{"warning", "IntrusionAlerts", fmt.Sprintf("%d more alerts, of %d rules or more: weir function logs has them", packed, max(rules, 1))})
		a.others = 0
	}
	if n := a.stats.Capture.Drops - a.lost; n > 0 && now.Sub(a.losses) >= lossesEvery {
		a.lost, a.losses = a.stats.Capture.Drops, now
		out = append(out, event{"warning", "PacketsLost", fmt.Sprintf("Suricata did not keep up and lost %d packets", n)})
	}
	if n := a.stats.IPS.Reasons.Unread - a.unread; n > 0 && now.Sub(a.unreadAt) >= lossesEvery {
		a.unread, a.unreadAt = a.stats.IPS.Reasons.Unread, now
		out = append(out, event{"warning", "ConnectionsUnread", fmt.Sprintf("Suricata could not read %d connections or datagrams, and dropped them", n)})
	}
	return out
}

func (e eve) severity() int {
	if e.Alert.Severity < 1 {
		return 3
	}
	return e.Alert.Severity
}

func (t *tally) event() event {
	e := t.last
	out := event{map[int]string{1: "error", 2: "warning"}[e.severity()], "IntrusionAlert", ""}
	if out.severity == "" {
		out.severity = "info"
	}
	if e.Alert.Action == "blocked" {
		out.reason = "IntrusionBlocked"
	}
	out.message = fmt.Sprintf("sid %d %q, severity %d: %s %s -> %s", e.Alert.SID, e.Alert.Signature, e.severity(), e.Proto, e.src(), e.dst())
	if t.more > 1 {
		out.message += fmt.Sprintf(", and %d times before", t.more-1)
	}
	return out
}

// numbers are Suricata's counters, and alerts that were not logged.
func (a *alerts) numbers(n *nf.Numbers) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.stats
	n.Counter("ids_alerts_total", "Alerts of the rules.", float64(s.Detect.Alert))
	n.Counter("ids_packets_total", "Packets that Suricata has read.", float64(s.Capture.Packets))
	n.Counter("ids_lost_packets_total", "Packets that Suricata was too slow for.", float64(s.Capture.Drops))
	n.Counter("ids_blocked_packets_total", "Packets that rules dropped.", float64(s.IPS.Blocked))
	n.Counter("ids_unread_packets_total", "Packets that were dropped since Suricata could not read them.", float64(s.IPS.Reasons.Unread))
	n.Counter("ids_bypassed_packets_total", "Packets of flows that Suricata does not look at any more.", float64(s.FlowBypassed.Packets))
}

// report logs the counters.
func (a *alerts) report() {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.stats
	a.log.Info("counters", "packets", s.Capture.Packets, "lost", s.Capture.Drops, "accepted", s.IPS.Accepted, "blocked", s.IPS.Blocked, "bypassed", s.FlowBypassed.Packets, "unread", s.IPS.Reasons.Unread,
		"alerts", s.Detect.Alert, "unlogged", a.unlogged, "garbled", a.garbled)
}
