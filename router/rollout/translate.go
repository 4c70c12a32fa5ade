package rollout

import (
	"slices"

	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
)

// Delta is how a switch's target changes.
type Delta struct {
	Source []*fabric.Entry // what the target is made from then
	Whole  bool            // add is all there is
	Del    []Key           // before add
	Add    []*Rule
}

// Translation of an output into what switches take.
type Translation struct {
	Deltas map[fabric.SwitchID]Delta // of switches whose entries have changed
	Errors map[string]error          // of policies that OpenFlow cannot say; they are left out as a whole
}

// Translate encodes what differs between the entries that each switch's target was made from and the new ones. bad are the
// policies that were left out then.
func Translate(out fabric.Output, have map[fabric.SwitchID][]*fabric.Entry, bad map[string]error, noForwarding bool) Translation {
	t := Translation{Deltas: map[fabric.SwitchID]Delta{}, Errors: map[string]error{}}
	for policy, err := range bad { // as before, unless it is gone or has changed
		if out.Paths.Of(policy) != nil {
			t.Errors[policy] = err
		}
	}
	fresh := len(t.Errors) != len(bad)
	c := Encoder{}
	for id, old := range have {
		d := Delta{Source: out.Entries[id]}
		if SameList(old, d.Source) {
			continue // the compiler says by this that nothing has changed
		}
		del, add := differences(old, d.Source)
		for _, e := range del {
			rs, _ := c.encodeBeside(nil, e, noForwarding)
			for _, r := range rs {
				d.Del = append(d.Del, r.Key)
			}
		}
		if len(add) > 0 {
			d.Add = make([]*Rule, 0, len(add))
		}
		for _, e := range add {
			if e.Policy != "" && t.Errors[e.Policy] != nil {
				continue
			}
			var err error
			if d.Add, err = c.encodeBeside(d.Add, e, noForwarding); err != nil && t.Errors[e.Policy] == nil {
				t.Errors[e.Policy] = err
				fresh = true
			}
		}
		t.Deltas[id] = d
	}
	if !fresh {
		return t
	}
	t.Errors = map[string]error{} // rare: all anew, first to find the errors
	rules := map[fabric.SwitchID][]*Rule{}
	for id := range have {
		for _, e := range out.Entries[id] {
			rs, err := c.encodeBeside(rules[id], e, noForwarding)
			if err != nil {
				t.Errors[e.Policy] = err
			}
			rules[id] = rs
		}
	}
	for id := range have {
		t.Deltas[id] = Delta{Source: out.Entries[id], Whole: true, Add: slices.DeleteFunc(rules[id], func(r *Rule) bool {
			return r.Policy != "" && t.Errors[r.Policy] != nil
		})}
	}
	return t
}

// SameList tells whether two lists are the same in memory.
func SameList[T any](a, b []T) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }

// differences compares two lists in the order of fabric.Output.
func differences(old, now []*fabric.Entry) (del, add []*fabric.Entry) {
	if len(old) == 0 {
		add = make([]*fabric.Entry, 0, len(now))
	}
	for len(old) > 0 || len(now) > 0 {
		order := 0
		switch {
		case len(old) == 0:
			order = 1
		case len(now) == 0:
			order = -1
		default:
			a, b := old[0], now[0]
			if a == b {
				old, now = old[1:], now[1:]
				continue
			}
			order = a.Compare(b)
			if order == 0 && !sameEntry(a, b) {
				del, add = append(del, a), append(add, b)
			}
		}
		if order < 0 {
			del = append(del, old[0])
		}
		if order > 0 {
			add = append(add, now[0])
		}
		if order <= 0 {
			old = old[1:]
		}
		if order >= 0 {
			now = now[1:]
		}
	}
	return del, add
}

func sameEntry(a, b *fabric.Entry) bool {
	return a.Match == b.Match && a.Tagged == b.Tagged && a.Tiny == b.Tiny && a.Goto == b.Goto && a.Hop == b.Hop && a.Policy == b.Policy && a.Note == b.Note &&
		slices.Equal(a.Outs, b.Outs) && a.Resume == b.Resume
}

func (c *Encoder) encodeBeside(to []*Rule, e *fabric.Entry, noForwarding bool) ([]*Rule, error) {
	if !noForwarding {
		return c.Encode(to, e)
	}
	all := to
	for _, other := range aside(*e) {
		var err error
		if all, err = c.Encode(all, &other); err != nil {
			return to, err
		}
	}
	return all, nil
}

// aside is what becomes of an entry beside someone else's ordinary routing: what would go on to Weir's default forwarding goes on to the
// switch's own (NORMAL), and what only default forwarding needs is left out. What is caught on its way to its destination is caught in the
// first table, for what is not Weir's does not come by the second, and there, for what resumes.
func aside(e fabric.Entry) []fabric.Entry {
	switch {
	case e.Policy == "" && (e.Goto != 0 || e.Table != 0):
		return nil
	case e.Resume != 0, e.Table != 0 && e.Match == (flow.Match{}):
		return []fabric.Entry{e}
	case e.Goto != 0:
		e.Outs = append(slices.Clip(e.Outs), fabric.Out{Port: fabric.Normally})
		e.Goto = 0
	}
	first := e
	if first.Table = 0; e.Table == 0 {
		return []fabric.Entry{first}
	}
	return []fabric.Entry{first, e}
}
