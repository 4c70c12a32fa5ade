package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/moby/profiles/seccomp"
	"github.com/moby/sys/capability"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
)

const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// maxLog bounds every file of a container with a read-only root, in bytes, and so its log between two cuts: the other files are in memory. The kernel holds
// the limit (RLIMIT_FSIZE), so it stands when nobody cuts, as after a kill -9 of the daemon. A write beyond it fails with EFBIG, at once, and the signal
// that comes with it ends nobody: see startSparing. What is lost is said in the log at the next cut.
const maxLog = 32 << 20

// check finds what the runtime would find too late or say badly.
func check(s container.Spec) error {
	switch {
	case len(s.Args) == 0 || s.Args[0] == "":
		return errors.New("no command: the image has no entrypoint, so the spec must name one")
	case s.CPUs < 0 || s.Memory < 0 || s.PIDs < 0:
		return errors.New("cpus, memory and pids must not be negative")
	case s.Memory > 0 && s.Memory < 512<<10:
		return fmt.Errorf("memory %d bytes: want at least 512K", s.Memory)
	}
	if fi, err := os.Stat(s.Rootfs); err != nil || !fi.IsDir() {
		return fmt.Errorf("root file system %q is not there: is its image mounted?", s.Rootfs)
	}
	for kind, path := range map[string]string{"network": s.Netns, "user": s.Userns} {
		if err := checkNamespace(kind, path); err != nil {
			return err
		}
	}
	switch {
	case s.Userns != "" && (s.IDs.Count == 0 || s.Netns == ""):
		return errors.New("a user namespace wants its ids, and the network namespace that it owns")
	case s.Userns != "" && !s.ReadOnly:
		return errors.New("a user namespace wants a read-only root")
	case s.Log != "" && !idPattern.MatchString(s.Log):
		return fmt.Errorf("log %q: want a name such as an id", s.Log)
	}
	for _, c := range s.Capabilities {
		if !knownCapability(c) {
			return fmt.Errorf("unknown capability %q: want names like CAP_NET_ADMIN", c) // runtimes leave it out in silence
		}
	}
	for _, m := range s.Mounts {
		if !path.IsAbs(m.Target) || !path.IsAbs(m.Source) {
			return fmt.Errorf("mount %s -> %s: want absolute paths", m.Source, m.Target)
		}
		if _, err := os.Lstat(m.Source); err != nil {
			return fmt.Errorf("mount: %w", err)
		}
	}
	return checkTargets(s)
}

func checkNamespace(kind, path string) error {
	if path == "" {
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return fmt.Errorf("%s namespace %s: %w", kind, path, err)
	}
	if st.Type != unix.NSFS_MAGIC && st.Type != unix.PROC_SUPER_MAGIC {
		return fmt.Errorf("%s namespace %s: this is no namespace (not mounted any more?)", kind, path)
	}
	return nil
}

// checkTargets finds a mount point that is missing in a read-only root. The runtime would make it, in the image where it can.
func checkTargets(s container.Spec) error {
	if !s.ReadOnly {
		return nil
	}
	root, err := os.OpenRoot(s.Rootfs)
	if err != nil {
		return fmt.Errorf("root file system: %w", err)
	}
	defer root.Close()
	for _, m := range mounts(s) {
		rel := strings.TrimPrefix(path.Clean(m.Destination), "/")
		if top, _, inside := strings.Cut(rel, "/"); inside && slices.Contains([]string{"run", "tmp", "dev"}, top) {
			continue // these are empty at each start
		}
		if _, err := root.Stat(rel); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("mount %s: the image has no %s and its root is read-only", m.Source, m.Destination)
		}
	}
	return nil
}

// knownCapability tells names that the kernel has, such as CAP_NET_ADMIN.
func knownCapability(name string) bool {
	return slices.ContainsFunc(capability.ListKnown(), func(c capability.Cap) bool { return "CAP_"+strings.ToUpper(c.String()) == name })
}

// writeBundle makes the bundle with config.json and the record, and mounts the writable layer if there is one.
func (r *Runtime) writeBundle(rec record) error {
	s := rec.Spec
	bundle := r.bundle(s.ID)
	if err := os.Mkdir(bundle, 0o700); err != nil {
		return fmt.Errorf("make bundle: %w", err)
	}
	if err := rec.write(bundle); err != nil {
		return err
	}
	root := s.Rootfs
	if !s.ReadOnly {
		var err error
		if root, err = r.mountWritable(s); err != nil {
			return err
		}
	}
	config, err := r.config(s, root)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(config)
	if err != nil {
		return fmt.Errorf("write config: %w", err)
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), raw, 0o600); err != nil {
		return fmt.Errorf("write config: %w", err)
	}
	return nil
}

func (r *Runtime) mountWritable(s container.Spec) (string, error) {
	dir := r.writable(s.ID)
	root := filepath.Join(dir, "root")
	for _, d := range []string{filepath.Join(dir, "upper"), filepath.Join(dir, "work"), root} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return "", fmt.Errorf("make writable layer: %w", err)
		}
	}
	lower := s.Rootfs
	if strings.ContainsAny(lower+dir, `:,\`) {
		return "", fmt.Errorf("make writable layer: %q: overlayfs wants paths without ':', ',' and '\\'", lower)
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", lower, filepath.Join(dir, "upper"), filepath.Join(dir, "work"))
	if err := unix.Mount("weir-"+r.inst.Name, root, "overlay", unix.MS_NODEV|unix.MS_NOSUID, options); err != nil {
		return "", fmt.Errorf("mount writable layer (overlayfs on %s): %w", dir, err)
	}
	return root, nil
}

func (r *Runtime) config(s container.Spec, root string) (*specs.Spec, error) {
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
	filter, err := r.seccomp.of(s.Capabilities)
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
			Rlimits: limits,
		},
		Hostname:    s.ID,
		Mounts:      mounts(s),
		Annotations: s.Annotations,
		Linux: &specs.Linux{
			CgroupsPath: r.cgroupPath(s.ID), Resources: r.resources(s), Seccomp: filter,
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

func mounts(s container.Spec) []specs.Mount {
	out := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "noexec", "strictatime", "mode=755", "size=64k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
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
		f.Architectures = []specs.Arch{native}
	}
	if p.made == nil || len(p.made) > 64 {
		p.made = map[string]*specs.LinuxSeccomp{}
	}
	p.made[key] = f
	return f, nil
}

var nativeArch = map[string]specs.Arch{"amd64": specs.ArchX86_64, "arm64": specs.ArchAARCH64, "riscv64": specs.ArchRISCV64}
