package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/instance"
)

// rights are the capabilities without which nothing goes; CAP_SYS_ADMIN stands for CAP_BPF and CAP_PERFMON too.
var rights = [...]struct {
	bit  int
	name string
}{{unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN"}, {unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"}, {unix.CAP_NET_RAW, "CAP_NET_RAW"}}

// checkRights refuses who is not root, or is root in a container or a user namespace only.
func checkRights() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w (namespaces, BPF, containers): use sudo", ErrNotRoot)
	}
	if b, err := os.ReadFile("/proc/self/uid_map"); err == nil && !slices.Equal(strings.Fields(string(b)), []string{"0", "0", "4294967295"}) {
		return fmt.Errorf("%w, and this is root of a user namespace only: start it outside (rootless containers and `unshare -U` are such)", ErrNotRoot)
	}
	var data [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0]); err != nil {
		return fmt.Errorf("own capabilities: %w", err)
	}
	var missing []string
	for _, r := range rights {
		if data[r.bit/32].Effective&(1<<(r.bit%32)) == 0 {
			missing = append(missing, r.name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w with all its capabilities, and here it lacks %s: start it outside of the container or service that takes them away",
			ErrNotRoot, strings.Join(missing, ", "))
	}
	return nil
}

// fresh tells that there was no such instance before, so that nothing of it forwards.
func (c *claim) fresh(i instance.Instance) bool {
	return slices.Contains(c.made, filepath.Join(i.Run, instance.LockFile))
}

// keeps tells of an entry of the state directory that it stays when a start fails.
func (c *claim) keeps(name string) bool {
	switch {
	case slices.Contains(c.before, name), strings.HasPrefix(name, "weir.log"), name == instance.LockFile:
		return true
	case name == restoringDir, name == replacedDir:
		return true // of a restore: the former state is in one of them
	}
	return name == secretsKeyFile && slices.Contains(c.before, etcdDir) // of the state that a restore has put there, and that stays
}

// neverWasTimeout bounds the way back of a start that failed.
const neverWasTimeout = 20 * time.Second

// neverWas removes what a start that failed has made of an instance that was not there before, and which has no containers yet.
// What was in the state directory stays, and so does the log.
func (c *claim) neverWas(ctx context.Context, i instance.Instance, d Drivers) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), neverWasTimeout)
	defer cancel()
	err := clear(ctx, i, d, nil)
	if err == nil {
		err = os.RemoveAll(i.Run)
	}
	for _, name := range stateEntries {
		if !c.keeps(name) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(i.Root, name)))
		}
	}
	if err != nil {
		return fmt.Errorf("go back: %w (`weir down` removes what is left)", err)
	}
	c.undo()
	return nil
}
