package control

import (
	"fmt"
	"maps"
	"slices"
	"testing"
)

func TestEveryTunnelOfAHostHasItsOwnVNI(t *testing.T) {
	var hosts []string
	for i := range 300 {
		hosts = append(hosts, fmt.Sprintf("h%d", i))
	}
	all := vnis(defaultVNI, hosts)
	at := map[string]map[uint32]string{}
	for p, id := range all {
		if id == 0 || id > maxVNI {
			t.Fatalf("%v: %d", p, id)
		}
		for _, end := range [][2]string{{p.a, p.b}, {p.b, p.a}} {
			if at[end[0]] == nil {
				at[end[0]] = map[uint32]string{}
			}
			if other := at[end[0]][id]; other != "" {
				t.Fatalf("%s: %d leads to %s and to %s", end[0], id, other, end[1])
			}
			at[end[0]][id] = end[1]
		}
	}
	if len(all) != 300*299/2 {
		t.Errorf("%d pairs", len(all))
	}
	slices.Reverse(hosts)
	if !maps.Equal(all, vnis(defaultVNI, hosts)) {
		t.Error("the order of the hosts matters")
	}
	changed := 0
	for p, id := range vnis(defaultVNI, append(hosts, "another")) {
		if was, ok := all[p]; ok && was != id {
			changed++
		}
	}
	if changed > len(all)/1000 {
		t.Errorf("another host changes %d of %d", changed, len(all))
	}
}
