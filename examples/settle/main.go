// Settle is a network function between two ports. It drops TCP and UDP to one port from clients at `in`, hands on everything else, and settles a flow when
// it has looked at some packets of it: the switch then passes the flow by. SIGHUP has it read another port from /tmp/block. docs/write-an-nf.md explains it.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"weir.dev/weir/catalogue/nf"
)

const (
	blockFile = "/tmp/block"
	maxFlows  = 1 << 16 // when there are more, all are counted anew
)

func main() {
	log := slog.New(slog.NewTextHandler(os.Stdout, nil))
	if err := run(log); err != nil {
		log.Error("settle ends", "error", err)
		os.Exit(1)
	}
}

// filter is the function. All of it belongs to the goroutine of the loop.
type filter struct {
	after, block int
	flows        map[flow]int // packets seen
	settler      *nf.Settler  // nil: none is to be settled
}

type flow struct{ a, b netip.AddrPort }

func run(log *slog.Logger) error {
	config := struct {
		After, Block int
		Settle       bool
	}{After: 20, Settle: true}
	raw, err := nf.ReadConfig(nf.ConfigFile)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, &config); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	f := &filter{after: config.After, block: config.Block, flows: map[flow]int{}}
	if config.Settle {
		f.settler = nf.NewSettler("", log)
		defer f.settler.Close()
	}
	told := nf.Start{Config: blockFile, Log: log}.Listen()
	defer told.Stop()
	frames, err := nf.OpenFrames(nf.Options{Handle: f.handle, Settler: f.settler})
	if err != nil {
		return err
	}
	defer frames.Close()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log.Info("forwarding", "settles after", f.after, "blocked port", f.block)
	return frames.Serve(ctx, told, nf.Work{
		Report: func() {},
		Load: func(_ context.Context, raw []byte) error {
			port, err := strconv.ParseUint(strings.TrimSpace(string(raw)), 10, 16)
			if err != nil {
				return fmt.Errorf("%s: want a port", blockFile)
			}
			frames.Do(func() { // between two frames: what was judged by the former rule has been said by now
				f.block = int(port)
				clear(f.flows)
				if f.settler != nil {
					f.settler.Reset()
				}
			})
			log.Info("another rule", "blocked port", port)
			return nil
		},
	})
}

func (f *filter) handle(d nf.Dir, frame nf.Frame) nf.Verdict {
	p := nf.Decode(frame.Data)
	if p.SrcPort == 0 && p.DstPort == 0 {
		return nf.Pass
	}
	k := flow{netip.AddrPortFrom(p.Src, p.SrcPort), netip.AddrPortFrom(p.Dst, p.DstPort)}
	port := p.DstPort
	if d == nf.Down {
		k.a, k.b, port = k.b, k.a, p.SrcPort
	}
	if f.block != 0 && int(port) == f.block {
		return nf.Drop
	}
	if f.settler == nil {
		return nf.Pass
	}
	if p.Flags&nf.SYN != 0 { // another connection
		delete(f.flows, k)
		return nf.Pass
	}
	if len(f.flows) >= maxFlows {
		clear(f.flows)
	}
	f.flows[k]++
	if f.flows[k] >= f.after {
		f.settler.Pass(frame.Data) // for each such frame that still comes: until the switch has taken it, and when it asks again
	}
	return nf.Pass
}
