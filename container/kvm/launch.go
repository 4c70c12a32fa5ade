package kvm

import (
	"bytes"
	"context"
	"crypto/rand"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/moby/sys/capability"
	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kvm/channel"
	"weir.dev/weir/container/kvm/erofs"
	"weir.dev/weir/netns"
)

// configLimits bound what is copied of a container's mounts.
var configLimits = erofs.Limits{Files: 10_000, Bytes: 64 << 20}

// writeConfig makes the disk that tells the machine what it is to be, and returns the sockets of ours that it can reach.
func (e *Engine) writeConfig(c kernel.Container, from *template, ports []*port) ([]string, error) {
	limits := e.home.LimitsOf(c.Spec)
	m := channel.Machine{
		Hostname: c.ID, ReadOnly: c.ReadOnly, Dir: c.Dir, UID: c.UID, GID: c.GID, PIDs: limits.PIDs, Forwarder: c.Forwarder,
		Process: channel.Process{Args: c.Args, Env: withPath(c.Env)}, Capabilities: capabilities(c.Capabilities),
	}
	if slices.Contains(c.Capabilities, "CAP_NET_ADMIN") {
		m.Modules = expected
	}
	for _, p := range ports {
		m.Links = append(m.Links, channel.Link{MAC: p.mac.String(), Name: p.name, MTU: p.mtu})
	}
	if c.Shared != nil {
		share(&m, c)
	}
	if from != nil {
		m.Seed, m.Now = make([]byte, 64), time.Now().UnixNano()
		if _, err := rand.Read(m.Seed); err != nil {
			return nil, err
		}
	}
	copies, copied := erofs.Dir(channel.MountsDir), marks{}
	for i, mount := range c.Mounts {
		n, err := copied.scan(c, i)
		if err != nil {
			return nil, fmt.Errorf("copy %s into the virtual machine: %w", mount.Source, err)
		}
		if n == nil {
			return nil, fmt.Errorf("mount %s: a virtual machine gets files and directories; a socket has to be in a directory that is mounted", mount.Source)
		}
		n.Name = strconv.Itoa(i)
		copies.Children = append(copies.Children, n)
		m.Mounts = append(m.Mounts, channel.Mount{Target: mount.Target, Dir: n.Mode.IsDir(), ReadOnly: mount.ReadOnly})
	}
	if err := copied.save(c.Bundle); err != nil {
		return nil, err
	}
	sockets := socketsOf(c.Mounts)
	m.Sockets = sockets.list
	text, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	root := erofs.Dir("", erofs.File(channel.MachineFile, 0o600, text), copies)
	if err := writeImage(filepath.Join(c.Bundle, configFile), root); err != nil {
		return nil, fmt.Errorf("configuration of the virtual machine: %w", err)
	}
	return sockets.paths(), nil
}

// expected are the modules that a function with CAP_NET_ADMIN is likely to use: a bridge, and a packet filter that knows connections.
var expected = []string{"bridge", "nf_tables", "nft_meta_bridge", "nf_conntrack_bridge", "nft_ct", "nft_reject_bridge"}

const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func withPath(env []string) []string {
	if slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, "PATH=") }) {
		return env
	}
	return append([]string{defaultPath}, env...)
}

// capabilities are the bits of names, which package kernel has checked.
func capabilities(names []string) (mask uint64) {
	for _, c := range capability.ListKnown() {
		if slices.Contains(names, "CAP_"+strings.ToUpper(c.String())) {
			mask |= 1 << uint(c)
		}
	}
	return mask
}

// sockets are those in the directories that a container mounts.
type sockets struct {
	mounts []container.Mount
	list   []channel.Socket
}

// mostSockets of a container.
const mostSockets = 16

// eventSockets are reached although they may come later: a function's agent makes them.
var eventSockets = map[string]string{"/run/weir": "events.sock"}

func socketsOf(mounts []container.Mount) sockets {
	s := sockets{mounts: mounts}
	for i, m := range mounts {
		names := []string{}
		if name := eventSockets[path.Clean(m.Target)]; name != "" {
			names = append(names, name)
		}
		entries, _ := os.ReadDir(m.Source) // a file has none
		for _, e := range entries {
			if e.Type() == fs.ModeSocket && !slices.Contains(names, e.Name()) {
				names = append(names, e.Name())
			}
		}
		for _, name := range names {
			if len(s.list) < mostSockets {
				s.list = append(s.list, channel.Socket{Mount: i, Name: name, Datagrams: takesDatagrams(filepath.Join(m.Source, name))})
			}
		}
	}
	return s
}

// takesDatagrams tells it of a socket that listens. Nothing is sent, and one of another kind notices nothing.
func takesDatagrams(path string) bool {
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return false
	}
	c.Close()
	return true
}

func (s sockets) paths() (out []string) {
	for _, one := range s.list {
		out = append(out, filepath.Join(s.mounts[one.Mount].Source, one.Name))
	}
	return out
}

// opener opens the files that QEMU is given, and remembers the first that cannot be.
type opener struct {
	dir   string // of those that a machine writes
	files []*os.File
	err   error
}

func (o *opener) keep(f *os.File, err error) *os.File {
	if err != nil {
		o.err = errors.Join(o.err, err)
		return nil
	}
	o.files = append(o.files, f)
	return f
}

func (o *opener) read(path string) *os.File { return o.keep(os.Open(path)) }

// written is a file of the machine's own.
func (o *opener) written(name string) *os.File {
	return o.keep(os.OpenFile(filepath.Join(o.dir, name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600))
}

// listens is a socket on which QEMU will answer.
func (o *opener) listens(name string) *os.File {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(o.dir, name), Net: "unix"})
	if err != nil {
		return o.keep(nil, err)
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	return o.keep(l.File())
}

func (o *opener) close() {
	for _, f := range o.files {
		f.Close()
	}
}

// begin starts QEMU. It is given files, and opens nothing by a name but its own; it is a user who owns nothing.
// With a template it goes on where that was.
func (e *Engine) begin(ctx context.Context, s start, from *template, t try) (*exec.Cmd, error) {
	c := s.Container
	o := opener{dir: c.Bundle}
	defer o.close()
	limits := e.home.LimitsOf(c.Spec)
	ram := o.keep(memory(limits.Memory))
	if o.err != nil {
		return nil, o.err
	}
	user, err := e.user(c)
	if err != nil {
		return nil, err
	}
	q := command{pci: c.Shared != nil}
	extra := t.words
	if from != nil {
		if err := q.copies(from); err != nil {
			return nil, notUp{err}
		}
		defer q.filler.close()
		q.add("-incoming", "defer")
		extra = append(extra, channel.Template)
	}
	q.basis(s.shape, limits.Memory, processors(limits), ram)
	q.boots(s.shape, o.read(s.system.kernel()), o.read(s.system.initrd()), o.written(consoleFile), o.written(exitFile), extra...)
	q.devices(s.shape, o.read(s.system.modules()), o.read(filepath.Join(c.Bundle, "root")), o.read(filepath.Join(c.Bundle, configFile)),
		o.listens(controlSocket), o.listens(qmpSocket), s.log)
	for i, p := range s.ports {
		q.netdev(s.shape, i, p)
	}
	if c.Shared != nil {
		q.share(s.shape, len(s.ports), c, o.keep(socketDir(c.Shared.Dir, user)))
	}
	words := o.written(wordsFile)
	if o.err != nil {
		return nil, fmt.Errorf("files of the virtual machine: %w", o.err)
	}
	cmd, err := e.run(ctx, c.Spec, user, q, words)
	if err != nil && from != nil && ctx.Err() == nil {
		err = notUp{err}
	}
	return cmd, err
}

// memory is a machine's, as a file without a name: of small pages, so that what the machine has not touched, or has given back, is not there.
func memory(size int64) (*os.File, error) {
	fd, err := unix.MemfdCreate("weir-machine", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memory of the virtual machine: %w", err)
	}
	f := os.NewFile(uintptr(fd), "memory")
	if err := f.Truncate(size); err != nil {
		return nil, errors.Join(fmt.Errorf("memory of the virtual machine: %w", err), f.Close())
	}
	return f, nil
}

// run starts QEMU as a user.
func (e *Engine) run(ctx context.Context, s container.Spec, user uint32, q command, words *os.File) (*exec.Cmd, error) {
	args := kernel.Bounded(e.qemu, q.args...)
	cmd := exec.Command(args[0], args[1:]...)
	if q.filler != nil && cmd.Err == nil {
		done, err := q.filler.before(cmd, &q)
		if err != nil {
			return nil, err
		}
		defer done()
	}
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = []string{}, "/", words, words, q.files
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid: true, Credential: &syscall.Credential{Uid: user, Gid: user, Groups: kvmGroup()}, Cloneflags: unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
	}
	if err := e.home.StartIn(s, s.Netns, cmd); err != nil {
		return nil, fmt.Errorf("start QEMU: %w (util-linux has prlimit)", err)
	}
	if q.filler == nil {
		return cmd, nil
	}
	begins, cancel := inTime(ctx, cmd.Process.Pid, e.boots)
	defer cancel()
	if err := q.filler.wait(begins); err != nil {
		_ = cmd.Process.Kill()
		_ = kernel.Wait(cmd)
		return nil, err
	}
	return cmd, nil
}

// kvmGroup is the group that may open /dev/kvm.
func kvmGroup() []uint32 {
	var st unix.Stat_t
	if unix.Stat("/dev/kvm", &st) != nil || st.Gid == 0 {
		return nil
	}
	return []uint32{st.Gid}
}

// user is who QEMU is: root of the container's user namespace, who is nobody here, or else the first of some ids of its own.
func (e *Engine) user(c kernel.Container) (uint32, error) {
	if c.IDs.First != 0 {
		return c.IDs.First, nil
	}
	if first, ok := takenIDs(c.Bundle); ok { // by the same machine, which has not come up from a template
		return first, nil
	}
	ids, err := netns.TakeIDs(c.Bundle)
	if err != nil {
		return 0, err
	}
	return ids.First, os.Symlink(strconv.Itoa(int(ids.First)), filepath.Join(c.Bundle, idsLink))
}

// processors of a machine: as many as its share of the host's comes to.
func processors(l container.Limits) int {
	return max(1, min(int(math.Ceil(l.CPUs)), runtime.NumCPU()))
}

// checkArch finds a program that is for other processors, which would not be executed.
func checkArch(rootfs, command string) error {
	if !path.IsAbs(command) {
		return nil
	}
	root, err := os.OpenRoot(rootfs)
	if err != nil {
		return err
	}
	defer root.Close()
	f, err := root.Open(strings.TrimPrefix(path.Clean(command), "/"))
	if err != nil {
		return nil // the machine says so, if it is not there
	}
	defer f.Close()
	info, err := elf.NewFile(f)
	if err != nil || info.Machine == elf.EM_X86_64 || info.Machine == elf.EM_386 {
		return nil
	}
	return fmt.Errorf("command %s is for %s: virtual machines here have %s: use an image for linux/%s", command, info.Machine, elf.EM_X86_64, arch)
}

// explain adds to an error what QEMU and the machine have said last.
func (e *Engine) explain(c kernel.Container, err error) error {
	if exit, ok := readExit(c.Bundle); ok && exit.Error != "" {
		said := strings.ReplaceAll(exit.Error, "no space left on device", "no space left in its memory: give the function more") // that is its disk
		return fmt.Errorf("%w: %s", err, printable(said))
	}
	if words := tail(c.Bundle, wordsFile, 3); words != "" {
		err = fmt.Errorf("%w: QEMU: %s", err, printable(words))
	}
	if words := tail(c.Bundle, consoleFile, lastLines); words != "" {
		words = words[max(0, len(words)-maxText):]
		err = fmt.Errorf("%w; its console: %s", err, printable(words))
		if why := lastWords(c.Bundle); !strings.Contains(words, why) { // a trace is behind it
			err = fmt.Errorf("%w: %s", err, printable(why))
		}
	}
	return err
}

// lastLines of a console tell enough.
const lastLines = 8

// tail is the last lines of one of a machine's files.
func tail(bundle, name string, lines int) string {
	f, err := os.Open(filepath.Join(bundle, name))
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	text, err := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-4096), 4096))
	if err != nil {
		return ""
	}
	all := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines):], []byte("\n")))
}
