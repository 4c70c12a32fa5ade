package inspect

import (
	"errors"
	"strings"
)

// content looks for words in one message's content.
type content struct {
	conn    *Conn
	active  set   // rules whose words count here, and have not been alerted
	hit     Hit   // what there is to say of the message
	answer  bool  // it is a response's
	state   int32 // of the words, in the content as it is
	plain   *plainText
	charged int
}

// plainText is the content with its escapes read, as forms have them.
type plainText struct {
	unescape
	state int32
	buf   []byte
}

// newContent makes what the bytes of a message's content are written to; nil: they need not be looked at. coded says how they are coded, as in
// Content-Encoding, the last one outermost.
func (c *Conn) newContent(active set, hit Hit, response bool, coded []string) (sink, error) {
	if len(active) == 0 {
		return nil, nil
	}
	w := &content{conn: c, active: active, hit: hit, answer: response}
	if !response {
		w.plain = &plainText{}
	}
	var to sink = w
	layers := 0
	left := c.policy.MaxInflated
	for _, name := range coded {
		switch name = strings.ToLower(trim(name)); name {
		case "", "identity":
			continue
		case "gzip", "x-gzip", "deflate":
			if layers++; layers > 3 {
				return nil, c.undecodable(hit, "more than three codings of content")
			}
			if !c.take(inflaterSize) {
				return nil, c.full()
			}
			w.charged += inflaterSize
			to = &inflater{to: to, gzip: name != "deflate", left: &left, work: &c.decoded}
		default:
			c.give(w.charged)
			return nil, c.undecodable(hit, "content coded as "+quoted(name))
		}
	}
	return &judged{c, w, to, hit}, nil
}

// judged is the outermost sink: it says what errors of decoding mean.
type judged struct {
	conn *Conn
	w    *content
	to   sink
	hit  Hit
}

func (j *judged) write(p []byte) error {
	if j.to == nil {
		return nil
	}
	err := j.to.write(p)
	if errors.Is(err, errCoding) || errors.Is(err, errInflated) {
		err = j.conn.undecodable(j.hit, err.Error())
		j.close()
	}
	return err
}

// close frees what it has.
func (j *judged) close() {
	j.conn.give(j.w.charged)
	j.w.charged, j.to = 0, nil
}

func closeSink(s sink) {
	if j, ok := s.(*judged); ok {
		j.close()
	}
}

// undecodable content blocks, or nothing is said of it: nil.
func (c *Conn) undecodable(hit Hit, why string) error {
	if c.policy.Undecodable != Reset {
		return nil
	}
	hit.Why = why
	return &Block{Hit: hit}
}

const plainPiece = 4 << 10

func (w *content) write(p []byte) error {
	var err error
	found := func(rules []int) bool {
		err = w.found(rules)
		return err == nil
	}
	words := w.conn.policy.words
	w.state, _ = words.scan(w.state, p, found)
	if t := w.plain; t != nil {
		for len(p) > 0 && err == nil {
			n := min(len(p), plainPiece)
			t.buf = t.add(t.buf[:0], p[:n])
			t.state, _ = words.scan(t.state, t.buf, found)
			p = p[n:]
		}
	}
	return err
}

func (w *content) found(rules []int) error {
	for _, i := range rules {
		if !w.active.has(i) {
			continue
		}
		r := &w.conn.policy.rules[i]
		h := w.hit
		own := 1
		h.Rule, h.Why = r.Name, "word in the request's content"
		if w.answer {
			own, h.Why = -1, "word in the response's content"
		}
		if r.Action != Alert {
			return w.conn.block(r, h, own)
		}
		w.active = w.active.without(i)
		w.conn.policy.alert(h)
	}
	return nil
}
