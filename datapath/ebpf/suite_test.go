package ebpf

import (
	"context"
	"testing"

	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/suite"
	"weir.dev/weir/instance"
)

func factory(hook string) suite.Factory {
	return func(i instance.Instance) (datapath.Switch, error) {
		return Open(context.Background(), Options{Instance: i, Hook: hook})
	}
}

func TestConformance(t *testing.T) {
	for _, hook := range []string{HookAuto, HookClsact, HookTCX} {
		t.Run(hook, func(t *testing.T) { suite.Run(t, factory(hook)) })
	}
}
