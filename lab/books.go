package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/search"
	"weir.dev/weir/lab/study"
)

// mostRefused trials are listed.
const mostRefused = 20

// refused tells why a trial's values cannot be believed: its loss is computed anew from the raw counts in the journal, of each step where a trial has
// steps. Empty: the values follow from the counts, or the trial has none.
func refused(p study.Part, r study.Record, steps []study.Step) string {
	if r.Void != "" || r.Skipped != "" || len(r.Raw) == 0 {
		return ""
	}
	var err error
	switch p.Experiment {
	case experiment.PPS:
		var n experiment.SentFrames
		if err = json.Unmarshal(r.Raw, &n); err == nil {
			err = errors.Join(n.Check(r.Values), checkBatch(n, r))
		}
	case experiment.NDR:
		err = checkSearch(r, steps)
	}
	if err != nil {
		return "refused: its values contradict its raw counts: " + err.Error()
	}
	return ""
}

// checkBatch: by the batch in its conditions a trial is compared. Older versions did not write it there.
func checkBatch(n experiment.SentFrames, r study.Record) error {
	if said := experiment.BatchOf(r.Conditions); said != 0 && said != n.Batch {
		return fmt.Errorf("%d frames are said to enter at a time: they were sent in batches of %d", said, n.Batch)
	}
	return nil
}

// checkSearch checks the steps of a search, and that its results were verified. Runs of versions that did not keep the counts of steps have none to check.
func checkSearch(r study.Record, steps []study.Step) error {
	var raw experiment.NDRRaw
	if err := json.Unmarshal(r.Raw, &raw); err != nil {
		return err
	}
	if len(raw.Verification) == 0 {
		return nil
	}
	for _, s := range steps {
		if s.Void != "" || !experiment.Offers(s.What) {
			continue
		}
		var f experiment.Frames
		err := json.Unmarshal(s.Raw, &f)
		if err == nil {
			err = f.Check(s.Values)
		}
		if err != nil {
			return fmt.Errorf("step %d (%s): %w", s.N, s.What, err)
		}
	}
	return checkVerified(raw, r.Values, steps)
}

// VerifiedBy are the steps that verified a result: those at its load that count. What met NDR has met PDR.
func VerifiedBy(v search.Verified, steps []study.Step) (out []study.Step) {
	for _, s := range steps {
		verifies := s.What == experiment.StepNDR || s.What == experiment.StepPDR && v.Goal == experiment.GoalPDR
		if verifies && s.Void == "" && s.Load == v.Load && experiment.CountsAs(s.Values) {
			out = append(out, s)
		}
	}
	return out
}

// checkVerified reports results that the steps did not verify, and values that are not the results. The steps' own values were checked.
func checkVerified(raw experiment.NDRRaw, values map[string]float64, steps []study.Step) error {
	results := map[string]float64{}
	for _, v := range raw.Verification {
		if v.Load <= 0 {
			continue
		}
		results[experiment.MetricOf(v.Goal)] = v.Load / 1e6
		by := VerifiedBy(v, steps)
		if len(by) < search.VerifyTrials {
			return fmt.Errorf("%s of %.0f frames a second was verified by %d trials: want %d", v.Goal, v.Load, len(by), search.VerifyTrials)
		}
		for _, s := range by {
			if loss := s.Values[experiment.ValueLoss]; loss > 0 && (v.Goal == experiment.GoalNDR || loss >= experiment.PDRLoss) {
				return fmt.Errorf("%s of %.0f frames a second: step %d lost %.4f %%", v.Goal, v.Load, s.N, loss*100)
			}
		}
	}
	for _, metric := range []string{experiment.MetricNDR, experiment.MetricPDR} {
		got, ok := values[metric]
		if want := results[metric]; ok != (want > 0) || math.Abs(got-want) > 1e-9*want {
			return fmt.Errorf("%s is said to be %v: verified is %v", metric, got, want)
		}
	}
	return nil
}
