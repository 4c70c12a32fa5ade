package lab

import (
	"regexp"
	"strings"
	"testing"
)

var quoted = regexp.MustCompile(`“([^”]*)”`)

// A study of a paper quotes it for each claim, in at most ten words, or says of which of its figures the claim is a ratio.
func TestClaimsQuoteTheirPaper(t *testing.T) {
	const least, mostWords = 12, 10
	for _, name := range []string{"density", "forwarders"} {
		s, err := Load(name, nil)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, p := range s.Parts {
			for _, c := range p.Claims {
				n++
				quotes := quoted.FindAllStringSubmatch(c.Text, -1)
				if len(quotes) == 0 && !strings.Contains(c.Source, "a ratio of two of its figures") {
					t.Errorf("%s: claim %s has no quotation: %s", name, c.ID, c.Text)
				}
				for _, q := range quotes {
					if words := len(strings.Fields(q[1])); words > mostWords {
						t.Errorf("%s: claim %s quotes %d words: want at most %d: %s", name, c.ID, words, mostWords, q[1])
					}
				}
				if !strings.Contains(c.Source, "section") {
					t.Errorf("%s: claim %s has no section: %s", name, c.ID, c.Source)
				}
			}
		}
		if n < least {
			t.Errorf("%s: %d claims: want at least %d", name, n, least)
		}
	}
}
