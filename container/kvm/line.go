package kvm

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kvm/channel"
)

// line is a connection to one machine's program of ours. Whatever comes over it is a stranger's: it is bounded, and decides nothing but the machine's own
// fate.
type line struct {
	c       net.Conn
	conn    *channel.Conn
	sockets []string // that the machine's connections lead to, by their numbers
	mark    []byte   // of this connection
	streams atomic.Uint32
	gone    chan struct{} // closed when the connection has ended
	copying sync.Mutex    // held while changed files are copied

	mu      sync.Mutex
	state   *channel.State // nil: it has not answered yet
	started *string        // the answer to Start
	changed chan struct{}  // closed when one of them changes
}

var errGone = errors.New("the virtual machine has ended")

const (
	// Sync is sent again and again, ever more seldom: what a machine that is coming up does not read yet waits in the socket, which is small.
	syncFirst   = 100 * time.Millisecond
	syncLast    = 2 * time.Second
	answersIn   = 20 * time.Second // a machine that runs, on a busy host
	connections = 8                // that a machine may have to our sockets at a time

	// A machine that talks without end takes a small share of a processor: beyond these it waits.
	mostBytes = 32 << 20 // a second
	atOnce    = 1 << 20  // bytes, after it was silent
	frameCost = 512      // bytes that a frame counts for besides its own
)

// dial connects to the control port of a machine; it is not there yet that answers.
func dial(ctx context.Context, bundle string, sockets []string) (*line, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(bundle, controlSocket))
	if err != nil {
		return nil, err
	}
	l := &line{c: c, conn: channel.NewConn(limited{c}), sockets: sockets, mark: []byte(rand.Text()), gone: make(chan struct{}), changed: make(chan struct{})}
	go l.read()
	return l, nil
}

// limited writes to a machine that may not read: that takes no longer than answersIn.
type limited struct{ net.Conn }

func (l limited) Write(p []byte) (int, error) {
	_ = l.SetWriteDeadline(time.Now().Add(answersIn))
	n, err := l.Conn.Write(p)
	if err != nil {
		l.Close() // what follows a part of a frame is lost anyway
	}
	return n, err
}

// slowed reads from a machine no faster than the limit.
type slowed struct {
	net.Conn
	limit *rate.Limiter
}

func (s slowed) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p[:min(len(p), atOnce)])
	return n, errors.Join(err, s.limit.WaitN(context.Background(), n))
}

func (l *line) close() {
	l.c.Close()
	<-l.gone
	l.copied()
}

// copied returns when nobody copies files any more: without a connection that ends.
func (l *line) copied() {
	l.copying.Lock()
	defer l.copying.Unlock()
}

// alive tells whether the connection stands.
func (l *line) alive() bool {
	select {
	case <-l.gone:
		return false
	default:
		return true
	}
}

func (l *line) read() {
	defer close(l.gone)
	defer l.conn.CloseAll(errGone)
	defer l.c.Close()
	limit := rate.NewLimiter(mostBytes, atOnce)
	r := channel.NewReader(slowed{l.c, limit})
	open, waiting := make(chan struct{}, connections), make(chan struct{}, channel.MaxStreams)
	for {
		f, err := r.Next()
		if err != nil || limit.WaitN(context.Background(), frameCost) != nil { // it is below atOnce, so it waits for moments only
			return
		}
		switch f.Kind {
		case channel.Synced:
			text, ours := bytes.CutPrefix(f.Payload, l.mark)
			var s channel.State
			if ours && json.Unmarshal(text, &s) == nil {
				l.set(func() { l.state = &s })
			}
		case channel.Started:
			text := string(f.Payload)
			l.set(func() { l.started = &text })
		case channel.Open:
			l.open(f, open, waiting)
		default:
			if s := l.conn.Stream(f.Stream); s != nil {
				s.Deliver(f)
			}
		}
	}
}

func (l *line) set(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	close(l.changed)
	l.changed = make(chan struct{})
}

// await waits until f is true of what the machine has said.
func (l *line) await(ctx context.Context, f func() bool) error {
	for {
		l.mu.Lock()
		ok, changed := f(), l.changed
		l.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-l.gone:
			return errGone
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// sync waits until the machine answers, and returns what state it is in.
func (l *line) sync(ctx context.Context) (channel.State, error) {
	for every := syncFirst; ; every = min(2*every, syncLast) {
		if err := l.conn.Send(channel.Frame{Kind: channel.Sync, Payload: l.mark}); err != nil {
			return channel.State{}, errGone
		}
		soon, cancel := context.WithTimeout(ctx, every)
		err := l.await(soon, func() bool { return l.state != nil })
		cancel()
		if err == nil {
			return *l.state, nil
		}
		if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return channel.State{}, err
		}
	}
}

// start has the machine's program run.
func (l *line) start(ctx context.Context) error {
	if err := l.conn.Send(channel.Frame{Kind: channel.Start}); err != nil {
		return errGone
	}
	if err := l.await(ctx, func() bool { return l.started != nil }); err != nil {
		return err
	}
	if *l.started != "" {
		return errors.New(printable(*l.started))
	}
	return nil
}

// maxText of a machine's in a message of ours.
const maxText = 500

// printable is a text of a machine's that does no harm to a terminal.
func printable(text string) string {
	text = strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar { // controls of 8 bits and marks of direction are not, either
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, ""))
	return strings.TrimSpace(strings.ToValidUTF8(text[:min(len(text), maxText)], ""))
}

func (l *line) signal(sig byte) error {
	return l.conn.Send(channel.Frame{Kind: channel.Signal, Payload: []byte{sig}})
}

// open connects a stream of the machine's with a socket of ours.
func (l *line) open(f channel.Frame, slots, waiting chan struct{}) {
	s, err := l.conn.New(f.Stream | 1) // theirs are odd
	if err != nil || f.Stream%2 == 0 {
		return // it has used the number before, or too many: it waits in vain
	}
	if len(f.Payload) != 1 || int(f.Payload[0]) >= len(l.sockets) {
		s.Close()
		return
	}
	select { // those that wait for a slot are bounded, too: a machine may open and close without end
	case waiting <- struct{}{}:
	default:
		s.Reset()
		return
	}
	path := l.sockets[f.Payload[0]]
	go func() {
		defer s.Close()
		slots <- struct{}{}
		defer func() { <-slots }()
		<-waiting
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		if errors.Is(err, unix.EPROTOTYPE) {
			err = handDatagrams(s, path)
		} else if err == nil {
			defer c.Close()
			channel.Join(s, c)
		}
		if err != nil {
			s.Reset()
		}
	}()
}

// handDatagrams to a socket of ours, until one cannot be: then the machine begins another stream.
func handDatagrams(s *channel.Stream, path string) error {
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		p, err := s.Next()
		if err != nil {
			return nil // it is over
		}
		if p.Kind == channel.Data {
			if _, err := c.Write(p.Data); err != nil {
				return err
			}
		}
		if err := s.Done(p); err != nil {
			return nil
		}
	}
}

// exec runs one more process, beside the program.
func (l *line) exec(ctx context.Context, x container.ExecSpec) (int, error) {
	p := channel.Process{Args: x.Args, Env: x.Env, TTY: x.TTY}
	if x.TTY {
		p.Env = append([]string{"TERM=xterm-256color"}, p.Env...)
		select { // a size that is there already is set before the program looks
		case size, ok := <-x.Resize:
			if ok {
				p.Cols, p.Rows = size[0], size[1]
			}
		default:
		}
	}
	text, err := json.Marshal(p)
	if err != nil {
		return -1, err
	}
	s, err := l.conn.New(l.streams.Add(1) << 1)
	if err != nil {
		return -1, err
	}
	defer s.Close()
	if err := l.conn.Send(channel.Frame{Kind: channel.Exec, Stream: s.ID(), Payload: text}); err != nil {
		if errors.Is(err, channel.ErrTooLong) {
			return -1, fmt.Errorf("command and environment of %d bytes, want at most %d", len(text), channel.MaxPayload)
		}
		return -1, errGone
	}
	stop := context.AfterFunc(ctx, func() {
		s.Reset() // which kills the process
	})
	defer stop()
	over := make(chan struct{})
	defer close(over)
	go sendInput(s, x.Stdin)
	if x.TTY {
		go sendSizes(s, x.Resize, over)
	}
	code, err := receive(s, x)
	if ctx.Err() != nil {
		return -1, ctx.Err()
	}
	if err != nil {
		s.Reset()
	}
	return code, err
}

// sendInput sends what there is to read. A reader that blocks is abandoned with the stream.
func sendInput(s *channel.Stream, in io.Reader) {
	if in != nil {
		buf := make([]byte, channel.MaxPayload)
		for {
			n, err := in.Read(buf)
			if n > 0 && s.Write(channel.Data, buf[:n]) != nil {
				return
			}
			if err != nil {
				break
			}
		}
	}
	_ = s.Put(channel.EOF, nil)
}

func sendSizes(s *channel.Stream, sizes <-chan [2]uint16, over <-chan struct{}) {
	for {
		select {
		case size, ok := <-sizes:
			if !ok || s.Put(channel.Resize, []byte{byte(size[0] >> 8), byte(size[0]), byte(size[1] >> 8), byte(size[1])}) != nil {
				return
			}
		case <-over:
			return
		}
	}
}

// receive writes out what the process prints, until its end.
func receive(s *channel.Stream, x container.ExecSpec) (int, error) {
	for {
		p, err := s.Next()
		if err != nil {
			return -1, err
		}
		var to io.Writer
		switch p.Kind {
		case channel.Stdout:
			to = x.Stdout
		case channel.Stderr:
			to = x.Stderr
		case channel.Failed:
			return -1, errors.New(printable(string(p.Data)))
		case channel.Exited:
			var e channel.Exit
			if err := json.Unmarshal(p.Data, &e); err != nil {
				return -1, errors.New("the virtual machine does not tell how the process ended")
			}
			return e.Code & 0xff, nil
		}
		if to != nil {
			if _, err := to.Write(p.Data); err != nil {
				return -1, err
			}
		}
		_ = s.Done(p)
	}
}

// readExit is what a machine has said of its program's end; false: nothing that makes sense.
func readExit(bundle string) (channel.Exit, bool) {
	f, err := os.Open(filepath.Join(bundle, exitFile))
	if err != nil {
		return channel.Exit{}, false
	}
	defer f.Close()
	var e channel.Exit
	text, err := io.ReadAll(io.LimitReader(f, maxExit))
	if err != nil || json.Unmarshal(bytes.TrimSpace(text), &e) != nil {
		return channel.Exit{}, false
	}
	if e.Code < 0 || e.Code > 255 || e.Signal < 0 || e.Signal > 64 {
		return channel.Exit{}, false
	}
	return e, true
}

const maxExit = 4096
