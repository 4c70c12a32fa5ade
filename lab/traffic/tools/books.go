package tools

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// reading is the counts of a pair at a time.
type reading struct {
	at                 time.Time
	bytes, retransmits uint64
	sent, received     uint64 // datagrams
}

// books of a pair: copies of the TCP sockets of its programs, which the kernel tells their counts of, or, with UDP, files of their namespaces.
type books struct {
	client, server []int  // sockets
	out, in        string // files with the counts of datagrams
	first          uint64 // datagrams in
}

// open the books, if the pair has traffic.
func (b *books) open(o PairOptions, client, server int) (bool, error) {
	if o.UDP {
		begin := b.in == ""
		b.out, b.in = fmt.Sprintf("/proc/%d/net/snmp", client), fmt.Sprintf("/proc/%d/net/snmp", server)
		now, err := datagrams(b.in, "InDatagrams")
		if begin { // counts of namespaces go on from one trial to the next: traffic is what grows
			b.first = now
		}
		return now > b.first, err
	}
	if err := b.close(); err != nil {
		return false, err
	}
	var err error
	if b.server, err = connections(server, func(i *unix.TCPInfo) bool { return i.Bytes_received > greeting }); err != nil || len(b.server) < o.Flows {
		return false, err
	}
	b.client, err = connections(client, func(i *unix.TCPInfo) bool { return i.Bytes_acked > greeting })
	return err == nil && len(b.client) >= o.Flows, err
}

// greeting bounds the bytes that programs exchange before a stream begins, and on connections that only control it.
const greeting = 4096

func (b *books) read() (r reading, err error) {
	r.at = time.Now()
	if b.in != "" {
		if r.sent, err = datagrams(b.out, "OutDatagrams"); err == nil {
			r.received, err = datagrams(b.in, "InDatagrams")
		}
		return r, err
	}
	for _, fd := range b.server {
		i, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return r, fmt.Errorf("tcp info: %w", err)
		}
		r.bytes += i.Bytes_received
	}
	for _, fd := range b.client {
		i, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return r, fmt.Errorf("tcp info: %w", err)
		}
		r.retransmits += uint64(i.Total_retrans)
	}
	return r, nil
}

func (b *books) close() error {
	var errs []error
	for _, fd := range append(b.client, b.server...) {
		errs = append(errs, unix.Close(fd))
	}
	b.client, b.server = nil, nil
	return errors.Join(errs...)
}

// established is the state of a TCP connection (TCP_ESTABLISHED).
const established = 1

// connections are copies of the TCP sockets of a process that are connected and wanted. The caller closes them.
func connections(pid int, wanted func(*unix.TCPInfo) bool) (out []int, err error) {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, gone("process", err)
	}
	defer unix.Close(process)
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, gone("sockets", err)
	}
	for _, e := range entries {
		to, err := os.Readlink(filepath.Join(dir, e.Name()))
		n, nerr := strconv.Atoi(e.Name())
		if err != nil || nerr != nil || !strings.HasPrefix(to, "socket:") {
			continue // it has closed it, or it is none
		}
		fd, err := unix.PidfdGetfd(process, n, 0)
		if err != nil {
			continue
		}
		i, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil && i.State == established && wanted(i) {
			out = append(out, fd)
			continue
		}
		if err := unix.Close(fd); err != nil {
			return out, err
		}
	}
	return out, nil
}

// gone: a program that has ended is told of by whoever waits for it.
func gone(what string, err error) error {
	if errors.Is(err, unix.ESRCH) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("read %s: %w", what, err)
}

// datagrams is a count of UDP of a namespace (RFC 4113), from the text of /proc/PID/net/snmp.
func datagrams(file, name string) (uint64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, gone("counts of datagrams", err)
	}
	return parseDatagrams(string(text), name)
}

func parseDatagrams(text, name string) (uint64, error) {
	var names []string
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		switch {
		case len(f) == 0 || f[0] != "Udp:":
		case names == nil:
			names = f
		default:
			for i, n := range names {
				if n == name && i < len(f) {
					return strconv.ParseUint(f[i], 10, 64)
				}
			}
		}
	}
	return 0, fmt.Errorf("counts of datagrams: no %s of UDP in %q", name, short(text))
}
