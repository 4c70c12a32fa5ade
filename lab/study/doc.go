// Package study is what a study of the lab is made of, without running it: the declarative file, the schedule that follows from it and a seed,
// and the journal of trials. Package lab runs studies, lab/stats evaluates them, lab/report reports.
//
// A part compares the levels of one factor. For each combination of the other factors (a group) every block holds one trial of each level, and
// one more of the baseline under another name: its duplicate. The order within a block is random, the blocks follow each other.
package study
