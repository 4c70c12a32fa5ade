package kvm

import (
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// kernels are the places where a guest's kernel is looked for, the best one first. Of several that fit a pattern, the last one in order counts.
var kernels = []string{"/usr/lib/weir/kvm/vmlinux", "/usr/lib/weir/kvm/vmlinuz*", "/boot/vmlinuz-*-cloud-*", "/boot/vmlinuz-*"}

// linux is a kernel that QEMU can boot, and where its modules are.
type linux struct {
	path    string
	modules string // "" they are all built in
}

var errNoKernel = errors.New("no kernel for virtual machines")

// FindKernel is the path of the kernel that machines have; named is the operator's choice, or empty.
func FindKernel(named string) (string, error) {
	l, err := findKernel(named)
	return l.path, err
}

// findKernel looks for a kernel; named is the operator's choice.
func findKernel(named string) (linux, error) {
	places := kernels
	if named != "" {
		places = []string{named}
	}
	for _, pattern := range places {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return linux{}, fmt.Errorf("%w: %s: %w", errNoKernel, pattern, err)
		}
		slices.SortFunc(found, versions)
		for _, path := range slices.Backward(found) {
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
				return linux{path, modulesOf(path)}, nil
			}
		}
	}
	return linux{}, fmt.Errorf("%w in %s: install one (apt-get install linux-image-cloud-amd64), name one (weir up --kvm-kernel, $WEIR_KVM_KERNEL), or put a vmlinux or vmlinuz there with its modules in /usr/lib/weir/kvm/modules",
		errNoKernel, strings.Join(places, ", "))
}

// versions compares file names so that 6.10 comes after 6.9.
func versions(a, b string) int {
	pad := func(s string) string {
		var out strings.Builder
		for i := 0; i < len(s); {
			j := i
			for j < len(s) && s[j] >= '0' && s[j] <= '9' {
				j++
			}
			if j == i {
				out.WriteByte(s[i])
				i++
				continue
			}
			fmt.Fprintf(&out, "%12s", s[i:j])
			i = j
		}
		return out.String()
	}
	return strings.Compare(pad(a), pad(b))
}

// modulesOf finds the modules of a kernel: beside it, as a package has them, or where the machine has its own.
func modulesOf(path string) string {
	dir := filepath.Dir(path)
	_, version, ok := strings.Cut(filepath.Base(path), "-")
	places := []string{filepath.Join(dir, "modules")}
	if ok {
		places = []string{
			filepath.Join(dir, "modules", version), filepath.Join(dir, "../lib/modules", version), filepath.Join(dir, "../usr/lib/modules", version), filepath.Join(dir, "modules"),
		}
	}
	for _, p := range places {
		if info, err := os.Stat(p); err == nil && info.IsDir() {
			if real, err := filepath.EvalSymlinks(p); err == nil { // a walk does not follow a link
				return real
			}
			return p
		}
	}
	return ""
}

const (
	maxKernel = 512 << 20 // bytes, unpacked
	maxModule = 64 << 20
)

// unpackKernel is the ELF file in a kernel for PCs, which boots at once, where the kernel itself would have to unpack that in the machine.
func unpackKernel(path string) ([]byte, error) {
	raw, err := readBounded(path, maxKernel)
	if err != nil {
		return nil, err
	}
	if bytes.HasPrefix(raw, []byte(elf.ELFMAG)) {
		return raw, checkELF(path, raw)
	}
	// The header: Documentation/arch/x86/boot.rst.
	if len(raw) < 0x250 || string(raw[0x202:0x206]) != "HdrS" {
		return nil, fmt.Errorf("kernel %s: neither an ELF file nor a kernel for PCs", path)
	}
	le := binary.LittleEndian
	start := (int64(raw[0x1f1])+1)*512 + int64(le.Uint32(raw[0x248:]))
	end := start + int64(le.Uint32(raw[0x24c:]))
	if start >= int64(len(raw)) || end > int64(len(raw)) || end <= start {
		return nil, fmt.Errorf("kernel %s: its header says that it is larger than it is", path)
	}
	out, err := unpack(raw[start:end], maxKernel)
	if err != nil {
		return nil, fmt.Errorf("kernel %s: %w", path, err)
	}
	return out, checkELF(path, out)
}

func checkELF(path string, raw []byte) error {
	f, err := elf.NewFile(bytes.NewReader(raw))
	if err != nil {
		return fmt.Errorf("kernel %s: %w", path, err)
	}
	if f.Machine != elf.EM_X86_64 {
		return fmt.Errorf("kernel %s is for %s, want one for %s", path, f.Machine, elf.EM_X86_64)
	}
	return nil
}

func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return bounded(f, limit)
}

func bounded(r io.Reader, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("larger than %d MiB", limit>>20)
	}
	return b, err
}

// unpack takes the compression off that the first bytes tell; none of those known: it is returned as it is. Kernels have their size behind.
func unpack(raw []byte, limit int64) ([]byte, error) {
	has := func(magic string) bool { return bytes.HasPrefix(raw, []byte(magic)) }
	switch {
	case has("\x1f\x8b"):
		z, err := gzip.NewReader(bytes.NewReader(raw))
		if err != nil {
			return nil, err
		}
		z.Multistream(false)
		return bounded(z, limit)
	case has("\x28\xb5\x2f\xfd"):
		z, err := zstd.NewReader(bytes.NewReader(raw), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(uint64(limit)))
		if err != nil {
			return nil, err
		}
		defer z.Close()
		return untrailed(bounded(z, limit))
	case has("BZh"):
		return untrailed(bounded(bzip2.NewReader(bytes.NewReader(raw)), limit))
	case has("\x02\x21\x4c\x18"):
		return unpackLZ4(raw[4:], limit)
	case has("\xfd7zXZ\x00"):
		return unpackXZ(raw, limit)
	}
	return raw, nil
}

// untrailed passes over an error about what stands behind the end.
func untrailed(b []byte, err error) ([]byte, error) {
	if len(b) > 0 {
		return b, nil
	}
	return b, err
}

// unpackXZ has the program xz do it, which distributions have whose kernels are packed like that.
func unpackXZ(raw []byte, limit int64) ([]byte, error) {
	cmd := exec.Command("xz", "--decompress", "--stdout", "--single-stream", "--quiet", "--memlimit=1GiB")
	cmd.Stdin = bytes.NewReader(raw)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w (apt-get install xz-utils)", err)
	}
	b, err := bounded(out, limit)
	if err != nil {
		_ = cmd.Process.Kill()
	}
	if werr := cmd.Wait(); err == nil && len(b) == 0 {
		err = werr
	}
	return b, err
}

var errLZ4 = errors.New("lz4: damaged")

// unpackLZ4 reads the legacy frame format, in which kernels are packed: blocks, each with its size before it.
func unpackLZ4(raw []byte, limit int64) ([]byte, error) {
	const maxBlock = 8 << 20 // unpacked
	var out []byte
	for len(raw) >= 4 {
		n := binary.LittleEndian.Uint32(raw)
		if raw = raw[4:]; uint64(n) > uint64(len(raw)) {
			break // the size behind the last block
		}
		if int64(len(out))+maxBlock > limit {
			return nil, fmt.Errorf("lz4: larger than %d MiB", limit>>20)
		}
		var err error
		if out, err = lz4Block(out, raw[:n], len(out)+maxBlock); err != nil {
			return nil, err
		}
		raw = raw[n:]
	}
	return out, nil
}

// lz4Block appends a block, to no more than so many bytes. A block does not refer to those before it.
func lz4Block(out, in []byte, most int) ([]byte, error) {
	first := len(out)
	length := func(n int) (int, bool) {
		if n != 15 {
			return n, true
		}
		for len(in) > 0 {
			c := in[0]
			in = in[1:]
			if n += int(c); c != 255 {
				return n, true
			}
		}
		return 0, false
	}
	for len(in) > 0 {
		token := in[0]
		in = in[1:]
		n, ok := length(int(token >> 4))
		if !ok || n > len(in) || len(out)+n > most {
			return nil, errLZ4
		}
		out, in = append(out, in[:n]...), in[n:]
		if len(in) == 0 {
			return out, nil // the last ones are literals
		}
		if len(in) < 2 {
			return nil, errLZ4
		}
		back := int(binary.LittleEndian.Uint16(in))
		in = in[2:]
		n, ok = length(int(token & 15))
		n += 4
		if !ok || back == 0 || back > len(out)-first || len(out)+n > most {
			return nil, errLZ4
		}
		for ; n > 0; n-- { // they may overlap
			out = append(out, out[len(out)-back])
		}
	}
	return out, nil
}

// module is one of a kernel's.
type module struct {
	name  string
	file  string // below the modules' directory
	needs []string
	names []string // by which the kernel asks for it
	text  []byte
}

// readModule reads a module, packed or not, and what its section .modinfo says.
func readModule(dir, file string) (*module, error) {
	raw, err := readBounded(filepath.Join(dir, file), maxModule)
	if err == nil {
		raw, err = unpack(raw, maxModule)
	}
	if err != nil {
		return nil, fmt.Errorf("module %s: %w", file, err)
	}
	f, err := elf.NewFile(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("module %s: %w", file, err)
	}
	m := &module{file: file, text: raw, name: moduleName(file)}
	section := f.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("module %s: it says nothing of itself", file)
	}
	info, err := section.Data()
	if err != nil {
		return nil, fmt.Errorf("module %s: %w", file, err)
	}
	for entry := range bytes.SplitSeq(info, []byte{0}) {
		key, value, _ := strings.Cut(string(entry), "=")
		switch key {
		case "depends":
			for need := range strings.SplitSeq(value, ",") {
				if need != "" {
					m.needs = append(m.needs, underscored(need))
				}
			}
		case "alias":
			if !strings.ContainsAny(value, "*?[ ") {
				m.names = append(m.names, underscored(value))
			}
		}
	}
	return m, nil
}

// signed ends a module with a signature: it stands behind the sizes of its parts, and those behind the signature.
const signed = "~Module signature appended~\n"

// wantsSigned tells whether a kernel takes signed modules only. Its configuration stands beside it, where distributions put it.
func wantsSigned(kernel string) bool {
	dir, file := filepath.Split(kernel)
	_, version, _ := strings.Cut(file, "-")
	text, err := os.ReadFile(filepath.Join(dir, "config-"+version))
	return err != nil || bytes.Contains(text, []byte("\nCONFIG_MODULE_SIG_FORCE=y\n"))
}

// unsigned is a module without its signature. To verify one takes an emulated processor tens of milliseconds; and these come from a disk that we wrote.
func unsigned(module []byte) []byte {
	const sizes = 12 // struct module_signature: algo, hash, id_type, signer_len, key_id_len, 3 bytes, sig_len (big-endian)
	body, ok := bytes.CutSuffix(module, []byte(signed))
	if !ok || len(body) < sizes {
		return module
	}
	at := body[len(body)-sizes:]
	n := sizes + int(at[3]) + int(at[4]) + int(binary.BigEndian.Uint32(at[8:]))
	if n > len(body) {
		return module
	}
	return body[:len(body)-n]
}

func underscored(name string) string { return strings.ReplaceAll(name, "-", "_") }

func moduleName(file string) string {
	name, _, _ := strings.Cut(filepath.Base(file), ".ko")
	return underscored(name)
}

// moduleFiles lists a kernel's modules by their names, and those built in.
func moduleFiles(dir string) (files map[string]string, builtIn map[string]bool, err error) {
	files, builtIn = map[string]string{}, map[string]bool{}
	text, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	for line := range strings.Lines(string(text)) {
		builtIn[moduleName(strings.TrimSpace(line))] = true
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.Contains(d.Name(), ".ko") {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		files[moduleName(path)] = rel
		return err
	})
	return files, builtIn, err
}
