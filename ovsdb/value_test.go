package ovsdb_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"weir.dev/weir/ovsdb"
)

func drawAtom(t *rapid.T) ovsdb.Value {
	switch rapid.IntRange(0, 5).Draw(t, "kind") {
	case 0:
		return rapid.String().Draw(t, "string")
	case 1:
		return rapid.Int64().Draw(t, "integer")
	case 2:
		return float64(rapid.Int32().Draw(t, "real")) + 0.5
	case 3:
		return rapid.Bool().Draw(t, "boolean")
	case 4:
		return ovsdb.NamedUUID(rapid.StringMatching("[a-z_]{1,9}").Draw(t, "name"))
	}
	return ovsdb.UUID(rapid.StringMatching("[0-9a-f]{8}-[0-9a-f]{4}").Draw(t, "uuid"))
}

func TestValuesComeBackAsTheyWent(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var v ovsdb.Value
		switch rapid.IntRange(0, 2).Draw(rt, "shape") {
		case 0:
			v = drawAtom(rt)
		case 1:
			s := ovsdb.Set{}
			for range rapid.IntRange(0, 5).Draw(rt, "size") {
				s = append(s, drawAtom(rt))
			}
			v = s
		default:
			m := ovsdb.Map{}
			for range rapid.IntRange(0, 5).Draw(rt, "size") {
				m[drawAtom(rt)] = drawAtom(rt)
			}
			v = m
		}
		b, err := json.Marshal(v)
		if err != nil {
			rt.Fatal(err)
		}
		back, err := ovsdb.DecodeValue(b)
		if err != nil {
			rt.Fatalf("%s: %v", b, err)
		}
		if d := cmp.Diff(v, back); d != "" {
			rt.Errorf("%s: %s", b, d)
		}
	})
}

func TestValuesRefused(t *testing.T) {
	for _, text := range []string{``, `null`, `{}`, `[]`, `["set"]`, `["set", 1]`, `["set", [["set", []]]]`, `["map", [[1]]]`, `["map", [1]]`,
		`["map", [[1, 2], [1, 3]]]`, `["uuid", 7]`, `["what", "x"]`, `[1, 2, 3]`, `1 2`, `1]`, `"a"}`, `1e999`} {
		if v, err := ovsdb.DecodeValue([]byte(text)); !errors.Is(err, ovsdb.ErrValue) {
			t.Errorf("%s: %v, %v", text, v, err)
		}
	}
}

func TestColumns(t *testing.T) {
	r := ovsdb.Row{"none": ovsdb.Set{}, "one": "a", "set": ovsdb.Set{"a", "b"}, "n": int64(7), "ids": ovsdb.UUID("u"), "map": ovsdb.Map{"k": "v", "n": int64(1)}}
	if r.Text("none") != "" || r.Text("one") != "a" || r.Text("missing") != "" || len(ovsdb.SetOf(r["set"])) != 2 || len(r.UUIDs("ids")) != 1 {
		t.Error("texts and sets")
	}
	if n, ok := r.Int("n"); n != 7 || !ok {
		t.Error(n, ok)
	}
	if _, ok := r.Int("none"); ok {
		t.Error("a number in the empty set")
	}
	if d := cmp.Diff(map[string]string{"k": "v"}, r.Texts("map")); d != "" {
		t.Error(d)
	}
}

func FuzzDecodeValue(f *testing.F) {
	for _, s := range []string{`"a"`, `1`, `-1.5e3`, `true`, `["uuid","x"]`, `["set",[1,2]]`, `["map",[["a",1],["b",["uuid","c"]]]]`, `[[[[`, `["map",[[["uuid","a"],1]]]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := ovsdb.DecodeValue(b)
		if err != nil {
			if v != nil {
				t.Fatalf("a value and an error: %v, %v", v, err)
			}
			return
		}
		out, err := json.Marshal(v)
		if err != nil {
			t.Fatalf("%v: %v", v, err)
		}
		back, err := ovsdb.DecodeValue(out)
		if err != nil {
			t.Fatalf("%s became %s: %v", b, out, err)
		}
		if d := cmp.Diff(v, back); d != "" {
			t.Fatal(d)
		}
	})
}
