// Package kept has the runs that the project publishes. They lie in docs/results: raw data, compressed, and an index that says of each run what it is,
// what was measured, where, and why. A run that is kept is never changed or removed. The pages' figures are generated from the runs that are kept:
// docs/results/figures.yaml selects them.
//
// It does not measure, and it has no say in what the figures mean: lab and lab/stats do that. recompute.py computes the same figures from the
// same raw data without any of our code.
package kept

//go:generate go run ./tool figures ../..
//go:generate go run ./tool papers ../..
