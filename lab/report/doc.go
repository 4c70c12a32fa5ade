// Package report tells what a run of the lab found: lab.Summarise computes the results from the journal, Build adds what a reader needs
// (findings in sentences, whether the run can be trusted, chain laws, distributions), Write renders. Analysis and rendering are pure; only Build
// reads a directory and only Write writes one. No network, no fonts or scripts from elsewhere.
package report
