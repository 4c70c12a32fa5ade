package oci

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// limitsFile of a bundle has arguments of prlimit(1): limits that the runtime's program is started with, and that the container inherits. Docker's script
// reads it, too.
const limitsFile = "limits"

// inherit takes the limits out of a configuration, for where the runtime may not set them itself: it does so from outside of the container's user
// namespace, which belongs to nobody, and for that it needs CAP_SYS_RESOURCE. Where it has that, as on most hosts, nothing is done. runc, which is
// written in Go, then leaves its containers the soft limit of open files at the hard one.
func inherit(bundle string, config *specs.Spec, userns string) error {
	file := filepath.Join(bundle, limitsFile)
	if userns == "" || resourceful() {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	var args []string
	for _, l := range config.Process.Rlimits {
		args = append(args, fmt.Sprintf("--%s=%d:%d", strings.ToLower(strings.TrimPrefix(l.Type, "RLIMIT_")), l.Soft, l.Hard))
	}
	config.Process.Rlimits = nil
	return os.WriteFile(file, []byte(strings.Join(args, " ")+"\n"), 0o600)
}

// scored is a command of crun's with the OOM score that the container is to have, where that is not this process's. crun takes a score of 0 for none, and sets none
// for a process of exec.
func (e *Engine) scored(argv []string) []string {
	score := e.home.Score()
	if score == nil {
		return argv
	}
	return append([]string{"choom", "--adjust", strconv.Itoa(*score), "--"}, argv...)
}

// resourceful tells whether this process has CAP_SYS_RESOURCE; its children have it then.
func resourceful() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var has [2]unix.CapUserData
	return unix.Capget(&header, &has[0]) == nil && has[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// limited is a command of the runtime's program with the limits of a bundle, where it has some.
func limited(bundle string, argv []string) ([]string, error) {
	raw, err := os.ReadFile(filepath.Join(bundle, limitsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return argv, nil
	}
	if err != nil {
		return nil, err
	}
	return append(append([]string{"prlimit"}, strings.Fields(string(raw))...), argv...), nil
}
