// Command demo shows Weir's main job on real packets: two stations, a chain of containers between them, traffic that is allowed, refused,
// copied and counted, the GLANF paper's demonstration, what a chain costs, a function that dies and comes back. It removes all that it made
// (KEEP=1 leaves it running and says what to try next).
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/glanf"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/netns"
)

const (
	name  = "demo"      // of its Weir
	space = "weir-demo" // where that runs
)

// figures are what the demo measures, for scripts (-o json).
type figures struct {
	Paper  paperFigure   `json:"paper"`
	Chains []chainFigure `json:"chains"`
	Crash  crashFigure   `json:"crash"`
	UpNs   int64         `json:"up_ns"`
	ApplyN int64         `json:"apply_ns"`
	Total  float64       `json:"total_s"`
}

// paperFigure is of the GLANF paper's demonstration.
type paperFigure struct {
	Chain   string `json:"chain"`
	EventNs int64  `json:"event_ns,omitempty"` // from the trigger to its event; without ids there is none
	RateBps int64  `json:"rate_bps"`
	WantBps int64  `json:"want_rate_bps"`
}

type chainFigure struct {
	Wires   int     `json:"wires"`
	TCPGbps float64 `json:"tcp_gbps"`
	PingNs  int64   `json:"ping_ns"`
}

type crashFigure struct {
	Function string `json:"function"`
	OutageNs int64  `json:"outage_ns"` // as the agent saw it
	Lost     int    `json:"lost_pings"`
	Sent     int    `json:"sent_pings"`
}

type demo struct {
	*rig.Rig
	ctx    context.Context
	color  bool
	quiet  bool
	step   int
	report figures
}

func main() {
	format := flag.String("o", "text", "text or json")
	seconds := flag.Int("seconds", 3, "length of each throughput measurement")
	example := flag.String("f", "examples/first-chain.yaml", "the document to apply")
	flag.Parse()
	if err := run(*format, *seconds, *example); err != nil {
		fmt.Fprintln(os.Stderr, "demo: failed:", err)
		os.Exit(1)
	}
}

func run(format string, seconds int, example string) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	begin := time.Now()
	if err := kept(); err != nil {
		return err
	}
	r, err := rig.New(rig.Options{Name: name, Netns: space})
	if err != nil {
		return err
	}
	d := &demo{Rig: r, ctx: ctx, quiet: format == "json", color: term.IsTerminal(int(os.Stdout.Fd())) && os.Getenv("NO_COLOR") == ""}
	keep := os.Getenv("KEEP") == "1"
	defer func() {
		if keep && err == nil {
			d.next()
			return
		}
		d.title("taking everything down")
		if cerr := r.Close(); cerr != nil {
			err = errors.Join(err, cerr)
		}
		if err == nil {
			d.ok("nothing left")
			d.finish(format, begin, "`KEEP=1 make demo` leaves it running; ")
		}
	}()
	for _, s := range []func() error{
		func() error { return d.start(example) }, d.allowed, d.refused, d.tapped, d.counted,
		func() error { return d.paper(example) },
		func() error { return d.cost(seconds, example) }, d.crash,
	} {
		if err := s(); errors.Is(ctx.Err(), context.Canceled) {
			return errors.New("interrupted")
		} else if err != nil {
			return err
		}
	}
	if keep {
		d.finish(format, begin, "")
	}
	return nil
}

// kept refuses to begin beside a demo that runs, and says how to take one down that was left running.
func kept() error {
	if !netns.Exists(netns.Path(space)) {
		return nil
	}
	text := fmt.Sprintf("namespace %s exists: another demo runs, or KEEP=1 left one running.", space)
	if roots, _ := filepath.Glob(filepath.Join(os.TempDir(), "weir-"+name+"-*")); len(roots) == 1 {
		text += " To take it down:\n" + takeDown("bin/weir", roots[0])
	} else {
		text += " Wait for its end, or take it down as it told"
	}
	return errors.New(text)
}

// takeDown is what a person types to take a demo down that was left running.
func takeDown(bin, root string) string {
	return fmt.Sprintf(`   WEIR_NAME=%s WEIR_ROOT=%s %s down --yes
   ip netns pids bob | xargs -r kill    # its web servers
   for n in alice bob %s; do ip netns del $n; done; rm -r %s`, name, root, bin, space, root)
}

func (d *demo) finish(format string, begin time.Time, hint string) {
	d.report.Total = time.Since(begin).Seconds()
	if format == "json" {
		b, _ := json.MarshalIndent(d.report, "", "  ") // plain data
		fmt.Println(string(b))
		return
	}
	fmt.Printf("\n%.0f seconds in all. %sdocs/deploy-a-chain.md goes on from here.\ndemo: ok\n", d.report.Total, hint)
}

func (d *demo) title(format string, args ...any) {
	d.step++
	d.print("\n"+d.paint("1;36", "%d. ")+d.paint("1", format), append([]any{d.step}, args...)...)
}

func (d *demo) ok(format string, args ...any) {
	d.print("   "+d.paint("32", "ok")+" "+format, args...)
}

func (d *demo) show(text string) {
	for _, l := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		d.print("   %s", d.paint("2", "| ")+l)
	}
}

func (d *demo) print(format string, args ...any) {
	if !d.quiet {
		fmt.Printf(format+"\n", args...)
	}
}

func (d *demo) paint(code, text string) string {
	if !d.color {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (d *demo) start(example string) error {
	d.title("two stations, alice and bob, and a Weir between them")
	for _, s := range []string{"alice", "bob"} {
		if err := d.Namespace(s); err != nil {
			return err
		}
	}
	begin := time.Now()
	if err := d.Up(d.ctx); err != nil {
		return err
	}
	d.report.UpNs = time.Since(begin).Nanoseconds()
	d.ok("weir up: answers after %s", time.Since(begin).Round(time.Millisecond))
	begin = time.Now()
	out, err := d.Weir(d.ctx, "apply", "-f", example)
	if err != nil {
		return err
	}
	d.report.ApplyN = time.Since(begin).Nanoseconds()
	d.show(out)
	d.ok("weir apply -f %s: in force after %s", example, time.Since(begin).Round(time.Millisecond))
	if err := os.MkdirAll(d.Root+"/www", 0o755); err != nil {
		return err
	}
	if err := os.Chmod(d.Root, 0o755); err != nil { // the web server's files; the state in it has modes of its own
		return err
	}
	if err := os.WriteFile(d.Root+"/www/index.html", []byte("hello from bob\n"), 0o644); err != nil {
		return err
	}
	for _, port := range []string{"80", "8080"} {
		if _, err := d.Start("bob", "busybox", "httpd", "-f", "-p", "10.9.0.2:"+port, "-h", d.Root+"/www"); err != nil {
			return err
		}
	}
	return errors.Join(d.Listening(d.ctx, "bob", 80), d.Listening(d.ctx, "bob", 8080))
}

func (d *demo) get(port string) (string, error) {
	return d.Run(d.ctx, "alice", "curl", "-sS", "--max-time", "2", "http://10.9.0.2:"+port+"/index.html")
}

func (d *demo) allowed() error {
	d.title("HTTP from alice to bob passes the firewall and the wire")
	out, err := d.get("80")
	if err != nil {
		return err
	}
	if strings.TrimSpace(out) != "hello from bob" {
		return fmt.Errorf("bob answered %q", out)
	}
	d.ok("alice got %q", strings.TrimSpace(out))
	return nil
}

func (d *demo) refused() error {
	d.title("another port is refused by the firewall in its container")
	if out, err := d.get("8080"); err == nil {
		return fmt.Errorf("port 8080 should be refused, bob answered %q", out)
	}
	if _, err := d.Run(d.ctx, "bob", "curl", "-sS", "--max-time", "2", "http://10.9.0.2:8080/index.html"); err != nil {
		return fmt.Errorf("bob's own port 8080 does not answer, so the refusal proves nothing: %w", err)
	}
	d.ok("port 8080 listens at bob, but alice does not reach it")
	return nil
}

func (d *demo) tapped() error {
	d.title("the monitor saw a copy of it all")
	deadline := time.Now().Add(10 * time.Second)
	for {
		out, err := d.Weir(d.ctx, "function", "logs", "mon", "--tail", "40")
		if err != nil {
			return err
		}
		var lines []string
		for _, l := range strings.Split(out, "\n") {
			if strings.Contains(l, "10.9.0.2") {
				lines = append(lines, l)
			}
		}
		if len(lines) > 0 && strings.Contains(out, "80") {
			d.show(strings.Join(lines[max(0, len(lines)-4):], "\n"))
			d.ok("flow log of the tap: weir function logs mon")
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the monitor logged no flow to bob:\n%s", out)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (d *demo) counted() error {
	d.title("counters per hop")
	var c api.Counters
	if err := d.Get(d.ctx, &c, "counters"); err != nil {
		return err
	}
	out, err := d.Weir(d.ctx, "get", "rules")
	if err != nil {
		return err
	}
	d.show(out)
	for _, r := range c.Rules {
		if r.Hits.Packets > 0 {
			d.ok("%d rules, read back from the kernel", len(c.Rules))
			return nil
		}
	}
	return errors.New("no rule counted a packet")
}

// paper is the demonstration of the GLANF paper, with ids if its image is there: it is made of Debian packages, which takes minutes.
func (d *demo) paper(example string) (err error) {
	ids, err := d.has("ids")
	if err != nil {
		return err
	}
	chain := "http-filter | shaper"
	if ids {
		chain += " | ids"
	}
	d.title("the demonstration of the GLANF paper: %s", chain)
	begin := time.Now()
	if _, err := d.Apply(d.ctx, glanf.Document(`endpoints:
  alice: {netns: alice, interface: eth0, address: 10.9.0.1/24}
  bob: {netns: bob, interface: eth0, address: 10.9.0.2/24}
`, ids, nil), "--prune"); err != nil {
		return err
	}
	d.ok("another chain, in the place of the first one: in force after %s", time.Since(begin).Round(time.Millisecond))
	s := glanf.Stations{Rig: d.Rig, Client: "alice", Server: "bob", Addr: "10.9.0.2"}
	if err := s.Serve(); err != nil {
		return err
	}
	defer s.Close()
	if a, err := s.Ask(d.ctx, "/?q=harmless"); err != nil || a.Status != 200 || !a.Reached {
		return fmt.Errorf("a request that no rule forbids: answer %d, at bob: %t, %w", a.Status, a.Reached, err)
	}
	a, err := s.Split(d.ctx)
	if err != nil {
		return err
	}
	d.show(fmt.Sprintf("alice sends   %q\nthen          %q", a.Segments[0], a.Segments[1]))
	d.ok("http-filter: the word %q, split over two TCP segments, is blocked: alice got %d, bob no request", glanf.Word, a.Status)
	rate, err := s.Rate(d.ctx, 2)
	if err != nil {
		return err
	}
	d.ok("shaper: set to %.0f Mb/s, measured %.2f Mb/s (%+.1f %%)", glanf.RateBits/1e6, rate/1e6, (rate/glanf.RateBits-1)*100)
	d.report.Paper = paperFigure{Chain: chain, RateBps: int64(rate), WantBps: glanf.RateBits}
	if !ids {
		d.print("   -- ids (Suricata) is left out: its image is not built yet. `make demo IDS=1` builds it, which takes minutes, and shows it")
	} else {
		alarm, err := s.Trigger(d.ctx)
		if err != nil {
			return err
		}
		d.show(fmt.Sprintf("%s  %s  %s", alarm.Event.Severity, alarm.Event.Reason, alarm.Event.Message))
		d.ok("ids: the event above came %s after the request that a rule looks for (promised: %s)", alarm.After.Round(time.Millisecond), glanf.Soon)
		d.report.Paper.EventNs = alarm.After.Nanoseconds()
	}
	_, err = d.Weir(d.ctx, "apply", "-f", example, "--prune")
	return err
}

// has says whether an image of that name is there.
func (d *demo) has(name string) (bool, error) {
	out, err := d.Weir(d.ctx, "image", "list", "-o", "json")
	if err != nil {
		return false, err
	}
	var list struct {
		Items []struct {
			Ref string `json:"ref"`
		} `json:"items"`
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return false, fmt.Errorf("weir image list: %w", err)
	}
	for _, i := range list.Items {
		if i.Ref == name+":1" {
			return true, nil
		}
	}
	return false, nil
}

// wires is a document with a chain of n wires in place of the first one.
func wires(n int) string {
	var b strings.Builder
	b.WriteString("functions:\n")
	var path []string
	for i := 1; i <= n; i++ {
		fmt.Fprintf(&b, "  x%d: {image: wire}\n", i)
		path = append(path, fmt.Sprintf("x%d", i))
	}
	fmt.Fprintf(&b, "chains:\n  wires: %s\n", strings.Join(path, " | "))
	b.WriteString("policies:\n  guests: {from: alice, to: bob, match: [tcp, icmp], chain: wires, priority: 100}\n")
	return b.String()
}

func (d *demo) cost(seconds int, example string) error {
	d.title("what a chain costs: one TCP stream and ping, through 0, 1 and 9 containers")
	if _, err := d.Weir(d.ctx, "delete", "policy", "guests"); err != nil {
		return err
	}
	for _, n := range []int{0, 1, 9} {
		if n > 0 {
			if _, err := d.Apply(d.ctx, wires(n)); err != nil {
				return err
			}
		}
		if _, err := d.Ping(d.ctx, "alice", "10.9.0.2", 20, "0.01"); err != nil {
			return err
		}
		rtt, err := d.Ping(d.ctx, "alice", "10.9.0.2", 500, "0.002")
		if err != nil {
			return err
		}
		bits, err := d.Iperf(d.ctx, "alice", "bob", "10.9.0.2", 5201, seconds)
		if err != nil {
			return err
		}
		d.report.Chains = append(d.report.Chains, chainFigure{Wires: n, TCPGbps: bits / 1e9, PingNs: rtt.Nanoseconds()})
		d.ok("%d wires: %5.1f Gb/s, ping %s", n, bits/1e9, rtt)
	}
	_, err := d.Weir(d.ctx, "apply", "-f", example, "--prune")
	return err
}

func (d *demo) crash() error {
	d.title("the firewall is killed: on_fail is drop, so nothing leaks past it, and it comes back by itself")
	var before api.Function
	if err := d.Get(d.ctx, &before, "function", "fw"); err != nil {
		return err
	}
	ping := make(chan string, 1)
	go func() {
		out, _ := d.Run(d.ctx, "alice", "ping", "-q", "-n", "-c", "400", "-i", "0.005", "-W", "1", "10.9.0.2") // loss is its exit code
		ping <- out
	}()
	time.Sleep(300 * time.Millisecond)
	if err := syscall.Kill(before.Status.PID, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill function fw, pid %d: %w", before.Status.PID, err)
	}
	summary := <-ping
	var lost, sent, got int
	if _, after, ok := strings.Cut(summary, "ping statistics ---\n"); ok {
		fmt.Sscanf(after, "%d packets transmitted, %d received", &sent, &got)
		lost = sent - got
	}
	var after api.Function
	deadline := time.Now().Add(15 * time.Second)
	for {
		if err := d.Get(d.ctx, &after, "function", "fw"); err != nil {
			return err
		}
		if after.Status.Healthy && after.Status.PID != before.Status.PID && after.Status.Restarts > before.Status.Restarts {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("fw did not come back: %+v", after.Status)
		}
		time.Sleep(20 * time.Millisecond)
	}
	d.report.Crash = crashFigure{Function: "fw", Lost: lost, Sent: sent}
	for d.report.Crash.OutageNs == 0 && time.Now().Before(deadline) { // told when it has stayed up for some seconds
		var list struct {
			Items []api.Event `json:"items"`
		}
		if err := d.Get(d.ctx, &list, "events"); err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Reason == "FunctionRecovered" && e.Object == "fw" {
				d.report.Crash.OutageNs = e.OutageNs
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	out, err := d.Weir(d.ctx, "events", "--object", "function/fw", "--limit", "4")
	if err != nil {
		return err
	}
	d.show(out)
	if sent == 0 || d.report.Crash.OutageNs <= 0 {
		return fmt.Errorf("the kill of fw went unnoticed: %d pings, events:\n%s", sent, out)
	}
	d.ok("pid %d died, pid %d took over; outage %s; %d of %d pings lost at 5 ms", before.Status.PID, after.Status.PID,
		time.Duration(d.report.Crash.OutageNs).Round(time.Millisecond), lost, sent)
	if _, err := d.get("80"); err != nil {
		return fmt.Errorf("HTTP after the recovery: %w", err)
	}
	d.ok("HTTP passes again")
	return nil
}

func (d *demo) next() {
	d.print(`
Left running (KEEP=1). Try:
   export WEIR_NAME=%s WEIR_ROOT=%s
   nsenter --net=/run/netns/alice curl http://10.9.0.2/index.html
   %s status
   %s get rules
   %s function logs mon
   %s events -f
Take it down:
%s`,
		d.Name, d.Root, d.Bin, d.Bin, d.Bin, d.Bin, takeDown(d.Bin, d.Root))
}
