package platform

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"weir.dev/weir/container"
)

// MemberOptions say which members there are.
type MemberOptions struct {
	Options
	Runtime string // what a member is
	Network string // what joins them
	Relays  bool   // each has socat as its process; see Processors
	// Engine is that of the lab, for members that are its containers.
	Engine func(ctx context.Context) (*Engine, error)
}

// Member is a container with one interface, Station, on a network of many.
type Member struct {
	Name    string
	Space   string // its network namespace
	Address netip.Addr
	Groups  []string // files by which a process enters its cgroups: "0" is written to each; none: it has none
}

// Members are containers on one network that joins them all. Methods are called from one goroutine.
type Members struct {
	links
	net       segment
	houses    housing
	all       []Member
	destroyer func(context.Context, links) error
}

// maxMembers of a network: a bridge has at most 1023 ports.
const maxMembers = 1000

// memberNet is the subnet of the members. 10.9.0.0/24 has platforms with two stations: no namespace is in both.
var memberNet = netip.MustParsePrefix("10.9.0.0/16")

// memberAddress of the i-th member.
func memberAddress(i int) netip.Prefix {
	a := memberNet.Addr().As4()
	a[2], a[3] = byte(i/250), byte(i%250+1)
	return netip.PrefixFrom(netip.AddrFrom4(a), memberNet.Bits())
}

// CheckMembers tells why members cannot be had here; empty: they can.
func CheckMembers(o Options, runtime, network string) string {
	h, err := findHousing(runtime)
	if err != nil {
		return err.Error()
	}
	s, err := findSegment(network)
	if err != nil {
		return err.Error()
	}
	if os.Geteuid() != 0 {
		return "needs root"
	}
	if why := s.check(o); why != "" {
		return why
	}
	return h.check(o)
}

// MemberMemory is what a container of a runtime takes, about, beside what runs in it.
func MemberMemory(runtime string) int64 {
	h, err := findHousing(runtime)
	if err != nil {
		return 0
	}
	return h.memory
}

// OpenMembers makes the network. Grow makes the members.
func OpenMembers(ctx context.Context, o MemberOptions) (*Members, error) {
	h, err := findHousing(o.Runtime)
	if err != nil {
		return nil, err
	}
	s, err := findSegment(o.Network)
	if err != nil {
		return nil, err
	}
	inst, err := newInstance(o.Options)
	if err != nil {
		return nil, err
	}
	m := &Members{links: linksOf(inst), destroyer: s.destroy}
	if err := m.open(ctx, o, h, s); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func (m *Members) open(ctx context.Context, o MemberOptions, h housingMaker, s segmentMaker) (err error) {
	spaces := spaces{dir: m.inst.NetnsDir()}
	if _, err := spaces.add(filepath.Base(m.home), true); err != nil {
		return err
	}
	if m.net, err = s.open(ctx, m.links); err != nil {
		return err
	}
	m.houses, err = h.open(ctx, o, m.inst)
	return err
}

func memberName(i int) string { return fmt.Sprintf("m%03d", i) }

// Grow makes members until there are n, and gives the first n.
func (m *Members) Grow(ctx context.Context, n int) ([]Member, error) {
	if n > maxMembers {
		return nil, fmt.Errorf("%d members: want at most %d", n, maxMembers)
	}
	if n <= len(m.all) {
		return m.all[:n], nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience+time.Duration(n)*2*time.Second)
	defer cancel()
	more := make([]Member, n-len(m.all))
	var g errgroup.Group
	g.SetLimit(container.AtOnce())
	for i := range more {
		g.Go(func() (err error) {
			x := &more[i]
			at := len(m.all) + i
			x.Name, x.Address = memberName(at), memberAddress(at).Addr()
			if err := ctx.Err(); err != nil {
				return err
			}
			if x.Space, x.Groups, err = m.houses.house(ctx, berth{name: x.Name, space: filepath.Join(m.inst.NetnsDir(), x.Name)}); err != nil {
				return fmt.Errorf("member %s: %w", x.Name, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for i, x := range more {
		if err := m.net.station(ctx, x.Name, x.Space, memberAddress(len(m.all)+i)); err != nil {
			return nil, fmt.Errorf("member %s: %w", x.Name, err)
		}
	}
	m.all = append(m.all, more...)
	return m.all, m.net.meet(ctx)
}

// Path from one member to another. Nothing can be put in on the way.
func (m *Members) Path(from, to Member) Path {
	return Path{From: from.Space, To: to.Space, Source: from.Address, Address: to.Address, Middle: m.home}
}

// Close removes everything.
func (m *Members) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var errs []error
	if m.houses != nil {
		errs = append(errs, m.houses.close(ctx))
	}
	if m.net != nil {
		errs = append(errs, m.net.close(ctx))
	} else {
		errs = append(errs, m.destroyer(ctx, m.links))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove %s: %w", m.inst.Name, err)
	}
	return RemoveInstance(m.inst)
}

// Confine a member to processors, as package cpuset writes them, by its cpuset cgroup, as `docker update --cpuset-cpus` does. false: it has no such
// cgroup.
func (x Member) Confine(cpus string) (bool, error) {
	for _, g := range x.Groups {
		file := filepath.Join(filepath.Dir(g), "cpuset.cpus")
		if !exists(file) {
			continue
		}
		text, err := os.ReadFile(file)
		if err == nil && strings.TrimSpace(string(text)) == cpus {
			return true, nil
		}
		if err := os.WriteFile(file, []byte(cpus), 0); err != nil {
			return true, fmt.Errorf("processors %s of member %s: %w", cpus, x.Name, err)
		}
		return true, nil
	}
	return false, nil
}
