package main

import (
	"testing"

	"github.com/miekg/dns"
)

// BenchmarkQuery answers a query, without sockets.
func BenchmarkQuery(b *testing.B) {
	z := testZone(b, own)
	q := ask("own.example.", dns.TypeA)
	b.ReportAllocs()
	for b.Loop() {
		if _, fate := z.query(q, client, 0); fate != answered {
			b.Fatal(fate)
		}
	}
}

// BenchmarkOther looks at a query that is not ours.
func BenchmarkOther(b *testing.B) {
	z := testZone(b, own)
	q := ask("www.other.example.", dns.TypeA)
	b.ReportAllocs()
	for b.Loop() {
		if _, fate := z.query(q, client, 0); fate != passes {
			b.Fatal(fate)
		}
	}
}
