package inspect

import (
	"fmt"
	"strings"
)

// maxWordBytes bounds the automaton: it has at most one state for each byte of the words, in four spellings.
const maxWordBytes = 16 << 10

// words finds words in a stream (Aho and Corasick, 1975). ASCII letters are the same in both cases; other letters in all lower, all upper and as
// written. Zero bytes are passed over, so ASCII words are found in UTF-16, too.
type words struct {
	class   [256]uint8 // of bytes that behave alike; 0: in no word; 1: the zero byte
	classes int
	next    []int32 // by state and class: the next state's place here, twice; odd: words end there
	found   [][]int // by state: rules whose words end there
}

func fold(b byte) byte {
	if 'A' <= b && b <= 'Z' {
		return b + 'a' - 'A'
	}
	return b
}

// newWords of rules, by the rules' numbers.
func newWords(of map[int][]string) (*words, error) {
	w := &words{classes: 2}
	w.class[0] = 1
	type spelled struct {
		text string
		rule int
	}
	var all []spelled
	bytes := 0
	for rule, list := range of {
		for _, word := range list {
			seen := map[string]bool{}
			for _, s := range []string{word, strings.ToLower(word), strings.ToUpper(word)} {
				b := []byte(s)
				for i := range b {
					b[i] = fold(b[i])
				}
				if !seen[string(b)] {
					seen[string(b)] = true
					all = append(all, spelled{string(b), rule})
					bytes += len(b)
				}
			}
		}
	}
	if bytes > maxWordBytes {
		return nil, fmt.Errorf("words: %d bytes in all spellings, more than %d", bytes, maxWordBytes)
	}
	for _, s := range all {
		for _, b := range []byte(s.text) {
			if w.class[b] == 0 {
				w.class[b] = uint8(w.classes)
				w.classes++
			}
		}
	}
	for b := range 256 {
		w.class[b] = w.class[fold(byte(b))]
	}
	w.grow()
	for _, s := range all {
		at := int32(0)
		for _, b := range []byte(s.text) {
			i := int(at)*w.classes + int(w.class[b])
			if w.next[i] == 0 {
				w.next[i] = w.grow()
			}
			at = w.next[i]
		}
		w.found[at] = append(w.found[at], s.rule)
	}
	w.link()
	return w, nil
}

// grow by one state.
func (w *words) grow() int32 {
	w.next = append(w.next, make([]int32, w.classes)...)
	w.found = append(w.found, nil)
	return int32(len(w.found) - 1)
}

// link fills in where to go on when a word breaks off.
func (w *words) link() {
	fail := make([]int32, len(w.found))
	var queue []int32
	for c := range w.classes {
		if s := w.next[c]; s != 0 {
			queue = append(queue, s)
		}
	}
	for len(queue) > 0 {
		s := queue[0]
		queue = queue[1:]
		w.found[s] = append(w.found[s], w.found[fail[s]]...)
		for c := range w.classes {
			i := int(s)*w.classes + c
			back := w.next[int(fail[s])*w.classes+c]
			if t := w.next[i]; t != 0 {
				fail[t] = back
				queue = append(queue, t)
			} else {
				w.next[i] = back
			}
		}
	}
	for i, t := range w.next {
		if i%w.classes == 1 { // a zero byte changes nothing
			t = int32(i / w.classes)
		}
		e := t * int32(w.classes) << 1
		if w.found[t] != nil {
			e |= 1
		}
		w.next[i] = e
	}
}

// scan goes on from a state; 0 is the first. f is called with the rules whose word has ended; it returns whether to go on.
func (w *words) scan(state int32, data []byte, f func(rules []int) bool) (int32, bool) {
	next := w.next
	for _, b := range data {
		e := next[int(state)+int(w.class[b])]
		state = e >> 1
		if e&1 == 1 && b != 0 && !f(w.found[int(state)/w.classes]) {
			return state, false
		}
	}
	return state, true
}

// unescape reads %XX as in URLs and forms, and + as a space. It goes on over pieces.
type unescape struct {
	state int // of the escape: 1 after %, 2 after its first digit
	high  byte
	last  byte // the digit itself
}

func hex(b byte) (byte, bool) {
	switch {
	case '0' <= b && b <= '9':
		return b - '0', true
	case 'a' <= fold(b) && fold(b) <= 'f':
		return fold(b) - 'a' + 10, true
	}
	return 0, false
}

// add the plain form of data to out. What is no escape stays as it is.
func (u *unescape) add(out, data []byte) []byte {
	for _, b := range data {
		digit, ok := hex(b)
		switch {
		case u.state == 1 && ok:
			u.state, u.high, u.last = 2, digit, b
			continue
		case u.state == 2 && ok:
			u.state = 0
			out = append(out, u.high<<4|digit)
			continue
		case u.state == 1:
			out = append(out, '%')
		case u.state == 2:
			out = append(out, '%', u.last)
		}
		u.state = 0
		switch b {
		case '%':
			u.state = 1
		case '+':
			out = append(out, ' ')
		default:
			out = append(out, b)
		}
	}
	return out
}
