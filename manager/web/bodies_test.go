package web_test

import (
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
	"weir.dev/weir/manager/strict/stricttest"
	"weir.dev/weir/manager/web"
	"weir.dev/weir/store/mem"
)

func testManager(t *testing.T) *manager.Manager {
	t.Helper()
	m, err := manager.New(manager.Options{Store: mem.New()})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// asAgent sends a request as the agent of a host.
func asAgent(m *manager.Manager, host, method, path, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r = r.WithContext(web.WithAgent(r.Context(), web.Agent{Host: host}))
	w := httptest.NewRecorder()
	m.Mux().ServeHTTP(w, r)
	return w
}

// Many large bodies at once, of hosts that mean harm, take a bounded amount of memory in all.
func TestManyLargeBodiesTakeBoundedMemory(t *testing.T) {
	m := testManager(t)
	bodies := []string{}
	for _, text := range stricttest.Hostile(4 << 20) {
		bodies = append(bodies, text)
	}
	runtime.GC()
	var before, now runtime.MemStats
	runtime.ReadMemStats(&before)
	var most atomic.Uint64
	ended := make(chan struct{})
	var sampler, wg sync.WaitGroup
	sampler.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
				runtime.ReadMemStats(&now)
				most.Store(max(most.Load(), now.HeapAlloc))
			}
		}
	})
	var next atomic.Int64
	for range 12 {
		wg.Go(func() {
			for n := next.Add(1); int(n) <= len(bodies); n = next.Add(1) {
				if code := asAgent(m, "h", "POST", "/v1/status", bodies[n-1]).Code; code != 400 && code != 403 && code != 413 && code != 503 {
					t.Errorf("status %d", code)
				}
			}
		})
	}
	wg.Wait()
	close(ended)
	sampler.Wait()
	took := int64(most.Load()) - int64(before.HeapAlloc)
	t.Logf("%d bodies of 4 MiB, at most %d MiB", len(bodies), took>>20)
	if took > 256<<20 {
		t.Errorf("they took %d MiB", took>>20)
	}
}

const maxJoinBody = 16 << 10 // of package join

func TestBodiesAreBoundedByPath(t *testing.T) {
	m := testManager(t)
	long := func(n int) string { return `{"host":"` + strings.Repeat("x", n) + `"}` }
	for _, x := range []struct {
		method, path string
		size, status int
	}{
		{"POST", "/v1/status", web.MaxReport + 1, http.StatusRequestEntityTooLarge},
		{"POST", "/v1/apply", web.MaxBody + 1, http.StatusRequestEntityTooLarge},
		{"POST", "/v1/fabric", web.MaxBody + 1, http.StatusRequestEntityTooLarge},
		{"POST", "/v1/tokens", web.DefaultBody + 1, http.StatusRequestEntityTooLarge},
		{"PUT", "/v1/functions/f", web.DefaultBody + 1, http.StatusRequestEntityTooLarge},
		{"POST", "/v1/join", maxJoinBody + 1, http.StatusRequestEntityTooLarge},
		{"POST", "/v1/apply", web.DefaultBody + 1, http.StatusBadRequest}, // for what is in it
	} {
		r := httptest.NewRequest(x.method, x.path, strings.NewReader(long(x.size)))
		r = r.WithContext(web.WithCaller(r.Context(), web.Caller{Who: "test", Role: api.RoleAdmin}))
		w := httptest.NewRecorder()
		m.Handler().ServeHTTP(w, r)
		if w.Code != x.status {
			t.Errorf("%s %s with %d bytes: %d %.200s, want %d", x.method, x.path, x.size, w.Code, w.Body, x.status)
		}
	}
}
