package stall

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/lab/traffic"
)

// MaxHold is how long Hold takes a CPU at most.
const MaxHold = 50 * time.Millisecond

// How Hold waits.
const (
	holdTick = 10 * time.Millisecond
	holdLook = 100 * time.Microsecond
	holdWait = 10 * time.Second
)

// Hold takes a CPU away once, in a hard interrupt, as a hypervisor would, and tells when it was gone: to test with. Nothing runs there meanwhile.
func Hold(cpu int, length time.Duration) (gone traffic.Span, err error) {
	if length <= 0 || length > MaxHold {
		return gone, fmt.Errorf("hold a CPU for %s: want more than 0 and at most %s", length, MaxHold)
	}
	var maps stallObjects
	if err := loadStallObjects(&maps, nil); err != nil {
		return gone, fmt.Errorf("load: %w", err)
	}
	defer func() { err = errors.Join(err, maps.Close()) }()
	if err := maps.Holds.Put(uint32(0), &stallHold{Length: uint64(length)}); err != nil {
		return gone, err
	}
	fd, err := clock(cpu, holdTick, maps.Take)
	if err != nil {
		return gone, fmt.Errorf("hold CPU %d: %w", cpu, err)
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_ENABLE, 0); err != nil {
		return gone, fmt.Errorf("hold CPU %d: %w", cpu, err)
	}
	for end := time.Now().Add(holdWait); time.Now().Before(end); {
		var h stallHold
		if err := maps.Holds.Lookup(uint32(0), &h); err != nil {
			return gone, err
		}
		if h.Times > 0 {
			return traffic.Span{Begin: time.Duration(h.Begin), End: time.Duration(h.End)}, nil
		}
		time.Sleep(holdLook)
	}
	return gone, fmt.Errorf("CPU %d was not held within %s", cpu, holdWait)
}
