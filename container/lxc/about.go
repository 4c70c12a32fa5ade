package lxc

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel/entry"
)

const leastVersion = 5

var called = entry.Program{
	Runtime: Name, Name: program, Absent: "no program " + program + ": install LXC 5 or newer (apt-get install lxc)", Version: []string{"--version"}, Judge: judge, Userns: true,
}

// About tells whether LXC is here and new enough.
func About(ctx context.Context) container.About {
	a, _ := called.Look(ctx)
	return a
}

// judge reads a version, such as 5.0.2.
func judge(line string) (version, wrong string) {
	major, _, _ := strings.Cut(line, ".")
	n, err := strconv.Atoi(major)
	switch {
	case err != nil:
		wrong = fmt.Sprintf("%s --version says %q: want a version such as 5.0.2", program, line)
	case n < leastVersion:
		wrong = fmt.Sprintf("LXC %s is too old: install LXC %d or newer", line, leastVersion)
	}
	return line, wrong
}
