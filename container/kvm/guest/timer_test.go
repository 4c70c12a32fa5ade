package main

import "testing"

func TestTimerRate(t *testing.T) {
	const before = "Timer List Version: v0.9\ncpu: 0\n clock 0:\n  .index:      0\n\nTick Device: mode:     1\nBroadcast device\nClock Event Device: <NULL>\n\nTick Device: mode:     1\nPer CPU device: 0\n"
	const lapic = "Clock Event Device: lapic\n max_delta_ns:   34359738337\n min_delta_ns:   1000\n"
	for name, tt := range map[string]struct {
		list, err string
		rate      uint64
	}{
		"as it is":           {before + lapic + " mult:           268435456\n shift:          32\n mode:           3\n", "", 62500},
		"the first of two":   {before + lapic + " mult:           268435456\n shift:          32\n\nTick Device: mode:     1\nPer CPU device: 1\n" + lapic + " mult:           1\n shift:          1\n", "", 62500},
		"half as quick":      {before + lapic + " mult:           134217728\n shift:          32\n", "", 31250},
		"none":               {before + "Clock Event Device: <NULL>\n", "timer: its kernel has none", 0},
		"no list":            {"", "timer: its kernel has none", 0},
		"it says nothing":    {before + lapic, "timer: /proc/timer_list does not tell its rate", 0},
		"it makes no sense":  {before + lapic + " mult:           18446744073709551615\n shift:          32\n", "timer: /proc/timer_list does not tell its rate", 0},
		"neither does shift": {before + lapic + " mult:           268435456\n shift:          99\n", "timer: /proc/timer_list does not tell its rate", 0},
	} {
		rate, err := timerRate(tt.list)
		if rate != tt.rate || (err == nil) != (tt.err == "") || err != nil && err.Error() != tt.err {
			t.Errorf("%s: %d, %v", name, rate, err)
		}
	}
}
