// Package ui drives the web UI of the real binary in a real browser.
package ui

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/image"
	"weir.dev/weir/netns"
)

// actions are what a scenario may ask of the test.
type actions map[string]func(q question) (any, error)

type question struct {
	Ask, Say, Fail       string
	Name, From, Function string
	Command              string
}

func tool(t *testing.T, names ...string) string {
	t.Helper()
	for _, n := range names {
		if path, err := exec.LookPath(n); err == nil {
			return path
		}
	}
	t.Fatalf("there is no %s: run ./setup.sh", strings.Join(names, " or "))
	return ""
}

var installing sync.Mutex // tests run at once

// install what the scenarios need, if it is not there as the lock file says.
func install(ctx context.Context, t *testing.T) {
	t.Helper()
	installing.Lock()
	defer installing.Unlock()
	versions := func(file string) map[string]string {
		var lock struct {
			Packages map[string]struct{ Version string }
		}
		b, err := os.ReadFile(filepath.Join("browser", file))
		if err == nil {
			err = json.Unmarshal(b, &lock)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		out := map[string]string{}
		for name, p := range lock.Packages {
			out[name] = p.Version
		}
		return out
	}
	want, have := versions("package-lock.json"), versions("node_modules/.package-lock.json")
	for _, name := range []string{"node_modules/playwright-core", "node_modules/axe-core"} {
		if want[name] == "" || want[name] != have[name] {
			c := exec.CommandContext(ctx, tool(t, "npm"), "ci", "--no-audit", "--no-fund", "--ignore-scripts")
			c.Dir = "browser"
			if out, err := c.CombinedOutput(); err != nil {
				t.Fatalf("npm ci: %v\n%s", err, out)
			}
			return
		}
	}
}

// link opens the UI once.
func link(ctx context.Context, r *rig.Rig) (api.SessionLink, error) {
	var l api.SessionLink
	out, err := r.Weir(ctx, "ui", "-o", "json")
	if err == nil {
		err = json.Unmarshal([]byte(out), &l)
	}
	return l, err
}

// play runs a scenario beside the daemon and answers what it asks.
func play(ctx context.Context, t *testing.T, r *rig.Rig, scenario string, do actions) {
	t.Helper()
	install(ctx, t)
	first, err := link(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	c := r.Command(ctx, "", tool(t, "node", "nodejs"), "run.mjs", scenario, tool(t, "chromium", "chromium-browser"), first.Address)
	c.Dir = "browser"
	var stderr bytes.Buffer
	c.Stderr = &stderr
	c.Cancel, c.WaitDelay = func() error { return c.Process.Signal(os.Interrupt) }, 10*time.Second
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if err := converse(t, in, out, do); err != nil {
		t.Error(err)
		in.Close()
		_, _ = io.Copy(io.Discard, out)
	}
	if err := c.Wait(); err != nil {
		t.Errorf("scenario %s: %v\n%s", scenario, err, stderr.String())
	}
}

func converse(t *testing.T, in io.Writer, out io.Reader, do actions) error {
	t.Helper()
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var q question
		if err := json.Unmarshal(lines.Bytes(), &q); err != nil {
			return fmt.Errorf("%q: %w", lines.Text(), err)
		}
		switch {
		case q.Fail != "":
			t.Error(q.Fail)
		case q.Say != "":
			t.Log(q.Say)
		default:
			f, ok := do[q.Ask]
			if !ok {
				return fmt.Errorf("the scenario asks %q: nobody answers that", q.Ask)
			}
			v, err := f(q)
			if err != nil {
				return fmt.Errorf("%s: %w", q.Ask, err)
			}
			b, err := json.Marshal(v)
			if err != nil {
				return err
			}
			if _, err := in.Write(append(b, '\n')); err != nil {
				return err
			}
		}
	}
	return lines.Err()
}

const chain = `functions:
  fw: {image: firewall, config: {allow: [tcp/80, icmp]}}
  w1: {image: wire}
  mon: {image: monitor}
chains:
  web: fw | w1 | tap:mon
policies:
  guests: {from: alice, to: bob, match: [tcp, icmp], chain: web}
`

// links answers "link".
func links(ctx context.Context, r *rig.Rig) actions {
	return actions{"link": func(question) (any, error) {
		l, err := link(ctx, r)
		return l.URL, err
	}}
}

func TestFromAnEmptyMachineToAChain(t *testing.T) {
	t.Parallel()
	r, ctx := rig.ForTest(t, rig.Options{})
	do := links(ctx, r)
	do["document"] = func(question) (any, error) {
		return map[string]string{"document": r.Endpoints() + chain, "alice": r.Alice()}, nil
	}
	do["count"] = func(question) (any, error) {
		var l api.List[api.Function]
		err := r.Get(ctx, &l, "functions")
		return map[string]int{"functions": len(l.Items)}, err
	}
	do["function"] = func(q question) (any, error) {
		var f api.Function
		err := r.Get(ctx, &f, "function", q.Name)
		return f, err
	}
	do["stubborn"] = func(question) (any, error) { // it hears SIGTERM, and goes on until it is killed
		_, err := r.Apply(ctx, `functions: {stubborn: {image: monitor, command: [/bin/busybox, sh, -c, "trap : TERM; while :; do sleep 1; done"]}}`+"\n")
		return nil, err
	}
	do["crash"] = func(q question) (any, error) {
		var f api.Function
		if err := r.Get(ctx, &f, "function", q.Name); err != nil {
			return nil, err
		}
		return nil, syscall.Kill(f.Status.PID, syscall.SIGKILL)
	}
	do["ping"] = func(q question) (any, error) {
		_, err := r.Ping(ctx, q.From, rig.BobAddr, 5, "0.02")
		return map[string]bool{"lost": err != nil}, err
	}
	play(ctx, t, r, "first", do)
}

// TestSteering: endpoints, a function, a chain and a policy by the forms alone; the way lights up; a conflict, a trace, and the way back.
func TestSteering(t *testing.T) {
	t.Parallel()
	r, ctx := rig.ForTest(t, rig.Options{})
	do := links(ctx, r)
	do["spaces"] = func(question) (any, error) {
		return map[string]string{"alice": r.Alice(), "bob": r.Bob()}, nil
	}
	do["ping"] = func(q question) (any, error) {
		_, err := r.Ping(ctx, q.From, rig.BobAddr, 5, "0.02")
		return map[string]bool{"lost": err != nil}, err
	}
	do["traffic"] = traffic(t, r, 2*time.Minute)
	do["policy"] = func(q question) (any, error) {
		var p api.Policy
		err := r.Get(ctx, &p, "policy", q.Name)
		return p, err
	}
	play(ctx, t, r, "steer", do)
}

// TestACrowdIsDrawn prints how long the topology of a hundred hosts takes, and how it moves. The lists are made up: drawing is what is measured.
func TestACrowdIsDrawn(t *testing.T) {
	t.Parallel()
	r, ctx := rig.ForTest(t, rig.Options{})
	play(ctx, t, r, "crowd", links(ctx, r))
}

var update = flag.Bool("update", false, "make the pictures of docs/ui anew")

// traffic begins pings from alice to bob.
func traffic(t *testing.T, r *rig.Rig, length time.Duration) func(question) (any, error) {
	return func(question) (any, error) {
		c, err := r.Start(r.Alice(), "ping", "-q", "-i", "0.05", "-w", strconv.Itoa(int(length.Seconds())), rig.BobAddr) // ends by itself
		if err == nil {
			t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
		}
		return nil, err
	}
}

func TestPages(t *testing.T) {
	t.Parallel()
	r, ctx := rig.ForTest(t, rig.Options{})
	r.MustApply(ctx, t, r.Endpoints()+chain)
	pictures := os.Getenv("WEIR_UI_PICTURES") // a directory for pictures to look at
	if *update {
		pictures = t.TempDir()
	}
	do := links(ctx, r)
	do["traffic"] = traffic(t, r, 10*time.Minute)
	do["pictures"] = func(question) (any, error) { return map[string]string{"pictures": pictures}, nil }
	play(ctx, t, r, "pages", do)
	if !*update || t.Failed() {
		return
	}
	keep(t, pictures, false)
}

// keep puts those pictures into docs/ui that are there already: the lab's, or all others.
func keep(t *testing.T, pictures string, lab bool) {
	t.Helper()
	kept, err := filepath.Glob("../../docs/ui/*.png")
	if err != nil || len(kept) == 0 {
		t.Fatalf("docs/ui: %d pictures, %v", len(kept), err)
	}
	for _, old := range kept {
		if strings.HasPrefix(filepath.Base(old), "lab") != lab {
			continue
		}
		b, err := os.ReadFile(filepath.Join(pictures, filepath.Base(old)))
		if err == nil {
			err = os.WriteFile(old, b, 0o644)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

func TestAPageOutlivesTheManager(t *testing.T) {
	t.Parallel()
	r, ctx := rig.ForTest(t, rig.Options{})
	r.MustApply(ctx, t, r.Endpoints()+chain)
	stopped := false
	t.Cleanup(func() {
		if stopped {
			_ = syscall.Kill(r.PID(), syscall.SIGCONT)
		}
	})
	do := links(ctx, r)
	do["hang"] = func(question) (any, error) {
		stopped = true
		return nil, syscall.Kill(r.PID(), syscall.SIGSTOP)
	}
	do["go on"] = func(question) (any, error) {
		stopped = false
		return nil, syscall.Kill(r.PID(), syscall.SIGCONT)
	}
	do["label"] = func(q question) (any, error) {
		_, err := r.Apply(ctx, r.Endpoints()+strings.Replace(chain, q.Function+": {", q.Function+": {on_fail: bypass, ", 1))
		return nil, err
	}
	do["kill"] = func(question) (any, error) { return nil, r.Kill(syscall.SIGKILL) }
	do["start"] = func(question) (any, error) { return nil, r.Up(ctx) }
	do["token"] = func(question) (any, error) {
		out, err := r.Weir(ctx, "token", "create", "look", "--role", "viewer")
		return map[string]string{"token": strings.TrimSpace(out)}, err
	}
	do["sign out"] = func(question) (any, error) {
		_, err := r.Weir(ctx, "ui", "--sign-out")
		return nil, err
	}
	play(ctx, t, r, "lost", do)
}

// TestALinkAsksBeforeItReplacesASession: somebody may be made to open another's link.
func TestALinkAsksBeforeItReplacesASession(t *testing.T) {
	t.Parallel()
	r, ctx := rig.ForTest(t, rig.Options{})
	do := links(ctx, r)
	do["viewer"] = func(question) (any, error) {
		token, err := r.Weir(ctx, "token", "create", "look", "--role", "viewer")
		if err != nil {
			return nil, err
		}
		file := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			return nil, err
		}
		var l api.SessionLink
		out, err := r.Weir(ctx, "ui", "--url", "http://127.0.0.1:7411", "--token-file", file, "-o", "json")
		if err == nil {
			err = json.Unmarshal([]byte(out), &l)
		}
		return l.URL, err
	}
	play(ctx, t, r, "links", do)
}

// TestASquatterIsForgotten: another user serves the UI's address while Weir is down.
func TestASquatterIsForgotten(t *testing.T) {
	t.Parallel()
	r, ctx := rig.ForTest(t, rig.Options{})
	var squatter *http.Server
	do := links(ctx, r)
	do["squat"] = func(question) (any, error) {
		l, err := link(ctx, r)
		if err != nil {
			return nil, err
		}
		index, err := r.Run(ctx, "", "curl", "-sf", l.Address)
		if err != nil {
			return nil, err
		}
		_, script, _ := strings.Cut(index, `src="/assets/`)
		script, _, _ = strings.Cut(script, `"`)
		if err := r.Kill(syscall.SIGKILL); err != nil {
			return nil, err
		}
		var at net.Listener
		if err := netns.Do(r.Netns, func() (err error) {
			at, err = net.Listen("tcp", strings.Trim(strings.TrimPrefix(l.Address, "http://"), "/"))
			return err
		}); err != nil {
			return nil, err
		}
		squatter = &http.Server{Handler: squat("/assets/" + script), ReadHeaderTimeout: time.Minute}
		t.Cleanup(func() { squatter.Close() })
		go func() { _ = squatter.Serve(at) }()
		return l.Address, nil
	}
	do["leave"] = func(question) (any, error) { return nil, errors.Join(squatter.Close(), r.Up(ctx)) }
	play(ctx, t, r, "squat", do)
}

// squat serves a page that installs a service worker and has the browser cache a script of the UI's.
func squat(script string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
		w.Header().Set("Content-Type", "text/javascript")
		switch r.URL.Path {
		case "/worker.js":
			fmt.Fprint(w, `addEventListener("install", () => skipWaiting());
addEventListener("activate", (e) => e.waitUntil(clients.claim()));
addEventListener("fetch", (e) => e.request.mode === "navigate" && e.respondWith(new Response("<p>squatted</p>", { headers: { "Content-Type": "text/html" } })));`)
		case script:
			fmt.Fprint(w, `document.body.textContent = "squatted script";`)
		default:
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprintf(w, `<p>squatted</p><script>navigator.serviceWorker.register("/worker.js").then(() => navigator.serviceWorker.ready).then(() => fetch(%q)).then((r) => r.text())
.then(() => { document.body.textContent = "squatted, ready" });</script>`, script)
		}
	})
}

// TestMarkupIsText: a function is hostile, so is its image.
func TestMarkupIsText(t *testing.T) {
	t.Parallel()
	r, ctx := rig.Bare(t, rig.Options{})
	recipe, err := image.LoadRecipe("hostile")
	if err != nil {
		t.Fatal(err)
	}
	r.Images = t.TempDir()
	if _, err := recipe.Build(ctx, r.Images); err != nil {
		t.Fatal(err)
	}
	if err := r.Up(ctx); err != nil {
		t.Fatal(err)
	}
	do := links(ctx, r)
	do["hostile"] = func(question) (any, error) {
		const markup = `<img src=x onerror="window.hacked=1">`
		_, err := r.Apply(ctx, fmt.Sprintf("functions: {evil: {image: markup, config: {'<b>bold</b>': %q}, env: {MARKUP: %q}}}\n", markup, markup))
		return nil, err
	}
	play(ctx, t, r, "text", do)
}
