package file

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"weir.dev/weir/api"
)

// child records where an entry stands and decodes it.
func (d *decoder) child(e entry, path string, into reflect.Value) {
	at := place{key: d.start(e.key)}
	if e.value != nil {
		switch e.value.(type) {
		case *ast.MappingNode, *ast.NullNode, *ast.AnchorNode:
		default:
			at.value = d.start(e.value)
		}
	}
	d.places[path] = at
	d.value(e.value, at.key, path, into)
}

// structure decodes a mapping into a struct by its json names.
func (d *decoder) structure(n ast.Node, path string, into reflect.Value) {
	m := n.(*ast.MappingNode)
	fields := map[string]reflect.Value{}
	var known []string
	for _, f := range reflect.VisibleFields(into.Type()) {
		if f.Anonymous {
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		fields[name] = into.FieldByIndex(f.Index)
		known = append(known, name)
	}
	for _, e := range d.entries(m, path) {
		if f, ok := fields[e.name]; ok {
			d.child(e, join(path, e.name), f)
			continue
		}
		if path == "" && strings.HasPrefix(e.name, "x-") { // a place for anchors, as in compose files
			var ignored any
			d.value(e.value, d.start(e.key), e.name, reflect.ValueOf(&ignored).Elem())
			continue
		}
		hint := Suggest(e.name, known)
		if hint == "" {
			slices.Sort(known)
			hint = "known are " + strings.Join(known, ", ")
		}
		if secretPath(path) {
			hint = secretHint
		}
		d.fail(d.start(e.key), join(path, shownKey(path, e.name)), hint, "unknown key")
	}
}

// value decodes any node; key is where to point when the value itself has no place.
func (d *decoder) value(n ast.Node, key Position, path string, into reflect.Value) {
	n, ok := d.resolve(n, path)
	if !ok {
		return
	}
	at := d.start(n)
	if _, null := n.(*ast.NullNode); null {
		at = key
		if optional := strings.Count(path, ".") <= 1 && (into.Kind() == reflect.Map || into.Kind() == reflect.Struct); optional || into.Kind() == reflect.Interface {
			return // an empty section, an object with no fields (validation says which it lacks), a config's null
		}
		d.fail(at, path, "give one or leave the key out", "has no value; want %s", want(into))
		return
	}
	if into.Kind() == reflect.Pointer {
		into.Set(reflect.New(into.Type().Elem()))
		into = into.Elem()
	}
	switch into.Kind() {
	case reflect.Struct:
		d.structValue(n, at, path, into)
	case reflect.Map:
		d.mapValue(n, at, path, into)
	case reflect.Slice:
		d.listValue(n, at, path, into)
	case reflect.Interface:
		if v := d.anyValue(n, path); v != nil {
			into.Set(reflect.ValueOf(v))
		}
	default:
		d.scalar(n, at, path, into)
	}
}

func (d *decoder) structValue(n ast.Node, at Position, path string, into reflect.Value) {
	if chain, ok := into.Addr().Interface().(*api.ChainSpec); ok {
		if s, isText := n.(*ast.StringNode); isText { // the bare path will do
			chain.Path = s.Value
			d.places[path+".path"] = place{key: at, value: at}
			return
		}
	}
	if n.Type() != ast.MappingType {
		d.mismatch(n, at, path, into)
		return
	}
	d.structure(n, path, into)
}

func (d *decoder) mapValue(n ast.Node, at Position, path string, into reflect.Value) {
	m, ok := n.(*ast.MappingNode)
	if !ok {
		d.mismatch(n, at, path, into)
		return
	}
	into.Set(reflect.MakeMap(into.Type()))
	for _, e := range d.entries(m, path) {
		v := reflect.New(into.Type().Elem()).Elem()
		d.child(e, join(path, e.name), v)
		into.SetMapIndex(reflect.ValueOf(e.name).Convert(into.Type().Key()), v)
	}
}

func (d *decoder) listValue(n ast.Node, at Position, path string, into reflect.Value) {
	s, ok := n.(*ast.SequenceNode)
	if !ok {
		if text, isText := n.(*ast.StringNode); isText && readsItself(into) {
			into.Set(reflect.Append(reflect.MakeSlice(into.Type(), 0, 1), reflect.ValueOf(text.Value).Convert(into.Type().Elem())))
			return
		}
		d.mismatch(n, at, path, into)
		return
	}
	list := reflect.MakeSlice(into.Type(), len(s.Values), len(s.Values))
	for i, item := range s.Values {
		itemPath := fmt.Sprintf("%s[%d]", path, i)
		d.places[itemPath] = place{key: d.start(item), value: d.start(item)}
		d.value(item, d.start(item), itemPath, list.Index(i))
	}
	into.Set(list)
}

// readsItself tells whether a list of texts is of a type that takes a single text, too: in JSON it sees to that itself.
func readsItself(list reflect.Value) bool {
	_, ok := list.Addr().Interface().(json.Unmarshaler)
	return ok && list.Type().Elem().Kind() == reflect.String
}

// anyValue decodes what JSON can say; numbers keep their kind.
func (d *decoder) anyValue(n ast.Node, path string) any {
	switch n := n.(type) {
	case *ast.MappingNode:
		m := map[string]any{}
		d.mapValue(n, d.start(n), path, reflect.ValueOf(&m).Elem())
		return m
	case *ast.SequenceNode:
		var l []any
		d.listValue(n, d.start(n), path, reflect.ValueOf(&l).Elem())
		return l
	case *ast.FloatNode:
		if !math.IsInf(n.Value, 0) {
			return n.Value
		}
	case *ast.StringNode:
		return n.Value
	case *ast.LiteralNode:
		return n.Value.Value
	case *ast.BoolNode:
		return n.Value
	case *ast.IntegerNode:
		return n.Value
	}
	d.fail(d.start(n), path, "", "%s is not a value that a config can hold", describe(n))
	return nil
}

func (d *decoder) scalar(n ast.Node, at Position, path string, into reflect.Value) {
	switch into.Kind() {
	case reflect.String:
		switch n := n.(type) {
		case *ast.StringNode:
			into.SetString(n.Value)
			return
		case *ast.LiteralNode:
			into.SetString(n.Value.Value)
			return
		case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
			if asWritten(path) {
				into.SetString(n.GetToken().Value)
				return
			}
		}
	case reflect.Bool:
		if b, ok := n.(*ast.BoolNode); ok {
			into.SetBool(b.Value)
			return
		}
	case reflect.Int, reflect.Int64:
		if i, ok := n.(*ast.IntegerNode); ok {
			if v, ok := signed(i.Value); ok && !into.OverflowInt(v) {
				into.SetInt(v)
				return
			}
		}
	case reflect.Float64:
		switch n := n.(type) {
		case *ast.FloatNode:
			into.SetFloat(n.Value)
			return
		case *ast.IntegerNode:
			if v, ok := signed(n.Value); ok {
				into.SetFloat(float64(v))
				return
			}
		}
	}
	d.mismatch(n, at, path, into)
}

// asWritten tells text fields in which a bare number has one meaning: a function's cpus, cpuset, memory and env values, a switch's port.
func asWritten(path string) bool {
	parts := strings.SplitN(path, ".", 4)
	if len(parts) == 3 && parts[0] == "endpoints" {
		return parts[2] == "switch_port"
	}
	return len(parts) >= 3 && parts[0] == "functions" && (parts[2] == "cpus" || parts[2] == "cpuset" || parts[2] == "memory" || parts[2] == "env" && len(parts) == 4)
}

func signed(v any) (int64, bool) {
	switch v := v.(type) {
	case int64:
		return v, true
	case uint64:
		return int64(v), v <= math.MaxInt64
	}
	return 0, false
}

func (d *decoder) mismatch(n ast.Node, at Position, path string, into reflect.Value) {
	if secretPath(path) { // what is found may be the value
		d.fail(at, path, secretHint, "want %s", want(into))
		return
	}
	hint := ""
	text := ""
	if _, scalar := n.(ast.ScalarNode); scalar {
		text = n.GetToken().Value
	}
	switch {
	case into.Kind() == reflect.String && text != "":
		hint = fmt.Sprintf("put it in quotes: %q", text)
	case into.Kind() == reflect.Slice && text != "":
		hint = "put it in brackets: [" + text + "]"
	case into.Kind() == reflect.Int64 && text != "" && strings.Trim(text, "0123456789") == "":
		d.fail(at, path, "", "the number %s is too large", text)
		return
	case into.Kind() == reflect.Bool && slices.Contains([]string{"yes", "on", "1", "True", "TRUE"}, text):
		hint = "write true"
	case into.Kind() == reflect.Bool && slices.Contains([]string{"no", "off", "0", "False", "FALSE"}, text):
		hint = "write false"
	case into.Type() == reflect.TypeFor[api.ChainSpec]():
		hint = "functions are separated by |, a tap has tap: before its name"
	}
	d.fail(at, path, hint, "want %s, found %s", want(into), describe(n))
}

func want(v reflect.Value) string {
	if v.Type() == reflect.TypeFor[api.ChainSpec]() {
		return "text such as fw | w1 | tap:mon"
	}
	switch v.Kind() {
	case reflect.Pointer:
		return want(reflect.Zero(v.Type().Elem()))
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "a mapping"
	}
	return "text"
}

func describe(n ast.Node) string {
	switch n := n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.NullNode:
		return "nothing"
	case *ast.StringNode:
		return "the text " + quote(n.Value)
	case *ast.LiteralNode:
		return "text of several lines"
	case *ast.BoolNode:
		return "the truth value " + n.Token.Value
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "the number " + n.GetToken().Value
	}
	return "a " + strings.ToLower(n.Type().String())
}

func quote(s string) string {
	if r := []rune(s); len(r) > 40 {
		s = string(r[:40]) + "..."
	}
	return fmt.Sprintf("%q", s)
}
