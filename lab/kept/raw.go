package kept

import (
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"weir.dev/weir/instance"
	"weir.dev/weir/lab/study"
)

const repeatsName = "repeat.json"

// mostFiles of a run: repeated runs have a journal each.
const mostFiles = 2000

// made are the files that `weir lab report` writes into a run's directory. They follow from the raw data, and are not kept.
var made = []string{"report.html", "report.md", "report.json", "report.schema.json", "results.json", "progress.json", "trials.csv", "summary.csv", "benchstat.txt", "figures"}

// both are the keys of two maps, sorted.
func both[V any](a, b map[string]V) []string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return slices.Sorted(maps.Keys(all))
}

// digestsOf a run's raw files, by their names without .gz below the run.
func digestsOf(dir, run string) (map[string]string, error) {
	path := filepath.Join(dir, run)
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !st.IsDir() {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		sum, err := digest(f)
		return map[string]string{run: sum}, err
	}
	return walk(path, true)
}

// walk gives the digests of the raw files below a run's directory. strict refuses files of which it does not know what they are.
func walk(path string, strict bool) (map[string]string, error) {
	out := map[string]string{}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		name := filepath.Join(path, e.Name())
		switch {
		case slices.Contains(made, e.Name()):
		case e.Name() == study.JournalFile || e.Name() == study.JournalKept:
			raw, _, err := study.OpenRaw(path)
			if err != nil {
				return nil, err
			}
			if out[study.JournalFile], err = digest(raw); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		case e.Name() == repeatsName:
			f, err := os.Open(name)
			if err != nil {
				return nil, err
			}
			if out[e.Name()], err = digest(f); err != nil {
				return nil, err
			}
		case e.IsDir() && !strings.HasPrefix(e.Name(), "."):
			below, err := walk(name, strict)
			if err != nil {
				return nil, err
			}
			for file, sum := range below {
				out[e.Name()+"/"+file] = sum
			}
		case strict:
			return nil, fmt.Errorf("%s is no file of a run", name)
		}
		if len(out) > mostFiles {
			return nil, fmt.Errorf("%s has more than %d files", path, mostFiles)
		}
	}
	return out, nil
}

// digest closes what it read.
func digest(raw io.ReadCloser) (string, error) {
	h := sha256.New()
	_, err := io.Copy(h, raw)
	return hex.EncodeToString(h.Sum(nil)), errors.Join(err, raw.Close())
}

// copyRaw puts the raw files of a run into a new directory, journals compressed.
func copyRaw(from, to string, files []string) error {
	for _, file := range files {
		target := filepath.Join(to, filepath.FromSlash(file))
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		if filepath.Base(file) != study.JournalFile {
			text, err := os.ReadFile(filepath.Join(from, filepath.FromSlash(file)))
			if err == nil {
				err = instance.Replace(target, text, 0o644)
			}
			if err != nil {
				return err
			}
			continue
		}
		if err := compress(filepath.Dir(filepath.Join(from, filepath.FromSlash(file))), filepath.Dir(target)); err != nil {
			return err
		}
	}
	return nil
}

// compress the journal of one directory into another one. The same journal gives the same bytes.
func compress(from, to string) (err error) {
	raw, _, err := study.OpenRaw(from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, raw.Close()) }()
	f, err := os.OpenFile(filepath.Join(to, study.JournalKept), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	z, err := gzip.NewWriterLevel(f, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := io.Copy(z, raw); err != nil {
		return err
	}
	return errors.Join(z.Close(), f.Sync())
}
