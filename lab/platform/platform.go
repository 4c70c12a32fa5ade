// Package platform builds what the lab compares: paths of functions between two stations. A platform is a point of a product: what runs a function
// (runtime), what joins functions (network), and what forwards inside a function (function). See kinds.go for what there is. But for the hosts of a Weir
// that runs everything stands in network namespaces of its own; nothing is made in the one that the program runs in.
package platform

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"weir.dev/weir/instance"
	"weir.dev/weir/lab/traffic/tools"
	"weir.dev/weir/netns"
)

// Options of all platforms.
type Options struct {
	Name   string   // of the lab's run: 8 characters, of which everything's name begins
	Images []string // layouts with the image "wire"
	API    API      // of the Weir whose hosts are the platform hosts
	Layout Layout   // of a path that is to be, for Check
	// Program is the Weir of the lab's own daemons; empty: this program.
	Program string
	// Former is another version of Weir, beside which this one is measured; empty: none.
	Former Former
}

// Layout says what a path leads through, and where that stands.
type Layout struct {
	Chain int // functions one behind the other
	// Parallel chains side by side, each of so many functions: what a station sends is split by its source MAC. 0: one.
	Parallel int
	// Placement of the functions and Stations are the hosts of platform hosts; empty: the defaults. Other platforms have one place only.
	Placement string // one, spread, or hosts' names joined with +
	Stations  string // hosts whose endpoints the stations are: here, or one or two names joined with +
}

// Path leads from one station to another.
type Path struct {
	From, To string     // namespaces; the interface is eth0 in both
	Address  netip.Addr // of To
	Source   netip.Addr // of From
	// Service is asked instead of To where a tool between the stations answers under an address of its own; the zero Addr: none does.
	Service netip.Addr
	// Router is the MAC address to which From sends what is for To, where something on the way routes; zero: To's own.
	Router [6]byte
	// Space and Link are where frames of From enter the platform, as if just received; empty: they cannot be put in there.
	Space, Link string
	// FrameSpace and FrameLink are where XDP frames leave towards the platform; empty: it takes none.
	FrameSpace, FrameLink string
	// Chains are side by side, and what is put in is split among them by its source MAC: SourceMAC. 0 or 1: there is one.
	Chains int
	// Middle are the namespaces between the stations, joined as in PATH; empty: there are none, or they are not this machine's.
	Middle string
}

// Served is the address that clients of HTTP and DNS ask.
func (p Path) Served() netip.Addr {
	if p.Service.IsValid() {
		return p.Service
	}
	return p.Address
}

// side is how many chains are side by side.
func (l Layout) side() int { return max(1, l.Parallel) }

// MostParallel chains of a path.
const MostParallel = 64

// SourceMAC of what goes into the i-th of several chains, from the second on. The first takes everything else.
func SourceMAC(i int) [6]byte { return [6]byte{0x02, 0x57, 0x45, 0, 0, byte(i)} } // locally administered

// Station is the name of the stations' interfaces.
const Station = "eth0"

// Platform makes paths. Its methods are called from one goroutine.
type Platform interface {
	// Path gives a path and puts it in force. What was made once stays until Close.
	Path(ctx context.Context, l Layout) (Path, error)
	Close() error
}

// Described is a platform that says what a figure taken on it depends on: name and value.
type Described interface{ Conditions() map[string]string }

const (
	maxWires = 500
	patience = time.Minute
)

// Address of the stations on every platform; each has namespaces of its own.
var (
	sourceAddress = netip.MustParsePrefix("10.9.0.1/24")
	targetAddress = netip.MustParsePrefix("10.9.0.2/24")
)

// Run is the directory of what the lab makes while it runs, State that of what has to be found again after a reboot.
const (
	Run   = "/run/weir"
	State = "/var/lib/weir"
)

// Try sends a few echoes through a path: caches and tables have then seen it, and it is known to carry.
func (p Path) Try(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		r, err := tools.RunPing(ctx, p.From, tools.PingOptions{To: p.Address, Count: 3, Interval: 10 * time.Millisecond})
		if err == nil && r.Received == r.Sent {
			return nil
		}
		if err != nil && errors.Is(err, tools.ErrMissing) {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("no echo from %s comes back: %w", p.Address, errors.Join(err, ctx.Err()))
		}
	}
}

// MACs of what From sends to To.
func (p Path) MACs() (from, to [6]byte, err error) {
	read := func(space string, out *[6]byte) error {
		return netns.Do(space, func() error {
			ifi, err := net.InterfaceByName(Station)
			if err != nil {
				return err
			}
			copy(out[:], ifi.HardwareAddr)
			return nil
		})
	}
	if err = errors.Join(read(p.From, &from), read(p.To, &to)); p.Router != [6]byte{} {
		to = p.Router
	}
	return from, to, err
}

// Letters that platforms take one after another, the last of an instance's name. Others are taken: d by Docker's engine, f by switches without a
// platform, h by platform hosts, m and n by engines with networks of their own, q by processors of hosts, r by what runs functions without a network, t by testbeds, w by daemons, z by guests.
const letters = "0123456789abcegijklopsuvxy"

// dir is where a platform with a letter of its own keeps what it makes.
func dir(o Options, suffix string) string { return filepath.Join(Run, o.Name+suffix) }

// newInstance takes a free name for a platform of the run, by making its directories. It is marked on all that the platform makes.
func newInstance(o Options) (i instance.Instance, err error) {
	for _, letter := range letters {
		if i, err = instance.New(o.Name+"-"+string(letter), ""); err != nil {
			return i, err
		}
		if exists(i.Run) || exists(i.Root) {
			continue
		}
		return i, os.MkdirAll(i.NetnsDir(), 0o755)
	}
	return i, fmt.Errorf("%s: %d platforms are open: close some", o.Name, len(letters))
}

// spaces are namespaces of one platform under one directory.
type spaces struct {
	dir  string
	made []string
}

func (s *spaces) add(name string, quiet bool) (string, error) {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(s.dir, name)
	if err := netns.Create(path, netns.Options{Quiet: quiet}); err != nil {
		return "", err
	}
	s.made = append(s.made, path)
	return path, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// removeSpaces takes a directory of namespaces away.
func removeSpaces(dir string) error {
	if !strings.HasPrefix(dir, Run+"/") {
		return errors.New("not a directory of the lab: " + dir)
	}
	var errs []error
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		errs = append(errs, netns.Delete(path))
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(append(errs, err, os.RemoveAll(dir))...)
}

// RemoveInstance takes an instance's namespaces and directories away.
func RemoveInstance(i instance.Instance) error {
	return errors.Join(removeSpaces(i.NetnsDir()), os.RemoveAll(i.Run), os.RemoveAll(i.Root))
}
