package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/openflow/lldp"
	"weir.dev/weir/router"
	"weir.dev/weir/router/discovery"
	"weir.dev/weir/router/fabric"
)

// tell reports how things are, if that has changed.
func (l *loop) tell(now time.Time) {
	if !l.status || now.Sub(l.told) < tellEvery {
		return
	}
	l.status, l.told = false, now
	at := map[discovery.Seat][]string{}
	for _, s := range l.net.Stations.Sorted() {
		at[s.At] = append(at[s.At], s.Text())
	}
	for _, d := range l.switches {
		if !d.Remembered {
			l.reports.device(d.Name, l.deviceStatus(d, at))
		}
	}
	if l.rounds == 0 {
		return
	}
	for name := range l.out.Paths.All() {
		_, there := l.intent.policies[name] // else it is on its way out
		if v, ok := l.policies[name]; ok && there {
			l.reports.policy(name, l.policyStatus(name, v.Generation))
		}
	}
	l.reports.keepPolicies(l.out.Paths)
	for name, p := range l.intent.policies {
		if p.Deleting != nil && p.Placement.Routed() && l.out.Paths.Of(name) == nil { // nothing of it is wanted any more
			l.reports.policy(name, api.PolicyStatus{ObservedGeneration: p.Generation, State: api.PolicyDeleted})
		}
	}
	for name, e := range l.intent.endpoints {
		if !onHost(e) {
			l.reports.endpoint(name, l.endpointStatus(e))
		}
	}
}

func (l *loop) deviceStatus(d *device, stations map[discovery.Seat][]string) api.SwitchStatus {
	s := api.SwitchStatus{
		State: api.SwitchConnected, Message: cmp.Or(d.message, d.shortage()), DatapathID: fmt.Sprintf("%016x", d.DPID), Address: d.address, Version: "OpenFlow 1.3", Product: d.product,
		Since: d.since.UTC(), Rules: len(d.node.Held),
	}
	if d.session == nil {
		s.State = api.SwitchLost
	} else {
		s.Bundles, s.Certificate = d.session.bundles, d.session.key
		if d.session.cert != nil {
			s.CertificateExpires = d.session.cert.NotAfter
		}
	}
	s.Ports = l.net.Status(&d.Switch, stations)
	count := map[uint8]int{}
	for k := range d.node.Held {
		count[k.Table]++
	}
	for _, t := range d.tables {
		if t.id > 1 && count[t.id] == 0 {
			continue
		}
		s.Tables = append(s.Tables, d.use(t, count[t.id]))
	}
	return s
}

// use of a table.
func (c *capacity) use(t table, rules int) api.SwitchTable {
	out := api.SwitchTable{ID: t.id, Name: t.name, Rules: rules, Size: t.size}
	if shown := c.full[t.id]; shown > 0 {
		out.Size = shown
	}
	for _, s := range c.short {
		if s.Table == t.id {
			out.Needs, out.LeftOut = s.Needs, s.LeftOut
		}
	}
	return out
}

// shortage tells which tables are too small for default forwarding, "" none.
func (c *capacity) shortage() string {
	var all []string
	for _, s := range c.short {
		all = append(all, s.String())
	}
	return strings.Join(all, "; ")
}

// tellShort notes which tables are too small for default forwarding, before the switch shows it by refusing entries.
func (l *loop) tellShort(short map[fabric.SwitchID][]fabric.Short) {
	for _, d := range l.devices() {
		now := short[d.ID]
		if slices.Equal(now, d.short) {
			continue
		}
		was := len(d.short)
		d.short = now
		switch {
		case len(now) == 0:
			l.event(api.Info, "TableLargeEnough", api.KindSwitch, d.Name, fmt.Sprintf("the tables of %s hold the entries of all stations again", d.Name), 0)
		case was == 0 || l.damp("short "+d.Name):
			l.event(api.Warning, "TableTooSmall", api.KindSwitch, d.Name, fmt.Sprintf("switch %s: %s", d.Name, d.shortage()), 0)
		}
	}
}

func (l *loop) policyStatus(name string, generation int64) api.PolicyStatus {
	var path fabric.Path
	if p := l.out.Paths.Of(name); p != nil {
		path = *p
	}
	s := api.PolicyStatus{ObservedGeneration: generation, State: api.PolicyActive, RenderedPath: path.Forward, RenderedReverse: path.Reverse, Rules: path.Rules, InForce: l.inForce[name]}
	p := l.last.Progress[name]
	switch err := l.errors[name]; {
	case err != nil && len(path.Forward) > 0 && (p == nil || p.Done()): // in force without some of its functions
		s.Message = err.Error()
		reason := api.ReasonUnfit
		if isNotReady(err) {
			reason = api.ReasonWaiting
		}
		s.Conditions = api.Conditions{{Type: api.ConditionPartial, Reason: reason, Message: s.Message}}
	case err != nil && isNotReady(err):
		s.State, s.Message = api.PolicyPending, err.Error()
		s.Note(l.passage(name, err), api.ReasonWaiting)
	case err != nil:
		s.State, s.Message = api.PolicyError, err.Error()
		s.Note(l.passage(name, err), api.ReasonRefused)
	case p == nil || p.Done():
	case p.Refused != nil:
		s.State, s.Message = api.PolicyError, p.Refused.Error()
	case l.steady[name]: // what is not in force yet does the same without a tag
	default:
		s.State, s.Message = api.PolicyPending, "being installed"
		if p.WaitsFor != "" {
			s.Message = "waits for " + l.waiting(p.WaitsFor)
		}
		if l.stillOpen(name) {
			s.Note(api.ConditionOpen, api.ReasonWaiting)
		}
	}
	if text := l.unselected(name); text != "" && s.State == api.PolicyActive && s.Message == "" {
		s.Message, s.Conditions = text, api.Conditions{{Type: api.ConditionUnselected, Reason: api.ReasonRewrites, Message: text}}
	}
	return s
}

// unselected says what a policy may not select across hosts, "" if it selects all. The frames of an endpoint are known by its addresses there, and a function
// may have given packets others. On one host, and everywhere if the policy is exhaustive, it takes all that enters or leaves by the endpoint's port.
func (l *loop) unselected(name string) string {
	p := l.intent.policies[name].Spec
	end := "from: " + p.From
	s, err := api.ParseSelector(p.From)
	if err == nil && s.Kind != api.SelectEndpoint {
		end = "to: " + p.To
		s, err = api.ParseSelector(p.To)
	}
	if err != nil || s.Kind != api.SelectEndpoint || !p.IsSymmetric() || p.ModeOrDefault() != api.ModeSelective {
		return ""
	}
	for _, h := range l.intent.chains[p.Chain].Spec.Hops() {
		rewrites := l.intent.functions[h.Function].Status.Rewrites
		if !h.Tap && (slices.Contains(rewrites, "src-ip") || slices.Contains(rewrites, "dst-ip")) {
			return fmt.Sprintf("function %s changes addresses, and across hosts a policy selects by the addresses of its endpoints: packets for other addresses, ARP and neighbour discovery may go past the chain; make the policy exhaustive (%s, mode: exhaustive, nothing else but the chain)",
				h.Function, end)
		}
	}
	return ""
}

// fresh tells of a policy that it never was in force, that a host has not steered it by itself, and that it does not fail open.
func (l *loop) fresh(name, host string) bool {
	p, there := l.intent.policies[name]
	return there && !l.inForce[name] && (p.Placement == nil || p.Placement.FormerHost != host) && !l.failsOpen(p.Spec)
}

func (l *loop) failsOpen(p api.PolicySpec) bool {
	onFail := func(function string) api.OnFail { return l.intent.functions[function].Spec.OnFail }
	return router.FailsOpen(p, l.intent.chains[p.Chain].Spec, onFail)
}

// passage is what becomes of the frames of a policy that is not in force: Closed, Open, or "" where they are meant to pass.
func (l *loop) passage(name string, err error) api.ConditionType {
	p := l.intent.policies[name].Spec
	if errors.Is(err, fabric.ErrFull) || l.failsOpen(p) && (!l.inForce[name] || p.ModeOrDefault() == api.ModeReplica) {
		return ""
	}
	if l.stillOpen(name) {
		return api.ConditionOpen
	}
	return api.ConditionClosed
}

// stillOpen tells of a policy that never was in force whether what catches its frames, or drops them, is not in force everywhere.
func (l *loop) stillOpen(name string) bool {
	p := l.last.Progress[name]
	return p != nil && p.Open > 0 && !l.inForce[name]
}

// waiting names what a policy waits for.
func (l *loop) waiting(what string) string {
	if id, _, err := lldp.ParseChassis(what); err == nil {
		if d := l.switches[id]; d != nil {
			return "switch " + d.Name + ", which is lost"
		}
	}
	if name, ok := strings.CutPrefix(what, "host "); ok {
		if p := l.Fleet.Peers[name]; p != nil && p.Message != "" {
			return fmt.Sprintf("%s: %s", what, p.Message)
		}
	}
	return what
}

func (l *loop) endpointStatus(e api.Endpoint) api.EndpointStatus {
	s := api.EndpointStatus{ObservedGeneration: e.Generation, State: api.EndpointPending}
	if e.Deleting != nil {
		s.State = api.EndpointDeleted
		return s
	}
	at := l.at[e.Name]
	d := l.deviceOf(at.At.Switch)
	if d == nil {
		why := fmt.Sprintf("no station with %s has been seen", cmp.Or(e.Spec.MAC, e.Spec.Address))
		switch {
		case e.Spec.Switch != "" && l.byName[e.Spec.Switch] == nil:
			why = fmt.Sprintf("switch %s has not connected", e.Spec.Switch)
		case e.Spec.Switch != "":
			why = fmt.Sprintf("port %s of switch %s is not there, not up, or no edge port", e.Spec.SwitchPort, e.Spec.Switch)
		}
		s.Say(api.Condition{Type: api.ConditionWaiting, Reason: api.ReasonWaiting, Message: why})
		return s
	}
	s.State, s.Port, s.Link = api.EndpointUp, uint32(at.At.Port.Number), fmt.Sprintf("%s:%d", d.Name, at.At.Port.Number)
	if len(at.MACs) > 0 {
		s.MAC = at.MACs[0].String()
	}
	if router.Guard(e.Spec, flow.MAC{}).On && !l.secures(d) {
		s.Message = fmt.Sprintf("port security is not in force: switch %s (%s) cannot look at frames before all else; want Open vSwitch, with Weir's own forwarding", d.Name, d.product)
	}
	return s
}

func (c *Controller) progress(l *loop, now time.Time, pending int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.watch) == 0 {
		return
	}
	p := Progress{At: now, Links: len(l.net.Links), Pending: pending, Round: l.rounds}
	for _, d := range l.switches {
		if d.session != nil {
			p.Switches++
		}
		p.Entries += len(d.node.Held)
	}
	for name := range l.Fleet.Paths.All() {
		if x := l.last.Progress[name]; x == nil || x.Done() {
			p.Policies++
		}
	}
	for _, w := range c.watch {
		select {
		case w <- p:
		default:
		}
	}
}

// remember reads what the router had reported in an earlier life, so that it starts from the network as it was, not from none.
func (l *loop) remember(ctx context.Context) error {
	list, err := l.o.API.Switches().List(ctx, api.ListOptions{})
	for wait := retryMin; err != nil; wait = min(2*wait, retryMax/6) {
		l.log.Warn("read switches", "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		list, err = l.o.API.Switches().List(ctx, api.ListOptions{})
	}
	// First all switches, then their ports: a link needs the switches at both ends.
	now := l.o.Now()
	for _, s := range list.Items {
		id, err := strconv.ParseUint(s.Status.DatapathID, 16, 64)
		if err != nil || l.switches[id] != nil || now.Sub(s.Status.Since) > forgetAfter && s.Status.State != api.SwitchConnected {
			l.reports.gone(s.Name)
			continue
		}
		d := l.newDevice(id, "")
		delete(l.byName, d.Name)
		d.Name = s.Name
		l.byName[d.Name] = d
		d.Remembered = s.Status.State == api.SwitchConnected
		d.since, d.product, d.address = now, s.Status.Product, s.Status.Address
		if !d.Remembered {
			d.since = s.Status.Since
		}
		for _, t := range s.Status.Tables {
			d.tables = append(d.tables, table{t.ID, t.Name, t.Size})
		}
	}
	byName := make(map[string]*discovery.Switch, len(l.byName))
	for name, d := range l.byName {
		byName[name] = &d.Switch
	}
	for _, s := range list.Items {
		if d := byName[s.Name]; d != nil {
			l.net.Recall(d, s.Status.Ports, byName, now)
		}
	}
	return nil
}
