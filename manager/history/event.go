package history

import (
	"cmp"
	"maps"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/strict"
	"weir.dev/weir/store"
)

// Events that say the same become one, with a count, while they come within sameWithin of each other and sameFor of the first: a function that ends at
// each start would drive out what else is worth knowing.
const (
	sameWithin = 10 * time.Minute
	sameFor    = time.Hour
)

// Bounds of an event's texts in bytes. Hosts' agents, and functions through them, choose these, and there are many events.
const (
	maxWord    = 256
	maxMessage = 8 << 10
)

// saying is what makes two events the same.
type saying struct {
	severity             api.Severity
	kind                 api.Kind
	source               string
	object, host, reason string
	message              string // without how long an outage was
}

// The reasons of this manager's own events about hosts. Their messages are never twice the same: they name times, and tokens that work once.
const (
	HostJoined   = "HostJoined"
	HostReplaced = "HostReplaced"
	ClockSkew    = "ClockSkew"
)

// EventsDropped is the reason of events about those that a host raised beyond its rate. Their messages count.
const EventsDropped = "EventsDropped"

// portSecurity begins the reasons of events about what a port's security dropped. Their messages tell how many packets so far.
const portSecurity = "Refused"

func sayingOf(e api.Event) saying {
	message := e.Message
	if e.Reason == EventsDropped || e.Reason == HostJoined || e.Reason == HostReplaced || e.Reason == ClockSkew ||
		e.Kind == api.KindEndpoint && strings.HasPrefix(e.Reason, portSecurity) {
		message = ""
	}
	return saying{e.Severity, e.Kind, e.Source, e.Object, e.Host, e.Reason, message}
}

// Repeats are the latest events that this manager wrote, to tell what happens again. They are only in memory: what another manager wrote, or this one
// before it was started again, is counted for itself.
type Repeats map[saying]api.Event

// maxRepeats bounds them.
const maxRepeats = 5_000

// Add makes the operations that write events, each in the place of a former one that says the same: it gets a new name, so that lists stay in the order
// of the last time. fresh is what to keep once it is written.
func (r Repeats) Add(now time.Time, events []api.Event) (ops []store.Op, fresh Repeats, err error) {
	var out []api.Event
	at := map[saying]int{} // the latest, in out
	for i, e := range events {
		e.Time = cmp.Or(e.Time, now)
		e.Severity = cmp.Or(e.Severity, api.Info)
		e.Count, e.First = 0, time.Time{}
		e.Kind, e.Object, e.Host = api.Kind(strict.Clip(string(e.Kind), maxWord)), strict.Clip(e.Object, maxWord), strict.Clip(e.Host, maxWord)
		e.Severity, e.Reason, e.Message = api.Severity(strict.Clip(string(e.Severity), maxWord)), strict.Clip(e.Reason, maxWord), strict.Clip(e.Message, maxMessage)
		e.Source = strict.Clip(cmp.Or(e.Source, api.SourceManager), maxWord)
		e.Meta = api.Meta{Name: object.TimeName(now.Add(time.Duration(i))) + "." + sourceOf(e.Source), UID: object.NewUID(), Created: now}
		s := sayingOf(e)
		old, known := r[s]
		j, here := at[s]
		if here {
			old, known = out[j], true
		}
		if known && follows(e, old) {
			e.UID, e.Created, e.Count, e.First = old.UID, old.Created, max(old.Count, 1)+1, cmp.Or(old.First, old.Time)
			if here {
				out[j].Name = "" // never written
			} else {
				ops = append(ops, store.Delete(api.KindEvent, old.Name))
			}
		}
		at[s] = len(out)
		out = append(out, e)
	}
	fresh = make(Repeats, len(at))
	for s, j := range at {
		fresh[s] = out[j]
	}
	for i := range out {
		if out[i].Name == "" {
			continue
		}
		ops = append(ops, store.Put(api.KindEvent, &out[i]))
	}
	return ops, fresh, nil
}

// Keep what has been written.
func (r Repeats) Keep(fresh Repeats) {
	if len(r)+len(fresh) > maxRepeats { // each of so many is worth a line
		clear(r)
	}
	maps.Copy(r, fresh)
}

// follows: soon enough to be counted with the former.
func follows(e, old api.Event) bool {
	return e.Time.Sub(old.Time).Abs() <= sameWithin && e.Time.Sub(cmp.Or(old.First, old.Time)) <= sameFor
}
