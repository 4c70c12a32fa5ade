// Package file reads Weir's declarative file: YAML (or JSON) maps of name to spec.
//
// It owns the strict decoding into api.Document, the place (file, line, column) of everything in it, the merge of several
// files, and the published JSON Schema. It does not judge values: that is the API's validation, the same on the server and offline;
// Explain turns its findings back into places in the files.
package file

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"weir.dev/weir/api"
)

// Bounds on what is read. They keep a mistake (a disk image, a directory of logs) from eating the machine.
const (
	MaxBytes    = 4 << 20 // of one file
	MaxFiles    = 1000
	maxTotal    = 64 << 20
	maxNodes    = 1 << 20 // after aliases are expanded
	maxNesting  = 32
	maxProblems = 20 // reported; the rest is counted
	maxPath     = 200
)

// Stdin is the path that means standard input.
const Stdin = "-"

// File is a decoded document, from one source or merged from several.
type File struct {
	Document api.Document
	Secrets  map[string]SecretSource // nil: no section of them
	places   map[string]place        // path, for example "policies.guests.match[0]"
	sources  map[string][]string
}

// place of a path (as api.Problem writes it): where its key stands and where its value.
type place struct{ key, value Position }

// Position in a source. Lines and columns count from 1, columns in characters.
type Position struct {
	File         string
	Line, Column int
}

func (p Position) String() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// Load reads and merges files and directories (their *.yaml, *.yml and *.json, not deeper); "-" is stdin. What is wrong
// with the content comes back as *Error with every problem found; what cannot be read as it is.
func Load(paths []string, stdin io.Reader) (*File, error) {
	names, err := expand(paths)
	if err != nil {
		return nil, err
	}
	merged := &File{places: map[string]place{}, sources: map[string][]string{}}
	var problems []Problem
	total := 0
	for _, name := range names {
		data, err := read(name, stdin)
		if err != nil {
			return nil, err
		}
		if total += len(data); total > maxTotal {
			return nil, invalid(name, "the files together are larger than %d MiB; apply them in parts", maxTotal>>20)
		}
		f, err := Parse(display(name), data)
		var bad *Error
		if errors.As(err, &bad) {
			problems = append(problems, bad.Problems...)
			continue
		}
		if err != nil {
			return nil, err
		}
		problems = append(problems, merged.merge(f)...)
	}
	if len(problems) > 0 {
		return nil, &Error{Problems: problems}
	}
	return merged, nil
}

func display(name string) string {
	if name == Stdin {
		return "<stdin>"
	}
	return name
}

// expand replaces directories by the files in them.
func expand(paths []string) ([]string, error) {
	var names []string
	for _, path := range paths {
		if path == Stdin {
			names = append(names, path)
			continue
		}
		info, err := os.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("read file: %w", err)
		}
		if !info.IsDir() {
			names = append(names, path)
			continue
		}
		found, err := list(path)
		if err != nil {
			return nil, err
		}
		names = append(names, found...)
	}
	if len(names) > MaxFiles {
		return nil, invalid("", "%d files are more than %d; apply them in parts", len(names), MaxFiles)
	}
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			return nil, invalid(display(name), "is given twice with -f")
		}
	}
	return names, nil
}

func list(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read directory: %w", err)
	}
	var names []string
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case ".yaml", ".yml", ".json":
			if !e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
				names = append(names, filepath.Join(dir, e.Name()))
			}
		}
	}
	if len(names) == 0 {
		return nil, invalid(dir, "is a directory without *.yaml, *.yml or *.json")
	}
	return names, nil
}

func read(name string, stdin io.Reader) ([]byte, error) {
	in := stdin
	if name != Stdin {
		info, err := os.Stat(name)
		if err != nil {
			return nil, fmt.Errorf("read file: %w", err)
		}
		if mode := info.Mode(); !mode.IsRegular() && mode&(os.ModeNamedPipe|os.ModeCharDevice) == 0 {
			return nil, invalid(name, "is not a regular file")
		}
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("read file: %w", err)
		}
		defer f.Close()
		in = f
	}
	if in == nil {
		return nil, errors.New("read standard input: there is none")
	}
	data, err := io.ReadAll(io.LimitReader(in, MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", display(name), err)
	}
	if len(data) > MaxBytes {
		return nil, invalid(display(name), "is larger than %d MiB; split it and give each part with -f", MaxBytes>>20)
	}
	return data, nil
}

// Parse decodes one source strictly: unknown and duplicate keys, wrong types and YAML that Weir does not take are problems.
func Parse(name string, data []byte) (*File, error) {
	var doc struct {
		api.Document
		Secrets map[string]SecretSource `json:"secrets,omitempty"`
	}
	f, err := ParseInto(name, data, wantSections, &doc)
	if err != nil {
		return nil, err
	}
	f.Document, f.Secrets = doc.Document, doc.Secrets
	return f, nil
}

// ParseInto is Parse for files of another shape: into is a pointer to a struct whose fields have json names, want says what stands at the
// top of such a file. The File that it returns knows the places (Explain), and has no Document.
func ParseInto(name string, data []byte, want string, into any) (*File, error) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if len(data) > MaxBytes {
		return nil, invalid(name, "is larger than %d MiB; split it and give each part with -f", MaxBytes>>20)
	}
	if i := binary(data); i >= 0 {
		return nil, invalid(name, "is not text (byte 0x%02x at offset %d); want YAML in UTF-8", data[i], i)
	}
	d := &decoder{name: name, lines: splitLines(data), places: map[string]place{}}
	d.fill(data, want, into)
	if len(d.problems) > 0 {
		return nil, &Error{Problems: d.problems}
	}
	return &File{places: d.places, sources: map[string][]string{name: d.lines}}, nil
}

// LoadInto is ParseInto for one file, or standard input.
func LoadInto(path string, stdin io.Reader, want string, into any) (*File, error) {
	data, err := read(path, stdin)
	if err != nil {
		return nil, err
	}
	return ParseInto(display(path), data, want, into)
}

// binary returns the offset of the first byte that is no text, or -1.
func binary(data []byte) int {
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && size == 1 || r < ' ' && r != '\n' && r != '\r' && r != '\t' {
			return i
		}
		i += size
	}
	return -1
}

// splitLines ends lines as YAML does: at LF, CR LF or CR.
func splitLines(data []byte) []string {
	return strings.Split(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(data)), "\n")
}

// merge adds another file's objects; an object that is there already is a problem that names both places.
func (f *File) merge(g *File) []Problem {
	var problems []Problem
	clash := func(path string) bool {
		first, twice := f.places[path]
		if twice {
			at := g.places[path].key
			problems = append(problems, Problem{Source: g.line(at), Problem: api.Problem{Path: path, File: at.File, Line: at.Line,
				Column: at.Column, Message: fmt.Sprintf("is given twice, first at %s", first.key), Hint: "keep one of them"}})
		}
		return twice
	}
	mergeMaps("endpoints", &f.Document.Endpoints, g.Document.Endpoints, clash)
	mergeMaps("functions", &f.Document.Functions, g.Document.Functions, clash)
	mergeMaps("chains", &f.Document.Chains, g.Document.Chains, clash)
	mergeMaps("policies", &f.Document.Policies, g.Document.Policies, clash)
	mergeMaps("secrets", &f.Secrets, g.Secrets, clash)
	for path, p := range g.places {
		if _, twice := f.places[path]; !twice {
			f.places[path] = p
		}
	}
	for name, lines := range g.sources {
		f.sources[name] = lines
	}
	return problems
}

func mergeMaps[T any](section string, into *map[string]T, from map[string]T, clash func(path string) bool) {
	if *into == nil && from != nil {
		*into = map[string]T{}
	}
	for _, name := range sortedKeys(from) {
		if !clash(section + "." + name) {
			(*into)[name] = from[name]
		}
	}
}

func sortedKeys[T any](m map[string]T) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
