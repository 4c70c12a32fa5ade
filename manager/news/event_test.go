package news

import (
	"fmt"
	"testing"
	"time"

	"weir.dev/weir/api"
)

// Hosts whose events were dropped long ago take nobody's place among those of which that is told.
func TestDropsAreToldOfAnyHost(t *testing.T) {
	r := &New(Options{}).rates
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range maxRates {
		r.dropped[rateKey{host: fmt.Sprint("former", i)}] = drops{told: now}
	}
	for wait, want := range []int{0, 1} {
		_, told := r.admit(fmt.Sprint("h", wait), true, make([]api.Event, eventBurst+1), now.Add(time.Duration(wait)*dropAgain))
		if len(told) != want || len(r.dropped) > maxRates {
			t.Errorf("after %d minutes: %d events tell of what was dropped, want %d; %d hosts are remembered", wait, len(told), want, len(r.dropped))
		}
	}
}
