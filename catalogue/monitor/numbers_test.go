package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"

	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/rig"
)

// Numbers are told of what the tap sees, of flows for which there is no room, and of what a collector and a reader got.
func TestNumbersAreTold(t *testing.T) {
	r := rig.New(t, true)
	dir := t.TempDir()
	c, ipfix := collect(t)
	file, metrics, flows := filepath.Join(dir, "config.json"), filepath.Join(dir, "metrics.sock"), filepath.Join(dir, "flows.sock")
	must(t, os.WriteFile(file, []byte(`{"max_flows": 2, "idle_s": 60, "active_s": 1}`), 0o644))
	var told atomic.Value
	told.Store("")
	l, err := net.Listen("unix", metrics)
	must(t, err)
	platform := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if text, err := io.ReadAll(r.Body); err == nil && r.Method == http.MethodPost {
			told.Store(string(text))
		}
	})}
	go platform.Serve(l) //nolint:errcheck // it is closed
	defer platform.Close()
	text := func() string { s, _ := told.Load().(string); return s }
	program := rig.Build(t, ".")
	p := r.Start(program, "-flows", flows, "-config", file, "-ipfix", ipfix, "-metrics", metrics)
	p.Await(`"start"`)
	rig.Eventually(t, "numbers are told at once", func() bool { return strings.Contains(text(), "monitor_flows 0\n") })
	reader := r.Start(program, "-flows", flows, "-follow", formatJSON)
	rig.Eventually(t, "a reader is there", func() bool {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/unix", p.PID()))
		return err == nil && strings.Count(string(raw), flows) > 1
	})

	udp := func(reply bool, sport uint16) []byte {
		ip, ports := v4(17), &layers.UDP{SrcPort: layers.UDPPort(sport), DstPort: 9}
		if reply {
			ip.SrcIP, ip.DstIP, ports.SrcPort, ports.DstPort = ip.DstIP, ip.SrcIP, ports.DstPort, ports.SrcPort
		}
		return build(t, eth(0x800), ip, ports)
	}
	for range 5 {
		r.Client.Send(udp(false, 5000))
	}
	for range 3 {
		r.Client.Send(udp(true, 5000))
	}
	r.Client.Send(udp(false, 5001))
	for range 4 {
		r.Client.Send(udp(false, 5002)) // there is no room for it
	}
	long := len(udp(false, 5000))
	rig.Eventually(t, "the numbers are right", func() bool {
		for c.hear(10 * time.Millisecond) {
		}
		for _, want := range []string{
			"monitor_flows 2", "monitor_flows_max 2", "monitor_flows_total 2",
			`monitor_packets_total{direction="forward"} 6`, fmt.Sprintf(`monitor_bytes_total{direction="forward"} %d`, 6*long),
			`monitor_packets_total{direction="reply"} 3`, fmt.Sprintf(`monitor_bytes_total{direction="reply"} %d`, 3*long),
			"monitor_untracked_packets_total 4", fmt.Sprintf("monitor_untracked_bytes_total %d", 4*long),
			"monitor_dropped_packets_total 0", "monitor_unlogged_lines_total 0", "monitor_displaced_talkers_total 0",
			fmt.Sprintf(`monitor_exported_records_total{to="collector"} %d`, c.sequence), `monitor_missed_records_total{to="collector"} 0`,
			fmt.Sprintf(`monitor_exported_records_total{to="reader"} %d`, c.sequence), `monitor_missed_records_total{to="reader"} 0`,
		} {
			if !strings.Contains(text(), "\n"+want+"\n") {
				return false
			}
		}
		return c.sequence >= 3 // two directions of the first flow, one of the second
	})
	p.Signal(syscall.SIGTERM)
	must(t, p.End())
	must(t, reader.End())
}

// A platform that refuses numbers, or does not answer, holds up nothing. What is wrong is said once, and again if it went well in between.
func TestTellerDoesNotWait(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "metrics.sock")
	l, err := net.Listen("unix", socket)
	must(t, err)
	var status, requests atomic.Int32
	platform := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if status.Load() == 0 { // no answer
			<-r.Context().Done()
			return
		}
		w.WriteHeader(int(status.Load()))
	})}
	go platform.Serve(l) //nolint:errcheck // it is closed
	defer platform.Close()
	said := make(chan error, 100)
	tell := newTeller(socket, func(err error) { said <- err })
	defer tell.close()
	now, made := time.Unix(1000, 0), 0
	at := func(after time.Duration) {
		now = now.Add(after)
		tell.at(now, func() *nf.Numbers { made++; return &nf.Numbers{} })
	}
	at(0)
	if at(nf.TellEvery - 1); made != 1 {
		t.Errorf("%d times in less than %s", made, nf.TellEvery)
	}
	began := time.Now()
	for range 100 {
		at(nf.TellEvery)
	}
	if took := time.Since(began); took > time.Second/2 {
		t.Errorf("it waited %s for a platform that does not answer", took)
	}
	for _, code := range []int32{http.StatusBadRequest, http.StatusNoContent, http.StatusBadRequest} {
		rig.Eventually(t, "what waits is told", func() bool { return len(tell.waiting) == 0 })
		status.Store(code)
		for range 3 {
			before := requests.Load()
			at(nf.TellEvery)
			rig.Eventually(t, "numbers come", func() bool { return requests.Load() > before })
		}
	}
	rig.Eventually(t, "each failure is said once", func() bool { return len(said) == 2 })
	if first, second := (<-said).Error(), (<-said).Error(); !strings.Contains(first, "deadline exceeded") || !strings.Contains(second, "tell numbers: answer 400 Bad Request") {
		t.Errorf("%s; %s", first, second)
	}
}
