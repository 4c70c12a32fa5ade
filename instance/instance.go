// Package instance names one running Weir: its directories, its marks on the things it makes, its lock.
//
// Several instances live side by side on one machine, each with its own name. Everything that Weir
// makes outside its own directories carries the instance's mark, and only what carries it is ever removed. Files that have to outlive a crash,
// or the power, are written by WriteFile.
package instance

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"regexp"
)

// DefaultName is the instance that a user gets without --name.
const DefaultName = "0"

var namePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?$`)

// Instance is one Weir on this machine. The zero value is not usable; see New.
type Instance struct {
	Name string // unique on the machine, at most 10 characters of [a-z0-9-]
	Root string // durable state: etcd, images, logs; survives a reboot
	Run  string // volatile state: sockets, pinned maps, namespaces, container state; absent after a reboot
}

// New checks the name and fills in the default directories: root defaults to /var/lib/weir/NAME,
// the run directory is always /run/weir/NAME (Unix socket paths are limited to 107 bytes).
func New(name, root string) (Instance, error) {
	if name == "" {
		name = DefaultName
	}
	if !namePattern.MatchString(name) {
		return Instance{}, fmt.Errorf("instance name %q: want 1 to 10 characters of a-z, 0-9 and inner '-'", name)
	}
	if root == "" {
		root = filepath.Join("/var/lib/weir", name)
	}
	root, err := filepath.Abs(root)
	if err != nil {
		return Instance{}, fmt.Errorf("root directory %q: %w", root, err)
	}
	return Instance{Name: name, Root: root, Run: filepath.Join("/run/weir", name)}, nil
}

// LockFile is in Run and in Root of an instance that a daemon runs, or ran: its lock. `weir down` removes it.
const LockFile = "lock"

// Socket is the API's Unix socket.
func (i Instance) Socket() string { return filepath.Join(i.Run, "api.sock") }

// AuditFile is the audit log as JSON lines, mode 0600.
func (i Instance) AuditFile() string { return filepath.Join(i.Root, "audit.log") }

// TokenFile holds the bearer token of the loopback TCP listener, mode 0600.
func (i Instance) TokenFile() string { return filepath.Join(i.Root, "token") }

// SessionsFile keeps the web UI's sessions over restarts, mode 0600.
func (i Instance) SessionsFile() string { return filepath.Join(i.Root, "sessions.json") }

// BPFFS is where the instance mounts its own bpffs (not under /sys: `ip netns exec` remounts that).
func (i Instance) BPFFS() string { return filepath.Join(i.Run, "bpf") }

// NetnsDir holds one bind-mounted network namespace per function.
func (i Instance) NetnsDir() string { return filepath.Join(i.Run, "netns") }

// TunnelNetns is the network namespace in which packets of encrypted tunnels come out of WireGuard.
func (i Instance) TunnelNetns() string { return filepath.Join(i.Run, "tunnels") }

// TunnelKeyFile holds the host's private key of encrypted tunnels, mode 0600.
func (i Instance) TunnelKeyFile() string { return filepath.Join(i.Root, "tunnel.key") }

// Bridge is the name of the Linux bridge that forwards ordinary traffic.
func (i Instance) Bridge() string { return "weir-" + i.Name }

// Alias is the ownership mark that every link of this instance carries as its IFLA_IFALIAS:
// "weir:INSTANCE:OBJECT", for example "weir:0:function/fw/in".
func (i Instance) Alias(object string) string { return "weir:" + i.Name + ":" + object }

// Link derives a host-side link name (at most 15 bytes, unique per instance and object) from an object
// such as "function/fw/in". The object itself stands in the link's alias.
func (i Instance) Link(object string) string {
	sum := sha256.Sum256([]byte(i.Name + "\x00" + object))
	return "wr" + hex.EncodeToString(sum[:5])
}

// MAC derives a stable, locally administered unicast address for a link that Weir makes. All of them start
// with 06:57 ("W"), so a frame that a function's own interface originates can be told apart.
func (i Instance) MAC(object string) [6]byte {
	sum := sha256.Sum256([]byte("mac\x00" + i.Name + "\x00" + object))
	return [6]byte{0x06, 0x57, sum[0], sum[1], sum[2], sum[3]}
}
