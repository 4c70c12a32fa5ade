package catalogue

import (
	"context"
	"os"
	"sync"
	"testing"

	"weir.dev/weir/e2e/rig"
)

// Those that measure a rate, or give the manager much to do, are not parallel: they run before the others, one by one.
func TestMain(m *testing.M) { os.Exit(rig.AtOnce(m, 3)) }

// links: all namespaces share the kernel's receive queues, so no test fills links while another counts datagrams.
var links sync.RWMutex

// counting does something in which no datagram may be lost, or an answer is not asked for again.
func counting(do func()) {
	links.RLock()
	defer links.RUnlock()
	do()
}

// filling does something that fills links.
func filling(do func()) {
	links.Lock()
	defer links.Unlock()
	do()
}

// stream is one TCP stream of a second from alice to bob, as fast as it may be, in bits per second.
func stream(ctx context.Context, r *rig.Rig, addr string, more ...string) (rate float64, err error) {
	filling(func() { rate, err = r.Iperf(ctx, r.Alice(), r.Bob(), addr, 5201, 1, more...) })
	return rate, err
}
