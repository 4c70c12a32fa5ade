package daemon

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
	"weir.dev/weir/manager/ask"
	"weir.dev/weir/manager/switchcert"
	"weir.dev/weir/pki"
	"weir.dev/weir/router/control"
	"weir.dev/weir/router/discovery"
	"weir.dev/weir/store"
)

// routerAgain is after what time a router that could not go on is started again.
const routerAgain = time.Second

// fabric runs the router while this manager leads, and answers for it.
type fabric struct {
	o       UpOptions
	client  *api.Client
	running atomic.Pointer[control.Controller]
}

// wanted tells whether there is something to route between hosts.
func (f *fabric) wanted() bool {
	return f.o.OpenFlow != "" || f.o.Agents != "" || f.o.Underlay == control.UnderlayVXLAN
}

// check refuses an address on which nobody can listen, at the start, when somebody still reads it.
func (f *fabric) check() error {
	if f.o.OpenFlow == "" {
		return nil
	}
	l, err := f.listen()
	if err != nil {
		return err
	}
	return l.Close()
}

// PlainOpenFlow is before an address at which switches connect without TLS.
const PlainOpenFlow = "tcp:"

func (f *fabric) listen() (net.Listener, error) {
	l, err := net.Listen("tcp", strings.TrimPrefix(f.o.OpenFlow, PlainOpenFlow))
	if err != nil {
		return nil, fmt.Errorf("listen for OpenFlow switches on %s: %w: choose another address with --openflow", f.o.OpenFlow, err)
	}
	return l, nil
}

// run controls the fabric until ctx ends. Switches and hosts keep what is in force.
func (f *fabric) run(ctx context.Context, m *manager.Manager) {
	if !f.wanted() {
		return
	}
	for {
		err := f.once(ctx, m)
		if ctx.Err() != nil {
			return
		}
		f.o.Log.Error("router", "error", err)
		if !sleep(ctx, routerAgain) {
			return
		}
	}
}

func (f *fabric) once(ctx context.Context, m *manager.Manager) error {
	key, err := m.Keys.LLDPKey(ctx)
	if err != nil {
		return err
	}
	o := control.Options{
		API: f.client, LLDPKey: key, HostKey: func(host string) ([]byte, error) { return hostKey(ctx, m, host) }, Log: f.o.Log, Underlay: f.o.Underlay, Tunnels: f.o.Tunnels, NoDefaultForwarding: !f.o.DefaultForwarding,
	}
	if f.o.OpenFlow != "" {
		if o.Listener, err = f.listen(); err != nil {
			return err
		}
		defer o.Listener.Close()
		if strings.HasPrefix(f.o.OpenFlow, PlainOpenFlow) {
			f.o.Log.Warn("OpenFlow without TLS: whoever reaches this address can pretend to be a switch", "address", f.o.OpenFlow)
		} else if o.TLS, err = m.Switches.ForSwitches(ctx); err != nil {
			return err
		} else {
			o.Certify = certify(m)
		}
	}
	c, err := control.New(o)
	if err != nil {
		return err
	}
	f.running.Store(c)
	defer f.running.Store(nil)
	return c.Run(ctx)
}

// hostKeyTimeout bounds how long the router waits for the store.
const hostKeyTimeout = time.Second

func hostKey(ctx context.Context, m *manager.Manager, host string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, hostKeyTimeout)
	defer cancel()
	key, err := m.Join.HostLLDPKey(ctx, host)
	if errors.Is(err, store.ErrNotFound) {
		return nil, discovery.ErrNoKey
	}
	return key, err
}

// certify asks the manager about a switch's certificate. Where the state cannot be read, nothing is decided.
func certify(m *manager.Manager) func(context.Context, *x509.Certificate) ([]uint64, error) {
	return func(ctx context.Context, c *x509.Certificate) ([]uint64, error) {
		ids, err := m.Switches.SwitchIDs(ctx, c)
		for _, e := range []error{nil, switchcert.ErrRevoked, pki.ErrNotSwitch, pki.ErrExpired, pki.ErrEarly} {
			if errors.Is(err, e) {
				return ids, err
			}
		}
		return nil, fmt.Errorf("%w: %w", control.ErrUndecided, err)
	}
}

// SwitchRules reads a switch's entries live.
func (f *fabric) SwitchRules(ctx context.Context, name string) (api.SwitchRules, error) {
	c := f.running.Load()
	if c == nil {
		return api.SwitchRules{}, ask.ErrElsewhere
	}
	return c.SwitchRules(ctx, name)
}

// SwitchCounters reads the counters of a switch's ports live.
func (f *fabric) SwitchCounters(ctx context.Context, name string) (api.SwitchCounters, error) {
	c := f.running.Load()
	if c == nil {
		return api.SwitchCounters{}, ask.ErrElsewhere
	}
	return c.SwitchCounters(ctx, name)
}
