package config

import (
	"regexp"
	"slices"
	"strings"
)

// EnvPrefix begins the names of environment variables that are configuration. Levels are joined by two underscores:
// ONCEMILL_BROKERS__RABBITMQ__URL is brokers.rabbitmq.url.
const EnvPrefix = "ONCEMILL_"

// EnvFile names the environment variable that holds the path of the file, where no other is given.
const EnvFile = EnvPrefix + "CONFIG"

// envTests begins the variables by which this repository's tests find their servers.
const envTests = EnvPrefix + "TEST_"

// Kubernetes sets such variables for a service whose name is, or begins with, oncemill.
var kubernetes = regexp.MustCompile(`^ONCEMILL_([A-Z0-9]+_)*(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_PROTO|_PORT|_ADDR)?)$`)

// override is a value of the environment or of a flag on its way to its place.
type override struct {
	// value is a function so that no printing of whatever holds the override, by whatever verb, can show a secret.
	value func() string
	at    origin
	// rest is the part of the name that is still to be matched: "" when the value has arrived.
	rest string
	// env tells a variable's spelling from a flag's.
	env bool
}

func hide(value string) func() string { return func() string { return value } }

// separator stands between two levels of a name.
func (o override) separator() string {
	if o.env {
		return "__"
	}
	return "."
}

// spelling is how name is written in the override's kind of name.
func (o override) spelling(name string) string {
	if o.env {
		return envName(name)
	}
	return name
}

func envName(name string) string {
	return strings.ToUpper(strings.NewReplacer("-", "_", ".", "_").Replace(name))
}

func envNames(names []string) []string {
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = envName(name)
	}
	return out
}

// descend matches the next level against name.
func (o override) descend(name string) (override, bool) {
	want, rest := o.spelling(name), o.rest
	if o.env {
		rest = strings.ToUpper(rest)
	}
	if rest == want {
		o.rest = ""
		return o, true
	}
	if want += o.separator(); strings.HasPrefix(rest, want) && len(rest) > len(want) {
		o.rest = o.rest[len(want):]
		return o, true
	}
	return o, false
}

// next is the next level as it is written.
func (o override) next() string {
	name, _, _ := strings.Cut(o.rest, o.separator())
	return name
}

// misspelt says what the override, whose name stands at this level, was probably meant to be, given the names
// that are known here and the beginnings that have further levels, such as BROKERS and BROKERS__RABBITMQ.
func (o override) misspelt(name string, names, sections []string) string {
	before := strings.TrimSuffix(o.at.name, o.rest)
	// Levels joined by one underscore are the commonest slip.
	meant, length := "", 0
	for _, s := range sections {
		slip := strings.ReplaceAll(s, "__", "_") + "_"
		if o.env && len(slip) > length && strings.HasPrefix(strings.ReplaceAll(strings.ToUpper(o.rest), "__", "_"), slip) {
			meant, length = before+s+"__"+strings.ReplaceAll(o.rest, "__", "_")[len(slip):], len(slip)
		}
	}
	if meant != "" {
		return `; did you mean "` + meant + `"?`
	}
	if best := closest(name, names); best != "" {
		return `; did you mean "` + before + o.spelling(best) + o.rest[len(name):] + `"?`
	}
	spelt := make([]string, len(names))
	for i, name := range names {
		spelt[i] = o.spelling(name)
	}
	return suggest(name, spelt)
}

// splitOverrides takes those that name into the rest of their way.
func splitOverrides(over []override, names []string) (matched map[string][]override, unknown []override) {
	matched = map[string][]override{}
	// The longest name first: "mail.sent" before "mail".
	names = slices.Clone(names)
	slices.SortFunc(names, func(a, b string) int { return len(b) - len(a) })
next:
	for _, o := range over {
		for _, name := range names {
			if deeper, ok := o.descend(name); ok {
				matched[name] = append(matched[name], deeper)
				continue next
			}
		}
		unknown = append(unknown, o)
	}
	return matched, unknown
}

// guess splits off the name of a map's element that nothing is known of. A flag's may have dots: it ends before the first of
// the names that an element has.
func (o override) guess(below []string) (string, override) {
	name := o.next()
	if !o.env {
		parts := strings.Split(o.rest, ".")
		for i := 1; i < len(parts); i++ {
			if slices.Contains(below, parts[i]) {
				name = strings.Join(parts[:i], ".")
				break
			}
		}
	}
	deeper, _ := o.descend(name)
	return name, deeper
}

// arrived returns the value that ends here: a flag's before a variable's.
func arrived(over []override) (value *override, deeper []override) {
	for i := range over {
		if over[i].rest == "" {
			value = &over[i]
		} else {
			deeper = append(deeper, over[i])
		}
	}
	return value, deeper
}

// overridesOf returns the overrides in rising order of precedence, and the path of the file where the environment names one.
func overridesOf(env []string, flags map[string]string) (over []override, file string) {
	for _, pair := range env {
		name, value, ok := strings.Cut(pair, "=")
		switch {
		case !ok || !strings.HasPrefix(name, EnvPrefix) || strings.HasPrefix(name, envTests) || kubernetes.MatchString(name):
		case name == EnvFile:
			file = value
		default:
			over = append(over, override{value: hide(value), at: origin{name: name}, rest: strings.TrimPrefix(name, EnvPrefix), env: true})
		}
	}
	slices.SortStableFunc(over, func(a, b override) int { return strings.Compare(a.at.name, b.at.name) })
	paths := make([]string, 0, len(flags))
	for path := range flags {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	for _, path := range paths {
		over = append(over, override{value: hide(flags[path]), at: origin{name: "--" + path}, rest: path})
	}
	return over, file
}
