// Package erofs writes read-only file systems that Linux mounts (EROFS, from 5.4 on): uncompressed, in blocks of 4 KiB, without extended attributes.
// The format is Documentation/filesystems/erofs.rst and fs/erofs/erofs_fs.h of the kernel.
package erofs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	blockSize = 4096
	slotSize  = 32 // in which inodes are numbered; ours take two
	superAt   = 1024
	magic     = 0xe0f5e1e2
	firstNID  = 2 // readers of directories take the number 0 for no file
)

// Node is a file, a directory, or a symbolic link.
type Node struct {
	Name     string
	Mode     fs.FileMode // a regular file, a directory or a symbolic link
	UID, GID uint32
	ModTime  time.Time
	Target   string  // of a symbolic link
	Children []*Node // of a directory
	Size     int64   // of a file
	Open     func() (io.ReadCloser, error)
	Same     *Node // a hard link to this one

	nid, block, links uint32
	blocks            int64
	dir               []byte
}

// File is a node with a text.
func File(name string, mode fs.FileMode, text []byte) *Node {
	return &Node{Name: name, Mode: mode, Size: int64(len(text)), Open: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(string(text))), nil }}
}

// Dir is a directory of root.
func Dir(name string, children ...*Node) *Node {
	return &Node{Name: name, Mode: fs.ModeDir | 0o755, Children: children}
}

// Limits bound what Scan takes.
type Limits struct {
	Files int
	Bytes int64
	Shift uint32 // is taken off every owner; an owner below it is nobody
}

// ErrTooLarge says that a tree is above its limits.
var ErrTooLarge = errors.New("too large")

const nobody = 65534

// Scan reads a directory. Devices, sockets and pipes are left out. visit, unless nil, gets each file's path and state, in order.
func Scan(dir string, l Limits, visit func(path string, st *syscall.Stat_t, target string)) (*Node, error) {
	s := scan{Limits: l, visit: visit, linked: map[[2]uint64]*Node{}}
	info, err := os.Lstat(dir)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return s.node(dir, path.Base(dir), info)
	}
	return s.node(dir, "", info)
}

type scan struct {
	Limits
	visit  func(path string, st *syscall.Stat_t, target string)
	linked map[[2]uint64]*Node
	files  int
	bytes  int64
}

func (s *scan) node(at, name string, info fs.FileInfo) (*Node, error) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, fmt.Errorf("%s: no owner", at)
	}
	n := &Node{Name: name, Mode: info.Mode(), UID: s.owner(st.Uid), GID: s.owner(st.Gid), ModTime: info.ModTime()}
	if s.files++; s.files > s.Files {
		return nil, fmt.Errorf("%w: more than %d files", ErrTooLarge, s.Files)
	}
	var err error
	switch n.Mode.Type() {
	case fs.ModeSymlink:
		if n.Target, err = os.Readlink(at); err != nil {
			return nil, err
		}
	case fs.ModeDir:
		n.Children, err = s.children(at)
	case 0:
		err = s.file(n, at, st)
	default:
		return nil, nil
	}
	if s.visit != nil {
		s.visit(at, st, n.Target)
	}
	return n, err
}

func (s *scan) owner(id uint32) uint32 {
	if id < s.Shift {
		return nobody
	}
	return id - s.Shift
}

func (s *scan) children(at string) (out []*Node, err error) {
	entries, err := os.ReadDir(at)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return nil, err
		}
		c, err := s.node(filepath.Join(at, e.Name()), e.Name(), info)
		if err != nil {
			return nil, err
		}
		if c != nil {
			out = append(out, c)
		}
	}
	return out, nil
}

func (s *scan) file(n *Node, at string, st *syscall.Stat_t) error {
	if st.Nlink > 1 {
		key := [2]uint64{uint64(st.Dev), st.Ino}
		if n.Same = s.linked[key]; n.Same != nil {
			return nil
		}
		s.linked[key] = n
	}
	n.Size = st.Size
	if s.bytes += n.Size; s.bytes > s.Bytes {
		return fmt.Errorf("%w: more than %d MiB", ErrTooLarge, s.Bytes>>20)
	}
	n.Open = func() (io.ReadCloser, error) {
		return os.OpenFile(at, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	}
	return nil
}

// Write writes the file system whose root is a directory.
func Write(w io.WriterAt, root *Node) error {
	im := image{w: w}
	if !root.Mode.IsDir() {
		return fmt.Errorf("root is %s, want a directory", root.Mode)
	}
	if err := im.number(root, 0); err != nil {
		return err
	}
	im.next = 1 + blocksOf((firstNID+2*int64(len(im.nodes)))*slotSize) // the metadata begins at block 1
	if err := im.layOut(root, root); err != nil {
		return err
	}
	return im.write(root)
}

type image struct {
	w     io.WriterAt
	nodes []*Node
	next  int64 // block that is free
}

// maxDepth of directories; the kernel's own paths are shorter.
const maxDepth = 1024

// number gives every node but further hard links its place among the inodes, and sorts the directories.
func (im *image) number(n *Node, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%w: directories are nested deeper than %d", ErrTooLarge, maxDepth)
	}
	n.nid, n.links = uint32(firstNID+2*len(im.nodes)), 1
	im.nodes = append(im.nodes, n)
	if !n.Mode.IsDir() {
		return nil
	}
	n.links = 2
	slices.SortFunc(n.Children, func(a, b *Node) int { return strings.Compare(a.Name, b.Name) })
	for i, c := range n.Children {
		if c.Name == "" || c.Name == "." || c.Name == ".." || len(c.Name) > 255 || strings.ContainsAny(c.Name, "/\x00") {
			return fmt.Errorf("name %q of a file", c.Name)
		}
		if i > 0 && n.Children[i-1].Name == c.Name {
			return fmt.Errorf("two files are named %q", c.Name)
		}
		if c.Mode.IsDir() {
			n.links++
		}
		if c.Same != nil {
			c.Same.links++
			continue
		}
		if err := im.number(c, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// layOut gives each node its blocks.
func (im *image) layOut(n, parent *Node) error {
	switch n.Mode.Type() {
	case fs.ModeDir:
		n.dir = entries(n, parent)
		n.Size = int64(len(n.dir))
	case fs.ModeSymlink:
		n.Size = int64(len(n.Target))
	}
	n.blocks = blocksOf(n.Size)
	if n.blocks > 0 {
		n.block = uint32(im.next)
	}
	if im.next += n.blocks; im.next >= 1<<32 {
		return fmt.Errorf("%w: more than 16 TiB", ErrTooLarge)
	}
	for _, c := range n.Children {
		if c.Same != nil {
			continue
		}
		if err := im.layOut(c, n); err != nil {
			return err
		}
	}
	return nil
}

func blocksOf(bytes int64) int64 { return (bytes + blockSize - 1) / blockSize }

const entrySize = 12

// entries of a directory, in order of their names as bytes: per block a table, then the names.
func entries(n, parent *Node) []byte {
	type entry struct {
		name string
		nid  uint32
		kind byte
	}
	all := []entry{{".", n.nid, 2}, {"..", parent.nid, 2}}
	for _, c := range n.Children {
		of := c
		if c.Same != nil {
			of = c.Same
		}
		all = append(all, entry{c.Name, of.nid, kindOf(of.Mode)})
	}
	slices.SortFunc(all, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	var out []byte
	for len(all) > 0 {
		k, used := 0, 0
		for k < len(all) && used+entrySize+len(all[k].name) <= blockSize {
			used += entrySize + len(all[k].name)
			k++
		}
		block := make([]byte, blockSize)
		at := k * entrySize
		for i, e := range all[:k] {
			head := block[i*entrySize:]
			binary.LittleEndian.PutUint64(head, uint64(e.nid))
			binary.LittleEndian.PutUint16(head[8:], uint16(at))
			head[10] = e.kind
			at += copy(block[at:], e.name)
		}
		out = append(out, block...)
		all = all[k:]
	}
	return out
}

// kindOf is the file type of a directory's entry.
func kindOf(m fs.FileMode) byte {
	switch m.Type() {
	case fs.ModeDir:
		return 2
	case fs.ModeSymlink:
		return 7
	}
	return 1
}

func (im *image) write(root *Node) error {
	super := make([]byte, blockSize)
	s := super[superAt:]
	le := binary.LittleEndian
	le.PutUint32(s, magic)
	s[12] = 12 // blocks of 1<<12 bytes
	le.PutUint16(s[14:], uint16(root.nid))
	le.PutUint64(s[16:], uint64(len(im.nodes)))
	le.PutUint32(s[36:], uint32(im.next))
	le.PutUint32(s[40:], 1) // where the metadata begins
	if _, err := im.w.WriteAt(super, 0); err != nil {
		return err
	}
	meta := make([]byte, blocksOf((firstNID+2*int64(len(im.nodes)))*slotSize)*blockSize)
	for _, n := range im.nodes {
		n.inode(meta[int64(n.nid)*slotSize:])
	}
	if _, err := im.w.WriteAt(meta, blockSize); err != nil {
		return err
	}
	for _, n := range im.nodes {
		if err := im.data(n); err != nil {
			return fmt.Errorf("%s: %w", n.Name, err)
		}
	}
	_, err := im.w.WriteAt([]byte{0}, im.next*blockSize-1) // the last block is whole
	return err
}

// inode is struct erofs_inode_extended, its data in blocks one after another.
func (n *Node) inode(b []byte) {
	le := binary.LittleEndian
	le.PutUint16(b, 1)
	le.PutUint16(b[4:], unixMode(n.Mode))
	le.PutUint64(b[8:], uint64(n.Size))
	le.PutUint32(b[16:], n.block)
	le.PutUint32(b[20:], n.nid)
	le.PutUint32(b[24:], n.UID)
	le.PutUint32(b[28:], n.GID)
	if !n.ModTime.IsZero() {
		le.PutUint64(b[32:], uint64(n.ModTime.Unix()))
		le.PutUint32(b[40:], uint32(n.ModTime.Nanosecond()))
	}
	le.PutUint32(b[44:], n.links)
}

func unixMode(m fs.FileMode) uint16 {
	out := uint16(m.Perm())
	for bit, is := range map[uint16]bool{
		syscall.S_IFDIR: m.IsDir(), syscall.S_IFLNK: m.Type() == fs.ModeSymlink, syscall.S_IFREG: m.IsRegular(),
		syscall.S_ISUID: m&fs.ModeSetuid != 0, syscall.S_ISGID: m&fs.ModeSetgid != 0, syscall.S_ISVTX: m&fs.ModeSticky != 0,
	} {
		if is {
			out |= bit
		}
	}
	return out
}

func (im *image) data(n *Node) error {
	at := int64(n.block) * blockSize
	var err error
	switch {
	case n.Size == 0:
	case n.dir != nil:
		_, err = im.w.WriteAt(n.dir, at)
	case n.Mode.Type() == fs.ModeSymlink:
		_, err = im.w.WriteAt([]byte(n.Target), at)
	default:
		r, err := n.Open()
		if err != nil {
			return err
		}
		defer r.Close()
		got, err := io.Copy(io.NewOffsetWriter(im.w, at), io.LimitReader(r, n.Size))
		if err == nil && got != n.Size {
			err = fmt.Errorf("%d bytes, want %d: it was changed meanwhile", got, n.Size)
		}
		return err
	}
	return err
}
