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
// steps. Trials of pps and ndr must have counts; journals of former formats may lack them. Empty: the values follow from the counts, or it is a trial of another
// experiment.
func refused(h study.Header, p study.Part, r study.Record, steps []study.Step) string {
	counts := p.Experiment == experiment.PPS || p.Experiment == experiment.NDR
	switch {
	case r.Void != "" || r.Skipped != "" || !counts:
		return ""
	case len(r.Raw) == 0 && h.Format < study.FormatCounts:
		return ""
	case len(r.Raw) == 0:
		return "refused: it has no raw counts: the journal was edited, or written by another program; measure again"
	}
	var err error
	switch p.Experiment {
	case experiment.PPS:
		var n experiment.SentFrames
		if err = json.Unmarshal(r.Raw, &n); err == nil {
			err = errors.Join(n.Check(r.Values), checkBatch(n, r))
		}
	case experiment.NDR:
		err = checkSearch(h, r, steps)
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

// checkSearch checks the steps of a search, and that its results were verified. Journals of former formats may lack the counts of steps.
func checkSearch(h study.Header, r study.Record, steps []study.Step) error {
	var raw experiment.NDRRaw
	if err := json.Unmarshal(r.Raw, &raw); err != nil {
		return err
	}
	if len(raw.Verification) == 0 {
		if h.Format < study.FormatCounts {
			return nil
		}
		return errors.New("no result was verified: the journal was edited, or written by another program; measure again")
	}
	if err := checkGenerator(raw, steps); err != nil {
		return err
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

// checkGenerator checks what is said of the generator's limits, by which a result is a bound or is not.
func checkGenerator(raw experiment.NDRRaw, steps []study.Step) error {
	denied, ceilings := 0.0, 0
	for _, s := range steps {
		switch offered, told := s.Values[experiment.ValueOffered]; {
		case s.Void != "":
		case s.What == experiment.StepCeiling:
			ceilings++
			if got := s.Values[experiment.ValueArrived]; math.Abs(got-raw.Ceiling) > 1e-5*raw.Ceiling {
				return fmt.Errorf("the generator's ceiling is said to be %.0f frames a second: step %d says %.0f", raw.Ceiling, s.N, got)
			}
		case experiment.Offers(s.What) && told && offered < experiment.LeastOffered && s.Values[experiment.ValueStalled] <= experiment.MostStalled && (denied == 0 || s.Load < denied):
			denied = s.Load
		}
	}
	if ceilings != 1 {
		return fmt.Errorf("the generator's ceiling was measured by %d steps that count: want one", ceilings)
	}
	if denied != raw.Denied {
		return fmt.Errorf("the least load that was not offered is said to be %.0f frames a second: by the steps it is %.0f", raw.Denied, denied)
	}
	return nil
}

// VerifiedBy are the steps that verified a result: those at its load that count. What met NDR has met PDR, which then has no steps of its own there.
func VerifiedBy(v search.Verified, steps []study.Step) []study.Step {
	by := map[string][]study.Step{}
	for _, s := range steps {
		if s.Void == "" && s.Load == v.Load && experiment.CountsAs(s.Values) {
			by[s.What] = append(by[s.What], s)
		}
	}
	if own := by[experiment.StepPDR]; v.Goal == experiment.GoalPDR && len(own) > 0 {
		return own
	}
	return by[experiment.StepNDR]
}

// checkVerified reports results that the steps did not verify, and values that are not the results. The steps' own values were checked.
func checkVerified(raw experiment.NDRRaw, values map[string]float64, steps []study.Step) error {
	results := map[string]float64{} // of what was verified
	for _, v := range raw.Verification {
		if v.Load <= 0 {
			if err := checkNone(raw, v, steps); err != nil {
				return err
			}
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
		// What was not found is 0, or missing: what is known of it follows from the counts alone.
		got, ok := values[metric]
		if want, known := results[metric]; known && !ok || math.Abs(got-want) > 1e-9*want {
			return fmt.Errorf("%s is said to be %v: verified is %v", metric, got, want)
		}
	}
	return nil
}

// checkNone: that no load was found is a result, too. No load may have been verified, and the load below which the result is must have been refused by a step
// that counts and lost too much.
func checkNone(raw experiment.NDRRaw, v search.Verified, steps []study.Step) error {
	type trials struct {
		what string
		load float64
	}
	passed := map[trials]int{}
	for _, s := range steps {
		if verifies := s.What == experiment.StepNDR || s.What == experiment.StepPDR && v.Goal == experiment.GoalPDR; !verifies || s.Void != "" || !experiment.CountsAs(s.Values) {
			continue
		}
		at := trials{s.What, s.Load}
		if loss := s.Values[experiment.ValueLoss]; loss > 0 && (s.What == experiment.StepNDR || loss >= experiment.PDRLoss) {
			passed[at] = 0
		} else if passed[at]++; passed[at] == search.VerifyTrials {
			return fmt.Errorf("%s is said not to be found: %d trials verified %.0f frames a second", v.Goal, search.VerifyTrials, s.Load)
		}
	}
	r, ok := raw.Range(v.Goal)
	if !ok {
		return nil
	}
	for _, s := range steps {
		loss := s.Values[experiment.ValueLoss]
		if s.Void == "" && experiment.Offers(s.What) && s.Load == r.High && experiment.CountsAs(s.Values) && loss > 0 &&
			(v.Goal == experiment.GoalNDR || loss >= experiment.PDRLoss) {
			return nil
		}
	}
	return fmt.Errorf("%s is said to be less than %.0f frames a second: no step lost too much there", v.Goal, r.High)
}
