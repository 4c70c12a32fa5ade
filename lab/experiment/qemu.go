package experiment

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"weir.dev/weir/container/kvm"
	"weir.dev/weir/lab/platform"
	"weir.dev/weir/lab/traffic/tools"
)

// kernelVariable names the machines' kernel, as for the runtime kvm.
const kernelVariable = "WEIR_KVM_KERNEL"

func checkQEMU(b *Bench) string {
	if err := tools.Installed(kvm.QEMU, "busybox"); err != nil {
		return err.Error()
	}
	return platform.CheckRuntime(kvm.Name, b.options())
}

// qemuRuntime is QEMU by hand: the kernel as its package has it, and a first file system with the image's program and a shell that starts it. The
// processor, the memory and the words for the kernel are those of the runtime kvm. There are no interfaces.
type qemuRuntime struct {
	*bundles
	foreground
	kernel string
	args   []string // of every machine
	note   string   // how machines come up here
}

func (q *qemuRuntime) initrd() string { return filepath.Join(q.inst.Run, "by-hand-initrd") }

// ready is what a machine prints when its program runs.
const ready = "the program runs"

// prepare makes the first file system of all machines, once.
func (q *qemuRuntime) prepare(ctx context.Context, b *Bench) error {
	machines, err := b.starter(ctx, kvm.Name)
	if err != nil {
		return err
	}
	rt, ok := machines.(*driverRuntime).rt.Runtime.(*kvm.Runtime)
	if !ok {
		return fmt.Errorf("runtime %s: %T", kvm.Name, machines)
	}
	if q.args, err = rt.ByHand(ctx); err != nil {
		return err
	}
	q.note = rt.Note()
	if q.kernel, err = kvm.FindKernel(os.Getenv(kernelVariable)); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(q.inst.Run, "initrd-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	init := "#!/bin/busybox sh\n/bin/busybox mount -t devtmpfs dev /dev\n/bin/busybox mount -t proc proc /proc\n" + strings.Join(q.Args(), " ") + " &\necho " + ready +
		" >/dev/console\nwait\n"
	script := `cp -a "$1/." "$2" && mkdir -p "$2/bin" "$2/dev" "$2/proc" && cp "$(command -v busybox)" "$2/bin/busybox" && printf %s "$3" >"$2/init" && chmod 755 "$2/init" &&
		cd "$2" && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1 >"$4"`
	return q.command(ctx, "sh", "-c", script, "sh", q.Root(), dir, init, q.initrd())
}

// Note tells how a machine comes up here.
func (q *qemuRuntime) Note() string { return q.note }

// create: there is nothing to prepare.
func (*qemuRuntime) create(context.Context, string) error { return nil }

func (q *qemuRuntime) start(ctx context.Context, name string) error {
	cmd := exec.Command(kvm.QEMU, append([]string{"-kernel", q.kernel, "-initrd", q.initrd(), "-serial", "stdio", "-monitor", "none"}, q.args...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = cmd.Stdout // its own words are among the machine's
	if err := q.begin(name, cmd); err != nil {
		return err
	}
	up, over := make(chan struct{}), make(chan string, 1)
	go func() {
		last := ""
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if last = lines.Text(); strings.Contains(last, ready) {
				close(up)
				_, _ = io.Copy(io.Discard, out)
				return
			}
		}
		over <- last
	}()
	ctx, cancel := context.WithTimeoutCause(ctx, upIn, fmt.Errorf("the machine's program does not run within %v", upIn))
	defer cancel()
	select {
	case <-up:
		return nil
	case last := <-over:
		return fmt.Errorf("%s: it ended: %s", kvm.QEMU, last)
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", kvm.QEMU, context.Cause(ctx))
	}
}
func (q *qemuRuntime) run(ctx context.Context, name string) error { return q.start(ctx, name) }

func itself(pid int) int { return pid }

func (q *qemuRuntime) stop(_ context.Context, name string) error   { return q.end(name, itself) }
func (q *qemuRuntime) remove(_ context.Context, name string) error { return q.end(name, itself) }
func (q *qemuRuntime) close() error                                { return q.endAll(itself) }
