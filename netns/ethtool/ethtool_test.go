package ethtool

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "ethtool: these tests make network namespaces: run them as root")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// inPair runs f in a new namespace of its own that has a pair of interfaces, a0 and b0. The thread ends with it.
func inPair(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread and the namespace go with the goroutine
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			attrs := netlink.NewLinkAttrs()
			attrs.Name, attrs.NumTxQueues, attrs.NumRxQueues = "a0", 2, 2
			if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "b0"}); err != nil {
				return err
			}
			return f()
		}()
	}()
	return <-done
}

func TestFeaturesAreChangedAndRead(t *testing.T) {
	err := inPair(func() error {
		for _, want := range []bool{false, true, false} {
			change := map[string]bool{"tx-udp-segmentation": want, "tx-checksum-ip-generic": want, "rx-gro": want}
			if err := Change("a0", change); err != nil {
				return err
			}
			have, err := Features("a0")
			if err != nil {
				return err
			}
			for name := range change {
				if f := have[name]; f != (Feature{Changeable: true, Active: want}) {
					t.Errorf("%s: %+v, want it active %t", name, f, want)
				}
			}
		}
		have, err := Features("b0")
		if !have["tx-checksum-ip-generic"].Active {
			t.Errorf("the other end changed, too: %+v", have["tx-checksum-ip-generic"])
		}
		if f, ok := have["netns-local"]; ok && f.Changeable {
			t.Error("a feature that never changes is changeable")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestWhatCannotBeChangedIsRefused(t *testing.T) {
	err := inPair(func() error {
		if err := Change("a0", map[string]bool{"no-such-feature": true}); err == nil {
			t.Error("a feature that the kernel does not know: no error")
		}
		if err := Change("a0", map[string]bool{"rx-all": true}); err == nil {
			t.Error("a feature that the driver lacks: no error")
		}
		if err := Change("a0", map[string]bool{"rx-all": false}); err != nil {
			t.Errorf("a feature that is off as wanted: %v", err)
		}
		for _, link := range []string{"nosuch", "a-name-of-more-than-15-bytes", ""} {
			if _, err := Features(link); !errors.Is(err, unix.ENODEV) {
				t.Errorf("features of %q: %v, want ENODEV", link, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestQueuesAreRead(t *testing.T) {
	err := inPair(func() error {
		q, err := QueuesOf("a0")
		if want := (Queues{RX: 2, TX: 2}); err == nil && q != want {
			t.Errorf("%+v, want %+v", q, want)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// grow makes the stack larger and asks at the depth where it moves.
func grow(depth int, ask func() error) error {
	var pad [256]byte
	if depth == 0 {
		return ask()
	}
	err := grow(depth-1, ask)
	runtime.KeepAlive(&pad)
	return err
}

// The kernel's answer arrives although the stack grows, and moves, in between.
func TestAnswersSurviveAStackThatGrows(t *testing.T) {
	err := inPair(func() error {
		for depth := range 200 {
			var wg sync.WaitGroup
			var err error
			wg.Go(func() { // a new goroutine has a small stack; features of the thread's namespace do not matter here
				err = grow(depth, func() error {
					have, err := Features("lo")
					if err == nil && !have["tx-scatter-gather"].Active {
						return fmt.Errorf("features of lo: %v", have)
					}
					return err
				})
			})
			wg.Wait()
			if err != nil {
				return fmt.Errorf("depth %d: %w", depth, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
