package platform

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"weir.dev/weir/api"
)

// API is where a Weir that runs is asked: a socket, or a URL and the file with its token.
type API struct {
	Socket    string `json:"socket,omitempty"`
	URL       string `json:"url,omitempty"`
	TokenFile string `json:"token_file,omitempty"`
}

func (a API) String() string {
	if a.Socket != "" {
		return a.Socket
	}
	return a.URL
}

func (a API) dial() (*api.Client, error) {
	o := api.Options{Socket: a.Socket, URL: a.URL}
	if a.Socket == "" && a.URL != "" {
		token, err := os.ReadFile(a.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("read token for %s: %w (give its file with --token-file)", a.URL, err)
		}
		o.Token = strings.TrimSpace(string(token))
	}
	return api.Dial(o)
}

// Words that stand for hosts, and their defaults.
const (
	PlacedOne    = "one"    // all functions on the first station's host
	PlacedSpread = "spread" // the first station's host, then all others by name, in turns
	StationsHere = "here"   // the first host by name that is this machine
)

const joinHosts = "+"

// CheckPlacement tells what is wrong with a level of the placement on any machine.
func CheckPlacement(level string) error {
	return checkNames(level, api.MaxHops, "one, spread, or hosts' names joined with +")
}

// CheckStations tells what is wrong with a level of the stations on any machine.
func CheckStations(level string) error {
	return checkNames(level, 2, "here, a host's name, or two joined with +")
}

func checkNames(level string, most int, want string) error {
	names := strings.Split(level, joinHosts)
	for _, name := range names {
		if api.CheckName(strings.ReplaceAll(strings.ToLower(name), ".", "-")) != nil {
			return fmt.Errorf("%q: want %s", level, want)
		}
	}
	if len(names) > most {
		return fmt.Errorf("%q: %d hosts: want %s", level, len(names), want)
	}
	return nil
}

// survey is what a manager says of its hosts.
type survey struct {
	at    string
	boot  string // of this machine's kernel
	image string // that hosts need
	hosts []api.Host
}

// asking bounds a question to the API; one that does not answer is not waited for.
const asking = 5 * time.Second

func look(ctx context.Context, c *api.Client, at string) (survey, error) {
	ctx, cancel := context.WithTimeout(ctx, asking)
	defer cancel()
	list, err := c.Hosts().List(ctx, api.ListOptions{})
	if err != nil {
		return survey{}, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return survey{at: at, boot: strings.TrimSpace(string(boot)), image: wireImage, hosts: list.Items}, err
}

func (s survey) names() (names []string) {
	for _, h := range s.hosts {
		names = append(names, h.Name)
	}
	return names
}

// usable tells why a function cannot be put on a host; nil: it can.
func (s survey) usable(h api.Host) error {
	switch {
	case h.Deleting != nil:
		return fmt.Errorf("host %s is being removed", h.Name)
	case h.Status.State != api.HostReady:
		return fmt.Errorf("host %s is %s", h.Name, cmp.Or(string(h.Status.State), "not known yet"))
	case !h.Spec.Takes():
		return fmt.Errorf("host %s takes no new functions (weir host open %s)", h.Name, h.Name)
	case !slices.Contains(h.Status.Images, s.image):
		return fmt.Errorf("host %s has no image %s", h.Name, s.image)
	}
	return nil
}

func (s survey) find(name string) (api.Host, error) {
	i := slices.IndexFunc(s.hosts, func(h api.Host) bool { return h.Name == name })
	if i < 0 {
		return api.Host{}, fmt.Errorf("there is no host %s at %s: want one of %s", name, s.at, strings.Join(s.names(), ", "))
	}
	return s.hosts[i], nil
}

// here tells whether a host is this machine.
func (s survey) here(h api.Host) bool { return h.Status.BootID != "" && h.Status.BootID == s.boot }

// stations are the hosts of which the two stations are endpoints.
func (s survey) stations(level string) (from, to string, err error) {
	if level == StationsHere {
		var why []string
		for _, h := range s.hosts { // sorted by name
			switch err := s.usable(h); {
			case !s.here(h):
			case err != nil:
				why = append(why, err.Error())
			default:
				return h.Name, h.Name, nil
			}
		}
		if len(why) > 0 {
			return "", "", errors.New("the stations need a host that is this machine: " + strings.Join(why, "; "))
		}
		return "", "", fmt.Errorf("none of the hosts at %s is this machine (%s), and the stations are made where the lab runs: %s",
			s.at, cmp.Or(strings.Join(s.names(), ", "), "it has none"), "run it on a host, or make this machine one (weir agent)")
	}
	names := strings.Split(level, joinHosts)
	for _, name := range names {
		h, err := s.find(name)
		switch {
		case err != nil:
			return "", "", err
		case h.Status.State != api.HostReady:
			return "", "", s.usable(h)
		case !s.here(h):
			return "", "", fmt.Errorf("host %s is not this machine, and the stations are made where the lab runs", name)
		}
	}
	return names[0], names[len(names)-1], nil
}

// place says on which host each of the functions is.
func (s survey) place(l Layout, first string) ([]string, error) {
	var on []string
	switch l.Placement {
	case PlacedOne:
		on = []string{first}
	case PlacedSpread:
		on = []string{first}
		for _, h := range s.hosts {
			if h.Name != first && s.usable(h) == nil {
				on = append(on, h.Name)
			}
		}
		if len(on) < 2 || l.Chain < 2 {
			return nil, fmt.Errorf("placement %s wants two hosts and two functions at least: here it is %d and %d", PlacedSpread, len(on), l.Chain)
		}
	default:
		on = strings.Split(l.Placement, joinHosts)
	}
	for _, name := range on {
		h, err := s.find(name)
		if err == nil {
			err = s.usable(h)
		}
		if err != nil {
			return nil, err
		}
	}
	out := make([]string, l.Chain)
	for i := range out {
		out[i] = on[i%len(on)]
	}
	return out, nil
}

// checkHosts asks the manager; it changes nothing there.
func checkHosts(o Options) string {
	if os.Geteuid() != 0 {
		return "needs root"
	}
	if o.API == (API{}) {
		return "no Weir is given whose hosts these could be (--socket, --url)"
	}
	c, err := o.API.dial()
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	s, err := look(context.Background(), c, o.API.String())
	if err != nil {
		return err.Error()
	}
	l := o.Layout.orDefault()
	from, _, err := s.stations(l.Stations)
	if err == nil {
		_, err = s.place(l, from)
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

func (l Layout) orDefault() Layout {
	if l.Placement == "" {
		l.Placement = PlacedOne
	}
	if l.Stations == "" {
		l.Stations = StationsHere
	}
	return l
}

// Hosts says in a line what a running Weir has for platform hosts; an error: why nothing.
func Hosts(ctx context.Context, a API) (string, error) {
	c, err := a.dial()
	if err != nil {
		return "", err
	}
	defer c.Close()
	s, err := look(ctx, c, a.String())
	if err != nil {
		return "", err
	}
	if _, _, err := s.stations(StationsHere); err != nil {
		return "", err
	}
	var all []string
	for _, h := range s.hosts {
		text := h.Name
		if err := s.usable(h); err != nil {
			text = err.Error()
		} else if s.here(h) {
			text += " (here)"
		}
		all = append(all, text)
	}
	return strings.Join(all, ", "), nil
}

// benchmarks is the network that RFC 2544 keeps for measurements (RFC 6890): no user's machine is in it.
var benchmarks = netip.MustParsePrefix("198.18.0.0/15")

// freePair is the first pair of addresses from the n-th on that no endpoint has: a network of two (RFC 3021).
func freePair(taken []api.Endpoint, n uint16) (from, to netip.Prefix, err error) {
	from, err = freeNetwork(taken, n, 31)
	return from, netip.PrefixFrom(from.Addr().Next(), 31), err
}

// freeNetwork is the first network of a length from the n-th on in which no endpoint has an address.
func freeNetwork(taken []api.Endpoint, n uint16, bits int) (netip.Prefix, error) {
	var used []netip.Prefix
	for _, e := range taken {
		used = append(used, e.Spec.Prefixes()...)
	}
	first, many := benchmarks.Addr().As4(), uint32(1)<<(bits-benchmarks.Bits())
	for i := range many {
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(first[:])|(uint32(n)+i)%many<<(32-bits))
		network := netip.PrefixFrom(netip.AddrFrom4(a), bits)
		if !slices.ContainsFunc(used, func(p netip.Prefix) bool { return network.Contains(p.Addr()) }) {
			return network, nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("endpoints have addresses in every network of %s", benchmarks)
}
