package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"weir.dev/weir/container/kvm/channel"
)

// timerList has all timers of the kernel, and the devices that drive them.
const timerList = "/proc/timer_list"

// timer checks what the kernel has measured its timer to be, for a word Timer on its command line.
func timer(words []string) error {
	for _, w := range words {
		bounds, ok := strings.CutPrefix(w, channel.Timer)
		if !ok {
			continue
		}
		var low, high uint64
		if _, err := fmt.Sscanf(bounds, "%d-%d", &low, &high); err != nil {
			return wrap(w, err)
		}
		text, err := os.ReadFile(timerList)
		if err != nil {
			return wrap("timer", err)
		}
		rate, err := timerRate(string(text))
		if err != nil {
			return err
		}
		if rate < low || rate > high {
			return fmt.Errorf("%sits kernel takes it for one of %d kHz", channel.WrongTimer, rate)
		}
	}
	return nil
}

// timerRate finds the kHz of the first local APIC's timer in a timer list: "mult" and "shift" make counts of nanoseconds.
func timerRate(list string) (khz uint64, err error) {
	_, of, found := strings.Cut(list, "\nClock Event Device: lapic\n")
	if !found {
		return 0, fmt.Errorf("%sits kernel has none", channel.WrongTimer)
	}
	of, _, _ = strings.Cut(of, "\nTick Device:")
	values := map[string]uint64{}
	for line := range strings.Lines(of) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			if n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64); err == nil {
				values[strings.TrimSpace(name)] = n
			}
		}
	}
	mult, shift := values["mult"], values["shift"]
	if mult == 0 || mult > 1<<32 || shift > 32 {
		return 0, fmt.Errorf("%s%s does not tell its rate", channel.WrongTimer, timerList)
	}
	return mult * 1_000_000 >> shift, nil
}
