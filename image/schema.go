package image

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// maxSchemaWork bounds how many subschemas and listed values a config may meet on its way through a schema, references followed: 3,000 take some 10 ms.
// References to references multiply, and nothing ends a check that goes on for days.
const maxSchemaWork = 100_000

// checkWork refuses a schema that is more work than that, or whose work cannot be told.
func checkWork(schema any) error {
	w := weigher{root: schema, anchors: map[string]any{}, known: map[string]int{}}
	if err := w.gather(schema, true); err != nil {
		return err
	}
	n, err := w.weigh(schema)
	if err != nil {
		return err
	}
	if n > maxSchemaWork {
		return fmt.Errorf("its references multiply to more than %d subschemas and values: write it with fewer", maxSchemaWork)
	}
	return nil
}

// weigher counts subschemas.
type weigher struct {
	root    any
	anchors map[string]any
	known   map[string]int // by reference; 0 while it is being counted: one that leads back to itself does so for a part of the value
}

// gather notes anchors. A schema within the schema, with an identity of its own, would have others.
func (w *weigher) gather(v any, top bool) error {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			if err := w.gather(e, false); err != nil {
				return err
			}
		}
	case map[string]any:
		if id, ok := v["$id"].(string); ok && !top {
			return fmt.Errorf("$id %q below the top: want one schema", id)
		}
		for _, key := range []string{"$anchor", "$dynamicAnchor"} {
			if name, ok := v[key].(string); ok {
				w.anchors[name] = v
			}
		}
		for _, e := range v {
			if err := w.gather(e, false); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *weigher) weigh(v any) (int, error) {
	n := 0
	add := func(v any) error {
		m, err := w.weigh(v)
		n = min(n+m, maxSchemaWork+1)
		return err
	}
	enough := func() bool { return n > maxSchemaWork }
	switch v := v.(type) {
	case []any:
		n = len(v) // what is in a list of values is looked at, too
		for _, e := range v {
			if err := add(e); err != nil || enough() {
				return n, err
			}
		}
	case map[string]any:
		n = 1
		for key, e := range v {
			if enough() {
				break
			}
			to, ok := e.(string)
			if ok && (key == "$ref" || key == "$dynamicRef" || key == "$recursiveRef") {
				m, err := w.follow(to)
				if err != nil {
					return 0, err
				}
				n = min(n+m, maxSchemaWork+1)
			} else if err := add(e); err != nil {
				return 0, err
			}
		}
	}
	return n, nil
}

func (w *weigher) follow(ref string) (int, error) {
	if n, ok := w.known[ref]; ok {
		return n, nil
	}
	w.known[ref] = 0
	to, ok := w.find(ref)
	if !ok {
		return 0, fmt.Errorf("reference to %s: want one into the schema itself, such as #/$defs/port: a config schema stands alone", ref)
	}
	n, err := w.weigh(to)
	w.known[ref] = n
	return n, err
}

// find follows a JSON pointer (RFC 6901) in a fragment, or an anchor's name.
func (w *weigher) find(ref string) (any, bool) {
	fragment, ok := strings.CutPrefix(ref, "#")
	if !ok {
		return nil, false
	}
	if fragment == "" {
		return w.root, true
	}
	fragment, err := url.PathUnescape(fragment)
	if err != nil {
		return nil, false
	}
	pointer, ok := strings.CutPrefix(fragment, "/")
	if !ok {
		v, ok := w.anchors[fragment]
		return v, ok
	}
	at := w.root
	unescape := strings.NewReplacer("~1", "/", "~0", "~")
	for step := range strings.SplitSeq(pointer, "/") {
		switch v := at.(type) {
		case map[string]any:
			if at, ok = v[unescape.Replace(step)]; !ok {
				return nil, false
			}
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i < 0 || i >= len(v) {
				return nil, false
			}
			at = v[i]
		default:
			return nil, false
		}
	}
	return at, true
}
