package openflow

import "fmt"

func (*MultipartRequest) Type() Type { return TypeMultipartRequest }
func (*MultipartReply) Type() Type   { return TypeMultipartReply }

func (DescRequest) Kind() MultipartKind      { return MultipartDesc }
func (PortDescRequest) Kind() MultipartKind  { return MultipartPortDesc }
func (FlowStatsRequest) Kind() MultipartKind { return MultipartFlow }
func (AggregateRequest) Kind() MultipartKind { return MultipartAggregate }
func (PortStatsRequest) Kind() MultipartKind { return MultipartPortStats }
func (TableFeaturesMsg) Kind() MultipartKind { return MultipartTableFeatures }
func (DescReply) Kind() MultipartKind        { return MultipartDesc }
func (AggregateReply) Kind() MultipartKind   { return MultipartAggregate }
func (FlowStatsReply) Kind() MultipartKind   { return MultipartFlow }
func (PortStatsReply) Kind() MultipartKind   { return MultipartPortStats }
func (PortDescReply) Kind() MultipartKind    { return MultipartPortDesc }
func (m RawMultipart) Kind() MultipartKind   { return m.Type }

func (m *MultipartRequest) appendBody(b []byte, _ uint32) ([]byte, error) {
	return appendMultipart(b, m.More, m.Body)
}

func (m *MultipartReply) appendBody(b []byte, _ uint32) ([]byte, error) {
	return appendMultipart(b, m.More, m.Body)
}

func appendMultipart(b []byte, more bool, body MultipartBody) ([]byte, error) {
	if body == nil {
		return b, fmt.Errorf("no body")
	}
	var flags uint16
	if more {
		flags = 1
	}
	b = be.AppendUint16(be.AppendUint16(b, uint16(body.Kind())), flags)
	return body.appendBody(zeros(b, 4))
}

func decodeMultipart(r *reader, request bool) (more bool, body MultipartBody) {
	kind, flags := MultipartKind(r.u16()), r.u16()
	r.skip(4)
	if request {
		body = decodeMultipartRequest(r, kind)
	} else {
		body = decodeMultipartReply(r, kind)
	}
	return flags&1 == 1, body
}

func decodeMultipartRequest(r *reader, kind MultipartKind) MultipartBody {
	switch kind {
	case MultipartDesc:
		return DescRequest{}
	case MultipartPortDesc:
		return PortDescRequest{}
	case MultipartFlow:
		return decodeFlowStatsRequest(r)
	case MultipartAggregate:
		return AggregateRequest(decodeFlowStatsRequest(r))
	case MultipartPortStats:
		v := PortStatsRequest{Port(r.u32())}
		r.skip(4)
		return v
	case MultipartTableFeatures:
		return TableFeaturesMsg(decodeList(r, tableFeaturesLen, decodeTableFeatures))
	}
	return RawMultipart{kind, r.copy(len(r.b))}
}

func decodeMultipartReply(r *reader, kind MultipartKind) MultipartBody {
	switch kind {
	case MultipartDesc:
		return DescReply{r.name(256), r.name(256), r.name(256), r.name(32), r.name(256)}
	case MultipartFlow:
		return FlowStatsReply(decodeList(r, 56, decodeFlowStats))
	case MultipartAggregate:
		v := AggregateReply{r.u64(), r.u64(), r.u32()}
		r.skip(4)
		return v
	case MultipartPortStats:
		return PortStatsReply(decodeArray(r, 112, decodePortStats))
	case MultipartPortDesc:
		return PortDescReply(decodeArray(r, portLen, decodePort))
	case MultipartTableFeatures:
		return TableFeaturesMsg(decodeList(r, tableFeaturesLen, decodeTableFeatures))
	}
	return RawMultipart{kind, r.copy(len(r.b))}
}

// decodeList reads elements of at least min bytes that begin with their length.
func decodeList[E any](r *reader, min int, f func(*reader) E) (es []E) {
	for len(r.b) > 0 {
		in, ok := r.element(0, min)
		if !ok {
			return nil
		}
		es = append(es, f(&in))
		if in.bad == "" && len(in.b) > 0 {
			in.fail(BadLen, "element with %d bytes too many", len(in.b))
		}
		r.join(&in)
	}
	return es
}

// decodeArray reads elements of one size.
func decodeArray[E any](r *reader, size int, f func(*reader) E) []E {
	if len(r.b) == 0 {
		return nil
	}
	es := make([]E, 0, len(r.b)/size)
	for len(r.b) > 0 && r.bad == "" {
		es = append(es, f(r))
	}
	return es
}

func none(b []byte) ([]byte, error) { return b, nil }

func (DescRequest) appendBody(b []byte) ([]byte, error)     { return none(b) }
func (PortDescRequest) appendBody(b []byte) ([]byte, error) { return none(b) }
func (m RawMultipart) appendBody(b []byte) ([]byte, error)  { return append(b, m.Body...), nil }

func (m FlowStatsRequest) appendBody(b []byte) ([]byte, error) {
	if err := m.Match.Check(); err != nil {
		return b, err
	}
	b = append(b, m.Table, 0, 0, 0)
	b = be.AppendUint64(b, anyOutput)
	b = be.AppendUint64(be.AppendUint64(zeros(b, 4), m.Cookie), m.CookieMask)
	return m.Match.append(b)
}

func decodeFlowStatsRequest(r *reader) (m FlowStatsRequest) {
	m.Table = r.u8()
	r.skip(3)
	if out := r.u64(); out != anyOutput {
		r.fail(BadRequestEPERM, "a filter by output port or group is not supported")
	}
	r.skip(4)
	m.Cookie, m.CookieMask = r.u64(), r.u64()
	m.Match = decodeMatch(r)
	return m
}

func (m AggregateRequest) appendBody(b []byte) ([]byte, error) {
	return FlowStatsRequest(m).appendBody(b)
}

func (m PortStatsRequest) appendBody(b []byte) ([]byte, error) {
	return zeros(be.AppendUint32(b, uint32(m.Port)), 4), nil
}

func (m DescReply) appendBody(b []byte) ([]byte, error) {
	var err error
	for _, f := range [...]struct {
		s string
		n int
	}{{m.Manufacturer, 256}, {m.Hardware, 256}, {m.Software, 256}, {m.Serial, 32}, {m.Datapath, 256}} {
		if b, err = appendName(b, f.s, f.n); err != nil {
			return b, err
		}
	}
	return b, nil
}

func (m AggregateReply) appendBody(b []byte) ([]byte, error) {
	return zeros(be.AppendUint32(be.AppendUint64(be.AppendUint64(b, m.Packets), m.Bytes), m.Flows), 4), nil
}
