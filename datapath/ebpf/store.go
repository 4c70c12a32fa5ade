package ebpf

import (
	"path/filepath"

	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/internal/probing"
	"weir.dev/weir/datapath/internal/record"
	"weir.dev/weir/flow"
	"weir.dev/weir/instance"
)

// newStore is where the driver keeps what maps cannot tell, as JSON files under the run directory: one a port or function, so that a change writes
// little; the rules of either copy; what is the same for all. A file is replaced as a whole. Written before the kernel is changed,
// they name at least all that was made.
func newStore(i instance.Instance) record.Store {
	return record.Store{Dir: filepath.Join(i.Run, "switch")}
}

type counter = datapath.Counter

// state is switch.json.
type state struct {
	ABI      string                      // directory of the maps in force
	Previous string                      // of the maps being replaced: their counters are still to be added
	Build    string                      // of the programs
	Hook     string                      // HookTCX, HookClsact
	Secret   uint32                      // of marks
	Rules    map[uint64]datapath.Counter // counted before the present maps were made
	Ports    map[string]portCounters
}

type portCounters struct{ Rx, Tx, Dropped, Settled datapath.Counter }

// port is a file: what a link is to the switch, and how it was before.
type port struct {
	Slot    uint16
	Name    string // "endpoint/alice", "function/fw/in"
	Link    string
	Index   uint32
	Number  uint32            `json:",omitempty"` // by which rules name the port; 0: its Index, as in records of former versions
	Inner   uint32            // index of a function's end of the veth
	Own     flow.MAC          // its MAC
	Veth    bool              // with its peer in another namespace
	WasUp   bool              // before
	Clsact  bool              // a qdisc that we made
	InnerCl bool              // the same inside
	E       datapath.Endpoint `json:",omitzero"`
}

// function is a file.
type function struct {
	Slot  uint16
	F     datapath.Function
	Ports []*port // in, out or tap

	written [4]bool       // qdiscs, as the file tells
	turn    *probing.Turn // of the probe that is outstanding
	settles bool          // it has a table of flows
}

// ruleSet is a file: rules.0.json or rules.1.json, by the copy in which they are.
type ruleSet struct {
	Version uint32
	Rules   []flow.Rule
	Slots   map[uint64]uint32 // cookie -> counters
}
