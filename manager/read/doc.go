// Package read answers with what is stored: lists, watches, the audit log, backups. An agent sees what it may.
package read
