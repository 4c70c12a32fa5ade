package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container/kvm/channel"
)

// program is what the machine is for.
type program struct {
	pid     int
	started time.Time
	ended   chan unix.WaitStatus
	waits   *begun   // for its start; nil: it has started, or cannot
	output  *os.File // what it prints
	copied  chan struct{}
}

// link is the line to the driver.
type link struct {
	port   *os.File
	conn   *channel.Conn
	syncs  string // what the driver that is there has sent with Sync
	number atomic.Uint32
}

// port opens a serial port by its name.
func port(name string) (*os.File, error) {
	dev, err := await("port "+name, func() (string, bool) {
		all, _ := filepath.Glob("/sys/class/virtio-ports/*")
		for _, dir := range all {
			text, err := os.ReadFile(dir + "/name")
			dev := "/dev/" + filepath.Base(dir)
			if _, there := os.Stat(dev); err == nil && there == nil && strings.TrimSpace(string(text)) == name {
				return dev, true
			}
		}
		return "", false
	})
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(dev, os.O_RDWR, 0)
	return f, wrap("port "+name, err)
}

func (m *machine) openPorts() (err error) {
	if m.log, err = port(channel.PortLog); err != nil {
		return err
	}
	control, err := port(channel.PortControl)
	if err != nil {
		return err
	}
	m.link = &link{port: control, conn: channel.NewConn(control)}
	return m.listen()
}

// further is the command of one more process, in the program's surroundings.
func (m *machine) further(p channel.Process) command {
	p.Env = append(append([]string{}, m.spec.Process.Env...), p.Env...)
	return command{Process: p}
}

// ready makes the program's process, which waits for the start. problem says why it cannot be started; "" it can.
func (m *machine) ready() (problem string) {
	if err := m.hold(); err != nil {
		return err.Error()
	}
	return ""
}

func (m *machine) hold() error {
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	out, in, err := os.Pipe()
	if err != nil {
		return err
	}
	defer in.Close()
	if err := in.Chown(int(m.spec.UID), int(m.spec.GID)); err != nil { // programs open /dev/stdout
		return err
	}
	b, err := m.begin(command{m.spec.Process, true}, [3]*os.File{null, in, in})
	if err != nil {
		return err
	}
	if err := b.await(true); err != nil {
		b.close()
		out.Close()
		return err
	}
	m.program.waits, m.program.output = b, out
	return nil
}

// serve does as the driver says, until the program has ended.
func (m *machine) serve(problem string) channel.Exit {
	frames := make(chan channel.Frame)
	taken := make(chan struct{})
	go m.read(frames, taken)
	for {
		select {
		case f := <-frames:
			m.handle(f, &problem)
			taken <- struct{}{}
		case ws := <-m.program.waits.end():
			problem = endedWith(ws).Error()
			m.program.waits.close()
			m.program.waits = nil
		case ws := <-m.program.ended:
			m.drain()
			return exitOf(ws)
		}
	}
}

// read reads frames for ever. A driver that is gone is no end: there will be another.
func (m *machine) read(frames chan<- channel.Frame, taken <-chan struct{}) {
	for {
		r := channel.NewReader(m.port)
		for {
			f, err := r.Next()
			if err != nil {
				break
			}
			frames <- f
			<-taken
		}
		time.Sleep(20 * time.Millisecond) // nobody is there
	}
}

// reply is best effort: whoever does not get it asks again.
func (m *machine) reply(kind channel.Kind, stream uint32, payload []byte) {
	_ = m.conn.Send(channel.Frame{Kind: kind, Stream: stream, Payload: payload[:min(len(payload), channel.MaxPayload)]})
}

func (m *machine) handle(f channel.Frame, problem *string) {
	switch f.Kind {
	case channel.Sync:
		if mark := string(f.Payload); mark != m.syncs { // another driver: it knows nothing of the former one's streams
			m.syncs = mark
			m.conn.CloseAll(channel.ErrClosed)
		}
		state := channel.State{Phase: channel.Waiting, Error: *problem, Copies: true}
		if m.program.pid != 0 {
			state.Phase = channel.Running
		}
		text, _ := json.Marshal(state)
		m.reply(channel.Synced, 0, append([]byte(m.syncs), text...))
	case channel.Start:
		if *problem == "" && m.program.pid == 0 {
			if err := m.start(); err != nil {
				*problem = err.Error()
			}
		}
		m.reply(channel.Started, 0, []byte(*problem))
	case channel.Signal:
		if m.program.pid != 0 && len(f.Payload) == 1 {
			if sig := unix.Signal(f.Payload[0]); sig == unix.SIGTERM {
				go terminate(m.program.pid, m.program.started)
			} else {
				_ = unix.Kill(m.program.pid, sig)
			}
		}
	case channel.Exec:
		m.exec(f)
	case channel.CopyFile:
		m.copyFile(f)
	default:
		if s := m.conn.Stream(f.Stream); s != nil {
			s.Deliver(f)
		}
	}
}

func (m *machine) start() error {
	b, out := m.program.waits, m.program.output
	m.program.waits = nil
	defer b.close()
	if err := b.goOn(); err != nil {
		out.Close()
		return err
	}
	m.program = program{pid: b.pid, started: time.Now(), ended: b.ended, output: out, copied: make(chan struct{})}
	go func() {
		defer close(m.program.copied)
		buf := make([]byte, 16<<10)
		for {
			n, err := out.Read(buf)
			if n > 0 {
				_, _ = m.log.Write(buf[:n])
			}
			if err != nil {
				return
			}
		}
	}()
	return nil
}

// drained is for output that is still on its way when a process has ended.
const drained = time.Second

// drain waits for the last of what the program printed; processes that it left may hold its output open.
func (m *machine) drain() {
	_ = m.program.output.SetReadDeadline(time.Now().Add(drained))
	<-m.program.copied
}

// listen answers the sockets, each connection by a stream.
func (m *machine) listen() error {
	for i, s := range m.spec.Sockets {
		path := filepath.Join(copyOf(s.Mount), filepath.Base(s.Name))
		if s.Datagrams {
			c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
			if err == nil {
				err = os.Chmod(path, 0o666)
			}
			if err != nil {
				return wrap("socket "+s.Name, err)
			}
			go m.handOn(c, byte(i))
			continue
		}
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err == nil {
			err = os.Chmod(path, 0o666)
		}
		if err != nil {
			return wrap("socket "+s.Name, err)
		}
		go func() {
			for {
				c, err := l.AcceptUnix()
				if err != nil {
					time.Sleep(100 * time.Millisecond)
					continue
				}
				m.connected(c, byte(i))
			}
		}()
	}
	return nil
}

// handOn gives each datagram to the driver as a frame of one stream, which is begun anew when it has ended. What nobody takes then is lost, as datagrams are.
func (m *machine) handOn(c *net.UnixConn, socket byte) {
	var s *channel.Stream
	buf := make([]byte, channel.MaxPayload+1)
	for {
		n, err := c.Read(buf)
		if err != nil {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		for tries := 0; n <= channel.MaxPayload && tries < 2; tries++ { // one that is longer is cut already
			if s == nil {
				if s, err = m.conn.New(m.number.Add(1)<<1 | 1); err != nil {
					s = nil
					break
				}
				err = s.Put(channel.Open, []byte{socket})
			}
			if err == nil {
				err = s.Put(channel.Data, buf[:n])
			}
			if err == nil {
				break
			}
			s.Close()
			s, err = nil, nil
		}
	}
}

func (m *machine) connected(c *net.UnixConn, socket byte) {
	s, err := m.conn.New(m.number.Add(1)<<1 | 1)
	if err != nil {
		c.Close()
		return
	}
	go func() {
		defer c.Close()
		defer s.Close()
		if s.Put(channel.Open, []byte{socket}) != nil {
			return
		}
		channel.Join(s, c)
	}()
}

// exec runs one more process with the program's rights.
func (m *machine) exec(f channel.Frame) {
	fail := func(err error) { m.reply(channel.Failed, f.Stream, []byte(err.Error())) }
	var p channel.Process
	if err := json.Unmarshal(f.Payload, &p); err != nil || len(p.Args) == 0 || m.program.pid == 0 {
		fail(errors.New("no command, or no program beside which to run it"))
		return
	}
	s, err := m.conn.New(f.Stream)
	if err != nil {
		fail(err)
		return
	}
	go func() {
		defer s.Close()
		x := execution{machine: m, stream: s}
		exit, err := x.run(p)
		if err != nil {
			_ = s.Put(channel.Failed, []byte(err.Error()))
			return
		}
		text, _ := json.Marshal(exit)
		_ = s.Put(channel.Exited, text)
	}()
}

type execution struct {
	*machine
	stream *channel.Stream
	tty    *os.File
	pid    int
	over   atomic.Bool // pid is nobody's any more
}

func (x *execution) run(p channel.Process) (channel.Exit, error) {
	files, input, outputs, err := x.files(p)
	if err != nil {
		return channel.Exit{}, err
	}
	b, err := x.spawn(x.further(p), files)
	for _, f := range files {
		f.Close()
	}
	if err != nil {
		input.Close()
		for _, o := range outputs {
			o.Close()
		}
		return channel.Exit{}, err
	}
	x.pid = b.pid
	copied := make(chan struct{})
	n := 0
	for kind, o := range outputs {
		n++
		go func() {
			x.output(kind, o)
			copied <- struct{}{}
		}()
	}
	go x.input(input)
	ws := <-b.ended
	x.over.Store(true)
	for _, o := range outputs {
		_ = o.SetReadDeadline(time.Now().Add(drained))
	}
	for range n {
		<-copied
	}
	return exitOf(ws), nil
}

// files are the process's streams, and our ends of them.
func (x *execution) files(p channel.Process) (files [3]*os.File, input *os.File, outputs map[channel.Kind]*os.File, err error) {
	if p.TTY {
		master, slave, err := terminal(x.root)
		if err != nil {
			return files, nil, nil, err
		}
		x.tty = master
		x.resize(p.Cols, p.Rows)
		_ = slave.Chown(int(x.spec.UID), int(x.spec.GID))
		for i := range files {
			fd, err := unix.FcntlInt(slave.Fd(), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				return files, nil, nil, err
			}
			files[i] = os.NewFile(uintptr(fd), "terminal")
		}
		slave.Close()
		return files, master, map[channel.Kind]*os.File{channel.Stdout: master}, nil
	}
	var ends [3][2]*os.File
	for i := range ends {
		if ends[i][0], ends[i][1], err = os.Pipe(); err != nil {
			return files, nil, nil, err
		}
	}
	for _, f := range []*os.File{ends[0][0], ends[1][1], ends[2][1]} {
		_ = f.Chown(int(x.spec.UID), int(x.spec.GID))
	}
	files = [3]*os.File{ends[0][0], ends[1][1], ends[2][1]}
	return files, ends[0][1], map[channel.Kind]*os.File{channel.Stdout: ends[1][0], channel.Stderr: ends[2][0]}, nil
}

// terminal makes one in the program's own file system of terminals.
func terminal(root string) (master, slave *os.File, err error) {
	fd, err := unix.Open(root+"/dev/pts/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, wrap("terminal", err)
	}
	master = os.NewFile(uintptr(fd), "terminal")
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		slave, err = os.OpenFile(root+"/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		master.Close()
	}
	return master, slave, wrap("terminal", err)
}

func (x *execution) resize(cols, rows uint16) {
	if raw, err := x.tty.SyscallConn(); err == nil && cols > 0 && rows > 0 {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Col: cols, Row: rows})
		})
	}
}

func (x *execution) output(kind channel.Kind, from *os.File) {
	if x.tty == nil {
		defer from.Close()
	}
	buf := make([]byte, channel.MaxPayload)
	for {
		n, err := from.Read(buf)
		if n > 0 && x.stream.Write(kind, buf[:n]) != nil {
			x.kill() // nobody takes it
			return
		}
		if err != nil {
			return
		}
	}
}

// kill ends the process and its group.
func (x *execution) kill() {
	if !x.over.Load() {
		_ = unix.Kill(-x.pid, unix.SIGKILL)
	}
}

// input is all that the driver sends to the process. When the stream ends, the process does.
func (x *execution) input(to *os.File) {
	for {
		p, err := x.stream.Next()
		if err != nil {
			x.kill()
			to.Close()
			return
		}
		switch {
		case p.Kind == channel.Data:
			_, _ = to.Write(p.Data) // a process that does not read it is no error
		case p.Kind == channel.EOF && x.tty == nil:
			to.Close()
		case p.Kind == channel.EOF:
			_, _ = to.Write([]byte{4}) // end of input, as a terminal says it
		case p.Kind == channel.Resize && len(p.Data) == 4 && x.tty != nil:
			x.resize(binary.BigEndian.Uint16(p.Data), binary.BigEndian.Uint16(p.Data[2:]))
		}
		_ = x.stream.Done(p)
	}
}
