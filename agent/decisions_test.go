package agent_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/agent"
	kernelfake "weir.dev/weir/agent/kernel/fake"
	"weir.dev/weir/api"
	runtimefake "weir.dev/weir/container/fake"
	"weir.dev/weir/datapath"
	switchfake "weir.dev/weir/datapath/fake"
	"weir.dev/weir/flow"
	"weir.dev/weir/image"
	imagefake "weir.dev/weir/image/fake"
	"weir.dev/weir/instance"
	"weir.dev/weir/manager"
	"weir.dev/weir/manager/managertest"
	"weir.dev/weir/portkind"
	"weir.dev/weir/store/mem"
)

// desk is an agent at the real API, with a switch, a runtime, a kernel and images in memory. It needs no rights.
type desk struct {
	t       *testing.T
	client  *api.Client
	sw      *switchfake.Switch
	runtime *runtimefake.Runtime
	kernel  *kernelfake.Kernel
	options agent.Options
	agent   *agent.Agent
	stop    func() // the agent
}

// newDesk starts an agent and puts alice, bob and carol behind endpoints.
func newDesk(t *testing.T, o switchfake.Options, change ...func(*desk)) *desk {
	t.Helper()
	t.Parallel()
	dir := deskDir(t)
	d := newDeskAt(t, dir, "h1", deskManager(t, dir, manager.Options{}), o, change...)
	for _, name := range []string{"alice", "bob", "carol"} {
		d.station(name)
	}
	return d
}

func deskDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "weir-desk-") // short: sockets are in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("leftovers: %v", err)
		}
	})
	return dir
}

// deskManager serves the real API.
func deskManager(t *testing.T, dir string, o manager.Options) *api.Client {
	t.Helper()
	o.Store = mem.New()
	m, err := manager.New(o)
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "api.sock")
	managertest.Serve(t, m, manager.ServeOptions{Socket: socket})
	client, err := api.Dial(api.Options{Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// newDeskAt starts the agent of a host at a manager.
func newDeskAt(t *testing.T, dir, host string, client *api.Client, o switchfake.Options, change ...func(*desk)) *desk {
	t.Helper()
	d := &desk{t: t, client: client, kernel: kernelfake.New(), runtime: runtimefake.New()}
	o.HasLink = d.kernel.HasLink
	d.sw = switchfake.New(o)
	probe := image.Image{Args: []string{"wait"}, Contract: image.Contract{Probe: true}}
	tap := image.Image{Args: []string{"wait"}, Contract: image.Contract{Tap: true}}
	magic := image.Image{Args: []string{"wait"}, Contract: image.Contract{Forwarder: "magic"}}
	wire := image.Image{Args: []string{"wait"}, Contract: image.Contract{Forwarder: "wire"}}
	i := instance.Instance{Name: "desk", Root: filepath.Join(dir, host, "root"), Run: filepath.Join(dir, host, "run", "desk")}
	for _, p := range []string{i.Root, i.Run} {
		if err := os.MkdirAll(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	d.options = agent.Options{
		Instance: i, Host: host, API: client, Switch: d.sw, Runtime: d.runtime, Kernel: d.kernel, Log: slog.New(slog.DiscardHandler),
		Images: imagefake.Store{Root: dir, Images: map[string]image.Image{"firewall": probe, "monitor": tap, "magic": magic, "wire": wire}},
	}
	for _, f := range change {
		f(d)
	}
	d.start()
	t.Cleanup(func() { d.stop() })
	d.until("the host is ready", func() bool {
		h, err := client.Hosts().Get(t.Context(), host)
		return err == nil && h.Status.State == api.HostReady
	})
	return d
}

func (d *desk) start() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	d.agent = agent.New(d.options)
	go func() { done <- d.agent.Run(ctx) }()
	d.stop = func() {
		cancel()
		if err, ok := <-done; ok && err != nil {
			d.t.Error(err)
		}
		close(done)
		d.stop = func() {}
	}
}

func (d *desk) until(what string, ok func() bool) {
	d.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			d.t.Fatalf("not within 20 s: %s", what)
		}
	}
}

func (d *desk) must(_ any, err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

func (d *desk) station(name string) {
	d.t.Helper()
	path := filepath.Join("/desk", name)
	d.kernel.Namespace(path)
	d.must(d.client.Endpoints().Put(d.t.Context(), name, api.EndpointSpec{Netns: path, Interface: "eth0"}))
	d.until("endpoint "+name+" is up", func() bool {
		e, err := d.client.Endpoints().Get(d.t.Context(), name)
		return err == nil && e.Status.State == api.EndpointUp
	})
}

func (d *desk) put(name string, f api.FunctionSpec) {
	d.t.Helper()
	if f.Image == "" {
		f.Image = "firewall"
	}
	d.must(d.client.Functions().Put(d.t.Context(), name, f))
}

func (d *desk) function(name string) api.Function {
	d.t.Helper()
	f, err := d.client.Functions().Get(d.t.Context(), name)
	if err != nil {
		d.t.Fatal(err)
	}
	return f
}

// up waits until a function is as it is wanted.
func (d *desk) up(name string) api.Function {
	d.t.Helper()
	d.until("function "+name+" is up", func() bool {
		f := d.function(name)
		return f.Status.Healthy && f.Status.ObservedGeneration == f.Generation
	})
	return d.function(name)
}

func (d *desk) chain(name, path string) {
	d.t.Helper()
	d.must(d.client.Chains().Put(d.t.Context(), name, api.ChainSpec{Path: path}))
}

// policy leads TCP to a port from alice to bob through a chain.
func (d *desk) policy(name, chain string, port int) {
	d.t.Helper()
	d.must(d.client.Policies().Put(d.t.Context(), name, api.PolicySpec{From: "alice", To: "bob", Match: []string{fmt.Sprint("tcp/", port)}, Chain: chain}))
}

func (d *desk) frame(from, to string, port int, reverse bool) []byte {
	d.t.Helper()
	whole := flow.MAC{255, 255, 255, 255, 255, 255}
	ports := flow.PortRange{First: uint16(port), Last: uint16(port)}
	m := flow.Match{EtherType: flow.EtherTypeIPv4, Proto: flow.ProtoTCP, SrcMACMask: whole, DstMACMask: whole,
		SrcMAC: d.options.Instance.MAC("endpoint/" + from), DstMAC: d.options.Instance.MAC("endpoint/" + to)}
	if reverse {
		m.SrcPorts = ports
	} else {
		m.DstPorts = ports
	}
	f, _, ok := flow.Witness(m)
	if !ok {
		d.t.Fatal("no frame")
	}
	return f
}

// way of a TCP packet to a port from alice to bob: where it met functions, then where it left. "" dropped.
func (d *desk) way(port int) string {
	d.t.Helper()
	return d.send("endpoint/alice", "alice", "bob", port, false)
}

func (d *desk) send(at, from, to string, port int, reverse bool) string {
	d.t.Helper()
	r, err := d.sw.Send(at, d.frame(from, to, port, reverse))
	if err != nil {
		d.t.Fatal(err)
	}
	return strings.Join(r.Path(), " ")
}

func (d *desk) waits(what, want string, port int) {
	d.t.Helper()
	got := ""
	d.until(what, func() bool { got = d.way(port); return got == want })
}

const (
	straight = "endpoint/bob"
	dropped  = ""
)

func through(functions ...string) string {
	var ports []string
	for _, f := range functions {
		ports = append(ports, "function/"+f+"/in")
	}
	return strings.Join(append(ports, "endpoint/bob"), " ")
}

// TestDecisions: the agent's logic without a kernel, without rights, in under two seconds. go test ./agent -run '^TestDecisions$'
func TestDecisions(t *testing.T) {
	for name, f := range map[string]func(*testing.T){
		"what is applied is steered":                         whatIsAppliedIsSteered,
		"a policy is closed until its function is up":        aPolicyIsClosedUntilItsFunctionIsUp,
		"a function that crashes is started again":           aFunctionThatCrashesIsStartedAgain,
		"a function that hangs keeps its start":              aFunctionThatHangsKeepsItsStart,
		"a function that is slow to begin gets more time":    aFunctionThatIsSlowToBeginGetsMoreTime,
		"a tap in a machine has time to listen":              aTapInAMachineHasTimeToListen,
		"a planned change moves when it is up":               aPlannedChangeMovesWhenItIsUp,
		"a function that leaves its chain drains":            aFunctionThatLeavesItsChainDrains,
		"a full switch closes what does not fit":             aFullSwitchClosesWhatDoesNotFit,
		"a commit that fails is tried again":                 aCommitThatFailsIsTriedAgain,
		"a link that is deleted is made anew":                aLinkThatIsDeletedIsMadeAnew,
		"what the host cannot do is said":                    whatTheHostCannotDoIsSaid,
		"what is deleted goes":                               whatIsDeletedGoes,
		"a function's runtime can be changed":                aFunctionsRuntimeCanBeChanged,
		"a runtime that goes is said":                        aRuntimeThatGoesIsSaid,
		"a change is reported when frames go there":          aChangeIsReportedWhenFramesGoThere,
		"a second container in a missing runtime goes later": aSecondContainerInAMissingRuntimeGoesLater,
		"a runtime that comes back is said":                  aRuntimeThatComesBackIsSaid,
		"a change to a runtime that is not there":            aChangeToARuntimeThatIsNotThere,
		"another default moves nothing":                      anotherDefaultMovesNothing,
		"bare is for the catalogue":                          bareIsForTheCatalogue,
		"a machine forwards itself":                          aMachineForwardsItself,
		"slow machines hold up nobody else":                  slowMachinesHoldUpNobodyElse,
		"a start that is not wanted ends":                    aStartThatIsNotWantedEnds,
		"what a failed start left goes later":                whatAFailedStartLeftGoesLater,
		"a config is taken without a new instance":           aConfigIsTakenWithoutANewInstance,
		"flows are judged again after a reload":              flowsAreJudgedAgainAfterAReload,
		"flows are exported where there is a collector":      flowsAreExportedWhereThereIsACollector,
		"a reload without an answer makes a new instance":    aReloadWithoutAnAnswerMakesANewInstance,
		"a new instance gets the state of the former one":    aNewInstanceGetsTheStateOfTheFormerOne,
		"a function that moves takes its state along":        aFunctionThatMovesTakesItsStateAlong,
		"reloads that hang hold no hand-over up":             reloadsThatHangHoldNoHandOverUp,
	} {
		t.Run(name, f)
	}
}

// What is applied becomes rules: selected frames take the chain in order, replies in reverse, copies go to taps, everything else is bridged.
func whatIsAppliedIsSteered(t *testing.T) {
	d := newDesk(t, switchfake.Options{})
	d.put("fw", api.FunctionSpec{})
	d.put("ids", api.FunctionSpec{})
	d.put("mon", api.FunctionSpec{Image: "monitor"})
	d.chain("web", "fw | tap:mon | ids")
	d.policy("guests", "web", 80)
	for _, f := range []string{"fw", "ids", "mon"} {
		d.up(f)
	}
	d.waits("the chain is in force", "function/fw/in function/mon/tap function/ids/in endpoint/bob", 80)
	if got := d.way(81); got != straight {
		t.Errorf("what no policy selects: %s", got)
	}
	if got, want := d.send("endpoint/bob", "bob", "alice", 80, true), "function/ids/out function/mon/tap function/fw/out endpoint/alice"; got != want {
		t.Errorf("the reply: %s, want %s", got, want)
	}
	d.until("the policy is active", func() bool {
		p, err := d.client.Policies().Get(t.Context(), "guests")
		return err == nil && p.Status.State == api.PolicyActive && p.Status.ObservedGeneration == p.Generation
	})
	version := d.sw.Version()
	d.stop()
	d.start() // again: it finds everything, and changes nothing
	pid := d.function("fw").Status.PID
	d.put("late", api.FunctionSpec{}) // something to see that it is at work
	d.up("late")
	if got := d.sw.Version(); got != version || d.function("fw").Status.PID != pid {
		t.Errorf("after a restart: %d commits more, process %d, was %d", got-version, d.function("fw").Status.PID, pid)
	}
	calls := d.runtime.Calls()
	if n := len(slices.DeleteFunc(calls, func(c string) bool { return !strings.HasPrefix(c, "Start fw.") })); n != 1 {
		t.Errorf("fw was started %d times", n)
	}
}

// From its acceptance on nothing passes a policy by: until its function is up, what it selects is dropped.
func aPolicyIsClosedUntilItsFunctionIsUp(t *testing.T) {
	d := newDesk(t, switchfake.Options{})
	d.sw.Hang("fw", true)
	d.put("fw", api.FunctionSpec{})
	d.chain("web", "fw")
	d.policy("guests", "web", 80)
	d.waits("the policy is closed", dropped, 80)
	if got := d.way(81); got != straight {
		t.Errorf("what it does not select: %s", got)
	}
	d.until("its status says why", func() bool {
		p, err := d.client.Policies().Get(t.Context(), "guests")
		return err == nil && p.Status.State == api.PolicyPending && strings.Contains(p.Status.Message, "waiting for function fw")
	})
	d.sw.Hang("fw", false)
	d.waits("the chain is in force", through("fw"), 80)
}

// A process's end: the data plane does what on_fail says, the status tells how the process ended, and another is started.
func aFunctionThatCrashesIsStartedAgain(t *testing.T) {
	for onFail, meanwhile := range map[api.OnFail]string{api.OnFailDrop: dropped, api.OnFailBypass: straight} {
		t.Run(string(onFail), func(t *testing.T) {
			d := newDesk(t, switchfake.Options{})
			d.put("fw", api.FunctionSpec{OnFail: onFail})
			d.chain("web", "fw")
			d.policy("guests", "web", 80)
			d.up("fw")
			d.waits("the chain is in force", through("fw"), 80)
			rules := d.sw.Rules()
			d.sw.Hang("fw", true) // so that it does not come up at once
			d.runtime.Crash("fw.1", 3)
			d.waits("on_fail decides", meanwhile, 80)
			d.until("its status says how it ended", func() bool { return strings.Contains(d.function("fw").Status.LastExit, "exit code 3") })
			if diff := cmp.Diff(rules, d.sw.Rules(), cmp.Comparer(func(a, b flow.Rule) bool { return a.Same(&b) })); diff != "" {
				t.Errorf("a function's end changes rules:\n%s", diff)
			}
			d.sw.Hang("fw", false)
			d.waits("it is up again", through("fw"), 80)
			d.until("in a sandbox of its own", func() bool {
				list, err := d.runtime.List(t.Context())
				return err == nil && len(list) == 1 && list[0].ID == "fw.2"
			})
			if s := d.function("fw").Status; s.Restarts != 1 {
				t.Errorf("%d restarts", s.Restarts)
			}
		})
	}
}

// A function that hangs is down until frames come through again. Its process goes on, so the status has the same process and the same start.
func aFunctionThatHangsKeepsItsStart(t *testing.T) {
	d := newDesk(t, switchfake.Options{})
	d.put("fw", api.FunctionSpec{})
	d.chain("web", "fw")
	d.policy("guests", "web", 80)
	before := d.up("fw").Status
	d.waits("the chain is in force", through("fw"), 80)
	d.sw.Hang("fw", true)
	d.until("it is down", func() bool { return !d.function("fw").Status.Healthy })
	d.sw.Hang("fw", false)
	after := d.up("fw").Status
	if after.PID != before.PID || !after.Started.Equal(before.Started) {
		t.Errorf("process %d since %s, was %d since %s", after.PID, after.Started, before.PID, before.Started)
	}
}

// A function through which no probe comes is started anew, and has twice the time then.
func aFunctionThatIsSlowToBeginGetsMoreTime(t *testing.T) {
	d := newDesk(t, switchfake.Options{})
	d.sw.Hang("fw", true)
	d.put("fw", api.FunctionSpec{})
	var at []time.Time
	for n, pid := 0, 0; n < 3; n++ {
		d.until(fmt.Sprintf("start %d", n+1), func() bool {
			now := d.function("fw").Status.PID
			if now == 0 || now == pid {
				return false
			}
			pid = now
			return true
		})
		at = append(at, time.Now())
	}
	if second := at[2].Sub(at[1]); second < 10*time.Second {
		t.Errorf("the second time after %v: want 10 s, twice as long as the first time", second)
	}
	d.sw.Hang("fw", false)
	d.up("fw")
}

// A planned change makes the new instance beside the former one. All rules move at once when it is up; if it does not come up, nothing changes.
func aPlannedChangeMovesWhenItIsUp(t *testing.T) {
	d := newDesk(t, switchfake.Options{})
	d.put("fw", api.FunctionSpec{})
	d.chain("web", "fw")
	d.policy("guests", "web", 80)
	before := d.up("fw").Status
	d.waits("the chain is in force", through("fw"), 80)

	d.runtime.Fail("Run", errors.New("no space left"))
	d.put("fw", api.FunctionSpec{Env: map[string]string{"A": "1"}})
	d.until("its status says that the change is not in force", func() bool {
		s := d.function("fw").Status
		return s.Healthy && strings.Contains(s.Message, "the former instance goes on: no space left")
	})
	if got := d.way(80); got != through("fw") || d.sw.Has("function/fw~") {
		t.Errorf("a change that failed: %s", got)
	}
	d.runtime.Fail("Run", nil)
	d.put("fw", api.FunctionSpec{Env: map[string]string{"A": "2"}})
	d.until("frames go through the new instance, never past both", func() bool {
		got := d.way(80)
		if got != through("fw") && got != through("fw~") {
			t.Fatalf("during the change: %q", got)
		}
		return got == through("fw~")
	})
	after := d.up("fw").Status
	if after.Ports == before.Ports || after.PID == before.PID || after.Restarts != 0 {
		t.Errorf("before %+v, after %+v", before, after)
	}
	d.until("the former instance is gone", func() bool {
		list, err := d.runtime.List(t.Context()) // the change that failed may have come up before the next was written: then that is the former one
		return err == nil && len(list) == 1 && list[0].PID == d.function("fw").Status.PID && d.sw.Has("function/fw") != d.sw.Has("function/fw~")
	})
}

// A change is reported as in force when frames go through the new instance, not when that is up: who waits for a new filter must not meet the former one.
func aChangeIsReportedWhenFramesGoThere(t *testing.T) {
	d := newDesk(t, switchfake.Options{})
	d.put("fw", api.FunctionSpec{})
	d.chain("web", "fw")
	d.policy("guests", "web", 80)
	d.up("fw")
	d.waits("the chain is in force", through("fw"), 80)
	for i := range 10 {
		former := d.way(80)
		d.put("fw", api.FunctionSpec{Env: map[string]string{"A": fmt.Sprint(i)}})
		d.up("fw")
		if got := d.way(80); got == former || got != through("fw") && got != through("fw~") {
			t.Fatalf("change %d is in force as its status says, and frames go %q, before %q", i, got, former)
		}
	}
}

// What is inside a function when its chain changes comes out and goes on, for a while.
func aFunctionThatLeavesItsChainDrains(t *testing.T) {
	d := newDesk(t, switchfake.Options{})
	d.put("fw", api.FunctionSpec{})
	d.put("ids", api.FunctionSpec{})
	d.chain("web", "fw")
	d.policy("guests", "web", 80)
	d.waits("the chain is in force", through("fw"), 80)
	d.up("ids")
	d.chain("web", "ids")
	d.waits("the new chain is in force", through("ids"), 80)
	if got := d.send("function/fw/out", "alice", "bob", 80, false); got != straight {
		t.Errorf("a frame inside the former function: %q", got)
	}
	d.until("the function has drained", func() bool { return d.send("function/fw/out", "alice", "bob", 80, false) == dropped })
	if got := d.way(80); got != through("ids") {
		t.Errorf("then: %q", got)
	}
}

// A switch without room closes the policies that do not fit, says so of them alone, and takes them in when there is room.
func aFullSwitchClosesWhatDoesNotFit(t *testing.T) {
	d := newDesk(t, switchfake.Options{Rules: 20})
	d.put("fw", api.FunctionSpec{})
	d.chain("web", "fw")
	d.policy("first", "web", 80)
	d.waits("the first is in force", through("fw"), 80)
	const more = 12
	for i := range more {
		d.policy(fmt.Sprint("p", i), "web", 1000+i)
	}
	state := func(name string) api.PolicyStatus {
		p, err := d.client.Policies().Get(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if p.Status.ObservedGeneration != p.Generation {
			return api.PolicyStatus{}
		}
		return p.Status
	}
	out := 0
	d.until("all have an answer, and some do not fit", func() bool {
		known := 0
		out = 0
		for i := range more {
			switch s := state(fmt.Sprint("p", i)); {
			case s.State == api.PolicyActive:
				known++
			case s.State == api.PolicyError && strings.Contains(s.Message, datapath.ErrFull.Error()):
				known, out = known+1, out+1
			}
		}
		return known == more && out > 0
	})
	if got := d.way(80); got != through("fw") || state("first").State != api.PolicyActive {
		t.Errorf("what was in force: %q, %+v", got, state("first"))
	}
	for i := range more {
		want := dropped
		if state(fmt.Sprint("p", i)).State == api.PolicyActive {
			want = through("fw")
		}
		if got := d.way(1000 + i); got != want {
			t.Errorf("p%d is %s: %q, want %q", i, state(fmt.Sprint("p", i)).State, got, want)
		}
	}
}

// Commits that fail leave everything in force, and are tried again.
func aCommitThatFailsIsTriedAgain(t *testing.T) {
	d := newDesk(t, switchfake.Options{})
	d.put("fw", api.FunctionSpec{})
	d.chain("web", "fw")
	d.policy("guests", "web", 80)
	d.waits("the chain is in force", through("fw"), 80)
	d.sw.Fail("Commit", errors.New("the kernel is busy"))
	d.policy("more", "web", 81)
	d.until("the policy says why", func() bool {
		p, err := d.client.Policies().Get(t.Context(), "more")
		return err == nil && p.Status.State == api.PolicyError && strings.Contains(p.Status.Message, "the kernel is busy")
	})
	if got := d.way(80); got != through("fw") {
		t.Errorf("what was in force: %q", got)
	}
	d.sw.Fail("Commit", nil)
	d.waits("it is tried again", through("fw"), 81)
}

// A link that somebody deletes is made anew, and the events say so.
func aLinkThatIsDeletedIsMadeAnew(t *testing.T) {
	d := newDesk(t, switchfake.Options{})
	d.put("fw", api.FunctionSpec{})
	d.chain("web", "fw")
	d.policy("guests", "web", 80)
	d.waits("the chain is in force", through("fw"), 80)
	link := d.options.Instance.Link("endpoint/alice")
	if err := d.kernel.DeleteLinks(link); err != nil {
		t.Fatal(err)
	}
	d.until("it is there again", func() bool { return d.kernel.HasLink(link) })
	d.until("the events say so", func() bool {
		all, err := d.client.Events().List(t.Context(), api.ListOptions{})
		var reasons []string
		for _, e := range all.Items {
			reasons = append(reasons, e.Reason)
		}
		return err == nil && slices.Contains(reasons, "EndpointLost") && slices.Contains(reasons, "EndpointRecovered")
	})
	d.waits("frames take the chain", through("fw"), 80)
}

// What this host's runtime and switch cannot do together is said by name, and nothing of it is made.
func whatTheHostCannotDoIsSaid(t *testing.T) {
	for name, x := range map[string]struct {
		image  string
		change func(*desk)
		want   string
	}{
		"no kind of ports in common": {"firewall", func(d *desk) { d.runtime.Kinds = []portkind.Kind{portkind.Tap} },
			"cannot join functions with its switch: runtime oci gives ports of kind tap; switch ebpf takes veth"},
		"a forwarder that the switch lacks": {"magic", func(*desk) {}, "image magic wants the forwarder magic; switch ebpf of host h1 has wire"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t, switchfake.Options{}, x.change)
			d.put("fw", api.FunctionSpec{Image: x.image})
			d.until("its status says why", func() bool { return strings.Contains(d.function("fw").Status.Message, x.want) })
			if list, err := d.runtime.List(t.Context()); err != nil || len(list) > 0 || d.sw.Has("function/fw") {
				t.Errorf("containers %v, %v", list, err)
			}
		})
	}
}

// What is deleted goes, without a trace, in an order in which no rule names a port that is not there.
func whatIsDeletedGoes(t *testing.T) {
	d := newDesk(t, switchfake.Options{})
	d.put("fw", api.FunctionSpec{})
	d.chain("web", "fw")
	d.policy("guests", "web", 80)
	d.waits("the chain is in force", through("fw"), 80)
	d.must(d.client.Policies().Delete(t.Context(), "guests"))
	d.waits("the policy is gone", straight, 80)
	d.must(d.client.Chains().Delete(t.Context(), "web"))
	d.must(d.client.Functions().Delete(t.Context(), "fw"))
	for _, name := range []string{"alice", "bob", "carol"} {
		d.must(d.client.Endpoints().Delete(t.Context(), name))
	}
	d.until("nothing is left", func() bool {
		containers, err := d.runtime.List(t.Context())
		links, lerr := d.kernel.Links(d.options.Instance.Alias(""))
		left, _ := os.ReadDir(filepath.Join(d.options.Instance.Run, "sandboxes"))
		return err == nil && lerr == nil && len(containers)+len(links)+len(left) == 0 && !d.sw.Has("function/fw") && !d.sw.Has("endpoint/alice")
	})
}
