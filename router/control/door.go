package control

import (
	"fmt"
	"net"
	"sync"
	"time"
)

// Bounds of connections that are not admitted yet, and of the switches of one address.
const (
	maxOpening        = 256 // in handshake
	maxOpeningAddress = 64  // of one address
	acceptRate        = 50  // connections a second from one address
	acceptBurst       = 300
	maxRates          = 4096 // whose rates are remembered
	maxPerAddress     = 256  // uncertified switches of one address, connected or remembered
	certifiedTimes    = 4    // so many times MaxSwitches may be known if they have certificates
	maxReading        = 16   // switches whose entries are read at the same time
)

// door bounds what strangers can take before anybody knows who they are: connections in handshake, by address and in all, and how often an
// address connects. A place in the handshake is taken from the address that has most of them, so an address that fills all places loses its own.
type door struct {
	mu      sync.Mutex
	now     func() time.Time
	opening map[string][]net.Conn // by address, the oldest first
	n       int
	rates   map[string]*bucket
	reading chan struct{}
}

func newDoor(now func() time.Time) *door {
	return &door{now: now, opening: map[string][]net.Conn{}, rates: map[string]*bucket{}, reading: make(chan struct{}, maxReading)}
}

// enter takes a place for a connection's handshake. leave gives it back; it is safe to call twice.
func (d *door) enter(nc net.Conn) (leave func(), err error) {
	from := host(nc.RemoteAddr().String())
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.rate(from).take(d.now()) {
		return nil, fmt.Errorf("%s connects more than %d times a second", from, acceptRate)
	}
	if n := len(d.opening[from]); n >= maxOpeningAddress {
		return nil, fmt.Errorf("%s has %d connections that have not said who they are: more are not taken", from, n)
	}
	if d.n >= maxOpening {
		most := from
		for a, list := range d.opening {
			if len(list) > len(d.opening[most]) {
				most = a
			}
		}
		if len(d.opening[most]) == 0 {
			return nil, fmt.Errorf("%d connections have not said who they are: more are not taken", d.n)
		}
		d.opening[most][0].Close() // it leaves by itself
	}
	d.opening[from] = append(d.opening[from], nc)
	d.n++
	return sync.OnceFunc(func() { d.leave(from, nc) }), nil
}

func (d *door) leave(from string, nc net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := d.opening[from]
	for i, c := range list {
		if c == nc {
			d.opening[from] = append(list[:i:i], list[i+1:]...)
			d.n--
			break
		}
	}
	if len(d.opening[from]) == 0 {
		delete(d.opening, from)
	}
}

// rate is the bucket of an address. Full ones are forgotten when there are too many.
func (d *door) rate(from string) *bucket {
	if b := d.rates[from]; b != nil {
		return b
	}
	if len(d.rates) >= maxRates {
		now := d.now()
		for a, b := range d.rates {
			if now.Sub(b.last).Seconds()*acceptRate >= acceptBurst {
				delete(d.rates, a)
			}
		}
		if len(d.rates) >= maxRates { // from everywhere: the places in handshake bound it
			clear(d.rates)
		}
	}
	b := &bucket{rate: acceptRate, burst: acceptBurst}
	d.rates[from] = b
	return b
}
