// Package switches has what one switch is to hold: entries or hosts' rules that several policies may share, in order, changed in steps.
package switches

import (
	"cmp"
	"fmt"
	"slices"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/identity"
)

// Node is what a switch is to hold.
type Node struct {
	Beside  bool // something else forwards
	Switch  fabric.Switch
	tables  int
	Base    []*fabric.Entry // forwarding to stations, LLDP, guards: as the topology wants it
	Flood   []*Counted      // likewise, but it depends on policies, too
	entries map[uint64]*Counted
	slab    []Counted       // where new ones are made
	fresh   []*Counted      // not yet in sorted, some may be gone again
	gone    []*fabric.Entry // still in sorted
	sorted  []*fabric.Entry // the output; never changed, only replaced
	Dirty   bool

	Rules       map[uint64]*CountedRule
	ruleSlab    []CountedRule
	freshRules  []*CountedRule
	goneRules   []*api.HostRule
	sortedRules []*api.HostRule

	Used [256]int // entries by table, default forwarding included

	Hooks      map[flow.Port][]Hook // ports whose flooded frames go into a chain instead
	Prune      []Pruned
	Returns    []Returned
	FloodDirty bool

	Transit, Catch identity.Label // of the identities of entries here
}

// Counted is an entry that several policies may have.
type Counted struct {
	*fabric.Entry              // never changed, only replaced
	own           fabric.Entry // the first one
	users         int32
	size          int32
	listed        bool     // in the node's sorted
	policies      []string // of its users, if there are several; the first one is the entry's
}

// CountedRule is a host's rule that several policies may have.
type CountedRule struct {
	*api.HostRule              // never changed, only replaced
	own           api.HostRule // the first one
	id            uint64
	listed        bool
	policies      []string // of its users; the first one is the rule's, if it has one
	one           [1]string
}

// Hook sends what is flooded to a port into a chain.
type Hook struct {
	Claim
	Out flow.Port
	Tag uint16
}

// Claim says for whom something is at a switch.
type Claim struct {
	Owner    any // compared with ==
	Policy   string
	Priority int
}

// Pruned keeps flooded frames from the port of their sender, wherever they come from.
type Pruned struct {
	Claim
	MAC  flow.MAC
	Port flow.Port
}

// Returned is a flooded frame that is back, with a tag, at the switch of its sender and is flooded from there as if it had just come.
type Returned struct {
	Claim
	In, Port flow.Port
	Tag      uint16
}

// NewNode holds nothing yet.
func NewNode(s fabric.Switch, id fabric.SwitchID) *Node {
	n := &Node{Switch: s, tables: len(s.Tables), Dirty: true, FloodDirty: true}
	if s.Host {
		n.Rules = map[uint64]*CountedRule{}
		return n
	}
	n.entries, n.Hooks = map[uint64]*Counted{}, map[flow.Port][]Hook{}
	n.Transit, n.Catch = identity.LabelOf("transit", string(id)), identity.LabelOf("catch", string(id))
	return n
}

// Second is the table of what is done to frames that no source's entry takes.
func (n *Node) Second() uint8 {
	switch {
	case n.tables > 1 && n.Beside:
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

// Add makes an entry, or its policy one more user of one that is there.
func (n *Node) Add(e *fabric.Entry) *Counted {
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
	fresh := n.Count(e)
	n.entries[e.Cookie] = fresh
	n.Put(fresh)
	return fresh
}

// Count keeps a new entry.
func (n *Node) Count(e *fabric.Entry) *Counted {
	c := another(&n.slab)
	*c = Counted{own: *e, users: 1, size: int32(fabric.Size(&e.Match))}
	c.Entry = &c.own
	return c
}

// Put lists a new entry.
func (n *Node) Put(c *Counted) {
	n.fresh = append(n.fresh, c)
	n.Used[c.Table] += int(c.size)
	n.Dirty = true
}

// Remove takes a policy from the users of an entry.
func (n *Node) Remove(c *Counted, policy string) {
	if c.users--; c.users == 0 {
		delete(n.entries, c.Cookie)
		n.Drop(c)
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

// Drop takes an entry out whoever uses it.
func (n *Node) Drop(c *Counted) {
	c.users = 0
	n.Used[c.Table] -= int(c.size)
	n.unlist(c)
}

func (n *Node) unlist(c *Counted) {
	n.Dirty = true
	if c.listed {
		n.gone = append(n.gone, c.Entry)
		c.listed = false
	}
}

// Share makes a policy one more user of a rule; nil: there is none yet.
func (n *Node) Share(id uint64, policy string) *CountedRule {
	have := n.Rules[id]
	if have != nil {
		have.policies = append(have.policies, policy)
	}
	return have
}

// AddRule keeps a new rule.
func (n *Node) AddRule(id uint64, r *api.HostRule, policy string) *CountedRule {
	c := another(&n.ruleSlab)
	*c = CountedRule{own: *r, id: id, one: [1]string{policy}}
	c.HostRule, c.policies = &c.own, c.one[:]
	n.Rules[id] = c
	n.freshRules = append(n.freshRules, c)
	n.Dirty = true
	return c
}

// RemoveRule takes a policy from the users of a rule.
func (n *Node) RemoveRule(c *CountedRule, policy string) {
	i := slices.Index(c.policies, policy)
	c.policies = slices.Delete(c.policies, i, i+1)
	switch {
	case len(c.policies) == 0:
		delete(n.Rules, c.id)
		n.unlistRule(c)
	case c.Policy == policy && c.policies[0] != policy:
		r := *c.HostRule
		r.Policy = c.policies[0]
		n.unlistRule(c)
		c.HostRule = &r
		n.freshRules = append(n.freshRules, c)
	}
}

func (n *Node) unlistRule(c *CountedRule) {
	n.Dirty = true
	if c.listed {
		n.goneRules = append(n.goneRules, c.HostRule)
		c.listed = false
	}
}

// Hook sends what is flooded to a port into a chain.
func (n *Node) Hook(p flow.Port, h Hook) {
	n.Hooks[p] = append(n.Hooks[p], h)
	n.FloodDirty = true
}

// Unhook undoes Hook.
func (n *Node) Unhook(p flow.Port, owner any) {
	n.Hooks[p] = slices.DeleteFunc(n.Hooks[p], func(h Hook) bool { return h.Owner == owner })
	if len(n.Hooks[p]) == 0 {
		delete(n.Hooks, p)
	}
	n.FloodDirty = true
}

// KeepBack keeps flooded frames from a sender's own port.
func (n *Node) KeepBack(p Pruned) {
	n.Prune = append(n.Prune, p)
	n.FloodDirty = true
}

// FloodBack floods frames that have come back.
func (n *Node) FloodBack(r Returned) {
	n.Returns = append(n.Returns, r)
	n.FloodDirty = true
}

// Unclaim undoes both.
func (n *Node) Unclaim(owner any) {
	n.Prune = slices.DeleteFunc(n.Prune, func(x Pruned) bool { return x.Owner == owner })
	n.Returns = slices.DeleteFunc(n.Returns, func(x Returned) bool { return x.Owner == owner })
	n.FloodDirty = true
}

func ruleOrder(a, b *api.HostRule) int { return cmp.Compare(a.Cookie, b.Cookie) }

// All entries in order.
func (n *Node) All() []*fabric.Entry {
	if !n.Dirty {
		return n.sorted
	}
	n.Dirty = false
	if n.sorted == nil {
		n.sorted, n.Base = n.Base, nil // in order already
	}
	fresh := make([]*fabric.Entry, 0, len(n.fresh))
	for _, c := range n.fresh {
		if c.users > 0 && !c.listed {
			c.listed = true
			fresh = append(fresh, c.Entry)
		}
	}
	n.sorted = merge(n.sorted, fresh, n.gone, (*fabric.Entry).Compare)
	n.fresh, n.gone = nil, nil
	return n.sorted
}

// HostRules are all rules in order.
func (n *Node) HostRules() []*api.HostRule {
	if !n.Dirty {
		return n.sortedRules
	}
	n.Dirty = false
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
		i, _ := slices.BinarySearchFunc(old, x, order)
		sorted = append(sorted, old[:i]...)
		if old = old[i:]; less {
			old = old[1:]
		} else {
			sorted = append(sorted, x)
		}
	}
	return append(sorted, old...)
}

// Room tells why a table has none. flood counts the entries for floods that are to come.
func (n *Node) Room(table uint8, reserve uint32, flood func() int) error {
	if int(table) >= len(n.Switch.Tables) || n.Switch.Tables[table] == 0 {
		return nil
	}
	have, used := max(0, int(n.Switch.Tables[table])-int(reserve)), n.Used[table]
	if n.FloodDirty && table == n.Second() && used > have/2 { // else they hardly matter
		used += flood() - len(n.Flood)
	}
	if used <= have {
		return nil
	}
	return fmt.Errorf("switch %s: table %d holds %d entries, %d of them are left to others: this policy would make it %d: %w",
		n.Switch.Name, table, n.Switch.Tables[table], reserve, used, fabric.ErrFull)
}
