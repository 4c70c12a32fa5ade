package ebpf

import (
	"fmt"

	"weir.dev/weir/bpf"
)

// control is the entry that the programs read first, for every frame.
type control struct {
	maps    *mapSet
	state   *state // for the secret
	version uint32 // of the rules in force; 0: the entry is not known yet
	past    bool   // frames may pass the bridge by
	owned   int    // MACs that guards name
}

// load reads the entry of the process before; its version is not taken over, since its rules are not known yet.
func (c *control) load() (found bpf.SteerControl, err error) {
	if err := c.maps.Controls.Lookup(uint32(0), &found); err != nil {
		return found, fmt.Errorf("read control: %w", err)
	}
	c.past = found.Past != 0
	return found, nil
}

// flip puts the copy of the rules in force that has this version.
func (c *control) flip(version uint32) error {
	was := c.version
	c.version = version
	if err := c.write(); err != nil {
		c.version = was
		return fmt.Errorf("exchange the copies: %w", err)
	}
	return nil
}

// let frames pass the bridge by, or not.
func (c *control) let(past bool) error {
	was := c.past
	c.past = past
	if err := c.write(); err != nil {
		c.past = was
		return err
	}
	return nil
}

// count the MACs that guards name. The entry is not written before its first version.
func (c *control) count(owned int) error {
	was := c.owned
	c.owned = owned
	if owned == was || c.version == 0 {
		return nil
	}
	if err := c.write(); err != nil {
		c.owned = was
		return err
	}
	return nil
}

func (c *control) write() error {
	v := bpf.SteerControl{Version: c.version, Secret: c.state.Secret, Owned: uint32(c.owned)}
	if c.past {
		v.Past = 1
	}
	if err := c.maps.Controls.Put(uint32(0), v); err != nil {
		return fmt.Errorf("write control: %w", err)
	}
	return nil
}
