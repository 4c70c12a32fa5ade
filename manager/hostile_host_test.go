package manager_test

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
	"weir.dev/weir/pki"
)

// hostileWorld has two hosts, h1 that is hostile and h2, with a function and an endpoint at each.
func hostileWorld(t *testing.T) (w *world, evil *tls.Config, good *api.Client) {
	w = joinWorld(t, manager.Options{Host: "m"})
	e, id := w.member(t, "h1")
	good, _ = w.member(t, "h2")
	for name, c := range map[string]*api.Client{"h1": e, "h2": good} {
		tellOf(t, c, api.StatusReport{Host: name, HostState: &api.HostStatus{State: "ready", Cores: 4, Memory: 8 << 30, Images: []string{"wire", "firewall"}}})
	}
	doc := api.Document{Endpoints: map[string]api.EndpointSpec{}, Functions: map[string]api.FunctionSpec{}}
	for _, h := range []string{"h1", "h2"} {
		doc.Endpoints["e-"+h] = api.EndpointSpec{Netns: "/run/netns/place-of-" + h, Interface: "eth0", Address: "10.9.0." + h[1:] + "/24", Host: h}
		doc.Functions["f-"+h] = api.FunctionSpec{Image: "wire", Host: h, Env: map[string]string{"TOKEN": "env-of-" + h}, Command: []string{"cmd-of-" + h},
			Config: api.Config{"key": "config-of-" + h}}
	}
	must(w.Apply(ctx(t), api.ApplyRequest{Document: doc}))(t)
	tellOf(t, good, api.StatusReport{Host: "h2", Functions: map[string]api.FunctionStatus{
		"f-h2": {ObservedGeneration: 1, State: api.FunctionStarted, Healthy: true, Host: "h2", PID: 4711, Message: "message-of-h2"}}})
	return w, id.Client(time.Now, "http/1.1"), good
}

func tellOf(t testing.TB, c *api.Client, r api.StatusReport) {
	t.Helper()
	if err := c.Report(ctx(t), r); err != nil {
		t.Fatal(err)
	}
}

// told fails if a text has something that only h2 may know.
func told(t *testing.T, what, text string) {
	t.Helper()
	for _, s := range []string{"env-of-h2", "cmd-of-h2", "config-of-h2", "place-of-h2", "4711", "message-of-h2"} {
		if strings.Contains(text, s) {
			t.Errorf("%s shows %s: %s", what, s, text)
		}
	}
}

// TestAHostileHostWithAValidCertificate: each attempt is a row; what it must get, and what must stay.
func TestAHostileHostWithAValidCertificate(t *testing.T) {
	w, evil, _ := hostileWorld(t)
	ask := func(method, path, body string) (int, string) { return do(t, w, evil, method, path, body) }
	t.Run("reads of what is placed elsewhere", func(t *testing.T) {
		for _, path := range []string{"/v1/functions", "/v1/functions?watch=false", "/v1/functions/f-h2", "/v1/endpoints", "/v1/endpoints/e-h2", "/v1/functions?name=f-h2"} {
			status, body := ask("GET", path, "")
			if status != 200 || !strings.Contains(body, "-h2") {
				t.Errorf("%s: %d %s", path, status, body)
			}
			told(t, path, body)
		}
		_, own := ask("GET", "/v1/functions/f-h1", "")
		for _, want := range []string{"env-of-h1", "config-of-h1", "cmd-of-h1"} {
			if !strings.Contains(own, want) {
				t.Errorf("its own function lacks %s: %s", want, own)
			}
		}
		var f api.Function
		_, other := ask("GET", "/v1/functions/f-h2", "")
		if err := json.Unmarshal([]byte(other), &f); err != nil || f.At() != "h2" || !f.Status.Healthy || f.UID == "" || f.Generation != 1 {
			t.Errorf("what chains across hosts need is missing: %s, %v", other, err)
		}
		_, place := ask("GET", "/v1/endpoints/e-h2", "")
		if !strings.Contains(place, "10.9.0.2/24") {
			t.Errorf("the address is missing: %s", place)
		}
	})
	t.Run("watches of what is placed elsewhere", func(t *testing.T) {
		config := evil.Clone()
		tr := &http.Transport{TLSClientConfig: config}
		defer tr.CloseIdleConnections()
		r := must(http.NewRequestWithContext(ctx(t), "GET", "https://"+w.addr+"/v1/functions?watch", http.NoBody))(t)
		resp, err := (&http.Client{Transport: tr}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		must(w.Functions().Patch(ctx(t), "f-h2", map[string]any{"env": map[string]any{"TOKEN": "env-of-h2 too"}}))(t)
		must(w.Functions().Delete(ctx(t), "f-h2"))(t)
		lines := bufio.NewScanner(resp.Body)
		for seen := 0; seen < 3 && lines.Scan(); { // put, changed, deleting
			if strings.Contains(lines.Text(), `"f-h2"`) {
				seen++
				told(t, "watch", lines.Text())
			}
		}
		if err := lines.Err(); err != nil {
			t.Error(err)
		}
	})
	for _, x := range []struct {
		attempt, method, path, body string
		status                      int
	}{
		{"read join tokens", "GET", "/v1/tokens", "", 403},
		{"make a join token", "POST", "/v1/tokens", `{}`, 403},
		{"read events", "GET", "/v1/events", "", 403},
		{"read operations", "GET", "/v1/operations", "", 403},
		{"read another host", "GET", "/v1/hosts/h2", "", 403},
		{"read all hosts", "GET", "/v1/hosts", "", 403},
		{"read another host's assignment", "GET", "/v1/assignments/h2", "", 403},
		{"read all assignments", "GET", "/v1/assignments", "", 403},
		{"read switches", "GET", "/v1/switches", "", 403},
		{"read another host's discovery key", "GET", "/v1/agent/config?host=h2", "", 403},
		{"write a function", "PUT", "/v1/functions/f", `{"spec":{"image":"wire"}}`, 403},
		{"change a function", "PATCH", "/v1/functions/f-h2", `{"spec":{"env":{}}}`, 403},
		{"change its own function", "PATCH", "/v1/functions/f-h1", `{"spec":{"env":{}}}`, 403},
		{"delete an endpoint", "DELETE", "/v1/endpoints/e-h2", "", 403},
		{"apply a document", "POST", "/v1/apply", `{"document":{},"prune":true}`, 403},
		{"delete many objects", "POST", "/v1/delete", `{"functions":["f-h2"]}`, 403},
		{"declare its own capacity", "PATCH", "/v1/hosts/h1", `{"spec":{"cpus":"4096"}}`, 403},
		{"delete another host", "DELETE", "/v1/hosts/h2", "", 403},
		{"restart a function elsewhere", "POST", "/v1/functions/f-h2/restart", "", 403},
		{"run a process elsewhere", "POST", "/v1/functions/f-h2/exec?arg=sh", "", 403},
		{"read the state of a function elsewhere", "GET", "/v1/agent/state/f-h2", "", 403},
		{"put the state of a function", "PUT", "/v1/agent/state/f-h1", "x", 403},
		{"read logs elsewhere", "GET", "/v1/functions/f-h2/logs", "", 403},
		{"read counters of another host", "GET", "/v1/hosts/h2/counters", "", 403},
		{"read flows of a function", "GET", "/v1/functions/f2/flows", "", 403},
		{"answer in the place of another host", "GET", "/v1/hosts/h2/connect", "", 403},
		{"beat for another host", "POST", "/v1/hosts/h2/beat", `{}`, 403},
		{"speak for the router", "POST", "/v1/fabric", `{"assignments":{"h2":{}}}`, 403},
		{"report another host", "POST", "/v1/status", `{"host":"h2","host_status":{"state":"ready","cores":1}}`, 403},
		{"report a function as another host", "POST", "/v1/status", `{"host":"h1","functions":{"f-h2":{"host":"h2","state":"stopped"}}}`, 403},
		{"tell an event of another host", "POST", "/v1/status", `{"host":"h1","events":[{"reason":"FunctionDied","host":"h2","message":"x"}]}`, 403},
		{"trace packets", "GET", "/v1/trace?from=e-h1&to=e-h2", "", 403},
		{"read metrics", "GET", "/metrics", "", 403},
	} {
		if status, body := ask(x.method, x.path, x.body); status != x.status {
			t.Errorf("%s: %s %s: status %d, want %d: %s", x.attempt, x.method, x.path, status, x.status, body)
		} else {
			told(t, x.attempt, body)
		}
	}
	t.Run("reports of others' functions change nothing", func(t *testing.T) {
		if status, body := ask("POST", "/v1/status", `{"host":"h1","functions":{"f-h2":{"state":"failed","healthy":false,"message":"taken"}}}`); status != 204 {
			t.Errorf("%d %s", status, body)
		}
		if f := must(w.Functions().Get(ctx(t), "f-h2"))(t); f.Status.Message == "taken" || !f.Status.Healthy {
			t.Errorf("%+v", f.Status)
		}
	})
}

func TestAHostileHostCannotJoinAsAnother(t *testing.T) {
	w, _, good := hostileWorld(t)
	key := func() *pki.Identity { return must(pki.NewIdentity())(t) }
	used := w.token(t, api.TokenRequest{})
	must(w.join(t, used, "h3", key(), time.Now()))(t)
	_, err := w.join(t, used, "h4", key(), time.Now())
	refused(t, err, 403, "works once")
	_, err = w.join(t, w.token(t, api.TokenRequest{}), "h2", key(), time.Now())
	refused(t, err, 409, "h2 has joined already")
	_, err = w.join(t, w.token(t, api.TokenRequest{}), "m", key(), time.Now())
	refused(t, err, 409, "the manager's own")
	_, err = w.join(t, w.token(t, api.TokenRequest{Host: "h5"}), "h6", key(), time.Now())
	refused(t, err, 403, "is for host h5")
	if _, err := good.Beat(ctx(t), "h2", time.Now()); err != nil {
		t.Errorf("h2 is hurt: %v", err)
	}
}

// TestADeletedHostIsShutOut: its certificate is worth nothing any more, nor is its key of link discovery.
func TestADeletedHostIsShutOut(t *testing.T) {
	w := joinWorld(t, manager.Options{})
	c, id := w.member(t, "h1")
	tellOf(t, c, api.StatusReport{Host: "h1", HostState: &api.HostStatus{State: "ready", Cores: 1, Memory: 1 << 30}})
	before := must(c.AgentConfig(ctx(t), "h1"))(t).LLDPKey
	w.ahead.Store(int64(time.Minute)) // silent since
	must(w.Hosts().Delete(ctx(t), "h1"))(t)
	if status, body := do(t, w, id.Client(time.Now, "http/1.1"), "GET", "/v1/functions", ""); status != 401 || !strings.Contains(body, "no longer accepted") {
		t.Errorf("%d %s", status, body)
	}
	if key, err := w.m.Join.HostLLDPKey(ctx(t), "h1"); err == nil {
		t.Errorf("it has a key of link discovery: %x", key)
	}
	again := must(w.join(t, w.token(t, api.TokenRequest{}), "h1", must(pki.NewIdentity())(t), time.Now().Add(time.Minute)))(t)
	if after := must(w.dial(t, again.Client(time.Now)).AgentConfig(ctx(t), "h1"))(t).LLDPKey; string(after) == string(before) {
		t.Error("who joins under its name gets the key of the one that was deleted")
	}
}

// TestEachHostHasItsOwnDiscoveryKey, which is neither the router's nor another's.
func TestEachHostHasItsOwnDiscoveryKey(t *testing.T) {
	w := joinWorld(t, manager.Options{Host: "m"})
	keys := map[string]string{string(must(w.m.Keys.LLDPKey(ctx(t)))(t)): "the router"}
	for _, name := range []string{"h1", "h2"} {
		c, _ := w.member(t, name)
		k := string(must(c.AgentConfig(ctx(t), ""))(t).LLDPKey)
		if who, taken := keys[k]; taken || len(k) != 32 {
			t.Errorf("%s has the key of %s (%d octets)", name, who, len(k))
		}
		keys[k] = name
		if again := must(w.m.Join.HostLLDPKey(ctx(t), name))(t); string(again) != k {
			t.Errorf("%s: the router knows another key", name)
		}
	}
	if k := string(must(w.AgentConfig(ctx(t), ""))(t).LLDPKey); keys[k] != "" || len(k) != 32 {
		t.Errorf("the manager's own host has the key of %q", keys[k])
	}
}

func TestWhatAHostClaimsIsBounded(t *testing.T) {
	w := joinWorld(t, manager.Options{Host: "m"})
	state := func(cores int, memory int64) *api.HostStatus {
		return &api.HostStatus{State: "ready", Cores: cores, Memory: memory, Images: []string{"wire"}}
	}
	counts := func(host string, cores int, memory int64, claims bool) {
		t.Helper()
		s := must(w.Hosts().Get(ctx(t), host))(t).Status
		if s.Cores != cores || s.Memory != memory || (s.Claims != nil) != claims {
			t.Errorf("%s counts %d cores and %d octets (claims %+v), want %d and %d, claims more: %v", host, s.Cores, s.Memory, s.Claims, cores, memory, claims)
		}
	}
	events := func(host string) (n int) {
		for _, e := range must(w.Events().List(ctx(t), api.ListOptions{Kind: api.KindHost, Object: host}))(t).Items {
			if e.Reason == "HostClaimsMore" {
				n += max(e.Count, 1)
			}
		}
		return n
	}
	evil, _ := w.member(t, "evil")
	tellOf(t, evil, api.StatusReport{Host: "evil", HostState: state(100_000, 1<<50)})
	counts("evil", 64, 256<<30, true)
	if events("evil") != 1 {
		t.Errorf("%d events", events("evil"))
	}
	tellOf(t, evil, api.StatusReport{Host: "evil", HostState: state(100_000, 1<<50)})
	if events("evil") != 1 {
		t.Errorf("said again: %d events", events("evil"))
	}
	must(w.Hosts().Patch(ctx(t), "evil", map[string]any{"cpus": "2", "memory": "4G"}))(t)
	counts("evil", 2, 4<<30, true)
	tellOf(t, evil, api.StatusReport{Host: "evil", HostState: state(100_000, 1<<50)})
	counts("evil", 2, 4<<30, true)

	small, _ := w.member(t, "small")
	tellOf(t, small, api.StatusReport{Host: "small", HostState: state(4, 8<<30)})
	counts("small", 4, 8<<30, false)
	tellOf(t, small, api.StatusReport{Host: "small", HostState: state(4, 8<<30+64<<20)}) // another kernel keeps less
	counts("small", 4, 8<<30, false)
	tellOf(t, small, api.StatusReport{Host: "small", HostState: state(32, 8<<30)})
	counts("small", 4, 8<<30, true)
	must(w.Hosts().Patch(ctx(t), "small", map[string]any{"cpus": "32"}))(t)
	counts("small", 32, 8<<30, false)
	tellOf(t, small, api.StatusReport{Host: "small", HostState: &api.HostStatus{State: "ready", Cores: 99, Memory: 8 << 30, Accepted: &api.HostCapacity{Cores: 99, Memory: 1 << 50}}})
	counts("small", 32, 8<<30, true)

	tok := w.token(t, api.TokenRequest{Host: "named", CPUs: "8", Memory: "16G"})
	id := must(w.join(t, tok, "named", must(pki.NewIdentity())(t), time.Now()))(t)
	tellOf(t, w.dial(t, id.Client(time.Now)), api.StatusReport{Host: "named", HostState: state(100_000, 1<<50)})
	counts("named", 8, 16<<30, true)
	tellOf(t, w.Client, api.StatusReport{Host: "m", HostState: state(128, 1<<40)}) // the manager's own agent is root's
	counts("m", 128, 1<<40, false)

	must(w.Functions().Put(ctx(t), "f", api.FunctionSpec{Image: "wire", CPUs: "1"}))(t)
	if at := must(w.Functions().Get(ctx(t), "f"))(t).At(); at == "evil" {
		t.Errorf("placed at %s", at)
	}
	_, err := w.NewToken(ctx(t), api.TokenRequest{Host: "x", CPUs: "-3", Memory: "much"})
	refused(t, err, 422, "cpus", "memory")
	_, err = w.NewToken(ctx(t), api.TokenRequest{CPUs: "3"})
	refused(t, err, 422, "without a host")
	_, err = w.Hosts().Patch(ctx(t), "small", map[string]any{"cpus": "many"})
	refused(t, err, 422, "spec.cpus")
}

// Agents do not hear of what changes nothing for them: the details of functions elsewhere, and what others say of policies and chains.
func TestAgentsHearOnlyWhatIsNewToThem(t *testing.T) {
	w, _, h2 := hostileWorld(t)
	must(w.Apply(ctx(t), api.ApplyRequest{Document: api.Document{Chains: map[string]api.ChainSpec{"c": {Path: "f-h2"}},
		Policies: map[string]api.PolicySpec{"p": {From: "e-h2", Chain: "c"}}}}))(t)
	h3, _ := w.member(t, "h3")
	functions, own := h3.Functions().Watch(ctx(t), 0, api.ListOptions{}), h2.Functions().Watch(ctx(t), 0, api.ListOptions{})
	policies, all := h3.Policies().Watch(ctx(t), 0, api.ListOptions{}), w.Policies().Watch(ctx(t), 0, api.ListOptions{})
	for _, watch := range []<-chan api.Delta[api.Function]{functions, own} {
		if d := next(t, watch); len(d.Items) != 2 {
			t.Fatalf("%d functions", len(d.Items))
		}
	}
	for _, watch := range []<-chan api.Delta[api.Policy]{policies, all} {
		if d := next(t, watch); len(d.Items) != 1 {
			t.Fatalf("%d policies", len(d.Items))
		}
	}
	says := func(pid int, healthy bool) {
		t.Helper()
		tellOf(t, h2, api.StatusReport{Host: "h2", Functions: map[string]api.FunctionStatus{"f-h2": {ObservedGeneration: 1, State: api.FunctionStarted, Host: "h2", PID: pid, Healthy: healthy}}})
	}
	for pid := 1; pid <= 3; pid++ {
		says(pid, true)
		if d := next(t, own); d.Object.Status.PID != pid {
			t.Errorf("its own host hears %+v, want process %d", d.Object.Status, pid)
		}
	}
	says(4, false)
	if d := next(t, functions); d.Object.Name != "f-h2" || d.Object.Status.Healthy || d.Object.Status.PID != 0 {
		t.Errorf("another host hears %+v, want that it is not well", d.Object)
	}
	says(5, true)
	if d := next(t, functions); !d.Object.Status.Healthy {
		t.Errorf("another host hears %+v, want that it is well", d.Object)
	}

	tellOf(t, h2, api.StatusReport{Host: "h2", Policies: map[string]api.PolicyStatus{"p": {ObservedGeneration: 1, State: api.PolicyActive, Message: "said"}}})
	if d := next(t, all); d.Object.Status.Message != "said" {
		t.Errorf("people see %+v", d.Object.Status)
	}
	must(w.Policies().Patch(ctx(t), "p", map[string]any{"match": []string{"tcp"}}))(t)
	if d := next(t, policies); d.Object.Generation != 2 || d.Object.Status.Message != "" || len(d.Object.Spec.Match) != 1 {
		t.Errorf("another host hears %+v, want the new spec, and no status", d.Object)
	}
}

// BenchmarkWatchingAgents: what a change costs until 20 agents have seen it does not grow with the objects that there are.
func BenchmarkWatchingAgents(b *testing.B) {
	for _, objects := range []int{10, 1000} {
		b.Run(fmt.Sprintf("functions=%d", objects), func(b *testing.B) {
			w := joinWorld(b, manager.Options{})
			d := api.Document{Functions: map[string]api.FunctionSpec{}}
			for i := range objects {
				d.Functions[fmt.Sprintf("f%d", i)] = api.FunctionSpec{Image: "wire"}
			}
			must(w.Apply(ctx(b), api.ApplyRequest{Document: d}))(b)
			var watches []<-chan api.Delta[api.Function]
			for i := range 20 {
				c, _ := w.member(b, fmt.Sprintf("h%d", i))
				watch := c.Functions().Watch(ctx(b), 0, api.ListOptions{})
				if x := <-watch; x.Type != api.DeltaReset || len(x.Items) != objects {
					b.Fatalf("%v %d", x.Type, len(x.Items))
				}
				watches = append(watches, watch)
			}
			n := 0
			for b.Loop() {
				n++
				tellOf(b, w.Client, api.StatusReport{Functions: map[string]api.FunctionStatus{"f1": {State: api.FunctionStarted, PID: n, Healthy: n%2 == 0}}})
				for _, watch := range watches {
					if x := <-watch; x.Type != api.DeltaPut {
						b.Fatalf("%+v", x)
					}
				}
			}
		})
	}
}
