// Package walkthrough does what a document tells its reader to do: it runs the commands of its sh blocks as they are written, in one
// shell, and looks for the text blocks in what they print. It is for tests only.
package walkthrough

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/testenv"
)

// Block is one fenced block of a document.
type Block struct {
	// Language is what stands behind the fence: sh, text, go.
	Language string
	Text     string
}

// Read returns the fenced blocks of a section of a Markdown file, from its heading, such as "## Run it", to the next
// heading of that or a higher level; of the whole file where heading is empty. A section without blocks fails the test.
func Read(t testing.TB, file, heading string) []Block {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("walkthrough: %v", err)
	}
	var blocks []Block
	inside, fenced := heading == "", false
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSuffix(line, "\n")
		language, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && fenced:
			fenced = false
		case fence:
			fenced = true
			if inside {
				blocks = append(blocks, Block{Language: language})
			}
		case fenced && inside:
			blocks[len(blocks)-1].Text += line + "\n"
		case !fenced && heading != "" && strings.HasPrefix(line, "#"):
			if line == heading {
				inside = true
			} else if level(line) <= level(heading) {
				inside = false
			}
		}
	}
	if len(blocks) == 0 {
		t.Fatalf("walkthrough: %s has no fenced block under %q", file, heading)
	}
	return blocks
}

func level(heading string) int { return len(heading) - len(strings.TrimLeft(heading, "#")) }

// Commands are the commands of a sh block: its lines, those that end with a backslash joined with the next, without comments.
func (b Block) Commands() []string {
	var commands []string
	for line := range strings.Lines(strings.ReplaceAll(b.Text, "\\\n", " ")) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			commands = append(commands, line)
		}
	}
	return commands
}

// Follow runs the commands of the sh blocks, each of which must succeed. Where a text block follows, the last command is repeated until it succeeds and
// its output has every line of the text, in which blanks count as one and "…" stands for anything. change, where not nil, is applied to each command before.
func (s *Shell) Follow(blocks []Block, change func(string) string) {
	s.t.Helper()
	for i, b := range blocks {
		if b.Language != "sh" {
			continue
		}
		commands := b.Commands()
		want := ""
		if i+1 < len(blocks) && blocks[i+1].Language == "text" {
			want = blocks[i+1].Text
		}
		for n, command := range commands {
			if change != nil {
				command = change(command)
			}
			if want == "" || n < len(commands)-1 {
				s.Run(command)
				continue
			}
			testenv.Eventually(s.t, time.Minute, func() error {
				said, err := s.try(command)
				if err == nil {
					err = lacks(said, want)
				}
				return err
			})
		}
	}
}

// lacks returns an error that names the first line of want that said does not have.
func lacks(said, want string) error {
	plain := strings.Join(strings.Fields(said), " ")
	for line := range strings.Lines(want) {
		words := strings.Join(strings.Fields(line), " ")
		pattern := strings.ReplaceAll(regexp.QuoteMeta(words), "…", ".*")
		if !regexp.MustCompile(pattern).MatchString(plain) {
			return fmt.Errorf("no line %q in what was printed:\n%s", words, said)
		}
	}
	return nil
}
