package platform

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.dev/weir/container/docker/dockerd"
	"weir.dev/weir/image"
	"weir.dev/weir/instance"
	"weir.dev/weir/lab/tied"
	"weir.dev/weir/lab/traffic/tools"
	"weir.dev/weir/netns"
)

// Suffixes of the instances of a run's engines.
const (
	suffixDocker  = "-d"
	suffixNAT     = "-n" // of one on whose bridge processors are
	suffixMacvlan = "-m" // of one on whose macvlan they are
)

// Engine is a Docker engine of the lab's own: in network, mount and process namespaces of its own, so that nothing outlives it.
type Engine struct {
	run, data string
	space     string // network
	inst      instance.Instance
	mu        sync.Mutex
	loaded    []string // images and networks
	cgroup    string
	host      string // of its API
	networks  bool   // it forwards, masquerades and publishes ports in its namespace, as engines do unless they are told otherwise
	cmd       *exec.Cmd
	ended     chan struct{}
	log       *os.File
	pid       int // of dockerd as this process sees it
}

// DockerImage is the name under which an Engine has the image "wire".
const DockerImage = wireImage

func checkDocker(o Options) string {
	if os.Geteuid() != 0 {
		return "needs root"
	}
	for program, of := range map[string]string{"dockerd": "docker.io", "docker": "docker.io", "unshare": "util-linux", "tar": "tar"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Sprintf("%s: %s (apt-get install %s)", program, tools.ErrMissing, of)
		}
	}
	return CheckRuntime("oci", o)
}

// CheckEngine tells why there can be no engine here; empty: there can.
func CheckEngine(o Options) string { return checkDocker(o) }

func newEngine(o Options, suffix string) (*Engine, error) {
	inst, err := instance.New(o.Name+suffix, "")
	if err != nil {
		return nil, err
	}
	return &Engine{networks: suffix != suffixDocker, run: inst.Run, data: inst.Root, space: filepath.Join(inst.Run, "net"), inst: inst, cgroup: "weir-" + inst.Name, host: "unix://" + inst.Run + "/docker.sock"}, nil
}

// StartEngine starts one and gives it the image "wire". One at a time for a run.
func StartEngine(ctx context.Context, o Options) (*Engine, error) {
	e, err := EmptyEngine(ctx, o)
	if err != nil {
		return nil, err
	}
	if err := e.load(ctx, o, wireImage); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// EmptyEngine starts one without images. One at a time for a run.
func EmptyEngine(ctx context.Context, o Options) (*Engine, error) {
	return openEngine(ctx, o, suffixDocker)
}

func openEngine(ctx context.Context, o Options, suffix string) (*Engine, error) {
	e, err := newEngine(o, suffix)
	if err != nil {
		return nil, err
	}
	if err := e.start(ctx); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

func (e *Engine) start(ctx context.Context) error {
	for _, d := range []string{e.run, e.data} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if err := netns.Create(e.space, netns.Options{Quiet: true}); err != nil {
		return err
	}
	var err error
	if e.log, err = os.Create(filepath.Join(e.data, "log")); err != nil {
		return err
	}
	args := []string{"--net=" + e.space, "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
		"dockerd", "--host", e.host, "--data-root", e.data + "/data", "--exec-root", e.run + "/exec", "--pidfile", e.run + "/pid",
		"--ip6tables=false", "--bip", "10.9.0.254/24", "--cgroup-parent", "/" + e.cgroup}
	if !e.networks {
		args = append(args, "--iptables=false", "--ip-masq=false", "--ip-forward=false", "--userland-proxy=false")
	}
	e.cmd = exec.Command("nsenter", args...)
	e.cmd.Stdout, e.cmd.Stderr = e.log, e.log
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := tied.Start("", e.cmd); err != nil {
		e.cmd = nil
		return fmt.Errorf("dockerd: %w", err)
	}
	e.ended = make(chan struct{})
	go func() { _ = e.cmd.Wait(); close(e.ended) }()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		if _, err = e.Docker(ctx, nil, "version"); err == nil {
			break
		}
		select {
		case <-e.ended:
			return fmt.Errorf("dockerd ended: %s", e.tail())
		case <-ctx.Done():
			return fmt.Errorf("dockerd does not answer: %w: %s", ctx.Err(), e.tail())
		case <-time.After(100 * time.Millisecond):
		}
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", e.cmd.Process.Pid, e.cmd.Process.Pid))
	if err == nil {
		_, err = fmt.Sscan(string(children), &e.pid)
	}
	if err != nil {
		return fmt.Errorf("dockerd's process: %w", err)
	}
	return nil
}

// load imports the root of an image, once, under its own name.
func (e *Engine) load(ctx context.Context, o Options, name string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if slices.Contains(e.loaded, name) {
		return nil
	}
	root, err := image.Open(e.inst, o.Images...).Mount(ctx, name)
	if err == nil {
		err = e.Import(ctx, root, name)
	}
	if err == nil {
		e.loaded = append(e.loaded, name)
	}
	return err
}

// Import makes an image of a directory, without the files at its top that match patterns.
func (e *Engine) Import(ctx context.Context, root, name string, without ...string) error {
	args := []string{"-C", root}
	for _, pattern := range without {
		args = append(args, "--exclude=./"+pattern)
	}
	pack := exec.CommandContext(ctx, "tar", append(args, "-c", ".")...)
	var problems bytes.Buffer
	pack.Stderr = &problems
	r, err := pack.StdoutPipe()
	if err == nil {
		err = pack.Start()
	}
	if err != nil {
		return fmt.Errorf("tar: %w", err)
	}
	_, err = e.Docker(ctx, r.(*os.File), "import", "-", name)
	if werr := pack.Wait(); err == nil && werr != nil {
		err = fmt.Errorf("tar: %w: %s", werr, problems.String())
	}
	return err
}

func (e *Engine) tail() string {
	text, err := os.ReadFile(e.log.Name())
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text[max(0, len(text)-600):]))
}

// Docker runs the engine's client, and gives what it said.
func (e *Engine) Docker(ctx context.Context, stdin *os.File, args ...string) (string, error) {
	var in io.Reader
	if stdin != nil {
		in = stdin
	}
	var out bytes.Buffer
	if err := e.Pipe(ctx, in, &out, &out, args...); err != nil {
		return "", fmt.Errorf("docker %s: %w: %s", args[0], errors.Join(err, ctx.Err()), strings.TrimSpace(out.String()))
	}
	return strings.TrimSpace(out.String()), nil
}

// Pipe runs the engine's client. in ends before it does, or is nil.
func (e *Engine) Pipe(ctx context.Context, in io.Reader, out, problems io.Writer, args ...string) error {
	cmd := exec.CommandContext(ctx, "docker", append([]string{"--host", e.host}, args...)...)
	cmd.Env = append(cmd.Environ(), "DOCKER_CONFIG="+e.run, "DOCKER_CONTEXT=")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, problems
	if err := tied.Start("", cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

// engineMacvlan is the engine's network on the link of its host.
const engineMacvlan = "lab"

// macvlan makes the engine's network on the link of its host, once. address is one on it.
func (e *Engine) macvlan(ctx context.Context, address netip.Prefix) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if slices.Contains(e.loaded, "network "+engineMacvlan) {
		return nil
	}
	_, err := e.Docker(ctx, nil, "network", "create", "--driver", "macvlan", "--subnet", address.Masked().String(), "--opt", "parent="+Station, engineMacvlan)
	if err == nil {
		e.loaded = append(e.loaded, "network "+engineMacvlan)
	}
	return err
}

// Space is the network namespace of a container. The engine's mounts are its own: they are seen through its process.
func (e *Engine) Space(ctx context.Context, container string) (string, error) {
	sandbox, err := e.Docker(ctx, nil, "inspect", "-f", "{{.NetworkSettings.SandboxKey}}", container)
	return fmt.Sprintf("/proc/%d/root%s", e.pid, sandbox), err
}

// Alive tells whether it still runs.
func (e *Engine) Alive() bool {
	select {
	case <-e.ended:
		return false
	default:
		return true
	}
}

// Kill it. Its namespaces, with all that is in them, end with it.
func (e *Engine) Kill() error {
	err := unix.Kill(-e.cmd.Process.Pid, unix.SIGKILL)
	<-e.ended
	return err
}

// Close ends the engine with all its containers and removes what it kept.
func (e *Engine) Close() error {
	if e.cmd != nil && e.cmd.Process != nil {
		_ = e.Kill() // it may have ended
	}
	if e.log != nil {
		_ = e.log.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return errors.Join(image.Open(e.inst).Destroy(ctx), RemoveCgroups(ctx, e.cgroup), retry(ctx, func() error { return removeDirs(e.space, e.run, e.data) }))
}

// retry while the kernel still takes processes and mounts down.
func retry(ctx context.Context, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func removeDirs(space string, dirs ...string) error {
	err := netns.Delete(space)
	for _, d := range dirs {
		err = errors.Join(err, os.RemoveAll(d))
	}
	return err
}

// RemoveCgroups takes an empty cgroup and all below it away, in every hierarchy.
func RemoveCgroups(ctx context.Context, name string) error {
	return retry(ctx, func() error { return dockerd.RemoveCgroups(name) })
}

// removeDocker takes away what a crash left.
func removeDocker(o Options) error {
	var errs []error
	for _, suffix := range []string{suffixDocker, suffixNAT, suffixMacvlan} {
		e, err := newEngine(o, suffix)
		if err != nil {
			return err
		}
		if exists(e.run) || exists(e.data) {
			errs = append(errs, e.Close())
		}
	}
	return errors.Join(errs...)
}

// docker is two containers on Docker's bridge.
type docker struct {
	e    *Engine
	path Path
}

func openDocker(ctx context.Context, o Options) (Platform, error) {
	e, err := StartEngine(ctx, o)
	if err != nil {
		return nil, err
	}
	d := &docker{e: e}
	if err := d.build(ctx); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *docker) build(ctx context.Context) error {
	ends := map[string]*netip.Addr{"alice": &d.path.Source, "bob": &d.path.Address}
	for name, addr := range ends {
		if _, err := d.e.Docker(ctx, nil, "run", "-d", "--name", name, DockerImage, WireProgram); err != nil {
			return err
		}
		text, err := d.e.Docker(ctx, nil, "inspect", "-f", "{{.NetworkSettings.IPAddress}}", name)
		if err != nil {
			return err
		}
		if *addr, err = netip.ParseAddr(text); err != nil {
			return fmt.Errorf("docker inspect %s: %w", name, err)
		}
		space, err := d.e.Space(ctx, name)
		if err != nil {
			return err
		}
		if name == "alice" {
			d.path.From = space
		} else {
			d.path.To = space
		}
	}
	d.path.Middle = d.e.space
	for _, space := range []string{d.path.From, d.path.To, d.e.space} {
		if err := netns.Do(space, usualQueues); err != nil {
			return fmt.Errorf("queues in %s: %w", space, err)
		}
	}
	return d.path.Try(ctx)
}

// usualQueue is the kernel's length of a veth's transmit queue (TxQLen), which Docker makes 0.
const usualQueue = 1000

// usualQueues gives Docker's veths of the thread's namespace what those of other platforms have.
func usualQueues() error {
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	for _, l := range links {
		if l.Type() == "veth" {
			err = errors.Join(err, netlink.LinkSetTxQLen(l, usualQueue))
		}
	}
	return err
}

// WireProgram is the program of the image "wire".
const WireProgram = "/usr/bin/wire"

func (d *docker) Path(_ context.Context, l Layout) (Path, error) {
	if l.Chain != 0 {
		return Path{}, fmt.Errorf("two containers on Docker's bridge have no functions between them: %d", l.Chain)
	}
	return d.path, nil
}

func (d *docker) Close() error { return d.e.Close() }
