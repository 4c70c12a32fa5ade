package experiment

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"strconv"
	"time"

	"weir.dev/weir/lab/machine"
	"weir.dev/weir/lab/platform"
	"weir.dev/weir/lab/traffic/services"
)

// Factors of the experiments http and dns.
const (
	factorBody    = "body"
	factorClients = "clients"

	defaultBody    = "16384"
	defaultClients = "8"
)

// serviceMetrics of both.
func serviceMetrics() map[string]string {
	return map[string]string{"rate": "1/s", "p50": "us", "p99": "us", "cpu": "us", "lost": "%"}
}

func clients(about string) Factor {
	return Factor{Name: factorClients, About: about, Default: defaultClients, Check: between(1, services.MaxClients, "clients")}
}

// httpExperiment asks a server behind the platform, or behind a proxy on it.
func httpExperiment() Experiment {
	return &chains{
		name: "http", about: "HTTP requests over connections that stay, each the next one when the answer is there, past what filters them (one that is forbidden has to be answered with 403 before) or what answers them from memory (the server is hardly asked)",
		metrics: serviceMetrics(), programs: []string{"ping"}, sockets: true,
		more: []Factor{
			{Name: factorBody, About: "bytes of an answer", Default: defaultBody, Check: between(1, services.MaxBody, "bytes")}, clients("connections"), warming(),
		},
		measure: func(ctx context.Context, c *chain, length time.Duration) (Measurement, error) {
			forbidden, cached := "", false
			if k, err := platformOf(c.levels); err == nil {
				cached = k.Function == platform.TaskCache || k.Function == platform.TaskCacheUnseen
				if k.Function == platform.TaskHTTP {
					forbidden = platform.Forbidden
				}
			}
			return c.ask(ctx, func(path platform.Path, began func()) (services.Result, error) {
				return services.HTTP(ctx, services.HTTPOptions{
					From: path.From, To: path.To, Address: path.Served(), Clients: c.levels.number(factorClients, defaultClients), Body: c.levels.number(factorBody, defaultBody),
					Forbidden: forbidden, Cached: cached, Warm: warmOf(c.levels), Duration: length, Began: began,
				})
			}, map[string]string{factorBody: c.levels.or(factorBody, defaultBody) + " B"})
		},
	}
}

// dnsExperiment asks for a name that the platform answers.
func dnsExperiment() Experiment {
	return &chains{
		name: "dns", about: "DNS queries over UDP for one name, 8 of a socket under way, to what answers on the platform (function dns-lb); each answer is looked at",
		metrics: serviceMetrics(), programs: []string{"ping"}, sockets: true, more: []Factor{clients("sockets")},
		check: func(l Levels) string {
			if k, err := platformOf(l); err == nil && k.Function != platform.TaskDNS {
				return "platform " + k.Name + " answers no queries: want function: " + platform.TaskDNS
			}
			return ""
		},
		measure: func(ctx context.Context, c *chain, length time.Duration) (Measurement, error) {
			return c.ask(ctx, func(path platform.Path, _ func()) (services.Result, error) {
				return services.DNS(ctx, services.DNSOptions{
					From: path.From, Address: path.Served(), Clients: c.levels.number(factorClients, defaultClients), Name: platform.Asked,
					Want: netip.MustParseAddr(platform.AskedIs), Duration: length,
				})
			}, nil)
		},
	}
}

// ask measures answers, with the CPU time of the whole machine for each from when it began to count, which ask may say.
func (c *chain) ask(ctx context.Context, ask func(path platform.Path, began func()) (services.Result, error), conditions map[string]string) (Measurement, error) {
	return c.sockets(ctx, func(path platform.Path) (Measurement, error) {
		before, err := machine.Take()
		if err != nil {
			return Measurement{}, err
		}
		var takeErr error
		r, err := ask(path, func() { before, takeErr = machine.Take() })
		if err = cmp.Or(err, takeErr); err != nil {
			return Measurement{}, err
		}
		after, err := machine.Take()
		if err != nil {
			return Measurement{}, err
		}
		m := Measurement{
			Values: map[string]float64{"rate": r.Rate, "lost": 100 * ratio(float64(r.Lost), float64(r.Answers+r.Lost))}, Raw: r,
			Conditions: map[string]string{factorClients: strconv.Itoa(r.Clients)},
		}
		maps.Copy(m.Conditions, conditions)
		for name, v := range map[string]float64{"p50": r.P50, "p99": r.P99} {
			if v > 0 {
				m.Values[name] = v
			}
		}
		if r.Answers > 0 {
			m.Values["cpu"] = (after.Busy() - before.Busy()) * 1e6 / float64(r.Answers)
		}
		return m, nil
	})
}
