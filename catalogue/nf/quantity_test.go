package nf

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestQuantities(t *testing.T) {
	type all struct {
		D Duration
		R Rate
		S Size
		P Share
	}
	var got all
	if err := json.Unmarshal([]byte(`{"D": "1.5ms", "R": "2.5Mbit", "S": "64KB", "P": "0.5%"}`), &got); err != nil || got != (all{Duration(1500 * time.Microsecond), 2_500_000, 64_000, 0.005}) {
		t.Errorf("%+v, %v", got, err)
	}
	for text, want := range map[string]string{
		`{"D": 5}`: `want a text as "5s"`, `{"D": "5"}`: "missing unit", `{"R": "10mbit"}`: `want it as "10Mbit"`, `{"R": "0bit"}`: "more than 0", `{"R": 1}`: "want a text",
		`{"S": "1GB"}`: `want it as "32KB"`, `{"S": "0B"}`: "more than 0", `{"P": "1"}`: `want it as "0.5%"`, `{"P": "100.1%"}`: "at most 100%", `{"P": "-1%"}`: "want it as",
	} {
		if err := json.Unmarshal([]byte(text), &all{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v: want %q", text, err, want)
		}
	}
}

func TestPorts(t *testing.T) {
	for text, want := range map[string][2]uint16{
		"443": {443, 443}, "5060-5061": {5060, 5061}, "1-65535": {1, 65535}, "": {}, "0": {}, "0-5": {}, "5-4": {}, "65536": {}, "1-": {}, "-1": {}, "1-2-3": {}, "x": {}, "+1": {},
	} {
		first, last, ok := Ports(text)
		if ok != (want != [2]uint16{}) || ok && (first != want[0] || last != want[1]) {
			t.Errorf("%q: %d to %d, %v", text, first, last, ok)
		}
	}
}
