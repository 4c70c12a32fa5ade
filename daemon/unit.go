package daemon

import (
	"fmt"
	"strings"

	"weir.dev/weir/instance"
)

// UnitOptions say which daemon a systemd unit runs.
type UnitOptions struct {
	Instance instance.Instance
	Command  string   // up, manager, agent
	Program  string   // absolute path of this binary
	Args     []string // further arguments of the command
}

// Unit is the text of a systemd service (systemd.service(5), systemd.exec(5)) that runs a daemon with the rights that it needs and no others.
func Unit(o UnitOptions) string {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	say("# Made by `weir unit %s`. Install it as /etc/systemd/system/weir.service; `systemctl enable --now weir` starts it.", o.Command)
	say("[Unit]")
	say("Description=Weir %s (instance %s)", o.Command, o.Instance.Name)
	say("Wants=network-online.target")
	say("After=network-online.target")
	say("StartLimitIntervalSec=0")
	say("\n[Service]")
	say("Type=notify")
	say("NotifyAccess=main")
	say("ExecStart=%s", execStart(o))
	say("Restart=always")
	say("RestartSec=1")
	say("TimeoutStopSec=30")
	say("TimeoutAbortSec=5")
	say("# The daemon reports that it is alive every 20 s. Traffic goes on while systemd restarts it.")
	say("WatchdogSec=60")
	say("LimitNOFILE=524288")
	say("LimitCORE=0")
	say("\n# Rights")
	say("CapabilityBoundingSet=%s", capabilityNames(keptCapabilities(o.Command != "manager")))
	say("NoNewPrivileges=yes")
	say("KeyringMode=private")
	say("LockPersonality=yes")
	say("SystemCallArchitectures=native")
	say("SystemCallErrorNumber=EPERM")
	if o.Command == "manager" {
		b.WriteString(managerUnit)
		if !strings.HasPrefix(o.Instance.Root, "/var/lib/weir/") {
			say("ReadWritePaths=%s", unitQuote(o.Instance.Root))
		}
	} else {
		b.WriteString(hostUnit)
	}
	say("\n[Install]")
	say("WantedBy=multi-user.target")
	return b.String()
}

// hostUnit is for a daemon with an agent.
const hostUnit = `RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK AF_PACKET AF_XDP
SystemCallFilter=~@clock @cpu-emulation @module @obsolete @raw-io @reboot @swap
DevicePolicy=closed
DeviceAllow=/dev/net/tun rw
DeviceAllow=char-pts rw

# Functions and switches outlive the daemon, and their cgroups are the daemon's to manage.
KillMode=process
Delegate=yes
OOMPolicy=continue
OOMScoreAdjust=-500
# ProtectSystem=, PrivateTmp= and the like give a service a mount namespace of its own. They are not set: the namespaces, images and BPF maps
# under /run/weir are mounts, which have to outlive the daemon and be visible to operators. Seccomp filters are inherited by functions, so only
# system calls that no function needs are refused here; functions have a profile of their own.
`

// managerUnit is for a daemon without an agent: it reads and writes two directories and speaks TCP.
const managerUnit = `RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
StateDirectory=weir
StateDirectoryMode=0755
RuntimeDirectory=weir
RuntimeDirectoryMode=0755
RuntimeDirectoryPreserve=yes
ProtectSystem=strict
ProtectHome=read-only
ProtectProc=invisible
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
MemoryDenyWriteExecute=yes
RemoveIPC=yes
DevicePolicy=closed
`

// execStart is a command line as systemd reads it.
func execStart(o UnitOptions) string {
	words := []string{o.Program, o.Command, "--name=" + o.Instance.Name, "--root=" + o.Instance.Root}
	words = append(words, o.Args...)
	for i, w := range words {
		words[i] = unitQuote(w)
	}
	return strings.Join(words, " ")
}

// unitQuote quotes a word of a unit: systemd expands % and $, and splits at spaces.
func unitQuote(word string) string {
	word = strings.NewReplacer("%", "%%", "$", "$$").Replace(word)
	if word != "" && !strings.ContainsAny(word, " \t\n\"'\\;") {
		return word
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`).Replace(word) + `"`
}
