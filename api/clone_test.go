package api

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHostCloneIsText(t *testing.T) {
	want := HostAction{Clones: []HostClone{{Port: "function/mon/tap"}, {Port: "uplink/eth1", Push: 3600}}, Op: "normal"}
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if text := `{"clones":["function/mon/tap","uplink/eth1 push:3600"],"op":"normal"}`; string(b) != text {
		t.Errorf("got %s, want %s", b, text)
	}
	var got HostAction
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, text := range []string{"uplink/eth1 push:", "uplink/eth1 push:0", "uplink/eth1 push:70000", "uplink/eth1 push:1 push:2"} {
		if err := new(HostClone).UnmarshalText([]byte(text)); err == nil || !strings.Contains(err.Error(), "push:3600") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
