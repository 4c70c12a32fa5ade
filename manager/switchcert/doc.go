// Package switchcert signs the certificates of OpenFlow switches, and knows which of them are revoked.
package switchcert
