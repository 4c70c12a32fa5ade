package ebpf

import (
	"context"
	"flag"
	"os"
	"testing"

	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/suite"
	"weir.dev/weir/instance"
)

// atOnce is how many tests run at the same time, if nobody says otherwise (-parallel): they wait for the kernel more than they work, and none
// sends more frames than it has received but a few.
const atOnce = "3"

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", atOnce); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func factory(hook string) suite.Factory {
	return func(i instance.Instance) (datapath.Switch, error) {
		return Open(context.Background(), Options{Instance: i, Hook: hook})
	}
}

func TestConformance(t *testing.T) {
	for _, hook := range []string{HookAuto, HookClsact, HookTCX} {
		t.Run(hook, func(t *testing.T) {
			t.Parallel()
			suite.Run(t, factory(hook))
		})
	}
}
