package main

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/rig"
)

// alertLine is an alert as Suricata writes it, of one that a rule has dropped.
func alertLine(sid, port int, at time.Time) string {
	return fmt.Sprintf(`{"timestamp":"%s","flow_id":1835472093211%03d,"in_iface":"in-i","event_type":"alert","src_ip":"10.0.0.1","src_port":%d,"dest_ip":"10.0.0.2","dest_port":80,"proto":"TCP","pkt_src":"wire/pcap",`+
		`"tx_id":0,"alert":{"action":"blocked","gid":1,"signature_id":%d,"rev":0,"signature":"rule %[4]d","category":"","severity":2},"verdict":{"action":"drop"},"ts_progress":"request_complete",`+
		`"http":{"hostname":"10.0.0.2","url":"/secret","http_user_agent":"curl/8.14.1","http_method":"GET","protocol":"HTTP/1.1","length":0},"app_proto":"http","direction":"to_server",`+
		`"flow":{"pkts_toserver":3,"pkts_toclient":1,"bytes_toserver":260,"bytes_toclient":74,"start":"%[1]s","src_ip":"10.0.0.1","dest_ip":"10.0.0.2","src_port":%[3]d,"dest_port":80}}`+"\n",
		at.UTC().Format("2006-01-02T15:04:05.000000-0700"), port%1000, port, sid)
}

// BenchmarkAlerts reads 1,000 alerts of 50 rules, and makes events of them.
func BenchmarkAlerts(b *testing.B) {
	const lines, rules = 1000, 50
	var text strings.Builder
	for i := range lines {
		text.WriteString(alertLine(1000+i%rules, 1024+i, time.Unix(1000, 0)))
	}
	a := newAlerts(slog.New(slog.NewTextHandler(io.Discard, nil)))
	now, n, events, told := time.Now(), 0, 0, 0
	b.SetBytes(int64(text.Len()))
	b.ReportAllocs()
	for b.Loop() {
		readEve(strings.NewReader(text.String()), a.take)
		for _, t := range a.tallies {
			told += t.more
		}
		now = now.Add(packEvery)
		events += len(a.due(now))
		n++
	}
	if a.garbled > 0 || told != n*lines || events != n*(eventsAtIt+1) || len(a.tallies) != rules {
		b.Fatalf("%d lines unread, %d alerts, %d events of %d rules: want 0, %d, %d, %d", a.garbled, told, events, len(a.tallies), n*lines, n*(eventsAtIt+1), rules)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n*lines), "ns/alert")
}

// BenchmarkSettled reads alerts of our own rules and tells the switch of their flows.
func BenchmarkSettled(b *testing.B) {
	const lines = 100
	path := filepath.Join(b.TempDir(), "settle.sock")
	said := verdicts(b, path)
	to := nf.NewSettler(path, slog.New(slog.DiscardHandler))
	defer to.Close()
	a, settled, n := newAlerts(slog.New(slog.DiscardHandler)), 0, 0
	var now time.Time
	a.settle = func(e eve) { settle(to, e, []string{"in-i", "out-i"}, now); settled++ }
	line := func(port int) string {
		return strings.Replace(alertLine(sidMarked, port, now), `"verdict":{"action":"drop"}`, `"verdict":{"action":"alert"}`, 1)
	}
	rig.Eventually(b, "a flow is said", func() bool { // what a busy machine would say too late is not said
		now = time.Now()
		a.take([]byte(line(1024)))
		for _, want := range []string{"pass tcp 10.0.0.1:1024 10.0.0.2:80 oneway at in", "pass tcp 10.0.0.2:80 10.0.0.1:1024 oneway"} {
			select {
			case got := <-said:
				if got != want {
					b.Fatalf("said %q: want %q", got, want)
				}
			case <-time.After(time.Second):
				return false
			}
		}
		return true
	})
	var text strings.Builder
	for i := range lines {
		text.WriteString(line(1024 + i))
	}
	go func() { // until the test program ends: the platform reads on
		for range said { //nolint:revive // what is said again is not looked at
		}
	}()
	settled = 0
	b.SetBytes(int64(text.Len()))
	b.ReportAllocs()
	for b.Loop() {
		readEve(strings.NewReader(text.String()), a.take)
		n++
	}
	if settled != n*lines || len(a.tallies) > 0 || a.garbled > 0 {
		b.Fatalf("%d flows, %d rules, %d lines unread: want %d flows and no others", settled, len(a.tallies), a.garbled, n*lines)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n*lines), "ns/flow")
}

// BenchmarkRules writes the files that Suricata reads, with as many rules as a configuration may have, as a reload does.
func BenchmarkRules(b *testing.B) {
	const rule = `alert tcp any any -> any 8080 (msg:"weir: bulk"; flow:established; content:"bulk"; bypass; sid:%d;)` + "\n"
	var rules strings.Builder
	n := 0
	for ; rules.Len()+len(rule)+10 < maxRules; n++ {
		fmt.Fprintf(&rules, rule, 1000000+n)
	}
	raw := fmt.Appendf(nil, `{"rules": %q, "home_nets": ["10.0.0.0/8"]}`, rules.String())
	for name, settles := range map[string]bool{"plain": false, "settles": true} {
		b.Run(name, func(b *testing.B) {
			dir := b.TempDir()
			b.SetBytes(int64(rules.Len()))
			b.ReportAllocs()
			for b.Loop() {
				cfg, err := parseConfig(raw)
				must(b, err)
				must(b, cfg.render(dir, dir, []string{"in-i", "out-i"}, settles))
			}
			text, err := os.ReadFile(filepath.Join(dir, rulesFile))
			must(b, err)
			marked := bytes.Count(text, []byte("flowbits:set,"+bypassMark+"; sid:1"))
			if lines := bytes.Count(text, []byte(`msg:"weir: bulk"`)); lines != n || marked != map[bool]int{true: n}[settles] {
				b.Fatalf("%d rules, %d of them mark their flows: want %d", lines, marked, n)
			}
		})
	}
}
