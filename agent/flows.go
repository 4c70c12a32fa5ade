package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
	"weir.dev/weir/container"
	"weir.dev/weir/datapath"
)

// maxFlowReads bounds how many tables of settled flows are read at a time: each takes some of a processor.
const maxFlowReads = 4

// Flows reads those that a function has settled, from the switch. While an instance replaces another those of both are there.
func (a *Agent) Flows(ctx context.Context, name string, o api.FlowOptions) (api.SettledFlows, error) {
	out := api.SettledFlows{Function: name, Host: a.Host, Flows: []api.SettledFlow{}}
	a.mu.Lock()
	f := a.functions[name]
	a.mu.Unlock()
	if f == nil {
		return out, fmt.Errorf("function %s: %w", name, container.ErrNotFound)
	}
	from, can := a.Switch.(datapath.Settler)
	if !can || !a.Switch.Abilities().Settles {
		return out, api.Refuse(http.StatusConflict, fmt.Sprintf("host %s: its switch %s settles no flows: function %s gets every packet", a.Host, a.SwitchName, name))
	}
	if !f.view().placed {
		return out, fmt.Errorf("function %s has no ports yet: %w", name, container.ErrState)
	}
	if a.flowReads.Add(1) > maxFlowReads {
		a.flowReads.Add(-1)
		return out, api.Refuse(http.StatusServiceUnavailable, fmt.Sprintf("host %s reads settled flows for %d others: try again", a.Host, maxFlowReads))
	}
	defer a.flowReads.Add(-1)
	out.Time = time.Now()
	settles := false
	for _, instance := range f.instances() {
		found, err := from.SettledFlows(ctx, instance, datapath.SettledQuery{Limit: o.Limit, Newest: o.Sort == api.FlowsNewest})
		switch {
		case errors.Is(err, datapath.ErrNotFound), errors.Is(err, datapath.ErrSettlesNothing): // it has gone
			continue
		case errors.Is(err, datapath.ErrFull):
			return out, api.Refuse(http.StatusConflict, err.Error())
		case err != nil:
			return out, err
		}
		settles = true
		out.Total += found.Total
		for _, flow := range found.Flows {
			out.Flows = append(out.Flows, settledFlow(flow, out.Time))
		}
	}
	if !settles {
		return out, api.Refuse(http.StatusConflict, fmt.Sprintf("function %s settles no flows: its image has no label weir.settles", name))
	}
	if o.Sort == api.FlowsNewest {
		slices.SortStableFunc(out.Flows, func(x, y api.SettledFlow) int { return y.Since.Compare(x.Since) })
	} else {
		slices.SortStableFunc(out.Flows, func(x, y api.SettledFlow) int { return cmp.Compare(y.Missed.Bytes, x.Missed.Bytes) })
	}
	out.Flows = out.Flows[:min(len(out.Flows), o.Limit)]
	return out, nil
}

// settledFlow is one as the API has it.
func settledFlow(f datapath.SettledFlow, now time.Time) api.SettledFlow {
	out := api.SettledFlow{
		Verdict: map[datapath.Verdict]api.FlowVerdict{datapath.Pass: api.FlowPass, datapath.Discard: api.FlowDrop}[f.Verdict], At: f.At,
		Protocol: map[uint8]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_ICMP: "icmp", unix.IPPROTO_ICMPV6: "icmpv6"}[f.Flow.Protocol],
		Source:   f.Flow.Src.Addr().String(), Destination: f.Flow.Dst.Addr().String(), Reply: f.Reply,
		Since: now.Add(-f.Age), IdleNs: f.Idle.Nanoseconds(), Missed: api.Counter(f.Missed), Generation: f.Generation,
	}
	switch f.Flow.Protocol {
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		id := f.Flow.Src.Port()
		out.EchoID = &id
	default:
		out.SourcePort, out.DestPort = f.Flow.Src.Port(), f.Flow.Dst.Port()
	}
	if w := f.Rewrite; w != nil {
		out.Rewrite = &api.FlowRewrite{End: "source", Address: w.To.Addr().String(), Port: w.To.Port()}
		if w.Target {
			out.Rewrite.End = "destination"
		}
		if w.MAC != [6]byte{} {
			out.Rewrite.MAC = net.HardwareAddr(w.MAC[:]).String()
		}
	}
	if f.Flow.VLAN != datapath.NoVLAN {
		out.VLAN = f.Flow.VLAN
	}
	return out
}
