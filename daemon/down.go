package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/agent/kernel"
	"weir.dev/weir/agent/sandbox"
	"weir.dev/weir/agent/secrets"
	"weir.dev/weir/api"
	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
)

// DownOptions say what stays.
type DownOptions struct {
	Instance  instance.Instance
	KeepState bool // keep the state directory: `weir up` brings everything back
	Drivers   Drivers
	// Progress hears what is being removed, and how much of it is gone where it is many things; else all is 0. nil: nobody does.
	Progress func(what string, done, all int)
}

// progress is somebody who hears of it, or nil.
type progress func(what string, done, all int)

func (p progress) of(what string, done, all int) {
	if p != nil {
		p(what, done, all)
	}
}

// stopGrace is how long the daemon may take to end.
const stopGrace = 10 * time.Second

// Down ends the daemon and removes everything that the instance made, and nothing else. Safe to call twice, and after a crash at any point.
func Down(ctx context.Context, o DownOptions) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("weir down: %w: use sudo", ErrNotRoot)
	}
	i := o.Instance
	if err := checkState(i, stateNames(i)); err != nil {
		return err
	}
	if err := GoHome(i); err != nil {
		return err
	}
	tell := progress(o.Progress)
	tell.of("the daemon", 0, 0)
	if err := stop(ctx, i, stopGrace); err != nil {
		return err
	}
	c, err := (&claim{ending: true}).take(i)
	if err != nil {
		return err
	}
	defer c.release()
	tell.of("containers", 0, 0)
	if err := errors.Join(o.Drivers.DestroyRuntime(ctx, i, o.KeepState), clear(ctx, i, o.Drivers, tell)); err != nil {
		return err // the directories stay, so that another `weir down` finds what is left
	}
	if err := os.RemoveAll(i.Run); err != nil {
		return err
	}
	_ = os.Remove(filepath.Dir(i.Run)) // /run/weir, if this was the last instance
	if o.KeepState {
		return nil
	}
	if err := removeState(i); err != nil {
		return err
	}
	_ = os.Remove("/var/lib/weir") // if empty
	return nil
}

// clear removes what the instance made outside its directories, but containers.
func clear(ctx context.Context, i instance.Instance, d Drivers, tell progress) error {
	tell.of("the switch", 0, 0)
	errs := []error{d.DestroySwitch(ctx, i)}
	tell.of("links", 0, 0)
	errs = append(errs, deleteLinks(i, tell), deleteNamespaces(i, tell))
	boxes := sandbox.New(i, kernel.Host{}, nil)
	boxes.Told = tell.of
	errs = append(errs, boxes.DeleteAll(ctx), secrets.Delete(i))
	tell.of("mounted images", 0, 0)
	errs = append(errs, d.Images(i).Destroy(ctx))
	if err := unix.Unmount(filepath.Join(i.Run, homeFile), unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		errs = append(errs, fmt.Errorf("unmount %s: %w", filepath.Join(i.Run, homeFile), err))
	}
	return errors.Join(errs...)
}

// stateEntries are all names that Weir makes in a state directory; a directory given by --root may hold other people's files.
var stateEntries = append([]string{"etcd", "images", "token", "token" + instance.FileNew, "agent.pem", "agent.pem" + instance.FileNew,
	"inforce.json", "inforce.json" + instance.FileNew, "intent.json", "intent.json" + instance.FileNew, "probe.key", "probe.key" + instance.FileNew, "tunnel.key", "tunnel.key" + instance.FileNew,
	"sessions.json", "sessions.json" + instance.FileNew, "weir.log", "weir.log.1", "logs", instance.LockFile,
	"audit.log", "audit.log.1", "audit.log.2", "audit.log.3", "audit.log.4", secretsKeyFile, secretsKeyFile + instance.FileNew,
	restoringDir, replacedDir, snapshotDir, "lab"}, slices.DeleteFunc(api.Runtimes(), func(name string) bool { return name == api.RuntimeOCI })...) // each runtime has a directory

func removeState(i instance.Instance) error {
	for _, name := range stateEntries {
		if err := os.RemoveAll(filepath.Join(i.Root, name)); err != nil {
			return err
		}
	}
	_ = os.Remove(i.Root) // if nothing else is in it
	return nil
}

// deleteLinks removes every link of this namespace with the instance's mark.
func deleteLinks(i instance.Instance, tell progress) error {
	_, err := netns.DeleteByAlias(i.Alias(""), func(done, all int) { tell.of("links", done, all) })
	return err
}

func deleteNamespaces(i instance.Instance, tell progress) error {
	if err := netns.Delete(i.TunnelNetns()); err != nil {
		return err
	}
	entries, err := os.ReadDir(i.NetnsDir())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for n, e := range entries {
		tell.of("network namespaces", n, len(entries))
		err = errors.Join(err, netns.Delete(filepath.Join(i.NetnsDir(), e.Name())))
	}
	return err
}

// onLockedThread runs f on a thread of its own that dies if f returns, since its namespace may have changed.
func onLockedThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}
