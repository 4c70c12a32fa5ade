package manager

import (
	"testing"
	"time"

	"weir.dev/weir/api"
)

func TestHostState(t *testing.T) {
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		reported, now time.Duration // since the manager began
		state, want   string
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
