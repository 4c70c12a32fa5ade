package kvm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kvm/channel"
	"weir.dev/weir/instance"
)

// trialID is the name of the group in which trials run; a function's has its number behind.
const trialID = "weir-trial"

// nobody runs trials.
const nobody = 65534

// trialIn bounds one trial. A processor that is the host's own is quick, or it does not work.
var trialIn = map[string]time.Duration{"kvm": 15 * time.Second, "tcg": 2 * bootsIn}

// trialAgain is how long a trial counts in which no machine came up.
const trialAgain = time.Minute

// trial is what was found out, and about what.
type trial struct {
	About string // the host's boot, QEMU, and the system
	Shape shape
}

// tryShapes finds out how a machine comes up here, by having it do so: that /dev/kvm can be opened says nothing. What was found counts until the host is
// booted anew.
func (e *Engine) tryShapes(ctx context.Context, sys system) (shape, error) {
	about := e.about(sys.dir)
	var known trial
	if text, err := os.ReadFile(e.trialFile()); err == nil && json.Unmarshal(text, &known) == nil && known.About == about {
		return known.Shape, nil
	}
	accels := []string{"kvm", "tcg"}
	if _, err := os.Stat("/dev/kvm"); err != nil {
		accels = accels[1:]
	}
	var failures []error
	for _, accel := range accels {
		for _, machine := range []string{"microvm", "q35", "pc"} {
			s := shape{accel, machine}
			err := e.try(ctx, sys, s)
			if ctx.Err() != nil {
				return s, ctx.Err()
			}
			if err == nil {
				e.tell(s, failures)
				return s, e.remember(trial{about, s})
			}
			failures = append(failures, fmt.Errorf("%s: %w", s, err))
		}
	}
	return shape{}, fmt.Errorf("no virtual machine comes up here: %w", errors.Join(failures...))
}

func (e *Engine) tell(s shape, failures []error) {
	if e.log == nil {
		return
	}
	if s.Accel == "tcg" {
		e.log.Warn("virtual machines have an emulated processor", "machine", s.Machine, "because", errors.Join(failures...))
		return
	}
	e.log.Info("virtual machines", "machine", s.Machine, "processor", s.Accel)
}

func (e *Engine) remember(t trial) error {
	text, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return instance.Replace(e.trialFile(), text, 0o600)
}

// ByHand are the arguments with which QEMU makes a machine such as the runtime does, for whoever compares the two: machine, processor, memory, the words for
// the kernel. Kernel, disks and lines are up to the caller. It may take a trial.
func (r *Runtime) ByHand(ctx context.Context) ([]string, error) {
	_, s, err := r.engine.common(ctx)
	if err != nil {
		return nil, err
	}
	var c command
	c.basis(s, defaultMemory, 1, nil)
	c.add("-append", words(s.Accel))
	return c.args, nil
}

// Emulated begins the note of machines whose processor is.
const Emulated = "emulated processor"

// Note tells what the last trial found.
func (r *Runtime) Note() string {
	var t trial
	text, err := os.ReadFile(r.engine.trialFile())
	if err != nil || json.Unmarshal(text, &t) != nil || !strings.HasPrefix(t.About, hostBoot()+" ") {
		return ""
	}
	if t.Shape.Accel == "tcg" {
		return fmt.Sprintf(Emulated+" (tcg), machine %s: with /dev/kvm none came up, or there is none", t.Shape.Machine)
	}
	return fmt.Sprintf("processor by /dev/kvm, machine %s", t.Shape.Machine)
}

func hostBoot() string {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(boot))
}

// about says what a trial of a system is true of.
func (e *Engine) about(system string) string {
	of := hostBoot() + " " + system + " " + e.qemu
	if info, err := os.Stat(e.qemu); err == nil {
		of += " " + info.ModTime().UTC().Format(time.RFC3339Nano)
	}
	return of
}

// endAfter ends what runs in the group of a machine that is no function's, and removes the group; what fails is added to err.
func (e *Engine) endAfter(ctx context.Context, id string, err *error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answersIn)
	defer cancel()
	*err = errors.Join(*err, e.home.EndIn(ctx, id))
}

// try boots a machine that ends at once.
func (e *Engine) try(ctx context.Context, sys system, s shape) (err error) {
	if left, err := filepath.Glob(filepath.Join(e.home.Dir(), "trial-*")); err == nil { // of a process that was killed
		for _, dir := range left {
			_ = os.RemoveAll(dir)
		}
	}
	dir, err := os.MkdirTemp(e.home.Dir(), "trial-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	o := opener{dir: dir}
	defer o.close()
	var q command
	q.basis(s, defaultMemory, 1, nil)
	q.boots(s, o.read(sys.kernel()), o.read(sys.initrd()), o.written(consoleFile), o.written(exitFile), channel.Trial)
	words := o.written(wordsFile)
	if o.err != nil {
		return o.err
	}
	defer e.endAfter(ctx, trialID, &err)
	cmd, err := e.run(ctx, container.Spec{ID: trialID}, nobody, q, words)
	if err != nil {
		return err
	}
	limit, cancel := context.WithTimeout(ctx, trialIn[s.Accel])
	defer cancel()
	stop := context.AfterFunc(limit, func() { _ = cmd.Process.Kill() })
	defer stop()
	_ = kernel.Wait(cmd)
	if exit, ok := readExit(dir); ok && exit.Code == 0 {
		return nil
	}
	if limit.Err() != nil {
		return fmt.Errorf("it has not come up in %v: %s", trialIn[s.Accel], printable(tail(dir, consoleFile, 3)))
	}
	return fmt.Errorf("it ended: %s", printable(tail(dir, wordsFile, 2)+" "+tail(dir, consoleFile, 3)))
}
