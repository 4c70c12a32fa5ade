package platform

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	"weir.dev/weir/lab/tied"
	"weir.dev/weir/netns"
)

// byHand is a bare host between two stations: one network namespace, in which somebody set a tool up without Weir. Stations are joined with it as with
// all other platforms.
type byHand struct {
	links
	task     task
	from, to string
	in, out  string     // links of the stations, in the namespace home
	service  netip.Addr // see Path
	router   [6]byte
	programs *processes
	path     Path
	weight   string // of its programs; empty: there is none
}

func openByHand(ctx context.Context, o Options, t task) (Platform, error) {
	inst, err := newInstance(o)
	if err != nil {
		return nil, err
	}
	h := &byHand{links: linksOf(inst), task: t, programs: newProcesses(o, inst, processGroup(inst))}
	if err := h.build(ctx); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

func (h *byHand) build(ctx context.Context) (err error) {
	s := spaces{dir: h.inst.NetnsDir()}
	if _, err := s.add(filepath.Base(h.home), true); err != nil {
		return err
	}
	for _, e := range []struct {
		name        string
		space, link *string
		address     netip.Prefix
	}{{"alice", &h.from, &h.in, sourceAddress}, {"bob", &h.to, &h.out, targetAddress}} {
		if *e.space, err = s.add(e.name, false); err != nil {
			return err
		}
		l, err := h.joinStation(e.name, *e.space, e.address)
		if err != nil {
			return err
		}
		*e.link = l.Name
	}
	if err := h.task.byHand(ctx, h); err != nil {
		return fmt.Errorf("%s: %w", h.task.tool, err)
	}
	h.path = Path{From: h.from, To: h.to, Source: sourceAddress.Addr(), Address: targetAddress.Addr(), Service: h.service, Router: h.router, Space: h.home, Link: h.in, Middle: h.home}
	return nil
}

// Path there is one. It is tried until what was started carries.
func (h *byHand) Path(ctx context.Context, _ Layout) (Path, error) {
	if err := watched(ctx, h.path, h.programs.ill); err != nil {
		return h.path, err
	}
	var err error
	for _, p := range h.programs.all { // by now it is in its group
		if h.weight, err = weighedOf(p.cmd.Process.Pid); err != nil {
			break
		}
	}
	return h.path, err
}

// Conditions that its figures depend on, beside those of a path.
func (h *byHand) Conditions() map[string]string { return weightIs(h.weight) }

// Close removes everything.
func (h *byHand) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := h.programs.close(ctx); err != nil {
		return fmt.Errorf("remove %s: %w", h.inst.Name, err)
	}
	return RemoveInstance(h.inst)
}

// bridge joins the stations by a Linux bridge, which has an address if there is one.
func (h *byHand) bridge(address netip.Prefix) error {
	return netns.Do(h.home, func() error {
		if err := makeBridge("br0", h.inst.Alias("br0")); err != nil {
			return err
		}
		if err := errors.Join(moveTo("br0", h.in), moveTo("br0", h.out)); err != nil || !address.IsValid() {
			return err
		}
		return raise("br0", address)
	})
}

// run a program in the host's namespace to its end.
func (h *byHand) run(ctx context.Context, stdin string, argv ...string) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var out tied.Output
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &out
	if err := tied.Start(h.home, cmd); err != nil {
		return fmt.Errorf("%s: %w", argv[0], err)
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, out.Tail())
	}
	return nil
}

// serve starts a program in the host's namespace that stays until Close.
func (h *byHand) serve(argv ...string) error {
	_, err := h.programs.start(argv[0], h.home, exec.Command(argv[0], argv[1:]...))
	return err
}

// write a file for a program; its path.
func (h *byHand) write(name, text string) (string, error) {
	path := filepath.Join(h.inst.Run, name)
	return path, os.WriteFile(path, []byte(text), 0o600)
}

// handFirewall is the rule set of the function firewall, in its order, by nft. Where the kernel tracks no connections on bridges, a reply is told by its
// source port on both sides.
func handFirewall(ctx context.Context, h *byHand) error {
	if err := h.bridge(netip.Prefix{}); err != nil {
		return err
	}
	if err := h.run(ctx, h.ruleset(true), "nft", "-f", "-"); err == nil {
		return nil
	}
	return h.run(ctx, h.ruleset(false), "nft", "-f", "-")
}

// ruleset of nft, whole or nothing.
func (h *byHand) ruleset(tracked bool) string {
	var b strings.Builder
	b.WriteString("table bridge filter {\n chain filter {\n  type filter hook prerouting priority -200; policy drop;\n")
	rule := func(text string) { fmt.Fprintf(&b, "  %s\n", text) }
	rule("meta protocol arp counter accept")
	rule("meta l4proto icmpv6 icmpv6 type 133-137 counter accept")
	rule("meta l4proto icmp icmp type 3 counter accept")
	rule("meta l4proto icmp icmp type 11-12 counter accept")
	rule("meta l4proto icmpv6 icmpv6 type 1-4 counter accept")
	service := func(text, side string) string {
		proto, port, one := strings.Cut(text, "/")
		if !one {
			return "meta l4proto { icmp, icmpv6 }"
		}
		return fmt.Sprintf("meta l4proto %s %s %s %s", proto, proto, side, port)
	}
	for _, s := range denied() {
		rule(fmt.Sprintf("iifname %q %s counter drop", h.in, service(s, "dport")))
	}
	if tracked {
		rule(fmt.Sprintf("iifname %q ct state established,related counter accept", h.out))
	}
	for _, s := range allowed() {
		rule(fmt.Sprintf("iifname %q %s counter accept", h.in, service(s, "dport")))
		switch proto, _, _ := strings.Cut(s, "/"); {
		case tracked:
		case proto == "icmp":
			rule(fmt.Sprintf("iifname %q meta l4proto icmp icmp type != 8 counter accept", h.out))
			rule(fmt.Sprintf("iifname %q meta l4proto icmpv6 icmpv6 type != 128 counter accept", h.out))
		case proto == "tcp":
			rule(fmt.Sprintf("iifname %q %s tcp flags & (syn | ack) != syn counter accept", h.out, service(s, "sport")))
		default:
			rule(fmt.Sprintf("iifname %q %s counter accept", h.out, service(s, "sport")))
		}
	}
	b.WriteString("  counter drop\n }\n}\n")
	return b.String()
}

// handShaper bounds what leaves each port, as the function shaper does without sharing: a class of htb, and a queue of 50 ms in it.
func handShaper(ctx context.Context, h *byHand) error {
	if err := h.bridge(netip.Prefix{}); err != nil {
		return err
	}
	rate, burst := fmt.Sprintf("%dmbit", shapedMbit), fmt.Sprintf("%db", shapedBurst)
	waits := fmt.Sprint(shapedMbit * 1_000_000 / 8 / 20) // bytes in 50 ms
	for _, link := range []string{h.in, h.out} {
		for _, args := range [][]string{
			{"qdisc", "add", "dev", link, "root", "handle", "1:", "htb", "default", "3"},
			{"class", "add", "dev", link, "parent", "1:", "classid", "1:3", "htb", "rate", rate, "burst", burst, "cburst", burst},
			{"qdisc", "add", "dev", link, "parent", "1:3", "handle", "13:", "tbf", "rate", "40gbit", "burst", "4mb", "limit", waits},
		} {
			if err := h.run(ctx, "", append([]string{"tc"}, args...)...); err != nil {
				return err
			}
		}
	}
	return nil
}

// handNAT routes; what goes to the second station has an address of the host's.
func handNAT(ctx context.Context, h *byHand) error {
	if err := h.route(ctx, h.out); err != nil {
		return err
	}
	return h.run(ctx, fmt.Sprintf("table ip nat {\n chain post {\n  type nat hook postrouting priority 100;\n  oifname %q ip saddr %s snat to %s\n }\n}\n", h.out, sourceAddress.Addr(), poolAddress), "nft", "-f", "-")
}

// route between the stations, which take each other for neighbours: the host answers for both (proxy ARP). It has an address of its own at a link.
func (h *byHand) route(ctx context.Context, link string) error {
	commands := [][]string{
		{"ip", "address", "add", poolAddress.String() + "/32", "dev", link},
		{"ip", "route", "add", sourceAddress.Addr().String() + "/32", "dev", h.in},
		{"ip", "route", "add", targetAddress.Addr().String() + "/32", "dev", h.out, "src", poolAddress.String()},
		{"sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv4.conf." + h.in + ".proxy_arp=1", "net.ipv4.conf." + h.out + ".proxy_arp=1"},
	}
	for _, argv := range commands {
		if err := h.run(ctx, "", argv...); err != nil {
			return err
		}
	}
	h.router = h.inst.MAC(stationObject("alice") + "/switch")
	return nil
}

// handBalancer routes; connections to the host's address go to targets that a hash of the client's address and port chooses, as the function load-balancer chooses them. There is
// one target, in all places of the table.
func handBalancer(ctx context.Context, h *byHand) error {
	if err := h.route(ctx, h.in); err != nil {
		return err
	}
	h.service = poolAddress
	const places = 64
	targets := make([]string, places)
	for i := range targets {
		targets[i] = fmt.Sprintf("%d : %s", i, targetAddress.Addr())
	}
	return h.run(ctx, fmt.Sprintf("table ip balancer {\n chain pre {\n  type nat hook prerouting priority -100;\n  iifname %q ip daddr %s tcp dport %d dnat to jhash ip saddr . tcp sport mod %d map { %s }\n }\n}\n",
		h.in, poolAddress, balancedPort, places, strings.Join(targets, ", ")), "nft", "-f", "-")
}

// handMonitor is softflowd at the bridge's first port, with the bounds of the function monitor; both export to nobody. It wants a directory below /run, and gets a /run of its own.
func handMonitor(_ context.Context, h *byHand) error {
	if err := h.bridge(netip.Prefix{}); err != nil {
		return err
	}
	argv := []string{"unshare", "--mount", "sh", "-ec", `mount -t tmpfs run /run; mkdir -p /run/softflowd/chroot; exec softflowd "$@"`, "sh", "-d", "-6", "-i", h.in, "-T", "vlan", "-m", fmt.Sprint(monitoredFlows), "-B", fmt.Sprint(monitoredBytes),
		"-p", "/run/softflowd/pid", "-c", "/run/softflowd/control", "-t", fmt.Sprintf("maxlife=%d", monitoredLife), "-t", "expint=1"}
	for _, idle := range []string{"tcp", "tcp.rst", "tcp.fin", "udp", "icmp", "general"} {
		argv = append(argv, "-t", fmt.Sprintf("%s=%d", idle, monitoredIdle))
	}
	return h.serve(argv...)
}

// handImpair delays what leaves each port, as the function impair does.
func handImpair(ctx context.Context, h *byHand) error {
	if err := h.bridge(netip.Prefix{}); err != nil {
		return err
	}
	for _, link := range []string{h.in, h.out} {
		err := h.run(ctx, "", "tc", "qdisc", "add", "dev", link, "root", "netem", "delay", fmt.Sprintf("%dms", impairedMs), "limit", fmt.Sprint(impairedMost))
		if err != nil {
			return err
		}
	}
	return nil
}

// proxied is where nginx and dnsmasq are asked.
func (h *byHand) proxied() error {
	h.service = toolAddress.Addr()
	return h.bridge(toolAddress)
}

// handFilter is nginx that passes requests on to the second station, but for the hosts and paths that the function http-filter forbids.
func handFilter(_ context.Context, h *byHand) error {
	if err := h.proxied(); err != nil {
		return err
	}
	return h.nginx(toolAddress.Addr(), fmt.Sprintf(`server_names_hash_bucket_size 64;
  server { listen %[1]s:80; server_name %[2]s; return 403; }`, toolAddress.Addr(), strings.Join(numbered("forbidden%d.example"), " ")),
		"", strings.Join(numbered("location ^~ /forbidden-%d/ { return 403; }"), "\n    "))
}

// handCache is nginx under an address of its own, which connects to the second station in its own name.
func handCache(_ context.Context, h *byHand) error {
	if err := h.proxied(); err != nil {
		return err
	}
	return h.cachingNginx(toolAddress.Addr(), "")
}

// handCacheUnseen is nginx on a router: connections to the second station are led to it, and it connects to that one in the clients' names, as the function cache does. See
// "IP transparency" in the documentation of nginx.
func handCacheUnseen(ctx context.Context, h *byHand) error {
	if err := h.route(ctx, h.in); err != nil {
		return err
	}
	for _, argv := range [][]string{{"ip", "rule", "add", "fwmark", "1", "lookup", "100"}, {"ip", "route", "add", "local", "0.0.0.0/0", "dev", "lo", "table", "100"}} {
		if err := h.run(ctx, "", argv...); err != nil {
			return err
		}
	}
	err := h.run(ctx, fmt.Sprintf(`table ip cache {
 chain clients { type nat hook prerouting priority -100; iifname %q ip daddr %s tcp dport 80 redirect to :80; }
 chain servers { type filter hook prerouting priority -150; iifname %q tcp sport 80 socket transparent 1 meta mark set 1; }
}
`, h.in, targetAddress.Addr(), h.out), "nft", "-f", "-")
	if err != nil {
		return err
	}
	return h.cachingNginx(poolAddress, "proxy_bind $remote_addr transparent;")
}

// cachingNginx answers what the second station has answered before. It decides as the function cache does what may be kept, and counts results. more is what else stands in location /.
func (h *byHand) cachingNginx(at netip.Addr, more string) error {
	return h.nginx(at, fmt.Sprintf(`tcp_nopush on;
  log_format result '$upstream_cache_status $body_bytes_sent';
  map $http_cache_control $reload { default 0; ~*no-cache 1; ~*no-store 1; ~*max-age=0+(,|$) 1; }
  map $http_pragma $reload_pragma { default 0; ~*no-cache 1; }
  map $upstream_http_content_length $too_long { default 1; "~^0*[0-9]{1,6}$" 0; }
  proxy_cache_path %[1]s/cache levels=1:2 keys_zone=kept:2m max_size=%[2]dm inactive=1d use_temp_path=off;`, h.inst.Run, cachedMB),
		fmt.Sprintf(`access_log %s/results result buffer=32k flush=100ms; add_header X-Cache $upstream_cache_status always;
      proxy_cache kept; proxy_cache_lock on; proxy_cache_key "$request_method $http_host $request_uri"; proxy_cache_convert_head off; proxy_cache_revalidate on;
      proxy_cache_bypass $reload $reload_pragma $http_authorization $http_upgrade; proxy_no_cache $too_long $http_authorization $http_upgrade; %[2]s`, h.inst.Run, more), "")
}

// nginx with a worker for each processor, at an address: connections stay, and requests go on to the second station. all, location and server are what
// else stands in its blocks http, location / and server.
func (h *byHand) nginx(at netip.Addr, all, location, server string) error {
	conf, err := h.write("nginx.conf", fmt.Sprintf(`daemon off; master_process on; user root; worker_processes auto; pcre_jit on; pid %[1]s/nginx.pid; error_log stderr error;
events { worker_connections 1024; }
http {
  access_log off;
  client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/fastcgi; uwsgi_temp_path %[1]s/uwsgi; scgi_temp_path %[1]s/scgi;
  keepalive_requests 1000000000; keepalive_timeout 1h; sendfile on; tcp_nodelay on;
  upstream servers { server %[2]s:80; keepalive 64; keepalive_requests 1000000000; keepalive_timeout 1h; }
  %[4]s
  server {
    listen %[3]s:80 default_server;
    location / { proxy_pass http://servers; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host; %[5]s }
    %[6]s
  }
}
`, h.inst.Run, targetAddress.Addr(), at, all, location, server))
	if err != nil {
		return err
	}
	return h.serve("nginx", "-p", h.inst.Run, "-c", conf, "-e", "stderr")
}

// handDNS is dnsmasq with the names of the function dns-lb. It hands all others on to the second station.
func handDNS(_ context.Context, h *byHand) error {
	if err := h.proxied(); err != nil {
		return err
	}
	argv := []string{
		"dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--user=root", "--group=root", "--pid-file=", "--bind-interfaces",
		"--listen-address=" + toolAddress.Addr().String(), "--local-ttl=30", "--server=" + targetAddress.Addr().String(),
	}
	for i := range ruleCount {
		argv = append(argv, fmt.Sprintf("--address=/name%d.example/10.9.1.%d", i, i))
	}
	return h.serve(argv...)
}

//go:embed suricata.yaml
var suricataText string

// handIDS is the Suricata of the image ids, outside its container, between the two links.
func handIDS(ctx context.Context, h *byHand) error {
	for _, link := range []string{h.in, h.out} {
		if err := h.run(ctx, "", "ip", "link", "set", link, "promisc", "on"); err != nil {
			return err
		}
	}
	root, err := h.programs.root(ctx, h.task.image)
	if err != nil {
		return err
	}
	rules, err := h.write("suricata.rules", strings.Join(suricataRules(), "\n")+"\n")
	if err != nil {
		return err
	}
	t, err := template.New("suricata.yaml").Parse(suricataText)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := t.Execute(&text, map[string]string{"Dir": h.inst.Run, "In": h.in, "Out": h.out, "Root": root, "Rules": rules}); err != nil {
		return err
	}
	conf, err := h.write("suricata.yaml", text.String())
	if err != nil {
		return err
	}
	loader, libraries, err := loaderOf(root)
	if err != nil {
		return err
	}
	cmd := exec.Command(loader, "--library-path", libraries, filepath.Join(root, "usr/bin/suricata"), "-c", conf, "--af-packet", "--init-errors-fatal", "-l", h.inst.Run)
	if _, err := h.programs.start("suricata", h.home, cmd); err != nil {
		return err
	}
	for end := time.Now().Add(patience); !exists(filepath.Join(h.inst.Run, "control.sock")); { // it is made when the rules are compiled
		if err := h.programs.ill(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(end) {
			return fmt.Errorf("suricata is not ready within %s", patience)
		}
	}
	return nil
}

// loaderOf the programs of an image's root, and the directories of its libraries: so they run outside of it.
func loaderOf(root string) (loader, libraries string, err error) {
	for _, pattern := range []string{"usr/lib64/ld-linux-x86-64.so.2", "usr/lib/ld-linux-aarch64.so.1"} {
		if path := filepath.Join(root, pattern); exists(path) {
			loader = path
		}
	}
	if loader == "" {
		return "", "", fmt.Errorf("%s: no loader of programs: want amd64 or arm64", root)
	}
	dirs, err := filepath.Glob(filepath.Join(root, "usr/lib/*-linux-gnu"))
	if err == nil && len(dirs) == 0 {
		err = fmt.Errorf("%s: no libraries", root)
	}
	return loader, strings.Join(dirs, ":"), err
}
