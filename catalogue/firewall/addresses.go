package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
)

// Bounds of addresses.
const (
	maxSets      = 64
	maxAddresses = 250_000 // ranges of all entries together
)

// span is a range of addresses of one family.
type span struct{ first, last netip.Addr }

// addresses are ranges, sorted, that do not touch each other.
type addresses []span

// of a family: 4 bytes or 16.
func (a addresses) of(v6 bool) addresses {
	i := slices.IndexFunc(a, func(s span) bool { return s.first.Is6() }) // those of IPv4 come first
	if i < 0 {
		i = len(a)
	}
	if v6 {
		return a[i:]
	}
	return a[:i]
}

// parseAddresses reads addresses, prefixes and ranges, separated by spaces, commas or lines.
func parseAddresses(texts []string) (addresses, error) {
	var all addresses
	for _, text := range texts {
		for _, word := range strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == '\n' || r == '\t' || r == '\r' || r == ',' }) {
			s, err := parseSpan(word)
			if err != nil {
				return nil, err
			}
			if len(all) >= maxAddresses {
				return nil, fmt.Errorf("more than %d addresses", maxAddresses)
			}
			all = append(all, s)
		}
	}
	return merge(all), nil
}

var errAddress = errors.New("want an address as 10.0.0.1, a prefix as 10.0.0.0/8 or a range as 10.0.0.1-10.0.0.9, of IPv4 or IPv6")

func parseSpan(text string) (span, error) {
	bad := func() (span, error) { return span{}, fmt.Errorf("%q: %w", text, errAddress) }
	good := func(a netip.Addr, err error) bool { return err == nil && a.Zone() == "" && !a.Is4In6() }
	if from, to, ok := strings.Cut(text, "-"); ok {
		first, err1 := netip.ParseAddr(from)
		last, err2 := netip.ParseAddr(to)
		if !good(first, err1) || !good(last, err2) || first.BitLen() != last.BitLen() {
			return bad()
		}
		if last.Less(first) {
			return span{}, fmt.Errorf("%q goes backwards: want %s-%s", text, last, first)
		}
		return span{first, last}, nil
	}
	if strings.Contains(text, "/") {
		p, err := netip.ParsePrefix(text)
		if err != nil || !good(p.Addr(), nil) {
			return bad()
		}
		if p.Masked() != p {
			return span{}, fmt.Errorf("%q: the address has bits behind the prefix: want %s", text, p.Masked())
		}
		last := p.Addr().AsSlice()
		for i := p.Bits(); i < p.Addr().BitLen(); i++ {
			last[i/8] |= 0x80 >> (i % 8)
		}
		to, _ := netip.AddrFromSlice(last)
		return span{p.Addr(), to}, nil
	}
	a, err := netip.ParseAddr(text)
	if !good(a, err) {
		return bad()
	}
	return span{a, a}, nil
}

// places are addresses, or sets of them by name ("@blocked"). Empty: all.
type places []string

// UnmarshalJSON takes one text, or a list of them.
func (p *places) UnmarshalJSON(raw []byte) error {
	if bytes.HasPrefix(raw, []byte(`"`)) {
		var one string
		if err := json.Unmarshal(raw, &one); err != nil {
			return err
		}
		*p = places{one}
		return nil
	}
	var list []string
	if err := json.Unmarshal(raw, &list); err != nil || len(list) == 0 {
		return fmt.Errorf("%.40s: want addresses, or names of sets as \"@office\"", raw)
	}
	*p = list
	return nil
}

// resolve them.
func (p places) resolve(sets map[string]addresses) (addresses, error) {
	var texts []string
	named := addresses{}
	for _, text := range p {
		name, ok := strings.CutPrefix(text, "@")
		if !ok {
			texts = append(texts, text)
			continue
		}
		set, there := sets[name]
		if !there {
			return nil, fmt.Errorf("%q: there is no set of this name", text)
		}
		named = append(named, set...)
	}
	own, err := parseAddresses(texts)
	switch {
	case err != nil:
		return nil, err
	case len(texts) > 0 && len(own) == 0:
		return nil, errors.New("there are no addresses in it: leave it out for all")
	case len(named) == 0:
		return own, nil
	}
	return merge(append(named, own...)), nil
}

// merge ranges that touch.
func merge(all addresses) addresses {
	slices.SortFunc(all, func(a, b span) int { return a.first.Compare(b.first) })
	out := all[:0]
	for _, s := range all {
		if n := len(out); n > 0 && s.first.BitLen() == out[n-1].last.BitLen() && (s.first.Compare(out[n-1].last) <= 0 || s.first == out[n-1].last.Next()) {
			if s.last.Compare(out[n-1].last) > 0 {
				out[n-1].last = s.last
			}
			continue
		}
		out = append(out, s)
	}
	return out
}

// address loads the source or the destination of a packet of a family into a register, if it is of that family.
func address(v6, destination bool) []expr.Any {
	if v6 {
		return append(ethertype(etherIPv6), &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: map[bool]uint32{false: 8, true: 24}[destination], Len: 16})
	}
	return append(ethertype(etherIPv4), &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: map[bool]uint32{false: 12, true: 16}[destination], Len: 4})
}
