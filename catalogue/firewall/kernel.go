package main

import (
	"errors"
	"fmt"

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

// apply replaces the filter in one transaction: a frame meets the old one or the new one. The note says what the kernel lacks.
func (k *kernel) apply(cfg config) (note string, err error) {
	c, err := nftables.New()
	if err != nil {
		return "", fmt.Errorf("nftables: %w", err)
	}
	if cfg.Reject && !k.rejects {
		note = "reject: this kernel cannot answer on a bridge (option CONFIG_NF_REJECT, NFT_BRIDGE_REJECT); denied traffic is dropped"
	}
	t := &nftables.Table{Family: nftables.TableFamilyBridge, Name: tableName}
	c.AddTable(t) // so that the removal cannot fail
	c.DelTable(t)
	c.AddTable(t)
	policy := nftables.ChainPolicyDrop // if a rule is missing, nothing passes
	filter := c.AddChain(&nftables.Chain{
		Name: "filter", Table: t, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting,
		Priority: nftables.ChainPriorityFilter, Policy: &policy,
	})
	for _, r := range plan(cfg, k.in, k.out, k.stateful) {
		exprs := append(append([]expr.Any{}, r.match...), &expr.Counter{})
		switch {
		case r.denies && cfg.Reject && k.rejects:
			exprs = append(exprs, &expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED})
		case r.denies:
			exprs = append(exprs, &expr.Verdict{Kind: expr.VerdictDrop})
		default:
			exprs = append(exprs, &expr.Verdict{Kind: expr.VerdictAccept})
		}
		c.AddRule(&nftables.Rule{Table: t, Chain: filter, Exprs: exprs, UserData: comment(r)})
	}
	// Nothing that the bridge says for itself leaves. What reject answers does not pass here under the bridge's own name.
	if !cfg.Reject || !k.rejects {
		c.AddChain(&nftables.Chain{
			Name: "own", Table: t, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookOutput,
			Priority: nftables.ChainPriorityFilter, Policy: &policy,
		})
	}
	if err := c.Flush(); err != nil {
		return "", fmt.Errorf("put rules in force (nftables, bridge family): %w", err)
	}
	return note, nil
}

const denyMark = "deny: "

func comment(r rule) []byte {
	text := r.name
	if r.denies {
		text = denyMark + r.name
	}
	return userdata.AppendString(nil, userdata.TypeComment, text)
}

// counters reads the rules back, in order.
func (k *kernel) counters() ([]count, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	t := &nftables.Table{Family: nftables.TableFamilyBridge, Name: tableName}
	rules, err := c.GetRules(t, &nftables.Chain{Name: "filter", Table: t})
	if err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
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
