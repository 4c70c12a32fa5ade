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
