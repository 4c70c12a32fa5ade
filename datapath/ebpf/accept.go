package ebpf

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"weir.dev/weir/datapath/internal/home"
)

// acceptance has the host's iptables accept what the bridge forwards, if the operator says so (Options.AcceptBridged): where bridged packets are shown to
// them, a FORWARD policy of DROP, Docker's, stops them. It is one rule for each of IPv4 and IPv6, with the bridge's alias as its comment, and only while
// packets are shown. Nothing else of iptables is changed.
type acceptance struct {
	home *home.Home
	opts *Options
	next time.Time // when rules are looked at again
	said string    // the last trouble: it is said once
}

const (
	acceptRecord = "accepted.json" // while there may be a rule of ours
	acceptEvery  = 10 * time.Second
	acceptWithin = 20 * time.Second // iptables waits for its lock
	acceptLock   = "5"              // seconds
	maxAccepted  = 8                // rules of ours, should there be several
	acceptAbsent = 1                // iptables' exit code for a rule that is not there
)

var acceptors = []string{"iptables", "ip6tables"}

// look makes the rules that are wanted and missing, and removes those of an earlier start that had them.
func (a *acceptance) look(ctx context.Context) error {
	if !a.opts.AcceptBridged {
		return a.remove(ctx)
	}
	a.next = time.Now().Add(acceptEvery)
	for _, program := range acceptors {
		shown, err := a.shown(program)
		if err != nil {
			return err
		}
		if !shown {
			continue
		}
		if err := a.add(ctx, program); err != nil {
			return fmt.Errorf("have %s accept what bridge %s forwards: %w", program, a.home.Instance.Bridge(), err)
		}
	}
	return nil
}

// lookAgain says what is wrong once, and looks from time to time.
func (a *acceptance) lookAgain(ctx context.Context) {
	if !a.opts.AcceptBridged || time.Now().Before(a.next) {
		return
	}
	err := a.look(ctx)
	switch {
	case ctx.Err() != nil:
	case err == nil:
		a.said = ""
	case err.Error() != a.said:
		a.said = err.Error()
		a.home.Log.Warn("iptables may stop what is bridged", "error", err)
	}
}

// shown tells whether bridged packets are shown to a program's rules.
func (a *acceptance) shown(program string) (shown bool, err error) {
	err = a.home.Space.Do(func() error {
		shown = bridgedTo(program) != ""
		return nil
	})
	return shown, err
}

// bridgedTo is the setting by which bridged packets are shown to iptables or ip6tables of the thread's namespace; "": they are not.
func bridgedTo(program string) string {
	b, err := os.ReadFile("/proc/sys/net/bridge/bridge-nf-call-" + program)
	if v := strings.TrimSpace(string(b)); err == nil && v != "0" {
		return v
	}
	return ""
}

func (a *acceptance) add(ctx context.Context, program string) error {
	if there, err := a.there(ctx, program); there || err != nil {
		return err
	}
	if err := a.home.Store.Write(acceptRecord, true); err != nil {
		return err
	}
	if err := a.run(ctx, program, "-I"); err != nil {
		return err
	}
	a.home.Log.Info("a rule accepts what the bridge forwards", "program", program, "chain", "FORWARD", "bridge", a.home.Instance.Bridge())
	return nil
}

// remove takes our rules away, if there may be any.
func (a *acceptance) remove(ctx context.Context) error {
	if some, err := a.home.Store.Read(acceptRecord, new(bool)); !some || err != nil {
		return err
	}
	for _, program := range acceptors {
		if _, err := exec.LookPath(program); err != nil { // somebody has removed it since
			a.home.Log.Warn("a rule that accepts what the bridge forwarded may be left", "error", err)
			continue
		}
		for range maxAccepted {
			there, err := a.there(ctx, program)
			if err == nil && there {
				err = a.run(ctx, program, "-D")
			}
			if err != nil {
				return fmt.Errorf("remove Weir's rule of FORWARD: %w", err)
			}
			if !there {
				break
			}
		}
	}
	return a.home.Store.Remove(acceptRecord)
}

func (a *acceptance) there(ctx context.Context, program string) (bool, error) {
	err := a.run(ctx, program, "-C")
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == acceptAbsent {
		return false, nil
	}
	return err == nil, err
}

// run asks for our rule (-C), inserts it (-I) or deletes it (-D), in the switch's namespace.
func (a *acceptance) run(ctx context.Context, program, action string) error {
	ctx, cancel := context.WithTimeout(ctx, acceptWithin)
	defer cancel()
	bridge := a.home.Instance.Bridge()
	return a.home.Space.Do(func() error {
		c := exec.CommandContext(ctx, program, "-w", acceptLock, action, "FORWARD", "-i", bridge, "-o", bridge,
			"-m", "comment", "--comment", a.home.Instance.Alias("bridge"), "-j", "ACCEPT")
		out, err := c.CombinedOutput()
		if errors.Is(err, exec.ErrNotFound) {
			return fmt.Errorf("%w: install the package iptables", err)
		}
		if err != nil {
			return fmt.Errorf("%s %s FORWARD: %w: %s", program, action, err, strings.Join(strings.Fields(string(out)), " "))
		}
		return nil
	})
}
