package experiment

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"weir.dev/weir/cpuset"
)

// Pairs sit where the levels say, in turns, and what a machine lacks is told.
func TestSeats(t *testing.T) {
	have, err := cpuset.Allowed()
	if err != nil || len(have) == 0 {
		t.Fatal(have, err)
	}
	levels := func(pairs, cores, pinning string) Levels {
		return Levels{factorPairs: pairs, factorCores: cores, factorPinning: pinning}
	}
	got, why := seats(levels("3", coresAll, pinNone))
	if why != "" || len(got) != 3 || slices.ContainsFunc(got, func(s seat) bool { return s.client != nil || s.server != nil }) {
		t.Errorf("wherever they come to run: %v, %s", got, why)
	}
	got, why = seats(levels("2", "1", pinNone))
	if why != "" || !slices.Equal(got[1].client, have[:1]) || !slices.Equal(got[1].server, have[:1]) {
		t.Errorf("one processor for all: %v, %s", got, why)
	}
	got, why = seats(levels("5", coresAll, pinSame))
	counts := map[int]int{}
	for _, s := range got {
		if len(s.client) != 1 || !slices.Equal(s.client, s.server) {
			t.Errorf("the same processor: %v", s)
			continue
		}
		counts[s.client[0]]++
	}
	if why != "" || len(counts) != min(5, len(have)) {
		t.Errorf("the same processor: %v, %s", counts, why)
	}
	if len(have) > 1 {
		got, why = seats(levels("5", coresAll, pinDifferent))
		if why != "" || slices.ContainsFunc(got, func(s seat) bool { return slices.Equal(s.client, s.server) }) {
			t.Errorf("different processors: %v, %s", got, why)
		}
	}
	if _, why = seats(levels("5", "1", pinDifferent)); !strings.Contains(why, "need two") {
		t.Errorf("different processors of one: %s", why)
	}
	if _, why = seats(levels("5", strconv.Itoa(len(have)+1), pinNone)); !strings.Contains(why, "this machine has "+strconv.Itoa(len(have))) {
		t.Errorf("one more than there are: %s", why)
	}
}

func TestFasterHalf(t *testing.T) {
	for name, c := range map[string]struct {
		rates, resent []float64
		want          float64
		ok            bool
	}{
		"all by the faster":       {[]float64{1, 4, 2, 3}, []float64{0, 5, 0, 5}, 1, true},
		"all by the slower":       {[]float64{1, 4, 2, 3}, []float64{5, 0, 5, 0}, 0, true},
		"the middle counts not":   {[]float64{1, 5, 2, 3, 4}, []float64{1, 3, 0, 100, 0}, 0.75, true},
		"nobody sends again":      {[]float64{1, 2, 3, 4}, make([]float64, 4), 0, false},
		"too few to have a half":  {[]float64{1, 2, 3}, []float64{1, 2, 3}, 0, false},
		"equal rates are in turn": {[]float64{1, 1, 1, 1}, []float64{2, 2, 2, 2}, 0.5, true},
	} {
		if got, ok := FasterHalf(c.rates, c.resent); got != c.want || ok != c.ok {
			t.Errorf("%s: %v, %t: want %v, %t", name, got, ok, c.want, c.ok)
		}
	}
}

// A trial of flows has whole rounds, and as many as it takes.
func TestMixOfPairs(t *testing.T) {
	for _, c := range []struct {
		pairs, transfers string
		rounds           int
	}{{"10", "1", 1}, {"10", "10", 1}, {"10", "11", 2}, {"50", "1000", 20}, {"10", "1000", 100}} {
		m := pairsMix(Levels{factorPairs: c.pairs, factorTransfers: c.transfers})
		if m.Rounds != c.rounds || strconv.Itoa(m.Clients) != c.pairs {
			t.Errorf("%+v: %+v", c, m)
		}
	}
	if why := checkFCTPairs(Levels{factorPairs: "400"}); !strings.Contains(why, "want at most") {
		t.Errorf("too many pairs: %s", why)
	}
}

// What is wrong with a level is told by the factor, what this machine lacks by the experiment.
func TestPairsSayWhatIsWrong(t *testing.T) {
	b := &Bench{Name: "lab-0000"}
	for name, c := range map[string]struct {
		l    Levels
		want string
	}{
		"no number":    {Levels{}, "how many pairs"},
		"too few CPUs": {Levels{factorPairs: "1", factorCores: "8000"}, "this machine has"},
		"no runtime":   {Levels{factorPairs: "1", factorRuntime: "dokcer"}, `did you mean "docker"`},
		"no network":   {Levels{factorPairs: "1", factorRuntime: "bare", FactorNetwork: "briddge"}, `did you mean "bridge"`},
		"a control":    {Levels{factorPairs: "1", factorRuntime: "bare", factorCongestion: "nosuch"}, "this kernel has only"},
		"too long":     {Levels{factorPairs: "1", factorRuntime: "bare", factorTool: toolSockperf, factorMessage: "100000"}, "want at most 65507"},
	} {
		if why := tcpPairs().Check(t.Context(), b, c.l); !strings.Contains(why, c.want) {
			t.Errorf("%s: %q: want %q", name, why, c.want)
		}
	}
	huge := tcpPairs().(*pairs)
	huge.memory = 1 << 50
	if why := huge.Check(t.Context(), b, Levels{factorPairs: "2", factorRuntime: "bare"}); !strings.Contains(why, "MiB are available") {
		t.Errorf("too little memory: %q", why)
	}
}
