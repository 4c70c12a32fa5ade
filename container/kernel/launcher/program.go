package launcher

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Sizes and numbers of launcher.c.
const (
	magic      = 0x77656972
	headerSize = 32
	stepSize   = 80
	stepsMax   = 4096
	listMax    = 8 << 20 // of data: more than execve takes
	exit       = -1
	exitAs     = -2
	gone       = 127 // exit code: nobody is there to go on with
)

// Arg is an argument of a system call.
type Arg struct {
	kind  uint8
	value uint64
}

const (
	value uint8 = iota
	address
	result
	word
)

// Plus is the address of a byte that is n behind that of a.
func (a Arg) Plus(n int) Arg { return Arg{a.kind, a.value + uint64(n)} }

// Step is one of a Program.
type Step int

// when a step is not followed by the next one.
type when uint8

const (
	never    when = iota
	Positive      // it returned more than 0
	Zero          // it returned 0
	Refused       // it failed with an error that is spared
)

type step struct {
	what   string
	number int64
	args   []Arg
	spared []unix.Errno
	when   when
	target int
}

// Program is a list of system calls, made by a process without threads. It ends with an execve or an exit. The zero value is empty.
type Program struct {
	// Anyone may run it: the process that executes the launcher is not the host's root any more.
	Anyone bool
	said   int // descriptor for what it says
	steps  []step
	data   []byte
	words  []uint64 // offsets in data of words that are addresses
}

// New begins a program that says what fails on a descriptor; see Hear.
func New(said int) *Program { return &Program{said: said} }

// Say changes the descriptor.
func (p *Program) Say(said int) { p.said = said }

// Int is a number.
func Int[T ~int | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr](n T) Arg {
	return Arg{value, uint64(n)}
}

// Here is AT_FDCWD, a directory's descriptor that means the current one.
func Here() Arg { return Int(int64(unix.AT_FDCWD)) }

// Result is what a former step returned.
func Result(s Step) Arg { return Arg{result, uint64(s)} }

// Receive adds a call that receives n descriptors as one message of a socket, which are closed at execve. The process ends if nobody is left to send them. What did
// not come is -1, not the descriptor 0.
func (p *Program) Receive(what string, socket, n int) []Arg {
	const head = 16           // of struct cmsghdr
	size := head + (4*n+7)&^7 // CMSG_SPACE
	text, control := p.Bytes(make([]byte, 8)), p.Bytes(bytes.Repeat([]byte{0xff}, size))
	part := p.Bytes(make([]byte, 16)) // struct iovec
	p.point(int(part.value), text.value)
	binary.LittleEndian.PutUint64(p.data[part.value+8:], 1)
	message := p.Bytes(make([]byte, 56)) // struct msghdr
	p.point(int(message.value)+16, part.value)
	binary.LittleEndian.PutUint64(p.data[message.value+24:], 1)
	p.point(int(message.value)+32, control.value)
	binary.LittleEndian.PutUint64(p.data[message.value+40:], uint64(size))
	s := p.Jump(p.Call(what, unix.SYS_RECVMSG, Int(socket), message, Int(unix.MSG_CMSG_CLOEXEC)), Positive)
	p.Exit(gone)
	p.Land(s)
	all := make([]Arg, n)
	for i := range all {
		all[i] = Arg{word, control.value + uint64(head+4*i)}
	}
	return all
}

// Bytes is the address of a copy of b, aligned to 8 bytes.
func (p *Program) Bytes(b []byte) Arg {
	for len(p.data)%8 != 0 {
		p.data = append(p.data, 0)
	}
	at := len(p.data)
	p.data = append(p.data, b...)
	return Arg{address, uint64(at)}
}

// String is the address of a string of C.
func (p *Program) String(s string) Arg { return p.Bytes(append([]byte(s), 0)) }

// Strings is the address of an array of strings that ends with 0, as execve wants it. more are the addresses of further ones.
func (p *Program) Strings(all []string, more ...Arg) Arg {
	at := make([]Arg, 0, len(all)+len(more))
	for _, s := range all {
		at = append(at, p.String(s))
	}
	at = append(at, more...)
	array := p.Bytes(make([]byte, 8*(len(at)+1)))
	for i, a := range at {
		p.point(int(array.value)+8*i, a.value)
	}
	return array
}

// Filter is the address of a struct sock_fprog of n instructions.
func (p *Program) Filter(n int, instructions []byte) Arg {
	code := p.Bytes(instructions)
	head := p.Bytes(binary.LittleEndian.AppendUint64(nil, uint64(n)))
	p.Bytes(make([]byte, 8)) // directly behind: 8 bytes are already aligned
	p.point(int(head.value)+8, code.value)
	return head
}

// point lets a word of data hold an address in data.
func (p *Program) point(word int, at uint64) {
	binary.LittleEndian.PutUint64(p.data[word:], at)
	p.words = append(p.words, uint64(word))
}

// Call adds a system call; what says what it is for, in a message of its failure.
func (p *Program) Call(what string, number uintptr, args ...Arg) Step {
	p.steps = append(p.steps, step{what: what, number: int64(number), args: args})
	return Step(len(p.steps) - 1)
}

// Spare lets errors of a step, at most three, be no failure.
func (p *Program) Spare(s Step, errs ...unix.Errno) Step {
	p.steps[s].spared = errs
	return s
}

// Jump says where to go on after a step when w; Land says where that is.
func (p *Program) Jump(s Step, w when) Step {
	p.steps[s].when = w
	return s
}

// Land lets a step's jump end at the next step to be added.
func (p *Program) Land(steps ...Step) {
	for _, s := range steps {
		p.steps[s].target = len(p.steps)
	}
}

// Exit ends the process.
func (p *Program) Exit(code int) {
	p.steps = append(p.steps, step{number: exit, args: []Arg{Int(code)}})
}

// ExitAs waits for a child whose id a step returned, and ends as it does: with its exit code, or 128 and its signal.
func (p *Program) ExitAs(s Step) {
	p.steps = append(p.steps, step{number: exitAs, args: []Arg{Result(s)}})
}

// Purposes of the steps, in order: who hears of a failure and has not made p can tell of it by that.
func (p *Program) Purposes() (all []string) {
	for _, s := range p.steps {
		all = append(all, s.what)
	}
	return all
}

// Numbers are those of the system calls that it makes, in order.
func (p *Program) Numbers() (all []int) {
	for _, s := range p.steps {
		if s.number >= 0 {
			all = append(all, int(s.number))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// encode is what launcher.c reads.
func (p *Program) encode() ([]byte, error) {
	if len(p.steps) > stepsMax {
		return nil, fmt.Errorf("launcher: %d steps, at most %d", len(p.steps), stepsMax)
	}
	if len(p.data) > listMax {
		return nil, fmt.Errorf("launcher: arguments and environment take %d bytes, at most %d are possible", len(p.data), listMax)
	}
	at := uint64(headerSize + stepSize*len(p.steps))
	for len(p.data)%8 != 0 {
		p.data = append(p.data, 0)
	}
	le := binary.LittleEndian
	out := le.AppendUint32(nil, magic)
	out = le.AppendUint32(out, uint32(len(p.steps)))
	out = le.AppendUint32(out, uint32(len(p.words)))
	out = le.AppendUint32(out, uint32(p.said))
	out = le.AppendUint64(out, at+uint64(len(p.data)))
	out = le.AppendUint64(out, at+uint64(len(p.data)+8*len(p.words)))
	for _, s := range p.steps {
		out = s.encode(out, at)
	}
	data := append([]byte(nil), p.data...)
	for _, w := range p.words {
		le.PutUint64(data[w:], le.Uint64(data[w:])+at)
	}
	out = append(out, data...)
	for _, w := range p.words {
		out = le.AppendUint64(out, w+at)
	}
	return out, nil
}

func (s step) encode(out []byte, data uint64) []byte {
	le := binary.LittleEndian
	begin := len(out)
	out = le.AppendUint64(out, uint64(s.number))
	var kinds [6]uint8
	for i := range 6 {
		var a Arg
		if i < len(s.args) {
			a = s.args[i]
		}
		if kinds[i] = a.kind; a.kind == address || a.kind == word {
			a.value += data
		}
		out = le.AppendUint64(out, a.value)
	}
	out = append(out, kinds[:]...)
	var spared [3]uint8
	for i, e := range s.spared {
		spared[i] = uint8(e)
	}
	out = append(out, spared[:]...)
	out = append(out, uint8(s.when), 0, 0)
	out = le.AppendUint32(out, uint32(s.target))
	return append(out, make([]byte, stepSize-(len(out)-begin))...)
}
