package kvm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"weir.dev/weir/container/kvm/channel"
)

// try is one time that a machine boots.
type try struct {
	in    time.Duration // it has come up then, or hangs
	words []string      // for its kernel
}

const (
	firstTry  = 3 // the part of a boot's time after which a machine hangs that is tried once more: it is ten times what a boot takes
	mostTries = 6 // of machines whose timers are wrong
)

// timerKHz is the rate of an emulated processor's timer: QEMU's local APIC counts nanoseconds, and Linux has it count sixteen at a time.
const timerKHz = 1_000_000 / 16

// How far from it may be what a kernel measures, as a factor in percent: in all tries but the last, where a timer that is wrong is better than no machine.
const (
	timerOff     = 115
	timerOffLast = 800
)

// errTimer is of a machine whose kernel has measured its timer wrongly, and which has therefore ended.
var errTimer = errors.New("the kernel of the virtual machine has measured its timer wrongly: the host is too busy for an emulated processor; start fewer machines at a time, or use a host with /dev/kvm")

// wrongTimer tells whether a machine has ended for that.
func wrongTimer(bundle string) bool {
	exit, ok := readExit(bundle)
	return ok && strings.HasPrefix(exit.Error, channel.WrongTimer)
}

// tries boots a machine by f until one comes up. A kernel measures the timer of an emulated processor by a clock that goes on while the processor is not there: on a busy
// host it comes out as any rate, and timers are late, or there are none and all that sleeps hangs. Such a machine ends at once, and another one boots. One that hangs
// for another reason is tried once more.
func (e *Engine) tries(ctx context.Context, s shape, f func(try) error) error {
	if s.Accel != "tcg" {
		return f(try{in: e.boots})
	}
	in := e.boots / firstTry
	for n := 1; ; n++ {
		t := try{in: in}
		if s == copied { // others have a second clock to measure by
			t.words = []string{timerWord(timerOff)}
			if n >= mostTries {
				t.words = []string{timerWord(timerOffLast)}
			}
		}
		err := f(t)
		switch {
		case ctx.Err() != nil:
			return err
		case errors.Is(err, errTimer) && n < mostTries:
		case errors.As(err, new(late)) && in < e.boots:
			in = e.boots
			if e.log != nil {
				e.log.Warn("a virtual machine hangs as it boots, and is tried once more", "because", err)
			}
		default:
			return err
		}
	}
}

// timerWord has a machine end whose kernel takes its timer for one of another rate.
func timerWord(percent int) string {
	return fmt.Sprintf("%s%d-%d", channel.Timer, timerKHz*100/percent, timerKHz*percent/100)
}
