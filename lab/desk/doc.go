// Package desk is the lab as a daemon offers it: a directory of runs, one run at a time, started, followed, ended, and read.
//
// Whatever measures or reads a whole journal is a process of its own, of this program (weir lab run, report, compare, doctor): a run that eats memory, or a journal
// that does, takes no daemon with it. A run's process is signalled when the daemon ends, however that ends, and takes down what it made. What it cannot, since it was
// killed itself, is swept at the daemon's next start, and the run can go on from its last trial.
//
// It does not own what a run is (lab), nor what a directory of results holds (lab/study).
package desk
