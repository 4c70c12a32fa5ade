package lab

import (
	"strings"
	"testing"
)

func TestQuiet(t *testing.T) {
	for _, c := range []struct {
		name       string
		busy, load float64
		waited     map[string]float64
		ok         bool
		says       string
	}{
		{"nothing else runs", 0.05, 0.2, map[string]float64{"cpu": 1, "io": 0, "memory": 0}, true, "load 0.2 on 2 CPUs; tasks waited in the last 10 s: cpu 1 %, io 0 %, memory 0 %"},
		{"the last second is quiet, and ten tasks wait", 0.05, 10.2, map[string]float64{"cpu": 98}, false, "the machine is busy: 5 % of CPU time was busy in the last second, load 10.2 on 2 CPUs"},
		{"the load is not up yet", 0.05, 0.3, map[string]float64{"cpu": 98}, false, "the machine is busy"},
		{"all wait for the disk", 0.05, 0.3, map[string]float64{"io": 40}, false, "io 40 %"},
		{"busy now", 0.9, 0.3, nil, false, "the machine is busy"},
		{"a kernel without PSI", 0.05, 0.3, nil, true, "load 0.3"},
	} {
		if ok, text := quiet(c.busy, c.load, 2, c.waited); ok != c.ok || !strings.Contains(text, c.says) {
			t.Errorf("%s: %v, %q: want %v, %q", c.name, ok, text, c.ok, c.says)
		}
	}
}

func TestPressureIsRead(t *testing.T) {
	for _, resource := range pressures {
		if percent, known, err := pressure(resource); err != nil || percent < 0 || percent > 100 {
			t.Errorf("%s: %v %t %v", resource, percent, known, err)
		}
	}
	if _, known, err := pressure("nothing"); known || err != nil {
		t.Errorf("a resource that there is not: %t %v", known, err)
	}
}
