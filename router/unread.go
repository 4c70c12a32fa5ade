package router

import (
	"cmp"
	"fmt"
	"slices"

	"weir.dev/weir/flow"
)

// Frames that switches cannot read to the end (flow.Unread) may be what a policy asks for, and whoever receives them may read on. So of
// such a frame a policy asks for no more than can be read:
//
//   - if all policies that could want the frame lead it into one chain in one direction, it goes there;
//   - if they differ, it is dropped: whichever chain it took, it could be past the one that is there for it.
//
// Priorities hold: what a policy selects for certain, one of less priority does not get.

// unread adds the rules for such frames.
func (c *compiler) unread(steering, copying []planned) (s, r []planned) {
	var mays []planned
	for _, p := range c.policies {
		for _, d := range p.ways {
			for _, e := range d.mays() {
				may, ok := c.enter(d, e)
				switch {
				case !ok:
				case p.Replica():
					copying = append(copying, may)
				default:
					mays = append(mays, may)
				}
			}
		}
	}
	return append(steering, settle(gather(mays), steering)...), copying
}

// mays are the entries of a direction for frames that it may select.
func (d *direction) mays() []entry {
	var all []entry
	for _, u := range []flow.Unread{flow.UnreadNetwork, flow.UnreadUpper} {
		for _, e := range d.entries {
			m, ok := e.match.May(u)
			if ok && !slices.ContainsFunc(all, func(o entry) bool { return o.match == m }) {
				all = append(all, entry{m, "what is " + u.String()})
			}
		}
	}
	return all
}

// gather leaves one rule of those for the same frames: that of the highest priority, which drops if they differ.
func gather(mays []planned) []planned {
	type meeting struct {
		stage flow.Stage
		match flow.Match
	}
	at := map[meeting]int{}
	var all []planned
	for _, r := range mays {
		i, twice := at[meeting{r.Stage, r.Match}]
		if !twice {
			at[meeting{r.Stage, r.Match}] = len(all)
			all = append(all, r)
			continue
		}
		one, other := inOrderOf(all[i], r)
		if all[i] = one; differ(one, other) {
			all[i] = one.refuse(other)
		}
	}
	return all
}

// settle makes rules drop where one of less priority could want the frame for another chain, or wants it for certain.
func settle(mays, steering []planned) []planned {
	index := map[uint64]int{}
	for i, r := range mays {
		index[r.Cookie] = i
	}
	for _, stage := range []flow.Stage{flow.Ingress, flow.Egress} {
		var at []planned
		for _, r := range mays {
			if r.Stage == stage {
				at = append(at, r)
			}
		}
		if len(at) == 0 {
			continue
		}
		for _, r := range steering {
			if r.Stage == stage && certain(r.Match) {
				at = append(at, r)
			}
		}
		sweep(at, func(a, b planned) bool {
			if _, both := flow.Intersect(a.Match, b.Match); !both || !differ(a, b) {
				return true
			}
			one, other := inOrderOf(a, b)
			if i, may := index[one.Cookie]; may {
				mays[i] = one.refuse(other)
			}
			return true
		})
	}
	return mays
}

// certain: a match can select some frames that cannot be read to the end.
func certain(m flow.Match) bool {
	_, network := flow.Intersect(m, flow.Match{Unread: flow.UnreadNetwork})
	_, upper := flow.Intersect(m, flow.Match{Unread: flow.UnreadUpper})
	return network || upper
}

// inOrderOf precedence: the first one applies to a frame of both.
func inOrderOf(a, b planned) (planned, planned) {
	if cmp.Or(cmp.Compare(b.policy.Priority, a.policy.Priority), cmp.Compare(a.Cookie, b.Cookie)) <= 0 {
		return a, b
	}
	return b, a
}

// differ tells that two rules take a frame different ways.
func differ(a, b planned) bool {
	return !a.Action.Same(b.Action)
}

// refuse drops what the rule may select, for another wants it, too.
func (r planned) refuse(other planned) planned {
	r.Action, r.Learn = flow.Action{Op: flow.Drop}, false
	if r.policy == other.policy {
		r.Note = fmt.Sprintf("policy %s: what is %s is dropped: it may be for either direction", r.policy.Name, r.Match.Unread)
	} else {
		r.Note = fmt.Sprintf("policy %s: what is %s is dropped: it may be for this policy, or for %s", r.policy.Name, r.Match.Unread, other.policy.Name)
	}
	return r
}
