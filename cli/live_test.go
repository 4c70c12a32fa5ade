package cli_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"weir.dev/weir/api"
	"weir.dev/weir/container"
	"weir.dev/weir/manager"
	"weir.dev/weir/manager/ask"
	"weir.dev/weir/manager/images"
	"weir.dev/weir/router"
	"weir.dev/weir/store"
	"weir.dev/weir/store/mem"
)

// TestLive runs commands against the real manager on a Unix socket and loopback TCP, over the in-memory store. Its agent is hollow: it
// has no kernel under it and reports at once what a real one reaches.
func TestLive(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/live", UpdateScripts: *update, RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			url, stop, err := serve(env.WorkDir, mem.New())
			if err != nil {
				return err
			}
			env.Defer(stop)
			env.Setenv("WEIR_SOCKET", filepath.Join(env.WorkDir, "api.sock"))
			env.Setenv("TEST_URL", url)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "interrupt": interrupt, "terminal": terminal, "post": post},
	})
}

// post KIND FILE hands in what an agent (status) or the router (fabric) reports.
func post(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: post status|fabric FILE")
	}
	c, err := api.Dial(api.Options{Socket: ts.Getenv("WEIR_SOCKET")})
	ts.Check(err)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	switch text := []byte(ts.ReadFile(args[1])); args[0] {
	case "status":
		var r api.StatusReport
		ts.Check(json.Unmarshal(text, &r))
		ts.Check(c.Report(ctx, r))
	case "fabric":
		var r api.FabricReport
		ts.Check(json.Unmarshal(text, &r))
		ts.Check(c.Fabric(ctx, r))
	default:
		ts.Fatalf("post %s: want status or fabric", args[0])
	}
}

// fabric has one switch that answers.
type fabric struct{}

func (fabric) SwitchCounters(_ context.Context, name string) (api.SwitchCounters, error) {
	if name != "s1" {
		return api.SwitchCounters{}, errors.New("it is not connected")
	}
	return api.SwitchCounters{Switch: name, Ports: []api.SwitchPortCounters{{Number: 1, Rx: api.Counter{Packets: 1200, Bytes: 90_000}, Tx: api.Counter{Packets: 7}, Dropped: 3}}}, nil
}

func (fabric) SwitchRules(_ context.Context, name string) (api.SwitchRules, error) {
	if name != "s1" {
		return api.SwitchRules{}, errors.New("it is not connected")
	}
	return api.SwitchRules{Switch: name, Message: "table 1 holds 40 entries", Tables: []api.SwitchTable{{ID: 0, Name: "steering", Rules: 1, Size: 2000}, {ID: 1, Rules: 2, Size: 40, Needs: 50, LeftOut: 20}, {ID: 2}}, Rules: []api.SwitchRule{
		{Table: 0, Priority: 26600, Cookie: "7", Match: "ip,in_port=2,nw_src=10.0.0.1", Actions: "output:1", Hits: api.Counter{Packets: 9, Bytes: 882}, Policy: "p", Note: "vm1 to nf"},
		{Table: 1, Priority: 100, Match: "dl_dst=02:00:00:00:00:01", Actions: "output:2"},
		{Table: 1, Priority: 100, Match: "dl_dst=02:00:00:00:00:02", Actions: "output:1"},
	}}, nil
}

func serve(dir string, s store.Store) (url string, stop func(), err error) {
	a := &hollow{}
	m, err := manager.New(manager.Options{Store: s, Stock: &stock{}, Validate: router.ValidateChange, Trace: router.Trace, Fabric: fabric{},
		Node: func(host string) ask.Node {
			if host == "h2" {
				return nil
			}
			return a
		}, Version: "test"})
	if err != nil {
		return "", nil, err
	}
	socket := filepath.Join(dir, "api.sock")
	l, err := m.Listen(manager.ServeOptions{Socket: socket, Listen: "127.0.0.1:0", TokenFile: filepath.Join(dir, "token")})
	if err != nil {
		return "", nil, err
	}
	c, err := api.Dial(api.Options{Socket: socket})
	if err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = l.Serve(ctx) })
	wg.Go(func() { a.run(ctx, c) })
	return "http://" + l.TCPAddr().String(), func() { cancel(); wg.Wait(); c.Close() }, nil
}

// stock has nothing but what an interrupted pull left.
type stock struct {
	images.Store
	gone atomic.Bool
}

func (s *stock) List() ([]api.Image, error) { return nil, nil }

func (s *stock) Collect(_ context.Context, plan bool) (api.ImageGC, error) {
	out := api.ImageGC{Kept: []api.ImageGCItem{{Name: "fw:1", Size: 1 << 20, Why: "an image of the store"}}}
	if !s.gone.Load() {
		out.Removed, out.Freed = []api.ImageGCItem{{Name: "half", Size: 2048, Why: "an interrupted pull left it"}}, 2048
		s.gone.Store(!plan)
	}
	return out, nil
}

// hollow is an agent without a machine. Functions of the image "broken" never come up, those of "slow" not in a test's time.
type hollow struct{}

func (h *hollow) run(ctx context.Context, c *api.Client) {
	changed := make(chan struct{}, 1)
	var wg sync.WaitGroup
	tell := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	wg.Go(func() { follow(ctx, c.Endpoints().Reader, tell) })
	wg.Go(func() { follow(ctx, c.Functions().Reader, tell) })
	wg.Go(func() { follow(ctx, c.Chains().Reader, tell) })
	wg.Go(func() { follow(ctx, c.Policies().Reader, tell) })
	defer wg.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			if r, err := h.look(ctx, c); err == nil {
				_ = c.Report(ctx, r)
			}
		}
	}
}

func follow[T any](ctx context.Context, r api.Reader[T], tell func()) {
	for range r.Watch(ctx, 0, api.ListOptions{}) {
		tell()
	}
}

// look reports every object as it should be.
func (h *hollow) look(ctx context.Context, c *api.Client) (api.StatusReport, error) {
	r := api.StatusReport{Host: "local", Endpoints: map[string]api.EndpointStatus{}, Functions: map[string]api.FunctionStatus{},
		Chains: map[string]api.ChainStatus{}, Policies: map[string]api.PolicyStatus{},
		HostState: &api.HostStatus{State: "ready", Version: "test", Kernel: "6.6", Cores: 2, Memory: 4 << 30, Switch: "ebpf", Runtime: "oci",
			Runtimes: []api.HostRuntime{{Name: "docker", Why: "no engine at /run/docker.sock: start dockerd"}, {Name: "kvm", Why: api.RuntimeNotKnown}, {Name: "lxc", Available: true, Version: "5.0.2"},
				{Name: "oci", Available: true, Default: true, Version: "runc version 1.1.5"}},
			Features: []api.Feature{{Name: "tcx", OK: true}, {Name: "netkit", Detail: "kernel 6.7; veth is used"}}}}
	endpoints, err1 := c.Endpoints().List(ctx, api.ListOptions{})
	functions, err2 := c.Functions().List(ctx, api.ListOptions{})
	chains, err3 := c.Chains().List(ctx, api.ListOptions{})
	policies, err4 := c.Policies().List(ctx, api.ListOptions{})
	for i, e := range endpoints.Items {
		s := api.EndpointStatus{ObservedGeneration: e.Generation, State: "up", Port: uint32(10 + i), Link: "wr" + e.Name, Host: "local"}
		if e.Deleting != nil {
			s.State = "deleted"
		}
		r.Endpoints[e.Name] = s
	}
	for i, f := range functions.Items {
		r.Functions[f.Name] = h.function(f, uint32(20+2*i))
		if f.Spec.Image == "broken" && f.Status.State != api.FunctionFailed {
			r.Events = append(r.Events, api.Event{Time: time.Now(), Severity: api.Warning, Reason: "FunctionDied", Kind: api.KindFunction, Object: f.Name,
				Message: "exit code 1\x1b[31m", OutageNs: 1_234_567})
		}
	}
	met := map[string][]string{}
	for _, x := range chains.Items {
		hops, _ := api.ParsePath(x.Spec.Path)
		for _, h := range hops {
			side := "in"
			if h.Tap {
				side = "tap"
			}
			met[x.Name] = append(met[x.Name], "function/"+h.Function+"/"+side)
		}
		r.Chains[x.Name] = api.ChainStatus{ObservedGeneration: x.Generation, State: "ready"}
	}
	for _, p := range policies.Items {
		s := api.PolicyStatus{ObservedGeneration: p.Generation, State: "active", Rules: 4, RenderedPath: slices.Concat([]string{"endpoint/alice"}, met[p.Spec.Chain], []string{"10.0.0.0/8"})}
		if p.Deleting != nil {
			s.State = "deleted"
		}
		r.Policies[p.Name] = s
	}
	return r, errors.Join(err1, err2, err3, err4)
}

func (h *hollow) function(f api.Function, port uint32) api.FunctionStatus {
	s := api.FunctionStatus{ObservedGeneration: f.Generation, ObservedRestart: f.Spec.Restart, State: f.Spec.State, Host: "local", Runtime: cmp.Or(f.Spec.Runtime, "oci"),
		Ports: api.FunctionPorts{In: port, Out: port + 1}}
	if s.State == "" {
		s.State = api.FunctionStarted
	}
	if s.CheckedBy = api.CheckedByProcess; f.Spec.Image == "firewall" {
		s.CheckedBy = api.CheckedByProbe
	}
	switch {
	case f.Deleting != nil:
		s.State = api.FunctionDeleted
	case f.Spec.Image == "broken":
		s.State, s.Message = api.FunctionFailed, "exit code 1"
	case f.Spec.Image == "slow" && s.State == api.FunctionStarted:
		s.State, s.Message = api.FunctionPending, "no probe frame came through"
	case s.State == api.FunctionStarted:
		s.Healthy, s.PID = true, 4242
	}
	return s
}

func (h *hollow) Counters(context.Context) (api.Counters, error) {
	return api.Counters{Host: "local", Version: 7, Ports: []api.PortCounters{
		{Port: 10, Name: "endpoint/alice", Link: "wralice", Rx: api.Counter{Packets: 12, Bytes: 1200}, Tx: api.Counter{Packets: 11, Bytes: 1 << 30}},
		{Port: 20, Name: "function/fw/in", Link: "wrfwin", Dropped: api.Counter{Packets: 3, Bytes: 180}, State: "up"},
	}, Rules: []api.RuleCounters{{Cookie: "1f", Policy: "guests", Chain: "web", Note: "policy guests: alice -> fw.in", Hits: api.Counter{Packets: 12, Bytes: 1200}}}}, nil
}

func (h *hollow) Metrics(context.Context) ([]api.FunctionMetrics, error) {
	return []api.FunctionMetrics{{Function: "fw", Time: time.Now(), Metrics: []api.Metric{
		{Name: "denied_packets_total", Help: "Packets that were denied.", Kind: api.MetricCounter, Labels: map[string]string{"rule": "a"}, Value: 7}}}}, nil
}

func (h *hollow) ImageList(context.Context) ([]api.Image, error) {
	return []api.Image{{Name: "wire:1", Digest: "sha256:1"}}, nil
}

func (h *hollow) Logs(_ context.Context, function string, o container.LogOptions) (io.ReadCloser, error) {
	lines := []string{function + " 1\n", function + " 2\n", function + " 3\n"}
	if o.Tail > 0 {
		lines = lines[max(0, len(lines)-o.Tail):]
	}
	return io.NopCloser(strings.NewReader(strings.Join(lines, ""))), nil
}

func (h *hollow) State(context.Context, string, string) (io.ReadCloser, int64, error) {
	return nil, 0, nil
}

func (h *hollow) Flows(_ context.Context, function string, o api.FlowOptions) (api.SettledFlows, error) {
	if function != "fw" {
		return api.SettledFlows{}, api.Refuse(http.StatusConflict, "host local: its switch ovs settles no flows: function "+function+" gets every packet")
	}
	id := uint16(9)
	all := []api.SettledFlow{
		{Verdict: api.FlowPass, At: "in", Protocol: "tcp", Source: "10.9.0.1", SourcePort: 4000, Destination: "10.9.0.2", DestPort: 80, Since: time.Now().Add(-time.Minute), IdleNs: 1e9,
			Missed: api.Counter{Packets: 12, Bytes: 1200}, Generation: 3, Rewrite: &api.FlowRewrite{End: "destination", Address: "10.9.0.3", Port: 8080}},
		{Verdict: api.FlowDrop, At: "out", Protocol: "icmpv6", Source: "fd57::2", Destination: "fd57::1", EchoID: &id, Reply: true, VLAN: 7, Since: time.Now(), Generation: 3},
	}
	if o.Sort == api.FlowsNewest {
		slices.Reverse(all)
	}
	return api.SettledFlows{Time: time.Now(), Total: len(all), Flows: all[:min(len(all), o.Limit)]}, nil
}

func (h *hollow) Capture(context.Context, api.Kind, string, api.CaptureOptions) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader("frames")), nil
}

func (h *hollow) Exec(ctx context.Context, function string, e container.ExecSpec) (int, error) {
	if e.Args[0] == "nowhere" {
		return 0, errors.New("nowhere: no such program in the image")
	}
	in, err := bufio.NewReader(e.Stdin).ReadBytes('\x04') // Ctrl-D, or the end
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	size := [2]uint16{}
	if e.TTY && len(in) > 0 {
		select {
		case size = <-e.Resize:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	fmt.Fprintf(e.Stdout, "%s %q env %q tty %v size %v stdin %q\n", function, e.Args, e.Env, e.TTY, size, in)
	if e.Stderr != nil {
		fmt.Fprintln(e.Stderr, "to stderr")
	}
	return len(e.Args), nil
}

// interrupt CODE PROGRAM ARGS... runs a program, presses Ctrl-C after its first line of output, and wants the exit code.
func interrupt(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: interrupt CODE PROGRAM ARGS...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	cmd := exec.Command(lookPath(ts, args[1]), args[2:]...)
	cmd.Dir = ts.Getenv("WORK")
	cmd.Env = environment(ts)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	ts.Check(err)
	ts.Check(cmd.Start())
	late := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	first := make([]byte, 4096)
	n, err := out.Read(first)
	if err == nil {
		err = cmd.Process.Signal(syscall.SIGINT)
	}
	rest, _ := io.ReadAll(out)
	_ = cmd.Wait() // its exit code is looked at
	ts.Check(err)
	fmt.Fprintf(ts.Stdout(), "%s%s", first[:n], rest)
	if got := cmd.ProcessState.ExitCode(); got != want || errs.Len() > 0 {
		ts.Fatalf("exit code %d, want %d; stderr %q", got, want, errs.String())
	}
}

// environment of a program that a script's own commands start.
func environment(ts *testscript.TestScript) []string {
	env := []string{"TERM=xterm"}
	for _, name := range []string{"PATH", "HOME", "WEIR_SOCKET", "NO_COLOR", "TEST_DOWN"} {
		env = append(env, name+"="+ts.Getenv(name))
	}
	return env
}

func lookPath(ts *testscript.TestScript, program string) string {
	for _, dir := range filepath.SplitList(ts.Getenv("PATH")) {
		if path := filepath.Join(dir, program); fileExists(path) {
			return path
		}
	}
	ts.Fatalf("no %s in PATH", program)
	return ""
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// terminal CODE KEYS PROGRAM ARGS... runs a program on a terminal of 100 columns on which the keys of a file (or - for none) are pressed, and
// wants the exit code. What the terminal shows is stdout.
func terminal(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: terminal CODE KEYS PROGRAM ARGS...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	master, tty, err := pty()
	ts.Check(err)
	defer master.Close()
	cmd := exec.Command(lookPath(ts, args[2]), args[3:]...)
	cmd.Dir = ts.Getenv("WORK")
	cmd.Env = environment(ts)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = cmd.Start()
	tty.Close()
	ts.Check(err)
	late := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	if args[1] != "-" {
		if filepath.Ext(args[1]) != ".line" { // a line is read as it comes
			ts.Check(raw(master))
		}
		_, err := master.WriteString(ts.ReadFile(args[1]))
		ts.Check(err)
	}
	shown, _ := io.ReadAll(master) // ends with EIO when the program closes the terminal
	_ = cmd.Wait()                 // its exit code is looked at
	_, _ = ts.Stdout().Write(shown)
	if got := cmd.ProcessState.ExitCode(); got != want {
		ts.Fatalf("exit code %d, want %d; the terminal shows:\n%q", got, want, shown)
	}
}

// Every kind has its table; none of its columns panics on an empty object.
func TestKindsAreThoseOfTheAPI(t *testing.T) {
	help := &bytes.Buffer{}
	root := tree()
	root.SetOut(help)
	root.SetArgs([]string{"get", "--help"})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	for _, k := range []api.Kind{api.KindEndpoint, api.KindFunction, api.KindChain, api.KindPolicy, api.KindHost, api.KindSwitch, api.KindAssignment, api.KindEvent, api.KindOperation} {
		if !strings.Contains(help.String(), k.Plural()) {
			t.Errorf("weir get does not know %s", k.Plural())
		}
	}
}
