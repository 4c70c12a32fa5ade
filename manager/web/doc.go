// Package web serves HTTP: listeners and their bounds, who asks and what a role may, bodies, problems, the OpenAPI document. The routes come from
// the other packages; it knows no object.
package web
