package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/moby/sys/capability"
	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
)

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
	return slices.ContainsFunc(capability.ListKnown(), func(c capability.Cap) bool { return CapabilityName(c) == name })
}
