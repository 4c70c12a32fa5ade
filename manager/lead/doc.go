// Package lead elects the one manager that runs the router and decides which hosts are lost.
package lead
