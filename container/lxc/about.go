package lxc

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"weir.dev/weir/container"
	"weir.dev/weir/portkind"
)

const (
	versionTimeout = 10 * time.Second
	leastVersion   = 5
)

// About tells whether LXC is here and new enough.
func About(ctx context.Context) container.About {
	a, _ := look(ctx)
	return a
}

func about() container.About {
	return container.About{Name: Name, Ports: []portkind.Kind{portkind.Veth}, Userns: true}
}

// judge says what is wrong with a version, such as 5.0.2; "" nothing.
func judge(version string) string {
	major, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(major)
	switch {
	case err != nil:
		return fmt.Sprintf("%s --version says %q: want a version such as 5.0.2", program, version)
	case n < leastVersion:
		return fmt.Sprintf("LXC %s is too old: install LXC %d or newer", version, leastVersion)
	}
	return ""
}
