package config

import (
	"regexp"
	"strings"
)

// secretName matches names whose values are secrets, whoever defined them. A name that ends in _file names
// a file, and is none.
var secretName = regexp.MustCompile(`(?i)(pass(word|wd|phrase)?|secret|token|credential|private_?key|(api|access|account|shared|encryption|signing)_?key|authorization|auth_?header|seed)s?$`)

func isSecretName(name string) bool { return secretName.MatchString(name) }

var (
	scheme = regexp.MustCompile(`\b[A-Za-z][A-Za-z0-9+.-]*://`)
	// pair matches secrets of connection strings such as "password=x" and of URL queries; values may be quoted.
	pair = regexp.MustCompile(`(?i)\b([a-z_.-]*(?:pass(?:word|wd|phrase)?|pwd|secret|token|credential|api_?key|access_?key|private_?key|authorization)[a-z_]*)(\s*=\s*)('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s&;,]+)`)
	// goDSN matches "user:password@protocol(address)", as Go's MySQL driver writes it.
	goDSN = regexp.MustCompile(`^([^:/@\s]*):(.*)@([a-z0-9+]*\()`)
)

// RedactText returns text without the passwords in its URLs, connection strings and key=value pairs. Hosts stay.
// What is in doubt goes.
func RedactText(text string) string {
	text = redactURLs(text)
	text = goDSN.ReplaceAllString(text, "$1:"+redacted+"@$3")
	return pair.ReplaceAllStringFunc(text, func(m string) string {
		parts := pair.FindStringSubmatch(m)
		if strings.HasSuffix(strings.ToLower(parts[1]), "_file") || strings.HasSuffix(strings.ToLower(parts[1]), "passfile") {
			return m
		}
		return parts[1] + parts[2] + redacted
	})
}

func redactURLs(text string) string {
	found := scheme.FindAllStringIndex(text, -1)
	if found == nil {
		return text
	}
	var b strings.Builder
	b.WriteString(text[:found[0][0]])
	for i, f := range found {
		end := len(text)
		if i+1 < len(found) {
			end = found[i+1][0]
		}
		b.WriteString(text[f[0]:f[1]])
		b.WriteString(redactUserInfo(text[f[0]:f[1]], text[f[1]:end]))
	}
	return b.String()
}

// redactUserInfo takes what follows a URL's scheme. A password that should have been encoded hides where the host
// begins, so everything up to the last '@' goes, also where that may have been host and path.
func redactUserInfo(scheme, rest string) string {
	at := strings.LastIndexByte(rest, '@')
	if at < 0 || strings.HasPrefix(rest, "[") { // an IPv6 host, without a user before it
		return rest
	}
	user, _, hasPassword := strings.Cut(rest[:at], ":")
	switch {
	case hasPassword:
		return user + ":" + redacted + rest[at:]
	case strings.HasPrefix(scheme, "nats") || strings.HasPrefix(scheme, "tls") || strings.HasPrefix(scheme, "ws"):
		return redacted + rest[at:] // a token
	}
	return rest
}
