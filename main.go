// Weir runs network functions in containers and steers chosen traffic through chains of them. This file wires the drivers
// and the commands; everything else is in the folders.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"weir.dev/weir/agent/kernel"
	"weir.dev/weir/agent/sandbox"
	"weir.dev/weir/api"
	"weir.dev/weir/cli"
	"weir.dev/weir/cli/command"
	"weir.dev/weir/cli/service"
	"weir.dev/weir/container"
	runtimes "weir.dev/weir/container/drivers"
	containers "weir.dev/weir/container/kernel"
	"weir.dev/weir/daemon"
	"weir.dev/weir/datapath"
	switches "weir.dev/weir/datapath/drivers"
	"weir.dev/weir/image"
	"weir.dev/weir/instance"
	"weir.dev/weir/lab/desk"
	"weir.dev/weir/netns"
	"weir.dev/weir/pki"
	"weir.dev/weir/placement"
	"weir.dev/weir/router"
	"weir.dev/weir/store"
	"weir.dev/weir/web"
)

// version is set by the linker.
var version = "dev"

func main() {
	if os.Geteuid() == 0 { // before anything that a new process would not inherit
		if err := daemon.LeaveIPNetnsExec(); err != nil {
			fmt.Fprintln(os.Stderr, "weir:", err)
			os.Exit(command.ExitFailure)
		}
	}
	os.Exit(cli.Main(cli.Options{
		Version: version, Layouts: layouts,
		Hooks: service.Hooks{
			Up: up, Agent: agent, Down: down, Unit: unit, Features: features, Validate: router.Validate,
			CheckRoot:  func(i instance.Instance) error { return coded(daemon.CheckRoot(i)) },
			Placements: placement.Names(), Switches: slices.Sorted(maps.Keys(switches.All())), Runtimes: slices.Sorted(maps.Keys(runtimes.All())),
		},
	}, os.Args[1:]))
}

// drivers lists what this binary can drive.
func drivers(sw switchOptions, runtimeName string, images imageOptions, rt runtimes.Options, log *slog.Logger) daemon.Drivers {
	return daemon.Drivers{
		Switch: func(ctx context.Context, i instance.Instance) (datapath.Switch, error) {
			s, ok := switches.All()[sw.name]
			if !ok {
				return nil, fmt.Errorf("--switch %s: %w: this program has %v", sw.name, datapath.ErrUnsupported, slices.Sorted(maps.Keys(switches.All())))
			}
			return s.Open(ctx, switches.Options{Instance: i, Logger: log, AcceptBridged: sw.acceptBridged})
		},
		DestroySwitch: func(ctx context.Context, i instance.Instance) error { // whichever it was
			var errs []error
			all := switches.All()
			for _, name := range slices.Sorted(maps.Keys(all)) {
				errs = append(errs, all[name].Destroy(ctx, switches.Options{Instance: i}))
			}
			return errors.Join(errs...)
		},
		Runtime: func(ctx context.Context, i instance.Instance) (container.Runtime, error) {
			all, err := runtimes.Open(ctx, i, rt, runtimeName)
			if err != nil { // not a nil pointer in an interface
				return nil, err
			}
			return all, nil
		},
		DestroyRuntime: func(ctx context.Context, i instance.Instance, keepLogs bool) error { // whichever it was
			all, err := runtimes.Open(ctx, i, runtimes.Options{CLI: rt.CLI, Adopt: true, Remove: true, KeepLogs: keepLogs}, runtimes.Default)
			if err != nil {
				return err
			}
			return all.Destroy(ctx)
		},
		Catalogue: func(digest string) bool { return image.Holds(digest, shipped()...) },
		Images: func(i instance.Instance) daemon.Images {
			s := image.Open(i, layouts(images.dir)...)
			s.Require(images.policy)
			return &image.OnDemand{Store: s, Registries: images.registries, Remote: image.RemoteOptions{Version: version}, Log: log}
		},
		Features: func() []datapath.Feature {
			if s, ok := switches.All()[sw.name]; ok {
				return s.Features()
			}
			return nil
		},
	}
}

// switchOptions say what forwards, and how.
type switchOptions struct {
	name          string
	acceptBridged bool
}

// imageOptions say where images are found, and which have to be signed.
type imageOptions struct {
	dir        string
	registries []string
	policy     image.Policy
}

func imagesOf(o service.DaemonOptions) (imageOptions, error) {
	p, err := image.ParsePolicy(o.Verify)
	if err != nil {
		return imageOptions{}, command.WithCode(command.ExitInvalid, fmt.Errorf("--verify: %w", err))
	}
	return imageOptions{o.ImagesDir, o.Registries, p}, nil
}

func runtimeOptions(o service.DaemonOptions, log *slog.Logger) runtimes.Options {
	return runtimes.Options{CLI: o.Runtime, Adopt: true, Memory: o.FunctionMemory, CPUs: o.FunctionCPUs.Of(runtime.NumCPU()), DiskBytes: o.FunctionDisk, Rings: o.FunctionRings,
		Vulnerable: o.VulnerableRuntime, KVMKernel: o.KVMKernel, Log: log}
}

// layouts are the image layouts searched: the user's, what was built beside the binary, what a package installs.
func layouts(extra string) []string {
	dirs := slices.DeleteFunc(shipped(), func(dir string) bool { return dir == extra })
	if extra != "" {
		dirs = append([]string{extra}, dirs...)
	}
	return dirs
}

// shipped are the image layouts that come with this program: the catalogue's.
func shipped() (dirs []string) {
	if self, err := os.Executable(); err == nil {
		dirs = append(dirs, filepath.Join(filepath.Dir(self), "images"))
	}
	return append(dirs, "/usr/share/weir/images")
}

func up(ctx context.Context, o service.UpOptions) error {
	o.Host.Runtime = cmp.Or(o.Host.Runtime, runtimes.Default)
	log := logger(o.Stderr, o.LogLevel, o.LogFormat)
	images, err := imagesOf(o.DaemonOptions)
	if err != nil {
		return err
	}
	if err := daemon.Settle(!o.NoAgent); err != nil {
		return err
	}
	measures, err := measuring(o, log)
	if err != nil {
		return command.WithCode(command.ExitUsage, err)
	}
	return coded(daemon.Up(ctx, daemon.UpOptions{
		Lab:      measures,
		Instance: o.Instance, Manager: o.Manager, Host: o.Host, Version: version, Log: log, Ready: o.Ready, Site: web.Files(),
		Drivers: drivers(switchOptions{o.Host.Switch, o.AcceptBridged}, o.Host.Runtime, images, runtimeOptions(o.DaemonOptions, log), log),
	}))
}

// measuring is the lab of this machine; nil: it has none.
func measuring(o service.UpOptions, log *slog.Logger) (daemon.Lab, error) {
	if o.Lab == "" {
		return nil, nil
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("path of this program: %w", err)
	}
	at := desk.Options{Dir: o.Lab, Program: self, Args: []string{"--name", o.Instance.Name, "--root", o.Instance.Root}, Log: log}
	if o.ImagesDir != "" {
		at.Images = []string{"--images", o.ImagesDir}
	}
	d, err := desk.New(at)
	switch ofRoot := strings.HasPrefix(o.Lab, o.Instance.Root+"/"); {
	case ofRoot && (errors.Is(err, syscall.ENOTDIR) || errors.Is(err, fs.ErrPermission)):
		return nil, nil // the daemon cannot use that root either, and says it
	case err != nil: // not a nil pointer in an interface
		return nil, err
	}
	return d, nil
}

func agent(ctx context.Context, o service.AgentOptions) error {
	o.Host.Runtime = cmp.Or(o.Host.Runtime, runtimes.Default)
	log := logger(o.Stderr, o.LogLevel, o.LogFormat)
	managers, err := daemon.CheckManagers(o.Managers)
	if err != nil {
		return command.WithCode(command.ExitUsage, err)
	}
	images, err := imagesOf(o.DaemonOptions)
	if err != nil {
		return err
	}
	if err := daemon.Settle(true); err != nil {
		return err
	}
	return coded(daemon.Agent(ctx, daemon.AgentOptions{
		Instance: o.Instance, Managers: managers, TokenFile: o.TokenFile, Host: o.Host, Version: version, Log: log, Ready: o.Ready,
		Drivers: drivers(switchOptions{o.Host.Switch, o.AcceptBridged}, o.Host.Runtime, images, runtimeOptions(o.DaemonOptions, log), log),
	}))
}

func down(ctx context.Context, o service.DownOptions) error {
	return coded(daemon.Down(ctx, daemon.DownOptions{
		Instance: o.Instance, KeepState: o.KeepState, Progress: o.Progress, Drivers: drivers(switchOptions{}, "", imageOptions{}, runtimes.Options{}, slog.New(slog.DiscardHandler)),
	}))
}

func unit(o service.UnitOptions) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("path of this program: %w", err)
	}
	return daemon.Unit(daemon.UnitOptions{Instance: o.Instance, Command: o.Command, Program: self, Args: o.Args}), nil
}

// coded gives errors their documented exit codes.
func coded(err error) error {
	switch {
	case errors.Is(err, daemon.ErrFile), errors.Is(err, store.ErrPEM): // whatever is wrong with it
		return command.WithCode(command.ExitInvalid, err)
	case errors.Is(err, daemon.ErrNotRoot), errors.Is(err, datapath.ErrUnsupported):
		return command.WithCode(command.ExitForbidden, err)
	case errors.Is(err, daemon.ErrRunning), errors.Is(err, daemon.ErrAbroad), errors.Is(err, daemon.ErrForeign), errors.Is(err, store.ErrLocked), errors.Is(err, store.ErrWhole),
		errors.Is(err, datapath.ErrTaken), errors.Is(err, syscall.EADDRINUSE):
		return command.WithCode(command.ExitConflict, err)
	case errors.Is(err, pki.ErrToken), errors.Is(err, daemon.ErrNotJoined), errors.Is(err, pki.ErrNotManager):
		return command.WithCode(command.ExitForbidden, err)
	case errors.Is(err, store.ErrFull), errors.Is(err, store.ErrReadOnly):
		return command.WithCode(command.ExitFull, err)
	}
	return err
}

func logger(w io.Writer, level, format string) *slog.Logger {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		l = slog.LevelInfo
	}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: l}))
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: l}))
}

func features(ctx context.Context, i instance.Instance) ([]api.Feature, error) {
	if os.Geteuid() != 0 {
		return nil, command.WithCode(command.ExitForbidden, fmt.Errorf("weir check: %w to ask the kernel what it has: use sudo (a file is checked without: weir check -f FILE)", daemon.ErrNotRoot))
	}
	var out []api.Feature
	var missing []string
	for _, f := range switches.All()["ebpf"].Features() {
		out = append(out, api.Feature(f))
		if !f.OK && f.Required {
			missing = append(missing, f.Name+": "+f.Detail)
		}
	}
	out = append(out, sealedFeature())
	userns, err := sandbox.Check(i, kernel.Host{}, func(i instance.Instance) sandbox.Images { return image.Open(i) })
	if err != nil {
		return out, fmt.Errorf("weir check: user namespaces: %w", err)
	}
	out = append(append(out, userns, ringsFeature(), socketsFeature(), xdpFeature()), runtimeFeatures(ctx)...)
	if len(missing) > 0 {
		return out, fmt.Errorf("this kernel lacks what Weir needs: %s: %w", strings.Join(missing, "; "), datapath.ErrUnsupported)
	}
	return out, nil
}

// runtimeCheck bounds what each runtime takes to tell about itself: some try whether they work.
const runtimeCheck = 30 * time.Second

// runtimeFeatures tells which container runtimes this machine has; of the others why not, and what would help.
func runtimeFeatures(ctx context.Context) []api.Feature {
	ctx, cancel := context.WithTimeout(ctx, runtimeCheck)
	defer cancel()
	all := runtimes.All()
	names := slices.Sorted(maps.Keys(all))
	out := make([]api.Feature, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() {
			about := all[name].About(ctx, runtimes.Options{})
			f := api.Feature{Name: "runtime " + name, OK: about.Missing == "", Detail: about.Missing}
			if f.OK {
				f.Detail = strings.Join(slices.DeleteFunc([]string{about.Version, about.Note}, func(s string) bool { return s == "" }), "; ")
			}
			if name == runtimes.Default {
				f.Detail = strings.TrimSuffix("default; "+f.Detail, "; ")
			}
			out[i] = f
		})
	}
	wg.Wait()
	return out
}

// ringsFeature tells whether functions can be kept from taking memory by rings of sockets.
func ringsFeature() api.Feature {
	f := api.Feature{Name: "bounded rings", OK: true, Detail: "--function-rings"}
	if err := containers.CheckRings(); err != nil {
		f.OK, f.Detail = false, err.Error()+": a function with CAP_NET_RAW can take the host's memory by rings of packet sockets"
	}
	return f
}

// xdpFeature tells whether functions can take frames by AF_XDP sockets.
func xdpFeature() api.Feature {
	f := api.Feature{Name: "AF_XDP", OK: true, Detail: "functions whose images have the label weir.xdp"}
	if err := (kernel.Host{}).ProbeXDP(); err != nil {
		f.OK, f.Detail = false, err.Error()+": functions whose images have the label weir.xdp do not start"
	}
	return f
}

// socketsFeature tells whether functions can be kept from taking memory by many sockets.
func socketsFeature() api.Feature {
	f := api.Feature{Name: "bounded sockets", OK: true, Detail: "--function-rings"}
	err := containers.CheckRings()
	if err == nil {
		err = containers.CheckSockets()
	}
	if err != nil {
		f.OK, f.Detail = false, err.Error()+": a function can take the host's memory by many sockets that are not seen"
	}
	return f
}

// sealedFeature tells whether tunnels to other hosts can be encrypted.
func sealedFeature() api.Feature {
	f := api.Feature{Name: api.FeatureSealed, OK: true, Detail: "WireGuard"}
	if err := netns.ProbeWireGuard(); err != nil {
		f.OK, f.Detail = false, err.Error()
	}
	return f
}
