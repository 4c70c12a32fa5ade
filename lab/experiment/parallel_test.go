package experiment

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/lab/platform"
	"weir.dev/weir/netns"
)

// seen frames by the functions of a path, in its order, at their links in.
func seen(t *testing.T, p platform.Path) (frames []uint64) {
	t.Helper()
	for _, path := range filepath.SplitList(p.Middle)[1:] {
		space, err := netns.At(path)
		if err != nil {
			t.Fatal(err)
		}
		n, err := space.Received("in")
		if err != nil {
			t.Fatal(err)
		}
		frames = append(frames, n)
		space.Close()
	}
	return frames
}

// What is sent is split among chains side by side by its source MAC: each function of each chain sees its share, on every switch that splits. Its counts have
// throughput and processor time, too.
func TestChainsSideBySideShareTheLoad(t *testing.T) {
	const chains, wires, perSecond = 3, 2, 3000.
	for _, name := range []string{"ebpf", "bare+ebpf+pcap", "bare+ovs+bridge", "ovs-chain", "bare+ovs-here+pcap", "bare+ovs-dpdk-1+bridge"} {
		t.Run(name, func(t *testing.T) {
			b := testBench(t)
			b.Images = []string{"../../bin/images"}
			l := Levels{FactorPlatform: name, factorMode: modeLoss, factorParallel: "3", factorWires: "2", factorLoad: "3000"}
			if why := ppsExperiment().Check(t.Context(), b, l); why != "" {
				t.Fatal(why)
			}
			a, err := ppsExperiment().Setup(t.Context(), b, l)
			if err != nil {
				t.Fatal(err)
			}
			path, err := a.(*flood).platform.Path(t.Context(), a.(*flood).layout)
			if err != nil {
				t.Fatal(err)
			}
			before := seen(t, path)
			if len(before) != chains*wires {
				t.Fatalf("%d functions: want %d", len(before), chains*wires)
			}
			m, err := a.Measure(t.Context(), time.Second)
			if err != nil {
				t.Fatal(err)
			}
			raw := m.Raw.(SentFrames)
			for i, n := range seen(t, path) {
				share := float64(n-before[i]) / (float64(raw.Sent) / chains)
				if share < 0.7 || share > 1.1 { // another test may take the processor, and a queue may be full
					t.Errorf("function %d of chain %d saw %.2f of its share of %d frames", i%wires, i/wires, share, raw.Sent)
				}
			}
			if m.Values["throughput"] <= 0 || m.Values["cpu"] <= 0 || raw.Check(m.Values) != nil {
				t.Errorf("%v: %v", m.Values, raw.Check(m.Values))
			}
		})
	}
}

// Levels of chains side by side that cannot be are refused with what would be right.
func TestChainsSideBySideAreChecked(t *testing.T) {
	b := &Bench{Name: "lab-0000"}
	for _, c := range []struct {
		levels Levels
		want   string
	}{
		{Levels{FactorPlatform: "bridges", factorParallel: "2"}, "does not split traffic by source MAC"},
		{Levels{FactorPlatform: "ovs-chain", factorMode: modeLoss, factorParallel: "64", factorWires: "100"}, "want 1 to 500 functions in all"},
		{Levels{FactorPlatform: "ovs-chain", factorMode: modeLoss, factorParallel: "3", factorFlows: "4"}, "want as many flows for each"},
		{Levels{FactorPlatform: "bare+ovs-dpdk-1+testpmd", factorMode: modeLoss, factorWires: "400", factorCrowding: crowdingNone}, "401 threads poll, and the sender wants a CPU, too"},
	} {
		if why := ppsExperiment().Check(t.Context(), b, c.levels); !strings.Contains(why, c.want) {
			t.Errorf("%v: %q: want %q", c.levels, why, c.want)
		}
	}
	if err := parallel().Check("65"); err == nil {
		t.Error("65 chains side by side are accepted")
	}
}
