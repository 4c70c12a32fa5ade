package netns

import (
	"testing"
	"time"
)

func TestOverrunsOnlyGrow(t *testing.T) {
	before, err := Overruns()
	if err != nil {
		t.Fatal(err)
	}
	if after, err := Overruns(); err != nil || after < before {
		t.Errorf("%d after %d: %v", after, before, err)
	}
}

func TestBacklogDrains(t *testing.T) {
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		n, err := Backlog()
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d frames are in the receive queues still", n)
		}
	}
}
