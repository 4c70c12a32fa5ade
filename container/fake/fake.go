// Package fake is a container runtime in memory, for tests of what drives containers. It passes container/suite.
//
// Its "programs" are: wait (until SIGTERM), stubborn (until SIGKILL), exit CODE, print TEXT (a line of output, then as wait).
package fake

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"weir.dev/weir/container"
	"weir.dev/weir/portkind"
)

// Runtime is the containers of one instance; see New.
type Runtime struct {
	Kinds []portkind.Kind // what PortKinds says

	mu    sync.Mutex
	all   map[string]*fake
	pid   int
	fail  map[string]error
	calls []string
	taken []string
	waits int // Execs of "wait"
}

var _ container.Runtime = (*Runtime)(nil)

type fake struct {
	spec    container.Spec
	status  container.Status
	done    chan struct{}
	log     bytes.Buffer
	began   int           // where in log its own lines begin
	changed chan struct{} // closed when log grows
}

// New makes an empty runtime.
func New() *Runtime {
	return &Runtime{Kinds: []portkind.Kind{portkind.Veth}, all: map[string]*fake{}, fail: map[string]error{}, pid: 1000}
}

// PortKinds are Kinds.
func (r *Runtime) PortKinds() []portkind.Kind { return r.Kinds }

// Fail lets every call of a method ("Create", "Start" ...) return err, until err is nil.
func (r *Runtime) Fail(method string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail[method] = err
}

// Crash ends a running container as if its process had exited by itself.
func (r *Runtime) Crash(id string, code int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.all[id]; c != nil {
		c.exit(code)
	}
}

// Calls lists the calls that changed something so far, as "Create fw".
func (r *Runtime) Calls() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
}

// enter begins a call; the caller holds r.mu.
// Specs are those of its containers, in no order.
func (r *Runtime) Specs() (out []container.Spec) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.all {
		out = append(out, c.spec)
	}
	return out
}

func (r *Runtime) enter(ctx context.Context, method, id string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("container %s: %w", id, err)
	}
	return r.fail[method]
}

func (r *Runtime) did(method, id string) { r.calls = append(r.calls, method+" "+id) }

func (c *fake) alive() bool {
	return c.status.State == container.Created || c.status.State == container.Running
}

func (c *fake) exit(code int) {
	if !c.alive() {
		return
	}
	c.status.State, c.status.PID, c.status.ExitCode = container.Stopped, 0, code
	if code > 128 { // its programs end so by a signal only
		c.status.Signal = code - 128
	}
	close(c.done)
}

func (c *fake) print(text string) {
	c.log.WriteString(text + "\n")
	close(c.changed)
	c.changed = make(chan struct{})
}

func (r *Runtime) Create(ctx context.Context, s container.Spec) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.enter(ctx, "Create", s.ID); err != nil {
		return err
	}
	_, err := r.create(s)
	return err
}

func (r *Runtime) create(s container.Spec) (*fake, error) {
	if s.ID == "" || len(s.Args) == 0 {
		return nil, fmt.Errorf("container %q: want an id and a command", s.ID)
	}
	if c := r.all[s.ID]; c != nil && c.alive() {
		if !reflect.DeepEqual(c.spec, s) {
			return nil, fmt.Errorf("container %s: %w: it is %s with another spec; delete it first", s.ID, container.ErrState, c.status.State)
		}
		return c, nil
	}
	switch s.Args[0] {
	case "wait", "stubborn", "exit", "print":
	default:
		return nil, fmt.Errorf("container %s: command %q not found in the image", s.ID, s.Args[0])
	}
	r.pid++
	c := &fake{spec: s, done: make(chan struct{}), changed: make(chan struct{})}
	c.status = container.Status{ID: s.ID, State: container.Created, PID: r.pid, ExitCode: -1}
	r.all[s.ID] = c
	r.did("Create", s.ID)
	return c, nil
}

func (r *Runtime) start(c *fake) {
	if c.status.State != container.Created {
		return
	}
	c.status.State, c.status.Started = container.Running, time.Now()
	r.did("Start", c.spec.ID)
	switch c.spec.Args[0] {
	case "exit":
		code, _ := strconv.Atoi(c.spec.Args[1])
		c.exit(code)
	case "print":
		c.print(strings.Join(c.spec.Args[1:], " "))
	}
}

func (r *Runtime) Start(ctx context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.enter(ctx, "Start", id); err != nil {
		return err
	}
	c := r.all[id]
	if c == nil {
		return fmt.Errorf("container %s: %w", id, container.ErrNotFound)
	}
	if !c.alive() {
		var err error
		log := c.log.Bytes()
		if c, err = r.create(c.spec); err != nil {
			return err
		}
		c.log.Write(log)
		c.began = len(log)
	}
	r.start(c)
	return nil
}

func (r *Runtime) Run(ctx context.Context, s container.Spec) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.enter(ctx, "Run", s.ID); err != nil {
		return err
	}
	c, err := r.create(s)
	if err != nil {
		return err
	}
	r.start(c)
	return nil
}

func (r *Runtime) Stop(ctx context.Context, id string, grace time.Duration) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.enter(ctx, "Stop", id); err != nil {
		return err
	}
	if c := r.all[id]; c != nil && c.alive() {
		r.did("Stop", id)
		switch {
		case c.status.State == container.Created || c.spec.Args[0] == "stubborn" || grace <= 0:
			c.exit(128 + 9)
		default:
			c.exit(0)
		}
	}
	return nil
}

func (r *Runtime) Delete(ctx context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.enter(ctx, "Delete", id); err != nil {
		return err
	}
	if c := r.all[id]; c != nil {
		c.exit(128 + 9)
		delete(r.all, id)
		r.did("Delete", id)
	}
	return nil
}

func (r *Runtime) Status(ctx context.Context, id string) (container.Status, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.enter(ctx, "Status", id); err != nil {
		return container.Status{}, err
	}
	if c := r.all[id]; c != nil {
		return c.status, nil
	}
	return container.Status{}, fmt.Errorf("container %s: %w", id, container.ErrNotFound)
}

func (r *Runtime) List(ctx context.Context) ([]container.Status, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.enter(ctx, "List", ""); err != nil {
		return nil, err
	}
	out := make([]container.Status, 0, len(r.all))
	for _, c := range r.all {
		out = append(out, c.status)
	}
	slices.SortFunc(out, func(a, b container.Status) int { return strings.Compare(a.ID, b.ID) })
	return out, nil
}

func (r *Runtime) Wait(ctx context.Context, id string) (container.Status, error) {
	r.mu.Lock()
	c := r.all[id]
	r.mu.Unlock()
	if c == nil {
		return container.Status{}, fmt.Errorf("container %s: %w", id, container.ErrNotFound)
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		return container.Status{}, fmt.Errorf("wait for container %s: %w", id, ctx.Err())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return c.status, nil
}

// Taken lists what Exec's program "take" has taken, as "ID INPUT".
func (r *Runtime) Taken() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.taken)
}

// Waiting counts the processes of Exec's program "wait" that run.
func (r *Runtime) Waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waits
}

func (r *Runtime) count(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waits += n
}

// Exec understands "exit CODE", "print TEXT", "cat" (its input), and "take WORD" (takes its input, see Taken, unless WORD is in it: exit code 1).
func (r *Runtime) Exec(ctx context.Context, id string, x container.ExecSpec) (int, error) {
	r.mu.Lock()
	err := r.enter(ctx, "Exec", id)
	c := r.all[id]
	running := c != nil && c.status.State == container.Running
	r.mu.Unlock()
	switch {
	case err != nil:
		return -1, err
	case c == nil:
		return -1, fmt.Errorf("exec in container %s: %w", id, container.ErrNotFound)
	case !running:
		return -1, fmt.Errorf("exec in container %s: %w: want running", id, container.ErrState)
	case len(x.Args) == 0:
		return -1, fmt.Errorf("exec in container %s: no command", id)
	}
	out := x.Stdout
	if out == nil {
		out = io.Discard
	}
	switch x.Args[0] {
	case "exit":
		return strconv.Atoi(x.Args[1])
	case "print":
		_, err := fmt.Fprintln(out, strings.Join(x.Args[1:], " "))
		return 0, err
	case "wait":
		r.count(1)
		defer r.count(-1)
		select {
		case <-ctx.Done():
			return -1, fmt.Errorf("exec in container %s: %w", id, ctx.Err())
		case <-c.done:
			return 128 + 9, nil
		}
	case "take":
		var in []byte
		if x.Stdin != nil {
			if in, err = io.ReadAll(io.LimitReader(x.Stdin, 1<<20)); err != nil {
				return -1, err
			}
		}
		if strings.Contains(string(in), x.Args[1]) {
			_, err := fmt.Fprintf(out, "one line\nrefused: %s is not for me\n", x.Args[1])
			return 1, err
		}
		r.mu.Lock()
		r.taken = append(r.taken, id+" "+strings.TrimSpace(string(in)))
		r.mu.Unlock()
		return 0, nil
	case "cat":
		if x.Stdin == nil {
			return 0, nil
		}
		_, err := io.Copy(out, x.Stdin)
		return 0, err
	}
	return -1, fmt.Errorf("exec in container %s: command %q not found in the image", id, x.Args[0])
}

func (r *Runtime) Logs(ctx context.Context, id string, o container.LogOptions) (io.ReadCloser, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.all[id]
	if c == nil {
		return nil, fmt.Errorf("logs of container %s: %w", id, container.ErrNotFound)
	}
	whole := c.log.String()
	if o.Latest {
		whole = whole[c.began:]
	}
	lines := strings.SplitAfter(whole, "\n")
	lines = lines[:len(lines)-1]
	if o.Tail > 0 && len(lines) > o.Tail {
		lines = lines[len(lines)-o.Tail:]
	}
	text := strings.Join(lines, "")
	if !o.Follow {
		return io.NopCloser(strings.NewReader(text)), nil
	}
	ctx, cancel := context.WithCancel(ctx)
	return &follower{r: r, c: c, ctx: ctx, cancel: cancel, rest: text, at: c.log.Len()}, nil
}

type follower struct {
	r      *Runtime
	c      *fake
	ctx    context.Context
	cancel context.CancelFunc
	rest   string
	at     int
}

func (f *follower) Close() error { f.cancel(); return nil }

func (f *follower) Read(p []byte) (int, error) {
	for f.rest == "" {
		f.r.mu.Lock()
		changed := f.c.changed
		f.rest = f.c.log.String()[f.at:]
		f.at = f.c.log.Len()
		f.r.mu.Unlock()
		if f.rest != "" {
			break
		}
		select {
		case <-f.ctx.Done():
			return 0, io.EOF
		case <-changed:
		}
	}
	n := copy(p, f.rest)
	f.rest = f.rest[n:]
	return n, nil
}

func (r *Runtime) Destroy(ctx context.Context) error {
	list, err := r.List(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range list {
		errs = append(errs, r.Delete(ctx, s.ID))
	}
	return errors.Join(errs...)
}
