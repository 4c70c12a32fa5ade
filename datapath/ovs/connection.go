package ovs

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"weir.dev/weir/datapath/internal/home"
	"weir.dev/weir/datapath/internal/lifecycle"
	"weir.dev/weir/openflow"
)

const (
	retryFirst = 5 * time.Millisecond
	retryLast  = time.Second
	lookEvery  = 500 * time.Millisecond // at private processes
	linkTime   = 20 * time.Second       // for making a connection and comparing all entries
)

// patience with an Open vSwitch that is being restarted, for operations whose context sets no shorter bound.
const patience = 10 * time.Second

// connection is that to the tables of the bridge.
type connection struct {
	gate      *lifecycle.Gate
	work      *lifecycle.Work
	home      *home.Home
	state     *state
	processes *processes
	restore   func(ctx context.Context) error // makes the tables as they should be, once connected; under the lock
	of        *openflow.Conn                  // nil: not connected
	ready     chan struct{}                   // closed when of is there and the entries are as they should be
}

// up, under the lock: there is a connection.
func (c *connection) up() bool { return c.of != nil && c.of.Err() == nil }

// close it for good, under the lock.
func (c *connection) close() {
	if c.of != nil {
		c.of.Close()
	}
}

// wait until the switch is connected and has the entries that it should have. The lock must not be held.
func (c *connection) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		c.gate.Lock()
		ready, up := c.ready, c.of != nil
		c.gate.Unlock()
		if up {
			return nil
		}
		select {
		case <-ready:
		case <-c.work.Context().Done():
			return ErrClosed
		case <-ctx.Done():
			return fmt.Errorf("no connection to bridge %s of Open vSwitch (is ovs-vswitchd running?): %w", c.home.Instance.Bridge(), ctx.Err())
		}
	}
}

// enter takes the lock for one operation that needs the connection.
func (c *connection) enter(ctx context.Context) (leave func(), err error) {
	for {
		leave, err := c.gate.Enter(ctx)
		if err != nil {
			return nil, err
		}
		if c.up() {
			return leave, nil
		}
		if c.of != nil {
			c.lost()
		}
		leave()
		if err := c.wait(ctx); err != nil {
			return nil, err
		}
	}
}

// watch keeps the connection: it restarts private processes that ended, connects again, and restores the entries of a switch that lost
// them.
func (c *connection) watch(ctx context.Context) {
	retry := retryFirst
	for ctx.Err() == nil {
		err := c.processes.revive(ctx)
		if err == nil {
			err = c.connect(ctx)
		}
		if err != nil {
			if retry == retryLast && ctx.Err() == nil {
				c.home.Log.Warn("Open vSwitch is not there; trying again", "error", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(retry):
			}
			retry = min(2*retry, retryLast)
			continue
		}
		retry = retryFirst
		c.attend(ctx)
	}
}

// attend to a connection until it ends.
func (c *connection) attend(ctx context.Context) {
	c.gate.Lock()
	conn := c.of
	c.gate.Unlock()
	if conn == nil {
		return
	}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := c.processes.revive(ctx); err != nil {
				c.home.Log.Warn("private Open vSwitch", "error", err)
			}
			if err := c.processes.turnLogs(ctx); err != nil && ctx.Err() == nil {
				c.home.Log.Warn("private Open vSwitch", "error", err)
			}
		case _, ok := <-conn.Events():
			if ok {
				continue
			}
			c.gate.Lock()
			if c.of == conn {
				c.lost()
			}
			c.gate.Unlock()
			if ctx.Err() == nil {
				c.home.Log.Warn("connection to Open vSwitch lost", "error", conn.Err())
			}
			return
		}
	}
}

// lost notes, under the lock, that there is no connection.
func (c *connection) lost() {
	c.of.Close()
	c.of, c.ready = nil, make(chan struct{})
}

// mgmt is the socket of the bridge.
func (c *connection) mgmt() string {
	return filepath.Join(c.state.RunDir, c.home.Instance.Bridge()+".mgmt")
}

// connect makes the connection and sees to the entries.
func (c *connection) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, linkTime)
	defer cancel()
	conn, err := openflow.Dial(ctx, "unix:"+c.mgmt(), openflow.Options{})
	if err != nil {
		return err
	}
	c.gate.Lock()
	defer c.gate.Unlock()
	if c.gate.Closed() {
		conn.Close()
		return ErrClosed
	}
	c.of = conn
	err = conn.Send(ctx, &openflow.SetConfig{Flags: openflow.FragMatch})
	if err == nil {
		err = c.restore(ctx)
	}
	if err != nil {
		conn.Close()
		c.of = nil
		return fmt.Errorf("bridge %s: %w", c.home.Instance.Bridge(), err)
	}
	c.processes.widen()
	close(c.ready)
	return nil
}

// bundle executes flow-mods, all or none. When it is not known which, the connection is given up: the next one looks.
func (c *connection) bundle(ctx context.Context, mods []openflow.Message) error {
	err := c.of.Bundle(ctx, openflow.BundleAtomic|openflow.BundleOrdered, mods...)
	if err == nil {
		return nil
	}
	var refused *openflow.FlowError
	var told *openflow.Error
	if !errors.As(err, &refused) && !errors.As(err, &told) {
		c.of.Close()
	}
	return fmt.Errorf("bundle of %d changes: %w", len(mods), err)
}
