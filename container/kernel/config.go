package kernel

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
)

const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// maxLog bounds every file of a container with a read-only root, in bytes, and so its log between two cuts: the other files are in memory. The kernel holds
// the limit (RLIMIT_FSIZE), so it stands when nobody cuts, as after a kill -9 of the daemon. A write beyond it fails with EFBIG, at once, and the signal
// that comes with it ends nobody: see startSparing. What is lost is said in the log at the next cut.
const maxLog = 32 << 20

// Config describes a container as the OCI runtime specification has it, without its hooks and its terminal: what isolates it is written once, for all engines.
func (h *Home) Config(c Container) (*specs.Spec, error) {
	s, root := c.Spec, c.Root
	env := s.Env
	if !slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, "PATH=") }) {
		env = append([]string{defaultPath}, env...)
	}
	dir := s.Dir
	if dir == "" {
		dir = "/"
	}
	caps := &specs.LinuxCapabilities{Bounding: s.Capabilities, Effective: s.Capabilities, Permitted: s.Capabilities}
	if s.UID != 0 { // an ordinary user keeps them across exec only as ambient ones
		caps.Inheritable, caps.Ambient = s.Capabilities, s.Capabilities
	}
	filter, err := h.seccomp.of(s.Capabilities)
	if err != nil {
		return nil, fmt.Errorf("seccomp profile: %w", err)
	}
	files, err := maxFiles()
	if err != nil {
		return nil, err
	}
	limits := []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: min(1024, files), Hard: files}, {Type: "RLIMIT_CORE"}}
	if s.ReadOnly {
		limits = append(limits, specs.POSIXRlimit{Type: "RLIMIT_FSIZE", Soft: maxLog, Hard: maxLog})
	}
	config := &specs.Spec{
		Version: "1.0.2",
		Root:    &specs.Root{Path: root, Readonly: s.ReadOnly},
		Process: &specs.Process{
			Args: s.Args, Env: env, Cwd: dir, NoNewPrivileges: true, Capabilities: caps, User: specs.User{UID: s.UID, GID: s.GID},
			Rlimits: limits, OOMScoreAdj: h.score,
		},
		Hostname:    s.ID,
		Mounts:      mounts(s),
		Annotations: s.Annotations,
		Linux: &specs.Linux{
			CgroupsPath: h.CgroupPath(s.ID), Resources: h.resources(s), Seccomp: filter,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
				{Type: specs.NetworkNamespace, Path: s.Netns},
			},
			MaskedPaths: []string{
				"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug",
				"/proc/scsi", "/proc/timer_list", "/sys/firmware", "/sys/devices/virtual/powercap",
			},
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
	if s.Userns != "" {
		ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: s.IDs.First, Size: s.IDs.Count}} // runc wants to be told, though the namespace has them
		l := config.Linux
		l.Namespaces = append(l.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace, Path: s.Userns})
		l.UIDMappings, l.GIDMappings = ids, ids
	}
	return config, nil
}

// maxFiles is systemd's usual hard limit of open files, or our own where that is lower (to raise it would need a capability).
func maxFiles() (uint64, error) {
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err != nil {
		return 0, fmt.Errorf("read limit of open files: %w", err)
	}
	return min(own.Max, 524288), nil
}

// scoreOf is the OOM score of containers: 0 where this process is better than that and they would inherit it, as our unit has it kept; nil: what it has.
func scoreOf(own *int) (*int, error) {
	if own == nil {
		raw, err := os.ReadFile("/proc/self/oom_score_adj")
		if err != nil {
			return nil, fmt.Errorf("read OOM score: %w", err)
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(raw)))
		if err != nil {
			return nil, fmt.Errorf("read OOM score: %w", err)
		}
		own = &n
	}
	if *own < 0 {
		return new(int), nil
	}
	return nil, nil
}

func mounts(s container.Spec) []specs.Mount {
	out := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "noexec", "strictatime", "mode=755", "size=64k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5", "max=64"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=64m"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		{Destination: "/run", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "noexec", "nodev", "mode=755", "size=16m"}},
		{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=1777", "size=64m"}},
	}
	for _, m := range s.Mounts {
		options := []string{"rbind", "nosuid", "nodev", "rprivate"}
		if m.ReadOnly {
			options = append(options, "ro")
		}
		out = append(out, specs.Mount{Destination: m.Target, Type: "bind", Source: m.Source, Options: options})
	}
	return out
}

// profiles caches seccomp profiles by the capabilities that they depend on.
type profiles struct {
	mu   sync.Mutex
	made map[string]*specs.LinuxSeccomp
}

// of is Docker's default profile for this machine's own system calls. Those of the other architectures that the processor knows
// (i386, x32) are refused, as functions are built for this one; their filters would also take the runtime three times as long to compile.
func (p *profiles) of(caps []string) (*specs.LinuxSeccomp, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := strings.Join(caps, ",")
	if f := p.made[key]; f != nil {
		return f, nil
	}
	f, err := seccomp.GetDefaultProfile(&specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: caps}}})
	if err != nil {
		return nil, err
	}
	if native, ok := nativeArch[runtime.GOARCH]; ok {
		f.Architectures, f.Syscalls = []specs.Arch{native}, nativeOnly(f.Syscalls)
	}
	f.Syscalls = reserveNothing(socketsOf32Bits(f.Syscalls))
	if p.made == nil || len(p.made) > 64 {
		p.made = map[string]*specs.LinuxSeccomp{}
	}
	p.made[key] = f
	return f, nil
}

var nativeArch = map[string]specs.Arch{"amd64": specs.ArchX86_64, "arm64": specs.ArchAARCH64, "riscv64": specs.ArchRISCV64}
