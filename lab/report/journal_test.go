package report

import (
	"encoding/json"
	"testing"
	"time"

	"weir.dev/weir/api/schematest"
	"weir.dev/weir/lab/study"
)

// Every line that a journal writes is as its schema says, and what is not a line of one is refused.
func TestJournalIsAsItsSchemaSays(t *testing.T) {
	valid := schematest.Of(t, JournalSchemaJSON())
	j := synthetic(t, 60)
	lines := []any{j.Header, map[string]any{"step": study.Step{Of: j.Records[0].Trial, What: "search", Load: 1e6, Values: map[string]float64{"loss": 0}, Raw: json.RawMessage(`{"a":[1]}`)}}}
	lines = append(lines, map[string]any{"resumed": study.Resumption{At: time.Now(), Version: "v2", Environment: map[string]string{"kernel": "6.2"}}})
	for _, r := range j.Records {
		lines = append(lines, r)
	}
	full := j.Records[0]
	full.Conditions, full.Skipped, full.Void, full.Raw, full.Begun = map[string]string{"GRO": "on"}, "why", "why", json.RawMessage(`"text"`), time.Now()
	for _, line := range append(lines, full) {
		b, err := json.Marshal(line)
		if err != nil {
			t.Fatal(err)
		}
		if err := valid(b); err != nil {
			t.Errorf("%.200s: %v", b, err)
		}
	}
	for _, bad := range []string{`{}`, `[]`, `{"trial":{}}`, `{"step":{}}`, `{"resumed":{}}`, `{"format":"1"}`, `{"trial":{"part":"p","block":0,"variant":["a"]},"begun":"now","took_ns":"1s"}`} {
		if valid([]byte(bad)) == nil {
			t.Errorf("%s is taken as a line", bad)
		}
	}
}
