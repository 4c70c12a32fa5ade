package datagrams

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/netns"
)

func TestMain(m *testing.M) {
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "datagrams: these tests make network namespaces: run them as root")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// space is a network namespace with its loopback.
func space(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	if err := netns.Create(path, netns.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Delete(path); err != nil {
			t.Error(err)
		}
	})
	return path
}

func port(n uint16) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), n) }

func sink(t *testing.T, in string) *Sink {
	t.Helper()
	s, err := Listen(in, port(7000))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestDatagramsArriveBehindProcessors(t *testing.T) {
	in := space(t)
	s := sink(t, in)
	for i := range uint16(3) {
		f, err := Forward(in, port(7100+i), map[bool]netip.AddrPort{true: port(7000), false: port(7101 + i)}[i == 2])
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}()
	}
	for _, bytes := range []int{MinPayload, 1454} {
		c, err := s.Run(t.Context(), Options{Space: in, To: port(7100), Payload: bytes, Rate: 1000, Duration: 300 * time.Millisecond, Run: uint32(bytes)})
		if err != nil {
			t.Fatal(err)
		}
		if c.Sent.Sent == 0 || c.Sent.Sent+c.Skipped+c.Refused != 300 || c.Lost() != 0 || c.Repeated+c.Reordered+c.Damaged+c.Foreign != 0 || c.Latency.Count != c.Unique || c.Latency.Min <= 0 {
			t.Errorf("%d bytes: %+v", bytes, c)
		}
	}
}

// saboteur is a processor that spoils some datagrams: each is known by its number.
func saboteur(t *testing.T, in string, spoil func(b []byte) [][]byte) {
	t.Helper()
	fd, err := socket(in)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, address(port(7200))); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		b := make([]byte, MaxPayload)
		for ctx.Err() == nil {
			n, err := unix.Read(fd, b)
			if err != nil {
				continue // nothing came
			}
			for _, out := range spoil(append([]byte{}, b[:n]...)) {
				if err := unix.Sendto(fd, out, 0, address(port(7000))); err != nil {
					done <- err
					return
				}
			}
		}
		done <- unix.Close(fd)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// What is lost, doubled, held back, late, damaged or of another run is counted exactly.
func TestSaboteurIsCounted(t *testing.T) {
	in := space(t)
	s := sink(t, in)
	var held []byte
	spoil := func(b []byte) [][]byte {
		_, number, stamp, _ := read(b)
		switch {
		case number%10 == 1:
			return nil
		case number%10 == 2:
			return [][]byte{b, b}
		case number%10 == 3:
			held = b
			return nil
		case number%10 == 4:
			return [][]byte{b, held}
		case number%10 == 5:
			b[len(b)-1]++
			return [][]byte{b}
		case number%10 == 6:
			other := make([]byte, len(b))
			write(other, 99, number, stamp)
			return [][]byte{b, other}
		case number%10 == 7:
			return [][]byte{b, b[:10]}
		}
		return [][]byte{b}
	}
	var late [][]byte // the last ten, until after the sender's end
	saboteur(t, in, func(b []byte) [][]byte {
		_, number, _, _ := read(b)
		out := spoil(b)
		if number < 490 {
			return out
		}
		late = append(late, out...)
		if number < 499 {
			return nil
		}
		time.Sleep(drain / 2)
		out, late = late, nil
		return out
	})
	var c Count
	for run := range uint32(20) { // numbers that a busy machine skips are not spoilt
		var err error
		if c, err = s.Run(t.Context(), Options{Space: in, To: port(7200), Payload: 100, Rate: 500, Duration: time.Second, Run: 7 + run}); err != nil {
			t.Fatal(err)
		}
		if c.Sent.Sent == 500 {
			break
		}
	}
	got := []uint64{c.Lost(), c.Unique, c.Unique - c.InTime, c.Repeated, c.Reordered, c.Damaged, c.Foreign}
	for i, want := range []uint64{100, 400, 8, 50, 50, 100, 50} {
		if got[i] != want {
			t.Errorf("lost, unique, late, repeated, reordered, damaged, foreign are %v", got)
			break
		}
	}
	if c.LossRatio() != 0.2 || c.Latency.Count != 400 {
		t.Errorf("%v lost, %+v", c.LossRatio(), c.Latency)
	}
}

func TestWhatIsWrongIsSaid(t *testing.T) {
	in := space(t)
	s := sink(t, in)
	good := Options{Space: in, To: port(7000), Payload: 100, Rate: 100, Duration: 100 * time.Millisecond}
	for name, spoil := range map[string]func(*Options){
		"a short payload": func(o *Options) { o.Payload = 27 }, "no rate": func(o *Options) { o.Rate = 0 }, "too high a rate": func(o *Options) { o.Rate = 1e9 },
		"no time": func(o *Options) { o.Duration = 0 }, "hours": func(o *Options) { o.Duration = time.Hour }, "nowhere": func(o *Options) { o.To = netip.AddrPort{} },
	} {
		o := good
		spoil(&o)
		if _, err := s.Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "want 28 to 65507 bytes") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Listen(in, port(7000)); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a port that is taken: %v", err)
	}
	if _, err := Forward(in, port(7000), port(7001)); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a processor at a port that is taken: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	o := good
	o.Duration = MaxDuration
	if _, err := s.Run(ctx, o); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("cut short: %v", err)
	}
}
