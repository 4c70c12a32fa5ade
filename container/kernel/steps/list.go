package steps

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container/kernel/launcher"
)

// Descriptors of the launcher's process.
const (
	SaidFD = launcher.FirstFile + iota // what it says goes there
	GoFD                               // a byte from there lets a first process start; one more process has the launcher there
	MoreFD                             // the first of Files
)

// List is a list in the making, with the files that it wants open.
type List struct {
	*launcher.Program
	*Files
}

func New() *List { return &List{launcher.New(SaidFD), &Files{lent: map[*os.File]bool{}}} }

// Inside is a list for the same process, later.
func (l *List) Inside() *List { return &List{launcher.New(SaidFD), l.Files} }

// Done is l, or what went wrong in the making.
func (l *List) Done() (*List, error) {
	if l.err != nil {
		l.Close()
		return nil, l.err
	}
	return l, nil
}

// Files are what a process has open from MoreFD on. What goes wrong is kept; the number then is -1.
type Files struct {
	all  []*os.File
	lent map[*os.File]bool
	err  error
}

// Add adds a file, which Close closes, and is its number in the process.
func (f *Files) Add(file *os.File) int {
	f.all = append(f.all, file)
	return MoreFD + len(f.all) - 1
}

// Lend is Add for a file that is another's to close.
func (f *Files) Lend(file *os.File) int {
	f.lent[file] = true
	return f.Add(file)
}

// Open adds a file by its name.
func (f *Files) Open(name string) int {
	file, err := os.Open(name)
	if err != nil {
		f.Fail(err)
		return -1
	}
	return f.Add(file)
}

// Tree takes a directory or file with all mounts below it from the host's tree, and sets flags of these mounts, such as unix.MOUNT_ATTR_RDONLY.
func (f *Files) Tree(source string, set uint64) int {
	file, err := takeTree(source, set)
	if err != nil {
		f.Fail(err)
		return -1
	}
	return f.Add(file)
}

// Put replaces a file that Add has a place for.
func (f *Files) Put(fd int, file *os.File) { f.all[fd-MoreFD] = file }

// All are for launcher.Command, behind those of SaidFD and GoFD.
func (f *Files) All() []*os.File { return f.all }

func (f *Files) Fail(err error) { f.err = errors.Join(f.err, err) }

func (f *Files) Err() error { return f.err }

// Close closes them here. Safe to call twice.
func (f *Files) Close() {
	for _, file := range f.all {
		if !f.lent[file] {
			file.Close()
		}
	}
}

func takeTree(source string, set uint64) (*os.File, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return nil, fmt.Errorf("take %s: %w", source, err)
	}
	f := os.NewFile(uintptr(fd), source)
	attr := unix.MountAttr{Attr_set: set, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		return nil, errors.Join(fmt.Errorf("mount flags of %s: %w", source, err), f.Close())
	}
	return f, nil
}

// DeviceFlags let devices be used, and not be changed: without a user namespace the container's root owns them, the host's.
const DeviceFlags = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC | unix.MOUNT_ATTR_RDONLY

// OpenNull opens the null device on a mount of its own that is only read: it stands for streams that are not there, and what has it open could change the
// host's device else.
func OpenNull() (*os.File, error) {
	tree, err := takeTree(os.DevNull, DeviceFlags)
	if err != nil {
		return nil, err
	}
	defer tree.Close()
	fd, err := unix.Open(launcher.Descriptor(int(tree.Fd())), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", os.DevNull, err)
	}
	return os.NewFile(uintptr(fd), os.DevNull), nil
}
