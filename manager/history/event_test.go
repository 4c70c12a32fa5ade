package history

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
)

// told plays a store: what is there, by name in order, after some reports.
type told struct {
	r      Repeats
	events map[string]api.Event
}

func (w *told) add(t *testing.T, now time.Time, events ...api.Event) {
	t.Helper()
	ops, fresh, err := w.r.Add(now, events)
	if err != nil {
		t.Fatal(err)
	}
	w.r.Keep(fresh)
	touched := map[string]bool{}
	for _, op := range ops {
		if touched[op.Key] {
			t.Fatalf("two operations on %s", op.Key)
		}
		touched[op.Key] = true
		if op.Value == nil {
			if _, there := w.events[op.Key]; !there {
				t.Errorf("%s is deleted and was not there", op.Key)
			}
			delete(w.events, op.Key)
			continue
		}
		var e api.Event
		if err := json.Unmarshal(op.Value, &e); err != nil {
			t.Fatal(err)
		}
		w.events[op.Key] = e
	}
}

// lines are the events as they would be listed.
func (w *told) lines(begin time.Time) (lines []string) {
	for _, key := range slices.Sorted(maps.Keys(w.events)) {
		e := w.events[key]
		line := fmt.Sprintf("%s %s %s", e.Time.Sub(begin), e.Object, e.Message)
		if e.Count > 0 {
			line += fmt.Sprintf(" x%d since %s", e.Count, e.First.Sub(begin))
		}
		lines = append(lines, line)
	}
	return lines
}

func TestEventsThatSayTheSameAreOne(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	event := func(object, message string) api.Event {
		return api.Event{Severity: api.Warning, Reason: "FunctionDied", Kind: api.KindFunction, Object: object, Host: "h1", Message: message}
	}
	died := event("fw", "exit code 1")
	back := func(outage time.Duration) api.Event {
		e := event("fw", "running again")
		e.OutageNs = outage.Nanoseconds()
		return e
	}
	other := func(change func(*api.Event)) api.Event {
		e := died
		change(&e)
		return e
	}
	type at struct {
		after  time.Duration
		events []api.Event
	}
	loop := func(every time.Duration, n int) (all []at) {
		for i := range n {
			all = append(all, at{time.Duration(i) * every, []api.Event{died}})
		}
		return all
	}
	for name, tt := range map[string]struct {
		reports []at
		want    []string
	}{
		"once": {[]at{{0, []api.Event{died}}}, []string{"0s fw exit code 1"}},
		"a crash loop": {
			[]at{{0, []api.Event{died}}, {time.Second, []api.Event{back(250600 * time.Microsecond)}}, {2 * time.Second, []api.Event{died}},
				{4 * time.Second, []api.Event{back(2 * time.Second)}}, {5 * time.Second, []api.Event{died}}},
			[]string{"4s fw running again x2 since 1s", "5s fw exit code 1 x3 since 0s"},
		},
		"in one report":   {[]at{{0, []api.Event{died, event("w1", "x"), died, died}}}, []string{"0s w1 x", "0s fw exit code 1 x3 since 0s"}},
		"and in the next": {[]at{{0, []api.Event{died, died}}, {time.Second, []api.Event{died, died}}}, []string{"1s fw exit code 1 x4 since 0s"}},
		"something else": {
			[]at{{0, []api.Event{died, other(func(e *api.Event) { e.Message = "exit code 2" }), other(func(e *api.Event) { e.Object = "w1" }),
				other(func(e *api.Event) { e.Host = "h2" }), other(func(e *api.Event) { e.Severity = api.Error }),
				other(func(e *api.Event) { e.Kind = api.KindChain }), other(func(e *api.Event) { e.Reason = "X" })}}},
			[]string{"0s fw exit code 1", "0s fw exit code 2", "0s w1 exit code 1", "0s fw exit code 1", "0s fw exit code 1", "0s fw exit code 1", "0s fw exit code 1"},
		},
		"long after":             {loop(sameWithin+time.Second, 2), []string{"0s fw exit code 1", "10m1s fw exit code 1"}},
		"for long":               {loop(sameWithin, 8), []string{"1h0m0s fw exit code 1 x7 since 0s", "1h10m0s fw exit code 1"}},
		"what a reporter counts": {[]at{{0, []api.Event{other(func(e *api.Event) { e.Count, e.First = 7, begin })}}}, []string{"0s fw exit code 1"}},
		"tokens and times differ": {
			[]at{{0, []api.Event{other(func(e *api.Event) { e.Reason, e.Message = HostJoined, "with token a" }), other(func(e *api.Event) { e.Reason, e.Message = ClockSkew, "12:00" })}},
				{time.Second, []api.Event{other(func(e *api.Event) { e.Reason, e.Message = HostJoined, "with token b" }), other(func(e *api.Event) { e.Reason, e.Message = ClockSkew, "12:01" }),
					other(func(e *api.Event) { e.Reason, e.Message = HostReplaced, "with token c" })}}},
			[]string{"1s fw with token b x2 since 0s", "1s fw 12:01 x2 since 0s", "1s fw with token c"},
		},
		"other outages, same words": {[]at{{0, []api.Event{back(time.Second), back(time.Minute)}}}, []string{"0s fw running again x2 since 0s"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := &told{Repeats{}, map[string]api.Event{}}
			for _, r := range tt.reports {
				w.add(t, begin.Add(r.after), r.events...)
			}
			if d := cmp.Diff(tt.want, w.lines(begin)); d != "" {
				t.Error(d)
			}
		})
	}
}

// What is remembered of events is bounded, whatever comes.
func TestFewEventsAreRemembered(t *testing.T) {
	w := &told{Repeats{}, map[string]api.Event{}}
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	now := begin
	for i := range 3 * maxRepeats / 1000 {
		now = now.Add(time.Second)
		var events []api.Event
		for j := range 1000 {
			events = append(events, api.Event{Reason: "X", Message: fmt.Sprint(i, " ", j)})
		}
		w.add(t, now, events...)
		if len(w.r) > maxRepeats {
			t.Fatalf("%d are remembered", len(w.r))
		}
	}
	w.add(t, now.Add(time.Second), api.Event{Reason: "X", Message: "2 2"}, api.Event{Reason: "X", Message: "14 999"})
	if n := len(w.events); n != 3*maxRepeats+1 { // the former is forgotten, the latter is not
		t.Errorf("%d events", n)
	}
	if last := w.lines(begin)[3*maxRepeats]; last != "16s  14 999 x2 since 15s" {
		t.Errorf("last: %s", last)
	}
}

// Texts of any length are cut, at the end of a character.
func TestLongEventsAreCut(t *testing.T) {
	long := strings.Repeat("é", 1<<20)
	w := &told{r: Repeats{}, events: map[string]api.Event{}}
	w.add(t, time.Now(), api.Event{Severity: api.Info, Kind: api.Kind(long), Object: long, Host: long, Reason: long, Message: long}, api.Event{Reason: "Short", Message: "ü"})
	for key, e := range w.events {
		if e.Reason == "Short" && e.Message == "ü" {
			continue
		}
		if b, err := json.Marshal(e); err != nil || len(b) > 10<<10 || !strings.HasSuffix(e.Message, "é…") || !strings.HasPrefix(long, strings.TrimSuffix(e.Reason, "…")) {
			t.Errorf("%s: %d bytes, %v: %.80s", key, len(b), err, b)
		}
	}
	if len(w.events) != 2 {
		t.Errorf("%d events, want 2", len(w.events))
	}
}
