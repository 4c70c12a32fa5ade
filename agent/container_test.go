package agent

import (
	"testing"

	"weir.dev/weir/container"
)

func TestHowAProcessEndedIsSaid(t *testing.T) {
	for want, c := range map[string]container.Status{
		"process out of memory (limit 512M)":                 {OOM: true, Short: container.ShortLimit, ExitCode: 137, Signal: 9, Limits: container.Limits{Memory: 512 << 20}}, // whoever set it
		"process out of memory (limit 19532K)":               {OOM: true, Short: container.ShortLimit, ExitCode: 137, Signal: 9, Limits: container.Limits{Memory: 19532 << 10}},
		"process out of memory (limit 512M), or the host is": {OOM: true, ExitCode: 137, Signal: 9, Limits: container.Limits{Memory: 512 << 20}},
		"process killed: the host is out of memory":          {OOM: true, ExitCode: 137, Signal: 9},
		"process killed (signal 9)":                          {ExitCode: 137, Signal: 9, Limits: container.Limits{Memory: 512 << 20}},
		"process ended with exit code 137":                   {ExitCode: 137, Limits: container.Limits{Memory: 512 << 20}},
		"process ended with exit code 0":                     {},
		"process ended":                                      {ExitCode: -1},
	} {
		if got := ending(c); got != want {
			t.Errorf("%+v: %q, want %q", c, got, want)
		}
	}
}
