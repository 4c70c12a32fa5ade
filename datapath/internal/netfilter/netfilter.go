// Package netfilter finds out who looks at frames that a bridge forwards: tables of iptables and nftables, ebtables, IPVS, BPF programs at netfilter's hooks. A
// switch that takes frames past the bridge has to know, since those rules would miss them. It changes nothing.
package netfilter

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const inetIngress = 5 // uapi netfilter.h: NF_INET_INGRESS

// shownTo is whose rules see what a bridge forwards if all bridges are told so (net.bridge.bridge-nf-call-NAME), or this one is (option).
var shownTo = []struct {
	name   string
	tables string // /proc/net/...: those that are not nftables'
	family nftables.TableFamily
	option uint16
}{
	{"iptables", "ip_tables_names", nftables.TableFamilyIPv4, nl.IFLA_BR_NF_CALL_IPTABLES},
	{"ip6tables", "ip6_tables_names", nftables.TableFamilyIPv6, nl.IFLA_BR_NF_CALL_IP6TABLES},
	{"arptables", "arp_tables_names", nftables.TableFamilyARP, nl.IFLA_BR_NF_CALL_ARPTABLES},
}

// SeenBy names something of netfilter's in the thread's namespace that sees bridged frames, or frames as they enter and leave a link: what frames
// would miss that pass the bridge by. "" is nothing. bridge is an interface's index; 0: none in particular.
func SeenBy(bridge int, programs *Programs) (string, error) {
	own, err := bridgeOptions(bridge)
	if err != nil {
		return "", err
	}
	// Tables of iptables and the like, where bridged packets are shown to them.
	families := []nftables.TableFamily{nftables.TableFamilyBridge, nftables.TableFamilyNetdev, nftables.TableFamilyINet}
	calls := map[nftables.TableFamily]bool{}
	for _, to := range shownTo {
		all, err := inFile("/proc/sys/net/bridge/bridge-nf-call-" + to.name)
		if err != nil {
			return "", err
		}
		if (all == "" || all == "0") && !own[to.option] {
			continue
		}
		calls[to.family], families = true, append(families, to.family)
		tables, err := inFile("/proc/thread-self/net/" + to.tables)
		if err != nil {
			return "", err
		}
		if tables != "" {
			return fmt.Sprintf("%s table %s", to.name, strings.Fields(tables)[0]), nil
		}
	}
	// Tables of ebtables: a module of them is enough.
	modules, err := inFile("/proc/modules")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(modules) {
		if strings.HasPrefix(line, "ebtable_") {
			return "ebtables (module " + strings.Fields(line)[0] + ")", nil
		}
	}
	if builtIn, err := ebtablesBuiltIn(); builtIn || err != nil {
		return "ebtables (built into the kernel)", err
	}
	// BPF programs, and IPVS.
	if by, err := programs.seenBy(calls); by != "" || err != nil {
		return by, err
	}
	if calls[nftables.TableFamilyIPv4] || calls[nftables.TableFamilyIPv6] {
		services, err := inFile("/proc/thread-self/net/ip_vs")
		if err != nil {
			return "", err
		}
		if balances(services) {
			return "IPVS", nil
		}
	}
	// Chains of nftables.
	c, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return "", fmt.Errorf("ask nftables: %w", err)
	}
	defer func() { _ = c.CloseLasting() }()
	for _, family := range families {
		chains, err := c.ListChainsOfTableFamily(family)
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPROTONOSUPPORT) {
			return "", nil // a kernel without nftables: netlink does not know whom to ask
		}
		if err != nil {
			return "", fmt.Errorf("list the chains of nftables: %w", err)
		}
		for _, ch := range chains {
			if sees(ch, calls) {
				return fmt.Sprintf("nftables chain %s in table %s", ch.Name, ch.Table.Name), nil
			}
		}
	}
	return "", nil
}

// bridgeOptions are those of a bridge (IFLA_BR_...) that are on. Bridge 0 is none.
func bridgeOptions(index int) (map[uint16]bool, error) {
	on := map[uint16]bool{}
	if index == 0 {
		return on, nil
	}
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	answers, err := req.Execute(unix.NETLINK_ROUTE, 0)
	if err != nil {
		return nil, fmt.Errorf("ask for the bridge's options: %w", err)
	}
	for _, answer := range answers {
		data := answer[unix.SizeofIfInfomsg:]
		for _, into := range []uint16{unix.IFLA_LINKINFO, nl.IFLA_INFO_DATA} {
			attrs, err := nl.ParseRouteAttr(data)
			if err != nil {
				return nil, fmt.Errorf("read the bridge's options: %w", err)
			}
			data = nil
			for _, a := range attrs {
				if a.Attr.Type&^unix.NLA_F_NESTED == into {
					data = a.Value
				}
			}
		}
		attrs, err := nl.ParseRouteAttr(data)
		if err != nil {
			return nil, fmt.Errorf("read the bridge's options: %w", err)
		}
		for _, a := range attrs {
			if len(a.Value) > 0 && a.Value[0] != 0 {
				on[a.Attr.Type] = true
			}
		}
	}
	return on, nil
}

// sees: a base chain that bridged frames come by. calls are the families to which bridged packets are shown.
func sees(ch *nftables.Chain, calls map[nftables.TableFamily]bool) bool {
	if ch.Hooknum == nil {
		return false // others jump there
	}
	hook := *ch.Hooknum
	switch family := ch.Table.Family; family {
	case nftables.TableFamilyBridge, nftables.TableFamilyNetdev:
		return true
	case nftables.TableFamilyARP:
		return calls[family]
	case nftables.TableFamilyINet:
		if hook == inetIngress { // of a link
			return true
		}
		return (calls[nftables.TableFamilyIPv4] || calls[nftables.TableFamilyIPv6]) && !local(hook)
	default:
		return calls[family] && !local(hook)
	}
}

// local: what the host itself receives and sends.
func local(h nftables.ChainHook) bool {
	return h == unix.NF_INET_LOCAL_IN || h == unix.NF_INET_LOCAL_OUT
}

// inFile is the content of a file of the kernel's, "" without such a file.
func inFile(path string) (string, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(b)), err
}
