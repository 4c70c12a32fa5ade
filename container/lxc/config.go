package lxc

import (
	"fmt"
	"strings"

	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kernel/entry"
)

// config is lxc.container.conf(5). Of what it could say of the container's process package entry takes care. user and net
// are the paths at which lxc-start finds the sandbox's namespaces.
func (e *Engine) config(c kernel.Container, user, net string) string {
	var b strings.Builder
	line := func(key, format string, args ...any) {
		fmt.Fprintf(&b, "lxc.%s = %s\n", key, fmt.Sprintf(format, args...))
	}
	line("uts.name", "%s", c.ID)
	line("rootfs.path", "dir:%s", rootDir)
	line("rootfs.mount", "%s", mountDir)
	if c.ReadOnly {
		line("rootfs.options", "ro")
	}
	line("init.cmd", "%s", strings.Join(entry.Entry(), " "))
	line("autodev", "1")
	line("console.path", "none")
	line("tty.max", "0")
	line("pty.max", "64") // as kernel.Config
	line("mount.entry", "proc proc proc nosuid,noexec,nodev 0 0")
	line("mount.entry", "sysfs sys sysfs nosuid,noexec,nodev,ro 0 0")
	if c.Userns != "" {
		line("idmap", "u 0 %d %d", c.IDs.First, c.IDs.Count)
		line("idmap", "g 0 %d %d", c.IDs.First, c.IDs.Count)
		line("namespace.share.user", "%s", user)
	}
	if c.Netns != "" {
		line("namespace.share.net", "%s", net)
	} else {
		line("net.0.type", "empty")
	}
	return b.String()
}
