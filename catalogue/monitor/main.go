// Command monitor is a network function behind a tap: it counts the flows that pass and logs them, one JSON object a line.
// It sends nothing. See README.md for the lines.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"weir.dev/weir/catalogue/nf"
)

// config is the function's configuration; schema.json describes the same.
type config struct {
	MaxFlows int `json:"max_flows"` // remembered at a time
	IdleS    int `json:"idle_s"`    // seconds without a packet after which a flow has ended
	ActiveS  int `json:"active_s"`  // seconds after which a flow that goes on is reported
}

func main() {
	file := flag.String("config", "/etc/weir/config.json", "configuration file")
	link := flag.String("link", "tap", "interface to read")
	flows := flag.String("flows", "/run/flows.sock", "socket for readers of flows")
	ipfix := flag.String("ipfix", "/run/weir/ipfix.sock", "socket to export flows at, if it exists: the platform hands them on to a collector")
	metrics := flag.String("metrics", nf.MetricsFile, "socket to tell numbers at, if it exists")
	format := flag.String("follow", "", "copy the flows of the monitor that runs here to standard output, as ipfix or json, until it ends")
	flag.Parse()
	if *format != "" {
		if err := follow(*flows, *format, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "monitor:", err)
			os.Exit(1)
		}
		return
	}
	debug.SetGCPercent(25) // a hundred of these may run on one machine; little is allocated after the start
	if err := run(*file, *link, *flows, *ipfix, *metrics, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "monitor:", err)
		os.Exit(1)
	}
}

func run(file, link, flows, ipfix, metrics string, out io.Writer) error {
	cfg, err := load(file)
	if err != nil {
		return fmt.Errorf("configuration %s: %w", file, err)
	}
	wake, err := signals()
	if err != nil {
		return err
	}
	defer wake.Close()
	r, err := openRing(link)
	if err != nil {
		return err
	}
	defer r.close()
	rs := newReaders()
	listening, err := rs.listen(flows)
	if err != nil {
		return err
	}
	defer listening.Close()
	if err := rs.export(ipfix); err != nil {
		return fmt.Errorf("socket to export flows: %w", err)
	}
	log := newLog(out)
	log.line(line{Event: "start", Link: link})
	t := newTable(cfg, log.line, rs.add)
	t.wants = log.wants
	tell := newTeller(metrics, func(err error) { fmt.Fprintln(os.Stderr, "monitor:", err) })
	defer tell.close()
	for {
		tell.at(time.Now(), func() *nf.Numbers { return numbers(t, log, r, rs) })
		timeout := time.Until(tell.next)
		if t.busy() {
			timeout = min(timeout, sweepEvery)
		}
		if err := log.flush(); err != nil {
			return err
		}
		sig, err := r.wait(wake, timeout)
		if err != nil {
			return err
		}
		now := time.Now()
		r.read(func(p []byte, length int, vlan uint16) {
			flow, flags := parse(p, vlan)
			t.add(flow, flags, length, now, func() string { return nameIn(p) })
		})
		t.sweep(now)
		switch sig {
		case syscall.SIGUSR1:
			t.summary(now, r.dropped())
		case syscall.SIGTERM, syscall.SIGINT:
			t.endAll(now)
			t.summary(now, r.dropped())
			rs.finish()
			return log.flush()
		}
	}
}

func load(file string) (config, error) {
	cfg := config{MaxFlows: 10_000, IdleS: 15, ActiveS: 60}
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(bytes.TrimSpace(raw)) == 0 {
		return cfg, nil
	}
	if err != nil {
		return config{}, err
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&cfg); err != nil {
		return config{}, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return config{}, errors.New("more than one JSON value")
	}
	if cfg.MaxFlows < 1 || cfg.MaxFlows > 1_000_000 {
		return config{}, fmt.Errorf("max_flows %d: want 1 to 1000000", cfg.MaxFlows)
	}
	if cfg.IdleS < 1 || cfg.IdleS > 86400 {
		return config{}, fmt.Errorf("idle_s %d: want 1 to 86400", cfg.IdleS)
	}
	if cfg.ActiveS < 1 || cfg.ActiveS > 86400 {
		return config{}, fmt.Errorf("active_s %d: want 1 to 86400", cfg.ActiveS)
	}
	return cfg, nil
}

// signals makes a pipe that gives one byte for each signal, so that one poll waits for packets and for signals.
func signals() (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("wait for signals: %w", err)
	}
	c := make(chan os.Signal, 4)
	signal.Notify(c, syscall.SIGTERM, syscall.SIGINT, syscall.SIGUSR1)
	go func() {
		for s := range c {
			if n, ok := s.(syscall.Signal); ok {
				_, _ = w.Write([]byte{byte(n)})
			}
		}
	}()
	return r, nil
}

// line is one line of the log. Numbers that do not apply are left out.
type line struct {
	Time         time.Time  `json:"time"`
	Event        string     `json:"event"` // start, new, end, summary; flow: for readers
	Link         string     `json:"link,omitempty"`
	Proto        string     `json:"proto,omitempty"` // tcp, udp, icmp ..., a number, or an ethertype
	Src          string     `json:"src,omitempty"`   // of the flow's first packet
	SrcPort      uint16     `json:"sport,omitempty"`
	Dst          string     `json:"dst,omitempty"`
	DstPort      uint16     `json:"dport,omitempty"`
	VLAN         uint16     `json:"vlan,omitempty"`
	Name         string     `json:"name,omitempty"` // asked for by DNS or TLS
	Start        *time.Time `json:"start,omitempty"`
	Flags        string     `json:"flags,omitempty"` // of TCP: FSRPAUEC
	ReplyFlags   string     `json:"reply_flags,omitempty"`
	Reason       string     `json:"reason,omitempty"`  // of a report: idle, active, stopped
	Packets      uint64     `json:"packets,omitempty"` // as seen: a GSO packet is one
	Bytes        uint64     `json:"bytes,omitempty"`
	ReplyPackets uint64     `json:"reply_packets,omitempty"`
	ReplyBytes   uint64     `json:"reply_bytes,omitempty"`
	DurationNs   int64      `json:"duration_ns,omitempty"`
	Flows        uint64     `json:"flows,omitempty"`     // so far
	Active       int        `json:"active,omitempty"`    // remembered now
	Untracked    uint64     `json:"untracked,omitempty"` // packets of flows beyond max_flows
	Unlogged     uint64     `json:"unlogged,omitempty"`  // lines left out by the rate limit
	Dropped      uint64     `json:"dropped,omitempty"`   // packets that the kernel had no room for
	Talkers      []talker   `json:"talkers,omitempty"`   // addresses that sent most
}

const linesPerSecond = 200 // of flows; a port scan must not fill the disk

// logger writes lines, flows' at a bounded rate.
type logger struct {
	w        *bufio.Writer
	second   int64
	n        int
	unlogged uint64
	err      error
}

func newLog(out io.Writer) *logger { return &logger{w: bufio.NewWriter(out)} }

// wants tells whether there is room for one more line about a flow, and counts it: in a flood of flows no text is made that is not written.
func (l *logger) wants(at time.Time) bool {
	if s := at.Unix(); s != l.second {
		l.second, l.n = s, 0
	}
	if l.n++; l.n > linesPerSecond {
		l.unlogged++
		return false
	}
	return true
}

func (l *logger) line(x line) {
	if x.Time.IsZero() {
		x.Time = time.Now()
	}
	if x.Event == "summary" {
		x.Unlogged = l.unlogged
	}
	raw, err := json.Marshal(x)
	if err == nil {
		_, err = l.w.Write(append(raw, '\n'))
	}
	if l.err == nil {
		l.err = err
	}
}

func (l *logger) flush() error {
	if err := l.w.Flush(); err != nil && l.err == nil {
		l.err = err
	}
	if l.err != nil {
		return fmt.Errorf("write log: %w", l.err)
	}
	return nil
}
