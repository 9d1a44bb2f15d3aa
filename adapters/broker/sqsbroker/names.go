package sqsbroker

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"
)

const (
	maxToken = 128 // of message groups and deduplication ids
	readable = 21
)

// QueuePrefix returns what the names of a topic's queues begin with, and no others: for operators and for producers that send to
// all groups of a topic. prefix is Config.Prefix. The readable part of it is for people.
func QueuePrefix(prefix, topic string) string {
	return prefix + short(topic[:min(len(topic), readable)]) + "-" + digest(topic, 10) + "-"
}

// QueueName returns the name of a group's queue. The end of a group's name says most.
func QueueName(prefix, topic, group string) string {
	return QueuePrefix(prefix, topic) + short(group[max(0, len(group)-readable):]) + "-" + digest(group, 10) + ".fifo"
}

func short(name string) string { return strings.ReplaceAll(name, ".", "_") }

// digest returns n characters, lower case letters and digits, of the SHA-256 of s.
func digest(s string, n int) string {
	sum := sha256.Sum256([]byte(s))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:n]
}

// hashed begins the tokens that are made of a text which is none.
const hashed = "sha256."

// token returns what stands for s as message group or deduplication id, which take 128 characters of printable ASCII without blanks.
// Different texts have different tokens.
func token(s string) string {
	if s != "" && len(s) <= maxToken && !strings.HasPrefix(s, hashed) && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return s
	}
	return hashed + digest(s, 52)
}
