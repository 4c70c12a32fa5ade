package manager_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
	"weir.dev/weir/manager/ask"
)

// keeper is a host that has a function's state.
type keeper struct {
	*node
	asked  atomic.Int32
	answer func(ctx context.Context, function, uid string) (io.ReadCloser, int64, error)
}

func (k *keeper) State(ctx context.Context, function, uid string) (io.ReadCloser, int64, error) {
	k.asked.Add(1)
	return k.answer(ctx, function, uid)
}

func gives(state string, size int64) func(context.Context, string, string) (io.ReadCloser, int64, error) {
	return func(context.Context, string, string) (io.ReadCloser, int64, error) {
		return io.NopCloser(strings.NewReader(state)), size, nil
	}
}

// movedWorld has a function f that was up at h1, where k answers, and is placed at h2 now; h3 has nothing to do with it.
func movedWorld(t *testing.T, k *keeper) (w *world, clients map[string]*api.Client, ids map[string]*tls.Config, f api.Function) {
	t.Helper()
	w = joinWorld(t, manager.Options{Host: "m", Node: func(host string) ask.Node {
		if host == "h1" {
			return k
		}
		return nil
	}})
	clients, ids = map[string]*api.Client{}, map[string]*tls.Config{}
	for _, h := range []string{"h1", "h2", "h3"} {
		c, id := w.member(t, h)
		clients[h], ids[h] = c, id.Client(time.Now, "http/1.1")
		tellOf(t, c, api.StatusReport{Host: h, HostState: &api.HostStatus{State: "ready", Cores: 4, Memory: 8 << 30, Images: []string{"wire"}}})
	}
	must(w.Functions().Put(ctx(t), "f", api.FunctionSpec{Image: "wire", Host: "h1"}))(t)
	tellOf(t, clients["h1"], api.StatusReport{Host: "h1", Functions: map[string]api.FunctionStatus{"f": {ObservedGeneration: 1, State: api.FunctionStarted, Healthy: true, Host: "h1"}}})
	must(w.Functions().Patch(ctx(t), "f", map[string]any{"host": "h2"}))(t)
	return w, clients, ids, must(w.Functions().Get(ctx(t), "f"))(t)
}

// A function's state is for the agent of the host to which it has moved: not for another host, the former one included, and for no token. It comes from the host where the
// function was up last.
func TestOnlyTheNewHostGetsAFunctionsState(t *testing.T) {
	k := &keeper{}
	w, clients, ids, f := movedWorld(t, k)
	k.answer = func(_ context.Context, function, uid string) (io.ReadCloser, int64, error) {
		if function != "f" || uid != f.UID {
			t.Errorf("h1 is asked for %s %s, want f %s", function, uid, f.UID)
		}
		return gives("sessions", 8)(t.Context(), "", "")
	}
	if got := must(clients["h2"].FunctionState(ctx(t), "f"))(t); string(got) != "sessions" {
		t.Errorf("its new host gets %q", got)
	}
	for _, h := range []string{"h1", "h3"} {
		_, err := clients[h].FunctionState(ctx(t), "f")
		refused(t, err, 403, "for the agent of its host")
	}
	if status, _ := do(t, w, ids["h2"], "PUT", "/v1/agent/state/f", "x"); status != 403 {
		t.Errorf("a host puts a state: %d", status)
	}
	must(w.Functions().Put(ctx(t), "new", api.FunctionSpec{Image: "wire", Host: "h2"}))(t)
	_, err := clients["h2"].FunctionState(ctx(t), "new")
	refused(t, err, 404, "has come from no other host")
	_, err = clients["h2"].FunctionState(ctx(t), "none")
	refused(t, err, 404)
	if n := k.asked.Load(); n != 1 {
		t.Errorf("h1 was asked %d times", n)
	}
	bearer := start(t, manager.Options{})
	must(bearer.Functions().Put(ctx(t), "f", api.FunctionSpec{Image: "wire"}))(t)
	if status, _, _ := request(t, bearer, "GET", "/v1/agent/state/f", nil, ""); status != 403 {
		t.Errorf("the token of an admin: %d", status)
	}

	// It was never up at h2: what goes on to h3 still comes from h1. What comes back to h1 comes from nowhere.
	must(w.Functions().Patch(ctx(t), "f", map[string]any{"host": "h3"}))(t)
	if got := must(clients["h3"].FunctionState(ctx(t), "f"))(t); string(got) != "sessions" {
		t.Errorf("the third host gets %q", got)
	}
	must(w.Functions().Patch(ctx(t), "f", map[string]any{"host": "h1"}))(t)
	_, err = clients["h1"].FunctionState(ctx(t), "f")
	refused(t, err, 404, "has come from no other host")
}

// The report that a function is up where it has moved to ends the move.
func TestAFunctionThatIsUpHasNoFormerHost(t *testing.T) {
	k := &keeper{answer: gives("sessions", 8)}
	w, clients, _, f := movedWorld(t, k)
	if f.Placement.FormerHost != "h1" {
		t.Errorf("%+v", f.Placement)
	}
	starts := api.FunctionStatus{State: api.FunctionStarted, Host: "h2"}
	tellOf(t, clients["h2"], api.StatusReport{Host: "h2", Functions: map[string]api.FunctionStatus{"f": starts}})
	must(clients["h2"].FunctionState(ctx(t), "f"))(t)
	starts.Healthy = true
	tellOf(t, clients["h2"], api.StatusReport{Host: "h2", Functions: map[string]api.FunctionStatus{"f": starts}})
	if now := must(w.Functions().Get(ctx(t), "f"))(t); now.Placement.FormerHost != "" || now.Generation != f.Generation {
		t.Errorf("generation %d, was %d; %+v", now.Generation, f.Generation, now.Placement)
	}
	_, err := clients["h2"].FunctionState(ctx(t), "f")
	refused(t, err, 404, "is up already")
}

// Whatever the former host answers, the new one gets a whole state within the bound, or hears why it gets none.
func TestWhatAFormerHostHandsOverIsBounded(t *testing.T) {
	k := &keeper{}
	_, clients, _, _ := movedWorld(t, k)
	h2 := clients["h2"]
	for name, x := range map[string]struct {
		answer func(context.Context, string, string) (io.ReadCloser, int64, error)
		want   string
	}{
		"as much as there may be": {gives(strings.Repeat("s", api.MaxState), api.MaxState), ""},
		"none":                    {func(context.Context, string, string) (io.ReadCloser, int64, error) { return nil, 0, nil }, ""},
		"too much":                {gives("s", api.MaxState+1), "a state of 16777217 bytes: want at most 16777216"},
		"no length":               {gives("s", -1), "a state of -1 bytes"},
		"less than it says":       {gives("sess", 8), "unexpected EOF"},
		"a refusal": {func(context.Context, string, string) (io.ReadCloser, int64, error) {
			return nil, 0, api.Refuse(409, "it is gone")
		}, "it is gone"},
	} {
		t.Run(name, func(t *testing.T) {
			k.answer = x.answer
			got, err := h2.FunctionState(ctx(t), "f")
			if x.want != "" {
				if err == nil || !strings.Contains(err.Error(), x.want) {
					t.Errorf("%d bytes, %v: want %q", len(got), err, x.want)
				}
				return
			}
			if err != nil || name == "none" && got != nil || name != "none" && len(bytes.TrimLeft(got, "s")) > 0 {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		})
	}
	t.Run("more than it says", func(t *testing.T) {
		k.answer = gives("sessions and more", 8)
		if got, err := h2.FunctionState(ctx(t), "f"); err != nil || string(got) != "sessions" {
			t.Errorf("%q, %v", got, err)
		}
	})
	t.Run("one host asks for many at once", func(t *testing.T) {
		const most = 4
		begun, end := make(chan struct{}, most+1), make(chan struct{})
		k.answer = func(ctx context.Context, _, _ string) (io.ReadCloser, int64, error) {
			begun <- struct{}{}
			select {
			case <-end:
			case <-ctx.Done():
			}
			return nil, 0, ctx.Err()
		}
		var wg sync.WaitGroup
		for range most {
			wg.Go(func() {
				if _, err := h2.FunctionState(ctx(t), "f"); err != nil {
					t.Error(err)
				}
			})
		}
		for range most {
			<-begun
		}
		_, err := h2.FunctionState(ctx(t), "f")
		refused(t, err, 503, "4 to one host")
		close(end)
		wg.Wait()
	})
	t.Run("a host that hangs", func(t *testing.T) {
		k.answer = func(ctx context.Context, _, _ string) (io.ReadCloser, int64, error) {
			<-ctx.Done()
			return nil, 0, ctx.Err()
		}
		quick, cancel := context.WithTimeout(ctx(t), 100*time.Millisecond)
		defer cancel()
		if _, err := h2.FunctionState(quick, "f"); err == nil {
			t.Error("no error")
		}
	})
}
