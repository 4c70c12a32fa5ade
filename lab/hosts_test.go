package lab

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"weir.dev/weir/lab/guest"
)

// No claim of the study hosts is judged by an emulated processor; each quotes the paper in at most ten words and says where.
func TestHostsClaimNothingOfEmulation(t *testing.T) {
	s, err := Load("hosts", nil)
	if err != nil {
		t.Fatal(err)
	}
	quote, n := regexp.MustCompile(`^"([^"]+)": `), 0
	for _, p := range s.Parts {
		if p.Baseline == guest.Emulated {
			t.Errorf("part %s: emulation is the baseline", p.Name)
		}
		for _, c := range p.Claims {
			n++
			named := slices.Concat(c.Systems, c.Instead, []string{c.At["host"], c.Against["host"]})
			if slices.Contains(named, guest.Emulated) || len(c.Systems) == 0 {
				t.Errorf("%s: systems %v", c.ID, named)
			}
			words := quote.FindStringSubmatch(c.Text)
			if words == nil || len(strings.Fields(words[1])) > 10 {
				t.Errorf("%s: want a quote of at most ten words: %s", c.ID, c.Text)
			}
			if !strings.HasPrefix(c.Source, "section ") {
				t.Errorf("%s: source %s", c.ID, c.Source)
			}
		}
	}
	if n < 12 {
		t.Errorf("%d claims: want at least 12", n)
	}
}
