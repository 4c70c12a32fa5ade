package nf

import "golang.org/x/sys/unix"

// afterFilter takes the segments of Options.After (them), or all other frames of their port.
func afterFilter(ports []uint16, them bool) []unix.SockFilter {
	const (
		tagPresent = 0xfffff000 + 48 // SKF_AD_OFF + SKF_AD_VLAN_TAG_PRESENT
		whole      = 0xffffffff      // bytes that are taken
	)
	yes, no := uint32(0), uint32(whole)
	if them {
		yes, no = no, yes
	}
	n := uint8(len(ports))
	f := []unix.SockFilter{ // jumps count from the next instruction; "no" is that behind the ports
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_LEN},
		{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: 38, Jf: n + 11}, // too short for ports
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: tagPresent},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0, Jf: n + 9},
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 12},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: EtherIPv4, Jf: n + 7},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 14},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0x45, Jf: n + 5}, // no options
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 23},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: TCP, Jf: n + 3},
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 20},
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: 0x3fff, Jt: n + 1}, // fragments
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 36},
	}
	for i, p := range ports {
		f = append(f, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(p), Jt: n - uint8(i)})
	}
	return append(f, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: no}, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: yes})
}
