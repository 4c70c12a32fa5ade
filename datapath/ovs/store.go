package ovs

import (
	"fmt"
	"path/filepath"

	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/internal/home"
	"weir.dev/weir/datapath/internal/probing"
	"weir.dev/weir/datapath/internal/record"
	"weir.dev/weir/flow"
	"weir.dev/weir/instance"
)

// newStore is where the driver keeps what Open vSwitch cannot tell, as JSON files under the run directory. A file is replaced as a whole, and written before
// the switch is changed.
func newStore(i instance.Instance) record.Store {
	return record.Store{Dir: filepath.Join(i.Run, "ovs", "switch")}
}

// state is switch.json.
type state struct {
	OVSDB    string // in use: an address, or Private
	RunDir   string
	Datapath string
	Version  uint32 // of the rules in force, should the switch have lost all
}

// port is a place of the switch, part of an endpoint's or a function's file.
type port struct {
	Number  flow.Port
	Name    string // "endpoint/alice", "function/fw/in"
	Link    string
	Index   int               // of the link
	Inner   int               // index of the other end of a function's link
	Own     flow.MAC          // its address
	WasUp   bool              // before
	Clsact  bool              // a qdisc that we made, on our side
	InnerCl bool              // the same inside
	Offload bool              // we switched offloads of the other end off
	MTU     int               // of a link into the fabric, before; 0: left alone
	Joins   bool              // received frames were joined by the link (GRO, LRO), before
	E       datapath.Endpoint `json:",omitzero"`

	function *function
}

// function is a file.
type function struct {
	F     datapath.Function
	Ports []*port // in, out or tap
	State datapath.State
	Pid   int    // whose end sets Down
	Born  uint64 // start time of that process: process ids are used again

	joining bool // its links have not become ports yet
}

// ruleSet is a file, rules.0.json or rules.1.json by its version.
type ruleSet struct {
	Version  uint32
	Rules    []flow.Rule
	Priority map[uint64]uint16 // cookie -> priority of its entries
}

// ports are the switch's ports and functions.
type ports struct {
	all    map[flow.Port]*port
	byName map[string]*port // "endpoint/alice", "function/fw/in"
	fns    map[string]*function
}

func newPorts() *ports {
	return &ports{all: map[flow.Port]*port{}, byName: map[string]*port{}, fns: map[string]*function{}}
}

// load reads the ports' files.
func (s *ports) load(h *home.Home) error {
	endpoints, err := record.All[port](h.Store, "endpoint")
	if err != nil {
		return err
	}
	for _, p := range endpoints {
		s.add(p)
	}
	functions, err := record.All[function](h.Store, "function")
	if err != nil {
		return err
	}
	for _, f := range functions {
		if err := probing.Draw(&f.F, nil); err != nil { // an older version's
			return err
		}
		s.fns[f.F.Name] = f
		for _, p := range f.Ports {
			p.function = f
			s.add(p)
		}
	}
	return nil
}

func (s *ports) add(p *port) {
	s.all[p.Number], s.byName[p.Name] = p, p
}

func (s *ports) drop(p *port) {
	delete(s.all, p.Number)
	delete(s.byName, p.Name)
}

// newNumber is the lowest free one from 1.
func (s *ports) newNumber() (flow.Port, error) {
	for n := flow.Port(1); n <= maxPorts; n++ {
		if s.all[n] == nil {
			return n, nil
		}
	}
	return 0, fmt.Errorf("%w: it has %d ports", datapath.ErrFull, maxPorts)
}

// free tells that no other port has the link.
func (s *ports) free(p *port) error {
	for _, other := range s.all {
		if other.Index == p.Index && other.Name != p.Name {
			return fmt.Errorf("interface %s is already the port %s", p.Link, other.Name)
		}
	}
	return nil
}

// kind of a port, as datapath.CheckRule asks for it.
func (s *ports) kind(n flow.Port) datapath.PortKind {
	switch p := s.all[n]; {
	case p == nil:
		return datapath.NoPort
	case p.function != nil:
		return datapath.FunctionPort
	case p.E.Fabric:
		return datapath.FabricPort
	}
	return datapath.EndpointPort
}
