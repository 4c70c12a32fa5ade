package ovs

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"weir.dev/weir/openflow"
)

const (
	retryFirst = 5 * time.Millisecond
	retryLast  = time.Second
	lookEvery  = 500 * time.Millisecond // at private processes
	linkTime   = 20 * time.Second       // for making a connection and comparing all entries
)

// watch keeps the connection: it restarts private processes that ended, connects again, and restores the entries of a switch that lost
// them.
func (s *Switch) watch() {
	retry := retryFirst
	for s.work.Err() == nil {
		err := s.revive()
		if err == nil {
			err = s.connect()
		}
		if err != nil {
			if retry == retryLast && s.work.Err() == nil {
				s.log.Warn("Open vSwitch is not there; trying again", "error", err)
			}
			select {
			case <-s.work.Done():
			case <-time.After(retry):
			}
			retry = min(2*retry, retryLast)
			continue
		}
		retry = retryFirst
		s.attend()
	}
}

// attend to a connection until it ends.
func (s *Switch) attend() {
	s.mu.Lock()
	conn := s.of
	s.mu.Unlock()
	if conn == nil {
		return
	}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.work.Done():
			return
		case <-tick.C:
			if err := s.revive(); err != nil {
				s.log.Warn("private Open vSwitch", "error", err)
			}
			if err := s.turnLogs(); err != nil && s.work.Err() == nil {
				s.log.Warn("private Open vSwitch", "error", err)
			}
		case _, ok := <-conn.Events():
			if ok {
				continue
			}
			s.mu.Lock()
			if s.of == conn {
				s.lost()
			}
			s.mu.Unlock()
			if s.work.Err() == nil {
				s.log.Warn("connection to Open vSwitch lost", "error", conn.Err())
			}
			return
		}
	}
}

// lost notes, under the lock, that there is no connection.
func (s *Switch) lost() {
	s.of.Close()
	s.of, s.ofReady = nil, make(chan struct{})
}

// revive starts private processes that ended.
func (s *Switch) revive() error {
	if s.procs == nil {
		return nil
	}
	server, vswitchd := s.procs.Running()
	if server && vswitchd {
		return nil
	}
	s.log.Warn("private Open vSwitch ended, starting it again", "ovsdb_server", server, "ovs_vswitchd", vswitchd)
	var err error
	if !server {
		err = s.procs.StartServer(s.work)
	}
	if err == nil && !vswitchd {
		err = s.procs.StartSwitch(s.work)
	}
	return err
}

// turnLogs bounds the logs of private processes.
func (s *Switch) turnLogs() error {
	if s.procs == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(s.work, lookEvery)
	defer cancel()
	return s.procs.TurnLogs(ctx)
}

func (s *Switch) mgmt() string {
	return filepath.Join(s.state.RunDir, s.opts.Instance.Bridge()+".mgmt")
}

// connect makes the connection and sees to the entries.
func (s *Switch) connect() error {
	ctx, cancel := context.WithTimeout(s.work, linkTime)
	defer cancel()
	conn, err := openflow.Dial(ctx, "unix:"+s.mgmt(), openflow.Options{})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		conn.Close()
		return ErrClosed
	}
	s.of = conn
	err = conn.Send(ctx, &openflow.SetConfig{Flags: openflow.FragMatch})
	if err == nil {
		err = s.reconcile(ctx)
	}
	if err != nil {
		conn.Close()
		s.of = nil
		return fmt.Errorf("bridge %s: %w", s.opts.Instance.Bridge(), err)
	}
	s.widen()
	close(s.ofReady)
	return nil
}
