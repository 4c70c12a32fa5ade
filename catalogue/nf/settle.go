package nf

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// SettleFile is the socket where a function with the label weir.settles says what it thinks of flows.
const SettleFile = "/run/weir/settle.sock"

// Settler tells the switch what the function has made up its mind about: a flow's further frames pass the function by, or are dropped before it. It does
// its work beside the frames: no method blocks. What it cannot say now it forgets, since the function goes on getting the flow's frames, and says it again.
// Where the platform takes no verdicts nothing happens.
//
// A function that hands frames on otherwise than as they came must not settle their flow, but by RewriteAt if an address and a port is all that it changes.
// One that changes its rules calls Reset afterwards.
type Settler struct {
	path string
	log  *slog.Logger
	stop context.CancelFunc
	done chan struct{}

	lines chan line
	wakes chan struct{}
	owed  atomic.Bool // a reset has to be said
	count struct{ settled, early, unknown, refused, lost atomic.Uint64 }

	came func() time.Time // when the frame came that is spoken of, see Options.Settler; nil: it is not known

	mu     sync.Mutex
	recent [recents]recent
	seed   maphash.Seed
}

// line that waits, and when the frame came that it is about; zero: it is said however late.
type line struct {
	text string
	at   time.Time
	kind kind
}

// kind of line. What takes back must be heard: a reset makes up for it otherwise.
type kind uint8

const (
	isVerdict kind = iota
	isJudge
	isReset
)

// late tells whether a verdict may be about a former connection of the same ports by the time it is heard.
func (l line) late() bool {
	age := time.Since(l.at)
	return !l.at.IsZero() && (age > saidWithin || age < -saidWithin) // or the clock was set back
}

// recent is what was said last, so that it is not said for each frame.
type recent struct {
	hash uint64
	at   time.Time
}

const (
	recents  = 4096
	sayAgain = 100 * time.Millisecond
	unsaid   = 1024 // lines that wait
	redial   = time.Second

	// redialOwed is redial while a reset has to be said: a changed rule holds for settled flows within a second after the platform is back.
	redialOwed = 100 * time.Millisecond

	// After a SYN, FIN or RST the switch takes no verdict for 0.2 s: one about the time before must be carried out sooner. So it is written within
	// saidWithin of its frame, behind so few others that the platform, which takes 2,000 a second, has it 16 ms later; and the platform gives it 50 ms.
	saidWithin = 100 * time.Millisecond
	unanswered = 32
)

// SettlerCounters count what became of what was said.
type SettlerCounters struct {
	Settled  uint64 // the switch carries it out
	Early    uint64 // a connection had just begun or ended
	NotGiven uint64 // the switch has not given the flow to the function lately
	Refused  uint64 // other errors; the first one is logged
	Lost     uint64 // not said: too much at once, or no connection
}

// NewSettler speaks at a socket, SettleFile if path is empty, until Close.
func NewSettler(path string, log *slog.Logger) *Settler {
	if path == "" {
		path = SettleFile
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Settler{path: path, log: log, stop: stop, done: make(chan struct{}), lines: make(chan line, unsaid), wakes: make(chan struct{}, 1), seed: maphash.MakeSeed()}
	go s.run(ctx)
	return s
}

// Close ends it. What has been settled stays settled.
func (s *Settler) Close() {
	s.stop()
	<-s.done
}

// Pass has the flow of a frame pass the function by, in both directions as far as the function has been given them. It may be called for each frame of a
// flow: the switch is told ten times a second at most. Frames that begin or end a connection, and those that belong to no flow, do nothing.
func (s *Settler) Pass(frame []byte) { s.say(frame, verdict{}) }

// PassOneWay is Pass for the direction of the frame alone.
func (s *Settler) PassOneWay(frame []byte) { s.say(frame, verdict{way: oneWay}) }

// PassAt is PassOneWay for frames that come in this direction: up, those that enter at the port in. A function that judges by the port must use it, since
// the same addresses and ports may be forged at the other one. It is for TCP and UDP; frames of ICMP echo do nothing.
func (s *Settler) PassAt(d Dir, frame []byte) {
	if f, ok := flowOf(frame); ok && f.proto != "icmp" && f.flags&(SYN|FIN|RST) == 0 {
		s.sayOf(f, verdict{way: onlyAt(d)}, time.Time{})
	}
}

// Rewrite is how a function hands a flow's frames on: with another address and port at one end.
type Rewrite struct {
	End End
	To  netip.AddrPort
	MAC [6]byte // of the destination from now on; zero: as it was. A function that sets it says so always, also when the frame at hand has it already
}

func (r Rewrite) words() string {
	text := [...]string{Source: " rewrite src ", Target: " rewrite dst "}[r.End] + r.To.String()
	if r.MAC != [6]byte{} {
		text += " mac " + net.HardwareAddr(r.MAC[:]).String()
	}
	return text
}

// RewriteAt is PassAt for a frame, as it came, of a flow that is handed on rewritten: the switch rewrites its further frames.
func (s *Settler) RewriteAt(d Dir, frame []byte, r Rewrite) {
	if f, ok := flowOf(frame); ok && f.proto != "icmp" && f.flags&(SYN|FIN|RST) == 0 && r.To.IsValid() { // else it would pass as it is
		s.sayOf(f, verdict{way: onlyAt(d), rewrite: r}, time.Time{})
	}
}

// verdict about a flow.
type verdict struct {
	drop    bool // or pass
	way     way
	rewrite Rewrite // without To: none
}

// way are the frames of a flow that a verdict is about.
type way uint8

const (
	bothWays way = iota
	oneWay
	atIn
	atOut
)

func onlyAt(d Dir) way {
	if d == Up {
		return atIn
	}
	return atOut
}

func (w way) words() string {
	return [...]string{bothWays: "", oneWay: " oneway", atIn: " oneway at in", atOut: " oneway at out"}[w]
}

// line that says it of a flow.
func (v verdict) line(f settled) string {
	word := "pass"
	if v.drop {
		word = "drop"
	}
	text := f.line(word) + v.way.words()
	if v.rewrite.To.IsValid() {
		text += v.rewrite.words()
	}
	return text
}

// packed are a flow and a verdict about it, each in another way.
func (v verdict) packed(f settled) (b [70]byte) {
	const dropped, four, fourTo = 1, 2, 4
	src, dst, to := f.src.Addr().As16(), f.dst.Addr().As16(), [16]byte{}
	if f.src.Addr().Is4() {
		b[0] |= four
	}
	if v.drop {
		b[0] |= dropped
	}
	if a := v.rewrite.To.Addr(); a.IsValid() {
		to = a.As16()
		if a.Is4() {
			b[0] |= fourTo
		}
	}
	b[1], b[2], b[3] = f.proto[0], byte(v.way), byte(v.rewrite.End)
	binary.NativeEndian.PutUint16(b[4:], f.id)
	binary.NativeEndian.PutUint32(b[6:], uint32(f.vlan))
	binary.NativeEndian.PutUint16(b[10:], f.src.Port())
	binary.NativeEndian.PutUint16(b[12:], f.dst.Port())
	binary.NativeEndian.PutUint16(b[14:], v.rewrite.To.Port())
	copy(b[16:], src[:])
	copy(b[32:], dst[:])
	copy(b[48:], to[:])
	copy(b[64:], v.rewrite.MAC[:])
	return b
}

// NoVLAN is the VLAN of frames without a tag.
const NoVLAN = -1

// PassFlow is Pass for a flow of TCP or UDP whose frames the function does not have at hand. vlan is the id of its tag, or NoVLAN. The
// packet that made up the caller's mind came at a time: what is too old then is not said, since it may be about a former connection of the same ports.
func (s *Settler) PassFlow(proto byte, src, dst netip.AddrPort, vlan int, at time.Time) {
	if f := (Flow{proto, src, dst, vlan}).settled(); f.proto != "" {
		s.sayOf(f, verdict{}, at)
	}
}

// Flow of TCP or UDP.
type Flow struct {
	Proto    byte
	Src, Dst netip.AddrPort
	VLAN     int // id of its tag, or NoVLAN
}

func (f Flow) settled() settled {
	return settled{proto: map[byte]string{TCP: "tcp", UDP: "udp"}[f.Proto], src: f.Src, dst: f.Dst, vlan: f.VLAN}
}

// PassFlowAt is PassAt for a flow whose frames the function does not have at hand; at is as PassFlow has it.
func (s *Settler) PassFlowAt(d Dir, f Flow, at time.Time) {
	if f := f.settled(); f.proto != "" {
		s.sayOf(f, verdict{way: onlyAt(d)}, at)
	}
}

// PassFlowOneWay is PassFlowAt for frames that come in whichever direction: for a function that does not judge by the port, and does not know at which one these
// frames enter.
func (s *Settler) PassFlowOneWay(f Flow, at time.Time) {
	if f := f.settled(); f.proto != "" {
		s.sayOf(f, verdict{way: oneWay}, at)
	}
}

// Reverse is the flow of the replies.
func (f Flow) Reverse() Flow {
	f.Src, f.Dst = f.Dst, f.Src
	return f
}

// JudgeFlowAt takes PassFlowAt back.
func (s *Settler) JudgeFlowAt(d Dir, f Flow) { s.judge(f.settled(), onlyAt(d).words()) }

// Drop has the flow of a frame dropped before the function, in both directions.
func (s *Settler) Drop(frame []byte) { s.say(frame, verdict{drop: true}) }

// Judge takes back what was said of the flow of a frame: the function gets its frames again. What the platform cannot hear now is made up for by a reset.
func (s *Settler) Judge(frame []byte) {
	if f, ok := flowOf(frame); ok {
		s.judge(f, "")
	}
}

func (s *Settler) judge(f settled, more string) {
	s.mu.Lock()
	clear(s.recent[:]) // it may be said anew at once
	s.mu.Unlock()
	if !s.queue(line{text: f.line("judge") + more, kind: isJudge}) {
		s.Reset() // more than was asked for, but never less
	}
}

// Reset takes back all that was said: the function gets all frames again, as soon as the platform has heard it. It is said again until it is heard.
func (s *Settler) Reset() {
	s.mu.Lock()
	clear(s.recent[:])
	s.mu.Unlock()
	s.owed.Store(true)
	s.wake()
}

// Counters so far.
func (s *Settler) Counters() SettlerCounters {
	c := &s.count
	return SettlerCounters{Settled: c.settled.Load(), Early: c.early.Load(), NotGiven: c.unknown.Load(), Refused: c.refused.Load(), Lost: c.lost.Load()}
}

func (s *Settler) say(frame []byte, v verdict) {
	if f, ok := flowOf(frame); ok && f.flags&(SYN|FIN|RST) == 0 {
		s.sayOf(f, v, time.Time{})
	}
}

// sayOf a flow what was found by a packet that came at a time; zero: as the frame came that is spoken of, or now.
func (s *Settler) sayOf(f settled, v verdict, at time.Time) {
	var came time.Time
	if at.IsZero() && s.came != nil {
		came = s.came()
		at = came
	}
	now := came // so that the clock is not read for each frame of a flow
	if now.IsZero() {
		now = time.Now()
	}
	if at.IsZero() {
		at = now
	}
	packed := v.packed(f)
	hash := maphash.Bytes(s.seed, packed[:])
	s.mu.Lock()
	r := &s.recent[hash%recents]
	age := now.Sub(r.at)
	again := r.hash == hash && age >= 0 && age < sayAgain // less than 0: the clock was set back
	if !again {
		*r = recent{hash, now}
	}
	s.mu.Unlock()
	if !again && !s.queue(line{text: v.line(f), at: at}) {
		s.count.lost.Add(1)
	}
}

func (s *Settler) queue(l line) bool {
	select {
	case s.lines <- l:
		return true
	default:
		return false
	}
}

func (s *Settler) wake() {
	select {
	case s.wakes <- struct{}{}:
	default:
	}
}

// settled is a flow as the switch knows it.
type settled struct {
	proto    string
	src, dst netip.AddrPort
	id       uint16 // of ICMP echo
	vlan     int    // or NoVLAN
	flags    uint8
}

// flowOf a frame: TCP, UDP and ICMP echo with at most one 802.1Q tag, without IP options, extension headers and fragments.
func flowOf(b []byte) (f settled, ok bool) {
	p := Decode(b)
	if p.Bad != "" || p.Part != Whole || p.TagCount > 1 || !p.Src.IsValid() || p.Transport == 0 {
		return f, false
	}
	header := 20
	if p.Type == EtherIPv6 {
		header = 40
	}
	at := ethernetHeader
	f.vlan = NoVLAN
	if p.TagCount == 1 {
		if b[12] != 0x81 || b[13] != 0 {
			return f, false
		}
		if p.Tags[0] != 0 { // 0 gives a priority alone
			f.vlan = int(p.Tags[0])
		}
		at += tagLength
	}
	if p.Network != at || p.Transport-p.Network != header {
		return f, false
	}
	f.src, f.dst = netip.AddrPortFrom(p.Src, p.SrcPort), netip.AddrPortFrom(p.Dst, p.DstPort)
	switch p.Proto {
	case TCP:
		f.proto, f.flags = "tcp", p.Flags
		return f, true
	case UDP:
		f.proto = "udp"
		return f, true
	}
	return f, f.echo(p, b[p.Transport:p.End])
}

// echo: the reply's flow is named like the request's.
func (f *settled) echo(p Packet, h []byte) bool {
	if len(h) < 8 || h[1] != 0 {
		return false
	}
	const icmp, icmp6 = 1, 58
	f.proto, f.id = "icmp", uint16(h[4])<<8|uint16(h[5])
	switch kind := h[0]; {
	case p.Type == EtherIPv4 && p.Proto == icmp && kind == 8, p.Type == EtherIPv6 && p.Proto == icmp6 && kind == 128:
		return true
	case p.Type == EtherIPv4 && p.Proto == icmp && kind == 0, p.Type == EtherIPv6 && p.Proto == icmp6 && kind == 129:
		f.src, f.dst = f.dst, f.src
		return true
	}
	return false
}

func (f settled) line(verdict string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s ", verdict, f.proto)
	if f.proto == "icmp" {
		fmt.Fprintf(&b, "%s %s id %d", f.src.Addr(), f.dst.Addr(), f.id)
	} else {
		fmt.Fprintf(&b, "%s %s", f.src, f.dst)
	}
	if f.vlan >= 0 {
		fmt.Fprintf(&b, " vlan %d", f.vlan)
	}
	return b.String()
}

// run says what there is to say, over one connection after the other.
func (s *Settler) run(ctx context.Context) {
	defer close(s.done)
	for ctx.Err() == nil {
		c, err := (&net.Dialer{Timeout: redial}).DialContext(ctx, "unix", s.path)
		if err == nil {
			s.converse(ctx, c)
		}
		s.forget()
		wait := redial
		if s.owed.Load() && !errors.Is(err, fs.ErrNotExist) { // the platform is away: until it hears the reset, settled flows go on by former rules
			wait = redialOwed
		}
		select {
		case <-ctx.Done():
		case <-s.wakes: // a reset, which waits for nothing
		case <-time.After(wait):
		}
	}
}

// forget what waits.
func (s *Settler) forget() {
	for {
		select {
		case l := <-s.lines:
			s.count.lost.Add(1)
			if l.kind == isJudge {
				s.owed.Store(true)
			}
		default:
			return
		}
	}
}

// converse until the connection breaks. Answers come in the order of the lines.
func (s *Settler) converse(ctx context.Context, c net.Conn) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	room := make(chan struct{}, unanswered)
	said := make(chan kind, unanswered) // lines that wait for their answers
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		defer stop()
		s.hear(c, room, said)
	}()
	s.speak(ctx, c, room, said)
	stop()
	c.Close()
	<-heard
	for {
		select {
		case k := <-said:
			if k != isVerdict { // it may not have been heard
				s.owed.Store(true)
			}
		default:
			return
		}
	}
}

func (s *Settler) speak(ctx context.Context, c net.Conn, room chan struct{}, said chan<- kind) {
	w := bufio.NewWriter(c)
	// place for one more line that is not answered yet.
	place := func() bool {
		select {
		case room <- struct{}{}:
			return true
		default:
		}
		if w.Flush() != nil { // what is not heard is not answered
			return false
		}
		select {
		case room <- struct{}{}:
			return true
		case <-ctx.Done():
			return false
		}
	}
	say := func(text string, k kind) bool {
		said <- k // there is a place
		_, err := w.WriteString(text + "\n")
		return err == nil
	}
	s.wake() // a reset may be owed
	for {
		var l line
		select {
		case <-ctx.Done():
			return
		case <-s.wakes:
		case l = <-s.lines:
		}
		if !place() {
			if l.kind == isJudge {
				s.owed.Store(true)
			}
			return
		}
		switch {
		case s.owed.Load():
			s.forget() // said before the reset
			s.owed.Store(false)
			if !say("reset", isReset) {
				s.owed.Store(true)
				return
			}
		case l.text == "":
			<-room
		case l.late():
			s.count.lost.Add(1)
			<-room
		case !say(l.text, l.kind):
			return
		}
		if len(s.lines) == 0 && w.Flush() != nil {
			return
		}
	}
}

func (s *Settler) hear(c net.Conn, room <-chan struct{}, said <-chan kind) {
	told := false
	answers := bufio.NewScanner(c)
	for answers.Scan() {
		var k kind
		select {
		case k = <-said:
			<-room
		default:
			return // an answer to nothing
		}
		switch answer := answers.Text(); {
		case strings.HasPrefix(answer, "ok "):
			if k != isReset {
				s.count.settled.Add(1)
			}
		case answer == "early":
			s.count.early.Add(1)
		case answer == "not-given":
			s.count.unknown.Add(1)
		default:
			s.count.refused.Add(1)
			if !told {
				told = true
				s.log.Warn("settle a flow", "answer", answer)
			}
			if k != isVerdict {
				s.owed.Store(true)
				return
			}
		}
	}
}
