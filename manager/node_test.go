package manager_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"weir.dev/weir/api"
	"weir.dev/weir/container"
)

// node is a host without containers.
type node struct{}

func (*node) Counters(context.Context) (api.Counters, error) {
	return api.Counters{Host: "h1", Version: 3, Ports: []api.PortCounters{
		{Port: 1, Name: "endpoint/alice", Link: "wr1", Rx: api.Counter{Packets: 7, Bytes: 700}},
		{Port: 2, Name: "function/fw/in", Link: "wr2", Tx: api.Counter{Packets: 6, Bytes: 600}, State: "up"},
	}}, nil
}

// Metrics are of fw, and of a function that is not here.
func (*node) Metrics(context.Context) ([]api.FunctionMetrics, error) {
	denied := []api.Metric{
		{Name: "denied_packets_total", Help: "Packets that were denied.", Kind: api.MetricCounter, Labels: map[string]string{"rule": "a\"b"}, Value: 7},
		{Name: "sessions", Help: "Sessions.", Kind: api.MetricGauge, Value: 2.5},
	}
	return []api.FunctionMetrics{{Function: "fw", Metrics: denied}, {Function: "elsewhere", Metrics: denied}}, nil
}

// Flows are two, one of which no function can have settled.
func (*node) Flows(_ context.Context, function string, o api.FlowOptions) (api.SettledFlows, error) {
	if function != "fw" {
		return api.SettledFlows{}, fmt.Errorf("function %s: %w", function, container.ErrNotFound)
	}
	flow := api.SettledFlow{Verdict: api.FlowPass, At: "in", Protocol: "tcp", Source: "10.9.0.1", SourcePort: 4000, Destination: "10.9.0.2", DestPort: 80, Missed: api.Counter{Packets: uint64(o.Limit)}}
	other := flow
	other.Source = "\x1b[2J"
	return api.SettledFlows{Function: "another", Host: "another", Total: 9, Flows: []api.SettledFlow{flow, other}}, nil
}

func (*node) ImageList(context.Context) ([]api.Image, error) {
	return []api.Image{{Name: "wire:1", Digest: "sha256:1", Description: "hands on", ConfigSchema: json.RawMessage(`{"type":"object"}`)}}, nil
}

// Logs has three lines; followed, it says one more when ctx ends.
func (*node) Logs(ctx context.Context, function string, o container.LogOptions) (io.ReadCloser, error) {
	if function != "fw" {
		return nil, fmt.Errorf("function %s: %w", function, container.ErrNotFound)
	}
	lines := []string{"one\n", "two\n", "three\n"}
	if o.Tail > 0 {
		lines = lines[len(lines)-min(o.Tail, len(lines)):]
	}
	r, w := io.Pipe()
	go func() {
		for _, l := range lines {
			if _, err := io.WriteString(w, l); err != nil {
				return
			}
		}
		if o.Follow {
			<-ctx.Done()
		}
		w.Close()
	}()
	return r, nil
}

func (*node) State(context.Context, string, string) (io.ReadCloser, int64, error) {
	return nil, 0, nil
}

func (*node) Capture(context.Context, api.Kind, string, api.CaptureOptions) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader("frames")), nil
}

// Exec knows cat, size (tells each size of the terminal until its input ends), wait and fail.
func (*node) Exec(ctx context.Context, function string, e container.ExecSpec) (int, error) {
	switch e.Args[0] {
	case "cat":
		_, err := io.Copy(e.Stdout, e.Stdin)
		fmt.Fprintf(e.Stderr, "%s env %s tty %v", strings.Join(e.Args[1:], "+"), strings.Join(e.Env, "+"), e.TTY)
		return 7, err
	case "size":
		in := bufio.NewScanner(e.Stdin)
		for in.Scan() {
			size := <-e.Resize
			fmt.Fprintf(e.Stdout, "%dx%d ", size[0], size[1])
		}
		return 0, nil
	case "wait":
		<-ctx.Done()
		return -1, ctx.Err()
	}
	return -1, errors.New("no such program: " + e.Args[0])
}
