// Package remote lets a manager ask an agent elsewhere: counters, logs, processes in functions, admission. The agent opens the connection
// and keeps it; over it the manager speaks HTTP/2 as the client and the agent answers (a reverse connection), so that hosts need no open
// port. Both ends are here: Serve for the agent, Dial for the manager. Who may connect is decided before the connection comes here.
package remote

import (
	"context"
	"encoding/binary"
	"io"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/container"
)

// Node is what an agent answers; ask.Node is a part of it.
type Node interface {
	Counters(ctx context.Context) (api.Counters, error)
	Logs(ctx context.Context, function string, o container.LogOptions) (io.ReadCloser, error)
	Exec(ctx context.Context, function string, e container.ExecSpec) (int, error)
	Capture(ctx context.Context, kind api.Kind, name string, o api.CaptureOptions) (io.ReadCloser, error)
	// State is that of a function with a UID that moves to another host, and its length in bytes; nil: it has none. The caller closes it.
	State(ctx context.Context, function, uid string) (io.ReadCloser, int64, error)
	Flows(ctx context.Context, function string, o api.FlowOptions) (api.SettledFlows, error)
	ImageList(ctx context.Context) ([]api.Image, error)
	Metrics(ctx context.Context) ([]api.FunctionMetrics, error)
	// Admit tells what the host has against what is new or changed in a document.
	Admit(ctx context.Context, d, changed api.Document) []api.Problem
}

// Bounds of one connection.
const (
	maxStreams   = 250
	maxDocument  = 32 << 20 // bytes, of an admission
	maxAnswer    = 16 << 20 // bytes, of counters or images
	maxVerdict   = 1 << 20  // bytes, of problems
	pingAfter    = 2 * time.Second
	pingTimeout  = 3 * time.Second
	writeTimeout = 30 * time.Second
)

// admission is the body of POST /admit.
type admission struct {
	Document api.Document `json:"document"`
	Changed  api.Document `json:"changed"`
}

// Exec joins a process with a framed connection, at the side where the process is or of who asks it. When the caller goes, cancel is
// called, which has to end ctx and with it the process.
func Exec(ctx context.Context, cancel context.CancelFunc, run func(context.Context, container.ExecSpec) (int, error), spec container.ExecSpec, s *api.ExecStream) {
	in, stdin := io.Pipe()
	defer in.Close()
	resize := make(chan [2]uint16, 1)
	spec.Stdin, spec.Resize = in, resize
	spec.Stdout, spec.Stderr = s.Writer(api.ExecStdout), s.Writer(api.ExecStderr)
	go func() {
		defer stdin.Close()
		for {
			t, p, err := s.Receive()
			switch {
			case err != nil:
				cancel()
				return
			case t == api.ExecStdin:
				_, _ = stdin.Write(p) // fails once the process has ended
			case t == api.ExecStdinClose:
				stdin.Close()
			case t == api.ExecResize && len(p) == 4:
				select {
				case <-resize: // only the last size counts
				default:
				}
				resize <- [2]uint16{binary.BigEndian.Uint16(p), binary.BigEndian.Uint16(p[2:])}
			}
		}
	}()
	code, err := run(ctx, spec)
	if err != nil {
		_ = s.Send(api.ExecError, []byte(err.Error()))
		return
	}
	_ = s.Send(api.ExecExit, binary.BigEndian.AppendUint32(nil, uint32(int32(code))))
}
