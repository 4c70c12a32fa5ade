// Package tx writes transactions: one at a time in this process, prepared anew when another manager was faster, with their events and operations.
package tx
