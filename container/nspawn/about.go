package nspawn

import (
	"context"
	"fmt"
	"time"

	"weir.dev/weir/container"
	"weir.dev/weir/portkind"
)

const (
	versionTimeout = 10 * time.Second
	leastVersion   = 242 // --console=pipe
)

// About tells whether systemd-nspawn is here and new enough.
func About(ctx context.Context) container.About {
	a, _ := look(ctx)
	return a
}

func about() container.About {
	return container.About{Name: Name, Ports: []portkind.Kind{portkind.Veth}, Userns: true}
}

// judge says what is wrong with a version, such as "systemd 252 (252.39-1~deb12u2)"; "" nothing.
func judge(version string) string {
	var n int
	if _, err := fmt.Sscanf(version, "systemd %d", &n); err != nil {
		return fmt.Sprintf("%s --version says %q: want a version such as systemd 252", program, version)
	}
	if n < leastVersion {
		return fmt.Sprintf("systemd-nspawn %d is too old: install systemd %d or newer", n, leastVersion)
	}
	return ""
}
