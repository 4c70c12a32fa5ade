package kernel

import "testing"

func TestContainersAreNoBetterThanTheRestOfTheHost(t *testing.T) {
	for own, want := range map[string]string{"-500\n": "0", "-1000\n": "0", "0\n": "as it is", "200\n": "as it is", "": "as it is"} {
		got := "as it is"
		if n := scoreBeside(own); n != nil {
			got = "0"
			if *n != 0 {
				t.Errorf("%q: %d", own, *n)
			}
		}
		if got != want {
			t.Errorf("%q: %s, want %s", own, got, want)
		}
	}
}
