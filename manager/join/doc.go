// Package join lets hosts join with a token, renews their certificates, and hands out what all hosts have in common.
package join
