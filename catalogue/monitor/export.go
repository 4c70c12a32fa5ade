package main

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"time"
)

// redial is how long after a failure the platform's socket is tried again: its agent may be starting.
const redial = time.Second

// export what flows do to the platform, which hands it on to its host's collector: a message of IPFIX in each datagram to the socket at path. Where there is no such
// socket at the start, the host has no collector. It ends with rs.
func (rs *readers) export(path string) error {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	r := &reader{format: formatIPFIX, waiting: make(chan report, maxWaiting), collects: true}
	rs.enter(r)
	go func() {
		defer rs.leave(r)
		for {
			c, err := net.Dial("unixgram", path)
			if err == nil {
				r.conn, r.exports.templates = c, time.Time{} // the collector may not know our templates
				err = r.send(rs, nil)
				c.Close()
			}
			if err == nil {
				return
			}
			select {
			case <-rs.ending:
				return
			case <-time.After(redial):
			}
		}
	}()
	return nil
}
