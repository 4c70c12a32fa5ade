// Package names reads the names that clients ask for: in TLS, as the HTTP filter and the monitor need them, and in DNS, as dns-lb and the monitor do.
package names
