package rr

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/netns"
)

const askPort = 7007

// echoStream serves one connection of a namespace, and tells how it ended.
func echoStream(t *testing.T, space string) <-chan error {
	t.Helper()
	var l net.Listener
	err := netns.Do(space, func() (err error) {
		l, err = net.Listen("tcp4", netip.AddrPortFrom(server4, askPort).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = io.Copy(c, c)
			err = errors.Join(err, c.Close())
		}
		done <- errors.Join(err, l.Close())
	}()
	return done
}

// echoDatagrams serves a namespace until a datagram of a byte.
func echoDatagrams(t *testing.T, space string) <-chan error {
	t.Helper()
	var p net.PacketConn
	err := netns.Do(space, func() (err error) {
		p, err = net.ListenPacket("udp4", netip.AddrPortFrom(server4, askPort).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		b := make([]byte, 2000)
		for {
			n, from, err := p.ReadFrom(b)
			if err != nil || n == 1 {
				done <- errors.Join(err, p.Close())
				return
			}
			_, _ = p.WriteTo(b[:n], from) // a client that is gone tells
		}
	}()
	return done
}

// A server of others is asked until the time is over, and told then.
func TestAServerOfOthersIsAsked(t *testing.T) {
	from, to := spaces(t)
	for _, datagram := range []bool{false, true} {
		serve := echoStream
		if datagram {
			serve = echoDatagrams
		}
		served := serve(t, to)
		r, err := Ask(t.Context(), AskOptions{From: from, To: netip.AddrPortFrom(server4, askPort), Datagram: datagram, Bytes: 200, Duration: 100 * time.Millisecond})
		if err != nil || r.Transactions == 0 || r.Check() != nil || r.Latency.Count != r.Transactions || r.Request != 200 {
			t.Errorf("datagrams %t: %+v, %v, %v", datagram, r, err, r.Check())
		}
		if err := <-served; err != nil {
			t.Errorf("datagrams %t: the server: %v", datagram, err)
		}
	}
}

// What cannot be asked is an error that says what: nobody there, a size that no datagram has.
func TestNobodyIsAsked(t *testing.T) {
	from, _ := spaces(t)
	at := netip.AddrPortFrom(server4, askPort)
	for want, o := range map[string]AskOptions{
		"1473 bytes: want 8 to 1472":          {From: from, To: at, Datagram: true, Bytes: 1473, Duration: time.Second},
		"want the server's address":           {From: from, Bytes: 200, Duration: time.Second},
		"duration 0s: want more than 0":       {From: from, To: at, Bytes: 200},
		"requests: 7 bytes: want 8 to 104857": {From: from, To: at, Bytes: 7, Duration: time.Second},
	} {
		if _, err := Ask(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %s", err, want)
		}
	}
}
