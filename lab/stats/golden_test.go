package stats

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
)

// golden is what testdata/golden.py prints: the same quantities by numpy and scipy.
type golden struct {
	Skewed    []float64          `json:"skewed"`
	BCaMean   [2]float64         `json:"bca_mean"`
	BCaMedian [2]float64         `json:"bca_median"`
	Quantiles map[string]float64 `json:"quantiles"`
	CV        float64            `json:"cv"`
	Medians   []struct {
		X        []float64
		Level    float64
		Interval [2]float64
		P        float64
	} `json:"medians"`
	Line struct {
		X, Y []float64
		A, B float64
	} `json:"line"`
	Shapes []struct {
		Law                   string
		X                     []float64
		Series                [][]float64
		Errors                map[string]float64
		Noise                 float64
		Misfit                [2]float64
		Behind                map[string][2]float64
		Exponent, Slope, Gain [3]float64 // with their intervals
	}
}

func readGolden(t *testing.T) golden {
	t.Helper()
	b, err := os.ReadFile("testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var g golden
	if err := json.Unmarshal(b, &g); err != nil {
		t.Fatal(err)
	}
	return g
}

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if !(math.Abs(got-want) <= tolerance) {
		t.Errorf("%s: got %v, want %v within %v", what, got, want, tolerance)
	}
}

func TestSameAsScipy(t *testing.T) {
	g := readGolden(t)
	rng := rand.New(rand.NewPCG(1, 2))
	mean := BCa(g.Skewed, Mean, 0.95, 100_000, rng)
	near(t, "BCa of the mean, low", mean.Low, g.BCaMean[0], 0.004)
	near(t, "BCa of the mean, high", mean.High, g.BCaMean[1], 0.004)
	// The median's bootstrap distribution sits on few points: scipy and we may differ by a neighbour, no more.
	median := BCa(g.Skewed, medianOf, 0.95, 100_000, rng)
	near(t, "BCa of the median, low", median.Low, g.BCaMedian[0], 0.11)
	near(t, "BCa of the median, high", median.High, g.BCaMedian[1], 0.05)
	for q, want := range g.Quantiles {
		at, err := strconv.ParseFloat(q, 64)
		if err != nil {
			t.Fatal(err)
		}
		near(t, "quantile "+q, Quantile(g.Skewed, at), want, 1e-12)
	}
	near(t, "coefficient of variation", CV(g.Skewed), g.CV, 1e-12)
	for _, m := range g.Medians {
		i := MedianInterval(m.X, m.Level)
		near(t, fmt.Sprintf("%v interval of a median of %d, low", m.Level, len(m.X)), i.Low, m.Interval[0], 1e-9)
		near(t, fmt.Sprintf("%v interval of a median of %d, high", m.Level, len(m.X)), i.High, m.Interval[1], 1e-9)
		near(t, fmt.Sprintf("p of a median of %d", len(m.X)), medianP(slices.Sorted(slices.Values(m.X))), m.P, 1e-6)
	}
	line := TheilSen(g.Line.X, g.Line.Y)
	near(t, "slope", line.B, g.Line.B, 1e-12)
	near(t, "intercept", line.A, g.Line.A, 1e-9)
}

func TestHolmAsPublished(t *testing.T) {
	// R: p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm")
	got := Holm([]float64{0.01, 0.04, 0.03, 0.005})
	for i, want := range []float64{0.03, 0.06, 0.06, 0.02} {
		near(t, "p "+strconv.Itoa(i), got[i], want, 1e-12)
	}
}

func TestPercentileNeedsSamplesBeyond(t *testing.T) {
	x := make([]float64, 999)
	if _, ok := Percentile(x, 0.99); ok {
		t.Error("p99 of 999 samples was told: 9.99 are beyond it")
	}
	if _, ok := Percentile(append(x, 0), 0.99); !ok {
		t.Error("p99 of 1,000 samples was not told")
	}
	for n, q := range map[int]float64{100: 0.9, 20: 0.5, 10_000: 0.999} {
		if _, ok := Percentile(make([]float64, n), q); !ok {
			t.Errorf("quantile %v of %d samples was not told: 10 are beyond it", q, n)
		}
		if _, ok := Percentile(make([]float64, n-1), q); ok {
			t.Errorf("quantile %v of %d samples was told", q, n-1)
		}
	}
}

func TestJain(t *testing.T) {
	near(t, "equal shares", Jain([]float64{2, 2, 2}), 1, 1e-12)
	near(t, "one has all", Jain([]float64{5, 0, 0, 0}), 0.25, 1e-12)
	near(t, "one has twice as much", Jain([]float64{1, 2}), 0.9, 1e-12)
}

func TestDegenerateInput(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	if got := BCa([]float64{3, 3, 3, 3}, medianOf, 0.95, 100, rng); got != (Interval{3, 3}) {
		t.Errorf("equal values: %v", got)
	}
	if got := BCa([]float64{3}, medianOf, 0.95, 100, rng); !math.IsInf(got.High, 1) {
		t.Errorf("one value says something: %v", got)
	}
	if got := MedianInterval([]float64{1, 2, 3, 4, 5}, 0.95); !math.IsInf(got.Low, -1) || !math.IsInf(got.High, 1) {
		t.Errorf("five values have no 95 %% interval: %v", got)
	}
	c := Compare([]float64{1, 2}, []float64{1, 2}, map[string][]float64{"x": {1, math.NaN()}}, Margin, 1)
	if c.Variants["x"].Verdict != TooFew || c.Variants["x"].Blocks != 1 {
		t.Errorf("one block: %+v", c.Variants["x"])
	}
	if _, err := json.Marshal(c); err != nil {
		t.Error(err)
	}
}
