// Package bypass counts what passes a policy by: for every way in which a function can come, fail, be replaced and go, at both switches.
package bypass

import (
	"os"
	"strconv"
)

var switches = []string{"ebpf", "ovs"}

// frames that each case counts at least: more with FRAMES=N.
var frames = func() int {
	if n, err := strconv.Atoi(os.Getenv("FRAMES")); err == nil && n > 0 {
		return n
	}
	return 1000
}()
