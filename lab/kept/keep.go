package kept

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"weir.dev/weir/lab"
	"weir.dev/weir/lab/study"
)

// ErrRefused says that a run cannot be kept.
var ErrRefused = errors.New("not kept")

// Order is what to keep.
type Order struct {
	Top    string // of the repository
	Run    string // directory of a finished run, or of repeated ones
	Why    string // it was made
	AddsTo string // a run that is kept already, which this one repeats or comes after
}

// Keep puts a finished run among those that are kept, as a new directory and a new row. Nothing that is there changes. It refuses a run that is not
// complete, whose tree had changes or whose commit the repository does not have, that does not say where it was made, or that is kept already.
func Keep(ctx context.Context, o Order) (Row, error) {
	if strings.TrimSpace(o.Why) == "" {
		return Row{}, fmt.Errorf("%w: say why the run was made: WHY=\"...\"", ErrRefused)
	}
	dir := filepath.Join(o.Top, Dir)
	x, err := ReadIndex(dir)
	if err != nil {
		return Row{}, err
	}
	if o.AddsTo != "" {
		if _, err := x.Row(o.AddsTo); err != nil {
			return Row{}, fmt.Errorf("%w: %w", ErrRefused, err)
		}
	}
	row, err := rowOf(ctx, o)
	if err != nil {
		return row, err
	}
	for _, other := range x.Runs {
		for file, sum := range other.Raw {
			if row.Raw[file] == sum {
				return row, fmt.Errorf("%w: %s is kept already, as %s", ErrRefused, o.Run, other.Run)
			}
		}
	}
	if row.Run, err = freeName(dir, row); err != nil {
		return row, err
	}
	x.Runs = append(x.Runs, row)
	slices.SortStableFunc(x.Runs, func(a, b Row) int { return a.Started.Compare(b.Started) })
	return row, place(dir, o.Run, row, x)
}

// place the run's files, then its row. What an error left of the files is removed.
func place(dir, from string, row Row, x Index) error {
	to := filepath.Join(dir, row.Run)
	err := copyRaw(from, to, slices.Sorted(maps.Keys(row.Raw)))
	if err == nil {
		var have map[string]string
		have, err = digestsOf(dir, row.Run)
		if err == nil && !maps.Equal(have, row.Raw) {
			err = fmt.Errorf("%s changed while it was copied", from)
		}
	}
	if err == nil {
		err = x.write(dir)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("keep %s: %w", from, err), os.RemoveAll(to))
	}
	return nil
}

// freeName of a run: wires-quick-2026-11-24, or with -2 and on behind it.
func freeName(dir string, r Row) (string, error) {
	name := r.Study + "-" + r.Mode + "-" + r.Started.Format("2006-01-02")
	const most = 100 // of a day
	for n := 1; n <= most; n++ {
		free := name
		if n > 1 {
			free += "-" + strconv.Itoa(n)
		}
		if _, err := os.Lstat(filepath.Join(dir, free)); errors.Is(err, os.ErrNotExist) {
			return free, nil
		} else if err != nil {
			return "", err
		}
	}
	return "", fmt.Errorf("%w: %d runs of a day are called %s", ErrRefused, most, name)
}

// rowOf a run, without its name.
func rowOf(ctx context.Context, o Order) (Row, error) {
	headers, parts, err := headersOf(o.Run)
	if err != nil {
		return Row{}, err
	}
	first := headers[0]
	row := Row{Study: first.Study.Name, Mode: string(first.Mode), Started: first.Started.UTC(), Version: first.Version, Why: o.Why, AddsTo: o.AddsTo}
	if row.Machine, err = machineOf(first.Environment); err != nil {
		return row, fmt.Errorf("%w: %s: %w", ErrRefused, o.Run, err)
	}
	for _, h := range headers[1:] {
		if h.Environment["cpu"] != first.Environment["cpu"] || h.Environment["kernel"] != first.Environment["kernel"] {
			return row, fmt.Errorf("%w: %s was made on %s with Linux %s and on %s with %s: two runs", ErrRefused, o.Run,
				first.Environment["cpu"], first.Environment["kernel"], h.Environment["cpu"], h.Environment["kernel"])
		}
	}
	for _, part := range slices.Sorted(maps.Keys(parts)) {
		by := parts[part]
		if len(by) > 1 {
			return row, fmt.Errorf("%w: part %s of %s was made by the versions %s: two runs", ErrRefused, part, o.Run, strings.Join(by, ", "))
		}
		if by[0] == row.Version {
			continue
		}
		i := slices.IndexFunc(row.Later, func(l Later) bool { return l.Version == by[0] })
		if i < 0 {
			commit, err := commitOf(ctx, o.Top, by[0])
			if err != nil {
				return row, fmt.Errorf("%w: %s: %w", ErrRefused, o.Run, err)
			}
			i, row.Later = len(row.Later), append(row.Later, Later{Version: by[0], Commit: commit})
		}
		row.Later[i].Parts = append(row.Later[i].Parts, part)
	}
	if row.Commit, err = commitOf(ctx, o.Top, row.Version); err != nil {
		return row, fmt.Errorf("%w: %s: %w", ErrRefused, o.Run, err)
	}
	row.Raw, err = walk(o.Run, false)
	return row, err
}

// headersOf the journals of a run that is complete, and of each time that it went on otherwise than it had been; and by which versions each part was made.
func headersOf(run string) (all []study.Header, parts map[string][]string, err error) {
	parts = map[string][]string{}
	dirs := []string{run}
	if lab.Repeated(run) {
		r, err := lab.ReportRepeated(run)
		if err != nil {
			return nil, nil, err
		}
		if len(r.Runs) < r.Planned {
			return nil, nil, fmt.Errorf("%w: %s is not over: %d of %d runs; weir lab resume goes on with it", ErrRefused, run, len(r.Runs), r.Planned)
		}
		dirs = nil
		for _, one := range r.Runs {
			dirs = append(dirs, filepath.Join(run, one.Dir))
		}
	}
	for _, dir := range dirs {
		j, err := study.Read(dir)
		if err != nil {
			return nil, nil, err
		}
		if left := len(j.Left()); left > 0 {
			return nil, nil, fmt.Errorf("%w: %s is not over: %d trials are left; weir lab resume goes on with it", ErrRefused, dir, left)
		}
		all = append(all, j.Header)
		for _, r := range j.Resumed {
			again := j.Header
			again.Version, again.Environment = r.Version, r.Environment
			all = append(all, again)
		}
		for _, r := range j.Records {
			if by := j.VersionAt(r.Begun); !slices.Contains(parts[r.Trial.Part], by) {
				parts[r.Trial.Part] = append(parts[r.Trial.Part], by)
			}
		}
	}
	return all, parts, nil
}

func machineOf(environment map[string]string) (Machine, error) {
	cpus, _ := strconv.Atoi(environment["cpus"])
	memory, _ := strconv.Atoi(environment["memory_mib"])
	m := Machine{CPU: environment["cpu"], CPUs: cpus, Kernel: environment["kernel"], MemoryMiB: memory}
	if !m.whole() {
		return m, fmt.Errorf("its environment does not say the CPU's model, how many CPUs, the kernel and the memory: %v", environment)
	}
	return m, nil
}

func dirty(version string) bool { return strings.HasSuffix(version, "-dirty") }

// described is what `git describe --tags --always` prints where no tag is at the commit: the commit, or a tag, a number and the commit.
var described = regexp.MustCompile(`^(?:.*-[0-9]+-g)?([0-9a-f]{7,40})$`)

// commitOf a version, which `make build` stamps. It is part of the history of what is checked out: whoever clones the repository has it.
func commitOf(ctx context.Context, top, version string) (string, error) {
	if dirty(version) {
		return "", fmt.Errorf("version %s was built from a tree with changes, which no commit has: commit them, `make build`, and run it again", version)
	}
	name := "refs/tags/" + version
	if m := described.FindStringSubmatch(version); m != nil {
		name = m[1]
	}
	commit, err := git(ctx, top, "rev-parse", "--verify", "--quiet", name+"^{commit}")
	if err != nil {
		return "", fmt.Errorf("version %q is no commit of this repository: build the weir that runs the study with `make build`: %w", version, err)
	}
	commit = strings.TrimSpace(commit)
	if _, err := git(ctx, top, "merge-base", "--is-ancestor", commit, "HEAD"); err != nil {
		return "", fmt.Errorf("version %s is not in the history of what is checked out: nobody else would have it: %w", version, err)
	}
	return commit, nil
}

// git prints what a command of git in the repository prints.
func git(ctx context.Context, top string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, "git", append([]string{"-c", "safe.directory=*", "-C", top}, args...)...)
	out, err := c.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return "", fmt.Errorf("git %s: %w", args[0], err)
	}
	return string(out), nil
}
