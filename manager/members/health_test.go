package members

import (
	"testing"
	"time"

	"weir.dev/weir/api"
)

func TestHostState(t *testing.T) {
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		reported, now time.Duration // since the manager began
		state, want   api.HostState
	}{
		"reported just now":                  {time.Second, 2 * time.Second, "ready", "ready"},
		"its agent is starting":              {time.Second, 2 * time.Second, "starting", "starting"},
		"last reported before the restart":   {-time.Second, time.Second, "ready", "starting"},
		"not heard of for long after it":     {-time.Second, 31 * time.Second, "ready", "lost"},
		"silent for as long as it may be":    {time.Minute, 90 * time.Second, "ready", "ready"},
		"silent for longer":                  {time.Minute, 91 * time.Second, "ready", "lost"},
		"lost while its agent was starting":  {time.Minute, 91 * time.Second, "starting", "lost"},
		"reported in the manager's first ns": {0, 0, "ready", "ready"},
	} {
		t.Run(name, func(t *testing.T) {
			h := api.Host{Meta: api.Meta{Updated: began.Add(tt.reported)}, Status: api.HostStatus{State: tt.state}}
			if got := hostState(h, began, began.Add(tt.now)); got != tt.want {
				t.Errorf("is %s, want %s", got, tt.want)
			}
		})
	}
}

// TestStepsOfTheWallClockLoseNoHost: stored times of reports are the wall clock's, of this manager or another. Silence is measured by this manager's own.
func TestStepsOfTheWallClockLoseNoHost(t *testing.T) {
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(d time.Duration) time.Time { return began.Add(d) }
	type look struct {
		now, updated time.Duration // true time since the manager began; what is stored
		revision     int64
		want         api.HostState
	}
	const hour = time.Hour
	for name, looks := range map[string][]look{
		"set back, then started again, and the host is dead": {{0, hour, 5, "ready"}, {29 * time.Second, hour, 5, "ready"}, {31 * time.Second, hour, 5, "lost"}},
		"set back, then started again, and the host lives":   {{0, hour, 5, "ready"}, {9 * time.Second, 8 * time.Second, 6, "ready"}, {38 * time.Second, 8 * time.Second, 6, "ready"}, {39 * time.Second, 8 * time.Second, 6, "lost"}},
		"another manager's clock is an hour behind":          {{time.Second, 0, 5, "ready"}, {11 * time.Second, 10*time.Second - hour, 6, "ready"}, {21 * time.Second, 20*time.Second - hour, 7, "ready"}, {52 * time.Second, 20*time.Second - hour, 7, "lost"}},
		"another manager's clock is an hour ahead":           {{time.Second, hour, 5, "ready"}, {11 * time.Second, 10*time.Second + hour, 6, "ready"}, {42 * time.Second, 10*time.Second + hour, 6, "lost"}},
		"its revision is not known":                          {{time.Second, 0, 0, "ready"}, {29 * time.Second, 28 * time.Second, 0, "ready"}, {57 * time.Second, 28 * time.Second, 0, "ready"}, {60 * time.Second, 28 * time.Second, 0, "lost"}},
		"an older copy is seen after a newer one":            {{time.Second, 0, 5, "ready"}, {11 * time.Second, 10 * time.Second, 6, "ready"}, {39 * time.Second, 0, 5, "ready"}, {41 * time.Second, 0, 5, "lost"}},
	} {
		t.Run(name, func(t *testing.T) {
			var b beats
			for _, x := range looks {
				h := api.Host{Meta: api.Meta{Name: "h", Updated: at(x.updated), Revision: x.revision}, Status: api.HostStatus{State: "ready"}}
				h.Updated = b.reported(h, at(x.now))
				if got := hostState(h, began.Add(-hour), at(x.now)); got != x.want {
					t.Errorf("after %v, reported at %v: %s, want %s", x.now, x.updated, got, x.want)
				}
			}
		})
	}
}

func TestTimeInWhichTheManagerDidNotRunIsNoSilence(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(d time.Duration) time.Time { return begin.Add(d) }
	b := beats{last: map[string]beat{"alive": {at: at(-time.Second / 2)}, "dead": {at: at(-5 * time.Second)}}}
	for _, x := range []struct{ looked, alive, dead time.Duration }{
		{0, -time.Second / 2, -5 * time.Second},
		{250 * time.Millisecond, -time.Second / 2, -5 * time.Second}, // the usual
		{250*time.Millisecond + heldUp, -time.Second / 2, -5 * time.Second},
		{20 * time.Second, 17750 * time.Millisecond, 13250 * time.Millisecond}, // 18.25 s later
	} {
		b.excuse(at(x.looked), at(x.looked))
		if b.last["alive"].at != at(x.alive) || b.last["dead"].at != at(x.dead) {
			t.Errorf("looked at after %v, they beat at %v and %v, want %v and %v", x.looked, b.last["alive"].at.Sub(begin), b.last["dead"].at.Sub(begin), x.alive, x.dead)
		}
	}
	b.last["alive"] = beat{at: at(30 * time.Second)} // it beat while the leader was held up alone
	if b.excuse(at(40*time.Second), at(31*time.Second)); b.last["alive"].at != at(31*time.Second) {
		t.Errorf("a beat at %v: it is to come yet", b.last["alive"].at.Sub(begin))
	}
}
