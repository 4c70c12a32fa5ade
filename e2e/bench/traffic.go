package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"weir.dev/weir/netns"
)

// generator injects frames as if a link had just received them (XDP live frames that are passed up), on one CPU with the
// chain: the rate it reaches is the cost per packet, not a loss-free capacity.
type generator struct {
	space string // namespace of the link
	link  string
	frame []byte
}

const batchFrames = 16 // batch x crossings must stay under about 3000 (softirq)

// run sends frames for about d and returns how many it sent and how long it took.
func (g generator) run(d time.Duration) (int, time.Duration, error) {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}, // XDP_PASS
	})
	if err != nil {
		return 0, 0, fmt.Errorf("load the generator: %w", err)
	}
	defer prog.Close()
	var sent int
	var took time.Duration
	err = netns.Do(g.space, func() error {
		ifi, err := net.InterfaceByName(g.link)
		if err != nil {
			return err
		}
		meta := make([]byte, 24) // struct xdp_md
		binary.LittleEndian.PutUint32(meta[4:], uint32(len(g.frame)))
		binary.LittleEndian.PutUint32(meta[12:], uint32(ifi.Index))
		const chunk = 100_000
		begin := time.Now()
		for time.Since(begin) < d {
			if _, err := prog.Run(&ebpf.RunOptions{Data: g.frame, Context: meta, Repeat: chunk, Flags: runLiveFrames, BatchSize: batchFrames}); err != nil {
				return fmt.Errorf("inject frames at %s: %w", g.link, err)
			}
			sent += chunk
		}
		took = time.Since(begin)
		return nil
	})
	return sent, took, err
}

const runLiveFrames = 1 << 1 // BPF_F_TEST_XDP_LIVE_FRAMES, kernel 5.18

// sink drops everything at the ingress of a station's interface and lets the kernel count what arrived.
type sink struct {
	space, link string
	hook        link.Link
	prog        *ebpf.Program
}

func newSink(space, name string) (*sink, error) {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}, // TC_ACT_SHOT
	})
	if err != nil {
		return nil, fmt.Errorf("load the sink: %w", err)
	}
	s := &sink{space: space, link: name, prog: prog}
	err = netns.Do(space, func() error {
		ifi, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		s.hook, err = link.AttachTCX(link.TCXOptions{Interface: ifi.Index, Program: prog, Attach: ebpf.AttachTCXIngress})
		return err
	})
	if err != nil {
		prog.Close()
		return nil, fmt.Errorf("sink at %s in %s: %w", name, space, err)
	}
	return s, nil
}

func (s *sink) close() error { return errors.Join(s.hook.Close(), s.prog.Close()) }

// count is how many packets the interface has received.
func (s *sink) count() (n int, err error) {
	err = netns.Do(s.space, func() error {
		b, err := os.ReadFile("/proc/thread-self/net/dev")
		if err != nil {
			return err
		}
		for _, l := range strings.Split(string(b), "\n") {
			name, rest, ok := strings.Cut(strings.TrimSpace(l), ":")
			if f := strings.Fields(rest); ok && name == s.link && len(f) > 1 {
				n, err = strconv.Atoi(f[1])
				return err
			}
		}
		return fmt.Errorf("no interface %s", s.link)
	})
	return n, err
}

// udp is a UDP frame of size bytes (without FCS; 60 makes 64 on the wire).
func udp(src, dst net.HardwareAddr, from, to netip.Addr, sport, dport uint16, size int) []byte {
	f := make([]byte, size)
	copy(f, dst)
	copy(f[6:], src)
	binary.BigEndian.PutUint16(f[12:], 0x0800)
	ip := f[14:34]
	ip[0], ip[8], ip[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(ip[2:], uint16(size-14))
	copy(ip[12:], from.AsSlice())
	copy(ip[16:], to.AsSlice())
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
	u := f[34:]
	binary.BigEndian.PutUint16(u, sport)
	binary.BigEndian.PutUint16(u[2:], dport)
	binary.BigEndian.PutUint16(u[4:], uint16(size-34)) // checksum 0: none
	return f
}

// rate sends for d and returns packets per second that arrived at the sink.
func rate(g generator, s *sink, d time.Duration) (float64, error) {
	before, err := s.count()
	if err != nil {
		return 0, err
	}
	sent, took, err := g.run(d)
	if err != nil {
		return 0, err
	}
	time.Sleep(20 * time.Millisecond) // drain
	after, err := s.count()
	if err != nil {
		return 0, err
	}
	got := after - before
	if got < sent/100 {
		return 0, fmt.Errorf("only %d of %d frames arrived at %s", got, sent, s.link)
	}
	return float64(got) / took.Seconds(), nil
}
