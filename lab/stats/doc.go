// Package stats turns the trials of a run into estimates with their uncertainty. It is pure and knows nothing of networks.
//
// The design is that of randomized multiple interleaved trials (Abedi and Brecht, "Conducting Repeatable Experiments in Highly Variable
// Cloud Computing Environments", ICPE 2017): a block holds one trial of every variant, in random order. What drifts in the machine between
// blocks cancels in the log-ratio of a variant to the baseline of the same block. The estimate is the median over blocks. Its interval comes from the order statistics
// (order.go), needs no assumption on the noise, and has the coverage that it claims from six blocks on; the test is the one that belongs to the interval, corrected for
// several variants as Holm (1979). A variant is equivalent if a margin that was set beforehand holds its 90 % interval (TOST). A duplicate of the baseline,
// measured like any variant, shows what differs between things that are the same.
package stats
