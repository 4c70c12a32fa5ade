package kernel

import "testing"

func TestContainersAreNoBetterThanTheRestOfTheHost(t *testing.T) {
	for own, lowered := range map[int]bool{-1000: true, -500: true, 0: false, 200: false} {
		got, err := scoreOf(&own)
		must(t, err)
		if (got != nil) != lowered || got != nil && *got != 0 {
			t.Errorf("beside %d: %v", own, got)
		}
	}
	if _, err := scoreOf(nil); err != nil { // this process's
		t.Error(err)
	}
}
