package study

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"weir.dev/weir/api/file"
)

// Claim is a published figure or finding, or a target of our own. At says for which levels; Against, if set, makes it a ratio to those levels, which are At's
// where Against does not name them. Exactly one of Value, AtLeast, AtMost and Shape is set. The package lab/claim has the rules by which it is judged.
type Claim struct {
	ID      string            `json:"id"`
	Text    string            `json:"text"`
	Source  string            `json:"source"` // section, figure or table; of a target: "target of ..."
	Metric  string            `json:"metric"`
	At      map[string]string `json:"at,omitempty"`
	Against map[string]string `json:"against,omitempty"`
	// Systems are levels of the compared factor on which the claim is judged. The first is the one nearest to the published system: the claim's verdict is its
	// verdict. Without them the claim is judged at At.
	Systems []string `json:"systems,omitempty"`
	// Every says that the text is of all Systems: the claim's verdict is the worst of those that could be judged.
	Every bool `json:"every,omitempty"`
	// Instead are levels of the compared factor that are no such system, but what Weir offers in its place: they are judged beside it.
	Instead []string `json:"instead,omitempty"`
	Value   float64  `json:"value,omitempty"`    // on their hardware, or a ratio
	AtLeast float64  `json:"at_least,omitempty"` //
	AtMost  float64  `json:"at_most,omitempty"`
	Shape   string   `json:"shape,omitempty"` // one of Shapes: of the metric along the factor Along
	Along   string   `json:"along,omitempty"`
	// Tolerance is the share by which what we see may be off: from a ratio, beyond a bound, or by which levels may be off a shape. 0: see Off. That of a ratio
	// never reaches 1, see package claim.
	Tolerance float64 `json:"tolerance,omitempty"`
	// Untestable is why no run of this study can tell: what is measured is not what was published. It is shown beside it.
	Untestable string `json:"not_testable,omitempty"`
}

// Shapes that a claim can have: y = a + b x with b > 0; y = 1 / (a + b x) with b > 0; y = a exp(b x) with b > 0.
const (
	Linear      = "linear"
	Inverse     = "inverse"
	Exponential = "exponential"
)

// Shapes are all of them.
func Shapes() []string { return []string{Linear, Inverse, Exponential} }

// MinLevels is how many levels a shape stands on at least: through three points goes a line, a parabola and an exponential.
const MinLevels = 5

// Tolerances where a claim sets none: of a published ratio, of a bound, of levels that are off a shape.
const (
	offRatio = 0.25
	offBound = 0
	offShape = 0.05
)

// Off is the claim's tolerance.
func (c Claim) Off() float64 {
	switch {
	case c.Tolerance > 0:
		return c.Tolerance
	case c.Shape != "":
		return offShape
	case c.Value > 0:
		return offRatio
	}
	return offBound
}

// IsTarget tells a target of our own from what others published.
func (c Claim) IsTarget() bool { return strings.HasPrefix(c.Source, "target") }

// IsAbsolute tells a figure in the metric's unit from a ratio and from a shape.
func (c Claim) IsAbsolute() bool { return c.Shape == "" && c.Against == nil }

// Places are the levels at which the claim is judged on a system, and, for a ratio, those that it is related to.
func (c Claim) Places(compare, system string) (at, against map[string]string) {
	at = maps.Clone(c.At)
	if at == nil {
		at = map[string]string{}
	}
	if system != "" {
		at[compare] = system
	}
	if c.Against == nil {
		return at, nil
	}
	against = maps.Clone(at)
	maps.Copy(against, c.Against)
	return at, against
}

func (p Part) validateClaim(c *check, at string, claim Claim) {
	if claim.ID == "" || claim.Text == "" || claim.Source == "" {
		c.add(at, "", "want an id, a text and a source (section, figure or table)")
	}
	if !slices.ContainsFunc(p.Metrics, func(m Metric) bool { return m.Name == claim.Metric }) {
		c.add(at+".metric", "", "the part has no metric %q", claim.Metric)
	}
	p.validateLevels(c, at+".at", claim.At)
	p.validateLevels(c, at+".against", claim.Against)
	p.validateSystems(c, at, claim)
	set := 0
	for _, v := range []float64{claim.Value, claim.AtLeast, claim.AtMost} {
		if v != 0 {
			set++
		}
		if v < 0 || math.IsInf(v, 0) || math.IsNaN(v) {
			c.add(at, "", "figure %v: want more than 0", v)
		}
	}
	if claim.Shape != "" {
		set++
		f, ok := p.Factor(claim.Along)
		if !slices.Contains(Shapes(), claim.Shape) || !ok || len(f.Levels) < MinLevels {
			c.add(at+".shape", "", "want one of %s, along a factor of at least %d levels", strings.Join(Shapes(), ", "), MinLevels)
		}
	}
	if set != 1 {
		c.add(at, "", "want exactly one of value, at_least, at_most and shape")
	}
	claim.validateTolerance(c, at)
}

func (p Part) validateSystems(c *check, at string, claim Claim) {
	seen := map[string]bool{}
	each := func(where string, systems []string) {
		for i, s := range systems {
			path := fmt.Sprintf("%s.%s[%d]", at, where, i)
			if f, ok := p.Factor(p.Compare); ok && !slices.Contains(f.Levels, s) {
				c.add(path, file.Choose(s, f.Levels), "factor %s has no level %q", f.Name, s)
			}
			if seen[s] {
				c.add(path, "", "%q is there twice", s)
			}
			seen[s] = true
		}
	}
	each("systems", claim.Systems)
	each("instead", claim.Instead)
	if _, named := claim.At[p.Compare]; named && len(seen) > 0 {
		c.add(at+".at."+p.Compare, "leave it out of at", "systems and instead say where the claim is judged")
	}
	if claim.Every && len(claim.Systems) < 2 {
		c.add(at+".every", "name them in systems, or leave every out", "every one of %d systems: want at least 2", len(claim.Systems))
	}
	if len(claim.Instead) > 0 && len(claim.Systems) == 0 {
		c.add(at+".instead", "name the system nearest to the published one in systems", "stands beside no system")
	}
}

func (c Claim) validateTolerance(all *check, at string) {
	switch {
	case !(c.Tolerance >= 0 && c.Tolerance < 1):
		all.add(at+".tolerance", "0.25 is 25 %", "%v: want a share between 0 and 1", c.Tolerance)
	case c.Tolerance > 0 && c.Value > 0 && c.IsAbsolute():
		all.add(at+".tolerance", "make it a ratio with against", "an absolute figure of other hardware is not compared")
	}
}
