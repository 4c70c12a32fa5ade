package compile

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
)

// compiler turns rules into an image.
type compiler struct {
	ports map[flow.Port]Place
	slots map[uint64]uint32 // cookie -> counters
	old   *Image
	limit Limits

	next    *Image
	maskIDs map[key]uint16
	shapes  [2]shapes // by stage: rules for any port
	named   map[uint16]*[2]shapes
	free    uint32 // next mask id to try
	layout  layout
	below   []*job // lists within lists
}

// shapes are the rules of one stage at one port, or at any.
type shapes struct {
	leaves   []key
	together key // union of their masks
	found
	top   *flow.Rule
	learn bool
	tags  bool // some rule is for frames with a fabric tag
}

func (s *shapes) add(r *flow.Rule) {
	s.learn = s.learn || r.Learn
	s.tags = s.tags || r.Match.Tag != 0
	if s.top == nil || before(r, s.top) {
		s.top = r
	}
}

// before: a wins over b where both match.
func before(a, b *flow.Rule) bool {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Cookie, b.Cookie)) < 0
}

// Rules compiles rules whose counters are in these slots, by cookie, for ports. What does not change against the old image stays where it is.
func Rules(l Limits, rules []flow.Rule, slots map[uint64]uint32, ports map[flow.Port]Place, old *Image) (*Image, error) {
	c := &compiler{ports: ports, slots: slots, old: old, limit: l, next: NewImage(), maskIDs: map[key]uint16{}, named: map[uint16]*[2]shapes{}, free: 1}
	for id, m := range old.Masks {
		c.maskIDs[m] = id
	}
	if err := datapath.CheckRules(rules, Kind(ports)); err != nil {
		return nil, err
	}
	for i := range rules {
		if err := c.add(&rules[i]); err != nil {
			return nil, fmt.Errorf("rule %016x (%s): %w", rules[i].Cookie, rules[i].Note, err)
		}
	}
	if err := c.finish(); err != nil {
		return nil, err
	}
	if len(c.next.Tuples) > l.Keys {
		return nil, fmt.Errorf("%w: %d rules expand into %d keys, the table holds %d: raise the switch's Keys", datapath.ErrFull, len(rules), len(c.next.Tuples), l.Keys)
	}
	return c.next, nil
}

// Kind of a port, as datapath.CheckRule asks for it.
func Kind(ports map[flow.Port]Place) func(flow.Port) datapath.PortKind {
	return func(n flow.Port) datapath.PortKind {
		switch p := ports[n]; {
		case p.Kind == PortNone:
			return datapath.NoPort
		case p.Kind != PortEndpoint:
			return datapath.FunctionPort
		case p.Fabric:
			return datapath.FabricPort
		}
		return datapath.EndpointPort
	}
}

func (c *compiler) action(r *flow.Rule) action {
	a := action{Op: uint8(r.Action.Op), Clones: uint8(len(r.Action.Clones)), Rule: c.slots[r.Cookie]}
	if r.Learn {
		a.Flags = actionLearn
	}
	if r.Action.Pop {
		a.Flags |= actionPop
	}
	a.Push = r.Action.Push
	a.Target = c.ports[r.Action.Port].Slot
	for i, cl := range r.Action.Clones {
		a.Clone[i] = clone{Port: c.ports[cl.Port].Slot, Push: cl.Push}
	}
	return a
}

// add files a rule under its shapes.
func (c *compiler) add(r *flow.Rule) error {
	at := r.Match.InPort
	if r.Stage == flow.Egress {
		at = r.Match.OutPort
	}
	where := &c.shapes[r.Stage]
	if at != 0 {
		slot := c.ports[at].Slot
		if c.named[slot] == nil {
			c.named[slot] = &[2]shapes{}
		}
		where = &c.named[slot][r.Stage]
	}
	copied := tupleCopy{Cookie: r.Cookie, Priority: uint32(r.Priority) + 1, Action: c.action(r)}
	value, mask := c.keys(r, at)
	where.add(r)
	sources, destinations := r.Match.SrcPorts.AppendMasks(nil), r.Match.DstPorts.AppendMasks(nil)
	for _, src := range sources {
		for _, dst := range destinations {
			k, m := value, mask
			k.SrcPort, m.SrcPort = src.Port, src.Mask
			k.DstPort, m.DstPort = dst.Port, dst.Mask
			id, err := c.maskID(m)
			if err != nil {
				return err
			}
			k.Mask = id
			had, taken := c.next.Tuples[k]
			if !taken {
				where.leaves, where.together = append(where.leaves, k), or(where.together, m)
			}
			if !taken || had.Priority < copied.Priority || had.Priority == copied.Priority && had.Cookie > copied.Cookie {
				c.next.Tuples[k] = copied
			}
		}
	}
	return nil
}

// keys of a rule, L4 ports apart.
func (c *compiler) keys(r *flow.Rule, at flow.Port) (value, mask key) {
	m := &r.Match
	// Where the rule stands. A rule that names no port matches at all of the stage.
	value.Stage, mask.Stage = uint8(r.Stage), 0xff
	value.Tag, mask.Tag = m.Tag, 0xffff // frames without one are told from those with
	if at != 0 {
		value.Port, mask.Port = c.ports[at].Slot, 0xffff
	}
	if r.Stage == flow.Egress && m.InPort != 0 {
		value.InPort, mask.InPort = c.ports[m.InPort].Slot, 0xffff
	}
	// Headers, from the outside in.
	value.SrcMac, mask.SrcMac = m.SrcMAC, m.SrcMACMask
	value.DstMac, mask.DstMac = m.DstMAC, m.DstMACMask
	if m.VLAN != 0 {
		value.Vlan, mask.Vlan = m.VLAN, 0xffff
	}
	if m.EtherType != 0 {
		value.Ethertype, mask.Ethertype = m.EtherType, 0xffff
	}
	for _, a := range []struct {
		prefix      netip.Prefix
		value, mask *[16]byte
	}{{m.Src, &value.Src, &mask.Src}, {m.Dst, &value.Dst, &mask.Dst}} {
		if !a.prefix.IsValid() {
			continue
		}
		value.Ethertype, mask.Ethertype = flow.Family(a.prefix), 0xffff
		value.Has, mask.Has = value.Has|hasIP, mask.Has|hasIP
		copy(a.value[:], a.prefix.Addr().AsSlice())
		for i := range a.prefix.Bits() {
			a.mask[i/8] |= 0x80 >> (i % 8)
		}
	}
	// A rule with a protocol or L4 ports is not for frames that lack them, whose fields are zero, too.
	if m.Proto != 0 {
		value.Proto, mask.Proto = m.Proto, 0xff
		value.Has, mask.Has = value.Has|hasIP, mask.Has|hasIP
	}
	if !m.SrcPorts.Any() || !m.DstPorts.Any() {
		value.Has, mask.Has = value.Has|hasPorts, mask.Has|hasPorts
	}
	if m.Unread != flow.ReadAll {
		unread := [...]uint8{flow.UnreadNetwork: unreadNetwork, flow.UnreadUpper: unreadUpper}[m.Unread]
		value.Has, mask.Has = value.Has|unread, mask.Has|unread
	}
	return value, mask
}

func (c *compiler) maskID(m key) (uint16, error) {
	id, known := c.maskIDs[m]
	if !known {
		for ; c.free < uint32(2*c.limit.Masks); c.free++ {
			if _, taken := c.old.Masks[uint16(c.free)]; !taken {
				break
			}
		}
		if c.free >= uint32(2*c.limit.Masks) || len(c.next.Masks) >= c.limit.Masks {
			return 0, fmt.Errorf("%w: more than %d shapes of rules: raise the switch's Masks", datapath.ErrFull, c.limit.Masks)
		}
		id = uint16(c.free)
		c.free++
		c.maskIDs[m] = id
	}
	c.next.Masks[id] = m
	return id, nil
}

// finish makes the stages of every port.
func (c *compiler) finish() error {
	c.layout = newLayout(c.old)
	if err := c.trees(); err != nil {
		return err
	}
	// Stages in the order of slots, so that equal rules give equal images.
	slots := []Place{{}} // 0: an endpoint that no rule names
	for _, p := range c.ports {
		slots = append(slots, p)
	}
	slices.SortFunc(slots, func(a, b Place) int { return cmp.Compare(a.Slot, b.Slot) })
	var jobs []*job
	for _, p := range slots {
		var st stages
		for i := range st.Stage {
			j, err := c.stage(p, i)
			if err != nil {
				return err
			}
			if j != nil {
				jobs = append(jobs, j)
				st.Stage[i] = j.stage
			}
		}
		c.next.Stages[p.Slot] = st
	}
	// Lists get their places together: equal ones share one, and those of before stay.
	if err := c.layout.place(slices.Concat(jobs, c.below), c.limit.Lists()); err != nil {
		return err
	}
	for _, j := range jobs {
		if len(j.list) > 0 {
			st := c.next.Stages[j.slot]
			st.Stage[j.index].First = j.first
			c.next.Stages[j.slot] = st
			c.next.list(j)
		}
	}
	for _, j := range c.below {
		t := c.next.Tuples[j.node]
		t.Action.Rule = j.first
		c.next.Tuples[j.node] = t
		c.next.list(j)
	}
	c.onward(slots)
	return nil
}

// trees makes the lists of every place's rules.
func (c *compiler) trees() error {
	all := []*shapes{&c.shapes[0], &c.shapes[1]}
	for _, slot := range slices.Sorted(maps.Keys(c.named)) {
		all = append(all, &c.named[slot][0], &c.named[slot][1])
	}
	for _, s := range all {
		if len(s.leaves) == 0 {
			continue
		}
		var err error
		if s.found, err = c.tree(s.leaves, 0); err != nil {
			return err
		}
	}
	return nil
}

// list writes one that has its place.
func (i *Image) list(j *job) {
	for n, l := range j.list {
		i.Lists[j.first+uint32(n)] = l
	}
}

// onward tells all endpoints when one has rules where frames leave.
func (c *compiler) onward(slots []Place) {
	ends := slices.DeleteFunc(slices.Clone(slots), func(p Place) bool { return p.Slot != 0 && p.Kind != PortEndpoint })
	if !slices.ContainsFunc(ends, func(p Place) bool { return c.next.Stages[p.Slot].Stage[flow.Egress].Kind != KindPass }) {
		return
	}
	for _, p := range ends {
		st := c.next.Stages[p.Slot]
		st.Stage[flow.Ingress].Flags |= stageOnward
		c.next.Stages[p.Slot] = st
	}
}

// job is a list that is to be placed: of a stage, or of an entry of a list.
type job struct {
	slot  uint16
	index int
	stage stage
	node  key
	list  []listCopy
	first uint32
}

// stage of a port: its own rules, and at endpoints those for any port. nil: none.
func (c *compiler) stage(p Place, index int) (*job, error) {
	var own, all *shapes
	if named := c.named[p.Slot]; named != nil {
		own = &named[index]
	}
	if p.Slot == 0 || p.Kind == PortEndpoint {
		all = &c.shapes[index]
	}
	// The port's own rules and those for any port are searched together.
	j := &job{slot: p.Slot, index: index}
	steps, count := 0, 0
	var together key
	var top *flow.Rule
	learn, tags := false, false
	for _, s := range []*shapes{own, all} {
		if s == nil || s.top == nil {
			continue
		}
		j.list, together = append(j.list, s.list...), or(together, s.together)
		steps, count = steps+s.steps, count+len(s.leaves)
		learn = learn || s.learn
		tags = tags || s.tags
		if top == nil || before(s.top, top) {
			top = s.top
		}
	}
	if top == nil {
		return nil, nil
	}
	// Where the rule that wins takes every frame, there is nothing to search.
	if total(top) && !(tags && p.Fabric) {
		return &job{slot: p.Slot, index: index, stage: stage{Kind: KindDirect, Action: c.action(top)}}, nil
	}
	if steps > maxSteps {
		return nil, tooMany(steps, count)
	}
	// Else frames are looked up mask by mask. Where an exit is learned, the cache has to tell frames by the address that is learned.
	f := found{list: j.list}
	f.sort()
	j.list = append(f.list, listCopy{}) // its end
	if learn {
		all := [6]byte{255, 255, 255, 255, 255, 255}
		together.Vlan = 0xffff
		if index == int(flow.Ingress) {
			together.SrcMac = all
		} else {
			together.DstMac = all
		}
	}
	id, err := c.maskID(together)
	if err != nil {
		return nil, err
	}
	j.stage = stage{Kind: KindClassify, Together: id, Count: uint16(len(j.list)), Fields: fields(&together)}
	if learn || steps > 2 {
		j.stage.Flags = StageCached
	}
	return j, nil
}

// total: every frame at the rule's port matches, those with a fabric tag apart, and nothing has to be learned.
func total(r *flow.Rule) bool {
	m := r.Match
	if r.Stage == flow.Ingress {
		m.InPort = 0
	}
	m.OutPort = 0
	return m == flow.Match{} && !r.Learn
}

func or(a, b key) key {
	a.Mask |= b.Mask
	a.Port |= b.Port
	a.InPort |= b.InPort
	a.Stage |= b.Stage
	a.Proto |= b.Proto
	a.Vlan |= b.Vlan
	a.Ethertype |= b.Ethertype
	a.Has |= b.Has
	a.Tag |= b.Tag
	a.Pad |= b.Pad
	a.SrcPort |= b.SrcPort
	a.DstPort |= b.DstPort
	for i := range a.SrcMac {
		a.SrcMac[i] |= b.SrcMac[i]
		a.DstMac[i] |= b.DstMac[i]
	}
	for i := range a.Src {
		a.Src[i] |= b.Src[i]
		a.Dst[i] |= b.Dst[i]
	}
	return a
}

func fields(m *key) uint32 {
	var f uint32
	for bit, set := range map[uint32]bool{
		fieldInPort:    m.InPort != 0,
		fieldMACs:      m.SrcMac != [6]byte{} || m.DstMac != [6]byte{},
		fieldVLAN:      m.Vlan != 0,
		fieldType:      m.Ethertype != 0,
		fieldAddresses: m.Src != [16]byte{} || m.Dst != [16]byte{},
		fieldProto:     m.Proto != 0 || m.Has != 0,
		fieldPorts:     m.SrcPort != 0 || m.DstPort != 0,
	} {
		if set {
			f |= bit
		}
	}
	return f
}
