package file

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"weir.dev/weir/api"
)

// decoder fills Go values from a syntax tree, with a place for every path and every problem collected.
type decoder struct {
	name     string
	lines    []string
	places   map[string]place
	anchors  map[string]ast.Node
	nodes    int
	problems []Problem
	stopped  bool // too many nodes: no more is said or read
}

func (d *decoder) position(t *token.Token) Position {
	if t == nil || t.Position == nil {
		return Position{File: d.name}
	}
	return Position{File: d.name, Line: t.Position.Line, Column: t.Position.Column}
}

func (d *decoder) fail(at Position, path, hint, format string, args ...any) {
	if len(path) > maxPath {
		path = path[:maxPath] + "..."
	}
	p := Problem{Problem: api.Problem{Path: path, Message: fmt.Sprintf(format, args...), Hint: hint,
		File: at.File, Line: at.Line, Column: at.Column}}
	if at.Line >= 1 && at.Line <= len(d.lines) && !secretPath(path) && (path != "" || !d.inSecrets(at.Line)) {
		p.Source = d.lines[at.Line-1]
	}
	d.problems = append(d.problems, p)
}

const wantSections = "want a mapping with endpoints, functions, chains, policies or secrets"

// fill decodes the text into a struct; want says what should stand at its top.
func (d *decoder) fill(data []byte, want string, into any) {
	body, ok := d.parse(string(data))
	if !ok {
		return
	}
	if body == nil {
		d.fail(Position{File: d.name}, "", want, "is empty")
		return
	}
	if _, isMap := body.(*ast.MappingNode); !isMap {
		d.fail(d.start(body), "", "", "%s, found %s", want, describe(body))
		return
	}
	d.anchors = map[string]ast.Node{}
	d.structure(body, "", reflect.ValueOf(into).Elem())
}

// parse returns the one document of the text, nil if it has none.
func (d *decoder) parse(text string) (ast.Node, bool) {
	tokens := lexer.Tokenize(text)
	if t := tooDeep(tokens); t != nil {
		d.fail(d.position(t), "", "", "nested deeper than %d levels", maxNesting)
		return nil, false
	}
	// Duplicate keys are found below, with both places.
	parsed, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		var syntax yaml.Error
		if !errors.As(err, &syntax) {
			d.fail(Position{File: d.name}, "", "", "%v", err)
			return nil, false
		}
		at := d.position(syntax.GetToken())
		message := strings.TrimSpace(strings.ReplaceAll(syntax.GetMessage(), "\t", "<tab>"))
		hint := ""
		switch {
		case at.Line >= 1 && at.Line <= len(d.lines) && strings.HasPrefix(strings.TrimLeft(d.lines[at.Line-1], " "), "\t"):
			hint = "YAML indents with spaces, never with tabs"
		case strings.Contains(message, "not allowed in this context"):
			hint = "look at the indentation, and whether each [ and { is closed"
		}
		if d.inSecrets(at.Line) { // the parser's words may be the value's
			message, hint = "is no valid YAML", cmp.Or(hint, secretHint)
		}
		d.fail(at, "", hint, "%s", message)
		return nil, false
	}
	var body ast.Node
	for _, doc := range parsed.Docs {
		if _, directive := doc.Body.(*ast.DirectiveNode); doc.Body == nil || directive {
			continue
		}
		if body != nil {
			d.fail(d.start(doc.Body), "", "put the objects under one set of keys, or in files of their own",
				"a second document begins here; want one a file")
			return nil, false
		}
		body = doc.Body
	}
	return body, true
}

// tooDeep returns the token at which nesting goes past the bound: the parser recurses, and is quadratic in depth.
func tooDeep(tokens token.Tokens) *token.Token {
	flow, run, line := 0, 0, 0
	for _, t := range tokens {
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			flow++
		case token.MappingEndType, token.SequenceEndType:
			flow--
		case token.SequenceEntryType, token.MappingKeyType, token.AnchorType, token.TagType, token.MappingValueType:
			if flow <= 0 { // in a block these nest along a line
				if t.Position.Line != line {
					run, line = 0, t.Position.Line
				}
				run++
			}
		}
		if flow > maxNesting || run > maxNesting {
			return t
		}
	}
	return nil
}

// resolve follows anchors, aliases and tags to the node that holds the value.
func (d *decoder) resolve(n ast.Node, path string) (ast.Node, bool) {
	if d.nodes++; d.nodes > maxNodes {
		if !d.stopped {
			d.fail(d.start(n), path, "", "the file has more than %d values once its aliases are expanded", maxNodes)
		}
		d.stopped = true
		return nil, false
	}
	switch n := n.(type) {
	case *ast.AnchorNode:
		v, ok := d.resolve(n.Value, path)
		if ok {
			d.anchors[n.Name.GetToken().Value] = v
		}
		return v, ok
	case *ast.AliasNode:
		name := n.Value.GetToken().Value
		v, ok := d.anchors[name]
		if !ok && secretPath(path) {
			d.fail(d.start(n), path, secretHint, "want no alias without an anchor above it")
		} else if !ok {
			d.fail(d.start(n), path, "", "alias *%s has no anchor &%s above it", name, name)
		}
		return v, ok
	case *ast.TagNode:
		if secretPath(path) {
			d.fail(d.start(n), path, secretHint, "want no tag")
			return nil, false
		}
		d.fail(d.start(n), path, "leave the tag out", "tag %s is not supported", n.Start.Value)
		return nil, false
	case nil:
		return nil, false
	}
	return n, true
}

// start is where a node begins. A block mapping's own token is its first colon; its first key is meant.
func (d *decoder) start(n ast.Node) Position {
	switch n := n.(type) {
	case *ast.MappingNode:
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return d.position(n.Values[0].Key.GetToken())
		}
	case *ast.MappingValueNode:
		return d.position(n.Key.GetToken())
	}
	return d.position(n.GetToken())
}

// entry is a key with its value; a merge key's ("<<") are taken in after the mapping's own.
type entry struct {
	name       string
	key, value ast.Node
}

// entries lists a mapping in order, without duplicates.
func (d *decoder) entries(n *ast.MappingNode, path string) []entry {
	var own []entry
	var merges []ast.Node
	at := map[string]Position{}
	for _, v := range n.Values {
		if v.Key.IsMergeKey() {
			merges = append(merges, v.Value)
			continue
		}
		key := ast.Node(v.Key)
		if k, ok := key.(*ast.MappingKeyNode); ok {
			key = k.Value
		}
		if _, scalar := key.(ast.ScalarNode); !scalar || key.Type() == ast.NullType {
			d.fail(d.start(key), path, "", "a key must be a word, found %s", describe(key))
			continue
		}
		e := entry{name: key.GetToken().Value, key: key, value: v.Value}
		if d.glued(v, key) {
			d.fail(d.start(v.Value), join(path, e.name), "", "want a space after the colon")
			continue
		}
		if first, twice := at[e.name]; twice {
			d.fail(d.start(key), join(path, shownKey(path, e.name)), "keep one of them", "is given twice, first in line %d", first.Line)
			continue
		}
		at[e.name] = d.start(key)
		own = append(own, e)
	}
	for _, m := range merges {
		for _, e := range d.merged(m, path) {
			if _, have := at[e.name]; !have {
				at[e.name] = d.start(e.key)
				own = append(own, e)
			}
		}
	}
	return own
}

// glued tells that a plain key, its colon and its value have no space between them: other YAML readers take that for one word.
func (d *decoder) glued(v *ast.MappingValueNode, key ast.Node) bool {
	quoted := key.GetToken().Type == token.DoubleQuoteType || key.GetToken().Type == token.SingleQuoteType
	if quoted || v.Value == nil || v.Start == nil || v.Value.Type() == ast.NullType {
		return false
	}
	colon, value := d.position(v.Start), d.start(v.Value)
	return colon.Line == value.Line && value.Column == colon.Column+1
}

// merged lists what a merge key brings: a mapping or a list of mappings, the first to name a key wins.
func (d *decoder) merged(n ast.Node, path string) []entry {
	v, ok := d.resolve(n, path)
	if !ok {
		return nil
	}
	switch v := v.(type) {
	case *ast.MappingNode:
		return d.entries(v, path)
	case *ast.SequenceNode:
		var all []entry
		for _, item := range v.Values {
			all = append(all, d.merged(item, path)...)
		}
		return all
	}
	d.fail(d.start(n), join(path, "<<"), "", "want an alias of a mapping, found %s", describe(v))
	return nil
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
