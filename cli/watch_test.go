package cli_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/cli"
	"weir.dev/weir/cli/command"
	"weir.dev/weir/store"
	"weir.dev/weir/store/mem"
)

// output is what a command that runs has written so far.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// running is a command that goes on.
type running struct {
	t         *testing.T
	out, errs output
	code      chan int
}

func run(t *testing.T, socket string, args ...string) *running {
	r := &running{t: t, code: make(chan int, 1)}
	go func() {
		r.code <- cli.Main(cli.Options{Version: "test", Stdout: &r.out, Stderr: &r.errs}, append(args, "--socket", socket, "-o", "json"))
	}()
	return r
}

// says waits for a text.
func (r *running) says(o *output, n int, text string) {
	r.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(20 * time.Second)
	for strings.Count(o.String(), text) < n {
		select {
		case code := <-r.code:
			r.t.Fatalf("ended with %d before it said %q; stdout %s stderr %s", code, text, r.out.String(), r.errs.String())
		case <-late:
			r.t.Fatalf("%q was not said; stdout %s stderr %s", text, r.out.String(), r.errs.String())
		case <-tick.C:
		}
	}
}

// A watch waits a moment for a daemon that is gone, says so, and goes on where it was: nothing is lost, nothing comes twice, also where the
// daemon does not know any more what has changed meanwhile. For one that stays away it does not wait for ever.
func TestAWatchOutlastsARestartAndNoMore(t *testing.T) {
	dir, err := os.MkdirTemp("", "weir-cli-") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket, s := dir+"/api.sock", mem.New()
	c, err := api.Dial(api.Options{Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	up := func() (stop func()) {
		t.Helper()
		_, stop, err := serve(dir, s)
		must(err)
		return stop
	}
	event := func(reason string) {
		t.Helper()
		must(c.Report(t.Context(), api.StatusReport{Host: "local", Events: []api.Event{{Time: time.Now(), Severity: api.Info, Reason: reason, Message: "x"}}}))
	}
	function := func(name string) {
		t.Helper()
		_, err := c.Functions().Put(t.Context(), name, api.FunctionSpec{Image: "wire"})
		must(err)
	}

	stop := up()
	event("Old")
	event("First")
	function("a")
	function("b")
	events, functions := run(t, socket, "events", "-f", "--limit", "1"), run(t, socket, "get", "functions", "-w")
	both := []*running{events, functions}
	functions.says(&functions.out, 2, `"healthy":true`)
	events.says(&events.out, 1, `"First"`)
	event("Second")
	events.says(&events.out, 1, `"Second"`)

	stop()
	for _, r := range both {
		r.says(&r.errs, 1, "is weir up? start it with `weir up`; waiting for it")
	}
	stop = up()
	event("Third")
	function("c")
	events.says(&events.out, 1, `"Third"`)
	functions.says(&functions.out, 1, `"name":"c"`) // it is back for sure

	stop() // and what happens now is history when it comes back
	for _, r := range both {
		r.says(&r.errs, 2, "waiting for it")
	}
	put := store.Put(api.KindFunction, &api.Function{Meta: api.Meta{Name: "d", UID: "d", Generation: 1}, Spec: api.FunctionSpec{Image: "wire"}})
	_, err = s.Txn(t.Context(), nil, []store.Op{put, store.Delete(api.KindFunction, "a")})
	must(err)
	revision, err := s.Txn(t.Context(), nil, []store.Op{{Key: "meta/nothing", Value: []byte("{}")}})
	must(err)
	must(s.Compact(t.Context(), revision))
	stop = up()
	event("Fourth")
	events.says(&events.out, 1, `"Fourth"`)
	functions.says(&functions.out, 1, `"type":"delete"`)
	functions.says(&functions.out, 1, `"name":"d"`)

	stop()
	for _, r := range both {
		select {
		case code := <-r.code:
			if said := r.errs.String(); code != command.ExitUnreachable || strings.Count(said, "waiting for it") != 3 || strings.Count(said, "it is back") != 2 || !strings.Contains(said, "(waited 5s for it)") {
				t.Errorf("ended with %d, want %d: %s", code, command.ExitUnreachable, said)
			}
		case <-time.After(30 * time.Second):
			t.Errorf("goes on for a daemon that is gone: %s", r.errs.String())
		}
	}
	once(t, events, 1, "First", "Second", "Third", "Fourth")
	once(t, events, 0, "Old") // it was beyond the limit
	shown := map[string]int{}
	var gone []string
	for line := range strings.Lines(functions.out.String()) {
		var d struct {
			Type   api.DeltaType
			Object api.Function
		}
		must(json.Unmarshal([]byte(line), &d))
		if d.Type == api.DeltaDelete {
			gone = append(gone, d.Object.Name)
			continue
		}
		key := fmt.Sprint(d.Object.Name, " at ", d.Object.Revision)
		if shown[key]++; shown[key] > 1 {
			t.Errorf("%s is shown again", key)
		}
	}
	if fmt.Sprint(gone) != "[a]" {
		t.Errorf("gone are %v, want a", gone)
	}
}

func once(t *testing.T, r *running, n int, reasons ...string) {
	t.Helper()
	for _, reason := range reasons {
		if got := strings.Count(r.out.String(), `"reason":"`+reason+`"`); got != n {
			t.Errorf("event %s is shown %d times, want %d:\n%s", reason, got, n, r.out.String())
		}
	}
}
