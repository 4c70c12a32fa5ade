package ebpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"weir.dev/weir/bpf"
	"weir.dev/weir/datapath/internal/home"
)

// upgrade takes over from maps of another layout, which are being replaced.
type upgrade struct {
	home     *home.Home
	tables   *tables
	ports    *ports
	control  *control
	rules    *rules
	counters *counters
	liveness *liveness
}

// begin takes the version in force, the functions' states and the learned addresses from the maps being replaced. In every
// layout, control begins with the version, a function with state, on_fail and process; other maps are carried over when
// they still look the same.
func (u *upgrade) begin() error {
	if u.tables.state.Previous == "" {
		return nil
	}
	return errors.Join(u.tables.carry("controls", u.carryVersion), u.tables.carry("functions", u.carryFunctions), u.tables.carry("learned", u.carryLearned))
}

func (u *upgrade) carryVersion(controls *ebpf.Map) error {
	if raw, err := controls.LookupBytes(uint32(0)); err == nil && len(raw) >= 4 {
		u.control.version = word(raw)
	}
	return nil
}

func (u *upgrade) carryFunctions(functions *ebpf.Map) error {
	for _, fn := range u.ports.fns {
		raw, err := functions.LookupBytes(uint32(fn.Slot))
		if err != nil || len(raw) < 12 {
			continue
		}
		v := bpf.SteerFunction{State: word(raw), OnFail: word(raw[4:]), Pid: word(raw[8:]), Used: 1}
		if err := u.tables.maps.Functions.Put(uint32(fn.Slot), v); err != nil {
			return fmt.Errorf("carry function %s over: %w", fn.F.Name, err)
		}
		if v.Pid != 0 && u.liveness.kernel.exit {
			if err := u.tables.maps.Processes.Put(v.Pid, uint32(fn.Slot)); err != nil {
				return fmt.Errorf("carry function %s over: %w", fn.F.Name, err)
			}
		}
	}
	return nil
}

func (u *upgrade) carryLearned(learned *ebpf.Map) error {
	if learned.KeySize() != u.tables.maps.Learned.KeySize() || learned.ValueSize() != u.tables.maps.Learned.ValueSize() {
		return nil
	}
	var k bpf.SteerExitKey
	var slot uint32
	it := learned.Iterate()
	for it.Next(&k, &slot) {
		if err := u.tables.maps.Learned.Put(k, slot); err != nil {
			return fmt.Errorf("carry learned addresses over: %w", err)
		}
	}
	if err := it.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return fmt.Errorf("carry learned addresses over: %w", err)
	}
	return nil
}

// finish adds what the replaced maps had counted, once nobody counts there any more, and removes them.
func (u *upgrade) finish() error {
	if u.tables.state.Previous == "" {
		return nil
	}
	if err := barrier(); err != nil {
		return err
	}
	ofRules := func(counts *ebpf.Map) error {
		u.counters.carryRules(counts, u.rules.set.Slots)
		return nil
	}
	if err := errors.Join(u.tables.carry("rule_counts", ofRules), u.tables.carry("port_counts", u.counters.carryPorts)); err != nil {
		return err
	}
	was := u.tables.state.Previous
	u.tables.state.Previous = ""
	if err := u.tables.save(); err != nil {
		return err
	}
	u.home.Log.Info("switch tables replaced", "from", was, "to", u.tables.state.ABI)
	for _, fn := range u.ports.fns { // one may have ended between the programs
		if err := u.liveness.change(fn, func(*bpf.SteerFunction) {}); err != nil {
			return err
		}
	}
	return nil
}
