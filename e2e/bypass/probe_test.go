package bypass

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/netns"
)

// flood sends frames out of eth0 in a namespace until stop is called, as fast as that goes.
func flood(t *testing.T, space string, next func(i int) []byte) (sent *atomic.Int64, stop func()) {
	t.Helper()
	fd := packetSocket(t, space, "eth0")
	sent = &atomic.Int64{}
	var ended atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; !ended.Load(); i++ {
			if err := unix.Send(fd, next(i), 0); err == nil {
				sent.Add(1)
			}
			if i%64 == 0 {
				runtime.Gosched()
			}
		}
	})
	return sent, sync.OnceFunc(func() { ended.Store(true); wg.Wait() })
}

// packetSocket is bound to an interface in a namespace, by name or by /proc.
func packetSocket(t *testing.T, space, link string) (fd int) {
	t.Helper()
	err := netns.Do(space, func() error {
		ns, err := netns.At("")
		if err != nil {
			return err
		}
		defer ns.Close()
		l, err := ns.Link(link)
		if err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100000}); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: 0x0300, Ifindex: l.Index}) // ETH_P_ALL, in network order
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// seen is a probe as the function itself sees it, which no station can.
func seen(ctx context.Context, t *testing.T, pid int) []byte {
	t.Helper()
	fd := packetSocket(t, fmt.Sprintf("/proc/%d/ns/net", pid), "in")
	buf := make([]byte, 2048)
	for ctx.Err() == nil {
		n, err := unix.Read(fd, buf)
		if err == nil && n >= 30 && buf[12] == 0x88 && buf[13] == 0xb5 {
			return bytes.Clone(buf[:n])
		}
	}
	t.Fatal("no probe came into the function")
	return nil
}

// A station floods a firewall with frames like the switch's probes, made up and replayed. The firewall stays in force, and a hang is noticed.
func TestStationsCannotSwitchAFirewallOff(t *testing.T) {
	for _, sw := range switches {
		t.Run(sw, func(t *testing.T) {
			r, ctx := rig.ForTest(t, rig.Options{Args: []string{"--switch", sw}})
			r.MustApply(ctx, t, r.Endpoints()+`
functions:
  fw: {image: firewall, on_fail: bypass, config: {allow: [udp/9000]}}
chains:
  c: fw
policies:
  p: {from: alice, to: bob, chain: c}
`)
			pid := function(ctx, t, r, "fw").Status.PID
			replayed := seen(ctx, t, pid)
			former := make([]byte, 60)
			copy(former, "\x06\x57\xffpro\x06\x57\xffprf\x88\xb5Weir")
			sent, stop := flood(t, r.Alice(), func(i int) []byte {
				if i%4 == 0 {
					return replayed
				}
				f := former
				if i%4 == 1 {
					f = bytes.Clone(replayed)
				}
				binary.BigEndian.PutUint32(f[18:], uint32(i)/4%64) // the function's number, as it used to stand there
				binary.BigEndian.PutUint32(f[22:], uint32(i))
				return f
			})
			defer stop()
			s, err := rig.NewStream(r.Alice(), r.Bob(), rig.BobAddr, 9001, 10000)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Await(ctx, max(frames, 20000)); err != nil {
				t.Fatal(err)
			}
			for _, reason := range []string{"FunctionUnhealthy", "FunctionDied", "FunctionRestarting"} {
				if got := events(ctx, t, r, reason, "fw"); len(got) > 0 {
					t.Errorf("%+v", got)
				}
			}
			o, err := s.Stop()
			if err != nil {
				t.Fatal(err)
			}
			fmt.Printf("%s: %d forged and replayed probes: %d of %d forbidden datagrams passed\n", sw, sent.Load(), o.Received, o.Sent)
			if o.Received > 0 {
				t.Errorf("%d of %d forbidden datagrams passed", o.Received, o.Sent)
			}
			// It hangs: its bridge hands nothing on any more.
			if out, err := r.Run(ctx, fmt.Sprintf("/proc/%d/ns/net", pid), "ip", "link", "set", "firewall", "down"); err != nil {
				t.Fatal(err, out)
			}
			begin := time.Now()
			rig.Eventually(ctx, t, "the hang is noticed", func() (bool, string) {
				return len(events(ctx, t, r, "FunctionUnhealthy", "fw")) > 0, fmt.Sprintf("%+v", function(ctx, t, r, "fw").Status)
			})
			fmt.Printf("%s: a hang under the flood was noticed after %s\n", sw, time.Since(begin).Round(10*time.Millisecond))
			stop()
		})
	}
}

func function(ctx context.Context, t *testing.T, r *rig.Rig, name string) (f api.Function) {
	t.Helper()
	if err := r.Get(ctx, &f, "function", name); err != nil {
		t.Fatal(err)
	}
	return f
}

func events(ctx context.Context, t *testing.T, r *rig.Rig, reason, object string) []api.Event {
	t.Helper()
	var list struct {
		Items []api.Event `json:"items"`
	}
	if err := r.Get(ctx, &list, "events"); err != nil {
		t.Fatal(err)
	}
	var out []api.Event
	for _, e := range list.Items {
		if e.Reason == reason && e.Object == object {
			out = append(out, e)
		}
	}
	return out
}
