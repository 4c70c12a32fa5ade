package health

import (
	"testing"
	"time"
)

func TestWindowsOfProbes(t *testing.T) {
	type look struct {
		came bool
		in   uint64
		late time.Duration
	}
	times := func(n int, l look) (all []look) {
		for range n {
			all = append(all, l)
		}
		return all
	}
	lost, late, flood, came := look{}, look{late: 51 * time.Millisecond}, look{in: 1501}, look{came: true}
	for name, c := range map[string]struct {
		looks []look
		want  Verdict // at the last
	}{
		"a probe comes out":                     {[]look{came}, Well},
		"two windows":                           {times(2, lost), Unknown},
		"three windows":                         {times(3, lost), Hung},
		"three windows with one that was well":  {append(times(2, lost), came, lost), Unknown},
		"late windows prove nothing":            {append(times(9, late), lost), Unknown},
		"but not for ever":                      {times(13, late), Hung},
		"a flood":                               {times(19, flood), Unknown},
		"a long flood":                          {times(20, flood), Hung},
		"frames come out of a flooded function": {append(times(19, flood), came), Well},
	} {
		var w Windows
		var got Verdict
		for _, l := range c.looks {
			got = w.Look(l.came, l.in, l.late)
		}
		if got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
