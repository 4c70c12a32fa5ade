// Package cpuset reads and writes sets of processors as the kernel does: "0-3,5" (cgroup-v2.rst, cpuset.cpus).
package cpuset

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Max is the greatest number of a processor (NR_CPUS of the largest kernels).
const Max = 8191

// maxText of a set, in bytes: more than all numbers, each by itself.
const maxText = 64 << 10

// Set is processors by number, in rising order, each once.
type Set []int

// Parse reads numbers and ranges, with commas between. Empty: no processor.
func Parse(text string) (Set, error) {
	var s Set
	if text == "" {
		return s, nil
	}
	if len(text) > maxText {
		return nil, fmt.Errorf("processors: %d bytes of text: want at most %d: numbers from 0 to %d and ranges, as in 0-3,5", len(text), maxText, Max)
	}
	var in [Max + 1]bool // ranges may overlap any number of times
	for _, part := range strings.Split(text, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err := strconv.ParseUint(from, 10, 16)
		last, lerr := strconv.ParseUint(to, 10, 16)
		if err != nil || lerr != nil || first > last || last > Max {
			return nil, fmt.Errorf("processors %.100q: want numbers from 0 to %d and ranges, as in 0-3,5", text, Max)
		}
		for n := first; n <= last; n++ {
			in[n] = true
		}
	}
	for n, there := range in {
		if there {
			s = append(s, n)
		}
	}
	return s, nil
}

// String is a set in the kernel's form: ranges as long as possible, in rising order.
func (s Set) String() string {
	var parts []string
	for i := 0; i < len(s); {
		end := i
		for end+1 < len(s) && s[end+1] == s[end]+1 {
			end++
		}
		text := strconv.Itoa(s[i])
		if end > i {
			text += "-" + strconv.Itoa(s[end])
		}
		parts = append(parts, text)
		i = end + 1
	}
	return strings.Join(parts, ",")
}

// Online are the processors of this machine that the kernel uses.
func Online() (Set, error) {
	const file = "/sys/devices/system/cpu/online"
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	s, err := Parse(strings.TrimSpace(string(raw)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return s, nil
}

// Allowed are the processors that this process may run on.
func Allowed() (s Set, err error) {
	var own unix.CPUSet
	if err := unix.SchedGetaffinity(0, &own); err != nil {
		return nil, fmt.Errorf("affinity: %w", err)
	}
	for n := range len(own) * 64 {
		if own.IsSet(n) {
			s = append(s, n)
		}
	}
	return s, nil
}

// Without are the processors of a set that another lacks.
func (s Set) Without(other Set) Set {
	return slices.DeleteFunc(slices.Clone(s), func(n int) bool { return slices.Contains(other, n) })
}
