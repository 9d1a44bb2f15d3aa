package app

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// reasonTexts say of every reason that the code can give to a parked message what it means. Those that only name a field
// of a payload ("amount") are not listed here.
var reasonTexts = map[string][2]string{
	"attempts-exhausted": {"dead", "it failed in a way that might have passed, as often as `retry.attempts` allows; the error says how the last time"},
	"behind-parked":      {"waiting", "an older message of its ordering key is parked"},
	"contention":         {"waiting", "rivals for the same rows, for longer than is waited at once"},
	"crashed":            {"dead", "the process died `crash_limit` times while it was under way"},
	"deadline":           {"waiting, then dead", "the handler overran `timeout`"},
	"engine-error":       {"waiting, then dead", "an error of Oncemill itself; please report it"},
	"handler-error":      {"waiting", "the handler returned an error that may pass"},
	"in-progress":        {"waiting", "another process holds the key"},
	"outcome-unknown":    {"in_doubt", "an outside call may or may not have had its effect; decide with `keys resolve`"},
	"panic":              {"waiting, then dead", "the handler panicked; the log has where"},
	"payload-mismatch":   {"dead", "the key was used before with another payload; `dlq redrive --as-key` runs it under a key of its own"},
	"permanent":          {"dead", "a handler refused it without a code"},
	"result-not-json":    {"dead", "the handler's result has no JSON form"},
	"unpublishable":      {"dead", "with its keys in the broker: what its handler publishes is refused for ever, for its size or for `deliver-at`"},
	"result-too-large":   {"dead", "the handler's result is larger than 64 KiB"},

	"key-control-character": {"dead", "the key has control characters"},
	"key-empty":             {"dead", "the key is empty"},
	"key-invalid-utf8":      {"dead", "the key is no UTF-8"},
	"key-missing":           {"dead", "there is no key where `key` says, and `missing_key` is `reject`"},
	"key-not-text":          {"dead", "what stands where `key` says is no text"},
	"key-too-long":          {"dead", "the key has more than 255 bytes"},
	"key-unreadable":        {"dead", "reading the key or the fingerprint failed"},
	"payload-too-large":     {"dead", "the payload is larger than `max_payload`"},

	"account-id-taken":     {"dead", "payments: the account was opened by another message"},
	"counter-event-exists": {"dead", "counters: the key was counted before it expired"},
	"counter-overflow":     {"dead", "counters: the total would be too large"},
	"dynamodb-invalid":     {"dead", "handlers in DynamoDB: the service refuses the writes, or an outgoing message could not be published"},
	"dynamodb-too-large":   {"dead", "handlers in DynamoDB: the writes, or the result, do not fit into one transaction"},
	"journal-entry-exists": {"dead", "journal: the key had its entry before it expired"},
	"payload-not-json":     {"dead", "the payload is not JSON of the form that the handler takes"},
	"payment-id-taken":     {"dead", "payments: the payment was made by a message with another key"},
	"smtp-refused":         {"dead", "email: the mail server refused the letter for good"},
}

// internalReasons never stand with a parked message: the message is handed back, or tried again at once.
var internalReasons = []string{"stopping", "commit-outcome-unknown", "lease-lost", "parked-lease-lost", "store-unavailable"}

// fieldCodes are codes of plugins that only name the field of the payload that they refuse.
var fieldCodes = []string{"account_id", "amount", "counter", "currency", "delta", "kind", "opening_balance", "subject", "text", "to"}

func (p *page) reasons(t *testing.T) {
	found := reasonsInSource(t)
	for _, reason := range found {
		_, told := reasonTexts[reason]
		require.True(t, told || slices.Contains(internalReasons, reason) || slices.Contains(fieldCodes, reason),
			"reason %q is not in reasonTexts: say there what it means", reason)
	}
	p.say("## Reasons\n")
	p.say("Why a message is parked, as `dlq list` and `oncemill_failures_total` name it. A handler's own code is its reason, too: those of the built-in handlers that")
	p.say("are not listed name the field that they refuse, such as `amount` or `to`.\n")
	p.head("reason", "state", "meaning")
	var names []string
	for reason := range reasonTexts {
		require.Contains(t, found, reason, "no code gives this reason any more")
		names = append(names, reason)
	}
	slices.Sort(names)
	for _, reason := range names {
		p.row("`"+reason+"`", reasonTexts[reason][0], reasonTexts[reason][1])
	}
	p.say("\nRules of the message contract that a publisher refuses at once, before any broker sees the message: %s.", strings.Join(rulesOfPublishing(t), ", "))
}

// rulesOfPublishing are the rules that no received message is judged by.
func rulesOfPublishing(t *testing.T) []string {
	var rules []string
	for _, rule := range constantsIn(t, "../middleware/envelope/validate.go", regexp.MustCompile(`^Rule`)) {
		if _, told := reasonTexts[rule]; !told {
			rules = append(rules, "`"+rule+"`")
		}
	}
	slices.Sort(rules)
	return rules
}

// reasonsInSource finds the reasons in the code of engine, contract and plugins.
func reasonsInSource(t *testing.T) []string {
	found := map[string]bool{}
	for _, dir := range []string{"../middleware/idempotency", "../handlers"} {
		require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") && !strings.Contains(path, "handlertest") {
				for _, reason := range reasonsIn(t, path) {
					found[reason] = true
				}
			}
			return err
		}))
	}
	for _, rule := range constantsIn(t, "../middleware/envelope/validate.go", regexp.MustCompile(`^Rule(Key|PayloadTooLarge)`)) {
		found[rule] = true
	}
	var all []string
	for reason := range found {
		all = append(all, reason)
	}
	slices.Sort(all)
	return all
}

// reasonsIn finds string literals that become a reason: fields and variables named so, codes of Permanent, and rules.
func reasonsIn(t *testing.T, path string) []string {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	require.NoError(t, err)
	var found []string
	add := func(e ast.Expr) {
		ast.Inspect(e, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if text, err := strconv.Unquote(lit.Value); err == nil && text != "" {
					found = append(found, text)
				}
			}
			return true
		})
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			if id, ok := n.Key.(*ast.Ident); ok && strings.EqualFold(id.Name, "reason") {
				add(n.Value)
			}
		case *ast.AssignStmt:
			for i, left := range n.Lhs {
				if sel, ok := left.(*ast.SelectorExpr); ok && strings.EqualFold(sel.Sel.Name, "reason") && len(n.Rhs) == len(n.Lhs) {
					add(n.Rhs[i])
				}
			}
		case *ast.ValueSpec:
			if len(n.Names) == 1 && n.Names[0].Name == "rule" && len(n.Values) == 1 {
				add(n.Values[0])
			}
		case *ast.CallExpr:
			if name := called(n); (name == "Permanent" || name == "Permanentf") && len(n.Args) >= 2 {
				if _, literal := n.Args[0].(*ast.BasicLit); literal {
					add(n.Args[0])
				}
			}
		}
		return true
	})
	return found
}

func called(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

// constantsIn returns the values of a file's string constants whose names match.
func constantsIn(t *testing.T, path string, names *regexp.Regexp) []string {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	require.NoError(t, err)
	var values []string
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		for i, name := range spec.Names {
			if names.MatchString(name.Name) && i < len(spec.Values) {
				if lit, ok := spec.Values[i].(*ast.BasicLit); ok {
					text, err := strconv.Unquote(lit.Value)
					require.NoError(t, err)
					values = append(values, text)
				}
			}
		}
		return true
	})
	return values
}
