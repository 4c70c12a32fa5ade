package manager_test

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
	"weir.dev/weir/store/mem"
)

// stopped is a clock that only the test moves.
type stopped struct {
	base  time.Time
	ahead atomic.Int64
}

func (s *stopped) now() time.Time     { return s.base.Add(time.Duration(s.ahead.Load())) }
func (s *stopped) at(d time.Duration) { s.ahead.Store(int64(d)) }
func stoppedNow() *stopped            { return &stopped{base: time.Now()} }

// states of all hosts.
func (w *world) states(t testing.TB) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, h := range must(w.Hosts().List(ctx(t), api.ListOptions{}))(t).Items {
		out[h.Name] = string(h.Status.State)
	}
	return out
}

// lived is a store that a manager has left in which h1, h2 and h3 had joined and beat at it. h9 is another manager's.
func lived(t testing.TB, id string) *mem.Store {
	t.Helper()
	s := mem.New()
	w := joinWorld(t, manager.Options{Store: s, ID: id})
	for _, h := range []string{"h1", "h2", "h3", "h9"} {
		c, _ := w.member(t, h)
		report := api.StatusReport{Host: h, HostState: &api.HostStatus{State: "ready", Cores: 4, Memory: 8 << 30, Images: []string{"wire"}}}
		if err := c.Report(ctx(t), report); err != nil {
			t.Fatal(err)
		}
		if h != "h9" {
			must(c.Beat(ctx(t), h, time.Now()))(t)
		}
	}
	must(w.Functions().Put(ctx(t), "f", api.FunctionSpec{Image: "wire"}))(t)
	w.stop()
	return s
}

// A host that dies while the manager is away is lost soon after the manager is back, and its functions move; not one that another manager
// hears.
func TestHostsThatDoNotComeBackAfterARestartAreLost(t *testing.T) {
	s := lived(t, "m1")
	clock := stoppedNow()
	w := joinWorld(t, manager.Options{Store: s, ID: "m1", Now: clock.now})
	lead(t, w.m, nil)
	until(t, "it leads", w.m.Leads)
	f := must(w.Functions().Get(ctx(t), "f"))(t)
	dead, alive := f.At(), "h1"
	if dead == alive {
		alive = "h2"
	}
	for _, h := range []string{"h1", "h2", "h3"} {
		if s := w.states(t)[h]; s != "starting" {
			t.Errorf("before it has come back, %s is %s", h, s)
		}
	}
	const late = 4 * time.Second // the others come back, and are waited for
	for _, at := range []time.Duration{late, late + api.BeatLost - time.Second/2} {
		clock.at(at)
		for _, h := range []string{alive, "h3"} {
			must(w.Beat(ctx(t), h, clock.now()))(t)
		}
		if s := w.states(t)[dead]; s != "starting" {
			t.Errorf("while others are coming back, it is %s", s)
		}
	}
	clock.at(late + api.BeatLost + time.Second/2)
	until(t, "its function runs elsewhere", func() bool {
		at := must(w.Functions().Get(ctx(t), "f"))(t).At()
		return at != dead && at != ""
	})
	now := w.states(t)
	if now[dead] != "lost" || now[alive] == "lost" || now["h3"] == "lost" {
		t.Errorf("%s has not come back: %v", dead, now)
	}
	if now["h9"] != "starting" {
		t.Errorf("a host that never beat here is %s", now["h9"])
	}
}

func TestAnotherManagersHostsAreNotMissed(t *testing.T) {
	s := lived(t, "m1")
	clock := stoppedNow()
	w := joinWorld(t, manager.Options{Store: s, ID: "m2", Now: clock.now})
	lead(t, w.m, nil)
	until(t, "it leads", w.m.Leads)
	clock.at(29 * time.Second)
	for h, s := range w.states(t) {
		if s != "starting" {
			t.Errorf("%s is %s", h, s)
		}
	}
	clock.at(31 * time.Second)
	until(t, "nobody has reported", func() bool {
		for _, s := range w.states(t) {
			if s != "lost" {
				return false
			}
		}
		return true
	})
}

// What is told of a host has the time of its last beat, not of its last report; that is no news: no revision, and a client's copy stays good.
func TestTheLastBeatIsTold(t *testing.T) {
	clock := stoppedNow()
	w := joinWorld(t, manager.Options{Now: clock.now})
	c, _ := w.member(t, "h1")
	report := api.StatusReport{Host: "h1", HostState: &api.HostStatus{State: "ready", Heartbeat: clock.now(), Cores: 4, Memory: 8 << 30}}
	if err := c.Report(ctx(t), report); err != nil {
		t.Fatal(err)
	}
	before := must(w.Hosts().Get(ctx(t), "h1"))(t)
	clock.at(9 * time.Second)
	must(c.Beat(ctx(t), "h1", clock.now()))(t)
	clock.at(9*time.Second + api.BeatLost/2)
	want := clock.base.Add(9 * time.Second)
	after := must(w.Hosts().Get(ctx(t), "h1"))(t)
	if !after.Status.Heartbeat.Equal(want) || after.Revision != before.Revision || after.Status.State != "ready" {
		t.Errorf("heartbeat %v of revision %d, %s: want %v of revision %d", after.Status.Heartbeat, after.Revision, after.Status.State, want, before.Revision)
	}
	if all := must(w.Hosts().List(ctx(t), api.ListOptions{}))(t).Items; len(all) != 1 || !all[0].Status.Heartbeat.Equal(want) {
		t.Errorf("listed: %+v", all)
	}
	plain := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("unix", w.socket)
	}}}
	req := must(http.NewRequestWithContext(ctx(t), "GET", "http://weir/v1/hosts/h1", nil))(t)
	req.Header.Set("If-None-Match", api.ETag(before.Revision))
	resp := must(plain.Do(req))(t)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusNotModified {
		t.Errorf("a client's copy of the revision: %s, want 304", resp.Status)
	}
}
