// Package stats turns the trials of a run into estimates with their uncertainty. It is pure and knows nothing of networks.
//
// The design is that of randomized multiple interleaved trials (Abedi and Brecht, "Conducting Repeatable Experiments in Highly Variable
// Cloud Computing Environments", ICPE 2017): a block holds one trial of every variant, in random order. What drifts in the machine between
// blocks cancels in the log-ratio of a variant to the baseline of the same block. The estimate is the median over blocks, its interval the
// bias-corrected and accelerated bootstrap (Efron 1987), the test a sign-flip permutation, corrected for several variants as Holm (1979).
// A duplicate of the baseline, measured like any variant, gives the noise floor below which nothing is claimed.
package stats
