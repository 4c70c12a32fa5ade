package ask

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/container"
	"weir.dev/weir/manager/intent"
	"weir.dev/weir/manager/lead"
	"weir.dev/weir/manager/members"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/remote"
	"weir.dev/weir/manager/strict"
	"weir.dev/weir/manager/web"
	"weir.dev/weir/store"
)

// Options are what an Asker needs.
type Options struct {
	Store  store.Store
	Log    *slog.Logger
	Hosts  *members.Hosts
	Intent *intent.Editor
	Lead   *lead.Leader
	Node   func(host string) Node      // nil: not reachable from here
	Fabric Fabric                      // nil: there are no switches here
	Own    func() ([]api.Image, error) // images of the manager itself; nil: it has none
	Trace  func(d api.Document, q api.TraceQuery, macs map[string]string, down map[string]bool) (api.Trace, error)
	// TrafficEvery is how often RememberTraffic reads counters; default 20 s.
	TrafficEvery time.Duration
}

// Asker asks hosts and the router what only they know now.
type Asker struct {
	Options
	streams  web.Slots // logs and execs
	captures web.Slots
	asks     web.Slots // of all hosts for their images
	meters   web.Slots // watches of rates
	sampler  sampler
	hour     hour
	states   handing
	nodes    sync.Map // host -> *remote.Client: of the hosts that keep a connection open to this manager
}

// New makes an Asker.
func New(o Options) *Asker {
	a := &Asker{Options: o, streams: make(web.Slots, maxStreams), captures: make(web.Slots, maxCaptures), asks: make(web.Slots, maxImageAsks), meters: make(web.Slots, maxStreams)}
	a.sampler.read, a.sampler.join = a.readAll, a.joinFunctions
	a.hour.every = cmp.Or(o.TrafficEvery, trafficEvery)
	return a
}

// maxStreams bounds logs and execs, and as many requests for rates.
const maxStreams = 200

// maxCaptures bounds captures, whose volume is that of traffic.
const maxCaptures = 16

// Routes are the paths of what is asked of hosts and switches.
func (a *Asker) Routes() []web.Route {
	return []web.Route{
		{Method: "GET", Path: "/v1/functions/{name}/logs", ID: "logs", Needs: api.RoleOperator, Does: "logs", Kind: api.KindFunction, Summary: "what a function writes to its standard output and error, as text",
			Query: []string{"tail", "follow"}, Answers: map[int]any{200: web.Text("text/plain")}, Problems: []int{404, 409}, Handler: a.logs},
		{Method: "GET", Path: "/v1/functions/{name}/capture", ID: "capture", Needs: api.RoleOperator, Does: "capture", Kind: api.KindFunction, Summary: "the frames of a function's port, in both directions, as pcapng",
			Query: []string{"port", "count", "duration", "bytes", "snaplen", "filter"}, Answers: map[int]any{200: web.Text(api.CaptureType)}, Problems: []int{400, 404, 409, 503}, Handler: a.captureFunction},
		{Method: "GET", Path: "/v1/endpoints/{name}/capture", ID: "capture-endpoint", Needs: api.RoleOperator, Does: "capture", Kind: api.KindEndpoint, Summary: "the frames of an endpoint, in both directions, as pcapng",
			Query: []string{"count", "duration", "bytes", "snaplen", "filter"}, Answers: map[int]any{200: web.Text(api.CaptureType)}, Problems: []int{400, 404, 409, 503}, Handler: a.captureEndpoint},
		{Method: "POST", Path: "/v1/functions/{name}/exec", ID: "exec", Needs: api.RoleOperator, Does: "exec", Kind: api.KindFunction, Summary: "run a process in a function, over a connection upgraded to " + api.ExecProtocol,
			Query: []string{"arg", "env", "tty"}, Answers: map[int]any{101: nil}, Problems: []int{400, 404, 409, 426}, Handler: a.exec},
		{Method: "GET", Path: "/v1/functions/{name}/exec", ID: "exec-websocket", Needs: api.RoleOperator, Does: "exec", Kind: api.KindFunction, Summary: "the same for browsers, over a WebSocket of the subprotocol " + api.ExecProtocol + ": a frame in each binary message",
			Query: []string{"arg", "env", "tty"}, Answers: map[int]any{101: nil}, Problems: []int{400, 404, 409, 426}, Handler: a.exec},
		{Method: "GET", Path: "/v1/functions/{name}/metrics", ID: "function-metrics", Needs: api.RoleViewer, Summary: "the numbers that a function has told last of itself",
			Answers: map[int]any{200: api.FunctionMetrics{}}, Problems: []int{404, 503}, Handler: a.functionMetrics},
		{Method: "GET", Path: "/v1/functions/{name}/flows", ID: "function-flows", Needs: api.RoleViewer, Summary: "the flows that a function has settled, read live from the switch of its host",
			Query: []string{"limit", "sort"}, Answers: map[int]any{200: api.SettledFlows{}}, Problems: []int{400, 404, 409, 503}, Handler: a.flows},
		{Method: "GET", Path: "/v1/hosts/{name}/counters", ID: "counters", Needs: api.RoleViewer, Summary: "a host's ports and rules with their counters, read live from its switch",
			Answers: map[int]any{200: api.Counters{}}, Problems: []int{404, 503}, Handler: a.counters},
		{Method: "GET", Path: "/v1/images", ID: "list-images", Needs: api.RoleViewer, Summary: "the images that hosts and the manager have now, with what their functions are like, the schema of their config and an example",
			Answers: map[int]any{200: api.ImageList{}}, Problems: []int{503}, Handler: a.images},
		{Method: "GET", Path: "/v1/rates", ID: "rates", Needs: api.RoleViewer, Summary: "packets and bits a second at all hosts' ports and rules and of all functions, or with watch each second as server-sent events",
			Query: []string{"watch"}, Answers: map[int]any{200: api.Rates{}}, Problems: []int{503}, Handler: a.rates},
		{Method: "GET", Path: "/v1/traffic", ID: "traffic", Needs: api.RoleViewer, Summary: "what endpoints have sent in the last hour, as this manager has seen it",
			Answers: map[int]any{200: api.Traffic{}}, Handler: a.traffic},
		{Method: "GET", Path: "/v1/policies/{name}/path", ID: "path", Needs: api.RoleViewer, Summary: "the ports that a policy's packets really meet, with live counters",
			Answers: map[int]any{200: api.PolicyPath{}}, Problems: []int{404, 503}, Handler: a.path},
		{Method: "GET", Path: "/v1/trace", ID: "trace", Needs: api.RoleViewer, Summary: "what becomes of a packet between two endpoints, and of the reply to it, by the policies as they are declared",
			Query: []string{"from", "to", "match", "source", "destination", "source_port", "vlan"}, Answers: map[int]any{200: api.Trace{}}, Problems: []int{400}, Handler: a.trace},
		{Method: "GET", Path: "/v1/switches/{name}/rules", ID: "switch-rules", Needs: api.RoleViewer, Summary: "a fabric switch's tables and Weir's entries with their counters, read live",
			Answers: map[int]any{200: api.SwitchRules{}}, Problems: []int{404, 503}, Handler: a.switchRules},
		{Method: "GET", Path: "/v1/agent/state/{name}", ID: "function-state", Summary: "the state of a function that has moved, from its former host, for the agent of its host only; 204: it has none",
			Answers: map[int]any{200: web.Text("application/octet-stream"), 204: nil}, Problems: []int{403, 404, 409, 502, 503, 504}, Handler: a.state},
		{Method: "GET", Path: "/v1/switches/{name}/counters", ID: "switch-counters", Needs: api.RoleViewer, Summary: "the counters of a fabric switch's ports, read live",
			Answers: map[int]any{200: api.SwitchCounters{}}, Problems: []int{404, 503}, Handler: a.switchCounters},
		{Method: "GET", Path: "/v1/hosts/{name}/connect", ID: "connect", Does: "connect", Kind: api.KindHost, Summary: "an agent's connection over which the manager asks it, upgraded to " + api.NodeProtocol,
			Answers: map[int]any{101: nil}, Problems: []int{426}, Handler: a.connect},
	}
}

// node finds who answers for a host. Of a lost one nobody is asked: its connection may be there still.
func (a *Asker) node(ctx context.Context, host string) (Node, error) {
	if n := a.Node(host); n != nil {
		return n, nil
	}
	h, err := store.Get[api.Host](ctx, a.Store, api.KindHost, host)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	if why := a.Hosts.Lost(h); err == nil && why != "" {
		return nil, api.Refuse(http.StatusServiceUnavailable, why)
	}
	if n := a.Remote(host); n != nil {
		return n, nil
	}
	return nil, api.Refuse(http.StatusServiceUnavailable, fmt.Sprintf("the agent of host %q cannot be asked from here: is it running, and does it know this manager (--manager)?", host))
}

// nodeOf finds who answers for a function.
func (a *Asker) nodeOf(ctx context.Context, name string) (Node, error) {
	f, err := object.Find[api.Function](ctx, a.Store, api.KindFunction, name)
	if err != nil {
		return nil, err
	}
	return a.node(ctx, cmp.Or(f.At(), f.Status.Host))
}

// live turns an error of a Node into a problem.
func live(err error) error {
	switch {
	case errors.Is(err, container.ErrNotFound):
		return api.Refuse(http.StatusConflict, err.Error()+": is the function created yet?")
	case errors.Is(err, container.ErrState):
		return api.Refuse(http.StatusConflict, err.Error())
	}
	return err
}

func (a *Asker) counters(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	if _, err := a.Store.Get(r.Context(), store.Key(api.KindHost, name)); errors.Is(err, store.ErrNotFound) {
		return object.NotFound(api.KindHost, name)
	} else if err != nil {
		return err
	}
	n, err := a.node(r.Context(), name)
	if err != nil {
		return err
	}
	c, err := n.Counters(r.Context())
	if err != nil {
		return live(err)
	}
	if c.Ports == nil {
		c.Ports = []api.PortCounters{}
	}
	if c.Rules == nil {
		c.Rules = []api.RuleCounters{}
	}
	return web.Answer(w, http.StatusOK, c)
}

// path answers with a policy's rendered path and the counters of each port on it.
func (a *Asker) path(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	p, err := object.Find[api.Policy](r.Context(), a.Store, api.KindPolicy, name)
	if err != nil {
		return err
	}
	ports := map[string]port{}
	if len(p.Status.RenderedPath) > 0 {
		if ports, err = a.portsOf(r.Context(), slices.Concat(p.Status.RenderedPath, p.Status.RenderedReverse)); err != nil {
			return err
		}
	}
	return web.Answer(w, http.StatusOK, api.PolicyPath{
		Policy: name, State: p.Status.State, Message: p.Status.Message,
		Forward: hops(p.Status.RenderedPath, ports), Reverse: hops(p.Status.RenderedReverse, ports),
	})
}

// port is a switch port and the host that it is on.
type port struct {
	api.PortCounters
	host string
}

// portsOf asks every host on a way for its ports. One of several that does not answer takes only its own ports away.
func (a *Asker) portsOf(ctx context.Context, names []string) (map[string]port, error) {
	hosts, err := a.hostsOf(ctx, names)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, portsTimeout)
	defer cancel()
	counters, errs := make([]api.Counters, len(hosts)), make([]error, len(hosts))
	var wg sync.WaitGroup
	for i, host := range hosts {
		wg.Go(func() {
			n, err := a.node(ctx, host)
			if err == nil {
				counters[i], err = n.Counters(ctx)
			}
			errs[i] = live(err)
		})
	}
	wg.Wait()
	ports, failed := map[string]port{}, 0
	for i, c := range counters {
		if errs[i] != nil {
			failed++
			continue
		}
		for _, x := range c.Ports {
			here := port{x, cmp.Or(hosts[i], c.Host)}
			if _, taken := ports[x.Name]; !taken { // an uplink may be called so on several hosts
				ports[x.Name] = here
			}
			ports[here.host+":"+x.Name] = here
		}
	}
	if failed == len(hosts) {
		return nil, errors.Join(errs...)
	}
	return ports, nil
}

// portsTimeout bounds how long a host on a policy's way may take to answer.
const portsTimeout = 5 * time.Second

// hostsOf are the hosts on a rendered way, from the functions and endpoints on it; one that is not known is the only one, "".
func (a *Asker) hostsOf(ctx context.Context, names []string) ([]string, error) {
	var hosts []string
	for _, name := range names {
		host, rest, prefixed := strings.Cut(name, ":")
		if prefixed && strings.Contains(rest, "/") {
			hosts = append(hosts, host)
			continue
		}
		kind, of, _ := strings.Cut(name, "/")
		of, _, _ = strings.Cut(of, "/")
		if kind != string(api.KindFunction) && kind != string(api.KindEndpoint) {
			continue
		}
		o, err := store.Get[object.Object](ctx, a.Store, api.Kind(kind), of)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if at := o.At(); at != "" {
			hosts = append(hosts, at)
		}
	}
	slices.Sort(hosts)
	if hosts = slices.Compact(hosts); len(hosts) == 0 {
		hosts = []string{""}
	}
	return hosts, nil
}

func hops(names []string, ports map[string]port) []api.Hop {
	out := []api.Hop{}
	for _, name := range names {
		p, ok := ports[name]
		out = append(out, api.Hop{Port: name, Host: p.host, Link: p.Link, State: p.State, Live: ok, Rx: p.Rx, Tx: p.Tx, Dropped: p.Dropped, Settles: p.Settles, Settled: p.Settled})
	}
	return out
}

// logs streams a function's output as text.
func (a *Asker) logs(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	o := container.LogOptions{Follow: web.Flag(r, "follow")}
	o.Tail, _ = strconv.Atoi(q.Get("tail")) // 0: all
	n, err := a.nodeOf(r.Context(), r.PathValue("name"))
	if err != nil {
		return err
	}
	release, err := a.streams.Take("logs and execs")
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := web.StreamContext(r)
	defer cancel()
	logs, err := n.Logs(ctx, r.PathValue("name"), o)
	if err != nil {
		return live(err)
	}
	stream(ctx, w, r, "text/plain; charset=utf-8", logs)
	return nil
}

// stream sends what comes, and closes it.
func stream(ctx context.Context, w http.ResponseWriter, r *http.Request, kind string, from io.ReadCloser) {
	defer from.Close()
	defer context.AfterFunc(ctx, func() { from.Close() })() // a blocked read ends with the request
	w.Header().Set("Content-Type", kind)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	web.Note(r).Began(http.StatusOK)
	w.WriteHeader(http.StatusOK)
	if http.NewResponseController(w).Flush() != nil { // before the first line: who follows knows that there will be some
		return
	}
	_, _ = io.Copy(web.Flushing(w), from) // the client is gone, or it ended
}

func (a *Asker) captureFunction(w http.ResponseWriter, r *http.Request) error {
	f, err := object.Find[api.Function](r.Context(), a.Store, api.KindFunction, r.PathValue("name"))
	if err != nil {
		return err
	}
	return a.capture(w, r, api.KindFunction, cmp.Or(f.At(), f.Status.Host))
}

func (a *Asker) captureEndpoint(w http.ResponseWriter, r *http.Request) error {
	e, err := object.Find[api.Endpoint](r.Context(), a.Store, api.KindEndpoint, r.PathValue("name"))
	if err != nil {
		return err
	}
	if !e.Spec.OfHost() {
		return api.Refuse(http.StatusConflict, fmt.Sprintf("endpoint %s is a station of the fabric, and no host's: capture at a function, or at the station", e.Name))
	}
	return a.capture(w, r, api.KindEndpoint, e.At())
}

// capture streams the frames of a port of a host.
func (a *Asker) capture(w http.ResponseWriter, r *http.Request, kind api.Kind, host string) error {
	o, err := api.ParseCapture(r.URL.Query())
	if err != nil {
		return err
	}
	n, err := a.node(r.Context(), host)
	if err != nil {
		return err
	}
	release, err := a.captures.Take("captures")
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := web.StreamContext(r)
	defer cancel()
	// The host ends the capture. One that does not holds no place here for ever, and fills no disk.
	ctx, stop := context.WithTimeout(ctx, o.Duration+captureGrace)
	defer stop()
	frames, err := n.Capture(ctx, kind, r.PathValue("name"), o)
	if err != nil {
		return live(err)
	}
	stream(ctx, w, r, api.CaptureType, atMost{io.LimitReader(frames, mostOf(o)), frames})
	return nil
}

// captureGrace is how much longer than asked a host may take for a capture: to begin it, and to send what it has.
const captureGrace = 15 * time.Second

// Most of what pcapng adds to frames: to each, and in each second of a capture for its statistics.
const (
	captureBlock  = 64
	captureSecond = 1 << 10
)

// mostOf is how long the file of a capture can be. A frame may be cut to one byte, by a filter.
func mostOf(o api.CaptureOptions) int64 {
	seconds := int64(o.Duration/time.Second) + 2
	frames := min(o.Bytes, seconds*api.MaxCaptureRate)
	if o.Count > 0 {
		frames = min(frames, int64(o.Count))
	}
	return o.Bytes + int64(o.Snaplen) + frames*captureBlock + seconds*captureSecond
}

// atMost is a stream that ends early.
type atMost struct {
	io.Reader
	io.Closer
}

// exec runs a process in a function over an upgraded connection; see api.ExecProtocol.
func (a *Asker) exec(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	spec := container.ExecSpec{Args: q["arg"], Env: q["env"], TTY: q.Get("tty") == "true"}
	if len(spec.Args) == 0 {
		return api.Refuse(http.StatusBadRequest, "nothing to run", api.Problem{Path: "query.arg", Message: "is missing", Hint: "want the program and its arguments, one arg each"})
	}
	browser := r.Method == http.MethodGet
	want := web.WantUpgrade
	if browser {
		want = web.WantWebSocket
	}
	if err := want(w, r, "exec", api.ExecProtocol); err != nil {
		return err
	}
	name := r.PathValue("name")
	n, err := a.nodeOf(r.Context(), name)
	if err != nil {
		return err
	}
	release, err := a.streams.Take("logs and execs")
	if err != nil {
		return err
	}
	defer release()
	web.Note(r).Objects = []string{"program " + strict.Clip(spec.Args[0], strict.MaxText)} // its arguments may hold secrets
	web.Note(r).Began(http.StatusSwitchingProtocols)
	var conn io.ReadWriteCloser
	if browser {
		conn, err = web.UpgradeWebSocket(w, r, api.ExecProtocol, api.MaxExecMessage)
	} else {
		conn, err = web.Upgrade(w, api.ExecProtocol)
	}
	if conn == nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(r.Context(), func() { conn.Close() })() // a session of the web UI can end first: its process reads no more
	ctx, cancel := web.StreamContext(r)
	defer cancel()
	run := func(ctx context.Context, e container.ExecSpec) (int, error) { return n.Exec(ctx, name, e) }
	remote.Exec(ctx, cancel, run, spec, api.NewExecStream(conn, conn))
	return nil
}

// Node answers what only a host knows. The agent of this process is one.
type Node interface {
	// Counters reads ports and rules live from the switch.
	Counters(ctx context.Context) (api.Counters, error)
	// Logs streams a function's output until it ends, or with Follow until ctx does.
	Logs(ctx context.Context, function string, o container.LogOptions) (io.ReadCloser, error)
	// Capture streams the frames of a port of a function, or of an endpoint, as pcapng.
	Capture(ctx context.Context, kind api.Kind, name string, o api.CaptureOptions) (io.ReadCloser, error)
	// Exec runs one more process in a function and returns its exit code.
	Exec(ctx context.Context, function string, e container.ExecSpec) (int, error)
	// State is that of a function with a UID that moves to another host, and its length in bytes; nil: it has none. The caller closes it.
	State(ctx context.Context, function, uid string) (io.ReadCloser, int64, error)
	// Flows are those that a function has settled.
	Flows(ctx context.Context, function string, o api.FlowOptions) (api.SettledFlows, error)
	// ImageList has the images of the host; an image that cannot be read is left out.
	ImageList(ctx context.Context) ([]api.Image, error)
	// Metrics are what the host's functions have told last of themselves.
	Metrics(ctx context.Context) ([]api.FunctionMetrics, error)
}

// Fabric answers what only the router knows.
type Fabric interface {
	// SwitchRules reads a switch's tables and Weir's entries live.
	SwitchRules(ctx context.Context, name string) (api.SwitchRules, error)
	// SwitchCounters reads the counters of a switch's ports live.
	SwitchCounters(ctx context.Context, name string) (api.SwitchCounters, error)
}

// ErrElsewhere is of a Fabric whose router does not run here: it does where the leader is.
var ErrElsewhere = errors.New("the router runs at another manager")

// askSwitch reads something live of the switch that a request names.
func askSwitch[T any](a *Asker, r *http.Request, read func(ctx context.Context, name string) (T, error)) (out T, err error) {
	name := r.PathValue("name")
	s, err := object.Find[api.Switch](r.Context(), a.Store, api.KindSwitch, name)
	if err != nil {
		return out, err
	}
	if a.Fabric == nil {
		return out, api.Refuse(http.StatusServiceUnavailable, fmt.Sprintf("switch %s cannot be asked from here: this manager controls no switches (start it with --openflow)", name))
	}
	out, err = read(r.Context(), name)
	if errors.Is(err, ErrElsewhere) {
		where := a.Lead.Leader(r.Context())
		if where == "" || a.Lead.Leads() {
			return out, api.Refuse(http.StatusServiceUnavailable, fmt.Sprintf("switch %s cannot be asked now: the router is about to start, try again", name))
		}
		return out, api.Refuse(http.StatusServiceUnavailable, fmt.Sprintf("switch %s cannot be asked from here: the router runs at the manager that leads, %s: ask there", name, where))
	}
	if err != nil {
		return out, api.Refuse(http.StatusServiceUnavailable, fmt.Sprintf("switch %s (%s): %s", name, s.Status.State, err))
	}
	return out, nil
}

// switchCounters answers with the counters of a switch's ports, read live.
func (a *Asker) switchCounters(w http.ResponseWriter, r *http.Request) error {
	out, err := askSwitch(a, r, func(ctx context.Context, name string) (api.SwitchCounters, error) {
		return a.Fabric.SwitchCounters(ctx, name)
	})
	if err != nil {
		return err
	}
	if out.Ports == nil {
		out.Ports = []api.SwitchPortCounters{}
	}
	return web.Answer(w, http.StatusOK, out)
}

// switchRules answers with a switch's entries, read live.
func (a *Asker) switchRules(w http.ResponseWriter, r *http.Request) error {
	rules, err := askSwitch(a, r, func(ctx context.Context, name string) (api.SwitchRules, error) {
		return a.Fabric.SwitchRules(ctx, name)
	})
	if err != nil {
		return err
	}
	if rules.Tables == nil {
		rules.Tables = []api.SwitchTable{}
	}
	if rules.Rules == nil {
		rules.Rules = []api.SwitchRule{}
	}
	return web.Answer(w, http.StatusOK, rules)
}
