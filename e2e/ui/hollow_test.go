package ui

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"weir.dev/weir/agent"
	kernelfake "weir.dev/weir/agent/kernel/fake"
	"weir.dev/weir/api"
	"weir.dev/weir/container"
	runtimefake "weir.dev/weir/container/fake"
	"weir.dev/weir/daemon"
	"weir.dev/weir/daemon/config"
	"weir.dev/weir/datapath"
	switchfake "weir.dev/weir/datapath/fake"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/image"
	imagefake "weir.dev/weir/image/fake"
	"weir.dev/weir/instance"
)

// Hollow hosts are agents as they are, each with a certificate of its own, that drive a switch, a runtime and a kernel in memory: the manager cannot tell
// them from others. They run in one process beside the manager.

// hollowHosts names the environment variable that makes this test's program such a process.
const hollowHosts = "WEIR_TEST_HOLLOW"

// hollow is what that process is told.
type hollow struct {
	Dir, Manager string
	Tokens       []string      // a file for each host
	CrashEvery   time.Duration // so often a function somewhere ends and is started again
}

func hollowName(n int) string { return fmt.Sprintf("h%04d", n) }

func TestMain(m *testing.M) {
	if text := os.Getenv(hollowHosts); text != "" {
		if err := runHollow(text); err != nil {
			fmt.Fprintln(os.Stderr, "Error:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// hollowImages are images without files.
type hollowImages struct{ imagefake.Store }

func (s hollowImages) Verify(_ context.Context, ref string) (image.Image, error) {
	return s.Resolve(ref)
}
func (s hollowImages) Peek(ref string) (image.Image, error)  { return s.Resolve(ref) }
func (hollowImages) From(image.Peer)                         {}
func (hollowImages) Free() (int64, error)                    { return 0, nil }
func (hollowImages) Own() ([]string, error)                  { return nil, nil }
func (hollowImages) Delete(context.Context, ...string) error { return image.ErrNotFound }
func (s hollowImages) Fetch(_ context.Context, ref string, _ image.RemoteOptions) (image.Image, error) {
	return s.Resolve(ref)
}
func (hollowImages) ImportFrom(context.Context, io.Reader, string) ([]image.Image, error) {
	return nil, image.ErrNotFound
}
func (hollowImages) Collect(context.Context, image.CollectOptions) (image.Collected, error) {
	return image.Collected{}, nil
}
func (hollowImages) KeepOffers(ctx context.Context) { <-ctx.Done() }
func (hollowImages) Handler(string) http.Handler    { return http.NotFoundHandler() }
func (hollowImages) Destroy(context.Context) error  { return nil }

// runHollow runs the agents until SIGTERM. After SIGUSR1 functions crash, until SIGUSR2.
func runHollow(text string) error {
	var o hollow
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	crash, calm := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(crash, syscall.SIGUSR1)
	signal.Notify(calm, syscall.SIGUSR2)
	runtimes := make([]*runtimefake.Runtime, len(o.Tokens))
	ended := make(chan error, len(o.Tokens))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	for n, token := range o.Tokens {
		kernel := kernelfake.New()
		kernel.Namespace(fmt.Sprintf("/stations/vm%04d", n))
		runtimes[n] = runtimefake.New()
		dir := filepath.Join(o.Dir, hollowName(n))
		i := instance.Instance{Name: hollowName(n), Root: filepath.Join(dir, "root"), Run: filepath.Join(dir, "run")}
		plain := image.Image{Args: []string{"wait"}, Contract: image.Contract{Tap: true}}
		d := daemon.Drivers{
			Switch: func(context.Context, instance.Instance) (datapath.Switch, error) {
				return switchfake.New(switchfake.Options{HasLink: kernel.HasLink}), nil
			},
			DestroySwitch:  func(context.Context, instance.Instance) error { return nil },
			Runtime:        func(context.Context, instance.Instance) (container.Runtime, error) { return runtimes[n], nil },
			DestroyRuntime: func(context.Context, instance.Instance, bool) error { return nil },
			Images: func(instance.Instance) daemon.Images {
				return hollowImages{imagefake.Store{Root: dir, Images: map[string]image.Image{"wire": {Args: []string{"wait"}}, "monitor": plain}}}
			},
			Features: func() []datapath.Feature { return nil },
			Kernel:   func() agent.Kernel { return kernel },
		}
		wg.Go(func() {
			ended <- daemon.Agent(ctx, daemon.AgentOptions{Instance: i, Managers: []string{o.Manager}, TokenFile: token, Host: config.Host{Name: hollowName(n)}, Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})), Ready: func() {}, Drivers: d})
		})
	}
	tick := time.NewTicker(o.CrashEvery)
	tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return err
		case <-crash:
			tick.Reset(o.CrashEvery)
		case <-calm:
			tick.Stop()
		case <-tick.C:
			rt := runtimes[rand.IntN(len(runtimes))]
			if all, err := rt.List(ctx); err == nil && len(all) > 0 {
				rt.Crash(all[rand.IntN(len(all))].ID, 1)
			}
		}
	}
}

// crowd is a manager with hollow hosts.
type crowd struct {
	*rig.Rig
	client *api.Client
	hosts  *exec.Cmd
}

// newCrowd starts as many hosts as are asked for, each with an endpoint, two chains and two policies over the functions each.
func newCrowd(t *testing.T, lasts time.Duration, hosts, each int, crashEvery time.Duration) (*crowd, context.Context) {
	t.Helper()
	r, _ := rig.Bare(t, rig.Options{Args: []string{"--agents", "127.0.0.1:7412"}})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute+2*lasts) // longer than a test of one host
	t.Cleanup(cancel)
	r.Verb = "manager"
	if err := r.Up(ctx); err != nil {
		t.Fatal(err)
	}
	client, err := api.Dial(api.Options{Socket: filepath.Join("/run/weir", r.Name, "api.sock")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	dir := t.TempDir()
	o := hollow{Dir: dir, Manager: "127.0.0.1:7412", CrashEvery: crashEvery}
	for n := range hosts {
		token, err := client.NewToken(ctx, api.TokenRequest{Host: hollowName(n), TTL: "1h"})
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, hollowName(n))
		if err := errors.Join(os.MkdirAll(filepath.Join(path, "run"), 0o755), os.WriteFile(filepath.Join(path, "token"), []byte(token.Token), 0o600)); err != nil {
			t.Fatal(err)
		}
		o.Tokens = append(o.Tokens, filepath.Join(path, "token"))
	}
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &crowd{Rig: r, client: client}
	// What an agent mounts (its network namespace, beside its state) goes with the process.
	c.hosts = r.Command(context.Background(), "", "unshare", "--mount", "--propagation", "private", self)
	c.hosts.Env = append(os.Environ(), hollowHosts+"="+string(text))
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	c.hosts.Stdout, c.hosts.Stderr = log, log
	if err := c.hosts.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.hosts.Process.Signal(syscall.SIGTERM)
		if err := c.hosts.Wait(); err != nil {
			t.Errorf("the hollow hosts: %v", err)
		}
		_, _ = log.Seek(0, io.SeekStart)
		if said, _ := io.ReadAll(io.LimitReader(log, 8<<10)); t.Failed() {
			t.Logf("the hollow hosts say:\n%s", said)
		}
		log.Close()
	})
	begin := time.Now()
	c.until(ctx, t, "all hosts are ready", func() (bool, string) {
		list, err := client.Hosts().List(ctx, api.ListOptions{})
		ready := 0
		for _, h := range list.Items {
			if h.Ready().Ready() {
				ready++
			}
		}
		return ready == hosts, fmt.Sprintf("%d of %d ready, %v", ready, hosts, err)
	})
	t.Logf("%d hosts have joined after %v", hosts, time.Since(begin).Round(time.Millisecond))

	begin = time.Now()
	d := api.Document{Endpoints: map[string]api.EndpointSpec{}, Functions: map[string]api.FunctionSpec{}, Chains: map[string]api.ChainSpec{}, Policies: map[string]api.PolicySpec{}}
	for n := range hosts {
		vm := fmt.Sprintf("vm%04d", n)
		d.Endpoints[vm] = api.EndpointSpec{Host: hollowName(n), Netns: "/stations/" + vm, Interface: "eth0"}
		for half, match := range []string{"tcp/80", "udp/53"} {
			name, path := fmt.Sprintf("%s-%d", vm, half), ""
			for i := range each / 2 {
				f := fmt.Sprintf("nf%04d", n*each+half*each/2+i)
				d.Functions[f] = api.FunctionSpec{Image: "wire", Host: hollowName(n)}
				if i > 0 {
					path += " | "
				}
				if i == each/2-1 {
					d.Functions[f] = api.FunctionSpec{Image: "monitor", Host: hollowName(n)}
					path += "tap:"
				}
				path += f
			}
			d.Chains[name] = api.ChainSpec{Path: path}
			d.Policies[name] = api.PolicySpec{From: vm, To: "any", Match: []string{match}, Chain: name}
		}
	}
	if _, err := client.Apply(ctx, api.ApplyRequest{Document: d}); err != nil {
		t.Fatal(err)
	}
	c.until(ctx, t, "all policies are active", func() (bool, string) {
		list, err := client.Policies().List(ctx, api.ListOptions{})
		active := 0
		last := ""
		for _, p := range list.Items {
			if r := p.Ready(); r.Ready() {
				active++
			} else {
				last = p.Name + ": " + r.String()
			}
		}
		return active == 2*hosts, fmt.Sprintf("%d of %d active, %v, %s", active, 2*hosts, err, last)
	})
	took := time.Since(begin).Round(time.Millisecond)
	managers, err1 := processorTime(r.PID())
	agents, err2 := processorTime(c.hosts.Process.Pid)
	t.Logf("%d functions are up after %v; until then the manager has used %v of processor time, all agents together %v (%v)", hosts*each, took, managers, agents, errors.Join(err1, err2))
	return c, ctx
}

// until polls with more patience than a test of one host needs.
func (c *crowd) until(ctx context.Context, t *testing.T, what string, ok func() (bool, string)) {
	t.Helper()
	for deadline := time.Now().Add(4 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		good, detail := ok()
		if good {
			return
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			t.Fatalf("%s: not in time: %s", what, detail)
		}
	}
}

// Sizes of the crowd. The stretch for which a tab stays open is longer with WEIR_UI_CROWD, a duration: `make ui-crowd`.
const (
	crowdEach    = 10                     // functions of a host
	crowdCrashes = 300 * time.Millisecond // each raises about three events
	crowdStretch = 20 * time.Second
	crowdLooks   = 5 // at the memory
)

// crowdHosts is how many hosts the crowd has: WEIR_UI_CROWD_HOSTS, default 20.
func crowdHosts(t *testing.T) int {
	t.Helper()
	text := cmp.Or(os.Getenv("WEIR_UI_CROWD_HOSTS"), "20")
	n, err := strconv.Atoi(text)
	if err != nil || n < 3 || n > 1000 {
		t.Fatalf("WEIR_UI_CROWD_HOSTS=%s: want a number from 3 to 1000", text)
	}
	return n
}

// TestHollowHosts shows hosts of a real manager with ten functions each in a browser, lets functions crash, and leaves a tab open.
func TestHollowHosts(t *testing.T) {
	stretch := crowdStretch
	if text := os.Getenv("WEIR_UI_CROWD"); text != "" {
		var err error
		if stretch, err = time.ParseDuration(text); err != nil || stretch < crowdStretch {
			t.Fatalf("WEIR_UI_CROWD=%s: want a duration of at least %v, for example 10m", text, crowdStretch)
		}
	}
	hosts := crowdHosts(t)
	c, ctx := newCrowd(t, stretch, hosts, crowdEach, crowdCrashes)
	do := links(ctx, c.Rig)
	began := time.Now()
	do["crowd"] = func(question) (any, error) {
		return map[string]any{"name": fmt.Sprintf("%d hosts, %d functions, %d endpoints", hosts, hosts*crowdEach, hosts), "seconds": stretch.Seconds(), "looks": crowdLooks}, nil
	}
	do["crash"] = func(question) (any, error) { return nil, c.hosts.Process.Signal(syscall.SIGUSR1) }
	do["calm"] = func(question) (any, error) { return nil, c.hosts.Process.Signal(syscall.SIGUSR2) }
	do["spent"] = func(question) (any, error) {
		cpu, err := processorTime(c.PID())
		return map[string]float64{"cpu": cpu.Seconds(), "at": time.Since(began).Seconds()}, err
	}
	do["events"] = func(question) (any, error) {
		list, err := c.client.Events().List(ctx, api.ListOptions{})
		told := 0
		for _, e := range list.Items {
			told += max(e.Count, 1)
		}
		return map[string]any{"told": told, "at": time.Since(began).Seconds()}, err
	}
	play(ctx, t, c.Rig, "hollow", do)
}

// processorTime is what a process has used.
func processorTime(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	const user, system, ticks = 11, 12, 100 // proc(5), from the state on; USER_HZ
	u, err1 := strconv.Atoi(fields[user])
	s, err2 := strconv.Atoi(fields[system])
	return time.Duration(u+s) * time.Second / ticks, errors.Join(err1, err2)
}
