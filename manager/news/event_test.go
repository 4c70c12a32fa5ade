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
		_, told := r.admit(fmt.Sprint("h", wait), true, make([]api.Event, eventBurst+1), nil, now.Add(time.Duration(wait)*dropAgain))
		if len(told) != want || len(r.dropped) > maxRates {
			t.Errorf("after %d minutes: %d events tell of what was dropped, want %d; %d hosts are remembered", wait, len(told), want, len(r.dropped))
		}
	}
}

// Functions that raise a million events take nothing from what each other function of their host may raise, and what all of them write is bounded. Names that a hostile
// host makes up get it nothing.
func TestAQuietFunctionIsHeardBesideNoisyOnes(t *testing.T) {
	r := &New(Options{}).rates
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	raised := func(function string) api.Event {
		return api.Event{Kind: api.KindFunction, Object: function, Source: api.SourceOf(api.KindFunction, function)}
	}
	mine := func(function string) bool { return function == "noisy" || function == "noisy2" || function == "quiet" }
	admitted := map[string]int{}
	const reports, each = 1000, 1000 // one a second
	for i := range reports {
		var events []api.Event
		for j := range each {
			events = append(events, raised([]string{"noisy", "noisy2"}[j%2]))
		}
		if i%20 == 0 {
			events = append(events, raised("quiet"))
		}
		for j := range 10 {
			events = append(events, raised(fmt.Sprint("no", i, "-", j)))
		}
		got, _ := r.admit("h1", true, events, mine, begin.Add(time.Duration(i)*time.Second))
		for _, e := range got {
			admitted[e.Object]++
		}
	}
	all := 0
	for _, n := range admitted {
		all += n
	}
	const shared = eventBurst + reports*int(time.Second/eventRefill)
	if admitted["quiet"] != reports/20 || all > shared+3*(ownBurst+reports/int(ownRefill/time.Second)) {
		t.Errorf("%d of %d events of the quiet one, %d of all, want at most about %d", admitted["quiet"], reports/20, all, shared)
	}
}
