package settle

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"weir.dev/weir/datapath"
)

// Usage is the form of a line, for people.
const Usage = "want pass, drop or judge, then tcp or udp with two addresses and ports (10.9.0.1:4000 10.9.0.2:80, [fd57::1]:4000 [fd57::2]:80) or " +
	"icmp with two addresses and id N, then perhaps vlan N, oneway, at in or at out, and of pass oneway rewrite src or rewrite dst with an address and port, and mac with that of the destination; or reset"

var verdicts = map[string]datapath.Verdict{"pass": datapath.Pass, "drop": datapath.Discard, "judge": datapath.Judge}

// Parse reads a line; reset: all verdicts are to be taken back.
func Parse(line string) (s datapath.Settlement, reset bool, err error) {
	words := strings.Fields(line)
	if len(words) == 1 && words[0] == "reset" {
		return s, true, nil
	}
	if len(words) < 4 {
		return s, false, errors.New(Usage)
	}
	verdict, known := verdicts[words[0]]
	if !known {
		return s, false, fmt.Errorf("%q: %s", words[0], Usage)
	}
	s.Verdict, s.Flow.VLAN = verdict, datapath.NoVLAN
	rest := words[4:]
	switch words[1] {
	case "tcp", "udp":
		s.Flow.Protocol = map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP}[words[1]]
		for i, at := range []*netip.AddrPort{&s.Flow.Src, &s.Flow.Dst} {
			if *at, err = netip.ParseAddrPort(words[2+i]); err != nil {
				return s, false, fmt.Errorf("%q is no address with a port: %s", words[2+i], Usage)
			}
		}
	case "icmp":
		if rest, err = echo(&s.Flow, words[2:]); err != nil {
			return s, false, err
		}
	default:
		return s, false, fmt.Errorf("%q: %s", words[1], Usage)
	}
	if err := options(&s, rest); err != nil {
		return s, false, err
	}
	return s, false, s.Check()
}

// echo reads "SRC DST id N".
func echo(f *datapath.Flow, words []string) (rest []string, err error) {
	if len(words) < 4 || words[2] != "id" {
		return nil, errors.New(Usage)
	}
	id, err := strconv.ParseUint(words[3], 10, 16)
	if err != nil {
		return nil, fmt.Errorf("id %q: want 0 to 65535", words[3])
	}
	for i, at := range []*netip.AddrPort{&f.Src, &f.Dst} {
		addr, err := netip.ParseAddr(words[i])
		if err != nil {
			return nil, fmt.Errorf("%q is no address: %s", words[i], Usage)
		}
		*at = netip.AddrPortFrom(addr, uint16(id))
	}
	f.Protocol = unix.IPPROTO_ICMP
	if f.Src.Addr().Is6() {
		f.Protocol = unix.IPPROTO_ICMPV6
	}
	return words[4:], nil
}

func options(s *datapath.Settlement, words []string) error {
	for len(words) > 0 {
		switch {
		case words[0] == "oneway":
			s.OneWay, words = true, words[1:]
		case words[0] == "at" && len(words) > 1:
			if words[1] != "in" && words[1] != "out" {
				return fmt.Errorf("at %q: want a port, in or out", words[1])
			}
			s.At, words = words[1], words[2:]
		case words[0] == "rewrite" && len(words) > 2:
			to, err := netip.ParseAddrPort(words[2])
			if words[1] != "src" && words[1] != "dst" || err != nil {
				return fmt.Errorf("rewrite %s %q: want src or dst, and an address with a port", words[1], words[2])
			}
			s.Rewrite, words = &datapath.Rewrite{Target: words[1] == "dst", To: to}, words[3:]
		case words[0] == "mac" && len(words) > 1 && s.Rewrite != nil:
			mac, err := net.ParseMAC(words[1])
			if err != nil || len(mac) != 6 || mac[0]&1 != 0 || bytes.Equal(mac, make([]byte, 6)) {
				return fmt.Errorf("mac %q: want that of one station", words[1])
			}
			s.Rewrite.MAC, words = [6]byte(mac), words[2:]
		case words[0] == "vlan" && len(words) > 1:
			id, err := strconv.ParseUint(words[1], 10, 12)
			if err != nil {
				return fmt.Errorf("vlan %q: want 0 to 4095", words[1])
			}
			s.Flow.VLAN, words = uint16(id), words[2:]
		default:
			return fmt.Errorf("%q: %s", words[0], Usage)
		}
	}
	return nil
}
