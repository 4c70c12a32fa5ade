// Package home is where a switch is: the network namespace of the thread that opened it, an rtnetlink socket there, and the records that outlive the
// process. It makes nothing in the namespace.
package home

import (
	"log/slog"
	"os"
	"strings"

	"github.com/vishvananda/netlink"

	"weir.dev/weir/datapath/internal/hostlink"
	"weir.dev/weir/datapath/internal/record"
	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
)

// Home of a switch. Instance, Log and Store are given; Open fills in the rest.
type Home struct {
	Instance instance.Instance
	Log      *slog.Logger
	Store    record.Store
	Space    *netns.Space
	NL       *netlink.Handle // in Space
	lock     *os.File
}

// Open keeps other processes out and opens the namespace that the thread is in. Close follows, also after an error.
func (h *Home) Open() error {
	var err error
	if h.lock, err = h.Store.Lock(); err != nil {
		return err
	}
	if h.Space, err = netns.At(""); err != nil {
		return err
	}
	h.NL, err = hostlink.Handle(h.Space)
	return err
}

// Close lets go of what Open took.
func (h *Home) Close() {
	if h.NL != nil {
		h.NL.Close()
	}
	if h.Space != nil {
		h.Space.Close()
	}
	if h.lock != nil {
		h.lock.Close()
	}
}

// Made tells a link that this Weir made.
func (h *Home) Made(l netlink.Link) bool {
	return strings.HasPrefix(l.Attrs().Alias, h.Instance.Alias(""))
}
