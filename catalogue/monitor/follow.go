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
	maxTogether  = 64 // reports that are looked at before they are sent
	formatIPFIX  = "ipfix"
	formatJSON   = "json"
	acknowledged = "ok"
)

// readers get what flows do, as long as they stay. None of them holds up the others, nor the packets.
type readers struct {
	mu   sync.Mutex
	each map[*reader]bool
}

type reader struct {
	conn    net.Conn
	format  string
	waiting chan report
	missed  uint32 // records that were left out since the last message; under the mutex of readers
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
	rs.each = map[*reader]bool{}
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

func (rs *readers) enter(r *reader) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if len(rs.each) >= maxReaders {
		return false
	}
	rs.each[r] = true
	return true
}

func (rs *readers) leave(r *reader) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	delete(rs.each, r)
	r.conn.Close()
}

// add a report for all readers. It does not block.
func (rs *readers) add(r report) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for x := range rs.each {
		select {
		case x.waiting <- r:
		default:
			_, records := r.records()
			x.missed += uint32(len(records))
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
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	e := &exporter{}
	var together []report
	for flush := true; ; flush = false { // templates at once
		if !flush {
			select {
			case <-gone:
				return nil
			case <-tick.C:
				flush = true
			case x := <-r.waiting:
				together = append(together, x)
			}
		}
		if !flush && len(together) < maxTogether {
			continue
		}
		e.sequence += rs.missed(r) // the reader sees that some are missing
		_ = r.conn.SetWriteDeadline(time.Now().Add(readsWithin))
		if err := r.write(e, together); err != nil {
			return err
		}
		together = together[:0]
	}
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
		if _, err := r.conn.Write(e.message(now, 0, nil)); err != nil {
			return err
		}
	}
	for template := uint16(template4); template <= templateOther; template++ {
		var batch [][]byte
		size := messageHeader + setHeader
		send := func() error {
			if len(batch) == 0 {
				return nil
			}
			_, err := r.conn.Write(e.message(now, template, batch))
			batch, size = nil, messageHeader+setHeader
			return err
		}
		for _, x := range reports {
			t, records := x.records()
			if t != template {
				continue
			}
			for _, b := range records {
				if size+len(b) > maxMessage {
					if err := send(); err != nil {
						return err
					}
				}
				batch, size = append(batch, b), size+len(b)
			}
		}
		if err := send(); err != nil {
			return err
		}
	}
	return nil
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
