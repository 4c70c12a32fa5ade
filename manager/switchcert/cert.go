package switchcert

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/history"
	"weir.dev/weir/manager/keys"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/tx"
	"weir.dev/weir/manager/web"
	"weir.dev/weir/pki"
	"weir.dev/weir/store"
)

// Routes are the paths of certificates of switches.
func (s *Certs) Routes() []web.Route {
	return []web.Route{
		{Method: "POST", Path: "/v1/switch-certificates", ID: "new-switch-certificate", Does: "create", Kind: "switch-certificate", Summary: "sign a switch's certificate request, for its datapath ids",
			Body: api.SwitchCertificateRequest{}, Answers: map[int]any{201: api.SwitchCertificate{}}, Problems: []int{400, 409, 422, 507}, Handler: s.newSwitchCert},
		{Method: "GET", Path: "/v1/switch-certificates", ID: "list-switch-certificates", Needs: api.RoleViewer, Summary: "the switches' certificates that are not revoked",
			Answers: map[int]any{200: api.List[api.SwitchCertificate]{}}, Handler: s.switchCertificates},
		{Method: "DELETE", Path: "/v1/switch-certificates/{name}", ID: "revoke-switch-certificate", Kind: "switch-certificate", Summary: "refuse a switch's certificate from now on",
			Answers: map[int]any{204: nil}, Problems: []int{404}, Handler: s.revokeSwitchCert},
	}
}

// kindSwitchCert holds switches' certificates by the beginning of their key's hash. A certificate without a record is refused.
const kindSwitchCert api.Kind = "switch-certificate"

// Bounds of switches' certificates.
const (
	maxSwitchCerts     = 4096
	minSwitchLife      = time.Second
	maxSwitchLife      = 10 * 365 * 24 * time.Hour
	switchCertID       = 16                  // digits of a record's name
	switchCertCache    = time.Second         // for how long the list of records is believed
	keepDeadSwitchCert = 30 * 24 * time.Hour // expired ones stay listed so long
)

// switchCert is a record. Key is the SHA-256 of the public key.
type switchCert struct {
	api.Meta
	Key     string    `json:"key"`
	IDs     []string  `json:"ids"`
	Expires time.Time `json:"expires"`
}

func (s *switchCert) public() api.SwitchCertificate {
	return api.SwitchCertificate{ID: s.Name, DatapathIDs: s.IDs, Created: s.Created, Expires: s.Expires}
}

// Certs is what a manager keeps in memory of them.
type Certs struct {
	*tx.Writer
	Keys *keys.Keys

	mu   sync.Mutex
	keys map[string]bool
	at   time.Time
	cert *tls.Certificate // the listener's
}

// newSwitchCert signs a switch's request.
func (s *Certs) newSwitchCert(w http.ResponseWriter, r *http.Request) error {
	var req api.SwitchCertificateRequest
	if err := web.ReadBody(w, r, &req); err != nil {
		return err
	}
	dpids, life, err := checkSwitchCert(req)
	if err != nil {
		return err
	}
	a, err := s.Keys.Authority(r.Context())
	if err != nil {
		return err
	}
	list, _, err := store.List[switchCert](r.Context(), s.Store, kindSwitchCert)
	if err != nil {
		return err
	}
	now := s.Now().UTC()
	c, err := a.Switch([]byte(req.Request), dpids, now, life)
	if err != nil {
		return api.Refuse(http.StatusUnprocessableEntity, err.Error())
	}
	key := pki.KeyHash(c)
	rec := &switchCert{Meta: api.Meta{Name: key[:switchCertID], UID: object.NewUID(), Created: now, Updated: now}, Key: key, Expires: c.NotAfter}
	for _, id := range dpids {
		rec.IDs = append(rec.IDs, pki.FormatDatapathID(id))
	}
	put := store.Put(kindSwitchCert, rec)
	ops, left, at := []store.Op{put}, len(list), int64(0)
	for i := range list {
		old := &list[i]
		names := slices.ContainsFunc(old.IDs, func(id string) bool { return slices.Contains(rec.IDs, id) })
		switch {
		case old.Name == rec.Name: // the same key again: renewed
			at = old.Revision
			left--
		case (req.Replace && names || now.Sub(old.Expires) > keepDeadSwitchCert) && len(ops) < history.ForgetAtOnce:
			ops = append(ops, store.Delete(kindSwitchCert, old.Name))
			left--
		}
	}
	if left >= maxSwitchCerts {
		return api.Refuse(http.StatusConflict, fmt.Sprintf("there are %d certificates of switches: revoke some (weir switch list, weir switch revoke)", left))
	}
	e := api.Event{Severity: api.Info, Reason: "SwitchCertified", Message: fmt.Sprintf("certificate %s was made for the datapath ids %s, valid until %s", rec.Name,
		abridged(rec.IDs), rec.Expires.Format(time.DateTime+" MST"))}
	if _, err := s.Write(r.Context(), tx.Change{Conds: []store.Cond{{Key: put.Key, Revision: at}}, Ops: ops, Events: []api.Event{e}}); err != nil {
		return err
	}
	s.forget()
	out := rec.public()
	out.Certificate, out.Authority = string(pki.EncodeCertificate(c)), string(a.Certificate())
	return web.Answer(w, http.StatusCreated, out)
}

// abridged lists the first few.
func abridged(ids []string) string {
	if len(ids) > 4 {
		return fmt.Sprintf("%s and %d more", strings.Join(ids[:4], ", "), len(ids)-4)
	}
	return strings.Join(ids, ", ")
}

func checkSwitchCert(req api.SwitchCertificateRequest) (dpids []uint64, life time.Duration, err error) {
	var problems []api.Problem
	if n := len(req.DatapathIDs); n == 0 || n > pki.MaxSwitchIDs {
		problems = append(problems, api.Problem{Path: "datapath_ids", Message: fmt.Sprintf("has %d", n), Hint: fmt.Sprintf("want 1 to %d", pki.MaxSwitchIDs)})
	}
	for i, text := range req.DatapathIDs[:min(len(req.DatapathIDs), pki.MaxSwitchIDs)] {
		id, err := strconv.ParseUint(text, 16, 64)
		if err != nil || id == 0 {
			problems = append(problems, api.Problem{Path: fmt.Sprintf("datapath_ids[%d]", i), Message: fmt.Sprintf("is %q", text), Hint: "want 1 to 16 hexadecimal digits, not all 0"})
			continue
		}
		if !slices.Contains(dpids, id) {
			dpids = append(dpids, id)
		}
	}
	life = pki.SwitchLife
	if req.Life != "" {
		life, err = time.ParseDuration(req.Life)
		if err != nil || life < minSwitchLife || life > maxSwitchLife {
			problems = append(problems, api.Problem{Path: "life", Message: fmt.Sprintf("is %q", req.Life), Hint: fmt.Sprintf("want a duration from %v to %v, for example 8760h", minSwitchLife, maxSwitchLife)})
		}
	}
	if _, err := pki.ParseRequest([]byte(req.Request)); err != nil {
		problems = append(problems, api.Problem{Path: "request", Message: err.Error()})
	}
	if len(problems) > 0 {
		return nil, 0, api.Refuse(http.StatusUnprocessableEntity, "the certificate is refused", problems...)
	}
	return dpids, life, nil
}

// switchCertificates lists them, the oldest first.
func (s *Certs) switchCertificates(w http.ResponseWriter, r *http.Request) error {
	list, rev, err := store.List[switchCert](r.Context(), s.Store, kindSwitchCert)
	if err != nil {
		return err
	}
	out := api.List[api.SwitchCertificate]{Items: []api.SwitchCertificate{}, Revision: rev}
	for i := range list {
		out.Items = append(out.Items, list[i].public())
	}
	slices.SortFunc(out.Items, func(x, y api.SwitchCertificate) int {
		return cmp.Or(x.Created.Compare(y.Created), cmp.Compare(x.ID, y.ID))
	})
	return web.Answer(w, http.StatusOK, out)
}

// revokeSwitchCert forgets a certificate, which is refused from then on.
func (s *Certs) revokeSwitchCert(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("name")
	rec, err := object.Find[switchCert](r.Context(), s.Store, kindSwitchCert, id)
	if err != nil {
		return err
	}
	e := api.Event{Severity: api.Warning, Reason: "SwitchRevoked", Message: fmt.Sprintf("certificate %s of the datapath ids %s was revoked", rec.Name, abridged(rec.IDs))}
	c := tx.Change{Conds: []store.Cond{{Key: store.Key(kindSwitchCert, id), Revision: rec.Revision}}, Ops: []store.Op{store.Delete(kindSwitchCert, id)}, Events: []api.Event{e}}
	if _, err := s.Write(r.Context(), c); err != nil {
		return err
	}
	s.forget()
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Certs) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = nil
}

// ErrRevoked says that a certificate has no record: it was revoked or replaced.
var ErrRevoked = errors.New("the certificate was revoked or replaced: make another (weir switch cert)")

// SwitchIDs returns the datapath ids for which a switch's certificate is good now. It reads the store once a second at most.
func (s *Certs) SwitchIDs(ctx context.Context, c *x509.Certificate) ([]uint64, error) {
	a, err := s.Keys.Authority(ctx)
	if err != nil {
		return nil, err
	}
	dpids, err := a.CheckSwitch(c, s.Now())
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if age := s.Now().Sub(s.at); s.keys == nil || age > switchCertCache || age < 0 {
		list, _, err := store.List[switchCert](ctx, s.Store, kindSwitchCert)
		switch {
		case err == nil:
			s.keys, s.at = map[string]bool{}, s.Now()
			for i := range list {
				s.keys[list[i].Key] = true
			}
		case s.keys == nil:
			return nil, err
		} // else nothing can have been revoked while the state cannot be written
	}
	if !s.keys[pki.KeyHash(c)] {
		return nil, ErrRevoked
	}
	return dpids, nil
}

// ForSwitches is the TLS configuration of the listener for switches.
func (s *Certs) ForSwitches(ctx context.Context) (*tls.Config, error) {
	a, err := s.Keys.Authority(ctx)
	if err != nil {
		return nil, err
	}
	certificate := func() (tls.Certificate, error) {
		now := s.Now()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.cert == nil || now.After(pki.RenewAt(s.cert.Leaf.NotBefore, s.cert.Leaf.NotAfter)) || now.Before(s.cert.Leaf.NotBefore) {
			c, err := a.Manager(now, pki.ManagerLife)
			if err != nil {
				return tls.Certificate{}, err
			}
			s.cert = &c
		}
		return *s.cert, nil
	}
	return pki.ForSwitches(certificate, func(c *x509.Certificate) error {
		ctx, cancel := context.WithTimeout(ctx, web.HandshakeTimeout)
		defer cancel()
		_, err := s.SwitchIDs(ctx, c)
		return err
	}), nil
}
