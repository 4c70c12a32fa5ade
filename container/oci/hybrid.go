package oci

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container/kernel"
)

// unified is where hosts with cgroups of both versions mount version 2.
const unified = "/sys/fs/cgroup/unified"

// start starts a call of the runtime's program.
//
// On a host with cgroups of both versions crun makes no container if version 2 has a controller ("cgroups in hybrid mode not supported"). The controllers that
// crun itself needs are of version 1 there, and it enters groups of both versions. So crun is shown that version 2 has none. Only the calls that make a
// container look.
func (e *Engine) start(verb string, cmd *exec.Cmd) error {
	if e.crun && (verb == "create" || verb == "run") {
		if file := controllersOf(unified); file != "" {
			return startWithout(file, cmd)
		}
	}
	return kernel.StartSparing(cmd)
}

// isCrun tells crun by what `--version` prints.
func isCrun(version string) bool { return strings.HasPrefix(version, "crun version ") }

// controllersOf is the file that names the controllers of a mount of version 2; "": there is no such mount, or it has no controller.
func controllersOf(mount string) string {
	var st unix.Statfs_t
	if err := unix.Statfs(mount, &st); err != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
		return ""
	}
	file := filepath.Join(mount, "cgroup.controllers")
	if raw, err := os.ReadFile(file); err != nil || len(raw) == 0 {
		return ""
	}
	return file
}

// startWithout starts a command in a mount namespace of its own, in which a file is empty. The child has the namespace of the thread that forks. That thread
// cannot go back to the host's namespace, so it ends.
func startWithout(file string, cmd *exec.Cmd) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() { // the main thread never ends, and /proc/self shows its namespace
			done <- startWithout(file, cmd)
			runtime.UnlockOSThread()
			return
		}
		done <- empty(file, cmd) // locked: the thread ends with this function
	}()
	return <-done
}

// empty changes the thread's mount namespace.
func empty(file string, cmd *exec.Cmd) error {
	err := unix.Unshare(unix.CLONE_NEWNS)
	if err == nil {
		err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	}
	if err == nil {
		err = unix.Mount(os.DevNull, file, "", unix.MS_BIND, "")
	}
	if err != nil {
		return fmt.Errorf("hide %s from the runtime, which makes no containers beside controllers of cgroup version 2: %w", file, err)
	}
	return kernel.StartSparing(cmd)
}
