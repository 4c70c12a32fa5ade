package controllers

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"weir.dev/weir/openflow"
)

// A sink stands for switches that cost nothing: it counts flow-mods, answers barriers and bundles, and keeps no entries. It runs as a process of its
// own (SinkCommand), so that what it uses is not the controller's.

// SinkCommand are the words of the program's command line that make it a sink; an address and a number of switches follow.
var SinkCommand = []string{"lab", "sink"}

// mostSwitches of a sink.
const mostSwitches = 1000

type sinkCount struct {
	FlowMods int64 `json:"flow_mods"`
}

// Sink connects n switches, numbered from 1, to a controller, and serves them until the controller has closed all connections. Then it writes
// {"flow_mods": N}.
func Sink(ctx context.Context, address string, n int, w io.Writer) error {
	if n < 1 || n > mostSwitches {
		return fmt.Errorf("%d switches: want 1 to %d", n, mostSwitches)
	}
	var count atomic.Int64
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = sinkSwitch(ctx, address, uint64(i+1), &count) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return json.NewEncoder(w).Encode(sinkCount{count.Load()})
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// sinkSwitch dials until somebody answers and serves that connection to its end.
func sinkSwitch(ctx context.Context, address string, dpid uint64, count *atomic.Int64) error {
	const patience = 30 * time.Second
	var d net.Dialer
	for begin := time.Now(); ; {
		nc, err := d.DialContext(ctx, "tcp", address)
		if err == nil {
			defer nc.Close()
			defer context.AfterFunc(ctx, func() { nc.Close() })()
			return sinkServe(nc, dpid, count)
		}
		if time.Since(begin) > patience {
			return err
		}
		if err := wait(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

func sinkServe(nc net.Conn, dpid uint64, count *atomic.Int64) error {
	r := bufio.NewReaderSize(nc, 256<<10)
	out, err := openflow.Append(nil, 1, &openflow.Hello{})
	if err != nil {
		return err
	}
	for {
		if len(out) > 0 {
			if _, err := nc.Write(out); err != nil {
				return nil // the controller has left
			}
			out = out[:0]
		}
		h, err := r.Peek(8)
		if err != nil {
			return nil // the same
		}
		size := int(binary.BigEndian.Uint16(h[2:]))
		if size < 8 {
			return fmt.Errorf("message of %d bytes", size)
		}
		m, err := r.Peek(size)
		if err != nil {
			return nil
		}
		if out, err = sinkAnswer(out, m, dpid, count); err != nil {
			return err
		}
		if _, err := r.Discard(size); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
}

// sinkAnswer looks no deeper into a message than it must.
func sinkAnswer(out, m []byte, dpid uint64, count *atomic.Int64) ([]byte, error) {
	const (
		experimenter      = 4
		flowMod           = 14
		onf               = 0x4f4e4600
		bundleControl     = 2300
		bundleAdd         = 2301
		multipartRequest  = 18
		multipartReply    = 19
		multipartFixedLen = 16
	)
	xid := binary.BigEndian.Uint32(m[4:])
	switch m[1] {
	case flowMod:
		count.Add(1)
		return out, nil
	case experimenter:
		if len(m) >= 24 && binary.BigEndian.Uint32(m[8:]) == onf {
			switch binary.BigEndian.Uint32(m[12:]) {
			case bundleAdd:
				count.Add(1)
				return out, nil
			case bundleControl: // the answer's kind is the request's and 1
				a := append([]byte(nil), m...)
				a[21]++
				return append(out, a...), nil
			}
		}
		return out, fmt.Errorf("experimenter's message %x", m)
	case multipartRequest: // nothing to tell
		a := append([]byte(nil), m[:multipartFixedLen]...)
		a[1], a[10], a[11] = multipartReply, 0, 0
		binary.BigEndian.PutUint16(a[2:], multipartFixedLen)
		return append(out, a...), nil
	}
	_, request, err := openflow.Decode(m)
	if err != nil {
		return out, err
	}
	switch request := request.(type) {
	case *openflow.FeaturesRequest:
		return openflow.Append(out, xid, &openflow.FeaturesReply{DatapathID: dpid, Tables: 8})
	case *openflow.EchoRequest:
		return openflow.Append(out, xid, &openflow.EchoReply{Data: request.Data})
	case *openflow.BarrierRequest:
		return openflow.Append(out, xid, &openflow.BarrierReply{})
	}
	return out, nil
}
