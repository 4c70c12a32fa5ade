package kvm

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kvm/channel"
)

// template is a machine that has booted as far as all machines like it are alike, kept as its memory and the state of its devices. A machine that goes on from there
// spares most of a boot, which takes an emulated processor more than a second.
type template struct {
	dir          string
	ram, devices *os.File // its files, open: they stay as long as a machine begins from them, whoever removes the directory
}

// open takes hold of a template's files.
func (t *template) open() (err error) {
	if t.ram, err = os.Open(t.memory()); err != nil {
		return err
	}
	if t.devices, err = os.Open(t.state()); err != nil {
		t.close()
	}
	return err
}

func (t *template) close() {
	t.ram.Close()
	t.devices.Close()
}

func (t *template) memory() string { return filepath.Join(t.dir, "memory") }
func (t *template) state() string  { return filepath.Join(t.dir, "state") }

// copied is the shape of machines that are made from templates. A processor of the host's own boots in a fraction of a second; and devices on PCI are found by the
// kernel before anybody could say when.
var copied = shape{"tcg", "microvm"}

// templateFormat is to be increased when templates are made otherwise.
const templateFormat = "2"

// mostTemplates stay after use. Each takes some 75 MB.
const mostTemplates = 4

// Of a template's interfaces. Those of its copies have their own: a driver begins with a reset, by which they count.
const templateMTU = 1500

var templateMAC = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x01}

func (e *Engine) templates() string {
	return cmp.Or(e.others, filepath.Join(e.home.Root(), "templates"))
}

// kind of a machine: those of one kind have a template in common.
type kind struct {
	memory      int64 // bytes
	cpus, links int
}

// template gives the template of a kind: it makes it where there is none. nil: machines boot here, one by one.
func (e *Engine) template(ctx context.Context, sys system, s shape, k kind) (*template, error) {
	if s != copied || e.alone {
		return nil, nil
	}
	t := e.named(sys, s, k)
	if found, wanted := e.find(t); !wanted {
		return found, nil
	}
	select { // a machine whose template is there does not wait for another kind's
	case e.copying <- struct{}{}:
		defer func() { <-e.copying }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if found, wanted := e.find(t); !wanted { // made meanwhile
		return found, nil
	}
	booted, err := e.turn(ctx) // who waits for the template has none: other machines come up meanwhile
	if err != nil {
		return nil, err
	}
	defer booted()
	err = e.tries(ctx, s, func(once try) error { return e.makeTemplate(ctx, t, sys, s, k, once) })
	if err == nil {
		err = t.open()
	}
	if err != nil {
		if ctx.Err() == nil {
			e.giveUp(t, err)
		}
		return nil, ctx.Err()
	}
	if err := e.sweep(); err != nil && e.log != nil {
		e.log.Warn("former templates of virtual machines stay", "because", err)
	}
	return t, nil
}

// named is where the template of a kind is, or would be.
func (e *Engine) named(sys system, s shape, k kind) *template {
	sum := sha256.New()
	fmt.Fprintln(sum, templateFormat, e.about(filepath.Base(sys.dir)), s, k.memory, k.cpus, k.links)
	return &template{dir: filepath.Join(e.templates(), hex.EncodeToString(sum.Sum(nil)[:16]))}
}

// find opens a template. wanted tells that there is none, and that one is to be made. Half of one, whose remover was killed, is removed.
func (e *Engine) find(t *template) (found *template, wanted bool) {
	e.finding.Lock()
	defer e.finding.Unlock()
	if time.Now().Before(e.pauses[t.dir].until) {
		return nil, false
	}
	if t.open() != nil {
		_ = os.RemoveAll(t.dir)
		return nil, true
	}
	now := time.Now()
	_ = os.Chtimes(t.dir, now, now)
	return t, false
}

// pause is a time in which machines of a kind boot, each by itself.
type pause struct {
	tries int // that have failed, one after the other
	until time.Time
}

// pausesFor are the pauses after the first tries that fail, and the last after all others.
var pausesFor = []time.Duration{time.Minute, 5 * time.Minute, 30 * time.Minute}

// forgotten is how long after a pause the failures before it count.
const forgotten = 24 * time.Hour

// after is the pause when one more try has failed. One that ends during a pause had begun before it, and changes nothing.
func (p pause) after(now time.Time) (next pause, begins bool) {
	if now.Before(p.until) {
		return p, false
	}
	return pause{p.tries + 1, now.Add(pausesFor[min(p.tries, len(pausesFor)-1)])}, true
}

// giveUp has machines like these boot for some time, each by itself: the template cannot be made, or a machine did not come up from it. The first after that makes another.
func (e *Engine) giveUp(t *template, why error) {
	e.finding.Lock()
	defer e.finding.Unlock()
	now := time.Now()
	maps.DeleteFunc(e.pauses, func(_ string, p pause) bool { return now.Sub(p.until) > forgotten })
	p, begins := e.pauses[t.dir].after(now)
	if !begins {
		return
	}
	e.pauses[t.dir] = p
	_ = os.RemoveAll(t.dir)
	if e.log != nil {
		e.log.Warn("virtual machines boot one by one, and not from a template", "for", p.until.Sub(now), "tries", p.tries, "because", why)
	}
}

// resume forgets former failures: a machine has come up from the template.
func (e *Engine) resume(t *template) {
	e.finding.Lock()
	defer e.finding.Unlock()
	p, failed := e.pauses[t.dir]
	if !failed || time.Now().Before(p.until) { // the machine had begun before that failure
		return
	}
	delete(e.pauses, t.dir)
	if e.log != nil {
		e.log.Info("virtual machines begin from a template again", "tries", p.tries+1)
	}
}

// templateDirs are where the sockets and the words of a machine are that becomes a template.
const templateDirs = "template-"

// makeTemplate boots a machine with devices that are not used, and keeps what it has become.
func (e *Engine) makeTemplate(ctx context.Context, t *template, sys system, s shape, k kind, once try) (err error) {
	if err := os.MkdirAll(e.templates(), 0o700); err != nil {
		return err
	}
	into, err := os.MkdirTemp(e.templates(), halfPrefix)
	if err != nil {
		return err
	}
	defer os.RemoveAll(into)
	half := template{dir: into}
	dir, err := os.MkdirTemp(e.home.Dir(), templateDirs)
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "disk"), make([]byte, 512), 0o644); err != nil {
		return err
	}
	o := opener{dir: dir}
	defer o.close()
	ram := o.keep(os.OpenFile(half.memory(), os.O_CREATE|os.O_RDWR|os.O_EXCL, 0o600))
	state := o.keep(os.OpenFile(half.state(), os.O_CREATE|os.O_RDWR|os.O_EXCL, 0o600))
	if o.err != nil {
		return o.err
	}
	if err := errors.Join(ram.Truncate(k.memory), ram.Chmod(0o666)); err != nil { // QEMU opens it by its number, in a directory that lets nobody through
		return err
	}
	disk := func() *os.File { return o.read(filepath.Join(dir, "disk")) }
	var q command
	q.basis(s, k.memory, k.cpus, ram)
	q.boots(s, o.read(sys.kernel()), o.read(sys.initrd()), o.written(consoleFile), o.written(exitFile), append([]string{channel.Template}, once.words...)...)
	q.devices(s, disk(), disk(), disk(), o.listens(controlSocket), o.listens(qmpSocket), o.written("log"))
	for i := range k.links {
		q.interfaceOf(s.device("net"), fmt.Sprintf("hubport,hubid=%d", i), i, templateMAC, templateMTU)
	}
	words := o.written(wordsFile)
	if o.err != nil {
		return o.err
	}
	defer e.endAfter(ctx, templateID, &err)
	cmd, err := e.run(ctx, container.Spec{ID: templateID, Memory: k.memory}, nobody, q, words)
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = kernel.Wait(cmd) }()
	defer func() {
		_ = cmd.Process.Kill()
		<-ended
		if st, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && st.Signal() == unix.SIGBUS { // it wrote to memory that the file has no room for
			err = fmt.Errorf("no space for a template's memory in %s: free some 75 MB there", e.templates())
		}
	}()
	ctx, cancel := inTime(ctx, cmd.Process.Pid, once.in)
	defer cancel()
	if err := becomesTemplate(ctx, dir, ended); err != nil {
		return err
	}
	if err := saveState(ctx, dir, state); err != nil {
		return err
	}
	if err := ram.Chmod(0o600); err != nil {
		return err
	}
	if err := os.Rename(half.dir, t.dir); !errors.Is(err, fs.ErrExist) { // another's is as good
		return err
	}
	return nil
}

// templateID is the name of the group in which a template is made; a function's has its number behind.
const templateID = "weir-template"

// becomesTemplate waits until a machine can be a template.
func becomesTemplate(ctx context.Context, dir string, ended <-chan struct{}) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		text, err := os.ReadFile(filepath.Join(dir, exitFile))
		said := strings.TrimSpace(string(text))
		switch {
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return err
		case said == channel.TemplateReady:
			return nil
		case strings.HasSuffix(string(text), "\n"):
			if wrongTimer(dir) {
				return errTimer
			}
			if exit, ok := readExit(dir); ok {
				said = exit.Error
			}
			return fmt.Errorf("it ended: %s", printable(said))
		}
		select {
		case <-ended:
			return fmt.Errorf("it ended: %s", printable(tail(dir, wordsFile, 2)+" "+tail(dir, consoleFile, 3)))
		case <-ctx.Done():
			return fmt.Errorf("%w: %s", context.Cause(ctx), printable(tail(dir, consoleFile, 3)))
		case <-tick.C:
		}
	}
}

// saveState has a machine's QEMU write the state of its devices; the memory is in its file, and stays as it is from then on.
func saveState(ctx context.Context, dir string, state *os.File) error {
	if err := converse(ctx, dir, nil, stateIn(state, "migrate")...); err != nil {
		return err
	}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		var now struct {
			Status string
			Desc   string `json:"error-desc"`
		}
		if err := converse(ctx, dir, &now, question{Execute: "query-migrate"}); err != nil {
			return err
		}
		switch now.Status {
		case "completed":
			return nil
		case "failed", "cancelled":
			return fmt.Errorf("QEMU does not tell the state of its devices: %s", printable(now.Desc))
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// stateIn are the commands by which QEMU gets a file for the state of a machine's devices, and uses it.
func stateIn(f *os.File, command string) []question {
	return []question{
		ignoresShared, {"getfd", map[string]any{"fdname": "state"}, f},
		{Execute: "migrate-set-parameters", Arguments: map[string]any{"announce-rounds": 0}}, // nothing is told to the network: the machine does not move
		{Execute: command, Arguments: map[string]any{"uri": "fd:state"}},
	}
}

// continues has a machine take the state of its devices, and go on.
func (t *template) continues(ctx context.Context, bundle string) error {
	if err := converse(ctx, bundle, nil, stateIn(t.devices, "migrate-incoming")...); err != nil {
		return notUp{fmt.Errorf("template: %w", err)}
	}
	return nil
}

// endStray ends what a process of ours that was killed has left: a template in the making waits for devices for ever.
func (e *Engine) endStray(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answersIn)
	defer cancel()
	err := errors.Join(e.home.EndIn(ctx, trialID), e.home.EndIn(ctx, templateID))
	half, _ := filepath.Glob(filepath.Join(e.home.Root(), "templates", halfPrefix+"*"))
	work, _ := filepath.Glob(filepath.Join(e.home.Dir(), templateDirs+"*"))
	for _, dir := range append(half, work...) {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

// sweep removes all templates but some, the longest unused first. A machine that runs needs none.
func (e *Engine) sweep() error {
	e.finding.Lock()
	defer e.finding.Unlock()
	return sweep(e.templates(), mostTemplates)
}
