package portkind

import "testing"

func TestJoin(t *testing.T) {
	for _, c := range []struct {
		gives, takes []Kind
		want         Kind
	}{
		{[]Kind{Veth}, []Kind{Veth}, Veth},
		{[]Kind{VhostUser, Tap}, []Kind{Veth, Tap, VhostUser}, VhostUser},
		{[]Kind{VhostUser, Tap}, []Kind{Veth, Tap}, Tap},
		{[]Kind{Tap}, []Kind{Veth}, ""},
		{nil, []Kind{Veth}, ""},
	} {
		if got := Join(c.gives, c.takes); got != c.want {
			t.Errorf("%v to %v: %q, want %q", c.gives, c.takes, got, c.want)
		}
	}
}
