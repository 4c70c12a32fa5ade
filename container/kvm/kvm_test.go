package kvm

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
	kit "weir.dev/weir/container/kernel/suite"
	"weir.dev/weir/container/suite"
	"weir.dev/weir/instance"
)

// testKernel is the one that peers.sh unpacks.
const testKernel = "../../build/vm/kern/boot/vmlinuz-*-cloud-amd64"

func sh(script string) []string { return []string{"/bin/sh", "-c", script} }

var waiting = sh("trap 'exit 0' TERM; while :; do sleep 1000 & wait; done")

// found is what the trial of the first test has found: it is the same for all.
var found atomic.Pointer[shape]

func open(t testing.TB, inst instance.Instance) *Runtime {
	t.Helper()
	r, err := New(context.Background(), inst, Options{Options: kernel.Options{Adopt: true}, Kernel: testKernel})
	if err != nil {
		t.Fatal(err)
	}
	r.engine.shape = found.Load()
	t.Cleanup(func() {
		r.engine.making.Lock()
		defer r.engine.making.Unlock()
		found.Store(r.engine.shape)
	})
	return r
}

// fresh opens a runtime whose instance is destroyed at the end.
func fresh(t testing.TB) (*Runtime, container.Spec) {
	t.Helper()
	r := open(t, kit.NewInstance(t))
	t.Cleanup(func() {
		if err := r.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
		r.Close()
	})
	return r, container.Spec{Rootfs: kit.Rootfs(t), ReadOnly: true}
}

func TestConformance(t *testing.T) {
	suite.Run(t, func(t *testing.T) suite.Driver {
		r, spec := fresh(t)
		return suite.Driver{
			Runtime: r, Spec: spec,
			Wait:     waiting,
			Stubborn: sh("trap '' TERM; while :; do sleep 1000; done"),
			Exit:     func(code int) []string { return sh("exit " + strconv.Itoa(code)) },
			Print: func(text string) []string {
				return sh("echo " + text + "; trap 'exit 0' TERM; while :; do sleep 1000 & wait; done")
			},
			Cat: []string{"cat"}, ExitCodes: true,
		}
	})
}
