package platform

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
)

// suffixDaemons is the directory of the daemons of a run: their records, and the namespaces in which they live.
const suffixDaemons = "-w"

// Daemon is a Weir as its users run it: the program in a process of its own, in a network namespace of its own, between two stations. Its
// configuration is applied by the program's own command line, so another version is driven as that version wants it.
type Daemon struct {
	record daemonRecord
	file   string // of the record
	dir    string // of its namespaces
	inst   instance.Instance
	cmd    *exec.Cmd
	ended  chan struct{}

	version string
}

// daemonRecord is written before anything is made: by it a daemon is found again after a crash.
type daemonRecord struct {
	Name    string `json:"name"` // of the instance
	Program string `json:"program"`
	Images  string `json:"images,omitempty"`
}

// Former is the directory of another clone in which `make build` ran.
type Former string

// Program of the clone.
func (f Former) Program() string { return filepath.Join(string(f), "bin", "weir") }

// Check tells why the clone has nothing to run; empty: it has.
func (f Former) Check() string {
	if f == "" {
		return "no other version was named: want --before DIR, a clone of it in which `make build` ran"
	}
	if _, err := os.Stat(f.Program()); err != nil {
		return fmt.Sprintf("%s: run `make build` there", err)
	}
	return ""
}

func checkFormer(o Options) string {
	if why := o.Former.Check(); why != "" {
		return why
	}
	return checkDaemon(o)
}

// checkDaemon: it has the switch and the runtime that the platform ebpf has.
func checkDaemon(o Options) string {
	k, _ := Find("ebpf")
	return k.Check(o)
}

// own is the program of the daemons that are no other version's.
func (o Options) own() (string, error) {
	if o.Program != "" {
		return filepath.Abs(o.Program)
	}
	return os.Executable()
}

// StartDaemon starts a Weir of this program, or of another clone, and waits until its host is ready. Several can run at once.
func StartDaemon(ctx context.Context, o Options, former bool) (*Daemon, error) {
	r := daemonRecord{}
	var err error
	if former {
		r.Program, err = filepath.Abs(o.Former.Program())
	} else {
		r.Program, err = o.own()
		if len(o.Images) > 0 {
			r.Images = o.Images[0]
		}
	}
	if err != nil {
		return nil, err
	}
	d, err := recordDaemon(o, r)
	if err != nil {
		return nil, err
	}
	if err := d.start(ctx); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// mostDaemons of a run at once.
const mostDaemons = 64

// recordDaemon takes a name that is free.
func recordDaemon(o Options, r daemonRecord) (*Daemon, error) {
	home := filepath.Join(State, o.Name+suffixDaemons)
	if err := os.MkdirAll(home, 0o755); err != nil {
		return nil, err
	}
	for i := range mostDaemons {
		r.Name = daemonNames(o) + strconv.FormatInt(int64(i), 36)
		d, err := atDaemon(o, r)
		if err != nil {
			return nil, err
		}
		if exists(d.file) || exists(d.inst.Run) || exists(d.inst.Root) {
			continue
		}
		text, err := json.Marshal(r)
		if err != nil {
			return nil, err
		}
		return d, instance.WriteFile(d.file, text)
	}
	return nil, fmt.Errorf("there are %d daemons of run %s already", mostDaemons, o.Name)
}

// daemonNames is what the names of a run's daemons begin with. They are no directories of the lab's own, which have no daemon's lock.
func daemonNames(o Options) string { return strings.ReplaceAll(o.Name, "-", "") + "-" }

// atDaemon is a daemon that may be there.
func atDaemon(o Options, r daemonRecord) (*Daemon, error) {
	inst, err := instance.New(r.Name, "")
	return &Daemon{record: r, inst: inst, file: filepath.Join(State, o.Name+suffixDaemons, r.Name+".json"), dir: filepath.Join(dir(o, suffixDaemons), r.Name)}, err
}

// home is the namespace in which it lives.
func (d *Daemon) home() string { return filepath.Join(d.dir, "home") }

// Alice and Bob are the namespaces of the stations.
func (d *Daemon) Alice() string { return filepath.Join(d.dir, "alice") }
func (d *Daemon) Bob() string   { return filepath.Join(d.dir, "bob") }

// Endpoints are the stations as a document has them.
func (d *Daemon) Endpoints() string {
	return fmt.Sprintf("endpoints:\n  alice: {netns: %s, interface: %s, address: %s}\n  bob: {netns: %s, interface: %s, address: %s}\n",
		d.Alice(), Station, sourceAddress, d.Bob(), Station, targetAddress)
}

func (d *Daemon) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, space := range []string{d.home(), d.Alice(), d.Bob()} {
		if err := netns.Create(space, netns.Options{Quiet: space == d.home()}); err != nil {
			return err
		}
	}
	log, err := os.Create(d.log())
	if err != nil {
		return err
	}
	defer log.Close()
	d.cmd = exec.Command("nsenter", "--net="+d.home(), d.record.Program, "up") // which becomes the program
	d.cmd.Env, d.cmd.Stdout, d.cmd.Stderr = d.env(), log, log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := d.cmd.Start(); err != nil {
		d.cmd = nil
		return fmt.Errorf("start %s: %w", d.record.Program, err)
	}
	d.ended = make(chan struct{})
	go func() { _ = d.cmd.Wait(); close(d.ended) }()
	if err := d.ready(ctx); err != nil {
		return err
	}
	return d.Apply(ctx, d.Endpoints())
}

// ready waits until the API answers and its host takes functions.
func (d *Daemon) ready(ctx context.Context) error {
	c, err := d.Client()
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		hosts, err := c.Hosts().List(ctx, api.ListOptions{})
		if err == nil && len(hosts.Items) > 0 && hosts.Items[0].Status.State == api.HostReady {
			d.version = cmp.Or(hosts.Items[0].Status.Version, "unknown")
			return nil
		}
		select {
		case <-d.ended:
			return fmt.Errorf("%s up ended (%s): %s", d.record.Program, d.cmd.ProcessState, d.tail())
		case <-ctx.Done():
			return fmt.Errorf("%s up is not ready: %w: %s", d.record.Program, errors.Join(err, context.Cause(ctx)), d.tail())
		case <-time.After(pollAPI):
		}
	}
}

func (d *Daemon) log() string { return strings.TrimSuffix(d.file, ".json") + ".log" }

func (d *Daemon) tail() string {
	text, err := os.ReadFile(d.log())
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text[max(0, len(text)-600):]))
}

// env addresses this instance, whatever the shell speaks to.
func (d *Daemon) env() []string {
	e := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "WEIR_") })
	e = append(e, "WEIR_NAME="+d.inst.Name, "WEIR_ROOT="+d.inst.Root, "WEIR_YES=true", "NO_COLOR=1")
	if d.record.Images != "" {
		e = append(e, "WEIR_IMAGES="+d.record.Images)
	}
	return e
}

// Client of its API.
func (d *Daemon) Client() (*api.Client, error) { return api.Dial(api.Options{Socket: d.inst.Socket()}) }

// Version that it says it is.
func (d *Daemon) Version() string { return d.version }

// PID of its process.
func (d *Daemon) PID() int { return d.cmd.Process.Pid }

// Weir runs a command of its program against it.
func (d *Daemon) Weir(ctx context.Context, stdin string, args ...string) error {
	c := exec.CommandContext(ctx, d.record.Program, args...)
	c.Env, c.Stdin = d.env(), strings.NewReader(stdin)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("weir %s: %w: %s", strings.Join(args, " "), errors.Join(err, ctx.Err()), bytes.TrimSpace(out))
	}
	return nil
}

// Apply a document and wait until it is in force.
func (d *Daemon) Apply(ctx context.Context, document string, more ...string) error {
	return d.Weir(ctx, document, append([]string{"apply", "-f", "-"}, more...)...)
}

// Path between the stations as they are: what leads through which functions is what was applied.
func (d *Daemon) Path(ctx context.Context) (Path, error) {
	c, err := d.Client()
	if err != nil {
		return Path{}, err
	}
	defer c.Close()
	e, err := c.Endpoints().Get(ctx, "alice")
	p := Path{From: d.Alice(), To: d.Bob(), Source: sourceAddress.Addr(), Address: targetAddress.Addr(), Space: d.home(), Middle: d.home(), Link: e.Status.Link}
	if err != nil {
		return p, err
	}
	return p, p.Try(ctx)
}

// settling bounds the wait for programs to move, settleLook is how often to look.
const (
	settling   = 30 * time.Second
	settleLook = 100 * time.Millisecond
)

// Settle waits until its switch has moved its programs from tc filters, which are quick to attach, to tcx links, which are quick to run. It
// returns how many are left: on a kernel without tcx, all of them.
func (d *Daemon) Settle(ctx context.Context) (left int, err error) {
	for deadline := time.Now().Add(settling); ; {
		if left, err = d.filters(); err != nil || left == 0 || time.Now().After(deadline) {
			return left, err
		}
		select {
		case <-time.After(settleLook):
		case <-ctx.Done():
			return left, ctx.Err()
		}
	}
}

// filters counts the programs that are tc filters at all links of the daemon and its functions.
func (d *Daemon) filters() (n int, err error) {
	spaces := []string{d.home()}
	entries, err := os.ReadDir(d.inst.NetnsDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // no function yet
		return 0, err
	}
	for _, e := range entries {
		spaces = append(spaces, filepath.Join(d.inst.NetnsDir(), e.Name()))
	}
	for _, s := range spaces {
		err := netns.Do(s, func() error {
			here, err := filtersHere()
			n += here
			return err
		})
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// filtersHere counts those of the namespace that it is called in. Functions may have filters of their own, which are no programs.
func filtersHere() (n int, err error) {
	links, err := netlink.LinkList()
	if err != nil {
		return 0, err
	}
	for _, l := range links {
		for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
			all, err := netlink.FilterList(l, parent)
			if err != nil { // a link without the qdisc has none
				continue
			}
			for _, f := range all {
				if f.Type() == (&netlink.BpfFilter{}).Type() {
					n++
				}
			}
		}
	}
	return n, nil
}

// CPU time that its process has used. Unlike /proc it is not in ticks of 10 ms.
func (d *Daemon) CPU() (time.Duration, error) {
	clock := int32(^d.PID())<<3 | 2 // clock_getcpuclockid(3): the scheduler's clock of a process
	var t unix.Timespec
	if err := unix.ClockGettime(clock, &t); err != nil {
		return 0, fmt.Errorf("CPU time of process %d: %w", d.PID(), err)
	}
	return time.Duration(t.Nano()), nil
}

// Pause stops its process, or lets it go on: meanwhile this machine is one without it. `weir down` ends a stopped one, too.
func (d *Daemon) Pause(on bool) error {
	s := unix.SIGCONT
	if on {
		s = unix.SIGSTOP
	}
	if err := unix.Kill(d.PID(), s); err != nil {
		return fmt.Errorf("daemon %s: %w", d.inst.Name, err)
	}
	for end := time.Now().Add(stopping); on; time.Sleep(time.Millisecond) { // its threads stop one by one
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.PID()))
		if err != nil {
			return fmt.Errorf("daemon %s: %w", d.inst.Name, err)
		}
		if _, after, _ := strings.Cut(string(text), ") "); strings.HasPrefix(after, "T") {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("daemon %s does not stop within %s of SIGSTOP", d.inst.Name, stopping)
		}
	}
	return nil
}

// stopping bounds the wait for a process to stand still.
const stopping = 5 * time.Second

// Close ends it and removes what it made. It also removes what a crash left.
func (d *Daemon) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if exists(d.inst.Run) || exists(d.inst.Root) {
		if err := d.down(ctx); err != nil {
			return err // its record stays: the next run tries again
		}
	}
	if d.ended != nil {
		select {
		case <-d.ended:
		case <-ctx.Done():
			return fmt.Errorf("daemon %s outlived `weir down`", d.inst.Name)
		}
	}
	err := errors.Join(removeSpaces(d.dir), os.RemoveAll(d.log()), os.RemoveAll(d.file))
	_, _ = os.Remove(filepath.Dir(d.dir)), os.Remove(filepath.Dir(d.file)) // if no other daemon is there
	return err
}

// down by the daemon's own program, or by ours if that is gone.
func (d *Daemon) down(ctx context.Context) error {
	if _, err := os.Stat(d.record.Program); err != nil {
		self, serr := os.Executable()
		if serr != nil {
			return errors.Join(err, serr)
		}
		d.record.Program = self
	}
	return d.Weir(ctx, "", "down")
}

// removeDaemons takes away what a crash left.
func removeDaemons(o Options) error {
	home := filepath.Join(State, o.Name+suffixDaemons)
	entries, err := os.ReadDir(home)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var errs []error
	for _, e := range entries {
		if filepath.Ext(e.Name()) != ".json" {
			continue
		}
		errs = append(errs, removeDaemon(o, filepath.Join(home, e.Name())))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return errors.Join(removeSpaces(dir(o, suffixDaemons)), os.RemoveAll(home))
}

func removeDaemon(o Options, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var r daemonRecord
	if err := json.Unmarshal(text, &r); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	d, err := atDaemon(o, r)
	if err != nil {
		return err
	}
	return d.Close()
}
