package kvm

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/klauspost/compress/zstd"
)

func TestTheNewestKernelIsFound(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"vmlinuz-6.9.0-1-cloud-amd64", "vmlinuz-6.10.0-2-cloud-amd64", "vmlinuz-6.10.0-11-cloud-amd64", "vmlinuz-5.10.0"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "modules", "6.10.0-11-cloud-amd64"), 0o755); err != nil {
		t.Fatal(err)
	}
	k, err := findKernel(filepath.Join(dir, "vmlinuz-*"))
	if want := (linux{filepath.Join(dir, "vmlinuz-6.10.0-11-cloud-amd64"), filepath.Join(dir, "modules/6.10.0-11-cloud-amd64")}); err != nil || k != want {
		t.Errorf("%+v, %v, want %+v", k, err, want)
	}
	link := filepath.Join(t.TempDir(), "vmlinuz-1")
	if err := errors.Join(os.WriteFile(link, nil, 0o644), os.Symlink(k.modules, filepath.Join(filepath.Dir(link), "modules"))); err != nil {
		t.Fatal(err)
	}
	if l, err := findKernel(link); err != nil || l.modules != k.modules {
		t.Errorf("modules by a link: %+v, %v, want %s", l, err, k.modules)
	}
}

func TestUnpack(t *testing.T) {
	text := bytes.Repeat([]byte("some text that comes again, "), 1000)
	size := binary.LittleEndian.AppendUint32(nil, uint32(len(text))) // as behind a kernel
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(text); err != nil {
		t.Fatal(err)
	}
	z.Close()
	e, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	// A literal, and a reference of 28 bytes back that overlaps itself.
	n := len(text) - 28 - 4 - 15
	block := append([]byte{0xff, 28 - 15}, text[:28]...)
	block = append(block, 28, 0)
	block = append(block, slices.Repeat([]byte{255}, n/255)...)
	block = append(block, byte(n%255))
	lz4 := append(binary.LittleEndian.AppendUint32([]byte("\x02\x21\x4c\x18"), uint32(len(block))), block...)
	for name, raw := range map[string][]byte{
		"gzip": append(zipped.Bytes(), size...), "zstd": append(e.EncodeAll(text, nil), size...), "lz4": append(lz4, size...), "none": text,
	} {
		got, err := unpack(raw, 1<<24)
		if err != nil || !bytes.Equal(got, text) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
		if got, err := unpack(raw, 100); name != "none" && err == nil {
			t.Errorf("%s: %d bytes where 100 are allowed", name, len(got))
		}
	}
}

func FuzzLZ4(f *testing.F) {
	f.Add([]byte{8, 0, 0, 0, 0x4f, 'a', 'b', 'c', 'd', 2, 0, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		if out, err := unpackLZ4(b, 9<<20); err == nil && len(out) > 9<<20 {
			t.Fatalf("%d bytes", len(out))
		}
	})
}

// Each module stands behind those that it needs, and nothing that boots is loaded twice.
func TestModulesComeInOrder(t *testing.T) {
	k, err := findKernel(testKernel)
	if err != nil {
		t.Fatalf("%v (make peers unpacks one)", err)
	}
	m := modules{dir: k.modules, read: map[string]*module{}}
	if m.files, m.builtIn, err = moduleFiles(k.modules); err != nil {
		t.Fatal(err)
	}
	early, err := m.boot()
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]int{}
	for i, mod := range early {
		if _, twice := at[mod.name]; twice {
			t.Errorf("%s twice", mod.name)
		}
		at[mod.name] = i
		for _, need := range mod.needs {
			if _, ok := at[need]; !ok {
				t.Errorf("%s is before %s", mod.name, need)
			}
		}
	}
	for _, name := range []string{"virtio_blk", "virtio_net", "virtio_console", "erofs"} {
		if _, ok := at[name]; !ok {
			t.Errorf("%s is missing", name)
		}
	}
}

func TestSignaturesOfModules(t *testing.T) {
	found, err := filepath.Glob("../../build/vm/kern/lib/modules/*/kernel/drivers/block/virtio_blk.ko*")
	if err != nil || len(found) == 0 {
		t.Fatalf("no modules in build/vm (make peers): %v", err)
	}
	mod, err := readModule(filepath.Dir(found[0]), filepath.Base(found[0]))
	if err != nil {
		t.Fatal(err)
	}
	bare := unsigned(mod.text)
	if cut := len(mod.text) - len(bare); cut < 100 || cut > 2000 || !bytes.HasSuffix(mod.text, []byte(signed)) {
		t.Errorf("%d bytes of %d are a signature", cut, len(mod.text))
	}
	f, err := elf.NewFile(bytes.NewReader(bare))
	if err != nil {
		t.Fatal(err)
	}
	var end uint64 // of what the ELF file has, its table of sections last
	for _, s := range f.Sections {
		if s.Type != elf.SHT_NOBITS {
			end = max(end, s.Offset+s.FileSize)
		}
	}
	if table := uint64(len(f.Sections)) * 64; uint64(len(bare)) < end+table || uint64(len(bare)) > end+table+64 {
		t.Errorf("a module without signature has %d bytes, its sections end at %d and their table has %d", len(bare), end, table)
	}
	for _, odd := range [][]byte{nil, []byte(signed), append(bytes.Repeat([]byte{0xff}, 12), signed...)} {
		if !bytes.Equal(unsigned(odd), odd) {
			t.Errorf("%q is cut to %q", odd, unsigned(odd))
		}
	}
	dir := t.TempDir()
	for config, want := range map[string]bool{"CONFIG_A=y\nCONFIG_MODULE_SIG=y\n# CONFIG_MODULE_SIG_FORCE is not set\n": false, "CONFIG_A=y\nCONFIG_MODULE_SIG_FORCE=y\n": true} {
		if err := os.WriteFile(filepath.Join(dir, "config-6.1.0-1-cloud-amd64"), []byte(config), 0o644); err != nil {
			t.Fatal(err)
		}
		if have := wantsSigned(filepath.Join(dir, "vmlinuz-6.1.0-1-cloud-amd64")); have != want {
			t.Errorf("%q: signatures are wanted: %v", config, have)
		}
	}
	if !wantsSigned(filepath.Join(t.TempDir(), "vmlinuz-1")) {
		t.Error("a kernel whose configuration nobody knows wants no signatures")
	}
}
