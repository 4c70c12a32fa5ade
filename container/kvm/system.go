package kvm

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	_ "embed" // the guest's program
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"weir.dev/weir/container/kvm/channel"
	"weir.dev/weir/container/kvm/erofs"
)

// guest is process 1 of a machine, built from the directory of this name: it is committed, as the BPF objects are, since `go install` builds one program.
//
//go:generate sh -c "CGO_ENABLED=0 GOOS=linux GOARCH=amd64 go build -trimpath -buildvcs=false -ldflags='-s -w -buildid=' -o guest_amd64 ./guest && gzip -9 -n -f guest_amd64"
//go:generate sh -c "ls guest/*.go channel/*.go ../kernel/launcher/*.go ../kernel/launcher/*.elf | grep -v _test.go | xargs sha256sum >guest_amd64.sum"
//go:embed guest_amd64.gz
var guest []byte

// system is what all machines have in common, made once per kernel: files of a directory.
type system struct{ dir string }

func (s system) kernel() string  { return filepath.Join(s.dir, "vmlinux") }
func (s system) initrd() string  { return filepath.Join(s.dir, "initrd") }
func (s system) modules() string { return filepath.Join(s.dir, "modules") }

// systemFormat is to be increased when other files are made from the same ones.
const systemFormat = "3"

// boot are the modules without which the guest does not find its disks, its ports and its driver. Of each group any one will do.
var boot = [][]string{{"virtio_mmio"}, {"virtio_pci"}, {"virtio_blk"}, {"virtio_net"}, {"virtio_console"}, {"erofs"}, {"af_packet"}, {"virtio_balloon"}}

// optional ones are not missed: a kernel may do without one of the buses, or give memory back late.
var optional = []string{"virtio_mmio", "virtio_pci", "virtio_balloon"}

// loadable are the modules that a function's kernel can load when it is asked for them: packets, links, and what the machine itself may need.
var loadable = []string{
	"kernel/net/", "kernel/drivers/net/veth", "kernel/drivers/net/tun", "kernel/drivers/net/tap", "kernel/drivers/net/vxlan", "kernel/drivers/net/geneve",
	"kernel/drivers/net/dummy", "kernel/drivers/net/ifb", "kernel/drivers/net/macvlan", "kernel/drivers/net/ipvlan", "kernel/drivers/net/vrf",
	"kernel/drivers/net/bonding", "kernel/drivers/net/wireguard", "kernel/fs/overlayfs/",
	"kernel/drivers/uio/uio.", "kernel/drivers/uio/" + channel.DirectDriver,
}

// unwanted among them are for hardware or other hosts.
var unwanted = []string{
	"kernel/net/wireless", "kernel/net/mac80211", "kernel/net/bluetooth", "kernel/net/vmw_vsock", "kernel/net/9p", "kernel/net/rxrpc", "kernel/net/sunrpc",
	"kernel/net/ceph", "kernel/net/tipc", "kernel/net/smc", "kernel/net/rds", "kernel/net/sctp", "kernel/net/can", "kernel/net/nfc", "kernel/net/atm",
}

// makeSystem makes what all machines have in common, below dir, unless it is there. Half-made directories go with the next call.
func makeSystem(dir string, k linux) (system, error) {
	info, err := os.Stat(k.path)
	if err != nil {
		return system{}, err
	}
	sum := sha256.New()
	fmt.Fprintln(sum, systemFormat, k, info.Size(), info.ModTime().UnixNano())
	sum.Write(guest)
	s := system{filepath.Join(dir, hex.EncodeToString(sum.Sum(nil)[:16]))}
	if _, err := os.Stat(s.dir); err == nil {
		return s, nil
	}
	if err := os.RemoveAll(dir); err != nil { // of another kernel or version: whoever runs has its files open
		return s, err
	}
	half := s.dir + ".half"
	if err := os.MkdirAll(half, 0o700); err != nil {
		return s, err
	}
	if err := buildSystem(system{half}, k); err != nil {
		return s, errors.Join(fmt.Errorf("kernel %s for virtual machines: %w", k.path, err), os.RemoveAll(dir))
	}
	return s, os.Rename(half, s.dir)
}

func buildSystem(s system, k linux) error {
	image, err := unpackKernel(k.path)
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.kernel(), image, 0o644); err != nil {
		return err
	}
	z, err := gzip.NewReader(bytes.NewReader(guest))
	if err != nil {
		return err
	}
	program, err := io.ReadAll(z)
	if err != nil {
		return err
	}
	m := modules{dir: k.modules, read: map[string]*module{}, signed: wantsSigned(k.path)}
	if k.modules != "" {
		if m.files, m.builtIn, err = moduleFiles(k.modules); err != nil {
			return err
		}
	}
	early, err := m.boot()
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.initrd(), initrd(program, early), 0o644); err != nil {
		return err
	}
	root, err := m.disk(early)
	if err != nil {
		return err
	}
	return writeImage(s.modules(), root)
}

// writeImage writes a file system to a file that anybody may read who gets at it; its directory lets nobody through.
func writeImage(file string, root *erofs.Node) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(erofs.Write(f, root), f.Close())
}

// modules of a kernel.
type modules struct {
	dir     string
	files   map[string]string
	builtIn map[string]bool
	read    map[string]*module
	signed  bool // they keep their signatures
}

// get reads a module; nil: it is built in, as far as one knows.
func (m *modules) get(name string) (*module, error) {
	if have := m.read[name]; have != nil {
		return have, nil
	}
	file := m.files[name]
	if file == "" {
		return nil, nil
	}
	mod, err := readModule(m.dir, file)
	if err != nil {
		return nil, err
	}
	if !m.signed {
		mod.text = unsigned(mod.text)
	}
	m.read[name] = mod
	return mod, nil
}

// order lists a module behind those that it needs.
func (m *modules) order(name string, have []*module) ([]*module, error) {
	mod, err := m.get(name)
	if err != nil || mod == nil || slices.Contains(have, mod) || len(have) > len(m.files) {
		return have, err
	}
	for _, need := range mod.needs {
		if have, err = m.order(need, have); err != nil {
			return have, err
		}
	}
	if slices.Contains(have, mod) {
		return have, nil
	}
	return append(have, mod), nil
}

// boot lists the modules that are loaded before there are disks.
func (m *modules) boot() (out []*module, err error) {
	for _, group := range boot {
		for _, name := range group {
			if m.dir != "" && m.files[name] == "" && !m.builtIn[name] && !slices.Contains(optional, name) {
				return nil, fmt.Errorf("it has no %s, neither built in nor in %s", name, m.dir)
			}
			if out, err = m.order(name, out); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// disk is the file system of the modules that can be loaded later: their files, and an index of names.
func (m *modules) disk(early []*module) (*erofs.Node, error) {
	root := erofs.Dir("")
	in := func(file string, prefixes []string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(file, p) })
	}
	var index strings.Builder
	added := map[*module]bool{}
	for _, mod := range early {
		added[mod] = true
	}
	for _, name := range slices.Sorted(maps.Keys(m.files)) {
		if file := m.files[name]; !in(file, loadable) || in(file, unwanted) {
			continue
		}
		all, err := m.order(name, nil)
		if err != nil {
			return nil, err
		}
		line := ""
		for _, mod := range all {
			if slices.Contains(early, mod) {
				continue
			}
			file := mod.name + ".ko"
			line += " " + file
			if !added[mod] {
				added[mod] = true
				root.Children = append(root.Children, erofs.File(file, 0o644, mod.text))
			}
		}
		for _, alias := range append([]string{name}, m.read[name].names...) {
			index.WriteString(alias + line + "\n")
		}
	}
	root.Children = append(root.Children, erofs.File(channel.IndexFile, 0o644, []byte(index.String())))
	return root, nil
}

// initrd is the archive from which the kernel makes the machine's first file system: cpio(5), in the form "newc".
func initrd(program []byte, early []*module) []byte {
	var out bytes.Buffer
	n := 0
	add := func(name string, mode uint32, text []byte) {
		n++
		fmt.Fprintf(&out, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00", n, mode, 0, 0, 1, 0, len(text), 0, 0, 0, 0, len(name)+1, 0, name)
		pad(&out)
		out.Write(text)
		pad(&out)
	}
	const dir, file, link = 0o040755, 0o100755, 0o120777
	for _, d := range []string{"proc", "sys", "dev", "cgroup", "modules", "config", "root", "copies", "layer", channel.BootModules[1:]} {
		add(d, dir, nil)
	}
	add("init", file, program)
	add("modprobe", link, []byte("init"))
	for i, mod := range early {
		add(path.Join(channel.BootModules, fmt.Sprintf("%02d-%s.ko", i, mod.name))[1:], 0o100644, mod.text)
	}
	add("TRAILER!!!", 0, nil)
	return out.Bytes()
}

func pad(b *bytes.Buffer) {
	for b.Len()%4 != 0 {
		b.WriteByte(0)
	}
}

// roots keeps the file systems of images, one for each tree that a machine was made from.
type roots struct{ dir string }

// Bounds of an image's tree.
var imageLimits = erofs.Limits{Files: 200_000, Bytes: 8 << 30}

// mostRoots stay after use, for the next machine of the same image.
const mostRoots = 16

// rootFormat is to be increased when trees are written otherwise.
const rootFormat = "1"

// of gives the file system of a tree whose owners are shifted. It is found again by what the tree's files look like: their places, owners, modes, sizes,
// inodes and times of change, which nobody sets.
func (r roots) of(tree string, shift uint32) (string, error) {
	limits := imageLimits
	limits.Shift = shift
	sum := sha256.New()
	fmt.Fprintln(sum, rootFormat)
	root, err := erofs.Scan(tree, limits, func(path string, st *syscall.Stat_t, target string) {
		size := st.Size
		if st.Mode&syscall.S_IFMT == syscall.S_IFDIR {
			size = 0
		}
		fmt.Fprintf(sum, "%q %o %d %d %d %d %d %d %q\n", path[len(tree):], st.Mode, st.Uid-shift, st.Gid-shift, size, st.Ino, st.Mtim.Nano(), st.Ctim.Nano(), target)
	})
	if err != nil {
		return "", fmt.Errorf("root file system %s: %w", tree, err)
	}
	file := filepath.Join(r.dir, hex.EncodeToString(sum.Sum(nil)[:16]))
	now := time.Now()
	if os.Chtimes(file, now, now) == nil {
		return file, nil
	}
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return "", err
	}
	half, err := os.CreateTemp(r.dir, halfPrefix)
	if err != nil {
		return "", err
	}
	defer os.Remove(half.Name())
	err = errors.Join(erofs.Write(half, root), half.Chmod(0o644), half.Close())
	if err == nil {
		err = os.Rename(half.Name(), file)
	}
	if err != nil {
		return "", fmt.Errorf("root file system %s: %w", tree, err)
	}
	return file, sweep(r.dir, mostRoots)
}

// halfPrefix begins the names of files and directories in the making.
const halfPrefix = "half-"

// sweep removes all entries of a directory but so many, the longest unused first, and what a crash left half made. Who uses one has its files open.
func sweep(dir string, most int) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var all []fs.FileInfo
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			continue // another's
		}
		if strings.HasPrefix(info.Name(), halfPrefix) && time.Since(info.ModTime()) < time.Hour {
			continue // it may be made right now
		}
		all = append(all, info)
	}
	slices.SortFunc(all, func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	for i, info := range all {
		if i >= most || strings.HasPrefix(info.Name(), halfPrefix) {
			if err := os.RemoveAll(filepath.Join(dir, info.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
