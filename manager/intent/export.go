package intent

import (
	"maps"
	"net/http"
	"slices"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/web"
)

// export answers with what is declared. What is being deleted is left out, and so is what commands count (restart).
func (e *Editor) export(w http.ResponseWriter, r *http.Request) error {
	st, err := e.load(r.Context())
	if err != nil {
		return err
	}
	for _, objects := range st.objects {
		for name, o := range objects {
			if o.Deleting != nil {
				delete(objects, name)
			}
		}
	}
	d, err := st.document()
	if err != nil {
		return err
	}
	secrets := map[string]bool{}
	for name, f := range d.Functions {
		f.Restart = 0
		if f.State == api.FunctionStarted {
			f.State = "" // the default
		}
		d.Functions[name] = f
		for _, text := range f.Secrets {
			if secret, _, err := api.ParseSecret(text); err == nil {
				secrets[secret] = true
			}
		}
	}
	return web.Answer(w, http.StatusOK, api.Export{Document: d, Secrets: slices.Sorted(maps.Keys(secrets))})
}
