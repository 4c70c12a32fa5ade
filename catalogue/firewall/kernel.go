package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

const tableName = "weir_firewall"

// kernel is the filter as nftables has it, in the namespace that we run in.
type kernel struct {
	in, out  string
	stateful bool
	rejects  bool
	made     int         // generations
	now      *generation // in force; nil: none
	settles  bool        // rules collect flows to be settled
}

// count is one rule's counter, alternatives of one rule added up.
type count struct {
	rule           string
	denies         bool
	packets, bytes uint64
}

func newKernel(in, out string) (*kernel, error) {
	k := &kernel{in: in, out: out}
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	if _, err := c.ListTablesOfFamily(nftables.TableFamilyBridge); err != nil {
		return nil, fmt.Errorf("nftables, bridge family: %w (kernel option CONFIG_NF_TABLES_BRIDGE; capability CAP_NET_ADMIN)", err)
	}
	k.stateful = k.can("connection tracking", &expr.Ct{Key: expr.CtKeySTATE, Register: 1})
	k.rejects = k.can("reject", &expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED})
	return k, nil
}

func (k *kernel) mode() string {
	if k.stateful {
		return "connections"
	}
	return "ports" // no nf_conntrack_bridge in this kernel
}

// can tries an expression in a table of its own, which no frame meets.
func (k *kernel) can(what string, e expr.Any) bool {
	c, err := nftables.New()
	if err != nil {
		return false
	}
	t := c.AddTable(&nftables.Table{Family: nftables.TableFamilyBridge, Name: tableName + "_probe"})
	chain := c.AddChain(&nftables.Chain{
		Name: "probe", Table: t, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityFilter,
	})
	never := []expr.Any{&expr.Meta{Key: expr.MetaKeyIIF, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{0xff, 0xff, 0xff, 0x7f}}}
	c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: append(never, e)})
	if err := c.Flush(); err != nil {
		return false
	}
	c.DelTable(t)
	return c.Flush() == nil
}

// Bounds of what the kernel takes at once: a list of elements has 64 KiB at most, and a message to it 200 KiB without more rights.
const (
	elementsAtOnce = 500
	rulesAtOnce    = 100
	maxSources     = 65536 // with a limit of their own; more are over it
	sourceLasts    = time.Minute
)

// apply replaces the filter in one step: a frame meets the old one or the new one. Sets and rules are made beside those in force first, however many they are. The note
// says what the kernel lacks.
func (k *kernel) apply(cfg config) (note string, err error) {
	if cfg.Reject && !k.rejects {
		note = "reject: this kernel cannot answer on a bridge (option CONFIG_NF_REJECT, NFT_BRIDGE_REJECT); denied traffic is dropped"
	}
	table := &nftables.Table{Family: nftables.TableFamilyBridge, Name: tableName}
	if k.now == nil {
		if k.now, err = former(table); err != nil {
			return "", err
		}
		if k.now != nil {
			k.made = k.now.n
		}
	}
	k.made++
	next := &generation{table: table, n: k.made}
	next.chain = &nftables.Chain{Name: fmt.Sprintf("g%d", next.n), Table: next.table}
	f := plan(cfg, k.in, k.out, k.stateful)
	if err = k.begin(next); err == nil {
		if k.settles {
			err = next.collect(k.tracked(cfg))
		}
	}
	if err == nil {
		err = next.make(f, cfg.Reject && k.rejects)
	}
	if err == nil {
		err = k.swap(next, cfg.Reject && k.rejects)
	}
	if err != nil {
		next.remove()
		return "", fmt.Errorf("put rules in force (nftables, bridge family): %w", err)
	}
	k.now = next
	return note, nil
}

// begin makes what all generations share, and the new one's chain.
func (k *kernel) begin(next *generation) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	c.AddTable(next.table)
	c.AddChain(base(next.table, "filter", nftables.ChainHookPrerouting))
	headers, accept := base(next.table, headersChain, nftables.ChainHookPrerouting), nftables.ChainPolicyAccept
	headers.Priority, headers.Policy = nftables.ChainPriorityRef(*nftables.ChainPriorityFilter-1), &accept
	c.AddChain(headers)
	c.FlushChain(headers) // that of a killed process
	c.AddRule(&nftables.Rule{Table: next.table, Chain: headers, Exprs: wholeHeader()})
	c.AddChain(next.chain)
	return c.Flush()
}

// headersChain is the chain that each frame meets before the filter.
const headersChain = "headers"

// wholeHeader has the kernel put the whole IPv6 header into the first part of the packet, by writing its last byte as it is. The header of a frame that is longer
// than a page may be in another part; on a bridge the kernel would read the protocol there from memory that has nothing to do with the packet (Linux 6.18).
func wholeHeader() []expr.Any {
	const last = 39
	return join(ethertype(etherIPv6), []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: last, Len: 1},
		&expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: last, Len: 1},
	})
}

// base is a chain that drops what it does not decide: if a rule is missing, nothing passes.
func base(t *nftables.Table, name string, hook *nftables.ChainHook) *nftables.Chain {
	policy := nftables.ChainPolicyDrop
	return &nftables.Chain{Name: name, Table: t, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityFilter, Policy: &policy}
}

// swap leads frames to the new generation instead of the former one, which goes.
func (k *kernel) swap(next *generation, rejects bool) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	filter := base(next.table, "filter", nftables.ChainHookPrerouting)
	c.FlushChain(filter)
	c.AddRule(&nftables.Rule{Table: next.table, Chain: filter, Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: next.chain.Name}}})
	// Nothing that the bridge says for itself leaves. What reject answers does not pass here under the bridge's own name.
	own := base(next.table, "own", nftables.ChainHookOutput)
	c.AddChain(own)
	if rejects {
		c.DelChain(own)
	}
	if k.now != nil {
		k.now.delete(c)
	}
	return c.Flush()
}

// generation is a chain with the rules of a configuration, and its sets.
type generation struct {
	n     int
	table *nftables.Table
	chain *nftables.Chain
	sets  []*nftables.Set
	more  []*nftables.Chain // that a killed process has not finished; that of accepted flows; parts
	parts []*nftables.Chain // with rules for some fragments

	accepted []*nftables.Set // of acceptedSets, if flows are settled
}

// former is what a killed process has left: it is in force until other rules are. nil: nothing.
func former(t *nftables.Table) (*generation, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	tables, err := c.ListTablesOfFamily(t.Family)
	if err != nil || !slices.ContainsFunc(tables, func(x *nftables.Table) bool { return x.Name == t.Name }) {
		return nil, err
	}
	chains, err := c.ListChainsOfTableFamily(t.Family)
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	g := &generation{table: t}
	for _, x := range chains {
		var n int
		if _, err := fmt.Sscanf(x.Name, "g%d", &n); err != nil || x.Table.Name != t.Name {
			continue
		}
		g.n = max(g.n, n)
		g.more = append(g.more, &nftables.Chain{Name: x.Name, Table: t})
	}
	if g.sets, err = c.GetSets(t); err != nil {
		return nil, fmt.Errorf("list sets: %w", err)
	}
	for _, s := range g.sets {
		s.Table = t
	}
	return g, nil
}

func (g *generation) make(f *filter, rejects bool) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	names := map[*set]string{}
	for i, s := range f.sets {
		kernels := &nftables.Set{Table: g.table, Name: fmt.Sprintf("g%d_%d", g.n, i), KeyType: nftables.TypeIPAddr, Interval: !s.dynamic, Dynamic: s.dynamic}
		if s.v6 {
			kernels.KeyType = nftables.TypeIP6Addr
		}
		if s.dynamic {
			kernels.HasTimeout, kernels.Timeout, kernels.Size = true, sourceLasts, maxSources
		}
		if err := c.AddSet(kernels, nil); err != nil {
			return err
		}
		if err := c.Flush(); err != nil {
			return fmt.Errorf("set: %w", err)
		}
		g.sets = append(g.sets, kernels)
		names[s] = kernels.Name
		for part := range slices.Chunk(s.elements, elementsAtOnce) {
			if err := c.SetAddElements(kernels, elements(part)); err != nil {
				return err
			}
			if err := c.Flush(); err != nil {
				return fmt.Errorf("addresses of a set: %w", err)
			}
		}
	}
	later := g.besides(c, "later")
	leads := func(from *nftables.Chain, kind expr.VerdictKind, to string, rules ...rule) {
		for _, r := range rules {
			c.AddRule(&nftables.Rule{Table: g.table, Chain: from, Exprs: append(r.expressions(nil, false), &expr.Verdict{Kind: kind, Chain: to}), UserData: comment(r)})
		}
	}
	leads(g.chain, expr.VerdictGoto, later.Name, laterFragments()...)
	if f.whole {
		first := g.besides(c, "first")
		leads(g.chain, expr.VerdictJump, first.Name, firstFragments)
		leads(first, expr.VerdictReturn, "", readable)
		c.AddRule(&nftables.Rule{Table: g.table, Chain: first, Exprs: unreadable.expressions(nil, rejects), UserData: comment(unreadable)})
	}
	for part := range slices.Chunk(f.rules, rulesAtOnce) {
		for _, r := range part {
			for _, chain := range []*nftables.Chain{g.chain, later} {
				if chain != later || !r.reads() {
					c.AddRule(&nftables.Rule{Table: g.table, Chain: chain, Exprs: append(r.expressions(names, rejects), g.accept(r)...), UserData: comment(r)})
				}
			}
		}
		if err := c.Flush(); err != nil {
			return fmt.Errorf("rules: %w", err)
		}
	}
	return nil
}

// besides makes a chain to which rules of the generation's own lead.
func (g *generation) besides(c *nftables.Conn, what string) *nftables.Chain {
	chain := c.AddChain(&nftables.Chain{Name: fmt.Sprintf("g%d_%s", g.n, what), Table: g.table})
	g.more, g.parts = append(g.more, chain), append(g.parts, chain)
	return chain
}

// elements of an interval set: where each range begins, and where the addresses behind it do.
func elements(all addresses) []nftables.SetElement {
	var out []nftables.SetElement
	for _, s := range all {
		out = append(out, nftables.SetElement{Key: s.first.AsSlice()})
		if end := s.last.Next(); end.IsValid() { // else it goes to the last address of all
			out = append(out, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	return out
}

// expressions of a rule, with the names of its sets, without the end of one that accepts.
func (r rule) expressions(names map[*set]string, rejects bool) []expr.Any {
	var out []expr.Any
	sets := r.sets
	for _, e := range r.match {
		switch x := e.(type) {
		case *expr.Lookup:
			e = &expr.Lookup{SourceRegister: x.SourceRegister, SetName: names[sets[0]]}
			sets = sets[1:]
		case *expr.Dynset:
			e = &expr.Dynset{SrcRegKey: x.SrcRegKey, Operation: x.Operation, Exprs: x.Exprs, SetName: names[sets[0]]}
			sets = sets[1:]
		}
		out = append(out, e)
	}
	out = append(out, &expr.Counter{})
	switch {
	case r.denies && rejects:
		return append(out, &expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED})
	case r.denies:
		return append(out, &expr.Verdict{Kind: expr.VerdictDrop})
	}
	return out
}

// accept is the end of a rule that denies nothing.
func (g *generation) accept(r rule) []expr.Any {
	switch {
	case r.denies:
		return nil
	case r.settle && g.accepted != nil:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: g.acceptedChain()}}
	}
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
}

// delete it, in the transaction in which nothing leads to it any more.
func (g *generation) delete(c *nftables.Conn) {
	chains := g.more
	if g.chain != nil {
		chains = append(chains, g.chain)
	}
	for _, x := range chains { // the rules of one lead to another
		c.FlushChain(x)
	}
	for _, x := range chains {
		c.DelChain(x)
	}
	for _, s := range g.sets {
		c.DelSet(s)
	}
}

// tracked tells whether what the rules say of a packet depends on the kernel's connections.
func (k *kernel) tracked(cfg config) bool { return k.stateful && cfg.Default == "drop" }

func (g *generation) acceptedChain() string { return fmt.Sprintf("g%d_accepted", g.n) }

// collect makes the chain that writes accepted flows into sets, and accepts.
func (g *generation) collect(tracked bool) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	chain := c.AddChain(&nftables.Chain{Name: g.acceptedChain(), Table: g.table})
	var sets []*nftables.Set
	for _, a := range acceptedSets {
		s := a.set(g.table, g.n)
		if err := c.AddSet(s, nil); err != nil {
			return err
		}
		sets = append(sets, s)
		for _, exprs := range a.rules(s.Name, tracked) {
			c.AddRule(&nftables.Rule{Table: g.table, Chain: chain, Exprs: exprs})
		}
	}
	c.AddRule(&nftables.Rule{Table: g.table, Chain: chain, Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("sets of accepted flows: %w", err)
	}
	g.more, g.sets, g.accepted = append(g.more, chain), append(g.sets, sets...), sets
	return nil
}

// remove what was made of it, as far as that goes.
func (g *generation) remove() {
	if c, err := nftables.New(); err == nil {
		g.delete(c)
		_ = c.Flush()
	}
}

const denyMark = "deny: "

func comment(r rule) []byte {
	text := r.name
	if r.denies {
		text = denyMark + r.name
	}
	return userdata.AppendString(nil, userdata.TypeComment, text)
}

// counters reads the rules back, in order; what fragments meet is added.
func (k *kernel) counters() ([]count, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	if k.now == nil || k.now.chain == nil {
		return nil, nil
	}
	var rules []*nftables.Rule
	for _, chain := range append([]*nftables.Chain{k.now.chain}, k.now.parts...) {
		some, err := c.GetRules(k.now.table, chain)
		if err != nil {
			return nil, fmt.Errorf("read rules: %w", err)
		}
		rules = append(rules, some...)
	}
	var out []count
	at := map[string]int{}
	for _, r := range rules {
		name, ok := userdata.GetString(r.UserData, userdata.TypeComment)
		if !ok {
			return nil, errors.New("read rules: there is one without a comment: it is not ours")
		}
		i, known := at[name]
		if !known {
			i = len(out)
			at[name] = i
			plain, denies := name, false
			if len(name) > len(denyMark) && name[:len(denyMark)] == denyMark {
				plain, denies = name[len(denyMark):], true
			}
			out = append(out, count{rule: plain, denies: denies})
		}
		for _, e := range r.Exprs {
			if n, ok := e.(*expr.Counter); ok {
				out[i].packets += n.Packets
				out[i].bytes += n.Bytes
			}
		}
	}
	return out, nil
}
