package sqlcore

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// plainSpelling writes marks as they are.
type plainSpelling struct{}

func (plainSpelling) Placeholder(n int) string { return "$" + strconv.Itoa(n) }
func (plainSpelling) Word(name, arg string) (string, bool) {
	return name + arg, name == "now" || name == "at"
}
func (plainSpelling) Later(w *Text, d Later) { w.Raw("later "); w.Arg(d) }
func (plainSpelling) Rows(w *Text, s *Set)   { w.Raw("rows "); w.Arg(len(s.Rows)) }
func (plainSpelling) List(w *Text, l *List)  { w.Raw("in "); w.Arg(len(l.Values)) }
func (plainSpelling) Value(v any) any        { return v }

func TestSpellTakesArgumentsInTheOrderOfTheText(t *testing.T) {
	t.Parallel()
	query, args := Spell(plainSpelling{}, &Stmt{
		Query: `WITH v AS ({rows}) a = ? AND b {list} AND c < {later} AND {now} {at v.x} d = ?`,
		Set:   &Set{Rows: make([][]any, 3)}, List: &List{Values: make([]any, 2)},
		Args: []any{"a", Later(time.Second), "d"},
	}, "first")
	require.Equal(t, `WITH v AS (rows $2) a = $3 AND b in $4 AND c < later $5 AND now atv.x d = $6`, query)
	require.Equal(t, []any{"first", 3, "a", 2, Later(time.Second), "d"}, args)
}

func TestSpellRefusesMistakes(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]*Stmt{
		"unknown mark":  {Query: `{nonsense}`},
		"open mark":     {Query: `{now`},
		"too few":       {Query: `? ?`, Args: []any{1}},
		"too many":      {Query: `?`, Args: []any{1, 2}},
		"later without": {Query: `{later}`},
	} {
		require.Panics(t, func() { Spell(plainSpelling{}, s) }, name)
	}
	query, args := Spell(plainSpelling{}, &Stmt{Query: `SELECT '{now}' ?`, Args: []any{1}, Native: true})
	require.Equal(t, `SELECT '{now}' ?`, query)
	require.Equal(t, []any{1}, args)
}

func TestTimesAreReadHoweverTheyCome(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 15, 4, 5, 123456000, time.FixedZone("", 3600))
	for _, src := range []any{at, FormatTime(at), []byte(FormatTime(at)), at.Format(time.RFC3339Nano)} {
		var got Time
		require.NoError(t, got.Scan(src))
		require.True(t, at.Equal(got.Time), "%v: %v", src, got)
	}
	got := Time{at}
	require.NoError(t, got.Scan(nil))
	require.True(t, got.IsZero())
	require.Error(t, got.Scan(5))
	require.Error(t, got.Scan("yesterday"))
	require.Less(t, FormatTime(at), FormatTime(at.Add(time.Microsecond)), "it sorts as text")
}
