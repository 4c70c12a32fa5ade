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

	"weir.dev/weir/lab/platform"
	"weir.dev/weir/netns"
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
		{Name: factorCongestion, Sets: []string{condCongestion}, About: "congestion control of both stations", Default: DefaultCongestion, Check: func(level string) error {
			if strings.TrimFunc(level, func(r rune) bool { return r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '_' }) != "" || len(level) > 15 {
				return fmt.Errorf("%q: want the kernel's name of a congestion control, for example cubic", level)
			}
			return nil
		}},
		{Name: factorOffload, Sets: []string{platform.SettingTSO, platform.SettingGSO, platform.SettingGRO, platform.SettingChecksums}, About: "on: both stations' interfaces as they were made; off: no segmentation, checksums or joining of packets there (TSO, GSO, GRO)", Default: defaultOffload, Check: oneOf("on", "off")},
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
	condRepresentation = "representation"
	condMode           = "mode"
	condTool           = "tool"
	condBatch          = "batch"
	condCPUs           = "CPUs"
	condWeir           = "weir"
	condAtOnce         = "operations at once"
)

// Setting tells whether a condition is a setting, which has to be alike for all that is compared, or says what a platform is. What nobody knows is a
// setting. The batch may differ between blocks, not within a group of one: see Batched. A setting may differ where the compared factor is about it
// (Factor.Sets), or where a platform has no other (platform.Kind.Inherent).
func Setting(condition string) bool {
	return !slices.Contains([]string{condRepresentation, condMode, condBatch, condWeir, platform.ConditionMachines, "hosts", "stations", "underlay", "hooks", "datapath"}, condition)
}

// BatchOf conditions is how many frames entered at a time; 0: the trial had no batches.
func BatchOf(conditions map[string]string) int {
	n, err := strconv.Atoi(conditions[condBatch])
	if err != nil {
		return 0
	}
	return n
}

// conditions of sockets at both ends: the path's, and what the platform says of itself.
func (c *chain) conditions(path platform.Path) (map[string]string, error) {
	out, err := path.Conditions()
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
