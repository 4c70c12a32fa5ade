package web

import (
	"net"
	"net/http"
	"time"
)

// What tests over a whole manager look at.

const DefaultBody = defaultBody

var WithAgent = withAgent

func (a *API) Mux() http.Handler { return a.mux }

func Strangers(s *Server, source string) int            { return s.gate.count(source) }
func SetSource(s *Server, source func(net.Conn) string) { s.gate.source = source }
func StrangersPer() int                                 { return apiBounds.strangersPer }
func StrangersTimeout() time.Duration                   { return apiBounds.timeout }
