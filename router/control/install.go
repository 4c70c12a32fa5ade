package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"weir.dev/weir/openflow"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/rollout"
)

// FlowMods are an output's entries as they are sent to each switch, in order, with round 0.
func FlowMods(out fabric.Output) (map[fabric.SwitchID][]openflow.FlowMod, error) {
	mods := make(map[fabric.SwitchID][]openflow.FlowMod, len(out.Entries))
	for id, entries := range out.Entries {
		rules, err := ordered(entries)
		if err != nil {
			return nil, err
		}
		mods[id] = make([]openflow.FlowMod, 0, len(rules))
		for _, r := range rules {
			mods[id] = append(mods[id], r.Mod(0))
		}
	}
	return mods, nil
}

// Install brings a whole output into force at switches that have none of it, all at once, and returns how many entries that were.
// It is for measurements and for tools without an API; a running Controller does it step by step.
func Install(ctx context.Context, conns map[fabric.SwitchID]*openflow.Conn, out fabric.Output) (int, error) {
	ids := slices.Sorted(maps.Keys(out.Entries))
	for _, id := range ids {
		if conns[id] == nil {
			return 0, fmt.Errorf("switch %s has no connection", id)
		}
	}
	var wg sync.WaitGroup
	var n atomic.Int64
	errs := make([]error, len(ids))
	for i, id := range ids { // while one switch works, the next one's messages are made
		wg.Go(func() {
			count, err := installAt(ctx, conns[id], out.Entries[id])
			if n.Add(int64(count)); err != nil {
				errs[i] = fmt.Errorf("switch %s: %w", id, err)
			}
		})
	}
	wg.Wait()
	return int(n.Load()), errors.Join(errs...)
}

func installAt(ctx context.Context, conn *openflow.Conn, entries []*fabric.Entry) (int, error) {
	rules, err := ordered(entries)
	if err != nil {
		return 0, err
	}
	s := &session{conn: conn, bundles: true, log: slog.New(slog.DiscardHandler)}
	for part := range slices.Chunk(rules, rollout.MaxBatch) {
		no, err := s.apply(ctx, rollout.Batch{Add: part}, 0)
		if err == nil && len(no) > 0 {
			err = no[0].err
		}
		if err != nil {
			return 0, err
		}
	}
	return len(rules), nil
}

// ordered encodes one switch's entries, in the order in which they are installed.
func ordered(entries []*fabric.Entry) ([]*rollout.Rule, error) {
	c := rollout.Encoder{}
	rules := make([]*rollout.Rule, 0, len(entries))
	for _, e := range entries {
		var err error
		if rules, err = c.Encode(rules, e); err != nil {
			return nil, fmt.Errorf("policy %q: %w", e.Policy, err)
		}
	}
	slices.SortFunc(rules, rollout.Order)
	return rules, nil
}
