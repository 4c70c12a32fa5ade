package nf

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// Events raises events at the socket that the platform gives; where it is not there, nothing happens.
type Events string

// Raise an event. What cannot be raised is logged.
func (e Events) Raise(ctx context.Context, log *slog.Logger, severity, reason, message string) {
	if _, err := os.Stat(string(e)); err != nil {
		return
	}
	if err := e.post(ctx, severity, reason, message); err != nil {
		log.Warn("raise event", "reason", reason, "error", err)
	}
}

func (e Events) post(ctx context.Context, severity, reason, message string) error {
	body, err := json.Marshal(map[string]string{"severity": severity, "reason": reason, "message": message})
	if err != nil {
		return err
	}
	return post(ctx, string(e), "application/json", body)
}

const (
	packedEvery = 30 * time.Second // at most one event of a kind in this time
	maxPacked   = 256              // kinds that are remembered; what comes beyond is one more kind
	eventsALook = 4                // raised at a time, so that a look ends soon
)

// Packed raises events at a bounded rate: of many of one kind it raises one now and then, with their number. The zero value of its private fields is ready.
type Packed struct {
	Events Events
	Reason string // one word

	mu    sync.Mutex
	kinds map[string]*packed
}

type packed struct {
	count  uint64
	text   string // of the last one
	raised time.Time
}

// Add one of a kind, with what there is to say. It does not block.
func (p *Packed) Add(kind, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kinds == nil {
		p.kinds = map[string]*packed{}
	}
	k := p.kinds[kind]
	if k == nil {
		if len(p.kinds) >= maxPacked {
			kind = ""
		}
		if k = p.kinds[kind]; k == nil {
			k = &packed{}
			p.kinds[kind] = k
		}
	}
	k.count++
	k.text = text
}

// Raise what is due. For Work.Look: it waits for the platform, and must not be called in a loop over frames.
func (p *Packed) Raise(ctx context.Context, log *slog.Logger) {
	for _, text := range p.due(time.Now()) {
		log.Warn(text, "reason", p.Reason)
		p.Events.Raise(ctx, log, "warning", p.Reason, text)
	}
}

func (p *Packed) due(now time.Time) (texts []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for kind, k := range p.kinds {
		switch old := now.Sub(k.raised) >= packedEvery; {
		case !old:
		case k.count == 0:
			delete(p.kinds, kind)
		case len(texts) < eventsALook:
			text := k.text
			if k.count > 1 {
				text = fmt.Sprintf("%s (and %d more like it)", text, k.count-1)
			}
			texts = append(texts, text)
			k.count, k.raised = 0, now
		}
	}
	return texts
}
