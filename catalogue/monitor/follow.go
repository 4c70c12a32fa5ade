package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	maxReaders   = 4
	maxWaiting   = 4096 // reports that wait for a reader; what comes beyond is left out
	flushEvery   = time.Second
	readsWithin  = 10 * time.Second
	asksWithin   = 2 * time.Second
	finishWithin = time.Second
	maxTogether  = 64 // reports that are looked at before they are sent
	formatIPFIX  = "ipfix"
	formatJSON   = "json"
	acknowledged = "ok"
)

// readers get what flows do, as long as they stay. None of them holds up the others, nor the packets.
type readers struct {
	mu     sync.Mutex
	each   map[*reader]bool
	ending chan struct{} // closed when no more reports come
	ended  sync.WaitGroup

	collector, others delivery // to those of each kind, so far
}

// delivery counts records of flows: one for each direction that had packets.
type delivery struct{ sent, missed uint64 }

// delivery to those of a reader's kind; under the mutex.
func (rs *readers) delivery(r *reader) *delivery {
	if r.collects {
		return &rs.collector
	}
	return &rs.others
}

func newReaders() *readers { return &readers{each: map[*reader]bool{}, ending: make(chan struct{})} }

type reader struct {
	conn    net.Conn
	format  string
	waiting chan report
	exports exporter
	missed  uint32 // records that were left out since the last message; under the mutex of readers

	collects bool // it is the platform, for a collector
}

// listen for readers until the listener is closed.
func (rs *readers) listen(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("socket of flows: %w", err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r := &reader{conn: c, waiting: make(chan report, maxWaiting)}
			if !rs.enter(r) {
				_ = c.SetDeadline(time.Now().Add(asksWithin))
				fmt.Fprintf(c, "%d readers are here already\n", maxReaders)
				c.Close()
				continue
			}
			go func() {
				defer rs.leave(r)
				_ = r.serve(rs) // it has gone
			}()
		}
	}()
	return l, nil
}

// enter, unless there are maxReaders already. The one to the collector is not counted.
func (rs *readers) enter(r *reader) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	others := 0
	for x := range rs.each {
		if !x.collects {
			others++
		}
	}
	if others >= maxReaders && !r.collects {
		return false
	}
	rs.each[r] = true
	rs.ended.Add(1)
	return true
}

// finish gives those who read what they have not had, and waits for that, but not for long.
func (rs *readers) finish() {
	close(rs.ending)
	done := make(chan struct{})
	go func() { rs.ended.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(finishWithin):
	}
}

func (rs *readers) leave(r *reader) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	delete(rs.each, r)
	if r.conn != nil {
		r.conn.Close()
	}
	rs.ended.Done()
}

// add a report for all readers. It does not block.
func (rs *readers) add(r report) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for x := range rs.each {
		select {
		case x.waiting <- r:
		default:
			n := r.directions()
			x.missed += uint32(n)
			rs.delivery(x).missed += uint64(n)
		}
	}
}

func (rs *readers) missed(r *reader) uint32 {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	n := r.missed
	r.missed = 0
	return n
}

// tried to send records. What an error breaks off counts as missed.
func (rs *readers) tried(r *reader, records uint64, err error) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if d := rs.delivery(r); err != nil {
		d.missed += records
	} else {
		d.sent += records
	}
}

// serve a reader until it goes, or does not read.
func (r *reader) serve(rs *readers) error {
	_ = r.conn.SetDeadline(time.Now().Add(asksWithin))
	asked, err := bufio.NewReaderSize(io.LimitReader(r.conn, 16), 16).ReadString('\n')
	if err != nil {
		return err
	}
	r.format = strings.TrimSpace(asked)
	if r.format != formatIPFIX && r.format != formatJSON {
		_, err := fmt.Fprintf(r.conn, "format %q: want ipfix or json\n", r.format)
		return err
	}
	if _, err := fmt.Fprintln(r.conn, acknowledged); err != nil {
		return err
	}
	_ = r.conn.SetReadDeadline(time.Time{})
	gone := make(chan struct{})
	go func() { _, _ = io.Copy(io.Discard, r.conn); close(gone) }()
	return r.send(rs, gone)
}

// send reports until the reader has gone, does not read, or all have ended.
func (r *reader) send(rs *readers, gone <-chan struct{}) error {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	var together []report
	over := false
	for flush := true; !over; flush = false { // templates at once
		if !flush {
			select {
			case <-gone:
				return nil
			case <-tick.C:
				flush = true
			case x := <-r.waiting:
				together = append(together, x)
			case <-rs.ending:
				for len(r.waiting) > 0 {
					together = append(together, <-r.waiting)
				}
				flush, over = true, true
			}
		}
		if !flush && len(together) < maxTogether {
			continue
		}
		r.exports.sequence += rs.missed(r) // the reader sees that some are missing
		batch := uint32(0)
		for i := range together {
			batch += uint32(together[i].directions())
		}
		after := r.exports.sequence + batch
		_ = r.conn.SetWriteDeadline(time.Now().Add(readsWithin))
		err := r.write(&r.exports, together)
		rs.tried(r, uint64(batch), err)
		if err != nil {
			r.exports.sequence = after // so it does after another beginning
			return err
		}
		together = together[:0]
	}
	return nil
}

func (r *reader) write(e *exporter, reports []report) error {
	if r.format == formatJSON {
		enc := json.NewEncoder(r.conn)
		for _, x := range reports {
			if err := enc.Encode(x.line()); err != nil {
				return err
			}
		}
		return nil
	}
	now := time.Now()
	if now.Sub(e.templates) >= templatesEvery {
		if _, err := r.conn.Write(e.message(now, 0)); err != nil {
			return err
		}
	}
	for template := uint16(template4); template <= templateOther; template++ {
		if err := r.writeOf(e, now, template, reports); err != nil {
			return err
		}
	}
	return nil
}

// writeOf writes the records of one template.
func (r *reader) writeOf(e *exporter, now time.Time, template uint16, reports []report) error {
	length := recordLength(template)
	for i := range reports {
		x := &reports[i]
		if x.template() != template {
			continue
		}
		for way, packets := range x.packets {
			if packets == 0 {
				continue
			}
			if e.full(length) {
				if _, err := r.conn.Write(e.message(now, template)); err != nil {
					return err
				}
			}
			e.add(x, way)
		}
	}
	if e.n == 0 {
		return nil
	}
	_, err := r.conn.Write(e.message(now, template))
	return err
}

// follow copies what a running monitor says to out, until it ends.
func follow(path, format string, out io.Writer) error {
	c, err := net.Dial("unix", path)
	if err != nil {
		return fmt.Errorf("no monitor runs here: %w", err)
	}
	defer c.Close()
	if _, err := fmt.Fprintln(c, format); err != nil {
		return err
	}
	in := bufio.NewReader(c)
	answer, err := in.ReadString('\n')
	if answer = strings.TrimSpace(answer); err != nil || answer != acknowledged {
		return fmt.Errorf("the monitor refuses: %s", answer)
	}
	_, err = io.Copy(out, in)
	return err
}
