package sandbox

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"

	"weir.dev/weir/api"
	"weir.dev/weir/image"
	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
)

// Cannot tells errors with which kernel or file system say that functions can have no user namespaces here. With any other error it is not known.
func Cannot(err error) bool {
	return errors.Is(err, netns.ErrNoUserns) || errors.Is(err, image.ErrNoShift)
}

// onceKnown remembers what check has found out, and asks again until it has.
func onceKnown(check func() error) func() error {
	var mu sync.Mutex
	var known bool
	var answer error
	return func() error {
		mu.Lock()
		defer mu.Unlock()
		if known {
			return answer
		}
		err := check()
		if known = err == nil || Cannot(err); known {
			answer = err
		}
		return err
	}
}

// check tries whether sandboxes of the instance can have user namespaces; nil: they can.
func (m *Maker) check() (err error) {
	if err := m.makeDir(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(m.Dir(), "try_")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Remove(context.Background(), dir)) }()
	path := filepath.Join(dir, "user")
	if err := m.kernel.CreateOwned(path, filepath.Join(dir, "net"), netns.OwnIDs(netns.FirstID)); err != nil {
		return err
	}
	user, err := os.Open(path)
	if err != nil {
		return err
	}
	defer user.Close()
	return m.images.CheckShift(user)
}

// Check tells whether functions of an instance would have user namespaces of their own. It works in a directory of its own on the file system of
// the instance's state, which it removes; the instance need not be there.
func Check(i instance.Instance, k Kernel, images func(instance.Instance) Images) (f api.Feature, err error) {
	there := i.Root
	for _, err := os.Stat(there); err != nil && there != "/"; _, err = os.Stat(there) {
		there = filepath.Dir(there)
	}
	if i.Root, err = os.MkdirTemp(there, ".weir-check-"); err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(i.Root)) }()
	i.Run = filepath.Join(i.Root, "run")
	return Feature(New(i, k, images(i)).Unshared()), nil
}

// Feature is what a host says of its functions' user namespaces; nil: they have them.
func Feature(unshared error) api.Feature {
	f := api.Feature{Name: "user namespaces", OK: true, Detail: "each function has one of its own; root in a function is nobody on this host"}
	switch {
	case unshared != nil && !Cannot(unshared):
		f.OK, f.Detail = false, "not known, so no function starts: "+unshared.Error()
	case unshared != nil:
		f.OK, f.Detail = false, "functions run as root of this host, and get no capability that their spec does not allow: "+unshared.Error()
	}
	return f
}
