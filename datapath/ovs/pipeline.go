package ovs

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/internal/probing"
	"weir.dev/weir/flow"
	"weir.dev/weir/openflow"
)

// Tables, in the order in which frames pass them; a way back (a dead function's bypass, Resume at the Egress stage) costs depth, of which
// Open vSwitch allows 64.
const (
	tableEntry       uint8 = iota // by port: which kind; probes and own words end here; a fabric tag goes into its register
	tableIngress                  // rules of the Ingress stage at endpoints
	tableFunction                 // rules of functions' ports
	tableDrain                    // those that the last commit took away, for a moment
	tableResume                   // back into ordinary switching at the port in regTo
	tableLearn                    // ordinary switching: learns the source
	tableBridge                   // looks the destination up
	tableForward                  // to one port, or to all
	tableCheck                    // never back, never between isolated ports
	tableEgress                   // rules of the Egress stage
	tableTo                       // out of the port in regTo, if its function is up
	tableTagged                   // the same with a fabric tag on
	tableDeliver                  // ordinary switching's way out of regOut
	tableSources                  // learned exits: (source MAC, VLAN) -> port
	tableExits                    // learned exits: (destination MAC, VLAN) -> port
	tableMACs                     // learned by ordinary switching
	tableDrop                     // counts what is dropped at regAt
	tableCount                    // counts rules that were folded into another's entry
	tableMark                     // no frame comes here: says which version of the rules is in force
	tableExit                     // out of a chain that ends at several endpoints
	tableGuard                    // port security, before tableIngress: the source MAC
	tableGuardKind                // what may not enter at all; the rest by its kind
	tableGuardLink                // MACs that ARP and neighbour discovery tell
	tableGuardSource              // addresses that packets come from and ARP tells
	tableGuardTarget              // addresses that neighbour discovery tells
	tableRefused                  // counts what port security drops at regIn, by the reason in regTo
	tables
)

// Registers.
const (
	regIn    = 0 // port where the frame entered ordinary switching
	regOut   = 1 // port by which it is about to leave
	regTo    = 2 // port to which a rule sends it
	regAt    = 3 // port where it is: drops count there
	regTag   = 4 // its fabric tag, which is not on it any more
	regFlag  = 5 // flagIsolated, flagFabric
	regGuard = 6 // what the port's security asks for
)

const (
	flagIsolated = 1
	flagFabric   = 2
)

// Priorities of the pipeline's own entries; those of rules lie between floor and ceiling.
const (
	floor   = 1 // of the entry that leads frames without rules on
	ceiling = 0xffff
)

// owner is what an entry counts for.
type owner struct {
	Kind ownerKind
	ID   uint64 // a rule's cookie, a port's number
}

type ownerKind uint8

const (
	ownRule ownerKind = iota + 1
	ownRx
	ownTx
	ownDropped
	ownRefused // and a flow.Refusal
)

// entry of an OpenFlow table. Its cookie is a digest of all that it says, so that reading back cookies tells whether entries are as they
// should be.
type entry struct {
	table    uint8
	priority uint16
	match    openflow.Match
	actions  []openflow.Action
	hardS    uint16
	owners   []owner

	cookie uint64
}

// entrySet is entries by what tells them apart.
type entrySet map[entryKey]*entry

func (s entrySet) byCookie() map[uint64]*entry {
	all := make(map[uint64]*entry, len(s))
	for _, e := range s {
		all[e.cookie] = e
	}
	return all
}

// entryKey is what tells entries apart in the switch.
type entryKey struct {
	table    uint8
	priority uint16
	match    string
}

func (e *entry) key() entryKey {
	b := make([]byte, 0, 40*len(e.match))
	for _, o := range e.match {
		b = binary.BigEndian.AppendUint32(b, uint32(o.Field))
		b = append(b, o.Value[:]...)
		if o.Masked {
			b = append(b, o.Mask[:]...)
		}
	}
	return entryKey{e.table, e.priority, string(b)}
}

func (e *entry) mod(command openflow.FlowCommand) *openflow.FlowMod {
	f := &openflow.FlowMod{Command: command, Table: e.table, Priority: e.priority, Match: e.match}
	if command == openflow.FlowAdd {
		f.Cookie, f.HardS = e.cookie, e.hardS
		if len(e.actions) > 0 {
			f.Instructions = []openflow.Instruction{openflow.ApplyActions(e.actions)}
		}
	}
	return f
}

// counted: somebody asks for the entry's counter.
func (e *entry) counted() bool { return len(e.owners) > 0 && e.owners[0].Kind != 0 }

// seal computes the cookie. Zero is nobody's.
func (e *entry) seal() error {
	e.cookie = 0
	b, err := openflow.Append(nil, 0, e.mod(openflow.FlowAdd))
	if err != nil {
		return fmt.Errorf("encode entry of table %d: %w", e.table, err)
	}
	for _, o := range e.owners {
		b = binary.BigEndian.AppendUint64(append(b, byte(o.Kind)), o.ID)
	}
	sum := sha256.Sum256(b)
	e.cookie = binary.BigEndian.Uint64(sum[:]) | 1
	return nil
}

// Shorthands of actions.

func reg(n int, v uint64) openflow.OXM { return openflow.Uint(openflow.Reg(n), v) }

func load(n int, v uint64) openflow.Action {
	return openflow.RegLoad{Dst: openflow.Reg(n).All(), Value: v}
}

func move(from, to int) openflow.Action {
	return openflow.RegMove{Src: openflow.Reg(from).All(), Dst: openflow.Reg(to).All()}
}

func goTo(table uint8) openflow.Action { return openflow.Resubmit{Table: table} }

func list(a ...openflow.Action) []openflow.Action { return a }

// forgetInPort lets a frame leave by the port where it came in, which OpenFlow forbids: the registers know better.
func forgetInPort() openflow.Action {
	return openflow.RegLoad{Dst: openflow.FieldNXMInPort.All(), Value: 0}
}

// tagMatches are VLAN ids of the fabric's tags, as values under masks. OpenFlow cannot tell a tag's TPID.
func tagMatches() []openflow.OXM {
	var all []openflow.OXM
	for _, m := range (flow.PortRange{First: flow.TagFirst, Last: flow.TagLast}).AppendMasks(nil) {
		all = append(all, openflow.UintMask(openflow.FieldVLANVID, uint64(openflow.VLANPresent|m.Port), uint64(openflow.VLANPresent|m.Mask&0xfff)))
	}
	return all
}

// world is what entries are made from.
type world struct {
	ports map[flow.Port]*port
	rules []flow.Rule
	prio  map[uint64]uint16
	at    map[flow.Port][]*flow.Rule // rules of functions' ports

	guards bool // some endpoint has port security
}

// newWorld of these ports and rules.
func newWorld(ports map[flow.Port]*port, rules *ruleSet) *world {
	w := &world{ports: ports, rules: rules.Rules, prio: rules.Priority, at: map[flow.Port][]*flow.Rule{}}
	for i := range w.rules {
		r := &w.rules[i]
		if p := w.ports[r.Match.InPort]; r.Stage == flow.Ingress && p != nil && p.function != nil {
			w.at[r.Match.InPort] = append(w.at[r.Match.InPort], r)
		}
	}
	for _, p := range w.ports {
		w.guards = w.guards || p.function == nil && p.E.Guard.On
	}
	return w
}

// sorted ports, by number.
func (w *world) sorted() []*port {
	return slices.SortedFunc(maps.Values(w.ports), func(a, b *port) int { return cmp.Compare(a.Number, b.Number) })
}

// pipeline is every entry that is no rule's.
func (w *world) pipeline() []*entry {
	all := append(w.fixed(), w.guardFixed()...)
	for _, p := range w.sorted() {
		if p.function == nil {
			all = append(append(all, w.endpoint(p)...), w.guard(p)...)
		} else {
			all = append(all, w.functionPort(p)...)
		}
	}
	return all
}

// fixed entries: the tables' last resorts, and what does not depend on ports, but for flooding.
func (w *world) fixed() []*entry {
	miss := func(table uint8, a ...openflow.Action) *entry { return &entry{table: table, actions: a} }
	group := openflow.MAC{0x01}
	local := openflow.MAC{0x01, 0x80, 0xc2}
	var flood []openflow.Action
	for _, p := range w.sorted() {
		if p.function == nil {
			flood = append(flood, openflow.Clone{load(regOut, uint64(p.Number)), goTo(tableCheck)})
		}
	}
	return []*entry{
		miss(tableEntry),
		{table: tableIngress, priority: floor, match: openflow.Match{reg(regTag, 0)}, actions: list(goTo(tableLearn))},
		miss(tableIngress, goTo(tableDrop)), // a fabric tag that no rule knows
		miss(tableFunction, goTo(tableDrain)),
		miss(tableDrain, goTo(tableDrop)),
		miss(tableResume, goTo(tableDrop)), // no entry known
		{table: tableLearn, priority: 1, match: openflow.Match{openflow.EthSrcMask(group, group)}, actions: list(goTo(tableBridge))},
		miss(tableLearn, learn(tableMACs, openflow.FieldEthSrc, openflow.FieldEthDst, false, regIn, regOut), goTo(tableBridge)),
		{table: tableBridge, priority: 2, match: openflow.Match{openflow.EthDst(local)}, actions: lookUp()},
		{table: tableBridge, priority: 1, match: openflow.Match{openflow.EthDstMask(local, openflow.MAC{255, 255, 255, 255, 255, 0xf0})}, actions: list(goTo(tableDrop))},
		miss(tableBridge, lookUp()...),
		{table: tableForward, priority: 1, match: openflow.Match{reg(regOut, 0)}, actions: flood},
		miss(tableForward, goTo(tableCheck)),
		miss(tableCheck, move(regOut, regAt), goTo(tableEgress)),
		miss(tableEgress, goTo(tableDeliver)),
		miss(tableTo, goTo(tableDrop)), // no exit known
		{table: tableExit, priority: 1, match: openflow.Match{openflow.EthDstMask(group, group)}, actions: list(goTo(tableDrop))}, // many have none
		miss(tableExit, load(regTo, 0), goTo(tableExits), goTo(tableTo)),
		miss(tableTagged, goTo(tableDrop)),
		miss(tableDeliver),
	}
}

func lookUp() []openflow.Action {
	return list(load(regOut, 0), goTo(tableMACs), goTo(tableForward))
}

// learnedS is how long a learned address is kept without traffic.
const learnedS = 300

// learn makes an entry in table: frames whose field is what src is now load the port in register from into register to.
func learn(table uint8, src, field openflow.Field, vlan bool, from, to int) openflow.Action {
	l := openflow.Learn{IdleS: learnedS, Priority: 1, Table: table, Cookie: learnedCookie, Specs: []openflow.LearnSpec{
		{Kind: openflow.LearnMatch, Src: src.All(), Dst: field.All()}}}
	if vlan { // id and whether there is a tag at all
		bits := openflow.FieldNXMVLANTCI.Slice(0, 13)
		l.Specs = append(l.Specs, openflow.LearnSpec{Kind: openflow.LearnMatch, Src: bits, Dst: bits})
	}
	l.Specs = append(l.Specs, openflow.LearnSpec{Kind: openflow.LearnLoad, Src: openflow.Reg(from).All(), Dst: openflow.Reg(to).All()})
	return l
}

const learnedCookie = 0x57454152

// endpoint's entries.
func (w *world) endpoint(p *port) []*entry {
	n, at := uint64(p.Number), openflow.InPort(openflow.Port(p.Number))
	flags := uint64(0)
	if p.E.Isolated {
		flags |= flagIsolated
	}
	if p.E.Fabric {
		flags |= flagFabric
	}
	first := tableIngress
	if w.guarded(p) {
		first = tableGuard
	}
	// Every frame that enters here begins with these registers.
	start := list(load(regIn, n), load(regAt, n), load(regFlag, flags), forgetInPort())
	with := func(a ...openflow.Action) []openflow.Action { return slices.Concat(start, a) }
	all := []*entry{
		{table: tableEntry, match: openflow.Match{at}, priority: 1, actions: with(goTo(first)), owners: []owner{{ownRx, n}}},
		{table: tableResume, match: openflow.Match{reg(regTo, n)}, priority: 1, actions: list(load(regIn, n), load(regAt, n), load(regFlag, flags), goTo(tableLearn))},
		{table: tableCheck, match: openflow.Match{reg(regIn, n), reg(regOut, n)}, priority: 2},
		{table: tableTo, match: openflow.Match{reg(regTo, n)}, priority: 1, actions: list(openflow.Output{Port: openflow.Port(p.Number)}), owners: []owner{{ownTx, n}}},
		{table: tableDeliver, match: openflow.Match{reg(regOut, n)}, priority: 1, actions: list(openflow.Output{Port: openflow.Port(p.Number)}), owners: []owner{{ownTx, n}}},
		{table: tableDrop, match: openflow.Match{reg(regAt, n)}, priority: 1, owners: []owner{{ownDropped, n}}},
	}
	if p.E.Isolated {
		all = append(all, &entry{table: tableCheck, match: openflow.Match{openflow.UintMask(openflow.Reg(regFlag), flagIsolated, flagIsolated), reg(regOut, n)}, priority: 1})
	}
	// At a port into the fabric a tag of the fabric's is taken off, and put on again behind tableTagged only.
	if !p.E.Fabric {
		return all
	}
	for _, tag := range tagMatches() {
		all = append(all,
			&entry{table: tableEntry, match: openflow.Match{at, tag}, priority: 2, owners: []owner{{ownRx, n}}, actions: with(
				openflow.RegMove{Src: openflow.FieldNXMVLANTCI.Slice(0, 12), Dst: openflow.Reg(regTag).Slice(0, 12)},
				openflow.PopVLAN{}, goTo(tableIngress))},
			// The user's own tag is one of the fabric's: such a frame does not leave here.
			&entry{table: tableTo, match: openflow.Match{reg(regTo, n), tag}, priority: 2, actions: list(load(regAt, n), goTo(tableDrop))},
			&entry{table: tableDeliver, match: openflow.Match{reg(regOut, n), tag}, priority: 2, actions: list(load(regAt, n), goTo(tableDrop))})
	}
	return append(all, &entry{table: tableTagged, match: openflow.Match{reg(regTo, n)}, priority: 1,
		actions: list(openflow.Output{Port: openflow.Port(p.Number)}), owners: []owner{{ownTx, n}}})
}

// functionPort's entries.
func (w *world) functionPort(p *port) []*entry {
	n, at := uint64(p.Number), openflow.InPort(openflow.Port(p.Number))
	f := p.function
	all := []*entry{
		{table: tableEntry, match: openflow.Match{at, openflow.EthType(probing.EtherType),
			openflow.EthDst(openflow.MAC(f.F.Probe.Dst)), openflow.EthSrc(openflow.MAC(f.F.Probe.Src))}, priority: 3},
		{table: tableEntry, match: openflow.Match{at}, priority: 1, owners: []owner{{ownRx, n}},
			actions: list(load(regAt, n), forgetInPort(), goTo(tableFunction))},
		{table: tableTo, match: openflow.Match{reg(regTo, n)}, priority: 1, actions: list(openflow.Output{Port: openflow.Port(p.Number)}), owners: []owner{{ownTx, n}}},
		{table: tableDrop, match: openflow.Match{reg(regAt, n)}, priority: 1, owners: []owner{{ownDropped, n}}},
	}
	if !f.F.Speaks {
		for _, q := range f.Ports {
			all = append(all, &entry{table: tableEntry, match: openflow.Match{at, openflow.EthSrc(openflow.MAC(q.Own))}, priority: 2,
				owners: []owner{{ownRx, n}, {ownDropped, n}}})
		}
	}
	if f.State == datapath.Down {
		all = append(all, w.down(p))
	}
	return all
}

// down is the entry that overrules a port of a function that is down.
func (w *world) down(p *port) *entry {
	n := uint64(p.Number)
	e := &entry{table: tableTo, match: openflow.Match{reg(regTo, n)}, priority: 2}
	if p.function.F.OnFail == datapath.FailDrop || p.function.F.Tap != "" {
		e.owners = []owner{{ownDropped, n}}
		return e
	}
	e.actions = w.bypass(p)
	return e
}

// maxHops bounds how many dead functions in a row are bypassed.
const maxHops = 128

// bypass goes on from the opposite port of a function that is down. Where that port has one rule for all frames, the rule's actions stand
// here, one after the other along a row of dead functions: calling each other's entries would go deeper than Open vSwitch allows.
func (w *world) bypass(p *port) []openflow.Action {
	var all []openflow.Action
	for range maxHops {
		q := p.function.opposite(p)
		all = append(all, load(regAt, uint64(q.Number)))
		rules := w.at[q.Number]
		if len(rules) != 1 || rules[0].Match != (flow.Match{InPort: q.Number}) {
			return append(all, goTo(tableFunction))
		}
		r := rules[0]
		all = append(all, openflow.RegLoad{Dst: openflow.FieldMetadata.All(), Value: r.Cookie}, goTo(tableCount))
		next := w.ports[r.Action.Port]
		if r.Action.Op != flow.Output || next == nil || next.function == nil || next.function.State == datapath.Up ||
			next.function.F.OnFail != datapath.FailBypass || next.function.F.Tap != "" {
			return append(all, w.act(r)...)
		}
		all = append(all, w.copies(r)...)
		p = next
	}
	return append(all, goTo(tableDrop))
}

func (f *function) opposite(p *port) *port {
	if f.Ports[0] == p {
		return f.Ports[1]
	}
	return f.Ports[0]
}
