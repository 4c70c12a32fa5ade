// Package bounded has what remembers a bounded number of keys that strangers choose: values that are believed for a moment, and rates.
package bounded

import (
	"sync"
	"time"
)

// Cache believes what was read for Life.
type Cache[T any] struct {
	Life time.Duration
	Max  int

	mu sync.Mutex
	by map[string]cached[T]
}

type cached[T any] struct {
	value T
	until time.Time
}

// Get is what is believed, or what is read now.
func (c *Cache[T]) Get(key string, now time.Time, read func() (T, error)) (T, error) {
	c.mu.Lock()
	x, known := c.by[key]
	c.mu.Unlock()
	if known && now.Before(x.until) {
		return x.value, nil
	}
	value, err := read()
	if err != nil {
		return value, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by == nil || len(c.by) >= c.Max {
		c.by = map[string]cached[T]{}
	}
	c.by[key] = cached[T]{value, now.Add(c.Life)}
	return value, nil
}

// Forget makes the next Get read.
func (c *Cache[T]) Forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.by, key)
}

// Rates count what each key does: Burst at once, then one each Refill. They are buckets that empty with time.
type Rates[K comparable] struct {
	Burst  int
	Refill time.Duration
	Max    int // keys

	mu sync.Mutex
	by map[K]bucket
}

type bucket struct {
	spent float64
	at    time.Time
}

func (r *Rates[K]) spent(b bucket, now time.Time) float64 {
	return max(0, b.spent-float64(max(0, now.Sub(b.at)))/float64(r.Refill)) // a clock may be set back
}

// Wait is how long a key has to wait; 0: it may.
func (r *Rates[K]) Wait(key K, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.wait(key, now)
}

func (r *Rates[K]) wait(key K, now time.Time) time.Duration {
	over := r.spent(r.by[key], now) - float64(r.Burst-1)
	return max(0, time.Duration(over*float64(r.Refill)))
}

// Take counts once, if the key may, and tells whether. There is no room for a new key while Max of them have done something lately.
func (r *Rates[K]) Take(key K, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.wait(key, now) == 0 && r.count(key, now)
}

// Count counts once in any case.
func (r *Rates[K]) Count(key K, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count(key, now)
}

func (r *Rates[K]) count(key K, now time.Time) bool {
	if _, known := r.by[key]; !known && len(r.by) >= r.Max {
		for k, b := range r.by {
			if r.spent(b, now) == 0 {
				delete(r.by, k)
			}
		}
		if len(r.by) >= r.Max {
			return false
		}
	}
	if r.by == nil {
		r.by = map[K]bucket{}
	}
	r.by[key] = bucket{r.spent(r.by[key], now) + 1, now}
	return true
}
