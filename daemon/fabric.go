package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
	"weir.dev/weir/router/control"
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
	return f.o.OpenFlow != "" || f.o.Agents != "" || f.o.Common.Underlay == control.UnderlayVXLAN
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

func (f *fabric) listen() (net.Listener, error) {
	l, err := net.Listen("tcp", f.o.OpenFlow)
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
	key, err := m.LLDPKey(ctx)
	if err != nil {
		return err
	}
	o := control.Options{
		API: f.client, LLDPKey: key, HostKey: func(host string) ([]byte, error) { return hostKey(ctx, m, host) }, Log: f.o.Log, Underlay: f.o.Common.Underlay, NoDefaultForwarding: f.o.NoDefaultForwarding,
	}
	if f.o.OpenFlow != "" {
		if o.Listener, err = f.listen(); err != nil {
			return err
		}
		defer o.Listener.Close()
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
	key, err := m.HostLLDPKey(ctx, host)
	if errors.Is(err, store.ErrNotFound) {
		return nil, control.ErrNoKey
	}
	return key, err
}

// SwitchRules reads a switch's entries live.
func (f *fabric) SwitchRules(ctx context.Context, name string) (api.SwitchRules, error) {
	c := f.running.Load()
	if c == nil {
		return api.SwitchRules{}, manager.ErrElsewhere
	}
	return c.SwitchRules(ctx, name)
}
