package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"

	"weir.dev/weir/agent"
	"weir.dev/weir/api"
	"weir.dev/weir/instance"
	"weir.dev/weir/manager"
	"weir.dev/weir/router"
	"weir.dev/weir/store"
)

// UpOptions say how the daemon runs.
type UpOptions struct {
	Instance instance.Instance
	Listen   string   // loopback address of the API, empty: its Unix socket only
	Etcd     []string // external etcd; none: embedded
	Version  string
	Log      *slog.Logger
	Ready    func() // called once the API answers
	Drivers  Drivers
}

// hostName is the only host until agents join from elsewhere.
const hostName = "local"

// Up runs store, manager and agent until ctx ends. What they made goes on forwarding then.
func Up(ctx context.Context, o UpOptions) (err error) {
	if err := checkRights(); err != nil {
		return fmt.Errorf("weir up: %w", err)
	}
	c, err := take(o.Instance)
	if err != nil {
		return err
	}
	defer c.release()
	ready := o.Ready
	isUp := false
	o.Ready = func() {
		isUp = true
		if ready != nil {
			ready()
		}
	}
	defer func() {
		if err != nil && !isUp && c.fresh(o.Instance) {
			err = errors.Join(err, c.neverWas(ctx, o))
		}
	}()
	fresh, err := settle(o.Instance)
	if err != nil {
		return err
	}
	sw, err := o.Drivers.Switch(ctx, o.Instance)
	if err != nil {
		return fmt.Errorf("switch: %w", err)
	}
	defer func() { err = errors.Join(err, sw.Close()) }()
	rt, err := o.Drivers.Runtime(ctx, o.Instance)
	if err != nil {
		return err
	}
	images := o.Drivers.Images(o.Instance)
	st, err := store.Open(ctx, store.Options{
		Dir: filepath.Join(o.Instance.Root, "etcd"), SocketDir: o.Instance.Run, Endpoints: o.Etcd, Log: o.Log,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	client, err := api.Dial(api.Options{Socket: o.Instance.Socket()})
	if err != nil {
		return err
	}
	defer client.Close()
	ag := agent.New(agent.Options{
		Instance: o.Instance, Host: hostName, Version: o.Version, API: client, Switch: sw, Runtime: rt,
		Images: images, Features: o.Drivers.Features(), Log: o.Log,
	})
	m, err := manager.New(manager.Options{
		Store: st, Version: o.Version, Log: o.Log,
		Validate: router.Validate,
		Admit:    func(d, changed api.Document) []api.Problem { return admit(ctx, ag, images, d, changed) },
		Node: func(host string) manager.Node {
			if host != "" && host != hostName {
				return nil
			}
			return ag
		},
	})
	if err != nil {
		return err
	}
	if fresh { // what a status tells was true before the reboot
		if err := m.ForgetStatus(ctx); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-st.Failed():
			cancel(errStoreFailed)
		case <-ctx.Done():
		}
	}()
	err = serve(ctx, o, m, ag)
	if cause := context.Cause(ctx); errors.Is(cause, errStoreFailed) {
		err = errors.Join(cause, err)
	}
	return err
}

// errStoreFailed ends the daemon: etcd cannot be opened again in the same process. Traffic goes on; starting again is safe.
var errStoreFailed = errors.New("the store has stopped (disk full?): free some space and start weir again; traffic goes on meanwhile")

// serve runs manager and agent side by side; the agent ends first, so that its last reports arrive.
func serve(ctx context.Context, o UpOptions, m *manager.Manager, ag *agent.Agent) error {
	api, err := m.Listen(manager.ServeOptions{Socket: o.Instance.Socket(), Listen: o.Listen, TokenFile: o.Instance.TokenFile()})
	if err != nil {
		return err
	}
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	var served error
	wg.Go(func() {
		defer cancel()
		served = api.Serve(serving)
	})
	o.Ready() // connections wait in the listeners' queues from here on
	ran := ag.Run(ctx)
	stop()
	wg.Wait()
	return errors.Join(served, ran)
}
