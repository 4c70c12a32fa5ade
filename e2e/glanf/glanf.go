// Package glanf is the demonstration of the GLANF paper (Cziva et al., ISCC 2015, section IV) with the catalogue's functions:
// http-filter | shaper | ids between two stations. `make demo` shows it on one host; e2e/fabric has it across two hosts.
package glanf

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/netns"
)

// What the functions are configured for.
const (
	Word     = "topsecret" // http-filter blocks it
	RateBits = 10e6        // of the shaper, in each direction, in bits of whole frames a second
	Exact    = 0.05        // how far from RateBits a measured rate may be
	Soon     = time.Second // from a trigger to its event
	attempts = 4           // of what has to be soon or exact: something else may have the processors for a while
	port     = 8000        // of the web server
	patience = 20 * time.Second
)

// Document is a file with the chain between the endpoints alice and bob, whose entries it is given. hosts are the hosts of the functions, by name; nil
// leaves that to Weir. Without ids the chain has two functions.
func Document(endpoints string, ids bool, hosts map[string]string) string {
	var functions strings.Builder
	names := []string{"filter", "shaper"}
	if ids {
		names = append(names, "ids")
	}
	texts := map[string]string{
		"filter": fmt.Sprintf("image: http-filter, config: {ports: [%d], rules: [{name: leaks, words: [%s]}]}", port, Word),
		"shaper": fmt.Sprintf("image: shaper, config: {up: {rate: %.0fMbit}, down: {rate: %.0fMbit}}", RateBits/1e6, RateBits/1e6),
		"ids":    "image: ids, config: {rules: " + rules() + "}",
	}
	for _, n := range names {
		host := ""
		if hosts[n] != "" {
			host = ", host: " + hosts[n]
		}
		fmt.Fprintf(&functions, "  %s: {%s, on_fail: drop%s}\n", n, texts[n], host)
	}
	return endpoints + "functions:\n" + functions.String() + "chains:\n  glanf: " + strings.Join(names, " | ") +
		"\npolicies:\n  guests: {from: alice, to: bob, match: [tcp, icmp], symmetric: true, chain: glanf}\n"
}

// rules of ids: one for each attempt, since what a rule finds again within seconds is packed into one event.
func rules() string {
	var lines strings.Builder
	for i := range attempts {
		fmt.Fprintf(&lines, `alert http any any -> any any (msg:"trigger %d"; http.uri; content:"%s"; sid:%d; priority:1;)`+"\n", i, trigger(i), sid(i))
	}
	quoted, _ := json.Marshal(lines.String()) // a text of JSON is one of YAML
	return string(quoted)
}

func trigger(i int) string { return fmt.Sprintf("/trigger-%d", i) }
func sid(i int) int        { return 1_000_001 + i }

// Stations are a client and a server with the chain between them.
type Stations struct {
	*rig.Rig
	Client, Server string // network namespaces; the interface of each is eth0
	Addr           string // of the server

	web  *http.Server
	mu   sync.Mutex
	seen []string // requests that the server got
}

// Serve starts the web server, until Close.
func (s *Stations) Serve() error {
	var l net.Listener
	err := netns.Do(s.Server, func() (err error) {
		l, err = net.Listen("tcp", s.at())
		return err
	})
	if err != nil {
		return fmt.Errorf("web server: %w", err)
	}
	s.web = &http.Server{ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		s.mu.Lock()
		s.seen = append(s.seen, q.URL.String())
		s.mu.Unlock()
		_, _ = io.WriteString(w, "hello from bob\n")
	})}
	go func() { _ = s.web.Serve(l) }()
	return nil
}

// Close ends the web server.
func (s *Stations) Close() { _ = s.web.Close() }

func (s *Stations) at() string { return net.JoinHostPort(s.Addr, fmt.Sprint(port)) }

// Answer is what came back for a request that was sent in parts, each a segment of its own.
type Answer struct {
	Segments []string
	Status   int  // of the answer
	Reached  bool // the server got the request
}

// Ask sends a request for a path. The path is cut where it has a "|", and each part is acknowledged before the next one is sent.
func (s *Stations) Ask(ctx context.Context, path string) (a Answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var c net.Conn
	if err := netns.Do(s.Client, func() (err error) { c, err = (&net.Dialer{}).DialContext(ctx, "tcp", s.at()); return err }); err != nil {
		return a, err
	}
	defer c.Close()
	deadline, _ := ctx.Deadline()
	if err := c.SetDeadline(deadline); err != nil {
		return a, err
	}
	a.Segments = strings.Split("GET "+path+" HTTP/1.1\r\nHost: bob\r\nConnection: close\r\n\r\n", "|")
	for i, part := range a.Segments {
		if _, err := io.WriteString(c, part); err != nil {
			return a, err
		}
		if i < len(a.Segments)-1 {
			if err := acknowledged(ctx, c.(*net.TCPConn)); err != nil {
				return a, fmt.Errorf("segment %q: %w", part, err)
			}
		}
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return a, fmt.Errorf("answer to %q: %w", path, err)
	}
	defer r.Body.Close()
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return a, fmt.Errorf("answer to %q: %w", path, err)
	}
	a.Status = r.StatusCode
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, url := range s.seen {
		a.Reached = a.Reached || url == strings.ReplaceAll(path, "|", "")
	}
	return a, nil
}

// acknowledged waits until the other side has all that was sent.
func acknowledged(ctx context.Context, c *net.TCPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	for {
		var info *unix.TCPInfo
		if e := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }); e != nil || err != nil {
			return errors.Join(e, err)
		}
		if info.Unacked == 0 && info.Notsent_bytes == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New("it is not acknowledged")
		case <-time.After(time.Millisecond):
		}
	}
}

// Split sends a request with Word in two segments, neither of which has it, and fails if the filter does not block it: the client gets 403 and the server
// no request.
func (s *Stations) Split(ctx context.Context) (Answer, error) {
	half := len(Word) / 2
	a, err := s.Ask(ctx, "/?q="+Word[:half]+"|"+Word[half:])
	if err != nil {
		return a, err
	}
	if a.Status != http.StatusForbidden || a.Reached {
		return a, fmt.Errorf("a word in two segments was not blocked: answer %d, at the server: %t", a.Status, a.Reached)
	}
	return a, nil
}

// Alarm is an event that a trigger raised.
type Alarm struct {
	Event api.Event
	After time.Duration // from the request to the event at a client of the API
}

// Trigger sends a request that a rule of ids looks for, and waits for the event. It fails if no attempt raises it within Soon.
func (s *Stations) Trigger(ctx context.Context) (Alarm, error) {
	var late []time.Duration
	for i := range attempts {
		a, err := s.trigger(ctx, i)
		if err != nil || a.After <= Soon {
			return a, err
		}
		late = append(late, a.After)
	}
	return Alarm{}, fmt.Errorf("events came %s after their triggers: want one within %s", late, Soon)
}

func (s *Stations) trigger(ctx context.Context, i int) (a Alarm, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// It prints the newest event first: then it is there, and shows all that comes.
	c := s.WeirCommand(ctx, "events", "-f", "--limit", "1", "-o", "json")
	out, err := c.StdoutPipe()
	if err != nil {
		return a, err
	}
	if err := c.Start(); err != nil {
		return a, err
	}
	defer func() { cancel(); _ = c.Wait() }()
	events := json.NewDecoder(out)
	if err := events.Decode(&a.Event); err != nil {
		return a, fmt.Errorf("weir events -f: %w", err)
	}
	begin := time.Now()
	got, err := s.Ask(ctx, trigger(i))
	if err != nil {
		return a, err
	}
	if got.Status != http.StatusOK || !got.Reached {
		return a, fmt.Errorf("a request that a rule only alerts of did not pass: answer %d, at the server: %t", got.Status, got.Reached)
	}
	for {
		a = Alarm{}
		if err := events.Decode(&a.Event); err != nil {
			return a, fmt.Errorf("no event of rule %d within %s: %w", sid(i), patience, err)
		}
		if a.Event.Source == api.SourceOf(api.KindFunction, "ids") && strings.Contains(a.Event.Message, fmt.Sprintf("sid %d ", sid(i))) {
			a.After = time.Since(begin)
			return a, nil
		}
	}
}

// Rate measures the chain's rate in bits of whole frames a second, by one TCP stream of some seconds after one of which nothing is counted. It fails if no
// attempt is within Exact of RateBits, and if more than that arrives in the whole time of one. more are further arguments of iperf3, such as --reverse.
func (s *Stations) Rate(ctx context.Context, seconds int, more ...string) (float64, error) {
	if !netip.MustParseAddr(s.Addr).Is4() {
		return 0, fmt.Errorf("address %s: want IPv4", s.Addr)
	}
	var seen []float64
	for range attempts {
		bits, least, err := s.Limited(ctx, s.Client, s.Server, s.Addr, 5201, seconds, more...)
		if err != nil {
			return 0, err
		}
		if least > RateBits*(1+Exact) {
			return 0, fmt.Errorf("%.4g bit/s arrived in the whole time: want %.4g at most", least, RateBits*(1+Exact))
		}
		if seen = append(seen, bits); bits >= RateBits*(1-Exact) && bits <= RateBits*(1+Exact) {
			return bits, nil
		}
	}
	return 0, fmt.Errorf("rates %.4g bit/s: want %.4g within %.0f %%", seen, RateBits, Exact*100)
}
