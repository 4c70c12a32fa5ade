package strict

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"weir.dev/weir/api"
)

// What decoding a body may take: memoryFloor bytes, and memoryFactor more for each byte of the body. What is sent in earnest takes three to eight: a
// policy of 60 bytes becomes one of 300. `{}` becomes 300 bytes of two.
const (
	memoryFloor  = 2 << 20
	memoryFactor = 10
	maxDepth     = 64 // of values in values
	maxDigits    = 24 // more than any number has that Go keeps
)

// What Go takes for values, roughly and rather too much: a slice or map that grows is there several times.
const (
	anySize    = 24       // an interface and what is in it
	objectSize = 48 + 280 // a map of any values with its first entries
	memberSize = 160      // one more entry of it
	entrySize  = 80       // an entry of other maps, without its value
	inlined    = 128      // larger values are not in the map itself
	growth     = 3        // of slices
)

// scanner walks along a JSON value of valid syntax and the type that it is to be decoded into. It decodes nothing but names: it takes note of what has no
// place in the type and what is there twice, and counts the memory that the decoded value would take. It ends when that is too much.
type scanner struct {
	raw      []byte
	root     string // path of the whole value
	at       int
	path     []step
	problems []api.Problem
	more     bool // problems than maxProblems
	cost     int64
	budget   int64
	patch    bool
	err      error
}

// step is a place in a value: a member, or with an empty name an element of a list.
type step struct {
	name  []byte
	index int
}

func (s *scanner) place() string {
	path := s.root
	for _, p := range s.path {
		if len(p.name) == 0 {
			path = fmt.Sprintf("%s[%d]", path, p.index)
		} else {
			path = Join(path, Clip(string(p.name), MaxText))
		}
		if len(path) > MaxText {
			break
		}
	}
	return Clip(path, MaxText)
}

// problem notes one at the present place, and ends the walk when there are enough.
func (s *scanner) problem(p api.Problem) {
	if len(s.problems) >= MaxProblems {
		s.more = true
		return
	}
	p.Path = s.place()
	s.problems = append(s.problems, p)
}

func (s *scanner) over() bool { return s.err != nil || s.more || s.at >= len(s.raw) }

// take counts memory and ends the walk when there is too much of it.
func (s *scanner) take(bytes int) bool {
	if s.cost += int64(bytes); s.cost > s.budget && s.err == nil {
		s.err = api.Refuse(http.StatusRequestEntityTooLarge,
			fmt.Sprintf("the body of %d KiB would take more than %d KiB of memory: it consists of very many small or empty values: apply in smaller parts", len(s.raw)>>10, s.budget>>10),
			api.Problem{Path: s.place(), Message: "here it became too much"})
	}
	return s.err == nil
}

// anyType is what is decoded without a type.
var anyType = reflect.TypeFor[any]()

// value walks over the next value. A nil type: nobody will decode it.
func (s *scanner) value(t reflect.Type) {
	s.space()
	if s.over() {
		return
	}
	if s.raw[s.at] == 'n' && t != nil && !s.removes() && !nullable(t) {
		s.problem(api.Problem{Message: "is null: want " + jsonType(t), Hint: "leave it out"})
	}
	t = s.target(t)
	if len(s.path) > maxDepth {
		s.err = api.Refuse(http.StatusBadRequest, fmt.Sprintf("the body has values in values more than %d deep", maxDepth), api.Problem{Path: s.place(), Message: "is too deep"})
		return
	}
	switch s.raw[s.at] {
	case '{':
		s.object(t)
	case '[':
		s.list(t)
	case '"':
		text := s.text()
		if t == nil {
			break
		}
		s.take(len(text))
		if states := States(t); states != nil && !slices.Contains(states, unquoted(text)) {
			s.problem(api.Problem{Message: "is no state: want " + strings.Join(states[1:], ", ")})
		}
	default:
		n := s.at
		for s.at < len(s.raw) && !strings.ContainsRune(",]} \t\r\n", rune(s.raw[s.at])) {
			s.at++
		}
		switch {
		case t == anyType:
			s.take(anySize + s.at - n)
		case t != nil && t.Kind() >= reflect.Int && t.Kind() <= reflect.Uint64:
			whole(s.raw[n:s.at])
			if i, err := strconv.ParseInt(string(bytes.TrimSpace(s.raw[n:min(s.at, n+maxDigits)])), 10, 64); err == nil && (i > MostInt64 || i < -MostInt64) {
				s.problem(api.Problem{Message: "is too large a number"})
			}
		}
	}
}

// removes tells that null means something here: in the spec of a patch.
func (s *scanner) removes() bool {
	return s.patch && len(s.path) > 1 && string(s.path[0].name) == "spec"
}

// nullable: Go writes null for a list that is not there. Maps and pointers that are not there it leaves out, as all of ours say omitempty, and so the OpenAPI
// document does not know null for them.
func nullable(t reflect.Type) bool {
	return t.Kind() == reflect.Slice || t.Kind() == reflect.Interface
}

// whole takes the fraction from a number that has none, as in 5.0: for JSON that is a whole number, for Go it is not.
func whole(number []byte) {
	if at := bytes.IndexByte(number, '.'); at > 0 && len(bytes.Trim(number[at+1:], "0")) == 0 {
		copy(number[at:], bytes.Repeat([]byte(" "), len(number)-at))
	}
}

// target is what a value is decoded into: types that decode themselves take anything, of which a map is decoded as values of any type.
func (s *scanner) target(t reflect.Type) reflect.Type {
	for t != nil && t.Kind() == reflect.Pointer && !decodesItself(t) {
		if t = t.Elem(); t.Size() > 0 {
			s.take(int(t.Size()))
		}
	}
	switch {
	case t == nil || t.Kind() == reflect.Interface:
		return t
	case !decodesItself(reflect.PointerTo(t)):
		return t
	case t.Kind() == reflect.Map:
		return anyType
	}
	return nil
}

func (s *scanner) list(t reflect.Type) {
	var elem reflect.Type
	size := 0
	switch {
	case t == anyType:
		elem, size = anyType, growth*anySize
		s.take(anySize)
	case t != nil && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array):
		elem = t.Elem()
		size = growth * int(elem.Size())
	}
	s.at++
	s.path = append(s.path, step{})
	for i := 0; !s.ends(']'); i++ {
		s.path[len(s.path)-1].index = i
		if !s.take(size) {
			return
		}
		s.value(elem)
	}
	s.path = s.path[:len(s.path)-1]
}

func (s *scanner) object(t reflect.Type) {
	var fields *members
	var elem reflect.Type
	size := 0
	switch {
	case t == anyType:
		elem, size = anyType, memberSize
		s.take(objectSize)
	case t == nil:
	case t.Kind() == reflect.Map:
		elem = t.Elem()
		size = entrySize + int(elem.Size())
		if elem.Size() <= inlined {
			size += int(elem.Size())
		}
	case t.Kind() == reflect.Struct:
		fields = membersOf(t)
	}
	var seen map[string]bool
	s.at++
	s.path = append(s.path, step{})
	for !s.ends('}') {
		name := s.name()
		s.path[len(s.path)-1].name = name
		s.space()
		s.at++ // the colon
		member := elem
		if fields != nil {
			known := false
			if member, known = fields.types[string(name)]; !known {
				s.problem(unknownField(name, fields.names))
			}
		}
		if seen[string(name)] {
			s.problem(api.Problem{Message: "is there twice"})
		}
		if member != nil { // what has no place is said, not remembered
			if seen == nil {
				seen = map[string]bool{}
			}
			if !seen[string(name)] {
				seen[string(name)] = true
			}
			s.take(len(name))
		}
		if !s.take(size) {
			return
		}
		s.value(member)
		if s.err != nil {
			return
		}
	}
	s.path = s.path[:len(s.path)-1]
}

// ends tells whether a list or object is over, and passes its end or the comma.
func (s *scanner) ends(end byte) bool {
	s.space()
	if s.over() {
		return true
	}
	switch s.raw[s.at] {
	case end:
		s.at++
		return true
	case ',':
		s.at++
		s.space()
	}
	return false
}

func (s *scanner) space() {
	for s.at < len(s.raw) && (s.raw[s.at] == ' ' || s.raw[s.at] == '\n' || s.raw[s.at] == '\t' || s.raw[s.at] == '\r') {
		s.at++
	}
}

// text passes a string and returns it with its quotes.
func (s *scanner) text() []byte {
	begin := s.at
	for s.at++; s.at < len(s.raw) && s.raw[s.at] != '"'; s.at++ {
		if s.raw[s.at] == '\\' {
			s.at++
		}
	}
	s.at++
	return s.raw[begin:min(s.at, len(s.raw))]
}

// name passes a member's name. One that is empty looks like no other.
func (s *scanner) name() []byte {
	raw := s.text()
	switch {
	case len(raw) <= 2:
		return raw
	case !bytes.ContainsRune(raw, '\\'):
		return raw[1 : len(raw)-1]
	}
	return []byte(unquoted(raw))
}

func unquoted(raw []byte) string {
	var text string
	_ = json.Unmarshal(raw, &text) // its syntax has been looked at
	return text
}

// States are the values of a type of states, first "" for none; nil for other types.
func States(t reflect.Type) []string {
	if !t.Implements(reflect.TypeFor[api.State]()) {
		return nil
	}
	return append([]string{""}, reflect.Zero(t).Interface().(api.State).States()...)
}

func decodesItself(t reflect.Type) bool {
	return t.Implements(reflect.TypeFor[json.Unmarshaler]()) || t.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// members are a struct's fields by their JSON names, those of embedded structs included.
type members struct {
	types map[string]reflect.Type
	names []string // sorted
}

var knownMembers sync.Map // reflect.Type -> *members: as many as there are types

func membersOf(t reflect.Type) *members {
	if m, ok := knownMembers.Load(t); ok {
		return m.(*members)
	}
	m := &members{types: map[string]reflect.Type{}}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "-" || (f.Anonymous && name == "") {
			continue
		}
		if name == "" {
			name = f.Name
		}
		m.types[name] = f.Type
	}
	m.names = slices.Sorted(maps.Keys(m.types))
	knownMembers.Store(t, m)
	return m
}
