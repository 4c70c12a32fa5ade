// Package lab measures chains of network functions, Weir's and others', on machines that are noisy: it runs a study (lab/study) trial by trial
// under an interleaved schedule, with the covariates that void a trial fixed in advance, and writes each to a journal, so that a run that was
// killed goes on where it stopped.
//
// It owns the engine and the form of results. lab/experiment has what is measured, lab/stats estimates and tests, lab/traffic makes load,
// lab/platform builds what is compared. DESIGN.md has the flow and what may be claimed.
package lab
