package file

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"weir.dev/weir/api"
)

// Problem is one thing that is wrong, with the line of the file it stands in.
type Problem struct {
	api.Problem
	Source string
}

// Error holds all problems that were found, in the order of the files. It is api.ErrInvalid.
type Error struct{ Problems []Problem }

func (e *Error) Is(target error) bool { return target == api.ErrInvalid }

func (e *Error) Error() string {
	var b strings.Builder
	for i, p := range e.Problems {
		if i == maxProblems {
			fmt.Fprintf(&b, "\nand %d more", len(e.Problems)-i)
			break
		}
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(p.String())
	}
	return b.String()
}

// String is "file:line:column: path: message (hint)", then the line and a caret under the column.
func (p Problem) String() string {
	if p.Line == 0 {
		return p.Problem.String()
	}
	return p.Problem.String() + "\n" + excerpt(p.Source, p.Line, p.Column)
}

// excerptWidth is how much of a long line is shown around the column.
const excerptWidth = 100

// excerpt shows a source line with a caret under its column, safe for a terminal.
func excerpt(source string, line, column int) string {
	text := []rune(source)
	for i, r := range text {
		if r != '\t' && !unicode.IsPrint(r) {
			text[i] = '?'
		}
	}
	at := min(max(column-1, 0), len(text))
	lead, tail := "", ""
	if at > excerptWidth*3/4 {
		cut := at - excerptWidth/2
		text, at, lead = text[cut:], at-cut, "..."
	}
	if len(text) > excerptWidth {
		text, tail = text[:excerptWidth], "..."
	}
	pad := make([]rune, at)
	for i := range pad {
		pad[i] = ' '
		if text[i] == '\t' {
			pad[i] = '\t'
		}
	}
	gutter := fmt.Sprintf("%6d | ", line)
	return gutter + lead + string(text) + tail + "\n" +
		strings.Repeat(" ", len(gutter)-2) + "| " + strings.Repeat(" ", len(lead)) + string(pad) + "^"
}

func invalid(name, format string, args ...any) error {
	return &Error{Problems: []Problem{{Problem: api.Problem{File: name, Message: fmt.Sprintf(format, args...)}}}}
}

func (f *File) line(p Position) string {
	lines := f.sources[p.File]
	if p.Line < 1 || p.Line > len(lines) {
		return ""
	}
	return lines[p.Line-1]
}

// Locate finds the place of a path such as "policies.guests.match[0]" or, when the file does not have it (a default, a
// field that is missing), of the nearest thing around it, up to the object. Other objects are not in the file.
func (f *File) Locate(path string) (Position, bool) {
	object := strings.SplitAfterN(path, ".", 3)
	least := len(strings.TrimSuffix(strings.Join(object[:min(2, len(object))], ""), "."))
	for exact := true; len(path) >= least; exact = false {
		if p, ok := f.places[path]; ok {
			if exact && p.value.Line > 0 {
				return p.value, true
			}
			return p.key, true
		}
		i := strings.LastIndexAny(path, ".[")
		if i < 0 {
			return Position{}, false
		}
		path = path[:i]
	}
	return Position{}, false
}

// Explain puts what a validation found in its places in the files, in their order; nil if it found nothing.
func (f *File) Explain(found []api.Problem) error {
	if len(found) == 0 {
		return nil
	}
	problems := make([]Problem, 0, len(found))
	for _, v := range found {
		p := Problem{Problem: v}
		if at, ok := f.Locate(v.Path); ok {
			p.File, p.Line, p.Column, p.Source = at.File, at.Line, at.Column, f.line(at)
		} else {
			p.File = strings.Join(sortedKeys(f.sources), ", ")
		}
		problems = append(problems, p)
	}
	slices.SortStableFunc(problems, func(a, b Problem) int {
		return cmp.Or(strings.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return &Error{Problems: problems}
}

// Suggest returns a hint with the likeliest of the known words, `did you mean "x"?`, or nothing.
func Suggest(word string, known []string) string {
	best, limit := "", max(1, min(3, len(word)/2))
	for _, k := range known {
		if d := distance(strings.ToLower(word), k); d <= limit {
			best, limit = k, d-1
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("did you mean %q?", best)
}

// Choose is what to say of a word that is not among those known: Suggest, or all of them.
func Choose(word string, known []string) string {
	if hint := Suggest(word, known); hint != "" {
		return hint
	}
	return "want one of " + strings.Join(known, ", ")
}

// distance is the optimal string alignment distance: insertions, deletions, substitutions and swaps of neighbours.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		d[i][0] = i
	}
	for j := range d[0] {
		d[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			d[i][j] = min(d[i-1][j]+1, d[i][j-1]+1, d[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}
