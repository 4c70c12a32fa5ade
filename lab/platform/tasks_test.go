package platform

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/container/kernel"
	"weir.dev/weir/lab/traffic/tools"
	"weir.dev/weir/netns"
)

// A working function in a chain and the tool beside it both carry what stations send each other, and leave nothing behind.
func TestFunctionsAndToolsCarry(t *testing.T) {
	t.Parallel()
	kinds := working()
	for _, name := range []string{"five-judged", "five-bridged"} {
		k, _ := Find(name)
		kinds = append(kinds, k)
	}
	for _, k := range kinds {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			o := testOptions(t)
			if k.Point == (Point{PlatformHost, PlatformHost, "impair"}) && lacksNetem() != "" {
				t.Skip(lacksNetem())
			}
			if why := k.Check(o); why != "" {
				t.Fatalf("not on this machine: %s", why)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			p, err := k.Open(ctx, o)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := p.Close(); err != nil {
					t.Error(err)
				}
				for _, pattern := range []string{Run + "/" + o.Name + "-*", Run + "/" + daemonNames(o) + "*", State + "/" + daemonNames(o) + "*", "/var/lib/weir/" + o.Name + "-*"} {
					if left, _ := filepath.Glob(pattern); len(left) > 0 {
						t.Errorf("left behind: %v", left)
					}
				}
			})
			path, err := p.Path(ctx, Layout{Chain: k.Least})
			if err == nil {
				err = path.Try(ctx)
			}
			if err != nil {
				t.Fatal(err)
			}
			if settings, err := path.Conditions(); err != nil || settings[settingShown+"iptables"] != "0" || settings[SettingTSO] != "on" {
				t.Errorf("%v, %v", settings, err)
			}
			// What runs on the way has the same weight in a container as by hand.
			want := ""
			if k.Process && !k.Kernel {
				if want, err = weightOfFunctions(); err != nil {
					t.Fatal(err)
				}
			}
			if got := p.(Described).Conditions()[SettingWeight]; got != want {
				t.Errorf("%s: %q: want %q", SettingWeight, got, want)
			}
		})
	}
}

// weightOfFunctions is what container/kernel gives the group of all.
func weightOfFunctions() (string, error) {
	t, ok, err := findCPU()
	if err != nil || !ok {
		return "", err
	}
	_, text := t.weight(kernel.Weight)
	_, whole := t.weight(weightOf)
	return text + " of " + whole, nil
}

// The tasks that pass what stations send to each other, whatever they do, do it: connections to the virtual address come to the second station, a monitor counts what it gets
// copies of, and a delay is one.
func TestTasksDoTheirWork(t *testing.T) {
	for _, task := range tasks() {
		work := map[string]func(*testing.T, Platform, Path){TaskCache: caches, TaskCacheUnseen: caches, TaskBalancer: balances, "monitor": counts, "impair": delays}[task.name]
		if work == nil {
			continue
		}
		for _, k := range []Kind{task.inChain(), task.onHost()} {
			t.Run(task.name+"/"+k.Point.Runtime, func(t *testing.T) {
				if task.name == "impair" && k.Point.Runtime == PlatformHost && lacksNetem() != "" {
					t.Skip(lacksNetem())
				}
				o := testOptions(t)
				if why := k.Check(o); why != "" {
					t.Fatalf("not on this machine: %s", why)
				}
				p, err := k.Open(t.Context(), o)
				if err != nil {
					t.Fatal(err)
				}
				defer func() {
					if err := p.Close(); err != nil {
						t.Error(err)
					}
				}()
				path, err := p.Path(t.Context(), Layout{Chain: k.Least})
				if err == nil {
					err = path.Try(t.Context())
				}
				if err != nil {
					t.Fatal(err)
				}
				work(t, p, path)
			})
		}
	}
}

// balances: a connection to the virtual address reaches the second station, as one of the first station's own address.
func balances(t *testing.T, _ Platform, path Path) {
	var l net.Listener
	if err := netns.Do(path.To, func() (err error) { l, err = net.Listen("tcp4", fmt.Sprint(":", balancedPort)); return err }); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	from := make(chan string, 100)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			from <- host
			c.Close()
		}
	}()
	if path.Served() != poolAddress || path.Served() == path.Address {
		t.Fatalf("asked is %s, behind it is %s", path.Served(), path.Address)
	}
	var c net.Conn
	err := netns.Do(path.From, func() (err error) {
		c, err = net.DialTimeout("tcp4", netip.AddrPortFrom(path.Served(), balancedPort).String(), 10*time.Second)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	select {
	case got := <-from:
		if got != path.Source.String() {
			t.Errorf("the target sees %s, want %s", got, path.Source)
		}
	case <-time.After(10 * time.Second):
		t.Error("the target sees nobody")
	}
}

// caches: of two requests the server gets one. It sees the client's address unless it is nginx under an address of its own that asks.
func caches(t *testing.T, _ Platform, path Path) {
	var l net.Listener
	if err := netns.Do(path.To, func() (err error) { l, err = net.Listen("tcp4", ":80"); return err }); err != nil {
		t.Fatal(err)
	}
	var seen []string
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		seen = append(seen, host)
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Content-Length", "1")
		_, _ = w.Write([]byte("x"))
	})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Serve(l)
	}()
	c := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (c net.Conn, err error) {
		err = netns.Do(path.From, func() error {
			var d net.Dialer
			c, err = d.DialContext(ctx, "tcp4", netip.AddrPortFrom(path.Served(), 80).String())
			return err
		})
		return c, err
	}}}
	var results []string
	for range 2 {
		r, err := c.Get("http://www.example/page")
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		results = append(results, fmt.Sprint(r.StatusCode, " ", r.Header.Get("X-Cache")))
	}
	_ = s.Close()
	<-ended
	if want := []string{"200 MISS", "200 HIT"}; !slices.Equal(results, want) {
		t.Errorf("answers %q, want %q", results, want)
	}
	if asked := path.Served() != path.Address; len(seen) != 1 || (seen[0] == path.Source.String()) == asked {
		t.Errorf("the server saw %q; the client is %s, and asks %s", seen, path.Source, path.Served())
	}
}

// counts: the monitor has counted half of the echoes and answers, or more. softflowd gets them in blocks, of which the last ones are not full (libpcap without a timeout), and may drop
// some on a busy machine.
func counts(t *testing.T, p Platform, path Path) {
	const echoes, want = 4_000, 4_000
	if r, err := tools.RunPing(t.Context(), path.From, tools.PingOptions{To: path.Address, Count: echoes, Interval: time.Millisecond}); err != nil || r.Received != echoes {
		t.Fatalf("%d of %d echoes: %v", r.Received, echoes, err)
	}
	seen := func() (n int, text string) {
		if h, byHand := p.(*byHand); byHand {
			out, err := exec.Command("softflowctl", "-c", fmt.Sprintf("/proc/%d/root/run/softflowd/control", h.programs.all[0].cmd.Process.Pid), "statistics").CombinedOutput()
			_, after, _ := strings.Cut(string(out), "Packets processed: ")
			_, serr := fmt.Sscan(after, &n)
			return n, fmt.Sprintf("%v, %v: %s", err, serr, out)
		}
		c, err := p.(*daemons).Client()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		m, err := c.FunctionMetrics(t.Context(), "monitor")
		for _, x := range m.Metrics {
			if x.Name == "monitor_packets_total" {
				n += int(x.Value)
			}
		}
		return n, fmt.Sprintf("%v: %+v", err, m)
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		n, text := seen()
		if n >= want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d packets are counted, want %d: %s", n, want, text)
		}
	}
}

// delays: a round trip takes the delay twice, and not much more.
func delays(t *testing.T, _ Platform, path Path) {
	r, err := tools.RunPing(t.Context(), path.From, tools.PingOptions{To: path.Address, Count: 20, Interval: 20 * time.Millisecond})
	if err != nil || r.Received != 20 {
		t.Fatalf("%d of 20 echoes: %v", r.Received, err)
	}
	if least := slices.Min(r.RTT); least < 2*impairedMs*time.Millisecond || least > 3*impairedMs*time.Millisecond {
		t.Errorf("the shortest round trip takes %s, want %d ms", least, 2*impairedMs)
	}
}
