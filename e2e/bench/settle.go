package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/vishvananda/netlink"

	"weir.dev/weir/netns"
)

// settle waits until the switch has moved its programs from tc filters, which are quick to attach, to tcx links, which are quick to
// run. On a kernel without tcx that never happens: then the filters are what there is to measure.
func (w *weir) settle(b *bench) error {
	spaces := []string{w.Netns}
	dir := filepath.Join("/run/weir", w.Name, "netns")
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // no function yet
		return err
	}
	for _, e := range entries {
		spaces = append(spaces, filepath.Join(dir, e.Name()))
	}
	for deadline := time.Now().Add(30 * time.Second); ; {
		left := 0
		for _, s := range spaces {
			n, err := filters(s)
			if err != nil {
				return err
			}
			left += n
		}
		if left == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			b.Notes = append(b.Notes, fmt.Sprintf("%d programs were still tc filters, not tcx links", left))
			return nil
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-w.ctx.Done():
			return w.ctx.Err()
		}
	}
}

// filters counts the tc filters at the hooks of all links in a namespace.
func filters(space string) (n int, err error) {
	err = netns.Do(space, func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, l := range links {
			for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
				f, err := netlink.FilterList(l, parent)
				if err == nil { // a link without the qdisc has none
					n += len(f)
				}
			}
		}
		return nil
	})
	return n, err
}
