package sqlcore

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/oncemill/oncemill/middleware/envelope"
)

func TestMetadataKeepsEveryByte(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := map[string]string{}
		for range rapid.IntRange(0, 5).Draw(t, "n") {
			m[string(rapid.SliceOf(rapid.Byte()).Draw(t, "name"))] = string(rapid.SliceOf(rapid.Byte()).Draw(t, "value"))
		}
		back, err := decodeMetadata(encodeMetadata(m))
		if err != nil {
			t.Fatal(err)
		}
		if len(m) != len(back) {
			t.Fatalf("%d of %d names", len(back), len(m))
		}
		for k, v := range m {
			if back[k] != v {
				t.Fatalf("%q: %q became %q", k, v, back[k])
			}
		}
	})
	require.Equal(t, `{"a":"b"}`, string(encodeMetadata(map[string]string{"a": "b"})), "readable where it can be")
	empty, err := decodeMetadata(encodeMetadata(nil))
	require.NoError(t, err)
	require.NotNil(t, empty)
}

func TestIdentityIsBoundedAndTellsApart(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", envelope.MaxKey)
	seen := map[string]string{}
	for _, c := range []struct{ name, key, uuid string }{
		{"key", "a", "u1"},
		{"other key", "b", "u1"},
		{"no key", "", "a"},
		{"no key, other UUID", "", "u1"},
		{"longest key", long, ""},
		{"too long", long + "x", ""},
		{"too long, otherwise", long + "y", ""},
		{"no key, long UUID", "", long + "x"},
		{"case", "A", ""},
		{"blank", "a ", ""},
		{"NUL", "a\x00", ""},
	} {
		id := string(identity(c.key, c.uuid))
		require.LessOrEqual(t, len(id), envelope.MaxKey+1, c.name)
		require.NotContains(t, seen, id, "%s is taken for %s", c.name, seen[id])
		seen[id] = c.name
	}
	require.Equal(t, identity("a", "u1"), identity("a", "u2"), "the key decides where there is one")
	require.Nil(t, orderID(""))
}

func TestTextIsCutBetweenCharacters(t *testing.T) {
	t.Parallel()
	for max := range 12 {
		s := cut("äöü€😀", max)
		require.True(t, utf8.ValidString(s), "%d: %q", max, s)
		require.LessOrEqual(t, len(s), max)
	}
	require.Equal(t, "a�b�", readable("a\x00b\xff", 100))
}
