package experiment

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"weir.dev/weir/lab/platform"
	"weir.dev/weir/netns"
	"weir.dev/weir/netns/ethtool"
)

// Factors of experiments with sockets.
const (
	factorCongestion = "congestion"
	factorOffload    = "offload"
	factorFlows      = "flows"
	factorMessage    = "message"
)

// Defaults of experiments with sockets. Cubic is what most systems have, and it does not pace: bbr's pacing wavers on a machine whose CPUs are
// shared. The message is iperf3's own.
const (
	DefaultCongestion = "cubic"
	defaultOffload    = "on"
	defaultFlows      = "1"
	defaultMessage    = "131072"
)

const (
	maxFlows   = 1000 // of experiments of our own
	maxMessage = 1 << 20
)

// socketFactors are those of every experiment whose ends are TCP sockets.
func socketFactors() []Factor {
	return []Factor{
		{Name: factorCongestion, About: "congestion control of both stations", Default: DefaultCongestion, Check: func(level string) error {
			if strings.TrimFunc(level, func(r rune) bool { return r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '_' }) != "" || len(level) > 15 {
				return fmt.Errorf("%q: want the kernel's name of a congestion control, for example cubic", level)
			}
			return nil
		}},
		{Name: factorOffload, About: "on: both stations' interfaces as they were made; off: no segmentation, checksums or joining of packets there (TSO, GSO, GRO)", Default: defaultOffload, Check: oneOf("on", "off")},
	}
}

// CongestionHere tells why sockets of this machine cannot have a congestion control; empty: they can. What counts is what the kernel has:
// a namespace's default may only be one that everybody is allowed to use, a socket of root's any.
func CongestionHere(name string) string {
	text, err := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
	if err != nil {
		return "congestion control: " + err.Error()
	}
	if have := strings.Fields(string(text)); !slices.Contains(have, name) {
		return fmt.Sprintf("congestion control %s: this kernel has only %s (modprobe tcp_%s)", name, strings.Join(have, ", "), name)
	}
	return ""
}

// setOffloads of both stations' interfaces; restore puts back what there was.
func setOffloads(path platform.Path, on bool) (restore func() error, err error) {
	var undo []func() error
	restore = func() error {
		var errs []error
		for _, f := range undo {
			errs = append(errs, f())
		}
		return errors.Join(errs...)
	}
	if on { // as they were made
		return restore, nil
	}
	for _, space := range []string{path.From, path.To} {
		s, err := netns.At(space)
		if err != nil {
			return nil, errors.Join(err, restore())
		}
		defer s.Close()
		joins, err := s.Coalescing(platform.Station)
		if err != nil {
			return nil, errors.Join(err, restore())
		}
		undo = append(undo, func() error { return switchOffloads(space, true, joins) })
		if err := switchOffloads(space, false, false); err != nil {
			return nil, errors.Join(err, restore())
		}
	}
	return restore, nil
}

// switchOffloads of a station: those of a sender, and the joining of what is received.
func switchOffloads(space string, send, receive bool) error {
	s, err := netns.At(space)
	if err != nil {
		return err
	}
	return errors.Join(s.Offloads(platform.Station, send), s.SetCoalescing(platform.Station, receive), s.Close())
}

// prepare the stations for sockets as the levels want them.
func (c *chain) prepare(path platform.Path) (restore func() error, err error) {
	return setOffloads(path, c.levels.or(factorOffload, defaultOffload) == "on")
}

// Names of conditions.
const (
	condCongestion     = "congestion control"
	condFlows          = "flows"
	condMessage        = "message"
	condMTU            = "MTU"
	condGSO            = "GSO"
	condGRO            = "GRO"
	condTSO            = "TSO"
	condQueues         = "queues"
	condQdisc          = "qdisc"
	condRepresentation = "representation"
	condMode           = "mode"
	condTool           = "tool"
	condBatch          = "batch"
	condCPUs           = "CPUs"
	condWeir           = "weir"
)

// stationConditions are read from the interfaces of both stations, sender / receiver where they differ.
func stationConditions(path platform.Path) (map[string]string, error) {
	var ends [2]map[string]string
	for i, space := range []string{path.From, path.To} {
		err := netns.Do(space, func() (err error) {
			ends[i], err = interfaceConditions(platform.Station)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("conditions of %s: %w", space, err)
		}
	}
	out := ends[0]
	for name, there := range ends[1] {
		if here := out[name]; here != there {
			out[name] = here + " / " + there
		}
	}
	return out, nil
}

// interfaceConditions in the thread's namespace.
func interfaceConditions(name string) (map[string]string, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, err
	}
	out := map[string]string{condMTU: strconv.Itoa(link.Attrs().MTU), condQdisc: "none"}
	qdiscs, err := netlink.QdiscList(link)
	if err != nil {
		return nil, fmt.Errorf("qdiscs of %s: %w", name, err)
	}
	for _, q := range qdiscs {
		if q.Attrs().Parent == netlink.HANDLE_ROOT {
			out[condQdisc] = q.Type()
		}
	}
	features, err := ethtool.Features(name)
	if err != nil {
		return nil, err
	}
	for label, feature := range map[string]string{condGSO: "tx-generic-segmentation", condTSO: "tx-tcp-segmentation", condGRO: "rx-gro"} {
		out[label] = map[bool]string{true: "on", false: "off"}[features[feature].Active]
	}
	if q, err := ethtool.QueuesOf(name); err == nil {
		out[condQueues] = fmt.Sprintf("%d tx, %d rx", q.TX, q.RX)
	}
	return out, nil
}

// conditions of sockets at both ends: the stations', and what the platform says of itself.
func (c *chain) conditions(path platform.Path) (map[string]string, error) {
	out, err := stationConditions(path)
	if err != nil {
		return nil, err
	}
	out[condRepresentation] = "socket"
	if p, ok := c.platform.(platform.Described); ok {
		maps.Copy(out, p.Conditions())
	}
	return out, nil
}

// sockets measures with the stations as the levels want them, and adds what they were to the conditions.
func (c *chain) sockets(ctx context.Context, measure func(platform.Path) (Measurement, error)) (m Measurement, err error) {
	path, err := c.platform.Path(ctx, c.layout)
	if err != nil {
		return m, err
	}
	restore, err := c.prepare(path)
	if err != nil {
		return m, err
	}
	defer func() {
		if rerr := restore(); rerr != nil {
			err = errors.Join(err, rerr)
		}
	}()
	if m, err = measure(path); err != nil {
		return m, err
	}
	have, err := c.conditions(path)
	if err != nil {
		return m, err
	}
	for name, v := range m.Conditions {
		have[name] = v
	}
	m.Conditions = have
	return m, nil
}
