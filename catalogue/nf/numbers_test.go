package nf

import (
	"strings"
	"testing"
)

// A label that the platform would not take is cut, so that all other numbers are told; what differs behind the cut stays apart.
func TestLongLabels(t *testing.T) {
	var n Numbers
	long := strings.Repeat("p\"ä", 100)
	for _, v := range []string{"short", long, long + "1", strings.Repeat("x", maxLabel)} {
		n.Gauge("up", "Whether.", 1, "check", v)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(n.Text())) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		v := strings.NewReplacer(`\"`, `"`).Replace(strings.TrimSuffix(strings.TrimPrefix(line, `up{check="`), "\"} 1\n"))
		if seen[v] || len(v) > maxLabel {
			t.Errorf("%d bytes, or twice: %s", len(v), v)
		}
		seen[v] = true
	}
	if len(seen) != 4 || !seen["short"] || !seen[strings.Repeat("x", maxLabel)] {
		t.Errorf("%v", seen)
	}
}
