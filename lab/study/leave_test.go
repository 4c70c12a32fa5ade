package study

import (
	"encoding/json"
	"testing"
)

// What a plan leaves is a level, or some, of each factor that it names; the file of a run says the same as that of the study.
func TestAPlanLeaves(t *testing.T) {
	p := Part{Factors: []Factor{{Name: "runtime", Levels: []string{"a", "b", "c"}}, {Name: "functions", Levels: []string{"1", "2"}}}}
	var plan Plan
	text := `{"blocks":6,"leave":[{"functions":"2","runtime":["a","b"]}]}`
	if err := json.Unmarshal([]byte(text), &plan); err != nil {
		t.Fatal(err)
	}
	if again, err := json.Marshal(plan); err != nil || string(again) != text {
		t.Errorf("%s, %v; want %s", again, err, text)
	}
	left := 0
	for _, v := range []Variant{{"a", "1"}, {"b", "1"}, {"c", "1"}, {"a", "2"}, {"b", "2"}, {"c", "2"}} {
		want := p.Level(v, "functions") == "2" && p.Level(v, "runtime") != "c"
		if have := p.Leaves(plan, v); have != want {
			t.Errorf("%v: left %v, want %v", v, have, want)
		}
		if p.Leaves(plan, v) {
			left++
		}
	}
	if left != 2 {
		t.Errorf("%d are left, want 2", left)
	}
	for _, bad := range []string{`{"leave":[{"functions":2}]}`, `{"leave":[{"functions":[]}]}`, `{"leave":[{"functions":[1]}]}`} {
		if err := json.Unmarshal([]byte(bad), &plan); err == nil {
			t.Errorf("%s: taken", bad)
		}
	}
}
