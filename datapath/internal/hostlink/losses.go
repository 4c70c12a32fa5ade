package hostlink

// Losses adds up what ports' links could not send, over links that are replaced. The zero value is ready.
type Losses struct{ ports map[string]losses }

type losses struct {
	link             int
	begin, last, sum uint64
}

// Total is what a port's link has lost, which tells now. own: the link was made for the port; what another one had lost before is left out.
func (l *Losses) Total(port string, link int, own bool, now uint64) uint64 {
	if l.ports == nil {
		l.ports = map[string]losses{}
	}
	p, known := l.ports[port]
	if !known || p.link != link || now < p.last {
		p = losses{link: link, sum: p.sum + p.last - p.begin}
		if !own {
			p.begin = now
		}
	}
	p.last = now
	l.ports[port] = p
	return p.sum + p.last - p.begin
}

// Keep forgets the ports that there are no more.
func (l *Losses) Keep(there func(port string) bool) {
	for port := range l.ports {
		if !there(port) {
			delete(l.ports, port)
		}
	}
}
