package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/remote"
	"weir.dev/weir/pki"
)

// Timings of what an agent keeps up with each manager.
const (
	beatTimeout  = 2 * time.Second
	answerWithin = 10 * time.Second
	maxRefusal   = 64 << 10 // bytes
)

// link keeps up with one manager: it beats, and answers over a connection of its own.
type link struct {
	m       *member
	address string
	node    remote.Node
}

// run keeps up with the manager until ctx ends.
func (l *link) run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { l.beat(ctx) })
	l.answer(ctx)
	wg.Wait()
}

// beat tells once a second that the host is alive, and hears the manager's clock.
func (l *link) beat(ctx context.Context) {
	c, err := api.Dial(api.Options{URL: "https://" + l.address, DialTLS: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return l.m.dial(ctx, l.address, "h2", "http/1.1")
	}})
	if err != nil {
		l.m.log.Error("beat", "manager", l.address, "error", err)
		return
	}
	defer c.Close()
	apart := false
	p := pulse{client: c, host: l.m.host, now: l.m.now, changed: func(was, now error) {
		switch {
		case now == nil && was != nil:
			l.m.log.Info("the manager answers again", "manager", l.address)
		case now != nil:
			l.m.log.Warn("the manager does not hear that this host is alive; traffic goes on", "manager", l.address, "error", now)
		}
	}, clock: func(theirs time.Time) {
		ours := l.m.now()
		ahead := theirs.Sub(ours)
		l.m.ahead.Store(int64(ahead))
		if over := ahead.Abs() > pki.MaxSkew; over != apart {
			if apart = over; over {
				l.m.log.Warn("clocks differ: synchronise them (NTP)", "host", ours.UTC(), "manager", theirs.UTC(), "difference", ahead.Abs().Round(time.Second), "allowed", pki.MaxSkew)
			}
		}
	}}
	p.run(ctx)
}

// pulse are a host's signs of life at one manager.
type pulse struct {
	client  *api.Client
	host    string
	now     func() time.Time
	changed func(was, now error)   // the first failure of an outage, and its end
	clock   func(theirs time.Time) // the manager's, with each answer
}

// run gives a sign of life each api.Beat until ctx ends.
func (p pulse) run(ctx context.Context) {
	tick := time.NewTicker(api.Beat)
	defer tick.Stop()
	var last error
	for {
		call, cancel := context.WithTimeout(ctx, beatTimeout)
		a, err := p.client.Beat(call, p.host, p.now())
		cancel()
		if ctx.Err() != nil {
			return
		}
		if (err == nil) != (last == nil) {
			p.changed(last, err)
		}
		if last = err; err == nil {
			p.clock(a.Time)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// answer keeps a connection over which the manager asks.
func (l *link) answer(ctx context.Context) {
	wait := retryFirst
	told := false
	for ctx.Err() == nil {
		began := time.Now()
		err := l.answerOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > retryMax { // it had worked
			wait, told = retryFirst, false
		}
		if err != nil && !told {
			told = true
			l.m.log.Warn("the manager cannot ask this host for counters, logs and exec", "manager", l.address, "error", err)
		}
		if pause(ctx, &wait) != nil {
			return
		}
	}
}

func (l *link) answerOnce(ctx context.Context) error {
	conn, err := l.m.dial(ctx, l.address, "http/1.1")
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(answerWithin))
	path := "/v1/hosts/" + l.m.host + "/connect"
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", path, l.address, api.NodeProtocol); err != nil {
		return err
	}
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return fmt.Errorf("GET %s: %w", path, err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		defer resp.Body.Close()
		b, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
		p := &api.ProblemError{}
		if json.Unmarshal(b, p) != nil {
			return errors.New(resp.Status)
		}
		return p
	}
	_ = conn.SetDeadline(time.Time{})
	return remote.Serve(ctx, &readConn{conn, r}, l.node, l.m.log)
}

// readConn is a connection of which a part may have been read already.
type readConn struct {
	net.Conn
	r *bufio.Reader
}

func (c *readConn) Read(p []byte) (int, error) { return c.r.Read(p) }
