// Package docs reads the project's pages as its test runs them: what stands in a block of the language sh is executed.
package docs

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// Page is a Markdown page.
type Page struct {
	Path   string
	Blocks []Block
	Links  []string // targets of its links, as written
}

// Block is a fenced block of code.
type Block struct {
	Line     int    // of its first line, from 1
	Language string // sh is executed; console, text, json and others are not
	File     string // from <!-- file: PATH --> above the block: it shows that file of the repository, whole
	Text     string
}

var (
	fileMark = regexp.MustCompile(`^<!-- file: (\S+) -->$`)
	linkMark = regexp.MustCompile(`\]\(([^)\s]+)\)`)
)

// Read parses a page.
func Read(path string) (Page, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return Page{}, err
	}
	p := Page{Path: path}
	var block *Block
	var shows string
	for i, line := range strings.Split(string(raw), "\n") {
		language, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && block == nil:
			block = &Block{Line: i + 2, Language: language, File: shows}
		case fence:
			p.Blocks = append(p.Blocks, *block)
			block, shows = nil, ""
		case block != nil:
			block.Text += line + "\n"
		default:
			if m := fileMark.FindStringSubmatch(line); m != nil {
				shows = m[1]
			} else if strings.TrimSpace(line) != "" {
				shows = ""
			}
			for _, m := range linkMark.FindAllStringSubmatch(line, -1) {
				p.Links = append(p.Links, m[1])
			}
		}
	}
	if block != nil {
		return p, fmt.Errorf("%s:%d: the block is not closed", path, block.Line)
	}
	return p, nil
}

// promise is how a page says what a command prints: the comment "# prints: TEXT" after it. "..." stands for anything on the line.
const promise = "# prints: "

// Promises lists what the block's output has to contain, in that order.
func (b Block) Promises() []string {
	var out []string
	for _, line := range strings.Split(b.Text, "\n") {
		if _, text, ok := strings.Cut(line, promise); ok {
			out = append(out, strings.TrimSpace(text))
		}
	}
	return out
}

// Check tells which promise the output does not keep.
func (b Block) Check(output string) error {
	rest := output
	for _, want := range b.Promises() {
		var parts []string
		for _, part := range strings.Split(want, "...") {
			parts = append(parts, regexp.QuoteMeta(strings.TrimSpace(part)))
		}
		at := regexp.MustCompile(strings.Join(parts, `[^\n]*`)).FindStringIndex(rest)
		if at == nil {
			return fmt.Errorf("line %d: the page promises %q; the block printed:\n%s", b.Line, want, output)
		}
		rest = rest[at[1]:]
	}
	return nil
}

// marker begins the output of the n-th block.
func marker(n int) string { return fmt.Sprintf("\x01block %d\x01", n) }

// Script is the page's sh blocks as one script that stops at the first failure.
func (p Page) Script() string {
	var b strings.Builder
	b.WriteString("set -euo pipefail\n")
	n := 0
	for _, block := range p.Blocks {
		if block.Language != "sh" {
			continue
		}
		fmt.Fprintf(&b, "printf '%%s\\n' '%s'\n%s\n", marker(n), block.Text)
		n++
	}
	fmt.Fprintf(&b, "printf '%%s\\n' '%s'\n", marker(n))
	return b.String()
}

// Check compares the script's output with the page.
func (p Page) Check(output string) error {
	n := 0
	for _, block := range p.Blocks {
		if block.Language != "sh" {
			continue
		}
		_, rest, began := strings.Cut(output, marker(n)+"\n")
		own, _, ended := strings.Cut(rest, marker(n+1))
		if !began {
			return fmt.Errorf("%s:%d: not reached", p.Path, block.Line)
		}
		if err := block.Check(own); err != nil {
			return fmt.Errorf("%s: %w", p.Path, err)
		}
		if !ended {
			return fmt.Errorf("%s:%d: the block failed; it printed:\n%s", p.Path, block.Line, own)
		}
		n++
	}
	return nil
}
