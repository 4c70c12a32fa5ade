package tied

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

// An output keeps its first bytes, as many as it may, whoever writes at a time; a program's error is the end of that.
func TestOutputKeepsTheBeginning(t *testing.T) {
	o := Output{Most: 1000}
	var g sync.WaitGroup
	for range 10 {
		g.Go(func() {
			for range 100 {
				if n, err := fmt.Fprint(&o, "0123456789"); n != 10 || err != nil {
					t.Errorf("wrote %d, %v", n, err)
				}
			}
		})
	}
	g.Wait()
	if got := o.String(); got != strings.Repeat("0123456789", 100) {
		t.Errorf("it keeps %d bytes: %q", len(got), got)
	}
	if got := o.Tail(); got != strings.Repeat("0123456789", 60) {
		t.Errorf("its end is %q", got)
	}
	var usual Output
	if _, err := usual.Write(make([]byte, 2*DefaultMost)); err != nil || len(usual.String()) != DefaultMost {
		t.Errorf("%d bytes, %v", len(usual.String()), err)
	}
}
