package walkthrough

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const document = "# Top\n\n## One\n\n```sh\n# a comment\ncd sub\necho a \\\n  b\n```\n\n### Inner\n\n```text\na … b\n```\n\n## Two\n\n```go\n# no heading\n```\n"

func TestDocumentIsFollowed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sub"), 0o700))
	file := filepath.Join(dir, "doc.md")
	require.NoError(t, os.WriteFile(file, []byte(document), 0o600))

	one := Read(t, file, "## One")
	require.Equal(t, []string{"sh", "text"}, []string{one[0].Language, one[1].Language})
	require.Equal(t, []string{"cd sub", "echo a    b"}, one[0].Commands())
	require.Equal(t, []Block{{"go", "# no heading\n"}}, Read(t, file, "## Two"))
	require.Len(t, Read(t, file, ""), 3)

	s := Open(t, dir, os.Environ())
	s.Follow(one, func(command string) string {
		if command == "cd sub" {
			return command
		}
		return "echo a x b; n=1"
	})
	require.Contains(t, s.Run("pwd; sleep 60 & echo n=$n"), "/sub\nn=1\n", "folder and variables last")
	_, err := s.try("echo told; false")
	require.ErrorContains(t, err, "exit code 1: told")
	require.ErrorContains(t, lacks("state failed", "state completed"), `no line "state completed"`)
	require.NoError(t, lacks("x  state   completed\n", "state completed"))
}
