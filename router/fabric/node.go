package fabric

import (
	"cmp"
	"fmt"
	"slices"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/identity"
)

// node is what a switch is to hold.
type node struct {
	beside  bool // something else forwards
	sw      Switch
	tables  int
	base    []*Entry   // forwarding to stations, LLDP, guards: as the topology wants it
	flood   []*counted // likewise, but it depends on policies, too
	entries map[uint64]*counted
	slab    []counted  // where new ones are made
	fresh   []*counted // not yet in sorted, some may be gone again
	gone    []*Entry   // still in sorted
	sorted  []*Entry   // the output; never changed, only replaced
	dirty   bool

	rules       map[uint64]*countedRule
	ruleSlab    []countedRule
	freshRules  []*countedRule
	goneRules   []*api.HostRule
	sortedRules []*api.HostRule

	used [256]int // entries by table, default forwarding included

	hooks      map[flow.Port][]hook // ports whose flooded frames go into a chain instead
	prune      []pruned
	returns    []returned
	floodDirty bool

	transit, catch identity.Label // of the identities of entries here
}

// counted is an entry that several policies may have.
type counted struct {
	*Entry         // never changed, only replaced
	own      Entry // the first one
	users    int32
	size     int32
	listed   bool     // in the node's sorted
	policies []string // of its users, if there are several; the first one is the entry's
}

// countedRule is a host's rule that several policies may have.
type countedRule struct {
	*api.HostRule              // never changed, only replaced
	own           api.HostRule // the first one
	id            uint64
	listed        bool
	policies      []string // of its users; the first one is the rule's, if it has one
	one           [1]string
}

// hook sends what is flooded to a port into a chain.
type hook struct {
	Claim
	out flow.Port
	tag uint16
}

// Claim says for whom something is at a switch.
type Claim struct {
	Owner    any // compared with ==
	Policy   string
	Priority int
}

// pruned keeps flooded frames from the port of their sender, wherever they come from.
type pruned struct {
	Claim
	mac  flow.MAC
	port flow.Port
}

// returned is a flooded frame that is back, with a tag, at the switch of its sender and is flooded from there as if it had just come.
type returned struct {
	Claim
	in, port flow.Port
	tag      uint16
}

func newNode(s Switch, id SwitchID) *node {
	n := &node{sw: s, tables: len(s.Tables), dirty: true, floodDirty: true}
	if s.Host {
		n.rules = map[uint64]*countedRule{}
		return n
	}
	n.entries, n.hooks = map[uint64]*counted{}, map[flow.Port][]hook{}
	n.transit, n.catch = identity.LabelOf("transit", string(id)), identity.LabelOf("catch", string(id))
	return n
}

// second is the table of what is done to frames that no source's entry takes.
func (n *node) second() uint8 {
	switch {
	case n.tables > 1 && n.beside:
		return uint8(min(n.tables-1, lastTable)) // others may have taken the first ones
	case n.tables > 1:
		return 1
	}
	return 0
}

// lastTable is the highest that Weir looks at.
const lastTable = 7

// slabMost bounds how many entries or rules are made at once, so that one that stays does not keep many others in memory.
const slabMost = 64

// another gives place for one more.
func another[T any](slab *[]T) *T {
	if len(*slab) == cap(*slab) {
		*slab = make([]T, 0, min(max(2*cap(*slab), 4), slabMost))
	}
	*slab = (*slab)[:len(*slab)+1]
	return &(*slab)[len(*slab)-1]
}

func (n *node) add(e *Entry) *counted {
	for {
		have := n.entries[e.Cookie]
		if have == nil {
			break
		}
		if have.Table == e.Table && have.Priority == e.Priority && have.Match == e.Match {
			if have.users++; have.policies == nil {
				have.policies = []string{have.Policy}
			}
			have.policies = append(have.policies, e.Policy)
			return have
		}
		e.Cookie = identity.Another(e.Cookie)
	}
	fresh := n.count(e)
	n.entries[e.Cookie] = fresh
	n.put(fresh)
	return fresh
}

// count keeps a new entry.
func (n *node) count(e *Entry) *counted {
	c := another(&n.slab)
	*c = counted{own: *e, users: 1, size: int32(size(&e.Match))}
	c.Entry = &c.own
	return c
}

func (n *node) put(c *counted) {
	n.fresh = append(n.fresh, c)
	n.used[c.Table] += int(c.size)
	n.dirty = true
}

func (n *node) remove(c *counted, policy string) {
	if c.users--; c.users == 0 {
		delete(n.entries, c.Cookie)
		n.drop(c)
		return
	}
	i := slices.Index(c.policies, policy)
	c.policies = slices.Delete(c.policies, i, i+1)
	if i > 0 || c.policies[0] == policy {
		return
	}
	e := *c.Entry // it bears the name of another user from now on
	e.Policy = c.policies[0]
	n.unlist(c)
	c.Entry = &e
	n.fresh = append(n.fresh, c)
}

func (n *node) drop(c *counted) {
	c.users = 0
	n.used[c.Table] -= int(c.size)
	n.unlist(c)
}

func (n *node) unlist(c *counted) {
	n.dirty = true
	if c.listed {
		n.gone = append(n.gone, c.Entry)
		c.listed = false
	}
}

// share makes a policy one more user of a rule; nil: there is none yet.
func (n *node) share(id uint64, policy string) *countedRule {
	have := n.rules[id]
	if have != nil {
		have.policies = append(have.policies, policy)
	}
	return have
}

// addRule keeps a new rule.
func (n *node) addRule(id uint64, r *api.HostRule, policy string) *countedRule {
	c := another(&n.ruleSlab)
	*c = countedRule{own: *r, id: id, one: [1]string{policy}}
	c.HostRule, c.policies = &c.own, c.one[:]
	n.rules[id] = c
	n.freshRules = append(n.freshRules, c)
	n.dirty = true
	return c
}

func (n *node) removeRule(c *countedRule, policy string) {
	i := slices.Index(c.policies, policy)
	c.policies = slices.Delete(c.policies, i, i+1)
	switch {
	case len(c.policies) == 0:
		delete(n.rules, c.id)
		n.unlistRule(c)
	case c.Policy == policy && c.policies[0] != policy:
		r := *c.HostRule
		r.Policy = c.policies[0]
		n.unlistRule(c)
		c.HostRule = &r
		n.freshRules = append(n.freshRules, c)
	}
}

func (n *node) unlistRule(c *countedRule) {
	n.dirty = true
	if c.listed {
		n.goneRules = append(n.goneRules, c.HostRule)
		c.listed = false
	}
}

// hook sends what is flooded to a port into a chain.
func (n *node) hook(p flow.Port, h hook) {
	n.hooks[p] = append(n.hooks[p], h)
	n.floodDirty = true
}

func (n *node) unhook(p flow.Port, owner any) {
	n.hooks[p] = slices.DeleteFunc(n.hooks[p], func(h hook) bool { return h.Owner == owner })
	if len(n.hooks[p]) == 0 {
		delete(n.hooks, p)
	}
	n.floodDirty = true
}

// keepBack keeps flooded frames from a sender's own port.
func (n *node) keepBack(p pruned) {
	n.prune = append(n.prune, p)
	n.floodDirty = true
}

// floodBack floods frames that have come back.
func (n *node) floodBack(r returned) {
	n.returns = append(n.returns, r)
	n.floodDirty = true
}

// unclaim undoes both.
func (n *node) unclaim(owner any) {
	n.prune = slices.DeleteFunc(n.prune, func(x pruned) bool { return x.Owner == owner })
	n.returns = slices.DeleteFunc(n.returns, func(x returned) bool { return x.Owner == owner })
	n.floodDirty = true
}

func order(a, b *Entry) int {
	switch {
	case a.Table != b.Table:
		return int(a.Table) - int(b.Table)
	case a.Priority != b.Priority:
		return int(b.Priority) - int(a.Priority)
	}
	return cmp.Compare(a.Cookie, b.Cookie)
}

func ruleOrder(a, b *api.HostRule) int { return cmp.Compare(a.Cookie, b.Cookie) }

// all entries in order.
func (n *node) all() []*Entry {
	if !n.dirty {
		return n.sorted
	}
	n.dirty = false
	if n.sorted == nil {
		n.sorted, n.base = n.base, nil // in order already
	}
	fresh := make([]*Entry, 0, len(n.fresh))
	for _, c := range n.fresh {
		if c.users > 0 && !c.listed {
			c.listed = true
			fresh = append(fresh, c.Entry)
		}
	}
	n.sorted = merge(n.sorted, fresh, n.gone, order)
	n.fresh, n.gone = nil, nil
	return n.sorted
}

func (n *node) hostRules() []*api.HostRule {
	if !n.dirty {
		return n.sortedRules
	}
	n.dirty = false
	fresh := make([]*api.HostRule, 0, len(n.freshRules))
	for _, c := range n.freshRules {
		if len(c.policies) > 0 && !c.listed {
			c.listed = true
			fresh = append(fresh, c.HostRule)
		}
	}
	n.sortedRules = merge(n.sortedRules, fresh, n.goneRules, ruleOrder)
	n.freshRules, n.goneRules = nil, nil
	return n.sortedRules
}

// merge gives another list in order: an old one without what is gone, and with what is fresh. A fresh one may have the place of one that is gone.
func merge[T any](old, fresh, gone []*T, order func(a, b *T) int) []*T {
	slices.SortFunc(fresh, order)
	slices.SortFunc(gone, order)
	sorted := make([]*T, 0, len(old)+len(fresh)-len(gone))
	for len(fresh)+len(gone) > 0 {
		less := len(fresh) == 0 || len(gone) > 0 && order(gone[0], fresh[0]) <= 0
		next := &fresh
		if less {
			next = &gone
		}
		x := (*next)[0]
		*next = (*next)[1:]
		i := find(old, x, order)
		sorted = append(sorted, old[:i]...)
		if old = old[i:]; less {
			old = old[1:]
		} else {
			sorted = append(sorted, x)
		}
	}
	return append(sorted, old...)
}

// find gives the first place in order that is not before x, which is most likely near the beginning.
func find[T any](list []*T, x *T, order func(a, b *T) int) int {
	lo, step := 0, 1
	for lo+step <= len(list) && order(list[lo+step-1], x) < 0 {
		lo += step
		step *= 2
	}
	i, _ := slices.BinarySearchFunc(list[lo:min(lo+step, len(list))], x, order)
	return lo + i
}

// room tells why a table has none. flood counts the entries for floods that are to come.
func (n *node) room(table uint8, reserve uint32, flood func() int) error {
	if int(table) >= len(n.sw.Tables) || n.sw.Tables[table] == 0 {
		return nil
	}
	have, used := max(0, int(n.sw.Tables[table])-int(reserve)), n.used[table]
	if n.floodDirty && table == n.second() && used > have/2 { // else they hardly matter
		used += flood() - len(n.flood)
	}
	if used <= have {
		return nil
	}
	return fmt.Errorf("switch %s: table %d holds %d entries, %d of them are left to others: this policy would make it %d: %w",
		n.sw.Name, table, n.sw.Tables[table], reserve, used, ErrFull)
}
