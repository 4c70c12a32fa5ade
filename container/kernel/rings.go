package kernel

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"weir.dev/weir/bpf/rings"
	"weir.dev/weir/container"
)

// sweepEvery is how often it is found out which rings and sockets are gone.
const sweepEvery = time.Second

// ringBound bounds what each of an engine's containers takes by rings and queues of sockets, of which cgroups know nothing. It hangs at the group of version 2 above theirs.
type ringBound struct {
	most int64 // bytes; 0: no limit

	mu      sync.Mutex
	at      *rings.Bound
	missing string            // why there is none
	unseen  string            // why it is for rings and long queues only
	stop    chan struct{}     // ends who sweeps
	refused map[string]uint64 // by container, how often
}

// boundRings sees to it that the bound is in force before a container starts. What cannot be done is a word in a container's limits.
func (h *Home) boundRings() {
	b := &h.rings
	if b.most == 0 || h.machine != nil { // a machine's rings are its own memory
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	t, ok := h.unified()
	if !ok {
		b.missing = errNotUnified.Error()
		return
	}
	dir := t.dir(h.CgroupPath(""))
	if b.at != nil && b.at.At(dir) {
		return
	}
	b.close()
	err := t.make(h.CgroupPath(""))
	if err == nil {
		b.at, err = rings.Attach(dir, h.pins(), uint64(b.most))
	}
	b.missing, b.unseen = "", ""
	if err != nil {
		b.missing = err.Error()
		return
	}
	if err := b.at.Unseen(); err != nil {
		b.unseen = err.Error()
	}
	b.stop = make(chan struct{})
	go h.sweepRings(b.at, b.stop)
}

// adoptRings takes over the bound of a former process, or lets it go if there is to be none.
func (h *Home) adoptRings() error {
	t, ok := h.unified()
	if !ok || h.machine != nil {
		return nil
	}
	if h.rings.most == 0 {
		return h.unboundRings()
	}
	if _, err := os.Lstat(t.dir(h.CgroupPath(""))); err == nil {
		h.boundRings()
	}
	return nil
}

// unboundRings takes the bound away.
func (h *Home) unboundRings() error {
	t, ok := h.unified()
	if !ok {
		return nil
	}
	return rings.Detach(t.dir(h.CgroupPath("")), h.pins())
}

// pins is where the programs are pinned that see sockets.
func (h *Home) pins() string { return filepath.Join(h.Dir(), "bpf") }

var errNotUnified = errors.New("this host has no cgroups of version 2 (mount -t cgroup2 none /sys/fs/cgroup/unified)")

// CheckRings tells why this host cannot bound what containers take by rings of sockets; nil: it can.
func CheckRings() error {
	all, err := findHierarchies()
	if err != nil {
		return err
	}
	if _, ok := (&Home{cgroups: all}).unified(); !ok {
		return errNotUnified
	}
	return rings.Supported()
}

// CheckSockets tells why this host sees no sockets when containers make them, where CheckRings finds nothing; nil: it does.
func CheckSockets() error { return rings.Seen() }

// unified is the hierarchy of version 2.
func (h *Home) unified() (hierarchy, bool) {
	for _, t := range h.cgroups {
		if t.v2 {
			return t, true
		}
	}
	return hierarchy{}, false
}

// ringsOf says in a container's limits whether its process is where the bound is in force.
func (h *Home) ringsOf(l *container.Limits, pid int) {
	b := &h.rings
	if b.most == 0 || h.machine != nil {
		return
	}
	b.mu.Lock()
	missing, unseen := b.missing, b.unseen
	b.mu.Unlock()
	if missing == "" {
		missing = h.outside(pid)
	}
	switch {
	case missing != "":
		l.Missing = strings.TrimPrefix(l.Missing+"; "+ringsMissing+missing, "; ")
		return
	case unseen != "":
		l.Missing = strings.TrimPrefix(l.Missing+"; "+socketsMissing+unseen, "; ")
	}
	l.Rings = b.most
}

// The last words of what limits miss.
const (
	ringsMissing   = "rings: "
	socketsMissing = "sockets: " // their queues of the usual length
)

// adoptedRings is ringsOf for a process that another daemon has started, maybe with another limit or with none.
func (h *Home) adoptedRings(l *container.Limits, pid int) {
	l.Rings = 0
	for _, word := range []string{ringsMissing, socketsMissing} { // see ringsOf
		if at := strings.Index(l.Missing, word); at >= 0 {
			l.Missing = strings.TrimSuffix(l.Missing[:at], "; ")
		}
	}
	h.ringsOf(l, pid)
}

// outside says of a process that it is in no group of version 2 of this engine's; "": it is, or has ended.
func (h *Home) outside(pid int) string {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return ""
	}
	for _, g := range groupsIn(string(raw), h.cgroups) {
		if g.v2 && strings.HasPrefix(g.dir, g.hierarchy.dir(h.CgroupPath(""))+"/") {
			return ""
		}
	}
	return fmt.Sprintf("process %d is in no group of version 2 below %s", pid, h.CgroupPath(""))
}

// sweepRings finds out from time to time which rings and sockets are gone, until the bound is closed.
func (h *Home) sweepRings(at *rings.Bound, stop chan struct{}) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-stop:
			return
		}
		groups, err := at.Sweep()
		if err != nil && groups == nil {
			continue
		}
		now := map[string]uint64{}
		for _, g := range groups {
			now[strings.TrimPrefix(g.Name, monitorMark)] += g.Refused
		}
		h.rings.mu.Lock()
		h.rings.refused = now
		h.rings.mu.Unlock()
	}
}

// ringsRefused is how often a container was refused rings.
func (h *Home) ringsRefused(id string) uint64 {
	h.rings.mu.Lock()
	defer h.rings.mu.Unlock()
	return h.rings.refused[id]
}

// close is called with b.mu held.
func (b *ringBound) close() {
	if b.at != nil {
		close(b.stop)
		b.at.Close()
		b.at = nil
	}
}
