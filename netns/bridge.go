package netns

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Attributes of bridges and their ports (linux/if_link.h).
const (
	infoSlaveData  = 5  // IFLA_INFO_SLAVE_DATA
	portLearning   = 8  // IFLA_BRPORT_LEARNING
	bridgeAgeing   = 4  // IFLA_BR_AGEING_TIME
	bridgeLearned  = 48 // IFLA_BR_FDB_N_LEARNED
	bridgeMost     = 49 // IFLA_BR_FDB_MAX_LEARNED
	nestedAttrMask = 0x3fff
)

// LearningBridge is the name of the Linux bridge that joins two interfaces and learns addresses at both; "" if there is none.
func (s *Space) LearningBridge(one, other string) (string, error) {
	var masters [2]int
	for i, name := range []string{one, other} {
		m, err := s.linkMessage(name, filterSkipStats)
		if err != nil {
			return "", err
		}
		l, err := parseLink(m)
		if err != nil {
			return "", err
		}
		masters[i] = l.Master
		if learning := infoAttr(m, infoSlaveData, portLearning); l.Master == 0 || len(learning) == 0 || learning[0] == 0 {
			return "", nil
		}
	}
	if masters[0] != masters[1] {
		return "", nil
	}
	all, err := s.dump(unix.RTM_GETLINK, unix.RTM_NEWLINK, nl.NewIfInfomsg(unix.AF_UNSPEC))
	if err != nil {
		return "", fmt.Errorf("list links in %s: %w", s, err)
	}
	for _, m := range all {
		if l, err := parseLink(m); err == nil && l.Index == masters[0] && l.Kind == "bridge" && word(infoAttr(m, nl.IFLA_INFO_DATA, bridgeAgeing)) != 0 {
			return l.Name, nil
		}
	}
	return "", nil
}

// BoundBridge bounds how many addresses a Linux bridge learns; frames for others are flooded. ok is false on a kernel before 6.8, which learns
// without a bound.
func (s *Space) BoundBridge(name string, most uint32) (ok bool, err error) {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("bridge"))
	info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(bridgeMost, nl.Uint32Attr(most))
	if err := s.request(unix.RTM_NEWLINK, 0, nl.NewIfInfomsg(unix.AF_UNSPEC), nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)), info); err != nil {
		return false, fmt.Errorf("bound the addresses of bridge %s: %w", name, err)
	}
	_, now, err := s.BridgeLearned(name)
	return now == most, err
}

// BridgeLearned is how many addresses a bridge has learned, and at most learns: 0 any number.
func (s *Space) BridgeLearned(name string) (learned, most uint32, err error) {
	m, err := s.linkMessage(name, filterSkipStats)
	if err != nil {
		return 0, 0, err
	}
	return word(infoAttr(m, nl.IFLA_INFO_DATA, bridgeLearned)), word(infoAttr(m, nl.IFLA_INFO_DATA, bridgeMost)), nil
}

// BridgeShows tells to which tables a Linux bridge shows what it forwards by an option of its own: "iptables", "ip6tables", "arptables". The sysctls
// net.bridge.bridge-nf-call-* do so for all bridges of a namespace.
func (s *Space) BridgeShows(name string) (tables []string, err error) {
	m, err := s.linkMessage(name, filterSkipStats)
	if err != nil {
		return nil, err
	}
	for i, table := range []string{"iptables", "ip6tables", "arptables"} {
		if on := infoAttr(m, nl.IFLA_INFO_DATA, uint16(nl.IFLA_BR_NF_CALL_IPTABLES+i)); len(on) > 0 && on[0] != 0 {
			tables = append(tables, table)
		}
	}
	return tables, nil
}

// linkMessage asks for an interface; filter says what not to tell of it (RTEXT_FILTER_...).
func (s *Space) linkMessage(name string, filter uint32) ([]byte, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_ACK)
	req.Sockets = s.sockets
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	req.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(filter)))
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if errors.Is(err, unix.ENODEV) || err == nil && (len(msgs) == 0 || len(msgs[0]) < unix.SizeofIfInfomsg) {
		return nil, fmt.Errorf("%w: %s in %s", ErrNoLink, name, s)
	}
	if err != nil {
		return nil, fmt.Errorf("get link %s in %s: %w", name, s, err)
	}
	return msgs[0], nil
}

// infoAttr digs an attribute out of IFLA_LINKINFO; nil if it is not there.
func infoAttr(m []byte, nest, attr uint16) []byte {
	if len(m) < unix.SizeofIfInfomsg {
		return nil
	}
	b := m[unix.SizeofIfInfomsg:]
	for _, kind := range []uint16{unix.IFLA_LINKINFO, nest, attr} {
		attrs, err := nl.ParseRouteAttr(b)
		if err != nil {
			return nil
		}
		b = nil
		for _, a := range attrs {
			if a.Attr.Type&nestedAttrMask == kind {
				b = a.Value
			}
		}
		if b == nil {
			return nil
		}
	}
	return b
}
