package bpf

import (
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// wired is the program between links, and what holds it.
type wired struct {
	objects WireObjects
	hooks   []link.Link
}

// AttachWire makes links of the thread's network namespace hand each frame on to one another until it is closed: their indexes differ in the last bit only.
func AttachWire(links ...string) (io.Closer, error) {
	w := &wired{}
	if err := LoadWireObjects(&w.objects, nil); err != nil {
		return nil, fmt.Errorf("load the wire: %w", err)
	}
	for _, name := range links {
		i, err := net.InterfaceByName(name)
		var hook link.Link
		if err == nil {
			hook, err = link.AttachTCX(link.TCXOptions{Interface: i.Index, Program: w.objects.Wire, Attach: ebpf.AttachTCXIngress})
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("attach the wire to %s: %w", name, err), w.Close())
		}
		w.hooks = append(w.hooks, hook)
	}
	return w, nil
}

func (w *wired) Close() error {
	errs := []error{w.objects.Close()}
	for _, hook := range w.hooks {
		errs = append(errs, hook.Close())
	}
	return errors.Join(errs...)
}
