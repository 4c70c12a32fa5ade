package manager_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
	"weir.dev/weir/manager/managertest"
	"weir.dev/weir/pki"
	"weir.dev/weir/store/mem"
)

// world is a manager with an agents' listener and a clock of its own.
type world struct {
	*api.Client // an administrator's, over the Unix socket
	m           *manager.Manager
	addr        string
	ahead       atomic.Int64 // of the manager's clock before the machine's
	socket      string
	stop        func() // ends Serve and waits
}

func joinWorld(t testing.TB, o manager.Options) *world {
	t.Helper()
	w := &world{}
	if o.Store == nil {
		o.Store = mem.New()
	}
	if o.Now == nil {
		o.Now = func() time.Time { return time.Now().Add(time.Duration(w.ahead.Load())) }
	}
	w.m = must(manager.New(o))(t)
	w.socket = filepath.Join(shortDir(t), "api.sock")
	s, stop := managertest.Serve(t, w.m, manager.ServeOptions{Socket: w.socket, Agents: "127.0.0.1:0"})
	w.addr, w.stop = s.AgentsAddr().String(), stop
	w.Client = must(api.Dial(api.Options{Socket: w.socket}))(t)
	t.Cleanup(w.Client.Close)
	return w
}

func (w *world) token(t testing.TB, r api.TokenRequest) pki.Token {
	t.Helper()
	return must(pki.ParseToken(must(w.NewToken(ctx(t), r))(t).Token))(t)
}

// dial is a client of the agents' listener.
func (w *world) dial(t testing.TB, config *tls.Config) *api.Client {
	t.Helper()
	c := must(api.Dial(api.Options{URL: "https://" + w.addr, DialTLS: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", w.addr)
	}}))(t)
	t.Cleanup(c.Close)
	return c
}

// join asks for a certificate with a key.
func (w *world) join(t testing.TB, tok pki.Token, host string, id *pki.Identity, at time.Time) (*pki.Identity, error) {
	t.Helper()
	a, err := w.dial(t, pki.Joining(tok, "http/1.1")).Join(ctx(t), api.JoinRequest{
		ID: tok.ID, Secret: tok.Secret, Host: host, Request: string(must(id.Request(host))(t)), Time: at,
	})
	if err != nil {
		return nil, err
	}
	return id.With([]byte(a.Certificate), []byte(a.Authority), tok.Authority)
}

// member is a joined agent's client.
func (w *world) member(t testing.TB, host string) (*api.Client, *pki.Identity) {
	t.Helper()
	id := must(w.join(t, w.token(t, api.TokenRequest{}), host, must(pki.NewIdentity())(t), time.Now()))(t)
	return w.dial(t, id.Client(time.Now, "h2", "http/1.1")), id
}

func refused(t *testing.T, err error, status int, words ...string) {
	t.Helper()
	var p *api.ProblemError
	if !errors.As(err, &p) || p.Status != status {
		t.Fatalf("%v, want status %d", err, status)
	}
	for _, w := range words {
		if !strings.Contains(p.Error(), w) {
			t.Errorf("%q does not say %q", p, w)
		}
	}
}

func TestJoinTokensWorkOnceAndExpire(t *testing.T) {
	w := joinWorld(t, manager.Options{})
	key := func() *pki.Identity { return must(pki.NewIdentity())(t) }
	tok := w.token(t, api.TokenRequest{})
	first := key()
	must(w.join(t, tok, "h1", first, time.Now()))(t)
	must(w.join(t, tok, "h1", first, time.Now()))(t) // the answer was lost
	_, err := w.join(t, tok, "h1", key(), time.Now())
	refused(t, err, 403, "token "+tok.ID, "used by host h1", "works once")
	_, err = w.join(t, tok, "h2", first, time.Now())
	refused(t, err, 403, "used by host h1")

	wrong := w.token(t, api.TokenRequest{})
	wrong.Secret = tok.Secret
	_, err = w.join(t, wrong, "h2", key(), time.Now())
	refused(t, err, 401, "no such join token", "weir token create")
	wrong.ID = "00000000"
	_, err = w.join(t, wrong, "h2", key(), time.Now())
	refused(t, err, 401, "no such join token")
	wrong.Authority = strings.Repeat("0", 64)
	_, err = w.join(t, wrong, "h2", key(), time.Now())
	if !errors.Is(err, pki.ErrNotManager) {
		t.Errorf("token of another Weir: %v", err)
	}

	late := w.token(t, api.TokenRequest{TTL: "10m"})
	w.ahead.Store(int64(11 * time.Minute))
	_, err = w.join(t, late, "h2", key(), time.Now().Add(11*time.Minute))
	refused(t, err, 401, "token "+late.ID+" expired at", "the manager's clock says", "weir token create")
	w.ahead.Store(0)

	bound := w.token(t, api.TokenRequest{Host: "h3"})
	_, err = w.join(t, bound, "h2", key(), time.Now())
	refused(t, err, 403, "is for host h3, not for h2")
	_, err = w.join(t, w.token(t, api.TokenRequest{}), "H 2", key(), time.Now())
	refused(t, err, 422, "--host")
	_, err = w.dial(t, pki.Joining(tok, "http/1.1")).Join(ctx(t), api.JoinRequest{ID: tok.ID, Secret: tok.Secret, Request: strings.Repeat("x", 17<<10)})
	refused(t, err, 413, "larger than 16 KiB")

	gone := w.token(t, api.TokenRequest{})
	if err := w.DeleteToken(ctx(t), gone.ID); err != nil {
		t.Fatal(err)
	}
	refused(t, w.DeleteToken(ctx(t), gone.ID), 404)
	_, err = w.join(t, gone, "h2", key(), time.Now())
	refused(t, err, 401)
}

func TestTokensAreListedWithoutTheirSecrets(t *testing.T) {
	w := joinWorld(t, manager.Options{})
	tok := w.token(t, api.TokenRequest{Host: "h1", Replace: true, TTL: "90s"})
	list := must(w.Tokens(ctx(t)))(t)
	if len(list) != 1 || list[0].ID != tok.ID || list[0].Token != "" || list[0].Host != "h1" || !list[0].Replace || list[0].Expires.Sub(list[0].Created) != 90*time.Second {
		t.Errorf("%+v", list)
	}
	for name, r := range map[string]api.TokenRequest{
		"ttl":     {TTL: "soon"},
		"long":    {TTL: "9000h"},
		"host":    {Host: "No Name"},
		"replace": {Replace: true},
	} {
		_, err := w.NewToken(ctx(t), r)
		if !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for range 999 { // the bound
		w.token(t, api.TokenRequest{TTL: "1m"})
	}
	_, err := w.NewToken(ctx(t), api.TokenRequest{})
	refused(t, err, 409, "weir token delete")
	w.ahead.Store(int64(26 * time.Hour))
	must(w.NewToken(ctx(t), api.TokenRequest{}))(t) // the dead are forgotten a day later, a hundred at a time
	if list = must(w.Tokens(ctx(t)))(t); len(list) > 901 {
		t.Errorf("%d tokens are left", len(list))
	}
}

func TestClocksThatDifferAreRefusedBeforeTheTokenIsUsed(t *testing.T) {
	w := joinWorld(t, manager.Options{})
	tok := w.token(t, api.TokenRequest{})
	id := must(pki.NewIdentity())(t)
	for _, d := range []time.Duration{time.Hour, -time.Hour} {
		_, err := w.join(t, tok, "h1", id, time.Now().Add(d))
		refused(t, err, 422, "clocks differ by 1h0m0s", "host h1 has", "the manager", "NTP")
	}
	id = must(w.join(t, tok, "h1", id, time.Now().Add(4*time.Minute)))(t)

	c := w.dial(t, id.Client(time.Now)) // later on it is told, once each time that it begins
	for times := 1; times <= 2; times++ {
		for _, d := range []time.Duration{0, time.Hour, time.Hour} {
			must(c.Beat(ctx(t), "h1", time.Now().Add(d)))(t)
		}
		events := must(w.Events().List(ctx(t), api.ListOptions{Object: "h1", Severity: api.Warning}))(t)
		if len(events.Items) != 1 || events.Items[0].Reason != "ClockSkew" || max(events.Items[0].Count, 1) != times || !strings.Contains(events.Items[0].Message, "host h1 has") {
			t.Errorf("events: %+v, want one that happened %d times", events.Items, times)
		}
	}
}

// A host that joins again and again does not drive out what else is worth knowing.
func TestHostsThatJoinAgainAreOneEvent(t *testing.T) {
	w := joinWorld(t, manager.Options{})
	var tok pki.Token
	for range 3 {
		tok = w.token(t, api.TokenRequest{Host: "h1", Replace: true})
		id := must(pki.NewIdentity())(t)
		must(w.join(t, tok, "h1", id, time.Now()))(t)
		must(w.join(t, tok, "h1", id, time.Now()))(t) // the answer was lost
	}
	events := must(w.Events().List(ctx(t), api.ListOptions{Kind: api.KindHost, Object: "h1"}))(t).Items
	if len(events) != 2 || events[0].Reason != "HostJoined" || events[0].Count != 0 || events[1].Reason != "HostReplaced" || events[1].Count != 2 ||
		!strings.Contains(events[1].Message, tok.ID) {
		t.Errorf("events: %+v", events)
	}
}

func TestSecondAgentOfOneNameIsRefused(t *testing.T) {
	w := joinWorld(t, manager.Options{Host: "local"})
	first, _ := w.member(t, "h1")
	key := func() *pki.Identity { return must(pki.NewIdentity())(t) }
	_, err := w.join(t, w.token(t, api.TokenRequest{}), "h1", key(), time.Now())
	refused(t, err, 409, "h1 has joined already", "--host", "weir token create --replace --host h1")
	_, err = w.join(t, w.token(t, api.TokenRequest{}), "local", key(), time.Now())
	refused(t, err, 409, "the manager's own")
	if _, err := first.Beat(ctx(t), "h1", time.Now()); err != nil {
		t.Fatalf("the first is hurt: %v", err)
	}

	watched := first.Chains().Watch(ctx(t), 0, api.ListOptions{})
	if d := <-watched; d.Type != api.DeltaReset {
		t.Fatalf("watch: %+v", d)
	}
	second := must(w.join(t, w.token(t, api.TokenRequest{Host: "h1", Replace: true}), "h1", key(), time.Now()))(t)
	for d := range watched { // it ends, and is not taken up again
		if !errors.Is(d.Err, api.ErrUnauthorized) {
			t.Errorf("watch: %+v", d)
		}
	}
	_, err = first.Beat(ctx(t), "h1", time.Now())
	refused(t, err, 401, "h1 is no longer accepted", "join again")
	if _, err := w.dial(t, second.Client(time.Now)).Beat(ctx(t), "h1", time.Now()); err != nil {
		t.Errorf("who replaced it: %v", err)
	}
	events := must(w.Events().List(ctx(t), api.ListOptions{Kind: api.KindHost, Object: "h1"}))(t)
	if n := len(events.Items); n != 2 || events.Items[0].Reason != "HostJoined" || events.Items[1].Reason != "HostReplaced" {
		t.Errorf("events: %+v", events.Items)
	}
}

func TestExpiredCertificateSaysWhatToDoAndFreesTheName(t *testing.T) {
	w := joinWorld(t, manager.Options{CertificateLife: time.Hour})
	c, _ := w.member(t, "h1")
	must(c.AgentConfig(ctx(t), ""))(t)
	w.ahead.Store(int64(2 * time.Hour))
	_, err := c.AgentConfig(ctx(t), "") // over the same connection
	refused(t, err, 401, "certificate expired", "host h1", "the manager's clock says", "weir token create")
	tok := w.token(t, api.TokenRequest{})
	must(w.join(t, tok, "h1", must(pki.NewIdentity())(t), time.Now().Add(2*time.Hour)))(t)
}

func TestCertificatesAreRenewedWithNewKeys(t *testing.T) {
	w := joinWorld(t, manager.Options{CertificateLife: time.Hour})
	c, id := w.member(t, "h1")
	renew := func(c *api.Client) *pki.Identity {
		t.Helper()
		next := must(pki.NewIdentity())(t)
		a := must(c.Renew(ctx(t), api.CertificateRequest{Request: string(must(next.Request("h1"))(t))}))(t)
		return must(next.With([]byte(a.Certificate), []byte(a.Authority), id.AuthorityHash()))(t)
	}
	w.ahead.Store(int64(40 * time.Minute))
	second := renew(c)
	if _, until := second.Valid(); time.Until(until) < 90*time.Minute {
		t.Errorf("renewed until %v", until)
	}
	third := renew(c) // the answer was lost: the former key still works
	fourth := renew(w.dial(t, third.Client(time.Now)))
	for name, x := range map[string]struct {
		id *pki.Identity
		ok bool
	}{"first": {id, false}, "second, lost": {second, false}, "third": {third, true}, "fourth": {fourth, true}} {
		_, err := w.dial(t, x.id.Client(time.Now)).AgentConfig(ctx(t), "")
		if (err == nil) != x.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := w.Renew(ctx(t), api.CertificateRequest{Request: "x"})
	refused(t, err, 403, "for agents")
}

// do sends a request and returns the answer's status.
func do(t *testing.T, w *world, config *tls.Config, method, path, body string) (int, string) {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", w.addr)
	}}}
	r := must(http.NewRequestWithContext(ctx(t), method, "https://"+w.addr+path, strings.NewReader(body)))(t)
	r.Header.Set("Content-Type", "application/json")
	resp, err := c.Do(r)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	return resp.StatusCode, string(b)
}

func TestAgentsMayReadSpecsAndReportTheirOwnOnly(t *testing.T) {
	w := joinWorld(t, manager.Options{})
	_, id := w.member(t, "h1")
	config := id.Client(time.Now, "http/1.1")
	for _, x := range []struct {
		method, path, body string
		status             int
	}{
		{"GET", "/v1/endpoints", "", 200},
		{"GET", "/v1/functions?watch=false", "", 200},
		{"GET", "/v1/chains", "", 200},
		{"GET", "/v1/policies/none", "", 404},
		{"GET", "/v1/assignments/h1", "", 404},
		{"GET", "/v1/assignments?name=h1", "", 200},
		{"GET", "/v1/agent/config", "", 200},
		{"GET", "/healthz", "", 200},
		{"POST", "/v1/hosts/h1/beat", "{}", 200},
		{"POST", "/v1/status", `{"host":"h1"}`, 204},
		{"POST", "/v1/status", `{"host":"h1","events":[{"reason":"Test","message":"m","severity":"info","name":"","time":"2026-01-01T00:00:00Z"}]}`, 204},

		{"GET", "/v1/assignments/h2", "", 403},
		{"GET", "/v1/assignments", "", 403},
		{"GET", "/v1/hosts", "", 403},
		{"GET", "/v1/hosts/h2", "", 403},
		{"GET", "/v1/hosts/h1/counters", "", 403},
		{"GET", "/v1/tokens", "", 403},
		{"POST", "/v1/tokens", "{}", 403},
		{"GET", "/v1/secrets", "", 403},
		{"GET", "/v1/secrets/authority", "", 403},
		{"GET", "/v1/events", "", 403},
		{"GET", "/v1/operations", "", 403},
		{"GET", "/metrics", "", 403},
		{"PUT", "/v1/policies/p", `{"spec":{}}`, 403},
		{"PATCH", "/v1/functions/f", `{"spec":{}}`, 403},
		{"DELETE", "/v1/endpoints/e", "", 403},
		{"POST", "/v1/apply", "{}", 403},
		{"POST", "/v1/delete", "{}", 403},
		{"POST", "/v1/fabric", "{}", 403},
		{"POST", "/v1/functions/f/exec?arg=sh", "", 403},
		{"GET", "/v1/functions/f/logs", "", 403},
		{"POST", "/v1/functions/f/restart", "", 403},
		{"POST", "/v1/hosts/h2/beat", "{}", 403},
		{"GET", "/v1/hosts/h2/connect", "", 403},
		{"POST", "/v1/status", `{"host":"h2"}`, 403},
		{"POST", "/v1/status", `{"host":"h1","functions":{"f":{"host":"h2","healthy":true}}}`, 403},
		{"POST", "/v1/status", `{"host":"h1","functions":{"f":{"message":"` + strings.Repeat("m", 2<<20) + `"}}}`, 403},
		{"POST", "/v1/status", `{"host":"h1","host_status":{"version":"` + strings.Repeat("m", 2<<20) + `"}}`, 403},
		{"POST", "/v1/status", `{"host":"h1","events":[{"reason":"X","message":"m","host":"h2","severity":"info","name":"","time":"2026-01-01T00:00:00Z"}]}`, 403},
	} {
		if status, body := do(t, w, config, x.method, x.path, x.body); status != x.status {
			t.Errorf("%s %s %.80s: %d, want %d: %s", x.method, x.path, x.body, status, x.status, body)
		}
	}
	bare := pki.Joining(w.token(t, api.TokenRequest{}), "http/1.1") // no certificate
	for path, want := range map[string]int{"/v1/endpoints": 401, "/v1/agent/config": 401, "/v1/tokens": 401, "/healthz": 200} {
		if status, body := do(t, w, bare, "GET", path, ""); status != want {
			t.Errorf("without a certificate: GET %s: %d, want %d: %s", path, status, want, body)
		}
	}
}

func TestNewsOfAnotherHostsObjectsAreLeftOut(t *testing.T) {
	w := joinWorld(t, manager.Options{})
	c, _ := w.member(t, "h1")
	for _, host := range []string{"h1", "h2"} {
		if err := w.Report(ctx(t), api.StatusReport{Host: host, HostState: &api.HostStatus{State: "ready", Cores: 4, Memory: 1 << 30, Images: []string{"wire"}}}); err != nil {
			t.Fatal(err)
		}
		must(w.Beat(ctx(t), host, time.Now()))(t)
	}
	for name, host := range map[string]string{"mine": "h1", "other": "h2"} {
		must(w.Functions().Put(ctx(t), name, api.FunctionSpec{Image: "wire", Host: host}))(t)
	}
	must(w.Functions().Put(ctx(t), "nowhere", api.FunctionSpec{Image: "no-host-has-this"}))(t)
	why := must(w.Functions().Get(ctx(t), "nowhere"))(t)
	if why.Placement != nil || why.Status.State != api.FunctionPending {
		t.Fatalf("%+v", why)
	}
	s := api.FunctionStatus{State: api.FunctionStarted, Healthy: true, Host: "h1"}
	if err := c.Report(ctx(t), api.StatusReport{Host: "h1", Functions: map[string]api.FunctionStatus{"mine": s, "other": s, "nowhere": s}}); err != nil {
		t.Fatal(err)
	}
	if f := must(w.Functions().Get(ctx(t), "mine"))(t); !f.Status.Healthy {
		t.Errorf("own news: %+v", f.Status)
	}
	if f := must(w.Functions().Get(ctx(t), "other"))(t); f.Status.Healthy {
		t.Errorf("another host's function: %+v", f.Status)
	}
	if f := must(w.Functions().Get(ctx(t), "nowhere"))(t); f.Status.Message != why.Status.Message || f.Status.Healthy {
		t.Errorf("a function that is nowhere: %+v, want %+v", f.Status, why.Status)
	}
}

func TestRefusedJoinsAreBounded(t *testing.T) {
	w := joinWorld(t, manager.Options{})
	tok := w.token(t, api.TokenRequest{})
	good := tok
	tok.Secret = strings.Repeat("x", 32)
	id := must(pki.NewIdentity())(t)
	busy := 0
	for range 20 {
		_, err := w.join(t, tok, "h1", id, time.Now())
		switch {
		case errors.Is(err, api.ErrBusy):
			busy++
		case !errors.Is(err, api.ErrUnauthorized):
			t.Fatal(err)
		}
	}
	if busy < 9 || busy > 11 {
		t.Errorf("%d of 20 attempts were put off, want 10", busy)
	}
	w.ahead.Store(int64(time.Minute))
	must(w.join(t, good, "h1", id, time.Now()))(t)
}

func TestRubbishAtTheAgentsListenerHurtsNobody(t *testing.T) {
	w := joinWorld(t, manager.Options{})
	c, _ := w.member(t, "h1")
	for _, rubbish := range []string{"", "GET / HTTP/1.1\r\n\r\n", strings.Repeat("\x16\x03\x01\xff\xff", 4000), "\x00"} {
		conn := must(net.Dial("tcp", w.addr))(t)
		_, _ = io.WriteString(conn, rubbish)
		if rubbish == "" || rubbish == "\x00" {
			defer conn.Close() // says nothing and stays
			continue
		}
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%.10q: the connection stays", rubbish)
		}
		conn.Close()
	}
	old := &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}
	if conn, err := tls.Dial("tcp", w.addr, old); err == nil {
		conn.Close()
		t.Error("TLS 1.2 is accepted")
	}
	must(c.Beat(ctx(t), "h1", time.Now()))(t)
}

func TestHostsAreAskedOverTheirOwnConnection(t *testing.T) {
	w := joinWorld(t, manager.Options{})
	_, id := w.member(t, "h1")
	serveNode(t, w, id, "h1")
	must(w.Functions().Put(ctx(t), "fw", api.FunctionSpec{Image: "wire", Host: "h1"}))(t)
	if err := w.Report(ctx(t), api.StatusReport{Host: "h1", HostState: &api.HostStatus{State: "ready"},
		Functions: map[string]api.FunctionStatus{"fw": {State: api.FunctionStarted, Host: "h1"}}}); err != nil {
		t.Fatal(err)
	}
	if k := must(w.Counters(ctx(t), "h1"))(t); len(k.Ports) != 2 || k.Version != 3 {
		t.Errorf("counters %+v", k)
	}
	if f := must(w.SettledFlows(ctx(t), "fw", api.FlowOptions{Limit: 7, Sort: api.FlowsNewest}))(t); f.Host != "h1" || f.Total != 9 || len(f.Flows) != 1 || f.Flows[0].Missed.Packets != 7 {
		t.Errorf("flows %+v", f)
	}
	logs := must(w.Logs(ctx(t), "fw", api.LogOptions{Tail: 2}))(t)
	defer logs.Close()
	if b := must(io.ReadAll(logs))(t); string(b) != "two\nthree\n" {
		t.Errorf("logs %q", b)
	}
	var out, errs strings.Builder
	big := strings.Repeat("0123456789", 100_000)
	code, err := w.Exec(ctx(t), "fw", api.ExecOptions{Args: []string{"cat", "a b", "c"}, Env: []string{"A=1"}, Stdin: strings.NewReader(big), Stdout: &out, Stderr: &errs})
	if err != nil || code != 7 || out.String() != big || errs.String() != "a b+c env A=1 tty false" {
		t.Errorf("exec: %d, %v, %d bytes, %q", code, err, out.Len(), errs.String())
	}
	if _, err := w.Exec(ctx(t), "fw", api.ExecOptions{Args: []string{"fail"}}); err == nil || !strings.Contains(err.Error(), "no such program") {
		t.Errorf("exec of what is not there: %v", err)
	}
	short, cancel := context.WithTimeout(ctx(t), 100*time.Millisecond)
	defer cancel()
	if _, err := w.Exec(short, "fw", api.ExecOptions{Args: []string{"wait"}}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("exec that is given up: %v", err)
	}
	resize := make(chan [2]uint16, 1)
	resize <- [2]uint16{80, 25}
	out.Reset()
	if code, err := w.Exec(ctx(t), "fw", api.ExecOptions{Args: []string{"size"}, TTY: true, Stdin: strings.NewReader("x\n"), Stdout: &out, Resize: resize}); err != nil || code != 0 || out.String() != "80x25 " {
		t.Errorf("terminal: %d, %v, %q", code, err, out.String())
	}
	if _, err := w.Counters(ctx(t), "h2"); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("unknown host: %v", err)
	}
}
