// Command functions makes the images of functions that the lab measures beside Weir's own: go run ./lab/functions -o LAYOUT. They are no part of the
// catalogue: nobody needs them in production, and they want what `make peers` installs.
//
//	pcap-bridge   a bridge in user space by libpcap (pcap/bridge.c), static
//	wire-xsk      the catalogue's wire-xdp, static, which leads frames into its sockets itself (xsk). Weir grants CAP_BPF to no function: it runs outside of containers
//	testpmd       DPDK's testpmd of this machine, with the libraries and drivers that it needs
//	socat         socat of this machine, with its libraries
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"

	"weir.dev/weir/image"
)

func main() {
	out := flag.String("o", "bin/images", "OCI image layout to write")
	from := flag.String("from", "lab/functions", "folder of the sources")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *out, *from); err != nil {
		fmt.Fprintln(os.Stderr, "functions:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out, from string) error {
	work, err := os.MkdirTemp("", "weir-functions-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	bridge, err := pcapBridge(ctx, from, work)
	if err != nil {
		return err
	}
	pmd, err := testpmd(ctx)
	if err != nil {
		return err
	}
	cat, err := socat(ctx)
	if err != nil {
		return err
	}
	for _, r := range []image.Recipe{bridge, xsk(from), pmd, cat} {
		digest, err := r.Build(ctx, out)
		if err != nil {
			return err
		}
		fmt.Printf("%s:%s %s\n", r.Name, r.Tag, digest)
	}
	return nil
}

func labels(capabilities string) map[string]string {
	return map[string]string{image.LabelPorts: "in,out", image.LabelCapabilities: capabilities}
}

func pcapBridge(ctx context.Context, from, work string) (image.Recipe, error) {
	program := filepath.Join(work, "pcap-bridge")
	cmd := exec.CommandContext(ctx, "gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-s", "-Wl,--build-id=none", "-o", program, filepath.Join(from, "pcap", "bridge.c"), "-lpcap")
	if text, err := cmd.CombinedOutput(); err != nil {
		return image.Recipe{}, fmt.Errorf("gcc, libpcap: %w (make peers installs them)\n%s", err, text)
	}
	return image.Recipe{
		Name: "pcap-bridge", Tag: "1", Description: "Forwards every frame between its two ports unchanged, by libpcap", Entrypoint: []string{"/usr/bin/pcap-bridge"},
		Labels: labels("CAP_NET_RAW,CAP_NET_ADMIN"), // the latter for promiscuous mode
		Files:  []image.RecipeFileSpec{{To: "/usr/bin/pcap-bridge", From: program, Mode: 0o755}},
	}, nil
}

// xsk is what is run outside of its image, as root: there it has what it needs.
func xsk(from string) image.Recipe {
	return image.Recipe{
		Name: "wire-xsk", Tag: "1", Description: "Forwards every frame between its two ports unchanged, by AF_XDP sockets", Entrypoint: []string{"/usr/bin/wire-xsk"},
		Labels: labels("CAP_NET_RAW,CAP_NET_ADMIN"), Files: []image.RecipeFileSpec{{To: "/usr/bin/wire-xsk", Go: filepath.Join(from, "xsk")}},
	}
}

// drivers of DPDK that the function needs, of all that are installed. In the image they are beside other libraries: one file each, loaded once.
var drivers = []string{"librte_bus_vdev", "librte_bus_pci", "librte_mempool_ring", "librte_net_af_packet", "librte_net_virtio"}

func socat(ctx context.Context) (image.Recipe, error) {
	const name = "socat"
	r := image.Recipe{
		Name: name, Tag: "1", Description: "Relays datagrams, as its arguments say", Entrypoint: []string{"/usr/bin/" + name}, Labels: map[string]string{image.LabelPorts: "in,out"},
	}
	program, err := exec.LookPath(name)
	if err != nil {
		return r, fmt.Errorf("%w (make setup installs it)", err)
	}
	libraries, err := image.Libraries(ctx, program)
	if err != nil {
		return r, err
	}
	r.Files = []image.RecipeFileSpec{{To: r.Entrypoint[0], From: program, Mode: 0o755}}
	for _, path := range libraries {
		r.Files = append(r.Files, image.RecipeFileSpec{To: path, From: path, Mode: 0o755})
	}
	return r, nil
}

func testpmd(ctx context.Context) (image.Recipe, error) {
	const name = "dpdk-testpmd"
	r := image.Recipe{
		Name: "testpmd", Tag: "1", Description: "Forwards every frame between its two ports unchanged, by DPDK's testpmd", Entrypoint: []string{"/usr/bin/" + name},
		Labels: labels("CAP_NET_RAW,CAP_NET_ADMIN,CAP_IPC_LOCK,CAP_SYS_NICE"), Env: []string{"RUNTIME_DIRECTORY=/tmp", "LC_ALL=C"},
	}
	program, err := exec.LookPath(name)
	if err != nil {
		return r, fmt.Errorf("%w (make peers installs it)", err)
	}
	r.Files = append(r.Files, image.RecipeFileSpec{To: r.Entrypoint[0], From: program, Mode: 0o755})
	loaded := []string{program}
	for _, d := range drivers {
		found, err := filepath.Glob("/usr/lib/*/dpdk/pmds-*/" + d + ".so.*")
		if err != nil || len(found) == 0 {
			return r, errors.Join(fmt.Errorf("DPDK's driver %s is not installed (make peers)", d), err)
		}
		driver := slices.MinFunc(found, func(a, b string) int { return len(a) - len(b) }) // libX.so.23, as others need it, of which libX.so.23.0 is another name
		libraries := filepath.Dir(filepath.Dir(filepath.Dir(driver)))
		r.Files = append(r.Files, image.RecipeFileSpec{To: filepath.Join(libraries, filepath.Base(driver)), From: driver, Mode: 0o755})
		r.Entrypoint = append(r.Entrypoint, "-d", filepath.Base(driver))
		loaded = append(loaded, driver)
	}
	for _, l := range loaded {
		libraries, err := image.Libraries(ctx, l)
		if err != nil {
			return r, err
		}
		for _, path := range libraries {
			if !slices.ContainsFunc(r.Files, func(f image.RecipeFileSpec) bool { return filepath.Base(f.To) == filepath.Base(path) }) {
				r.Files = append(r.Files, image.RecipeFileSpec{To: path, From: path, Mode: 0o755})
			}
		}
	}
	return r, nil
}
