// Package lab tests `weir lab` as a user runs it: the real binary, real chains, kill -9 in the middle, and a host that is as it was before.
package lab
