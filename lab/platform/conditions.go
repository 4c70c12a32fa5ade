package platform

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.dev/weir/netns"
	"weir.dev/weir/netns/ethtool"
)

// Settings of the stations' interfaces, and with ofPorts those of all veths between the stations.
const (
	SettingMTU       = "MTU"
	SettingQdisc     = "qdisc"
	SettingTSO       = "TSO"
	SettingGSO       = "GSO"
	SettingGRO       = "GRO"
	SettingChecksums = "checksums"
	SettingQueues    = "queues"
	settingTxQueue   = "tx queue length"
	SettingRPS       = "RPS"
	settingThreaded  = "threaded NAPI"

	ofPorts = " of ports"
)

// settingShown begins the name of the settings by which bridges show what they forward to a table. Each namespace between the stations has them, with
// bridges or without; a station forwards nothing.
const settingShown = "bridge-nf-call-"

// stationSysctls are settings of the stations' namespaces, by their files below /proc/sys/net.
func stationSysctls() []string {
	return []string{"ipv4/tcp_congestion_control", "ipv4/tcp_rmem", "ipv4/tcp_wmem", "ipv4/tcp_timestamps", "ipv4/tcp_sack", "ipv4/tcp_window_scaling"}
}

// tally counts the values of settings.
type tally map[string]map[string]int

func (t tally) add(name, value string) {
	if t[name] == nil {
		t[name] = map[string]int{}
	}
	t[name][value]++
}

// texts are the values, each once; of several each with how often it is there, the most frequent first.
func (t tally) texts() map[string]string {
	out := map[string]string{}
	for name, counts := range t {
		var values []string
		for v := range counts {
			values = append(values, v)
		}
		slices.SortFunc(values, func(a, b string) int {
			if d := counts[b] - counts[a]; d != 0 {
				return d
			}
			return strings.Compare(a, b)
		})
		if len(values) > 1 {
			for i, v := range values {
				values[i] = fmt.Sprintf("%s (%d)", v, counts[v])
			}
		}
		out[name] = strings.Join(values, ", ")
	}
	return out
}

// Conditions are the settings under which frames pass a path, read back from the kernel: of both stations, and of everything between them that is on
// this machine. A value that is not the same everywhere is told with how often it is there.
func (p Path) Conditions() (map[string]string, error) {
	t := tally{}
	for _, space := range []string{p.From, p.To} {
		err := netns.Do(space, func() error {
			for _, name := range stationSysctls() {
				if err := t.sysctl(filepath.Base(name), name); err != nil {
					return err
				}
			}
			return t.links("", func(l netlink.Link) bool { return l.Attrs().Name == Station })
		})
		if err != nil {
			return nil, fmt.Errorf("conditions of %s: %w", space, err)
		}
	}
	for _, space := range filepath.SplitList(p.Middle) {
		s, err := netns.At(space)
		if err != nil {
			return nil, fmt.Errorf("conditions of %s: %w", space, err)
		}
		err = s.Do(func() error {
			return errors.Join(t.shown(s), t.links(ofPorts, func(l netlink.Link) bool { return l.Type() == "veth" && l.Attrs().Flags&unix.IFF_UP != 0 }))
		})
		if err = errors.Join(err, s.Close()); err != nil {
			return nil, fmt.Errorf("conditions of %s: %w", space, err)
		}
	}
	return t.texts(), nil
}

// sysctl of the thread's namespace. What the kernel lacks is no setting.
func (t tally) sysctl(name, file string) error {
	text, err := os.ReadFile(filepath.Join("/proc/sys/net", file))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	t.add(name, strings.Join(strings.Fields(string(text)), " "))
	return err
}

// shown tells to whom bridges of the thread's namespace show what they forward, or would: by the namespace's sysctl, and by options of their own.
func (t tally) shown(s *netns.Space) error {
	for _, table := range []string{"iptables", "ip6tables", "arptables"} {
		if err := t.sysctl(settingShown+table, "bridge/"+settingShown+table); err != nil {
			return err
		}
	}
	links, err := s.Links("")
	if err != nil {
		return err
	}
	for _, l := range links {
		if l.Kind != "bridge" {
			continue
		}
		own, err := s.BridgeShows(l.Name)
		if err != nil {
			return err
		}
		for _, table := range own {
			t.add(settingShown+table, "1")
		}
	}
	return nil
}

// links of the thread's namespace that are wanted.
func (t tally) links(suffix string, wanted func(netlink.Link) bool) error {
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	qdiscs, err := rootQdiscs()
	if err != nil {
		return err
	}
	sysfs, err := netns.Sysfs()
	if err != nil {
		return err
	}
	defer unix.Close(sysfs)
	for _, l := range links {
		if !wanted(l) {
			continue
		}
		a := l.Attrs()
		t.add(SettingMTU+suffix, strconv.Itoa(a.MTU))
		t.add(settingTxQueue+suffix, strconv.Itoa(a.TxQLen))
		t.add(SettingQdisc+suffix, qdiscs[a.Index])
		if err := t.features(suffix, a.Name); err != nil {
			return err
		}
		for name, file := range map[string]string{SettingRPS: "queues/rx-0/rps_cpus", settingThreaded: "threaded"} {
			if text, err := readAt(sysfs, "class/net/"+a.Name+"/"+file); err == nil { // a kernel without it has no such setting
				t.add(name+suffix, text)
			}
		}
	}
	return nil
}

// features of a link of the thread's namespace that hardware would have, and its queues.
func (t tally) features(suffix, name string) error {
	features, err := ethtool.Features(name)
	if err != nil {
		return err
	}
	for label, feature := range map[string]string{
		SettingGSO: "tx-generic-segmentation", SettingTSO: "tx-tcp-segmentation", SettingGRO: "rx-gro", SettingChecksums: "tx-checksum-ip-generic",
	} {
		t.add(label+suffix, map[bool]string{true: "on", false: "off"}[features[feature].Active])
	}
	if q, err := ethtool.QueuesOf(name); err == nil {
		t.add(SettingQueues+suffix, fmt.Sprintf("%d tx, %d rx", q.TX, q.RX))
	}
	return nil
}

// rootQdiscs of the thread's namespace by interface index.
func rootQdiscs() (map[int]string, error) {
	all, err := netlink.QdiscList(nil)
	if err != nil {
		return nil, fmt.Errorf("list qdiscs: %w", err)
	}
	out := map[int]string{}
	for _, q := range all {
		if q.Attrs().Parent == netlink.HANDLE_ROOT {
			out[q.Attrs().LinkIndex] = q.Type()
		}
	}
	return out, nil
}

// readAt reads a short file of a mount.
func readAt(dir int, name string) (string, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	text := make([]byte, 4096)
	n, err := unix.Read(fd, text)
	return strings.TrimSpace(string(text[:max(n, 0)])), err
}
