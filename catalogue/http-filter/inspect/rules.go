package inspect

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"

	"golang.org/x/net/idna"
)

// Action of a rule.
type Action string

// Actions.
const (
	Forbid Action = "403"   // a page for the client where HTTP allows it now, else as Reset
	Reset  Action = "reset" // both ends
	Alert  Action = "alert" // an event; the traffic passes
)

// UnmarshalJSON takes 403 as a number, too: so it stands in YAML without quotes.
func (a *Action) UnmarshalJSON(b []byte) error {
	if string(b) == string(Forbid) {
		*a = Forbid
		return nil
	}
	return json.Unmarshal(b, (*string)(a))
}

// Rule forbids what meets all of its conditions.
type Rule struct {
	Name      string   `json:"name"`
	Hosts     []string `json:"hosts"`
	Paths     []string `json:"paths"`
	Methods   []string `json:"methods"`
	Words     []string `json:"words"`
	Direction string   `json:"direction"` // where words are looked for: request, response, or both (default)
	Action    Action   `json:"action"`    // default 403
	Page      string   `json:"page"`      // text of the page

	exact, below map[string]bool // hosts: names, and those whose subdomains count
	all          bool
	globs        []glob // of Paths
}

// Limits of rules. A page and its header fit into one packet of IPv6's least MTU.
const (
	maxRules   = 1000
	maxEntries = 1000 // of one list
	maxHosts   = 10_000
	maxTarget  = 16 << 10 // bytes of a request's address
	maxPage    = 900

	maxNamed  = 8    // hosts that a request names
	maxName   = 1024 // bytes of one, as sent: names in Unicode cost their square
	maxMethod = 128  // bytes of a request's method
)

// Policy is rules, ready to judge. It is never changed.
type Policy struct {
	Options
	rules       []Rule
	words       *words
	inRequests  set // rules with words to look for there
	inResponses set
	named       bool // a rule forbids hosts in TLS
	hosts       Rule // the hosts of all rules
	asks        bool // a rule has a path with a query
}

// Options of a policy.
type Options struct {
	NoName      Action    // TLS without a server's name, where a rule forbids hosts: Reset, or "" to pass it
	Encrypted   Action    // TLS with an encrypted name: Reset, or "" to judge the outer name
	Unknown     Action    // neither HTTP nor TLS: Reset, or ""
	Undecodable Action    // content that cannot be decoded, where words are looked for: Reset, or ""
	MaxHeader   int       // bytes of a message's header
	MaxInflated int       // bytes that one message's content may have when decoded
	Alert       func(Hit) // called for rules of the action Alert
}

// NewPolicy checks rules.
func NewPolicy(rules []Rule, o Options) (*Policy, error) {
	if len(rules) > maxRules {
		return nil, fmt.Errorf("rules: %d, more than %d", len(rules), maxRules)
	}
	if o.MaxHeader == 0 {
		o.MaxHeader = 64 << 10
	}
	if o.MaxInflated == 0 {
		o.MaxInflated = 16 << 20
	}
	p := &Policy{Options: o, rules: slices.Clone(rules), hosts: Rule{exact: map[string]bool{}, below: map[string]bool{}}}
	list := map[int][]string{}
	names := map[string]bool{}
	for i := range p.rules {
		r := &p.rules[i]
		if err := r.check(); err != nil {
			return nil, fmt.Errorf("rules[%d] %q: %w", i, r.Name, err)
		}
		if names[r.Name] {
			return nil, fmt.Errorf("rules[%d]: a second rule %q", i, r.Name)
		}
		names[r.Name] = true
		if len(r.Words) > 0 {
			list[i] = r.Words
			if r.Direction != "response" {
				p.inRequests = p.inRequests.with(i)
			}
			if r.Direction != "request" {
				p.inResponses = p.inResponses.with(i)
			}
		}
		p.named = p.named || r.onlyHosts()
		maps.Copy(p.hosts.exact, r.exact)
		maps.Copy(p.hosts.below, r.below)
		p.hosts.all = p.hosts.all || r.all
		p.asks = p.asks || slices.ContainsFunc(r.globs, func(g glob) bool { return g.asks })
	}
	var err error
	p.words, err = newWords(list)
	return p, err
}

// NamesHosts tells whether a rule forbids hosts whatever is asked of them, so that their names count in TLS, too.
func (p *Policy) NamesHosts() bool { return p.named }

func (r *Rule) onlyHosts() bool {
	return len(r.Hosts) > 0 && len(r.Paths)+len(r.Methods)+len(r.Words) == 0
}

func (r *Rule) check() error {
	if r.Name == "" || len(r.Name) > 64 {
		return fmt.Errorf("name: want 1 to 64 bytes")
	}
	if len(r.Hosts)+len(r.Paths)+len(r.Methods)+len(r.Words) == 0 {
		return fmt.Errorf("want at least one of hosts, paths, methods, words")
	}
	for name, l := range map[string][]string{"hosts": r.Hosts, "paths": r.Paths, "methods": r.Methods, "words": r.Words} {
		most := maxEntries
		if name == "hosts" {
			most = maxHosts
		}
		if len(l) > most {
			return fmt.Errorf("%s: %d, more than %d", name, len(l), most)
		}
		for _, e := range l {
			if e == "" || len(e) > 256 || strings.Contains(e, "\x00") {
				return fmt.Errorf("%s: %q: want 1 to 256 bytes, none of them zero", name, e)
			}
		}
	}
	r.Paths, r.Methods = slices.Clone(r.Paths), slices.Clone(r.Methods)
	r.exact, r.below = map[string]bool{}, map[string]bool{}
	for _, h := range r.Hosts {
		name, wild := strings.CutPrefix(h, "*.")
		host := normalHost(name)
		if _, err := netip.ParseAddr(host); err != nil && strings.ContainsAny(name, "/:@") { // else "http://x" would be the host "http"
			return fmt.Errorf("hosts: %q: want a name, *.name (names below it), an address, or *, without scheme, port and path", h)
		}
		if strings.Contains(host, "*") && host != "*" {
			return fmt.Errorf("hosts: %q: * stands only at the begin, as in *.example.com", h)
		}
		if ascii, err := idna.Lookup.ToASCII(host); err == nil {
			host = ascii
		} else if _, err := netip.ParseAddr(host); err != nil && host != "*" {
			return fmt.Errorf("hosts: %q: want a name, *.name (names below it), an address, or *", h)
		}
		switch {
		case host == "*":
			r.all = true
		case wild:
			r.below[host] = true
		default:
			r.exact[host] = true
		}
	}
	for i, p := range r.Paths {
		if !strings.HasPrefix(p, "/") && !strings.HasPrefix(p, "*") {
			return fmt.Errorf("paths: %q: want / or * at the begin", p)
		}
		r.Paths[i] = strings.ToLower(p)
		r.globs = append(r.globs, newGlob(r.Paths[i]))
	}
	for i, m := range r.Methods {
		r.Methods[i] = strings.ToUpper(m)
	}
	switch r.Direction {
	case "":
		r.Direction = "both"
	case "both", "request", "response":
	default:
		return fmt.Errorf("direction %q: want request, response or both", r.Direction)
	}
	switch r.Action {
	case "":
		r.Action = Forbid
	case Forbid, Reset, Alert:
	default:
		return fmt.Errorf("action %q: want 403, reset or alert", r.Action)
	}
	if len(r.Page) > maxPage {
		return fmt.Errorf("page: %d bytes, more than %d", len(r.Page), maxPage)
	}
	return nil
}

// normalHost is a host as it is compared: lower case, without user, port and final dot.
func normalHost(h string) string {
	h = strings.Trim(h, " \t")
	if i := strings.LastIndexByte(h, '@'); i >= 0 {
		h = h[i+1:]
	}
	if strings.Contains(h, "%") {
		h = string((&unescape{}).add(nil, []byte(h)))
	}
	if rest, ok := strings.CutPrefix(h, "["); ok {
		h, _, _ = strings.Cut(rest, "]")
	} else if _, err := netip.ParseAddr(h); err != nil {
		h, _, _ = strings.Cut(h, ":")
	}
	h = strings.TrimRight(strings.ToLower(h), ".")
	if a, err := netip.ParseAddr(h); err == nil {
		return a.Unmap().String()
	}
	for i := range len(h) {
		if h[i] >= 0x80 {
			if ascii, err := idna.Lookup.ToASCII(h); err == nil {
				return ascii
			}
			break
		}
	}
	return h
}

// named hosts of a request, as they are compared.
func named(raw []string) ([]string, error) {
	if len(raw) > maxNamed {
		return nil, malformed("more than %d hosts", maxNamed)
	}
	hosts := make([]string, len(raw))
	for i, h := range raw {
		if len(h) > maxName {
			return nil, malformed("host of more than %d bytes", maxName)
		}
		hosts[i] = normalHost(h)
	}
	return hosts, nil
}

func (r *Rule) hostFits(host string) bool {
	if r.all || r.exact[host] {
		return true
	}
	for ok := len(r.below) > 0; ok; {
		if _, host, ok = strings.Cut(host, "."); ok && r.below[host] {
			return true
		}
	}
	return false
}

// glob is a pattern in which * stands for any bytes.
type glob struct {
	head, rest string // before and behind the first *
	star       bool   // there is one
	asks       bool   // it is compared with the query, too
}

func newGlob(pattern string) glob {
	head, rest, star := strings.Cut(pattern, "*")
	return glob{head, rest, star, strings.Contains(pattern, "?")}
}

func (g *glob) fits(s string) bool {
	if !strings.HasPrefix(s, g.head) {
		return false
	}
	s = s[len(g.head):]
	if !g.star {
		return s == ""
	}
	for rest := g.rest; ; {
		part, more, star := strings.Cut(rest, "*")
		rest = more
		if !star {
			return strings.HasSuffix(s, part)
		}
		i := strings.Index(s, part)
		if i < 0 {
			return false
		}
		s = s[i+len(part):]
	}
}

// request is what rules see of a request.
type request struct {
	method string
	hosts  []string // as compared: all that it names
	named  bool     // one of them is among those of the rules
	target string   // path and query as sent
	views  []string // of the path, as a server may read it
	asked  []string // the same with the query, where a rule has one
}

// read makes the views of the target: escapes read once and twice, backslashes, empty and dotted segments and parameters as servers read them.
func (r *request) read(asks bool) {
	p, query, _ := strings.Cut(r.target, "?")
	if isPlain(p) {
		r.views = append(r.views, p)
	} else {
		r.readPath(p)
	}
	if asks {
		query = strings.ToLower(string((&unescape{}).add(nil, []byte(query))))
		for _, v := range r.views {
			r.asked = append(r.asked, v+"?"+query)
		}
	}
}

// isPlain tells whether all servers read a path alike, and as it is.
func isPlain(p string) bool {
	if p == "" || p[0] != '/' {
		return false
	}
	for i := range len(p) {
		switch b := p[i]; {
		case 'a' <= b && b <= 'z', '0' <= b && b <= '9', b == '-', b == '_', b == '~':
		case b == '/':
			if i > 0 && p[i-1] == '/' {
				return false
			}
		case b == '.':
			if p[i-1] == '/' {
				return false
			}
		default:
			return false
		}
	}
	return true
}

func (r *request) readPath(p string) {
	p, _, _ = strings.Cut(p, "#")
	raw := []byte(strings.ReplaceAll(p, "+", "%2b"))
	for range 2 {
		raw = (&unescape{}).add(nil, raw)
		v := strings.ToLower(strings.ReplaceAll(string(raw), `\`, "/"))
		r.view(v)
		if cut := segments(v); cut != v {
			r.view(cut)
		}
		if i := strings.IndexByte(v, 0); i >= 0 {
			r.view(v[:i])
		}
		raw = []byte(strings.ReplaceAll(string(raw), "+", "%2b"))
	}
}

func (r *request) view(v string) {
	clean := path.Clean("/" + v)
	if strings.HasSuffix(v, "/") && clean != "/" {
		clean += "/"
	}
	if !slices.Contains(r.views, clean) {
		r.views = append(r.views, clean)
	}
}

// segments of a path without their parameters (;...).
func segments(p string) string {
	if !strings.Contains(p, ";") {
		return p
	}
	parts := strings.Split(p, "/")
	for i := range parts {
		parts[i], _, _ = strings.Cut(parts[i], ";")
	}
	return strings.Join(parts, "/")
}

// conditions tells whether a request meets all of a rule but its words.
func (r *Rule) conditions(q *request) bool {
	if len(r.Methods) > 0 && !slices.Contains(r.Methods, strings.ToUpper(q.method)) {
		return false
	}
	if len(r.Hosts) > 0 && (!q.named || !slices.ContainsFunc(q.hosts, r.hostFits)) {
		return false
	}
	for i := range r.globs {
		g := &r.globs[i]
		views := q.views
		if g.asks {
			views = q.asked
		}
		if slices.ContainsFunc(views, g.fits) {
			return true
		}
	}
	return len(r.globs) == 0
}

// Hit is what a rule met.
type Hit struct {
	Rule   string // its name; "" for what is no rule's
	Why    string // a word, where it was, or what cannot be read
	Method string
	Host   string
	Path   string
}

// Block ends a connection.
type Block struct {
	Hit
	Page []byte // bytes to send to the client after what the server has sent; nil: reset both ends
	Full bool   // memory is full: nothing was found
}

func (b *Block) Error() string { return b.Why }

// judge a request. It returns the rules with words whose other conditions it meets.
func (p *Policy) judge(q *request) (requests, responses set, hit *Rule, h Hit) {
	q.read(p.asks)
	q.named = slices.ContainsFunc(q.hosts, p.hosts.hostFits)
	h = q.hit()
	for i := range p.rules {
		r := &p.rules[i]
		if len(r.Words) > 0 || !r.conditions(q) {
			continue
		}
		h.Rule, h.Why = r.Name, "request"
		if r.Action != Alert {
			return nil, nil, r, h
		}
		p.alert(h)
	}
	h.Rule, h.Why = "", ""
	requests, responses = p.fitting(p.inRequests, q), p.fitting(p.inResponses, q)
	if requests != nil {
		said := p.inTarget(q)
		for i := range p.rules {
			r := &p.rules[i]
			if !requests.has(i) || !said.has(i) {
				continue
			}
			h.Rule, h.Why = r.Name, "word in the address"
			if r.Action != Alert {
				return nil, nil, r, h
			}
			p.alert(h)
		}
	}
	h.Rule, h.Why = "", ""
	return requests, responses, nil, h
}

// hit keeps of a request what names it.
func (r *request) hit() Hit {
	host := ""
	if len(r.hosts) > 0 {
		host = r.hosts[0]
	}
	method, host, target := r.method[:min(len(r.method), maxKept)], host[:min(len(host), maxKept)], r.target[:min(len(r.target), maxKept)]
	all := method + host + target
	m, n := len(method), len(method)+len(host)
	return Hit{Method: all[:m], Host: all[m:n], Path: all[n:]}
}

const maxKept = 128 // bytes of each

// short is a text to keep.
func short(s string) string { return strings.Clone(s[:min(len(s), maxKept)]) }

func (p *Policy) alert(h Hit) {
	if p.Alert != nil {
		p.Alert(h)
	}
}

// fitting rules of a set: those whose other conditions a request meets. nil: none.
func (p *Policy) fitting(of set, q *request) (fit set) {
	for i := range p.rules {
		if of.has(i) && p.rules[i].conditions(q) {
			fit = fit.with(i)
		}
	}
	return fit
}

// inTarget gives the rules with words in a request's address.
func (p *Policy) inTarget(q *request) (said set) {
	texts := append([]string{q.target, string((&unescape{}).add(nil, []byte(q.target)))}, append(q.views, q.hosts...)...)
	for _, text := range texts {
		p.words.scan(0, []byte(text), func(rules []int) bool {
			for _, i := range rules {
				said = said.with(i)
			}
			return true
		})
	}
	return said
}

// set of rules, by their numbers. nil is the empty one.
type set []uint64

func (s set) has(i int) bool { return i/64 < len(s) && s[i/64]>>(i%64)&1 == 1 }

func (s set) with(i int) set {
	for len(s) <= i/64 {
		s = append(s, 0)
	}
	s[i/64] |= 1 << (i % 64)
	return s
}

func (s set) without(i int) set {
	s = slices.Clone(s)
	s[i/64] &^= 1 << (i % 64)
	return s
}

// judgeName of a TLS server: rules of hosts alone, and words that are in the name.
func (p *Policy) judgeName(host string) (*Rule, Hit) {
	q := request{hosts: []string{normalHost(host)}}
	q.named = slices.ContainsFunc(q.hosts, p.hosts.hostFits)
	said := p.inTarget(&q)
	for i := range p.rules {
		r := &p.rules[i]
		named := r.onlyHosts() || len(r.Paths)+len(r.Methods) == 0 && p.inRequests.has(i) && said.has(i)
		if !named || !r.conditions(&q) {
			continue
		}
		h := Hit{Rule: r.Name, Why: "TLS server name", Host: short(q.hosts[0])}
		if r.Action != Alert {
			return r, h
		}
		p.alert(h)
	}
	return nil, Hit{}
}
