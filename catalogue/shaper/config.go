package main

import (
	"fmt"
	"time"

	"weir.dev/weir/catalogue/nf"
)

// config is the function's configuration; schema.json describes the same.
type config struct {
	Up      limit       `json:"up"`   // from in to out
	Down    limit       `json:"down"` // from out to in
	Queue   nf.Duration `json:"queue"`
	Fair    *bool       `json:"fair"`
	Classes []class     `json:"classes"` // of each limit; the first has the highest priority
}

// limit of a direction; a rate of 0: there is none.
type limit struct {
	Rate  nf.Rate `json:"rate"`
	Burst nf.Size `json:"burst"` // 0: 10 ms of the rate, 16 KB at least
}

// Bounds of what can be asked for.
const (
	minRate   = 64e3 // bits a second
	maxRate   = 20e9
	minBurst  = 2000 // bytes: a frame
	maxBurst  = 64 << 20
	burstTime = 100 // seconds of the rate: the kernel counts a burst as a time of 32 bits
	minQueue  = time.Millisecond
	maxQueue  = 2 * time.Second

	defaultQueue = 50 * time.Millisecond
	leastBurst   = 16 << 10
)

func parseConfig(raw []byte) (config, error) {
	cfg := config{Queue: nf.Duration(defaultQueue)}
	if err := nf.DecodeConfig(raw, &cfg); err != nil {
		return config{}, err
	}
	if q := time.Duration(cfg.Queue); q < minQueue || q > maxQueue {
		return config{}, fmt.Errorf("queue %s: want %s to %s", q, minQueue, maxQueue)
	}
	for name, l := range map[string]limit{"up": cfg.Up, "down": cfg.Down} {
		switch {
		case l.Rate == 0 && l.Burst != 0:
			return config{}, fmt.Errorf("%s: a burst without a rate", name)
		case l.Rate != 0 && (l.Rate < minRate || l.Rate > maxRate):
			return config{}, fmt.Errorf("%s: rate %d bit/s: want 64kbit to 20Gbit", name, l.Rate)
		case l.Burst != 0 && (l.Burst < minBurst || l.Burst > maxBurst):
			return config{}, fmt.Errorf("%s: burst %d bytes: want 2KB to 64MB", name, l.Burst)
		case uint64(l.Burst) > uint64(l.Rate)/8*burstTime:
			return config{}, fmt.Errorf("%s: burst %d bytes: want at most %d, as the rate sends in %d s", name, l.Burst, uint64(l.Rate)/8*burstTime, burstTime)
		}
	}
	if len(cfg.Classes) > 0 && cfg.Up.Rate == 0 && cfg.Down.Rate == 0 {
		return config{}, fmt.Errorf("classes: neither up nor down has a rate that they could share")
	}
	if err := completeClasses(cfg.Classes); err != nil {
		return config{}, fmt.Errorf("classes: %w", err)
	}
	return cfg, nil
}

func (c config) fair() bool { return c.Fair == nil || *c.Fair }

// burst of a limit in bytes.
func (l limit) burst() uint32 {
	if l.Burst > 0 {
		return uint32(l.Burst)
	}
	return max(leastBurst, uint32(uint64(l.Rate)/8/100))
}

// burstOf a class with that part of the limit's rate.
func (l limit) burstOf(rate uint64) uint32 {
	part := max(minBurst, float64(l.burst())*float64(rate)/float64(l.Rate))
	return uint32(min(part, float64(l.burst()), float64(rate)/8*burstTime))
}

// waits is how many bytes wait at most: what a queue of that length takes at the rate, and a frame of GSO at least.
func (l limit) waits(queue time.Duration) uint32 {
	return uint32(max(float64(l.Rate)/8*queue.Seconds(), 2*maxFrame))
}

// maxFrame is the longest frame that local senders hand on, unsegmented.
const maxFrame = 64 << 10
