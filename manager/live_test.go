package manager_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
	"weir.dev/weir/container"
	"weir.dev/weir/manager"
	"weir.dev/weir/manager/ask"
)

// withNode is a manager whose only host is a node, with the demo applied. Both transports are asked.
func withNode(t *testing.T) (*bench, map[string]*api.Client) {
	t.Helper()
	b := start(t, manager.Options{Node: func(string) ask.Node { return &node{} }})
	must(b.Apply(ctx(t), api.ApplyRequest{Document: demo()}))(t)
	tcp := must(api.Dial(api.Options{URL: b.url, Token: b.token}))(t)
	t.Cleanup(tcp.Close)
	return b, map[string]*api.Client{"unix": b.Client, "tcp": tcp}
}

func TestLogs(t *testing.T) {
	_, clients := withNode(t)
	for name, c := range clients {
		t.Run(name, func(t *testing.T) {
			for tail, want := range map[int]string{0: "one\ntwo\nthree\n", 2: "two\nthree\n"} {
				logs := must(c.Logs(ctx(t), "fw", api.LogOptions{Tail: tail}))(t)
				if got := string(must(io.ReadAll(logs))(t)); got != want {
					t.Errorf("tail %d: %q, want %q", tail, got, want)
				}
				logs.Close()
			}
			if _, err := c.Logs(ctx(t), "w1", api.LogOptions{}); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "created yet") {
				t.Errorf("a function without a container: %v", err)
			}
			if _, err := c.Logs(ctx(t), "none", api.LogOptions{}); !errors.Is(err, api.ErrNotFound) {
				t.Errorf("no such function: %v", err)
			}
		})
	}
}

func TestExec(t *testing.T) {
	_, clients := withNode(t)
	for name, c := range clients {
		t.Run(name+": streams and exit code", func(t *testing.T) {
			in := bytes.Repeat([]byte("0123456789abcdef"), 20_000)
			var out, errs bytes.Buffer
			code, err := c.Exec(ctx(t), "fw", api.ExecOptions{Args: []string{"cat", "a b", "ü&="}, Env: []string{"A=1"}, Stdin: bytes.NewReader(in), Stdout: &out, Stderr: &errs})
			if err != nil || code != 7 {
				t.Errorf("code %d, %v", code, err)
			}
			if !bytes.Equal(in, out.Bytes()) {
				t.Errorf("%d bytes came back of %d", out.Len(), len(in))
			}
			if d := cmp.Diff("a b+ü&= env A=1 tty false", errs.String()); d != "" {
				t.Error(d)
			}
		})
		t.Run(name+": the terminal's size", func(t *testing.T) {
			r, w := io.Pipe()
			shown, stdout := io.Pipe()
			resize := make(chan [2]uint16)
			done := make(chan error, 1)
			go func() {
				_, err := c.Exec(ctx(t), "fw", api.ExecOptions{Args: []string{"size"}, TTY: true, Stdin: r, Stdout: stdout, Resize: resize})
				stdout.Close()
				done <- err
			}()
			for size, want := range map[[2]uint16]string{{80, 24}: "80x24 ", {132, 50}: "132x50 "} {
				resize <- size
				if _, err := io.WriteString(w, "\n"); err != nil {
					t.Fatal(err)
				}
				got := make([]byte, len(want))
				if _, err := io.ReadFull(shown, got); err != nil || string(got) != want {
					t.Errorf("%q, %v, want %q", got, err, want)
				}
			}
			w.Close()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		t.Run(name+": a program that is not there", func(t *testing.T) {
			if _, err := c.Exec(ctx(t), "fw", api.ExecOptions{Args: []string{"nope"}}); err == nil || !strings.Contains(err.Error(), "no such program: nope") {
				t.Errorf("%v", err)
			}
		})
		t.Run(name+": no such function", func(t *testing.T) {
			if _, err := c.Exec(ctx(t), "none", api.ExecOptions{Args: []string{"cat"}}); !errors.Is(err, api.ErrNotFound) {
				t.Errorf("%v", err)
			}
		})
		t.Run(name+": the client goes", func(t *testing.T) {
			short, cancel := context.WithTimeout(ctx(t), 100*time.Millisecond)
			defer cancel()
			if _, err := c.Exec(short, "fw", api.ExecOptions{Args: []string{"wait"}}); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestCountersAndPath(t *testing.T) {
	b, _ := withNode(t)
	if _, err := b.Counters(ctx(t), "h1"); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("a host that never reported: %v", err)
	}
	report(t, b, api.StatusReport{Host: "h1", HostState: &api.HostStatus{State: "ready"},
		Policies: map[string]api.PolicyStatus{"guests": {State: "active", RenderedPath: []string{"endpoint/alice", "function/fw/in", "function/fw/out"}}}})
	if c := must(b.Counters(ctx(t), "h1"))(t); c.Version != 3 || len(c.Ports) != 2 {
		t.Errorf("%+v", c)
	}
	want := api.PolicyPath{Policy: "guests", State: "active", Forward: []api.Hop{
		{Port: "endpoint/alice", Host: "h1", Link: "wr1", Live: true, Rx: api.Counter{Packets: 7, Bytes: 700}},
		{Port: "function/fw/in", Host: "h1", Link: "wr2", State: "up", Live: true, Tx: api.Counter{Packets: 6, Bytes: 600}},
		{Port: "function/fw/out"},
	}}
	if d := cmp.Diff(want, must(b.Path(ctx(t), "guests"))(t)); d != "" {
		t.Error(d)
	}
}

// A function's flows are as its host tells them, but for whose they are and what no function can have settled.
func TestFlowsOfAFunction(t *testing.T) {
	b, clients := withNode(t)
	for name, c := range clients {
		got := must(c.SettledFlows(ctx(t), "fw", api.FlowOptions{Limit: 7}))(t)
		want := api.SettledFlows{Function: "fw", Host: got.Host, Total: 9, Flows: []api.SettledFlow{{Verdict: api.FlowPass, At: "in", Protocol: "tcp", Source: "10.9.0.1", SourcePort: 4000,
			Destination: "10.9.0.2", DestPort: 80, Missed: api.Counter{Packets: 7}}}}
		if d := cmp.Diff(want, got); d != "" || got.Host == "another" {
			t.Errorf("%s: host %q: %s", name, got.Host, d)
		}
	}
	if got := must(b.SettledFlows(ctx(t), "fw", api.FlowOptions{}))(t); got.Flows[0].Missed.Packets != api.DefaultFlows {
		t.Errorf("%+v", got)
	}
	if _, err := b.SettledFlows(ctx(t), "w1", api.FlowOptions{}); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "created yet") {
		t.Errorf("a function without a container: %v", err)
	}
	if _, err := b.SettledFlows(ctx(t), "none", api.FlowOptions{}); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("no such function: %v", err)
	}
	if _, err := b.SettledFlows(ctx(t), "fw", api.FlowOptions{Limit: api.MaxFlows + 1}); !errors.Is(err, api.ErrBadRequest) || !strings.Contains(err.Error(), "want 1 to 1000") {
		t.Errorf("too many: %v", err)
	}
}

func TestAHostThatCannotBeAsked(t *testing.T) {
	b := start(t, manager.Options{})
	must(b.Apply(ctx(t), api.ApplyRequest{Document: demo()}))(t)
	if _, err := b.Logs(ctx(t), "fw", api.LogOptions{}); !errors.Is(err, api.ErrBusy) || !strings.Contains(err.Error(), "agent") {
		t.Errorf("%v", err)
	}
}

// silent has logs without a line.
type silent struct{ *node }

func (silent) Logs(ctx context.Context, _ string, _ container.LogOptions) (io.ReadCloser, error) {
	r, w := io.Pipe()
	context.AfterFunc(ctx, func() { w.Close() })
	return r, nil
}

// Who follows a log is answered before its first line.
func TestAFollowedLogBeginsAtOnce(t *testing.T) {
	b := start(t, manager.Options{Node: func(string) ask.Node { return silent{&node{}} }})
	must(b.Apply(ctx(t), api.ApplyRequest{Document: demo()}))(t)
	c, cancel := context.WithTimeout(ctx(t), 5*time.Second)
	defer cancel()
	logs := must(b.Logs(c, "fw", api.LogOptions{Follow: true}))(t)
	cancel()
	logs.Close()
}

// endless is a host whose captures do not end by themselves.
type endless struct {
	node
	within chan time.Duration
}

func (e *endless) Capture(ctx context.Context, _ api.Kind, _ string, _ api.CaptureOptions) (io.ReadCloser, error) {
	until, _ := ctx.Deadline()
	e.within <- time.Until(until)
	return io.NopCloser(zeros{}), nil
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// The manager keeps to a capture's bounds where its host does not.
func TestAHostCannotCaptureForEver(t *testing.T) {
	host := &endless{within: make(chan time.Duration, 1)}
	b := start(t, manager.Options{Node: func(string) ask.Node { return host }})
	must(b.Apply(ctx(t), api.ApplyRequest{Document: demo()}))(t)
	frames := must(b.Capture(ctx(t), api.KindFunction, "fw", api.CaptureOptions{Bytes: 10_000, Duration: time.Minute}))(t)
	defer frames.Close()
	if within := <-host.within; within <= 0 || within > 2*time.Minute {
		t.Errorf("a capture of a minute may take %s", within)
	}
	if n := must(io.Copy(io.Discard, frames))(t); n < 10_000 || n > 2_000_000 {
		t.Errorf("a capture of 10,000 bytes has %d", n)
	}
}
