package entry

import (
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// kind of a step, as in steps.h.
type kind uint32

const (
	reply kind = iota + 1
	join
	outlive
	enter
	root
	unshare
	mount
	move
	directory
	touch
	hostname
	limit
	identity
	change
	dup
	private
	part
	mask
	filter
	own
	words
	find
	pass
	seal
	execute
	session
	open
	reroot
	write
)

const (
	magic    = 0x77656972
	ready    = 0xffffffff
	headSize = 16
	stepSize = 40
	mostList = 1 << 20 // entry.c's buffer
	mostArgs = 8192    // and vectors
)

type step struct {
	kind        kind
	number      uint32
	flags, hard uint64
	text        [4]uint32 // places in blob; of identity user and group
	says        string    // what it does, for its error
}

// List is what the program entry does, in order. The descriptors that it names are numbered by Files.
type List struct {
	first uint32 // what its first step is called in a reply
	steps []step
	blob  []byte // strings, each with a NUL behind it; the first is empty
}

// add appends a step that one can name in an error.
func (l *List) add(says string, k kind, number uint32, flags uint64, texts ...string) *step {
	s := step{kind: k, number: number, flags: flags, says: says}
	for i, t := range texts {
		s.text[i] = l.string(t)
	}
	l.steps = append(l.steps, s)
	return &l.steps[len(l.steps)-1]
}

func (l *List) string(t string) uint32 {
	if len(l.blob) == 0 {
		l.blob = []byte{0}
	}
	if t == "" {
		return 0
	}
	at := len(l.blob)
	l.blob = append(append(l.blob, t...), 0)
	return uint32(at)
}

func (l *List) strings(all []string) uint32 {
	at := l.string("\x00") // a start of their own, the empty string included
	l.blob = l.blob[:at]
	for _, t := range all {
		l.blob = append(append(l.blob, t...), 0)
	}
	return at
}

// Join moves the process into a cgroup by one of its files, cgroup.procs or tasks.
func (l *List) Join(entrance string) { l.add("join cgroup "+entrance, join, 0, 0, entrance) }

// JoinOpen is Join by a descriptor.
func (l *List) JoinOpen(entrance string, fd int) { l.add("join cgroup "+entrance, join, uint32(fd), 0) }

// Outlive: the end of the process's parent is no end of it.
func (l *List) Outlive() { l.add("outlive the parent", outlive, 0, 0) }

// Follow: the process ends with its parent.
func (l *List) Follow() { l.add("follow the parent", outlive, 0, uint64(unix.SIGKILL)) }

// Enter is setns(2) with a descriptor.
func (l *List) Enter(what string, fd int, flags int) {
	l.add("enter "+what, enter, uint32(fd), uint64(flags))
}

// Session makes one of the process's own, with a process group of its own.
func (l *List) Session() { l.add("make a session", session, 0, 0) }

// Root takes user and group 0, of the user namespace that was entered.
func (l *List) Root() { l.add("become root of the user namespace", root, 0, 0) }

// Unshare is unshare(2).
func (l *List) Unshare(flags int) { l.add("make namespaces", unshare, 0, uint64(flags)) }

// Mount is mount(2).
func (l *List) Mount(source, target, fstype string, flags uintptr, data string) {
	l.add(fmt.Sprintf("mount %s (%s) on %s", source, fstype, target), mount, 0, uint64(flags), source, target, fstype, data)
}

// MountIfThere is Mount on a path that not every kernel has.
func (l *List) MountIfThere(source, target, fstype string, flags uintptr, data string) {
	l.Mount(source, target, fstype, flags, data)
	l.steps[len(l.steps)-1].number = 1
}

// Move puts a mount that open_tree(2) made at a place.
func (l *List) Move(source string, fd int, target string) {
	l.add(fmt.Sprintf("mount %s on %s", source, target), move, uint32(fd), 0, target)
}

// Directory makes one unless it is there.
func (l *List) Directory(path string, mode uint32) {
	l.add("make directory "+path, directory, 0, uint64(mode), path)
}

// Path makes a directory and those above it.
func (l *List) Path(dir string) {
	for i := 1; i < len(dir); i++ {
		if dir[i] == '/' {
			l.Directory(dir[:i], 0o755)
		}
	}
	l.Directory(dir, 0o755)
}

// Touch makes an empty file unless it is there.
func (l *List) Touch(path string) { l.add("make file "+path, touch, 0, 0o644, path) }

// Hostname is sethostname(2).
func (l *List) Hostname(name string) { l.add("set hostname "+name, hostname, 0, 0, name) }

// Limit is setrlimit(2).
func (l *List) Limit(name string, resource int, soft, hard uint64) {
	l.add("set limit "+name, limit, uint32(resource), soft).hard = hard
}

// Identity takes a user, a group, no other groups, and exactly these capabilities.
func (l *List) Identity(uid, gid uint32, caps uint64) {
	l.add(fmt.Sprintf("become user %d, group %d with capabilities %#x", uid, gid, caps), identity, 0, caps).text = [4]uint32{uid, gid}
}

// Change is chdir(2).
func (l *List) Change(dir string) {
	l.add(fmt.Sprintf("enter working directory %q of the image", dir), change, 0, 0, dir)
}

// Open opens a file as a descriptor.
func (l *List) Open(path string, flags int, fd int) {
	l.add("open "+path, open, uint32(fd), uint64(flags), path)
}

// Write writes a text into a file.
func (l *List) Write(path, text string) { l.add("write "+path, write, 0, 0, path, text) }

// Reroot makes a directory the root and the working directory.
func (l *List) Reroot(fd int) { l.add("enter the root", reroot, uint32(fd), 0) }

// Dup is dup2(2).
func (l *List) Dup(from, to int) { l.add("copy a descriptor", dup, uint32(from), uint64(to)) }

// Private lets nobody look into the process before it executes its program.
func (l *List) Private() { l.add("hide", private, 0, 0) }

// Part leaves a process outside, and goes on in a child of it. With terminal the standard input becomes the child's terminal.
func (l *List) Part(terminal bool) {
	flags := uint64(0)
	if terminal {
		flags = 1
	}
	l.add("start a process in the container", part, 0, flags)
}

// Mask blocks these signals and no others, all with their default actions, and sets the usual umask.
func (l *List) Mask(signals uint64) { l.add("block signals", mask, 0, signals) }

// Filter sets no_new_privs and a filter of system calls, see package filter.
func (l *List) Filter(program []byte) {
	if len(l.blob) == 0 {
		l.blob = []byte{0}
	}
	for (headSize+len(l.blob))%8 != 0 {
		l.blob = append(l.blob, 0)
	}
	at := uint32(len(l.blob))
	l.blob = append(l.blob, program...)
	l.add("filter system calls", filter, uint32(len(program)/8), 0).text[0] = at
}

// Words are arguments and environment of what Execute executes. numbered, such as
// LISTEN_PID=, is one more variable, whose value is the process's id.
func (l *List) Words(args, env []string, numbered string) {
	if numbered != "" {
		env = append([]string{numbered + "          "}, env...) // room for the number
	}
	at := l.strings(args)
	vars := l.strings(env)
	l.add("take arguments", words, uint32(len(args)), uint64(len(env))).text = [4]uint32{at, vars}
	if numbered != "" {
		l.add("number the process", own, 0, 0).text[0] = vars
	}
}

// Find looks the first argument up in PATH of the environment.
func (l *List) Find() { l.add("find the command", find, 0, 0) }

// Pass reports that all is ready, and waits for a byte from the gate.
func (l *List) Pass(gate int) { l.add("wait for the start", pass, uint32(gate), 0) }

// Reply names where errors and readiness are reported: a descriptor, or with again one that is opened once more, so that it ends with this process.
func (l *List) Reply(fd int, again bool) {
	flags := uint64(0)
	if again {
		flags = 1
	}
	l.add("open the reply", reply, uint32(fd), flags)
}

// Seal lets no descriptor but the standard streams reach what is executed.
func (l *List) Seal() { l.add("close descriptors", seal, 0, 0) }

// Execute is execve(2) of a path, or of what Find has found.
func (l *List) Execute(path string) {
	says := "execute " + path
	if path == "" {
		says = "execute the command"
	}
	l.add(says, execute, 0, 0, path)
}

// file gives the list to a process. Nobody who gets it can change it.
func (l *List) file() (*os.File, error) {
	raw, err := l.bytes()
	if err != nil {
		return nil, err
	}
	return memory("weir-list", raw)
}

// bytes is the list as entry.c reads it.
func (l *List) bytes() ([]byte, error) {
	if len(l.blob) == 0 {
		l.blob = []byte{0}
	}
	base := uint32(headSize + stepSize*len(l.steps))
	size := int(base) + len(l.blob) + 8
	if size > mostList {
		return nil, fmt.Errorf("arguments and environment take %d bytes, at most %d are possible", len(l.blob), mostList-int(base))
	}
	raw := make([]byte, 0, size)
	le := binary.LittleEndian
	for _, word := range []uint32{magic, uint32(len(l.steps)), l.first, 0} {
		raw = le.AppendUint32(raw, word)
	}
	for _, s := range l.steps {
		raw = le.AppendUint32(le.AppendUint32(raw, uint32(s.kind)), s.number)
		raw = le.AppendUint64(le.AppendUint64(raw, s.flags), s.hard)
		for _, t := range s.text {
			if s.kind != identity {
				t += base
			}
			raw = le.AppendUint32(raw, t)
		}
	}
	raw = append(raw, l.blob...)
	return append(raw, 0), nil
}

// memory makes a sealed file of a content.
func memory(name string, content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make file in memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err = f.Write(content); err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("make file in memory: %w", err)
	}
	return f, nil
}
