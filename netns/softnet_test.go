package netns

import "testing"

func TestOverrunsOnlyGrow(t *testing.T) {
	before, err := Overruns()
	if err != nil {
		t.Fatal(err)
	}
	if after, err := Overruns(); err != nil || after < before {
		t.Errorf("%d after %d: %v", after, before, err)
	}
}
