package web

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/strict"
)

// Flag tells whether a boolean parameter is set: ?NAME or ?NAME=true.
func Flag(r *http.Request, name string) bool {
	q := r.URL.Query()
	return q.Has(name) && q.Get(name) != "false"
}

// checkQuery refuses parameters that the OpenAPI document does not name, those that come twice, and those that are not as it says.
func checkQuery(rt Route, r *http.Request) error {
	if r.URL.RawQuery == "" || rt.Method == "" {
		return nil
	}
	var problems []api.Problem
	q := r.URL.Query()
	for _, name := range slices.Sorted(maps.Keys(q)) {
		if len(problems) >= strict.MaxProblems {
			break
		}
		if p := checkParameter(rt, name, q[name]); p != nil {
			p.Path = "query." + strict.Clip(name, strict.MaxText)
			problems = append(problems, *p)
		}
	}
	if len(problems) > 0 {
		return api.Refuse(http.StatusBadRequest, "the query is refused", problems...)
	}
	return nil
}

func checkParameter(rt Route, name string, values []string) *api.Problem {
	if !slices.Contains(rt.Query, name) {
		return &api.Problem{Message: "unknown parameter", Hint: "see /v1/openapi.json"}
	}
	p := queryParameter(name)
	if p.Schema.Type == "array" {
		return nil
	}
	if len(values) > 1 {
		return &api.Problem{Message: fmt.Sprintf("is there %d times", len(values)), Hint: "want it once"}
	}
	hint := wanted(p, values[0])
	if hint == "" {
		return nil
	}
	return &api.Problem{Message: "is " + strconv.Quote(strict.Clip(values[0], strict.MaxText)), Hint: hint}
}

// wanted says what a parameter should be, "" if it is that.
func wanted(p *huma.Param, value string) string {
	switch s := p.Schema; {
	case s.Type == "boolean":
		if value == "true" || value == "false" || value == "" && p.AllowEmptyValue {
			return ""
		}
		return "want true or false"
	case s.Type == "integer":
		n, err := strconv.ParseInt(value, 10, 64)
		switch {
		case err == nil && n >= int64(*s.Minimum) && n <= int64(*s.Maximum):
			return ""
		case *s.Maximum > 1<<20:
			return fmt.Sprintf("want a number from %.0f", *s.Minimum)
		}
		return fmt.Sprintf("want a number from %.0f to %.0f", *s.Minimum, *s.Maximum)
	case len(s.Enum) > 0 && !slices.Contains(s.Enum, any(value)):
		return fmt.Sprintf("want one of %v", s.Enum)
	}
	return ""
}
