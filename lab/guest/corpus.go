package guest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// A corpus is text to compress: words of a vocabulary whose frequencies follow Zipf's law, in sentences and paragraphs with some markup, as an
// encyclopedia's dump has them. The same seed and size give the same bytes on every machine: there is no arithmetic but that of whole numbers.

const (
	corpusSeed = 2016 // of the study's paper
	vocabulary = 50_000
	mib        = 1 << 20
	// MaxCorpus in MiB.
	MaxCorpus = 4096
)

// writeCorpus of so many bytes.
func writeCorpus(w io.Writer, seed uint64, size int64) error {
	r := rand.New(rand.NewPCG(seed, 0))
	words := makeWords(r)
	out := bufio.NewWriterSize(&limited{w, size}, mib)
	for page := 0; ; page++ {
		if _, err := fmt.Fprintf(out, "<page><title>%s %s</title><id>%d</id><text>\n", words.next(r), words.next(r), page); err != nil {
			return done(err)
		}
		for range 3 + r.IntN(12) {
			if err := writeParagraph(out, r, words); err != nil {
				return done(err)
			}
		}
		if _, err := out.WriteString("</text></page>\n"); err != nil {
			return done(err)
		}
	}
}

// words of a vocabulary, and how often one of the first n is taken.
type words struct {
	list []string
	upTo []uint64
}

// makeWords of syllables, the frequent ones shorter.
func makeWords(r *rand.Rand) (w words) {
	const consonants, vowels = "bcdfghklmnprstvwz", "aeiouy"
	sum := uint64(0)
	for i := range vocabulary {
		n := len(strconv.Itoa(i+10))/2 + r.IntN(3)
		var word []byte
		for range n {
			word = append(word, consonants[r.IntN(len(consonants))], vowels[r.IntN(len(vowels))])
			if r.IntN(3) == 0 {
				word = append(word, consonants[r.IntN(len(consonants))])
			}
		}
		sum += 1_000_000_000 / uint64(i+4)
		w.list, w.upTo = append(w.list, string(word)), append(w.upTo, sum)
	}
	return w
}

// next word, the n-th one with a frequency of 1 by n.
func (w words) next(r *rand.Rand) string {
	i, _ := slices.BinarySearch(w.upTo, r.Uint64N(w.upTo[len(w.upTo)-1]))
	return w.list[i]
}

func writeParagraph(out *bufio.Writer, r *rand.Rand, words words) error {
	for range 2 + r.IntN(6) {
		n := 4 + r.IntN(20)
		for i := range n {
			word := words.next(r)
			switch r.IntN(40) {
			case 0:
				word = "[[" + word + "]]"
			case 1:
				word = fmt.Sprint(r.IntN(2100))
			}
			end := " "
			if i == n-1 {
				end = ". "
			}
			if _, err := out.WriteString(word + end); err != nil {
				return err
			}
		}
	}
	return out.WriteByte('\n')
}

// limited takes so many bytes, and is full then.
type limited struct {
	w    io.Writer
	left int64
}

var errFull = errors.New("full")

func (l *limited) Write(p []byte) (int, error) {
	n, err := l.w.Write(p[:min(int64(len(p)), l.left)])
	if l.left -= int64(n); err == nil && l.left == 0 {
		err = errFull
	}
	return n, err
}

func done(err error) error {
	if errors.Is(err, errFull) {
		return nil
	}
	return err
}

// corpus makes the file of a corpus in a directory, once, and gives its name there. It is there whole or not at all; one of another size is made anew.
func corpus(dir string, mebibytes int) (name string, err error) {
	size := int64(mebibytes) * mib
	name = fmt.Sprintf("corpus-%d", mebibytes)
	path := filepath.Join(dir, name)
	switch st, err := os.Stat(path); {
	case err == nil && st.Size() == size:
		return name, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return name, err
	}
	if err := room(dir, size, "a corpus"); err != nil {
		return name, err
	}
	half := path + ".half"
	f, err := os.Create(half)
	if err != nil {
		return name, err
	}
	err = errors.Join(writeCorpus(f, corpusSeed, size), f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(half, path)
	}
	if err != nil {
		return name, errors.Join(fmt.Errorf("corpus of %d MiB: %w", mebibytes, err), os.Remove(half))
	}
	return name, nil
}

// spare is what a disk keeps for others.
const spare = 256 * mib

// room tells that a disk is too small for what is to be written, before half of it is.
func room(dir string, want int64, what string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("free space of %s: %w", dir, err)
	}
	if free := int64(st.Bavail) * st.Bsize; free < want+spare {
		return fmt.Errorf("%w: disk too small: %s has %d MiB free, %s of %d MiB wants %d beside it", ErrOther, dir, free/mib, what, want/mib, spare/mib)
	}
	return nil
}
