package nspawn

import (
	"context"
	"fmt"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel/entry"
)

const leastVersion = 242 // --console=pipe

var called = entry.Program{
	Runtime: Name, Name: program, Absent: "no program " + program + ": install it (apt-get install systemd-container)", Version: []string{"--version"}, Judge: judge, Userns: true,
}

// About tells whether systemd-nspawn is here and new enough.
func About(ctx context.Context) container.About {
	a, _ := called.Look(ctx)
	return a
}

// judge reads a version, such as "systemd 252 (252.39-1~deb12u2)".
func judge(line string) (version, wrong string) {
	var n int
	if _, err := fmt.Sscanf(line, "systemd %d", &n); err != nil {
		wrong = fmt.Sprintf("%s --version says %q: want a version such as systemd 252", program, line)
	} else if n < leastVersion {
		wrong = fmt.Sprintf("systemd-nspawn %d is too old: install systemd %d or newer", n, leastVersion)
	}
	return line, wrong
}
