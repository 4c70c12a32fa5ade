package solo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/agent/sandbox"
	"weir.dev/weir/container/drivers"
	"weir.dev/weir/image"
	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
)

// Names of runs, and of the file that is locked while one's process lives. It gets its name when it is locked.
const (
	prefix   = "fn-"
	mark     = "solo"
	fresh    = mark + instance.FileNew
	stateDir = "/var/lib/weir"
	freshFor = time.Minute
)

// Session is a place for runs one after another. They share the files of images, which take long to unpack.
type Session struct {
	inst instance.Instance
	lock *os.File
}

// NewSession makes one.
func NewSession() (*Session, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("%w: it takes root to make containers and network namespaces (sudo)", ErrForbidden)
	}
	i, lock, err := claim()
	if err != nil {
		return nil, err
	}
	return &Session{i, lock}, nil
}

// Close removes what is left of it; its runs are closed.
func (s *Session) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), removeFor)
	defer cancel()
	return errors.Join(remove(ctx, s.inst), s.lock.Close())
}

// claim makes an instance that no other run has, and locks it.
func claim() (i instance.Instance, lock *os.File, err error) {
	if i, err = instance.New(prefix+strings.ToLower(rand.Text()[:7]), ""); err != nil {
		return i, nil, err
	}
	for _, dir := range []string{filepath.Dir(i.Root), filepath.Dir(i.Run)} {
		if err := instance.MakeDir(dir, 0o755); err != nil {
			return instance.Instance{}, nil, err
		}
	}
	if err := os.Mkdir(i.Root, 0o700); err != nil {
		return instance.Instance{}, nil, err
	}
	lock, err = os.OpenFile(filepath.Join(i.Root, fresh), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err == nil {
		err = os.Rename(filepath.Join(i.Root, fresh), filepath.Join(i.Root, mark))
	}
	if err == nil {
		err = instance.MakeDir(i.Run, 0o755)
	}
	if err != nil {
		return i, nil, errors.Join(fmt.Errorf("run of a function: %w", err), os.RemoveAll(i.Root))
	}
	return i, lock, nil
}

// Sweep removes what runs have left whose process was killed, and tells which. Runs that go on are left alone.
func Sweep(ctx context.Context) (swept []string, err error) {
	roots, err := filepath.Glob(filepath.Join(stateDir, prefix+"*"))
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, root := range roots {
		dead, err := deadRun(root)
		if err != nil || dead == nil {
			errs = append(errs, err)
			continue
		}
		i, err := instance.New(filepath.Base(root), "")
		if err == nil {
			err = removeContainers(ctx, i)
		}
		if err == nil {
			err = remove(ctx, i)
		}
		if err == nil {
			swept = append(swept, i.Name)
		}
		errs = append(errs, err, dead.Close())
	}
	return swept, errors.Join(errs...)
}

// deadRun is the lock of a run whose process has ended, taken; nil: it goes on, or is none.
func deadRun(root string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(root, mark), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		f, err = os.OpenFile(filepath.Join(root, fresh), os.O_RDWR|unix.O_NOFOLLOW, 0)
		if err == nil {
			if info, serr := f.Stat(); serr != nil || time.Since(info.ModTime()).Abs() < freshFor { // about to be locked
				return nil, errors.Join(serr, f.Close())
			}
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = nil
		}
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// removeContainers of a run, whichever runtime made them.
func removeContainers(ctx context.Context, i instance.Instance) error {
	all, err := drivers.Open(ctx, i, drivers.Options{Adopt: true, Remove: true, Log: slog.New(slog.DiscardHandler)}, drivers.Default)
	if err != nil {
		return err
	}
	return errors.Join(all.Destroy(ctx), all.Close())
}

// clearRun takes away what a run has but its container and its image.
func clearRun(ctx context.Context, i instance.Instance, images *image.Store) error {
	spaces, err := filepath.Glob(filepath.Join(i.NetnsDir(), "*"))
	if err != nil {
		return err
	}
	errs := []error{sandbox.New(i, homeOf(i), images).DeleteAll(ctx)}
	for _, space := range spaces {
		errs = append(errs, endProcesses(space), netns.Delete(space))
	}
	return errors.Join(append(errs, os.RemoveAll(filepath.Join(i.Run, "functions")))...)
}

// remove takes away all of a run but its containers. Its directories go last, and only when nothing is mounted in them any more.
func remove(ctx context.Context, i instance.Instance) error {
	images := image.Open(i)
	if err := errors.Join(clearRun(ctx, i, images), images.Destroy(ctx)); err != nil {
		return fmt.Errorf("remove run %s: %w", i.Name, err)
	}
	if mounts, err := mountsBelow(i.Run, i.Root); err != nil || len(mounts) > 0 {
		return errors.Join(err, fmt.Errorf("remove run %s: still mounted: %s", i.Name, strings.Join(mounts, ", ")))
	}
	if err := errors.Join(os.RemoveAll(i.Run), os.RemoveAll(i.Root)); err != nil {
		return err
	}
	for _, dir := range []string{filepath.Dir(i.Run), filepath.Dir(i.Root)} {
		_ = os.Remove(dir) // unless there is another instance
	}
	return nil
}

// endProcesses kills what runs in a namespace of a run: commands of the user's whose run was killed. The namespace is the run's own.
func endProcesses(space string) error {
	var want, is unix.Stat_t
	if !netns.Exists(space) || unix.Stat(space, &want) != nil {
		return nil
	}
	procs, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		return err
	}
	for _, p := range procs {
		if unix.Stat(p, &is) != nil || is.Ino != want.Ino || is.Dev != want.Dev {
			continue
		}
		pid, err := strconv.Atoi(strings.Split(p, "/")[2])
		if err != nil || pid == os.Getpid() {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it has ended
		}
		if unix.Stat(p, &is) == nil && is.Ino == want.Ino && is.Dev == want.Dev { // still the same process
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		}
		unix.Close(fd)
	}
	return nil
}

// mountsBelow lists what is mounted in directories.
func mountsBelow(dirs ...string) (found []string, err error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		for _, dir := range dirs {
			if strings.HasPrefix(fields[4], dir+"/") {
				found = append(found, fields[4])
			}
		}
	}
	return found, nil
}
