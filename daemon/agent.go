package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"weir.dev/weir/agent"
	"weir.dev/weir/api"
	"weir.dev/weir/container"
	"weir.dev/weir/daemon/config"
	"weir.dev/weir/datapath"
	"weir.dev/weir/instance"
)

// AgentOptions say how an agent of a manager elsewhere runs.
type AgentOptions struct {
	Instance  instance.Instance
	Managers  []string // host:port of each manager; see CheckManagers
	TokenFile string   // to join with; not needed afterwards
	Host      config.Host
	Version   string
	Log       *slog.Logger
	Ready     func() // called once the host has joined and its switch is open
	Drivers   Drivers
	Now       func() time.Time // this machine's clock, as others are told; default time.Now
}

// host is this machine's part of a Weir: switch, runtime, images, and the agent that drives them.
type host struct {
	name   string
	sw     datapath.Switch
	rt     container.Runtime
	images Images
	agent  *agent.Agent
}

// agentOptions are those of the machine's agent.
func agentOptions(h config.Host) agent.Options {
	return agent.Options{Host: h.Name, SwitchName: h.Switch, RuntimeName: h.Runtime, AllowBare: h.AllowBare, Uplink: h.Uplink, UnderlayAddress: h.UnderlayAddress, Collector: h.Collector}
}

// openHost opens what the drivers give and makes the agent. Of the options, Instance, Host and API are needed.
func openHost(ctx context.Context, o agent.Options, d Drivers) (*host, error) {
	h := &host{name: o.Host}
	var err error
	if h.sw, err = d.Switch(ctx, o.Instance); err != nil {
		return nil, fmt.Errorf("switch: %w", err)
	}
	if h.rt, err = d.Runtime(ctx, o.Instance); err != nil {
		return nil, errors.Join(err, h.sw.Close())
	}
	h.images = d.Images(o.Instance)
	o.Switch, o.Runtime, o.Images, o.Features, o.Catalogue = h.sw, h.rt, h.images, d.Features(), d.Catalogue
	if d.Kernel != nil {
		o.Kernel = d.Kernel()
	}
	o.Runtimes, _ = h.rt.(agent.Runtimes)
	o.Config = func(ctx context.Context) (api.AgentConfig, error) { return o.API.AgentConfig(ctx, o.Host) }
	h.agent = agent.New(o)
	return h, nil
}

// close leaves all that forwards as it is.
func (h *host) close() error { return h.sw.Close() }

// Agent runs this machine's agent for a manager elsewhere until ctx ends. What it made goes on forwarding then, and while no manager can
// be reached.
func Agent(ctx context.Context, o AgentOptions) (err error) {
	if err := checkRights(); err != nil {
		return fmt.Errorf("weir agent: %w", err)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	// Take the instance, so that no second process runs it.
	c, err := take(o.Instance)
	if err != nil {
		return err
	}
	defer c.release()
	// A first start that fails leaves nothing behind.
	isUp := false
	notify := newNotifier()
	o.Ready = both(func() { isUp = true; notify.ready(o.Log) }, o.Ready)
	defer notify.stopping()
	defer func() {
		if err != nil && !isUp && c.fresh(o.Instance) {
			err = errors.Join(err, c.neverWas(ctx, o.Instance, o.Drivers))
		}
	}()
	if _, err := settle(o.Instance); err != nil {
		return err
	}
	// Join, or take the certificate of an earlier join: it names the host.
	m, err := enter(ctx, o)
	if err != nil {
		return err
	}
	o.Host.Name = m.host
	client, err := m.client()
	if err != nil {
		return err
	}
	defer client.Close()
	// Open this host: runtime, switch and agent.
	host := agentOptions(o.Host)
	host.Instance, host.Version, host.API, host.Log, host.Now, host.Joined = o.Instance, o.Version, client, o.Log, o.Now, true
	h, err := openHost(ctx, host, o.Drivers)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	h.images.From(m.images())
	// Renew the certificate, stay connected to every manager, and run the agent until ctx ends.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { m.keepCurrent(ctx, client) })
	wg.Go(func() { h.images.KeepOffers(ctx) })
	wg.Go(func() { notify.watch(ctx, o.Log, func(context.Context) error { return h.agent.Stalled() }) })
	for _, address := range o.Managers {
		l := &link{m: m, address: address, node: h}
		wg.Go(func() { l.run(ctx) })
	}
	o.Ready()
	return h.agent.Run(ctx)
}
