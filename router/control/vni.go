package control

import (
	"encoding/binary"
	"hash/fnv"
	"slices"
)

// maxVNI is the greatest VXLAN network identifier (RFC 7348, section 5).
const maxVNI = 1<<24 - 1

// pair of hosts, in the order of their names.
type pair struct{ a, b string }

// vnis gives each pair of hosts an identifier of its own, since that alone tells a host from which tunnel a packet came: the kernel
// refuses two tunnels of one identifier at one UDP port. They follow from the names, so that another host changes none of them, but where
// two pairs of one host would meet.
func vnis(base uint32, hosts []string) map[pair]uint32 {
	hosts = slices.Sorted(slices.Values(hosts))
	out := make(map[pair]uint32, len(hosts)*(len(hosts)-1)/2)
	taken := make(map[string]map[uint32]bool, len(hosts))
	for _, h := range hosts {
		taken[h] = map[uint32]bool{}
	}
	for i, a := range hosts {
		for _, b := range hosts[i+1:] {
			id := hashVNI(base, a, b)
			for taken[a][id] || taken[b][id] {
				id = id%maxVNI + 1
			}
			taken[a][id], taken[b][id] = true, true
			out[pair{a, b}] = id
		}
	}
	return out
}

func hashVNI(base uint32, a, b string) uint32 {
	h := fnv.New64a()
	h.Write(binary.BigEndian.AppendUint32(nil, base))
	h.Write([]byte(a))
	h.Write([]byte{0})
	h.Write([]byte(b))
	x := h.Sum64()
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9 // as splitmix64 ends: FNV's last step mixes badly
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return uint32((x^x>>31)%maxVNI) + 1
}

// vni of the tunnel between two of the hosts that have tunnels.
func (l *loop) vni(hosts []string, a, b string) uint32 {
	if !slices.Equal(hosts, l.tunnelled) {
		l.tunnelled, l.vnis = hosts, vnis(l.o.VNI, hosts)
	}
	if a > b {
		a, b = b, a
	}
	return l.vnis[pair{a, b}]
}
